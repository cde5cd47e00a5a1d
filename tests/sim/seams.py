"""Faults at the seams: what passes between two roles, or between a role and its shell, is lost, altered, repeated or answered early.

The rest of a node reaches a role by ``step``, which takes a message, and by ``take_effects``, which returns messages and other effects
(``zfabric.protocol.machine.Machine``). These faults replace one of the two, or what a process of the simulator sends, so they need nothing
that is inside a role: a variant made of them survives a redesign of the role. Each function returns a ``Patch`` (``variants.applied``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from tests.sim.processes import Process
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import Address

Patch = tuple[Any, str, Callable[[Any], Any]]
"""(class or module, method, function from the right method to the broken one)"""
Which = Callable[[Any], bool]
Arrivals = Iterable[tuple[Address, m.Message]]
"""Messages with their sources."""


def _all(_: Any) -> bool:
    return True


class Memory:
    """What a fault remembers of each machine, for as long as the machine exists."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def of(self, machine: Any) -> dict[Any, Any]:
        """Return what is remembered of a machine."""
        return self._of.setdefault(machine, {})


# -- messages that arrive --


def arriving(role: type[Any], kind: type[Any], replace: Callable[[Any, Address, Any], Arrivals]) -> Patch:
    """Have a role receive what ``replace(machine, source, message)`` returns, instead of each message of this kind."""

    def make(right: Any) -> Any:
        def step(self: Any, now: float, source: Address, message: m.Message) -> None:
            for each in replace(self, source, message) if type(message) is kind else ((source, message),):
                right(self, now, *each)

        return step

    return role, "step", make


def lost(role: type[Any], kind: type[Any], which: Which = _all) -> Patch:
    """Messages of this kind do not arrive, all or those chosen by ``which``."""
    return arriving(role, kind, lambda _, source, message: () if which(message) else ((source, message),))


def repeated(role: type[Any], kind: type[Any]) -> Patch:
    """Messages of this kind arrive twice."""
    return arriving(role, kind, lambda _, source, message: ((source, message), (source, message)))


def changed(role: type[Any], kind: type[Any], change: Callable[[Any], m.Message]) -> Patch:
    """Messages of this kind arrive as ``change`` returns them."""
    return arriving(role, kind, lambda _, source, message: ((source, change(message)),))


def altered(role: type[Any], kind: type[Any], **fields: Callable[[Any], Any]) -> Patch:
    """Messages of this kind arrive with other values of these fields, each what its function returns for the right one."""
    return changed(role, kind, lambda message: message._replace(**{name: of(getattr(message, name)) for name, of in fields.items()}))


def nothing(_: Any) -> tuple[()]:
    """An empty field: all its rows or ids are missing."""
    return ()


def true(_: Any) -> bool:
    """A field that holds."""
    return True


def followed(role: type[Any], kind: type[Any], by: Callable[[Any], m.Message], which: Which = _all) -> Patch:
    """Behind a message of this kind, the role also receives another one from the same source, which nobody has sent."""
    return arriving(role, kind, lambda _, source, message: ((source, message), (source, by(message)))[: 1 + which(message)])


def hurried(role: type[Any], kind: type[Any], behind: type[Any]) -> tuple[Patch, ...]:
    """A message of this kind, without fields, arrives right behind another kind of the same source, and not behind all that belongs ahead.

    A barrier that counts such messages does not wait for what they promise.
    """
    memory = Memory()

    def at_once(machine: Any, source: Address, message: m.Message) -> Arrivals:
        memory.of(machine)[source] = True
        return (source, message), (source, kind())

    def in_order(machine: Any, source: Address, message: m.Message) -> Arrivals:
        return () if memory.of(machine).pop(source, False) else ((source, message),)

    # The second patch receives messages first: it must not see what the first one makes.
    return arriving(role, behind, at_once), arriving(role, kind, in_order)


