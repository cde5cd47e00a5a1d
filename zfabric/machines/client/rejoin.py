"""What a client says again to a restarted daemon: all that it holds, then all that it asked for and was not answered.

The other side of it is in ``recovery``, which says what each kind is good for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call
from zfabric.protocol.messages import Row

if TYPE_CHECKING:
    from zfabric.machines.client.machine import Client


def holdings(client: Client) -> Iterator[tuple[type[Any], Any]]:
    """What it holds, as items of messages: (kind of message, item)."""
    for function in client.functions.values():
        yield m.Export, function
    for written in client.written.values():
        yield m.Put, written
    rows: dict[bytes, Row] = {}
    entries = client.all_entries()
    calls = client.calls
    calls.results.share_sent()
    entries = [(identifier, entry) for identifier, entry in entries if not calls.results.is_private(identifier)]
    for identifier, entry in (*client.keeping.retired.items(), *entries):
        if is_call(identifier) and identifier[:TASK_BYTES] in calls.pending:
            continue
        if entry.row is not None:
            rows[identifier[:TASK_BYTES]] = entry.row
        elif entry.data is not None and identifier not in client.written:
            yield m.OfferResults, (identifier, entry.status, entry.data, client.keeping.containing.get(identifier, ()))
    rows.update((task_id, row) for task_id, (row, _) in client.several.items())
    for row in {**client.keeping.lineage, **rows}.values():
        yield m.Submit, row
    yield from calls.holdings()
    for identifier, entry in entries:
        if entry.refs > 0 or entry.row is None:
            yield m.Hold, identifier
    for identifier in client.fetching:
        yield m.Fetch, identifier


def requests(client: Client) -> Iterator[m.Message]:
    """What it asked of the scheduler before."""
    for identifier, (force, recursive) in client.cancelled.items():
        yield m.Cancel((identifier,), force, recursive)
    for actor_id, no_restart in client.calls.killed.items():
        yield m.KillActor(actor_id, no_restart)
    yield from client.asked.values()
    if client.leaving:
        yield m.Goodbye()
