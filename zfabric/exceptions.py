"""Every exception of zfabric. Ray's names are aliases at the end.

An exception of the user's code arrives as ``TaskError`` (also an instance of its own class). A failure of the fabric is a ``FabricError``
of a kind. A mistake of the caller is raised at the call.
"""

from __future__ import annotations

from typing import Any


class FabricError(Exception):
    """Base of all errors of the fabric. ``facts`` are what is known, by name: node, pid, attempt, signal, peak memory, …"""

    def __init__(self, text: str = "", **facts: Any) -> None:
        super().__init__(text)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.facts)


def _revive(kind: type[FabricError], arguments: tuple[Any, ...], facts: dict[str, Any]) -> FabricError:
    return kind(*arguments, **facts)


# --- the caller's mistakes ------------------------------------------------------------------------------------------------


class ConfigError(FabricError, ValueError):
    """A setting that does not exist or cannot have this value."""


class OptionError(FabricError, ValueError):
    """An option of a task that does not exist or cannot have this value; the text says what to write."""


class ArgumentTypeError(FabricError, TypeError, ValueError):
    """An argument of the wrong type: a TypeError, and a ValueError because Ray raises some as one."""


class OptionTypeError(OptionError, ArgumentTypeError):
    """An option of a task whose value is of the wrong type."""


class NotInitializedError(FabricError, RuntimeError):
    """There is no cluster here: ``zf.init()`` was not called, was shut down, or this is a forked child."""


class NotInRayModeError(FabricError, NotImplementedError):
    """A program of Ray (``zfabric.as_ray``) has used an internal part of Ray that zfabric lacks."""


class AlreadyInitializedError(FabricError, RuntimeError):
    """``zf.init()`` was called again; pass ``ignore_reinit_error=True`` if that is meant."""


class SerializationError(FabricError, TypeError):
    """A value cannot be pickled (or unpickled); the text names the path to the offending part."""


# --- the user's code --------------------------------------------------------------------------------------------------------


class TaskError(FabricError):
    """The user's code raised. Also an instance of the raised class, if that class allows it.

    ``cause`` is the original exception (None if it could not be pickled), ``traceback_text`` the remote traceback; ``facts`` name function,
    node, pid and attempt.
    """

    cause: BaseException | None = None
    traceback_text: str = ""

    def as_instanceof_cause(self) -> TaskError:
        """Return this error, which already is an instance of the raised class. (Ray makes one here.)"""
        return self


class ActorError(FabricError):
    """An actor could not do what was asked."""

    @property
    def actor_id(self) -> str | None:
        """The actor's id in hexadecimal, if known."""
        found = self.facts.get("actor")
        return None if found is None else str(found)

    @property
    def preempted(self) -> bool:
        """Whether the actor ended because its node was drained."""
        return bool(self.facts.get("preempted"))


class ActorDiedError(ActorError):
    """The actor is dead. ``cause`` is what its ``__init__`` raised, if that is why; ``outcome`` as in ``ActorUnavailableError``."""

    cause: BaseException | None = None
    outcome: str = "not run"

    @property
    def actor_init_failed(self) -> bool:
        """Whether the actor's ``__init__`` raised an error."""
        return self.cause is not None


class ActorUnavailableError(ActorError):
    """The actor cannot be reached now. ``outcome`` is "unknown" if the call may have run, in part or in whole, else "not run"."""

    outcome: str = "unknown"


class ActorNameTakenError(ActorError, ValueError):
    """Another living actor has that name in that namespace; ``get_if_exists=True`` takes that one."""


class ActorNotFoundError(ActorError, ValueError):
    """No living actor has that name in that namespace."""


class ActorLimitExceededError(ActorError):
    """The node has as many actors as it may have."""


class DeadlockError(ActorError):
    """An actor waits for a call of itself, which can only run afterwards."""


class PendingCallsLimitExceededError(ActorError):
    """The actor's mailbox is full."""


