"""Processes and jobs: how they begin and end, and how a scheduler recovers after a restart."""
