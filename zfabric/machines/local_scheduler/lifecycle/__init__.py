"""Processes and jobs: how they come and go, and how a scheduler recovers after a restart."""
