"""The client: what a process submits, holds and waits for."""

from zfabric.machines.client.calls import Calls as Calls
from zfabric.machines.client.machine import Client as Client
from zfabric.machines.client.objects import ObjectEntry as ObjectEntry
