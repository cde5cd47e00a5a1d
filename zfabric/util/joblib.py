"""joblib on the cluster, and with it scikit-learn: ``register()``, then ``joblib.parallel_config(backend="zfabric")``.

A batch of calls, whose size joblib chooses, is one task. Large arrays are stored once per call of ``Parallel``. Results are copies, which
programs may change.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from zfabric import api as zf
from zfabric.adapters.serialization import serialize
from zfabric.api.refs import owner_of
from zfabric.exceptions import FabricError, OptionError
from zfabric.machines.common.resources import named_demand
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT
from zfabric.util.initializers import Initializer
from zfabric.util.large_arrays import StoredArrays, pack, unpack

try:
    from joblib import register_parallel_backend
    from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend
except ImportError as error:
    raise ImportError("zfabric.util.joblib needs joblib 1.5 or newer: pip install 'zfabric[joblib]'") from error

DEEPEST = 1
"""Depth to which nested calls of ``Parallel`` become tasks, so that no recursion fills the cluster."""
LARGE = 2**20
"""Bytes from which calls share arrays by default, as in joblib."""
NAMES_MAX = 100
SHARED_WRITES = (
    "mmap_mode={!r} shares writes of tasks, and zfabric shares none, since tasks may run on several machines: use 'r' for arrays that are "
    "only read, 'c' for a copy in each task, or a numpy.memmap of a file that all nodes have"
)
_PROGRAM = f"{time.time_ns()}"
"""Distinguishes this process's initializers from other programs'."""


class _Batch:
    __slots__ = ("callback", "calls", "error", "ref")

    def __init__(self, calls: Any, callback: Callable[[_Batch], Any] | None) -> None:
        self.calls = calls
        self.callback = callback
        self.ref: zf.ObjectRef | None = None
        """Its task's ref, until the results were read."""
        self.error: BaseException | None = None
        """Why it could not be submitted."""


class ZfabricBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types.
    """joblib's backend ``"zfabric"``: runs batches of calls as tasks of the cluster, which is started if there is none.

    ``n_jobs`` batches run at a time: -1, the default, as many as the cluster has CPUs for; with 1 the calls run here. ``options`` are those
    of ``zf.remote``, for each batch: ``num_cpus``, ``max_retries``, ``runtime_env``, … ``ray_remote_args``, a dict, is Ray's name for them.
    Raises OptionError for invalid ones. ``nesting_level`` is for joblib.

    Arrays of ``max_nbytes`` (1 MiB) or more are shared and read-only, wherever they are in the arguments. Smaller ones, or all with
    ``max_nbytes=None`` or ``mmap_mode="c"``, are copies. A ``numpy.memmap`` is opened again by its path. Nested calls of ``Parallel`` run
    on the cluster, too. ``initializer(*initargs)`` runs in each worker before its first call, once for equal arguments; calls in a worker
    where it failed raise ``concurrent.futures.BrokenExecutor``.

    >>> import joblib
    >>> from zfabric.util.joblib import register
    >>> register()
    >>> with joblib.parallel_config(backend="zfabric", n_jobs=2):
    ...     joblib.Parallel()(joblib.delayed(pow)(2, n) for n in range(5))
    [1, 2, 4, 8, 16]
    """

    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        ray_remote_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level)
        options = {**(ray_remote_args or {}), **options}
        if options.get("num_returns") not in (None, 1):
            raise OptionError(f"a batch has one value: num_returns={options['num_returns']!r} is for f.remote()")
        self._options = options
        self._own = _made(initializer, initargs)
        """The initializer of calls of ``Parallel`` that have none."""
        self._initialize: Initializer | None = None
        """The initializer of the present call."""
        self._run = zf.remote(_run_batch).options(**options)
        self._named: dict[str, Any] = {}
        """Remote functions that run a batch, by their name in listings."""
        self._lock = threading.Lock()
        self._stored = StoredArrays()
        self._shared_from: float = LARGE
        self._open: dict[_Batch, None] = {}
        """Batches whose outcome joblib waits for."""
        self._waiting: deque[_Batch] = deque()
        """Batches that wait until fewer are submitted."""
        self._room: int | None = None
        """How many more batches may be submitted; None for no limit but the cluster's."""
        self._limit: int | None = None
        self._ended: SimpleQueue[_Batch | None] | None = None
        """Batches with an outcome, for the thread that calls joblib back, which reads results and the program's iterator."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.nesting_level, self._own, self._options)

    # -- how many --

    def _slots(self) -> int:
        total = zf.cluster_resources()
        demand = named_demand(self._options) or ONE_CPU
        found = [int(total.get(name, 0) * RESOURCE_UNIT // amount) for name, amount in demand]
        return min(found, default=0) or max(1, int(total.get("CPU", 1)))

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches run at a time: -1 is as many as the cluster can run, -2 one less."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(1, self._slots() + 1 + n_jobs)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        max_nbytes: int | None = LARGE,
        mmap_mode: str | None = "r",
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        **_settings: Any,
    ) -> int:
        """Prepare for calls of ``parallel``; return how many batches will run at a time. Settings of other backends have no effect.

        Raises OptionError for a ``mmap_mode`` that shares writes, and TypeError for an initializer that cannot be called.
        """
        if mmap_mode in ("r+", "w+") and max_nbytes is not None:
            raise OptionError(SHARED_WRITES.format(mmap_mode))
        jobs = self.effective_n_jobs(n_jobs)
        if jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        initialize = _made(initializer, initargs) or self._own
        if initialize is not self._initialize:
            self._initialize = initialize
            self._run = zf.remote(_batch_runner(initialize)).options(**self._options)
            self._named.clear()
        self.parallel = parallel
        self._shared_from = math.inf if max_nbytes is None or mmap_mode in (None, "c") else max_nbytes
        self._limit = self._room = jobs if jobs < self._slots() else None
        return jobs

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int | None]:
        """Return the backend of nested calls of ``Parallel``, and how many of their batches run at a time by default.

        That is one, as with loky, where this call's batches fill the cluster: nested tasks would only cost time.
        """
        level = (self.nesting_level or 0) + 1
        if level > DEEPEST:
            return SequentialBackend(nesting_level=level), None
        return ZfabricBackend(nesting_level=level, **self._options), 1 if self._limit is None else -1

    # -- one call of Parallel --

    def start_call(self) -> None:
        """Begin a call of ``Parallel``."""
        self._stored.clear()

    def stop_call(self) -> None:
        """End a call: release its arrays, and call nobody back any more."""
        with self._lock:
            ended, self._ended = self._ended, None
        if ended is not None:
            ended.put(None)
        self._stored.clear()

    def terminate(self) -> None:
        """Do nothing: the cluster's workers remain."""
        self.reset_batch_stats()

    def submit(self, func: Any, callback: Callable[[_Batch], Any] | None = None) -> _Batch:
        """Submit a batch and return it. ``callback`` gets it once it has ended, or could not be pickled."""
        batch = _Batch(func, callback)
        with self._lock:
            self._open[batch] = None
            if self._ended is None:
                self._ended = SimpleQueue()
                threading.Thread(target=self._call_back, args=(self._ended,), name="zfabric-joblib", daemon=True).start()
            ended = self._ended
            if self._room is not None and self._room <= 0:
                self._waiting.append(batch)
                return batch
            if self._room is not None:
                self._room -= 1
        self._begin(batch, ended)
        return batch

    def _begin(self, batch: _Batch, ended: SimpleQueue[_Batch | None]) -> None:
        """An error is an outcome: joblib waits for one, perhaps in another thread."""
        calls, batch.calls = batch.calls, None
        try:
            packed = pack(calls, self._stored, self._shared_from)
            batch.ref = ref = self._remote(calls).remote(packed.payload, packed.references, *packed.arrays)
            owner_of(ref).add_done_callback(ref.binary(), lambda _: ended.put(batch))
        except Exception as error:  # Pickling is user code, and the cluster may be gone.
            batch.error = error
            ended.put(batch)

    def _remote(self, calls: Any) -> Any:
        """Return the remote function whose name in listings is that of the batch's first function."""
        if "name" in self._options:
            return self._run
        function = calls.items[0][0] if getattr(calls, "items", None) else calls
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        found = self._named.get(name)
        if found is None:
            if len(self._named) >= NAMES_MAX:
                self._named.clear()
            found = self._named[name] = self._run.options(name=name)
        return found

    def _call_back(self, ended: SimpleQueue[_Batch | None]) -> None:
        while (batch := ended.get()) is not None:
            with self._lock:
                known = batch in self._open
                self._open.pop(batch, None)
                following = self._waiting.popleft() if known and self._waiting else None
                if known and following is None and self._room is not None:
                    self._room += 1
            if following is not None:
                self._begin(following, ended)
            try:
                if known and batch.callback is not None:
                    batch.callback(batch)
                    if batch.ref is not None:
                        _cancel(batch.ref)  # After another batch's error joblib reads no more.
            except BaseException:  # joblib's own error: further batches still end.
                sys.excepthook(*sys.exc_info())
            del batch, following

    def retrieve_result_callback(self, out: _Batch) -> Any:
        """Return the results of a batch, or raise its error."""
        ref, out.ref = out.ref, None
        if ref is None:
            raise out.error or RuntimeError("the results of a batch are read once")
        return zf.get(ref, copy=True)

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel all batches. The backend remains usable."""
        with self._lock:
            refs = [batch.ref for batch in self._open if batch.ref is not None]
            self._open.clear()
            self._waiting.clear()
            self._room = self._limit
        for ref in refs:
            _cancel(ref)


def _cancel(ref: zf.ObjectRef) -> None:
    with contextlib.suppress(FabricError):  # The cluster is gone.
        zf.cancel(ref)


def _restored(nesting_level: int | None, initialize: Initializer | None, options: dict[str, Any]) -> ZfabricBackend:
    """Return a backend that was sent. One for nested calls has their call's initializer."""
    backend = ZfabricBackend(nesting_level, **options)
    backend._own = initialize or _loading.initialize
    return backend


