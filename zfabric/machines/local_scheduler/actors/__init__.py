"""Actors: made, found, restarted, logged, and ended."""