def lost_ahead(
    role: type[Any], kind: type[Any], about: Callable[[Address, Any], Any], of: type[Any], named: Callable[[Any], Any]
) -> tuple[Patch, ...]:
    """Messages of a kind do not arrive if they overtake the message ``of`` another kind that first names what they are ``about``."""
    memory = Memory()

    def note(machine: Any, source: Address, message: m.Message) -> Arrivals:
        memory.of(machine).update(dict.fromkeys(named(message)))
        return ((source, message),)

    def lose(machine: Any, source: Address, message: m.Message) -> Arrivals:
        return ((source, message),) if about(source, message) in memory.of(machine) else ()

    return arriving(role, of, note), arriving(role, kind, lose)


# -- messages and effects that leave --


def leaving(role: type[Any], change: Callable[[Any, list[Any]], list[Any]]) -> Patch:
    """Replace the effects of each turn of a role by ``change(machine, effects)``."""

    def make(right: Any) -> Any:
        return lambda self, now: change(self, list(right(self, now)))

    return role, "take_effects", make


def sends(effect: Effect, kind: type[Any]) -> bool:
    """Whether an effect sends a message of this kind."""
    return type(effect) is Send and type(effect.message) is kind


def _content(effect: Effect) -> Any:
    """What an effect is about: the message to send, or the effect itself."""
    return effect.message if type(effect) is Send else effect


def unsent(role: type[Any], kind: type[Any], which: Which = _all) -> Patch:
    """A role's effects of this kind, or its messages of this kind, do not leave it."""

    def change(_: Any, effects: list[Any]) -> list[Any]:
        return [each for each in effects if not (type(_content(each)) is kind and which(_content(each)))]

    return leaving(role, change)


def lost_beside(role: type[Any], kind: type[Any], beside: type[Any], which: Which = _all) -> Patch:
    """Messages of a kind are lost that leave in one turn with a message of kind ``beside`` to the same receiver (``which``: some)."""

    def change(_: Any, effects: list[Any]) -> list[Any]:
        receivers = {each.to for each in effects if sends(each, beside) and which(each.message)}
        return [each for each in effects if not (sends(each, kind) and each.to in receivers)]

    return leaving(role, change)


def early(role: type[Any], kind: type[Any], answer: Callable[[Any], m.Message | None]) -> Patch:
    """A role that sends a message of this kind has the answer at once, before anything was done. The right answer follows."""

    def make(right: Any) -> Any:
        def take_effects(self: Any, now: float) -> list[Any]:
            effects = list(right(self, now))
            asked = [each for each in effects if sends(each, kind)]
            answers = [(each.to, reply) for each in asked if (reply := answer(each.message)) is not None]
            for source, reply in answers:
                self.step(now, source, reply)
            return [*effects, *right(self, now)] if answers else effects

        return take_effects

    return role, "take_effects", make


# -- what a process sends at a time --


def transmitted(change: Callable[[list[Any]], list[Any]]) -> Patch:
    """Replace what a driver or worker sends at a time, (role, ``Send``), by ``change`` of it."""

    def make(right: Any) -> Any:
        return lambda self, outgoing: right(self, change(outgoing))

    return Process, "transmit", make


def overtaking(kind: type[Any]) -> Patch:
    """Messages of this kind leave a process ahead of all others."""
    return transmitted(lambda outgoing: sorted(outgoing, key=lambda each: type(each[1].message) is not kind))


def not_repeated(kind: type[Any]) -> Patch:
    """After a restart of the daemon, processes do not repeat what they have of one kind, between ``Register`` and ``Ready``."""

    def change(outgoing: list[Any]) -> list[Any]:
        kinds = [type(message) for _, (_, message) in outgoing]
        if m.Register not in kinds or m.Ready not in kinds:
            return outgoing
        first, last = kinds.index(m.Register), kinds.index(m.Ready)
        return [each for index, each in enumerate(outgoing) if kinds[index] is not kind or not first < index < last]

    return transmitted(change)


__all__ = [
    "Memory",
    "Patch",
    "altered",
    "arriving",
    "changed",
    "early",
    "followed",
    "hurried",
    "leaving",
    "lost",
    "lost_ahead",
    "lost_beside",
    "not_repeated",
    "nothing",
    "overtaking",
    "repeated",
    "sends",
    "transmitted",
    "true",
    "unsent",
]
