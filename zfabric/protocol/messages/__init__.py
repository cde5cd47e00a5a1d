"""Every message of the fabric: its sender and receiver, what it means, and what answers it.

Messages travel over *links* (``zfabric.machines.common.link``), which number, acknowledge, repeat and deduplicate them. Between two living
incarnations each message arrives once and in order. When an incarnation ends, its unprocessed messages are lost. The processes that hold
the same state send it again when they register (``Register`` … ``Ready``). This is what happens to a lost message, unless its docstring
says otherwise.

A *row* is an immutable tuple of bytes, int, float, bool, str, None and tuples. Layouts and fields that several messages share:

``task row``    ``(task_id, function_id, arguments, dependencies[, options])``: all that a run of the task needs.
                ``arguments`` are serialized bytes. ``dependencies`` are the ids of the objects that top-level arguments
                stand for, in the order of their place-holders. ``options`` is None or a tuple of (name, value) pairs
                that differ from the function's own, plus ``("contains", (object_id, …))`` for refs inside arguments.
``value``       ``bytes`` inline, or ``(offset, size)`` in the node's arena, or None for a value that is not sent.
``outputs``     a tuple of values, one per return.
``homes``       ``(object_id, node)`` of each object that the message names and whose home is not the sender.
``number``      counts the messages of this kind from this sender, unless its message says otherwise.
``token``       comes back in the answer.

All of it is data: no scheduler, store or tool unpickles it.

A message is a class in one of the modules below, and a handler in the machine that receives it. Decorators of the class declare who may
send it over a socket (``protocol.access``). The types of its fields (``rows``) carry their checks (``protocol.checks``). The modules do
not postpone annotations: ``typing`` would compile each of a thousand as text, in every process that starts.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

from zfabric.protocol.messages import (
    actors,
    arena,
    cluster,
    control_store,
    delegation,
    failover,
    groups,
    key_values,
    ledger,
    node,
    placement,
    queries,
    registration,
    relays,
    tasks,
    transfer,
    values,
)
from zfabric.protocol.messages.actors import *
from zfabric.protocol.messages.arena import *
from zfabric.protocol.messages.cluster import *
from zfabric.protocol.messages.control_store import *
from zfabric.protocol.messages.delegation import *
from zfabric.protocol.messages.failover import *
from zfabric.protocol.messages.groups import *
from zfabric.protocol.messages.key_values import *
from zfabric.protocol.messages.ledger import *
from zfabric.protocol.messages.node import *
from zfabric.protocol.messages.placement import *
from zfabric.protocol.messages.queries import *
from zfabric.protocol.messages.registration import *
from zfabric.protocol.messages.relays import *
from zfabric.protocol.messages.rows import Ids as Ids
from zfabric.protocol.messages.rows import Row as Row
from zfabric.protocol.messages.rows import Rows as Rows
from zfabric.protocol.messages.tasks import *
from zfabric.protocol.messages.transfer import *
from zfabric.protocol.messages.values import *

Message: TypeAlias = tuple[Any, ...]
"""Any of the named tuples above."""
Envelope: TypeAlias = tuple[bytes, bytes, Message]
"""``(role it is for, role it is from, message)``"""

SECTIONS: tuple[ModuleType, ...] = (
    registration,
    tasks,
    actors,
    values,
    arena,
    control_store,
    placement,
    delegation,
    ledger,
    failover,
    groups,
    key_values,
    relays,
    cluster,
    transfer,
    node,
    queries,
)
"""The modules of messages, in the order in which a reader meets them: one for each pair of roles, or each subject."""

MESSAGES: dict[str, type[Any]] = {
    name: kind
    for section in SECTIONS
    for name, kind in vars(section).items()
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__module__ == section.__name__
}
"""Every message class by its name, which is also its name on the wire."""
