"""The transfer agent copies large values between the arenas of nodes."""

from zfabric.machines.transfer.machine import TransferAgent as TransferAgent
