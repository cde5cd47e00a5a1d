"""What a client repeats to a restarted daemon: everything it holds, then unanswered requests.

For what follows see ``local_scheduler/lifecycle/recovery.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from zfabric.machines.client.calls import Calls
from zfabric.machines.client.objects import ObjectTable
from zfabric.machines.client.references import RetainedObjects
from zfabric.machines.client.tasks import Tasks
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call
from zfabric.protocol.messages import Row


def holdings(
    tasks: Tasks, objects: ObjectTable, retained: RetainedObjects, calls: Calls, written: dict[bytes, Row]
) -> Iterator[tuple[type[Any], Any]]:
    """Functions, values, tasks and refs: (kind of message, item)."""
    for function in tasks.functions.values():
        yield m.Export, function
    for put in written.values():
        yield m.Put, put
    rows: dict[bytes, Row] = {}
    entries = objects.all_entries()
    calls.results.share_sent()
    entries = [(identifier, entry) for identifier, entry in entries if not calls.results.is_private(identifier)]
    for identifier, entry in (*retained.retired.items(), *entries):
        if is_call(identifier) and identifier[:TASK_BYTES] in calls.pending:
            continue
        if entry.row is not None:
            rows[identifier[:TASK_BYTES]] = entry.row
        elif entry.data is not None and identifier not in written:
            yield m.OfferResults, (identifier, entry.status, entry.data, retained.containing.get(identifier, ()))
    rows.update((task_id, row) for task_id, (row, _) in tasks.several.items())
    for row in {**retained.lineage, **rows}.values():
        yield m.Submit, row
    yield from calls.holdings()
    for identifier, entry in entries:
        if entry.refs > 0 or entry.row is None:
            yield m.Hold, identifier
    for identifier in objects.fetching:
        yield m.Fetch, identifier


def requests(tasks: Tasks, calls: Calls, exiting: Iterable[bytes], queries: Iterable[m.Query], leaving: bool) -> Iterator[m.Message]:
    """Requests that may not have arrived."""
    for identifier, (force, recursive) in tasks.cancelled.items():
        yield m.Cancel((identifier,), force, recursive)
    for actor_id, no_restart in calls.killed.items():
        yield m.KillActor(actor_id, no_restart)
    for actor_id in sorted(exiting):
        yield m.ActorExiting(actor_id)
    yield from queries  # Behind the others: their answers tell an actor that it may exit.
    if leaving:
        yield m.Goodbye()
