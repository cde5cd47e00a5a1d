"""Processes and jobs: begin, end, and recovery."""
