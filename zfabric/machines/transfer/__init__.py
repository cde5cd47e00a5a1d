"""The transfer agent copies large values between the arenas of nodes.

``pulls`` is the reader's side, ``supplies`` the source's; ``machine`` receives for both.
"""

from zfabric.machines.transfer.machine import TransferAgent as TransferAgent
