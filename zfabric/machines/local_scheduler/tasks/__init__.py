"""Tasks: queued, dispatched, stopped, completed, and run again."""
