"""The local scheduler of a node: when and where its tasks run, and their outcomes."""

from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks as Deadlocks
from zfabric.machines.local_scheduler.machine import LocalScheduler as LocalScheduler
from zfabric.machines.local_scheduler.nodes.lone_tasks import Finder as Finder
from zfabric.machines.local_scheduler.records import ASSIGNED as ASSIGNED
from zfabric.machines.local_scheduler.records import LEASED as LEASED
from zfabric.machines.local_scheduler.records import WAITING as WAITING
from zfabric.machines.local_scheduler.records import JobRecord as JobRecord
from zfabric.machines.local_scheduler.records import TaskRecord as TaskRecord
from zfabric.machines.local_scheduler.records import WorkerRecord as WorkerRecord
from zfabric.machines.local_scheduler.reports.sampling import Measured as Measured
from zfabric.machines.local_scheduler.tasks.outcomes import ALONE_AFTER as ALONE_AFTER
