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
"""Most inline bytes of one row, in units of ``inline_bytes``: of all arguments of a task together, of the values of all its
dependencies, or of all that it returns. Values beyond it go through the store, or are fetched.
"""
SMALL_BYTES = 1 * KiB
"""Values up to this size travel with their row however many they are: by themselves they would cost more."""
FRAME_BYTES_MAX = 256 * MiB
"""Largest frame that is decoded."""
FRAME_BYTES_MIN = 128
"""Smallest value of ``frame_bytes_max``, so that most of a frame is content."""
MESSAGE_BYTES_MAX = 1 * GiB
"""Largest message, in however many frames: its receiver has all of it in memory before it decodes it."""
INLINE_BYTES_MAX = FRAME_BYTES_MAX // ROWS_MAX - ROW_BYTES
"""Largest value of ``inline_bytes``."""
FAR_BYTES_MAX = INLINE_BYTES_MAX
"""Most bytes of arguments that travel with a call to another node: to store and to copy them takes several round trips."""
DURABLE_BYTES_MAX = MESSAGE_BYTES_MAX // 2
"""Largest value of ``durable_bytes``: one value, and the ids of the refs inside, are one message."""
CHUNK_BYTES = MiB
"""Size of a chunk, in which values travel between nodes: of all but the last one of a value."""
NUMBER_MAX = 2**62
"""No setting has this value: files and messages carry integers of 64 bits."""


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size_of(text: str) -> int | None:
    """The bytes that a text such as "512MiB" or "2 GB" stands for, or None."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    return round(float(found[1]) * _UNITS[found[2]]) if found is not None and found[2] in _UNITS else None


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Limits and choices of one cluster. Times are seconds, sizes bytes, unless the name says otherwise."""

    # -- batching --
    batch_rows: int = 512
    """Rows in one batch: past this a batch costs latency and no longer gains throughput (256 costs a tenth more CPU, 1024 no less)."""
    send_delay: float = 0.002
    """A row never waits unsent longer than this."""
    completion_delay: float = 0.002
    """A worker that has more to run delays completions at most this long to batch them."""

    # -- dispatch --
    prefetch_seconds: float = 0.005
    """Estimated work that a worker prefetches: enough to hide a round trip, little enough to lose to a long task. Longer tasks are
    prefetched singly, while nobody else could run them.
    """
    prefetch_tasks: int = 512
    """Most tasks that a worker prefetches (depth 16 / 64 / 256 measured 82 / 175 / 200 thousand tasks/s)."""
    spill_after: float = 0.020
    """When tasks have waited this long on their node, a global scheduler is asked for other nodes that could run them sooner."""
    placers: int = 2
    """Global schedulers of a cluster: in the daemons of the head and of the oldest other nodes."""
    placer_patience: float = 0.2
    """A global scheduler that has not answered after this long is passed over for the next one."""
    node_bandwidth: float = 4e8
    """Bytes that a node is expected to fetch from another one in a second. It is not measured: one core encrypts about 400 MB/s."""
    take_back_after: float = 0.010
    """When a task has run this long and others wait behind it, those are taken back and sent to other workers."""
    direct_lease_after: int = 3
    """A driver that has submitted this many tasks one by one gets a direct lease: it submits the next ones to the worker itself."""
    direct_lease_seconds: float = 0.05
    """A direct lease expires after this long without a task."""
    workers_max: int = 64
    """Most worker processes on a node, whatever fractions of a CPU their tasks ask for."""
    actors_max: int = 256
    """Actors on one node that have a process of their own."""
    calls_over_limit: str = "raise"
    """What ``.remote()`` does when a caller has ``max_pending_calls`` calls of an actor without an outcome: "raise" or "wait"."""
    workers_blocked_max: int = 32
    """Most workers started beyond the node's CPUs because others are blocked."""
    worker_idle_seconds: float = 60.0
    """A worker beyond the node's CPUs that is idle for this long is ended."""
    worker_start_seconds: float = 30.0
    """A worker that has not registered after this long is given up and replaced."""
    stream_buffered: int = 16
    """Values by which a streaming task may be ahead of its consumer: enough to hide the delay between them, even if each is large."""
    inline_depth: int = 500 if sys.version_info[:2] == (3, 12) else 1500
    """Most tasks on one worker's stack, 500 on Python 3.12. The stack's size and the recursion limit are set for them, but each task is two
    levels of recursion through C, of which Python 3.12 has 1,500 whatever is set.
    """
    preload: tuple[str, ...] = ()
    """Modules the template imports before any worker is forked from it (they must start no threads and no CUDA)."""

    # -- failure --
    max_retries: int = 3
    """Times a task is run again after the loss of its worker, unless its options say otherwise."""
    poison_kills: int = 3
    """A suspected task that kills this many workers while it runs alone is condemned."""
    interrupt_every: float = 0.2
    """How often an interrupt is repeated until its attempt has ended."""
    stop_patience: float = 0.8
    """A cancelled or timed-out task whose code does not return to Python gets its outcome after this long. The code runs on, and
    holds its resources until it returns.
    """
    stop_grace_seconds: float = 0.0
    """The worker of such a task is killed this long after its outcome; 0: never, unless the task is cancelled with ``force=True``."""
    restart_backoff_max: float = 5.0
    """Longest pause before a process that keeps dying is started again."""
    infeasible: str = "wait"
    """What happens to a task that no node will ever be able to run: "wait" (and warn once), or "raise"."""
    infeasible_warning: float = 0.5
    """A demand may be infeasible for this long before its driver is warned. The driver shows the warning within two seconds of the
    submission, even if it computes and receives only once a second.
    """
    collect_seconds: float = 1.0
    """A demand waits this long for resources that actors hold before all processes are asked to collect garbage, which handles may be in:
    longer than most actors are needed for, since a collection stops a program for a moment. The next ones come after growing pauses.
    """
    register_seconds: float = 15.0
    """A process waits this long for the daemon's welcome before it raises."""
    recovery_seconds: float = 10.0
    """A restarted daemon waits this long for a living driver that does not register."""

    # -- several nodes --
    node_lease: float = 10.0
    """A node of a cluster that cannot renew its lease for this long is dead: others run what it ran, and its own supervisor ends it."""
    pair_patience: float = 30.0
    """Two nodes that cannot reach each other for this long have all pairs of nodes probed. The node that most others cannot reach is then
    ended, unless that is the head."""

    # -- environments --
    package_bytes: int = 512 * MiB
    """Largest directory or module that is sent for a ``runtime_env``: it is packed in memory, and each node unpacks it."""
    environments_bytes: int = 10 * GiB
    """Sent directories and virtual environments that no worker uses are removed from a node, the oldest first, while all that it has are
    larger than this together.
    """
    environment_seconds: float = 600.0
    """Installing what a ``runtime_env`` asks for may take this long on a node: some packages are compiled there."""

    # -- values --
    inline_bytes: int = 64 * KiB
    """Values up to this size travel in messages; larger ones live in the arena."""
    durable_bytes: int = 64 * MiB
    """Largest ``put(durable=True)``: it travels in one message and is one row of the control store."""
    object_store_memory: int = 0
    """Size of the arena; 0 takes 30 % of the machine's memory."""
    object_store_directory: str = ""
    """A tmpfs directory for the arena; empty takes anonymous shared memory, which no process can leave behind."""
    spill_directory: str = ""
    """Objects for which the arena has no room go to a directory of their own in this one; empty is the session directory."""
    inline_memory: int = 512 * MiB
    """Inline values that a scheduler retains before it moves the oldest to the arena."""
    copied_bytes: int = 2 * MiB
    """Largest value in the object store that an actor copies from the place that its caller names, and whose place a caller gets
    unasked: to ask for the place takes longer than to copy this much.
    """
    grant_bytes: int = 8 * MiB
    """Size of the ranges in which a process bump-allocates its puts."""
    last_callbacks_max: int = 100_000
    """Call backs of ``zf.util.on_freed`` that may wait in one process: they take some 500 bytes each here, and as much in the daemon."""
    put_patience: float = 30.0
    """A ``put`` waits this long for room in a full store before it raises."""

    # -- transfer between nodes --
    transfer_credit: int = 8
    """Chunks of 1 MiB that may be under way from one node to another: enough to hide a round trip, little enough to buffer."""
    transfer_readers: int = 3
    """Nodes that one node serves at a time. Others wait, and are sent to those that have a complete copy by then."""
    transfer_pulls: int = 16
    """Values that a node copies from others at a time; further ones wait."""
    transfer_patience: float = 1.0
    """A reader that receives nothing for this long repeats its request, to another source if there is one; then ever more slowly."""

    # -- lineage and the control store --
    lineage: bool = True
    """Write the rows of tasks to the control store. Without it, nothing that a restarted daemon or a lost value needs is on disk:
    only the state of living drivers and workers survives. The setting exists to measure what lineage costs.
    """
    checkpoint_bytes: int = 64 * MiB
    """Largest checkpoint of an actor: it is pickled between two calls, and written to the control store in parts of 1 MiB."""
    quiesce_seconds: float = 1.0
    """An actor that runs several calls at once holds new ones back this long when a checkpoint is due, so that the running ones can end:
    longer than its calls take, if they overlap without end, and no longer than its callers may wait. 0: it waits for a moment that is
    quiet by itself.
    """
    leave_seconds: float = 1.0
    """The process of an actor that ends itself stays this long for the calls that it made and others wait for, and for its other calls to
    stop: threads may run code that does not return to Python.
    """
    exit_seconds: float = 5.0
    """What a process of an actor has registered with ``atexit`` may take this long once the actor has ended; then the process exits. Its
    CPUs are in use until then, and ``multiprocessing`` waits there for children, however long they run.
    """
    lineage_delay: float = 0.050
    """Rows are written this long after they arrived, if they are still needed by then."""
    lineage_bytes: int = 512 * MiB
    """Rows of finished tasks retained for a job's rebuilds; past it the oldest are deleted. As many bytes of values that were put or
    returned by actors, have no ref any more, and are named by such rows are retained where there are other nodes."""
    durability: str = "process"
    """"process": survives kill -9 of everything; "power": survives power loss, at the price of a sync per commit."""
    control_store_bytes: int = 16 * GiB
    """Size of the address range LMDB maps: an upper bound of the control table, not memory."""
    kv_bytes: int = 1 * GiB
    """Bytes of the key-value store of the cluster, as the head has this setting: of all keys and values, and 256 more for each key."""
    events_bytes: int = 64 * MiB
    """Timeline events that each node retains; past it the oldest are deleted."""
    commit_rows: int = 4096
    """A transaction of this many rows does not wait for more: about 1 ms on the loop thread."""
    store_retry_every: float = 1.0
    """How often a control store that could not write (a full disk) tries again."""

    # -- sockets --
    high_water_mark: int = 10_000
    """Frames queued on a socket before the sender queues them itself."""
    frame_bytes_max: int = 32 * MiB
    """Largest frame that is sent and accepted. A larger message travels in several, and its receiver serves other peers between them."""
    link_window: int = 4096
    """Early frames that a link buffers until the ones before them arrive."""
    link_repeat: float = 5.0
    """Pause before an unacknowledged frame is sent again (local sockets do not lose frames while both ends live)."""

    # -- people --
    log_to_driver: bool = True
    """Show what workers print on the driver's terminal, each line with the name of the task or actor and the worker's pid."""
    show_unread_failures: bool = True
    """Show the first failure of a task or a call whose value a program has not requested, and at its end how many more there were,
    unless ``log_to_driver`` is false.
    """
    log_bytes: int = 16 * MiB
    """Size at which a worker's log is rotated. If it is more than twice as large by then, its last ``log_bytes`` are retained."""
    log_repeat_seconds: float = 5.0
    """Lines that several workers print within this time are shown once, with a count; 0 shows each of them."""
    log_files: int = 3
    """Rotated logs retained per worker and stream."""
    memory_limit: int = 0
    """If all workers together use more memory than this, the one with the most beyond its reservation (``memory=``) is killed; 0 is 95 % of
    the machine's memory (or the cgroup's).
    """
    memory_check_every: float = 0.25
    """How often the memory of busy workers is read, which takes some 20 µs a worker."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
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
        """The defaults with ``overrides``. ConfigError names an unknown setting, and the one that was probably meant."""
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
        """Inline bytes that one row has at most."""
        return self.inline_bytes * ROW_VALUES

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """All settings as (name, value) pairs, as messages and files carry them."""
        return tuple((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
