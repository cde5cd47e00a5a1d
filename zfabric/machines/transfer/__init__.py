"""The transfer agent: copies large values from other nodes into the arena of its own, and serves those that are there.

``pulls`` is the reader's side and ``supplies`` the source's; ``machine`` receives the messages for both.
"""

from zfabric.machines.transfer.machine import TransferAgent as TransferAgent
