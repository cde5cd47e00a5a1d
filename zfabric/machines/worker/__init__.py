"""The worker: received tasks, the waits on its stack, and its actors."""

from zfabric.machines.worker.actor_queues import CallQueue as CallQueue
from zfabric.machines.worker.baton import FAREWELL as FAREWELL
from zfabric.machines.worker.baton import KILL as KILL
from zfabric.machines.worker.baton import LEAVE as LEAVE
from zfabric.machines.worker.call_log import CallLog as CallLog
from zfabric.machines.worker.machine import LEFT as LEFT
from zfabric.machines.worker.machine import REPORTS as REPORTS
from zfabric.machines.worker.machine import TIMES_UP as TIMES_UP
from zfabric.machines.worker.machine import Worker as Worker
from zfabric.machines.worker.queue import Invocation as Invocation
from zfabric.machines.worker.queue import Item as Item
from zfabric.machines.worker.queue import actor_of as actor_of
from zfabric.machines.worker.quiescence import CLOSED as CLOSED
from zfabric.machines.worker.quiescence import CheckpointLog as CheckpointLog
from zfabric.machines.worker.quiescence import Gate as Gate
