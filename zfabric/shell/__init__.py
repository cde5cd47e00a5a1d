"""What both shells decide, as pure as the machines: ``zfabric.runtime`` and ``zfabric.sim`` run it."""
