"""Where this code runs: job, node, task, attempt, and the GPUs it was given."""

from __future__ import annotations

import os
from typing import Any

from zfabric.api.actor import ActorHandle, handle_of
from zfabric.api.lifecycle import connected, default_environment
from zfabric.protocol.options import RESOURCE_UNIT
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
        """The name that the options of the call give it (``f.options(name=...)``), else that of its function."""
        return (self._task.name or self._task.function_name) if self._task else None

    def get_task_function_name(self) -> str | None:
        """The name of the task's function."""
        return self._task.function_name if self._task else None

    def get_worker_id(self) -> str:
        """This process, by node and pid."""
        return f"{self._client.node.hex()}{os.getpid():08x}"

    def get_actor_id(self) -> str | None:
        """The actor this code belongs to; None in a task or driver."""
        return self._task.actor_id.hex() or None if self._task else None

    def get_actor_name(self) -> str | None:
        """The name of the actor this code belongs to, empty if it has none; None in a task or driver."""
        found = self._actor()
        return None if found is None else str(found[0])

    def get_assigned_resources(self) -> dict[str, float]:
        """What this task or actor holds, by resource; nothing in a driver."""
        return {name: amount / RESOURCE_UNIT for name, amount in (self._task.demand if self._task else ())}

    def get_placement_group_id(self) -> None:
        """None: there are no placement groups."""

    def get_node_labels(self) -> dict[str, str]:
        """Nothing: nodes have no labels."""
        return {}

    def get_session_name(self) -> str:
        """The name of the cluster's session."""
        return os.path.basename(self.gcs_address)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The accelerators given to this task, by kind."""
        return {"GPU": [str(index) for index in get_gpu_ids()]}

    def get_resource_ids(self) -> dict[str, list[str]]:
        """The same as ``get_accelerator_ids()``, by its former name."""
        return self.get_accelerator_ids()

    def is_canceled(self) -> bool:
        """Whether this task or call is to be stopped: for code that has caught what stops it, and for threads. RuntimeError in a driver."""
        task = interface.current_task()
        if task is None:
            raise RuntimeError("is_canceled() is for tasks and actors; this is neither")
        return task.cancelled

    def get_temp_dir(self) -> str:
        """The directory in which the cluster's session lies."""
        return os.path.dirname(self.gcs_address)

    @property
    def current_placement_group_id(self) -> None:
        """None: there are no placement groups."""

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """False: there are no placement groups."""
        return False

    def get_runtime_env_string(self) -> str:
        """The same as ``runtime_env``, as JSON."""
        import json

        return json.dumps(self.runtime_env)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The ``runtime_env`` that this code runs in, what it has inherited included; in a driver, the one that ``init`` set."""
        variables, directory, paths = default_environment()
        found = {"env_vars": dict(variables), "working_dir": directory, "py_modules": list(paths)}
        return {name: value for name, value in found.items() if value}

    @property
    def gcs_address(self) -> str:
        """What another program passes to ``zf.init`` to join this cluster."""
        return str(getattr(getattr(self._client, "session", None), "directory", ""))

    @property
    def attempt(self) -> int:
        """Which attempt of the task (or the call's actor) this is, from 0; 0 in a driver."""
        return self._task.attempt if self._task else 0

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self._client.namespace

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this actor was made before, and again since its process ended; False in a task or driver."""
        return self._task is not None and bool(self._task.actor_id) and self._task.attempt > 0

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the actor this code belongs to, to pass on or to call. RuntimeError in a task or driver.

        It is weak, and so are its copies: an actor that nobody else has a handle of ends, whatever it keeps of itself.

        >>> import zfabric as zf
        >>> @zf.remote
        ... class Chain:
        ...     def first(self):
        ...         return zf.get_runtime_context().current_actor.second.remote()
        ...     def second(self):
        ...         return "called by itself"
        >>> zf.get(zf.get(Chain.remote().first.remote()))
        'called by itself'
        """
        found = self._actor()
        if found is None or self._task is None:
            raise RuntimeError("current_actor is for actors; this is a task or a driver")
        return handle_of(self._task.actor_id, found[1])

    def _actor(self) -> tuple[str, bytes] | None:
        """Name and blueprint of this actor."""
        if self._task is None or not self._task.actor_id:
            return None
        answer: tuple[str, bytes] | None = self._client.query("actor of", self._task.actor_id)
        return answer

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

    @property
    def actor_id(self) -> str | None:
        """The same as ``get_actor_id()``."""
        return self.get_actor_id()

    @property
    def worker_id(self) -> str:
        """The same as ``get_worker_id()``."""
        return self.get_worker_id()

    def get(self) -> dict[str, Any]:
        """All of it as a dict."""
        return {
            "job_id": self.job_id,
            "node_id": self.node_id,
            "worker_id": self.worker_id,
            "task_id": self.task_id,
            "actor_id": self.actor_id,
            "namespace": self.namespace,
        }

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


def get_gpu_ids() -> list[int | str]:
    """The GPUs given to this task (also in ``CUDA_VISIBLE_DEVICES``); none in a driver.

    Those of a cluster that was started with ``CUDA_VISIBLE_DEVICES`` have the numbers (or names) that they have there.

    >>> import zfabric as zf
    >>> zf.get_gpu_ids()
    []
    """
    task = interface.current_task()
    return list(task.gpu_ids) if task else []
