"""Runs a graph of Dask's on the cluster: submits batches as tasks, and fetches the asked values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask.callbacks import local_callbacks, unpack_callbacks
from dask.core import flatten
from dask.sizeof import sizeof

from zfabric import api as zf
from zfabric.exceptions import FabricError, OptionError, TaskError
from zfabric.machines.common.resources import named_demand
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT
from zfabric.util.dask.batches import GraphBatch, Planner
from zfabric.util.dask.graphs import Graph, Step, StoredValue, stored_value
from zfabric.util.dask.running import Work, run, unpacked

CONSTANT_BYTES = 4096
"""Largest datum of a graph that travels with each batch. Larger ones are stored once."""
AHEAD = 2
"""Batches submitted for each that can run, so that no worker waits for this process."""
VARIANTS_MAX = 1000


class _Stored:
    """Values that were stored together."""

    __slots__ = ("left", "ref")

    def __init__(self, ref: zf.ObjectRef, left: int) -> None:
        self.ref: zf.ObjectRef | None = ref
        self.left = left
        """How many are needed."""


class Computation:
    """One graph that runs on the cluster. ``options`` are those of ``zf.remote`` for each batch."""

    def __init__(self, graph: Graph, asked: Iterable[Any], options: Mapping[str, Any], single: bool) -> None:
        if options.get("num_returns") not in (None, 1):
            raise OptionError(f"a batch of tasks returns what others need: num_returns={options['num_returns']!r} is for f.remote()")
        self._graph = graph
        self._keys = list(dict.fromkeys(asked))
        self._asked = {graph.number(key) for key in self._keys}
        self._run = zf.remote(run).options(**options)
        self._variants: dict[tuple[str, int], Any] = {}
        self._slots = _slots(options)
        self._planner = Planner(graph, self._asked, self._slots, single)
        self._running: dict[zf.ObjectRef, tuple[GraphBatch, list[Any]]] = {}
        """Running batches with the refs of their groups, by the task's first ref, which has the measurements."""
        self._places: dict[int, tuple[_Stored, int]] = {}
        """Where a finished task's value is, while needed; -1 if it was stored by itself."""
        self._uses = [len(users) for users in graph.users]
        for number in self._asked:
            self._uses[number] += 1

    def batches(self) -> Iterator[GraphBatch]:
        """Run the graph; yield each batch when it has ended. An error cancels what runs."""
        running, planner = self._running, self._planner
        try:
            while planner.left:
                while len(running) < AHEAD * self._slots and (formed := planner.next()) is not None:
                    self._submit(formed)
                (done,), _ = zf.wait(list(running), num_returns=1)
                measured = zf.get(done)
                batch, groups = running.pop(done)
                self._store(batch, groups)
                planner.ended(batch, measured)
                yield batch
        finally:
            for ref in running:
                zf.cancel(ref)
            running.clear()

    def _submit(self, batch: GraphBatch) -> None:
        graph, planner = self._graph, self._planner
        places: dict[int, int] = {}
        constants: list[Any] = []
        inside = set(batch.tasks)
        outside = {each: None for number in batch.tasks for each in graph.needs[number] if each not in inside}
        inputs: list[tuple[int, int]] = []
        stored: dict[int, tuple[int, zf.ObjectRef]] = {}
        for each in outside:
            if graph.is_data(each) and each not in self._places and not self._keep(each):
                places[each] = len(constants)
                constants.append(graph.datum(each))
        for each in outside:
            if each in places:
                continue
            holder, entry = self._places[each]
            assert holder.ref is not None, "a value is released when all that need it have ended"
            argument, _ = stored.setdefault(id(holder), (len(stored), holder.ref))
            places[each] = len(constants) + len(inputs)
            inputs.append((argument, entry))
        steps: list[Step] = []
        for number in batch.tasks:
            steps.append(graph.step(number, planner.kind(number), places))
            places[number] = len(places)
        work = Work(constants, inputs, steps, [[places[number] for number in group] for group in batch.groups])
        task = self._variant(planner.names[planner.kind(batch.tasks[-1])], 1 + len(batch.groups))
        refs = task.remote(work, *(ref for _, ref in stored.values()))
        first, *groups = refs if batch.groups else [refs]
        self._running[first] = batch, groups

    def _keep(self, number: int) -> bool:
        value = self._graph.datum(number)
        if type(value) is zf.ObjectRef:
            ref = value
        elif sizeof(value) > CONSTANT_BYTES:
            ref = zf.put(value)
        else:
            return False
        self._places[number] = _Stored(ref, 1), -1
        return True

    def _variant(self, name: str, returns: int) -> Any:
        found = self._variants.get((name, returns))
        if found is None:
            if len(self._variants) >= VARIANTS_MAX:
                self._variants.clear()
            found = self._variants[name, returns] = self._run.options(name=name, num_returns=returns)
        return found

    def _store(self, batch: GraphBatch, groups: list[zf.ObjectRef]) -> None:
        """Record where a batch's values are, and release those that nothing needs any more."""
        uses, places = self._uses, self._places
        for group, ref in zip(batch.groups, groups, strict=True):
            holder = _Stored(ref, len(group))
            for entry, number in enumerate(group):
                places[number] = holder, entry if len(group) > 1 else -1
        for number in batch.tasks:
            for each in self._graph.needs[number]:
                uses[each] -= 1
                if not uses[each] and each in places:
                    holder, _ = places.pop(each)
                    holder.left -= 1
                    if not holder.left:
                        holder.ref = None

    def stored(self) -> dict[Any, StoredValue]:
        """The asked values as they are in the store, by key."""
        found = {}
        for key in self._keys:
            number = self._graph.number(key)
            if number not in self._places:
                value = self._graph.datum(number)
                self._places[number] = _Stored(value if type(value) is zf.ObjectRef else zf.put(value), 1), -1
            ref = self._places[number][0].ref
            assert ref is not None
            found[key] = stored_value(ref)
        return found

    def values(self) -> dict[Any, Any]:
        """The asked values, by key: copies, which the program may write to."""
        graph, places = self._graph, self._places
        numbers = {key: graph.number(key) for key in self._keys}
        for number in numbers.values():
            if number not in places and type(graph.datum(number)) is zf.ObjectRef:
                places[number] = _Stored(graph.datum(number), 1), -1
        refs = list({id(holder): holder.ref for number in numbers.values() if number in places for holder in [places[number][0]]}.values())
        fetched = dict(zip(refs, zf.get(refs, copy=True), strict=True)) if refs else {}
        found: dict[int, Any] = {}
        for number in numbers.values():
            if number not in places:
                found[number] = graph.datum(number)
            elif number not in found:
                holder, entry = places[number]
                value = fetched[holder.ref]
                found[number] = value if entry < 0 else unpacked(value[entry], copy=True)
        return {key: found[number] for key, number in numbers.items()}


