"""Where this code runs: job, node, task, attempt, and the GPUs it was given."""

from __future__ import annotations

import os
from typing import Any

from zfabric.api.lifecycle import connected
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface, TaskContext


class RuntimeContext:
    """What ``get_runtime_context`` returns. Ids are hexadecimal; those of a task are None in a driver."""

    def __init__(self, client: ClientInterface, task: TaskContext | None) -> None:
        self._client = client
        self._task = task

    def get_job_id(self) -> str:
        """The job: all that one driver caused."""
        return self._client.job.hex()

    def get_node_id(self) -> str:
        """The node this process runs on."""
        return self._client.node.hex()

    def get_task_id(self) -> str | None:
        """The task this code belongs to."""
        return self._task.task_id.hex() if self._task else None

    def get_task_name(self) -> str | None:
        """The name of the task's function."""
        return self._task.function_name if self._task else None

    get_task_function_name = get_task_name

    def get_worker_id(self) -> str:
        """This process, by node and pid."""
        return f"{self._client.node.hex()}{os.getpid():08x}"

    def get_actor_id(self) -> str | None:
        """The actor this code belongs to; None in a task or driver."""
        return self._task.actor_id.hex() or None if self._task else None

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The accelerators given to this task, by kind."""
        return {"GPU": [str(index) for index in get_gpu_ids()]}

    def get_runtime_env_string(self) -> str:
        """The ``runtime_env`` that ``init`` set, as JSON."""
        import json

        from zfabric.api.lifecycle import default_runtime_env

        return json.dumps(default_runtime_env() or {})

    @property
    def attempt(self) -> int:
        """Which attempt of the task this is, from 0; 0 in a driver."""
        return self._task.attempt if self._task else 0

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self._client.namespace

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this actor was restarted: never, in a task or driver."""
        return False

    @property
    def job_id(self) -> str:
        """The same as ``get_job_id()``."""
        return self.get_job_id()

    @property
    def node_id(self) -> str:
        """The same as ``get_node_id()``."""
        return self.get_node_id()

    @property
    def task_id(self) -> str | None:
        """The same as ``get_task_id()``."""
        return self.get_task_id()

    def get(self) -> dict[str, Any]:
        """All of it as a dict."""
        return {"job_id": self.job_id, "node_id": self.node_id, "task_id": self.task_id, "namespace": self.namespace}

    def __repr__(self) -> str:
        return f"RuntimeContext({self.get()})"


def get_runtime_context() -> RuntimeContext:
    """Where this code runs.

    >>> import zfabric as zf
    >>> zf.get_runtime_context().get_task_id() is None
    True
    >>> @zf.remote
    ... def attempt():
    ...     return zf.get_runtime_context().attempt
    >>> zf.get(attempt.remote())
    0
    """
    return RuntimeContext(connected(), interface.current_task())


def get_gpu_ids() -> list[int]:
    """The GPUs given to this task (also in ``CUDA_VISIBLE_DEVICES``); none in a driver.

    >>> import zfabric as zf
    >>> zf.get_gpu_ids()
    []
    """
    task = interface.current_task()
    return list(task.gpu_ids) if task else []
