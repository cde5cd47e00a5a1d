"""The context of the running code: job, node, task, attempt, and its GPUs."""

from __future__ import annotations

import os
from typing import Any

from zfabric.api.actor import ActorHandle, handle_of
from zfabric.api.environments import pip_of
from zfabric.api.lifecycle import connected, default_environment
from zfabric.protocol.options import RESOURCE_UNIT, group_of
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface, TaskContext


class RuntimeContext:
    """The result of ``get_runtime_context``. Ids are hexadecimal; ids of a task are None in a driver."""

    def __init__(self, client: ClientInterface, task: TaskContext | None) -> None:
        self._client = client
        self._task = task

    def get_job_id(self) -> str:
        """The id of the job: everything that one driver submitted, put or started."""
        return self._client.job.hex()

    def get_node_id(self) -> str:
        """The id of the node that runs this process."""
        return self._client.node.hex()

    def get_task_id(self) -> str | None:
        """The id of the running task; None in a driver."""
        return self._task.task_id.hex() if self._task else None

    def get_task_name(self) -> str | None:
        """The call's ``options(name=...)``, or else the function's name; None in a driver."""
        return (self._task.name or self._task.function_name) if self._task else None

    def get_task_function_name(self) -> str | None:
        """The name of the task's function; None in a driver."""
        return self._task.function_name if self._task else None

    def get_worker_id(self) -> str:
        """The id of this process: node and pid."""
        return f"{self._client.node.hex()}{os.getpid():08x}"

    def get_actor_id(self) -> str | None:
        """The id of the running actor; None in a task or driver."""
        return self._task.actor_id.hex() or None if self._task else None

    def get_actor_name(self) -> str | None:
        """The name of the running actor, empty if it has none; None in a task or driver."""
        found = self._actor()
        return None if found is None else str(found[0])

    def get_assigned_resources(self) -> dict[str, float]:
        """The resources that this task or actor holds, by name; empty in a driver."""
        return {name: amount / RESOURCE_UNIT for name, amount in (self._task.demand if self._task else ())}

    def get_placement_group_id(self) -> str | None:
        """The id of the placement group in which this task or actor runs; None if it runs in none."""
        term = group_of(self._task.strategy) if self._task else None
        return term.group.hex() if term is not None else None

    def get_node_labels(self) -> dict[str, str]:
        """The labels of this process's node, as in ``zf.nodes()``. Queries the node."""
        own = self.get_node_id()
        rows = map(dict, self._client.query("nodes"))
        return next((dict(row.get("labels", {})) for row in rows if row["node"] == own), {})

    def get_session_name(self) -> str:
        """The name of the cluster's session."""
        return os.path.basename(self.gcs_address)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The ids of the accelerators assigned to this task, by kind."""
        return {"GPU": [str(index) for index in get_gpu_ids()]}

    def get_resource_ids(self) -> dict[str, list[str]]:
        """Alias of ``get_accelerator_ids()``, under its former name."""
        return self.get_accelerator_ids()

    def is_canceled(self) -> bool:
        """Whether this task or call was cancelled, for threads and code that caught the interruption. Raises RuntimeError in a driver."""
        task = interface.current_task()
        if task is None:
            raise RuntimeError("is_canceled() is for tasks and actors; this is neither")
        return task.cancelled

    def get_temp_dir(self) -> str:
        """The directory that holds the cluster's session."""
        return os.path.dirname(self.gcs_address)

    @property
    def current_placement_group_id(self) -> str | None:
        """Alias of ``get_placement_group_id()``."""
        return self.get_placement_group_id()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether what this task or actor submits runs in its placement group by default."""
        term = group_of(self._task.strategy) if self._task else None
        return term is not None and term.captures

    def get_runtime_env_string(self) -> str:
        """``runtime_env`` as JSON."""
        import json  # Only needed here.

        return json.dumps(self.runtime_env)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The ``runtime_env`` of this code, with inherited values; in a driver, that of ``init``."""
        environment = default_environment()
        found = {"env_vars": dict(environment.variables), "working_dir": environment.directory, "py_modules": list(environment.modules)}
        found["pip"] = pip_of(environment)
        return {name: value for name, value in found.items() if value}

    @property
    def gcs_address(self) -> str:
        """What another program passes to ``zf.init`` to join this cluster."""
        return str(getattr(getattr(self._client, "session", None), "directory", ""))

    @property
    def attempt(self) -> int:
        """The number of this attempt of the task, or of the call's actor, from 0; 0 in a driver."""
        return self._task.attempt if self._task else 0

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self._client.namespace

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this actor was restarted after its process ended; False elsewhere."""
        return self._task is not None and bool(self._task.actor_id) and self._task.attempt > 0

    @property
    def current_actor(self) -> ActorHandle:
        """A weak handle to the running actor, to pass on or to call. Raises RuntimeError in a task or driver.

        Copies are weak, too: an actor ends when no other process has a handle, even if it stores its own.

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
        """(name, blueprint) of this actor."""
        if self._task is None or not self._task.actor_id:
            return None
        answer: tuple[str, bytes] | None = self._client.query("actor of", self._task.actor_id)
        return answer

    @property
    def job_id(self) -> str:
        """Alias of ``get_job_id()``."""
        return self.get_job_id()

    @property
    def node_id(self) -> str:
        """Alias of ``get_node_id()``."""
        return self.get_node_id()

    @property
    def task_id(self) -> str | None:
        """Alias of ``get_task_id()``."""
        return self.get_task_id()

    @property
    def actor_id(self) -> str | None:
        """Alias of ``get_actor_id()``."""
        return self.get_actor_id()

    @property
    def worker_id(self) -> str:
        """Alias of ``get_worker_id()``."""
        return self.get_worker_id()

    def get(self) -> dict[str, Any]:
        """Return all fields as a dict; without ``task_id`` in a driver, and without ``actor_id`` outside of actors."""
        fields = {
            "job_id": self.job_id,
            "node_id": self.node_id,
            "worker_id": self.worker_id,
            "task_id": self.task_id,
            "actor_id": self.actor_id,
            "namespace": self.namespace,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def __repr__(self) -> str:
        return f"RuntimeContext({self.get()})"


def get_runtime_context() -> RuntimeContext:
    """Return the context of the running code.

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
    """Return the GPUs assigned to this task (as in ``CUDA_VISIBLE_DEVICES``); an empty list in a driver.

    These are numbers (or names) of the variable with which the cluster was started, if it was set then.

    >>> import zfabric as zf
    >>> zf.get_gpu_ids()
    []
    """
    task = interface.current_task()
    return list(task.gpu_ids) if task else []