def _slots(options: Mapping[str, Any]) -> int:
    total = zf.cluster_resources()
    demand = named_demand(options) or ONE_CPU
    found = [int(total.get(name, 0) * RESOURCE_UNIT // amount) for name, amount in demand]
    return max(1, min(found, default=int(total.get("CPU", 1))))


def compute(dsk: Any, keys: Any, options: Mapping[str, Any], persist: bool, callbacks: Any) -> Any:
    """Run a graph; return the values of ``keys`` in their shape, or what stands for them in the store."""
    asked = list(flatten(keys)) if isinstance(keys, list) else [keys]
    graph = Graph(dsk, asked)
    computation = Computation(graph, asked, options, persist)
    try:
        with local_callbacks(callbacks) as active:
            if active:
                with _Callbacks(active, graph) as calls:
                    for batch in computation.batches():
                        calls.ended(batch)
            else:
                for _ in computation.batches():
                    pass
        found = computation.stored() if persist else computation.values()
    except TaskError as error:
        _raise_own(error)
    return _shaped(keys, found)


def _shaped(keys: Any, found: Mapping[Any, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_shaped(each, found) for each in keys)
    return found[keys]


def _raise_own(error: TaskError) -> None:
    """As Dask does. Notes have the place and the remote traceback."""
    cause = error.cause
    if not isinstance(cause, Exception) or isinstance(cause, FabricError):
        raise error
    cause.__notes__ = list(getattr(error, "__notes__", ()))
    raise cause from None


class _Callbacks:
    """Calls back a program's ``dask.callbacks``, in this process: for each task, when its batch has ended."""

    def __init__(self, active: Iterable[Any], graph: Graph) -> None:
        self._active = list(active)
        self._graph = graph
        self._dsk = graph.by_key
        self._state: dict[str, Any] = {}
        """Under the names of Dask's schedulers."""
        self._started: list[Any] = []

    def __enter__(self) -> _Callbacks:
        try:
            for each in self._active:
                if each[0]:
                    each[0](self._dsk)
                self._started.append(each)
            self._state = self._begin()
            for each in self._active:
                if each[1]:
                    each[1](self._dsk, self._state)
        except BaseException:  # Callbacks are user code, and Ctrl-C may come: those that have started are ended.
            self._finish(True)
            raise
        _, _, self._before, self._after, _ = unpack_callbacks(self._active)
        return self

    def _begin(self) -> dict[str, Any]:
        graph = self._graph
        key = [graph.key(number) for number in range(len(graph))]
        tasks = [number for number in range(len(graph)) if not graph.is_data(number)]
        waiting = {key[number]: {key[each] for each in graph.needs[number] if not graph.is_data(each)} for number in tasks}
        return {
            "dependencies": {key[number]: {key[each] for each in graph.needs[number]} for number in range(len(graph))},
            "dependents": {key[number]: {key[each] for each in graph.users[number]} for number in range(len(graph))},
            "waiting": {each: needs for each, needs in waiting.items() if needs},
            "waiting_data": {key[number]: {key[each] for each in graph.users[number]} for number in range(len(graph))},
            "cache": {key[number]: graph.datum(number) for number in range(len(graph)) if graph.is_data(number)},
            "ready": {each: None for each, needs in waiting.items() if not needs},
            "running": set(),
            "finished": set(),
            "released": set(),
        }

    def ended(self, batch: GraphBatch) -> None:
        """Report a batch's tasks. Values are in the store, so callbacks get None."""
        state = self._state
        for number in batch.tasks:
            key = self._graph.key(number)
            del state["ready"][key]
            state["running"].add(key)
            for each in self._before:
                each(key, self._dsk, state)
            state["running"].discard(key)
            state["finished"].add(key)
            for user in state["dependents"][key]:
                missing = state["waiting"][user]
                missing.discard(key)
                if not missing:
                    del state["waiting"][user]
                    state["ready"][user] = None
            for each in self._after:
                each(key, None, self._dsk, state, None)

    def _finish(self, failed: bool) -> None:
        for each in self._started:
            if each[4]:
                each[4](self._dsk, self._state, failed)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._finish(error is not None)
