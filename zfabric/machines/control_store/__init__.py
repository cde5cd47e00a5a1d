"""The control store: a node's control table, and its transactions."""

from zfabric.machines.control_store.machine import ControlStore as ControlStore
