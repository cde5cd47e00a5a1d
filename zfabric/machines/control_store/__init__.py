"""The control store: the control table of a node, its transactions, and its subscribers."""

from zfabric.machines.control_store.machine import ControlStore as ControlStore
