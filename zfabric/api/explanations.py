"""What ``explain`` returns, and what a notebook shows of refs and handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zfabric.exceptions import FabricError
from zfabric.protocol.ids import TASK_BYTES, short
from zfabric.protocol.messages.queries import ENDED_STATES as ENDED
from zfabric.runtime.interface import ClientInterface

QUERY_SECONDS = 10.0
"""Seconds that the node's daemon may take to answer."""
NOTEBOOK_SECONDS = 2.0
"""Likewise where a notebook shows a ref: its cell should not wait longer."""


class Explanation:
    """The state of a task, value or actor. Made by ``zf.explain``; ``str`` formats it.

    - ``subject``: what was asked about, in the short form of the command line.
    - ``state``: one word (``zfabric tasks`` lists them); ``reason``: a sentence.
    - ``facts``: further facts by name, as text.
    """

    def __init__(self, subject: str, state: str, reason: str, facts: Mapping[str, str]) -> None:
        self.subject = subject
        self.state = state
        self.reason = reason
        self.facts = dict(facts)

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        lines = [f"{self.subject}: {self.state}", f"  {self.reason}"]
        indent = "\n" + " " * (width + 4)
        return "\n".join([*lines, *(f"  {name + ':':<{width + 1}} {value.replace(chr(10), indent)}" for name, value in self.facts.items())])

    def __repr__(self) -> str:
        return f"Explanation({self.subject!r}, {self.state!r}, {self.reason!r}, {self.facts!r})"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Show the state in a notebook, and the facts where unfolded."""
        return _as_html(self.subject, self)


def explained(client: ClientInterface, subject: bytes, text: str = "", timeout: float = QUERY_SECONDS, brief: bool = False) -> Explanation:
    """Explain the task, value or actor with this id. If the id is empty, ``text`` names what is unknown.

    Unless ``brief``, an ended task's explanation says when and where it ran, and what it wrote.
    """
    name = short(subject) or text
    called = client.explain_call(subject)
    if called is not None:
        return _of_call(client, name, subject, *called, timeout)
    answer = client.query("explain", subject, timeout=timeout)
    if answer is None:
        return Explanation(name, "unknown", "nothing is known of it: it ended and was forgotten, or never was", {})
    state, reason, facts = answer
    more: dict[str, str] = {}
    if not brief and "class" in dict(facts):
        from zfabric.runtime.activity import activity_of_actor  # It loads ZeroMQ, which no program needs before its cluster.

        more = activity_of_actor(client, subject[:TASK_BYTES])
    elif not brief and state in ENDED:
        from zfabric.runtime.task_history import history_of  # As above.

        more = history_of(client, subject[:TASK_BYTES])
    return Explanation(name, state, _with_breakpoint(client, subject, reason, dict(facts)), {**dict(facts), **more})


def _of_call(client: ClientInterface, name: str, subject: bytes, state: str, actor_id: bytes, reason: str, timeout: float) -> Explanation:
    """Explain a call by its state and its actor's."""
    actor = client.query("explain", actor_id, timeout=timeout)
    if actor is None:
        return Explanation(name, state, reason, {"actor": short(actor_id)})
    actor_state, why, facts = actor
    reason = _with_breakpoint(client, subject, reason, dict(facts))
    return Explanation(name, state, reason, {**dict(facts), f"the actor is {actor_state}": why})


def _with_breakpoint(client: ClientInterface, subject: bytes, reason: str, facts: dict[str, str]) -> str:
    """Return ``reason``, with the position of a task, call or actor that stopped at a breakpoint."""
    where = client.breakpoint_of(subject[:TASK_BYTES], facts.get("pid", ""))
    return f"{reason}; {where}" if where else reason


def html_of(what: object, owner: Callable[[], ClientInterface], subject: bytes) -> str | None:
    """Return a notebook's markup of a ref, handle or generator: its state now. None if that cannot be asked."""
    try:
        return _as_html(repr(what), explained(owner(), subject, timeout=NOTEBOOK_SECONDS, brief=True))
    except (FabricError, ValueError):  # The cluster has ended, or does not answer; the generator was closed.
        return None


def _as_html(title: str, explanation: Explanation) -> str:
    """Return escaped markup: names and error texts are the user's."""
    from html import escape  # Its table of entities takes every process a millisecond to load.

    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(str(value))}</td></tr>'
        for name, value in explanation.facts.items()
    )
    return (
        f"<details><summary><code>{escape(title)}</code> <b>{escape(explanation.state)}</b>: {escape(explanation.reason)}</summary>"
        f"<table>{rows}</table></details>"
    )
