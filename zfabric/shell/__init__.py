"""What both shells decide, as pure as the machines: ``zfabric.runtime`` and the simulator (``tests.sim``) run it."""
