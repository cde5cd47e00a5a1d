"""Other nodes: which there are, tasks that they run for this one, tasks that this one runs for them, and the jobs that both work for."""
