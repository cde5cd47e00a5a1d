"""Built on the public names only: pools, queues, executors, strategies, bridges."""
