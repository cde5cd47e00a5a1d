"""The supervisor: restarts of dead processes."""

from zfabric.machines.supervisor.restarts import RestartPolicy as RestartPolicy
