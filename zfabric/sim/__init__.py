"""The other shell: a deterministic world that drives the same machines."""
