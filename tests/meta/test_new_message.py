"""A new message is written into two places: its class in a module of messages, and its handler in a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zfabric"

CLASS = '''
@from_nodes(GLOBAL_SCHEDULER)
class Praise(NamedTuple):
    """local scheduler -> global scheduler. Nodes that ran tasks well: rows ``(node, tasks)``."""

    node: NodeId
    rows: Annotated[Rows, layout(NODE, COUNT)]
'''
HANDLER = """
    def on_praise(self, now: float, source: Address, message: m.Praise) -> None:
        self.praised = message.rows

"""
USE = """
import pytest
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.codec import MalformedFrame, decode, encode
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER
from zfabric.shell.node import NodeMachines

OWN, OTHER = b"thisnode", b"other..."
rows = ((OTHER, 3), (OWN, 2))
praise = m.Praise(OTHER, rows)
((to, source, received),) = decode(encode(1, 0, [(GLOBAL_SCHEDULER, LOCAL_SCHEDULER, praise)]))[2]
assert received == praise and type(received) is m.Praise

for bad in (m.Praise(b"short", rows), m.Praise(OTHER, ((OTHER, -1),)), m.Praise(OTHER, ((b"short", 3), *rows)), m.Praise(OTHER, 7)):
    with pytest.raises(MalformedFrame, match="Praise"):
        decode(encode(1, 0, [(GLOBAL_SCHEDULER, LOCAL_SCHEDULER, bad)]))

daemon = NodeMachines(b"daemon01", OWN, Config(), (), 2**20, MemoryJournal(), 0)
assert not daemon.may_send(b"process1", GLOBAL_SCHEDULER, praise), "a process may not send it"
daemon.receive_from_node(0.0, OTHER, CONTROL_STORE, LOCAL_SCHEDULER, praise)
daemon.receive_from_node(0.0, OTHER, LOCAL_SCHEDULER, LOCAL_SCHEDULER, praise)
assert daemon.refused == 2, "other roles do not receive it"
daemon.receive_from_node(0.0, OTHER, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, praise)
assert daemon.refused == 2 and daemon.placer.praised == rows
"""


def replace(path: Path, old: str, new: str) -> None:
    """Replace a text that the file has once."""
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))


def test_a_class_and_a_handler_make_a_message_that_is_sent_checked_refused_and_processed(tmp_path: Path) -> None:
    """In a copy of the package, in which nothing else is changed."""
    shutil.copytree(PACKAGE, tmp_path / "zfabric", ignore=shutil.ignore_patterns("__pycache__"))
    messages = tmp_path / "zfabric/protocol/messages/placement.py"
    messages.write_text(messages.read_text() + "\n" + CLASS)
    machine = tmp_path / "zfabric/machines/global_scheduler/machine.py"
    replace(machine, "m.Heartbeat: ", "m.Praise: self.on_praise, m.Heartbeat: ")
    replace(machine, "    def tick(", HANDLER.lstrip("\n") + "    def tick(")
    done = subprocess.run(
        [sys.executable, "-c", USE], env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
