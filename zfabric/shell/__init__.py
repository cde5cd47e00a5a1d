"""What the shells decide: pure as the machines are, and run by ``zfabric.runtime`` and ``zfabric.sim`` alike."""
