"""A client without a fabric: runs tasks in this process, at once or on threads, through the real serialization."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from zfabric.adapters.generated_values import returning_all
from zfabric.adapters.serialization import Outcome, deserialize, load_arguments, load_function, serialize, serialize_fast
from zfabric.adapters.task_errors import load_error, load_failure, pack_error
from zfabric.config import Config
from zfabric.exceptions import GetTimeoutError
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import FIRST_PUT_INDEX, child_prefix, job_id, object_id, pack_counter, root_task
from zfabric.protocol.messages import ERROR, FAILED, OK
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.interface import TaskContext


class FakeClient:
    """Stands in for ``FabricClient``. ``held`` are tasks that wait for ``run()``, where ``manual``; ``references`` counts refs."""

    _jobs = 0

    def __init__(self, config: Config | None = None, manual: bool = False, threads: bool = False) -> None:
        FakeClient._jobs += 1
        self.config = config or Config()
        self.job = job_id(FakeClient._jobs)
        self.node = b"fakenode"
        self.namespace = "tests"
        self.session = SimpleNamespace(directory="/nowhere/session")
        self.manual = manual
        self.threads = threads
        self.closed = False
        self.exports: dict[bytes, tuple[str, bytes, tuple[Any, ...]]] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.puts: list[tuple[bytes, int, tuple[bytes, ...], bool]] = []
        self.batches: list[int] = []
        self.cancelled: list[tuple[Sequence[bytes], bool, bool]] = []
        self.answers: dict[str, Any] = {}
        self.references: Counter[bytes] = Counter()
        self.released: list[bytes] = []
        self.during_get: Callable[[], Any] = lambda: None
        """What another thread does meanwhile."""
        self.held: list[Callable[[], None]] = []
        self.runs: Counter[bytes] = Counter()
        self._values: dict[bytes, tuple[int, bytes]] = {}
        self._callbacks: dict[bytes, list[Callable[[bytes], None]]] = {}
        self._changed = threading.Condition()
        self._prefix = child_prefix(self.job, root_task(self.job))
        self._counter = 0

    # -- what the API calls --

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Any, ...]) -> None:
        self.exports[function_id] = (name, payload, options)

    def submit(self, function_id: bytes, arguments: bytes, dependencies: Any, options: Any, num_returns: int) -> bytes:
        assert function_id in self.exports, "a call of a function that was not exported"
        assert type(arguments) is bytes
        assert type(dependencies) is tuple
        assert options is None or type(options) is tuple
        with self._changed:
            self._counter += 1
            task = self._prefix + pack_counter(self._counter)
        self.rows.append((task, function_id, arguments, dependencies, options))
        for index in range(num_returns):
            self.references[object_id(task, index)] += 1

        def run() -> None:
            self._execute(task, function_id, arguments, dependencies, options, num_returns)

        if self.manual:
            self.held.append(run)
        elif self.threads:
            threading.Thread(target=run, daemon=True).start()
        else:
            run()
        return object_id(task, 0)

    def create_detached(self, function_id: bytes, arguments: bytes, dependencies: Any, options: Any) -> bytes:
        return self.submit(function_id, arguments, dependencies, options, 1)

    def submit_many(self, function_id: bytes, calls: Iterable[tuple[Any, ...]], num_returns: int) -> list[bytes]:
        tasks = [self.submit(function_id, *call, num_returns) for call in calls]
        self.batches.append(len(tasks))
        return tasks

    def put(self, value: Any, durable: bool) -> bytes:
        with self._changed:
            self._counter += 1
            made = self._prefix + pack_counter(self._counter) + pack_counter(FIRST_PUT_INDEX)
        target = memoryview(bytearray(value.size))
        value.write_into(target)
        assert bytes(target) == value.to_bytes()
        self.puts.append((made, value.size, value.contained, durable))
        self.references[made] += 1
        self.finish(made, OK, bytes(target))
        return made

    def add_reference(self, object_id: bytes) -> None:
        self.references[object_id] += 1

    def drop_reference(self, object_id: bytes) -> None:
        self.references[object_id] -= 1

    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        assert len(set(object_ids)) == len(object_ids), "each is listed once"
        if not self._wait_for(lambda: all(one in self._values for one in object_ids), timeout):
            raise GetTimeoutError(f"no value after {timeout} s")
        self.during_get()
        outcomes: list[bytes | Outcome] = []
        for one in object_ids:
            status, data = self._values[one]
            if len(data) > self.config.inline_bytes:
                outcomes.append(Outcome(status, memoryview(data), lambda one=one: self.released.append(one)))
            else:
                outcomes.append(data if status == OK else Outcome(status, data, None))
        return outcomes

    def ignore_unread(self) -> None:
        """There are no unread failures here."""

    def has_failed(self, object_id: bytes) -> bool:
        return self._values.get(object_id, (OK, b""))[0] != OK

    def wait(self, object_ids: Sequence[bytes], num_returns: int, timeout: float | None, fetch_local: bool) -> set[bytes]:
        self._wait_for(lambda: sum(one in self._values for one in object_ids) >= num_returns, timeout)
        return set([one for one in object_ids if one in self._values][:num_returns])

    def watch(self, object_ids: Iterable[bytes], callback: Callable[[bytes], None]) -> None:
        for one in object_ids:
            self.add_done_callback(one, callback)

    def await_watched(self, object_ids: Any, done: Callable[[], bool], timeout: float | None) -> bool:
        return self._wait_for(done, timeout)

    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        with self._changed:
            if object_id not in self._values:
                self._callbacks.setdefault(object_id, []).append(callback)
                return
        callback(object_id)

    def cancel(self, object_ids: Sequence[bytes], force: bool, recursive: bool) -> None:
        self.cancelled.append((object_ids, force, recursive))
        for one in object_ids:
            if one not in self._values:
                self.finish(one, FAILED, pack_failure("TaskCancelledError", "cancelled", (("attempt", 0),)))

    def explain_call(self, object_id: bytes) -> None:
        """None of these objects is made by a call."""

    def pending_calls(self, matches: Callable[[bytes], bool]) -> list[bytes]:
        return []

    def breakpoint_of(self, task_id: bytes, pid: str) -> str:
        return ""

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        answer = self.answers[what]
        return answer(*arguments) if callable(answer) else answer

    def close(self) -> None:
        self.closed = True

    # -- what tests call --

    def run(self) -> None:
        """Run what was submitted and is held."""
        held, self.held = self.held, []
        for task in held:
            task()

    def finish(self, object_id: bytes, status: int, data: bytes) -> None:
        """Give an object its outcome."""
        with self._changed:
            self._values[object_id] = (status, data)
            callbacks = self._callbacks.pop(object_id, [])
            self._changed.notify_all()
        for callback in callbacks:
            callback(object_id)
        with self._changed:
            self._changed.notify_all()

    # -- the worker's part --

    def _wait_for(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            return self._changed.wait_for(predicate, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _execute(self, task: bytes, function_id: bytes, arguments: bytes, dependencies: Any, options: Any, returns: int) -> None:
        name, payload, exported = self.exports[function_id]
        merged = {**dict(exported), **dict(options or ())}
        function, retryable = load_function(payload, function_id)
        function = returning_all(function)
        outputs = [object_id(task, index) for index in range(returns)]
        self._wait_for(lambda: all(one in self._values for one in dependencies), None)
        values = []
        for one in dependencies:
            status, data = self._values[one]
            if status != OK:
                for output in outputs:
                    self.finish(output, status, data)
                return
            values.append(deserialize(data))
        retries = merged.get("max_retries")
        for attempt in range(1 + (3 if retries is None else retries)):
            self.runs[task] += 1
            running = TaskContext(task, attempt, name, ())
            previous, interface.current_task = interface.current_task, lambda running=running: running
            try:
                args, kwargs = load_arguments(arguments, values)
                result = function(*args, **kwargs)
                results = [result] if returns == 1 else list(result) if returns else []
                assert len(results) == returns
                packed = [serialize_fast(one) or serialize(one, "result").to_bytes() for one in results]
            except BaseException as error:  # as a worker does: whatever user code raises is the outcome
                if option(exported, "retry_errors") and retryable(error):
                    continue
                facts = {"function": name, "node": "fakenode", "pid": 1, "attempt": attempt}
                self._fail(outputs, pack_error(error, facts)[0])
                return
            finally:
                interface.current_task = previous
            for output, data in zip(outputs, packed, strict=True):
                self.finish(output, OK, data)
            return
        self._fail(outputs, pack_error(RuntimeError("retries used up"), {})[0])

    def _fail(self, outputs: list[bytes], data: bytes) -> None:
        for output in outputs:
            self.finish(output, ERROR, data)


__all__ = ["FakeClient", "load_error", "load_failure"]