class _Loading(threading.local):
    """Initializer of the batch that this thread unpickles. It travels once, with the function that runs batches."""

    initialize: Initializer | None = None


_loading = _Loading()


def _run_batch(payload: bytes, references: list[zf.ObjectRef], *arrays: Any) -> Any:
    register()  # A call may name the backend.
    return unpack(payload, references, arrays)()


def _run_after(initialize: Initializer, payload: bytes, references: list[zf.ObjectRef], arrays: tuple[Any, ...]) -> Any:
    """Run a batch after its initializer. Its functions share the globals that this sets."""
    register()
    shared = initialize()
    before, _loading.initialize = _loading.initialize, initialize
    try:
        call: Any = unpack(payload, references, arrays)
    finally:
        _loading.initialize = before
    with shared.given_to(*(function for function, *_ in call.items)):
        return call()


def _made(initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> Initializer | None:
    """Return an initializer that runs once per process, for all backends of this program with equal arguments.

    Raises TypeError for one that cannot be called, and SerializationError.
    """
    if initializer is None:
        return None
    if not callable(initializer):
        raise TypeError(f"initializer must be a callable, not {initializer!r}")
    content = serialize((initializer, tuple(initargs)), "initializer").to_bytes()
    return Initializer((_PROGRAM, hashlib.sha256(content).digest()), initializer, tuple(initargs))


def _batch_runner(initialize: Initializer | None) -> Callable[..., Any]:
    if initialize is None:
        return _run_batch

    def run_batch(payload: bytes, references: list[zf.ObjectRef], *arrays: Any) -> Any:
        return _run_after(initialize, payload, references, arrays)

    return run_batch


def register() -> None:
    """Register the backend "zfabric" with joblib, in this process and in the calls that it runs.

    >>> import joblib
    >>> from zfabric.util.joblib import register
    >>> register()
    >>> joblib.Parallel(n_jobs=2, backend="zfabric")(joblib.delayed(abs)(n) for n in range(-2, 1))
    [2, 1, 0]
    """
    register_parallel_backend("zfabric", ZfabricBackend)


def register_ray() -> None:
    """Register it as "ray", too: ``ray.util.joblib.register_ray``."""
    register()
    register_parallel_backend("ray", ZfabricBackend)
