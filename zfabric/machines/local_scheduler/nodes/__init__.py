"""Relations to other nodes: delegation, holds, values, actors, deaths and restarts."""
