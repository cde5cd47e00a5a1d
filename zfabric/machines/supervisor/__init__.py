"""The supervisor: when a process that died is started again."""

from zfabric.machines.supervisor.restarts import RestartPolicy as RestartPolicy
