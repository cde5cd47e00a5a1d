"""The shell: processes, the event loop, performing effects; the only layer that reads a clock."""
