"""Every limit of the fabric, with its unit and its reason. ``zf.init(config={...})`` overrides any of them by name."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

from zfabric.exceptions import ConfigError

KiB, MiB, GiB = 2**10, 2**20, 2**30
ROWS_MAX = 1024
"""Most rows in one message: what a receiver processes at once."""
ROW_BYTES = 1024
"""More bytes than a row has besides a value."""
ROW_VALUES = 16
"""Most inline bytes, in units of ``inline_bytes``, of one row: arguments of a task together, values of all its dependencies, or all that it
returns. Values beyond go through the store.
"""
SMALL_BYTES = 1 * KiB
"""Values up to this size travel with their row in any number: alone they would cost more."""
FRAME_BYTES_MAX = 256 * MiB
"""Largest frame that is decoded."""
FRAME_BYTES_MIN = 128
"""Smallest ``frame_bytes_max``, so that most of a frame is content."""
MESSAGE_BYTES_MAX = 1 * GiB
"""Largest message, in any number of frames: its receiver has all of it in memory."""
INLINE_BYTES_MAX = FRAME_BYTES_MAX // ROWS_MAX - ROW_BYTES
"""Largest value of ``inline_bytes``."""
FAR_BYTES_MAX = INLINE_BYTES_MAX
"""Most bytes of arguments that travel with a call to another node: storing and copying them takes several round trips."""
DURABLE_BYTES_MAX = MESSAGE_BYTES_MAX // 2
"""Largest value of ``durable_bytes``: a value and the ids of refs inside are one message."""
CHUNK_BYTES = MiB
"""Bytes of each chunk, but the last, in which values travel between nodes."""
NUMBER_MAX = 2**62
"""Bound of all settings: files and messages carry integers of 64 bits."""
PROBE_SHARE = 1 / 3
"""How long all pairs of nodes are probed, as a part of ``pair_patience``."""
PROBE_SECONDS_MIN = 5.0
"""The least time of a probe: agents may make a connection first, perhaps on busy machines."""


def probe_seconds(patience: float) -> float:
    """Seconds that a transfer agent waits for answers. ``patience`` is ``pair_patience``. Registry, members and agents agree on it."""
    return max(PROBE_SECONDS_MIN, PROBE_SHARE * patience)


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size_of(text: str) -> int | None:
    """Bytes of a text such as "512MiB" or "2 GB", or None."""
    found = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    return round(float(found[1]) * _UNITS[found[2]]) if found is not None and found[2] in _UNITS else None


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Limits and choices of one cluster. Times are seconds, sizes bytes, unless the name says otherwise."""

    # -- batching --
    batch_rows: int = 512
    """Rows per batch: more cost latency and gain no throughput (256 costs a tenth more CPU, 1024 no less)."""
    send_delay: float = 0.002
    """Longest time that a row waits unsent."""
    completion_delay: float = 0.002
    """Longest time that a worker with more to run delays completions, to batch them."""

    # -- dispatch --
    prefetch_seconds: float = 0.005
    """Estimated work that a worker prefetches: enough to hide a round trip, little enough to lose to a long task. Longer tasks are
    prefetched singly, while nobody else could run them.
    """
    prefetch_tasks: int = 512
    """Most tasks that a worker prefetches (depth 16 / 64 / 256 measured 82 / 175 / 200 thousand tasks/s)."""
    spill_after: float = 0.020
    """Tasks that have waited this long on their node are offered to others by a global scheduler."""
    placers: int = 2
    """Global schedulers of a cluster: in the daemons of the head and of the next oldest nodes."""
    placer_patience: float = 0.2
    """A global scheduler that does not answer for this long is passed over."""
    node_bandwidth: float = 4e8
    """Expected bytes per second from another node. Not measured: one core encrypts about 400 MB/s."""
    take_back_after: float = 0.010
    """Once a task has run this long, tasks behind it are taken back and sent to other workers."""
    direct_lease_after: int = 3
    """Tasks that a driver submits one by one before it gets a direct lease, to submit to the worker itself."""
    direct_lease_seconds: float = 0.05
    """A direct lease without a task expires after this long."""
    workers_max: int = 64
    """Most worker processes on a node, even for tasks with small fractions of a CPU."""
    actors_max: int = 256
    """Most actors with their own process on one node."""
    calls_over_limit: str = "raise"
    """What ``.remote()`` does when a caller has ``max_pending_calls`` pending calls of an actor: "raise" or "wait"."""
    workers_blocked_max: int = 32
    """Most workers beyond the node's CPUs that are started while others are blocked."""
    worker_idle_seconds: float = 60.0
    """An idle worker beyond the node's CPUs is ended after this long."""
    node_idle_seconds: float = 0.0
    """A node of several, except the head, drains itself after this long without tasks, actors, programs and placement groups; 0: never."""
    worker_start_seconds: float = 30.0
    """A worker that has not registered after this long is replaced."""
    stream_buffered: int = 16
    """Values by which a streaming task may be ahead of its consumer: enough to hide the delay between them, even if each is large."""
    inline_depth: int = 500 if sys.version_info[:2] == (3, 12) else 1500
    """Most tasks on one worker's stack. Stack and recursion limit are sized for them, but each task is two levels of recursion through C,
    of which Python 3.12 has 1,500 in any case.
    """
    preload: tuple[str, ...] = ()
    """Modules that the template imports before workers are forked (they must start no threads and no CUDA)."""

    # -- failure --
    max_retries: int = 3
    """Default number of times that a task is run again after the loss of its worker."""
    poison_kills: int = 3
    """A suspected task that kills this many workers while it runs alone is condemned."""
    interrupt_every: float = 0.2
    """Interval at which an interrupt is repeated until its attempt has ended."""
    stop_patience: float = 0.8
    """A cancelled or timed-out task whose code does not return to Python gets its outcome after this long. The code runs on, and holds its
    resources.
    """
    stop_grace_seconds: float = 0.0
    """The worker of such a task is killed this long after the outcome; 0: never, unless cancelled with ``force=True``."""
    restart_backoff_max: float = 5.0
    """Longest pause before a process that keeps dying is restarted."""
    infeasible: str = "wait"
    """For a task that no node will ever be able to run: "wait" (and warn once), or "raise"."""
    infeasible_warning: float = 0.5
    """Time until the driver is warned of an infeasible demand. It shows the warning within two seconds of the submission, even if it
    receives only once a second.
    """
    collect_seconds: float = 1.0
    """Time that a demand waits for actors' resources before all processes are asked to collect garbage, which may contain handles: most
    actors live shorter, and a collection stops a program for a moment. Later ones come after growing pauses.
    """
    register_seconds: float = 15.0
    """Time that a process waits for the daemon's welcome before it raises."""
    recovery_seconds: float = 10.0
    """Time that a restarted daemon waits for a living driver that does not register."""

    # -- several nodes --
    node_lease: float = 10.0
    """A node that cannot renew its lease for this long is dead: others run what it ran, and its supervisor ends it."""
    pair_patience: float = 30.0
    """When two nodes cannot reach each other for this long, all pairs are probed. The node that most others cannot reach is ended, unless
    it is the head.
    """

    # -- environments --
    package_bytes: int = 512 * MiB
    """Largest directory or module sent for a ``runtime_env``: it is packed in memory, and unpacked on each node."""
    environments_bytes: int = 10 * GiB
    """Most bytes of sent directories and virtual environments on a node; beyond, unused ones are removed, the oldest first."""
    environment_seconds: float = 600.0
    """Time for installing a ``runtime_env`` on a node: some packages are compiled there."""

    # -- values --
    inline_bytes: int = 64 * KiB
    """Values up to this size travel in messages; larger ones live in the arena."""
    durable_bytes: int = 64 * MiB
    """Largest ``put(durable=True)``: one message, and one row of the control store."""
    object_store_memory: int = 0
    """Size of the arena; 0 takes 30 % of the machine's memory."""
    object_store_directory: str = ""
    """A tmpfs directory for the arena; empty: anonymous shared memory, which no process can leave behind."""
    spill_directory: str = ""
    """Directory for objects without room in the arena, which get one of their own there; empty: the session directory."""
    inline_memory: int = 512 * MiB
    """Inline values that a scheduler retains before it moves the oldest to the arena."""
    copied_bytes: int = 2 * MiB
    """Largest value in the object store that an actor copies from the place that its caller names, and whose place a caller gets unasked:
    asking takes longer than copying this much.
    """
    grant_bytes: int = 8 * MiB
    """Size of the ranges in which a process bump-allocates its puts."""
    last_callbacks_max: int = 100_000
    """Callbacks of ``zf.util.on_freed`` that may wait in one process; each takes some 500 bytes here, and as many in the daemon."""
    put_patience: float = 30.0
    """Time that a ``put`` waits for room in a full store before it raises."""

    # -- transfer between nodes --
    transfer_credit: int = 8
    """Chunks of 1 MiB under way between two nodes: enough to hide a round trip, little enough to buffer."""
    transfer_readers: int = 3
    """Nodes that one node serves at a time. Others wait, and are sent to those with a complete copy by then."""
    transfer_pulls: int = 16
    """Values that a node copies from others at a time."""
    transfer_patience: float = 1.0
    """A reader that receives nothing for this long repeats its request, if possible to another source; then ever more slowly."""

    # -- lineage and the control store --
    lineage: bool = True
    """Write task rows to the control store. Without it, only the state of living drivers and workers survives a daemon. The setting exists
    to measure what lineage costs.
    """
    checkpoint_bytes: int = 64 * MiB
    """Largest checkpoint of an actor: pickled between two calls, written to the control store in parts of 1 MiB."""
    quiesce_seconds: float = 1.0
    """Time for which an actor that runs several calls at once holds new ones back when a checkpoint is due, so that running ones can end:
    longer than its calls take, if they overlap without end, no longer than callers may wait. 0: wait for a quiet moment.
    """
    leave_seconds: float = 1.0
    """Time that the process of an actor that ended itself stays, for calls that others wait for and for its other calls to stop: threads
    may run code that does not return to Python.
    """
    exit_seconds: float = 5.0
    """Time for an ended actor's ``atexit`` functions; then the process exits. It holds its CPUs until then, and ``multiprocessing`` waits
    there for children.
    """
    lineage_delay: float = 0.050
    """Rows are written this long after they arrived, if still needed."""
    lineage_bytes: int = 512 * MiB
    """Rows of finished tasks retained for a job's rebuilds; beyond, the oldest are deleted. Where there are other nodes, as many bytes are
    retained of values that such rows name and that have no ref (put, or returned by actors).
    """
    durability: str = "process"
    """"process": survives kill -9 of everything; "power": survives power loss, for a sync per commit."""
    control_store_bytes: int = 16 * GiB
    """Address range that LMDB maps: an upper bound of the control table, not memory."""
    kv_bytes: int = 1 * GiB
    """Bytes of the cluster's key-value store, as set on the head: all keys and values, and 256 for each key."""
    events_bytes: int = 64 * MiB
    """Timeline events that each node retains; beyond, the oldest are deleted."""
    commit_rows: int = 4096
    """A transaction of this many rows does not wait for more: about 1 ms on the loop thread."""
    store_retry_every: float = 1.0
    """Interval at which a control store that could not write (a full disk) tries again."""

    # -- sockets --
    high_water_mark: int = 10_000
    """Frames queued on a socket before the sender queues them itself."""
    frame_bytes_max: int = 32 * MiB
    """Largest frame that is sent and accepted. A larger message travels in several, between which its receiver serves other peers."""
    link_window: int = 4096
    """Early frames that a link buffers."""
    link_repeat: float = 5.0
    """Pause before an unacknowledged frame is repeated (local sockets lose none while both ends live)."""

    # -- people --
    log_to_driver: bool = True
    """Show workers' output on the driver's terminal, each line with the task's or actor's name and the worker's pid."""
    show_unread_failures: bool = True
    """Show the first failure whose value a program has not requested, and at the end how many more there were, unless ``log_to_driver`` is
    false.
    """
    log_bytes: int = 16 * MiB
    """Size at which a worker's log is rotated. Of one more than twice as large by then, the last ``log_bytes`` are retained."""
    log_repeat_seconds: float = 5.0
    """Lines that several workers print within this time are shown once, with a count; 0 shows each."""
    log_files: int = 3
    """Rotated logs retained per worker and stream."""
    memory_limit: int = 0
    """If all workers together use more memory, the one with the most beyond its reservation (``memory=``) is killed; 0 is 95 % of the
    machine's memory (or the cgroup's).
    """
    memory_check_every: float = 0.25
    """Interval at which the memory of busy workers is read, some 20 µs a worker."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted = type(field.default)
            if wanted is float and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif wanted is tuple and type(value) is list:
                object.__setattr__(self, field.name, tuple(value))
            elif type(value) is not wanted:
                kind = {int: "an int", tuple: "a list", bool: "True or False"}.get(wanted, f"a {wanted.__name__}")
                raise ConfigError(f"config {field.name!r} is {kind}, not {value!r}")
            elif isinstance(value, int | float) and value < 0:
                raise ConfigError(f"config {field.name!r} cannot be negative: {value!r}")
            if isinstance(value, int | float) and not value < NUMBER_MAX:
                raise ConfigError(f"config {field.name!r} is too large, or no number: {value!r}")
        if not FRAME_BYTES_MIN <= self.frame_bytes_max <= FRAME_BYTES_MAX:
            raise ConfigError(f"config 'frame_bytes_max' is {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} bytes, not {self.frame_bytes_max}")
        if self.inline_bytes > INLINE_BYTES_MAX:
            raise ConfigError(
                f"config 'inline_bytes' is at most {INLINE_BYTES_MAX} bytes, so that a receiver takes {ROWS_MAX} values in at once"
            )
        if self.durable_bytes > DURABLE_BYTES_MAX:
            raise ConfigError(f"config 'durable_bytes' is at most {DURABLE_BYTES_MAX} bytes: a durable value travels in one message")
        for name, choices in (("durability", ("process", "power")), ("infeasible", ("wait", "raise"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"config {name!r} is one of {', '.join(choices)}, not {getattr(self, name)!r}")

    @classmethod
    def of(cls, overrides: dict[str, Any] | None = None) -> Config:
        """The defaults with ``overrides``. Raises ConfigError for an unknown setting, with the one that was probably meant."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in overrides or {}:
            if name not in known:
                import difflib  # Only errors need it.

                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"there is no config called {name!r}{hint}")
        return cls(**(overrides or {}))

    @property
    def row_bytes(self) -> int:
        """Most inline bytes of one row."""
        return self.inline_bytes * ROW_VALUES

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """All settings as (name, value) pairs, for messages and files."""
        return tuple((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