# --- time and will ---------------------------------------------------------------------------------------------------------


class GetTimeoutError(FabricError, TimeoutError):
    """``get`` waited as long as allowed; the tasks go on."""


class TaskTimeoutError(FabricError, TimeoutError):
    """The task's ``timeout`` passed before it had an outcome, or an attempt took longer than its ``run_timeout``."""


class TaskCancelledError(FabricError):
    """The task, or one it depended on, was cancelled."""


# --- infrastructure ----------------------------------------------------------------------------------------------------------


class WorkerCrashedError(FabricError):
    """The task's worker died more often than ``max_retries`` allows; ``facts`` describe each death."""


class OutOfMemoryError(WorkerCrashedError):
    """The task's worker used more memory than the node has; ``facts["peak"]`` is how much, in bytes."""


class PoisonedTaskError(WorkerCrashedError):
    """The task killed every worker that ran it, also when it ran alone."""


class NodeDiedError(FabricError):
    """The node has died, and everything that only it had is lost."""


class JobEndedError(FabricError):
    """The job this belongs to has ended."""


class JobError(FabricError, RuntimeError, ValueError):
    """No job has that id, or another has it already, or the job still runs. Also a RuntimeError, as in Ray."""


class TaskUnschedulableError(FabricError):
    """The node for a task does not exist, or no node will ever have what the task asks for (with ``infeasible="raise"``)."""


class PlacementGroupRemovedError(FabricError):
    """The task's placement group was removed, or its job ended, before the task had an outcome."""


class RuntimeEnvSetupError(FabricError):
    """The environment that a task asks for could not be made."""


class ConnectionLostError(FabricError, ConnectionError):
    """The cluster does not answer, or refused this process."""


class VersionMismatchError(ConnectionLostError):
    """The other side has another version of the protocol, or the file another format."""


# --- objects -------------------------------------------------------------------------------------------------------------------


class ObjectStoreError(FabricError):
    """An object could not be stored or found."""


class ObjectStoreFullError(ObjectStoreError):
    """There was no room in time, although everything was spilled that could be."""


class ObjectTooLargeError(ObjectStoreFullError):
    """The object is larger than the whole store."""


class OutOfDiskError(ObjectStoreError):
    """The disk for spilled objects, or of the control store, is full."""


class KeyValueStoreFullError(FabricError):
    """The cluster's key-value store has no room for the value: config ``kv_bytes`` of the head is its limit."""


class ObjectLostError(ObjectStoreError):
    """Every copy of the object is gone and it cannot be made again; the text says why."""


class ObjectFreedError(ObjectLostError):
    """The object's last ref was dropped before its value was requested."""


class LineageEvictedError(ObjectLostError):
    """The object cannot be made again: a task's row was deleted at the lineage cap, or what an actor's stream yielded is gone."""


class CallbackLimitExceededError(FabricError):
    """As many callbacks of ``zf.util.on_freed`` wait in this process as may."""


# Ray's names for the same things.
RayError = FabricError
RayTaskError = TaskError
RayActorError = ActorError
RayOutOfMemoryError = OutOfMemoryError
RaySystemError = ConnectionLostError
ActorAlreadyExistsError = ActorNameTakenError
ActorUnschedulableError = TaskUnschedulableError
ObjectFetchTimedOutError = OwnerDiedError = ReferenceCountingAssertionError = ObjectLostError
ObjectReconstructionFailedError = ObjectReconstructionFailedMaxAttemptsExceededError = ObjectLostError
ObjectReconstructionFailedLineageEvictedError = LineageEvictedError
LocalRayletDiedError = NodeDiedException = NodeDiedError
TaskUnschedulable = TaskUnschedulableError
TaskPlacementGroupRemoved = ActorPlacementGroupRemoved = PlacementGroupRemovedError
PendingCallsLimitExceeded = PendingCallsLimitExceededError
