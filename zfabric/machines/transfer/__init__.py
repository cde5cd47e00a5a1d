"""The transfer agent copies large values of other nodes into the arena of its node, and sends values of this arena to other nodes.

``pulls`` is the reader's side and ``supplies`` the source's; ``machine`` receives the messages for both.
"""

from zfabric.machines.transfer.machine import TransferAgent as TransferAgent
