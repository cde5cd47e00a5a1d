"""The kinds of worlds: which programs they run, on how many nodes, and what happens to these.

A kind is one value, made from the command line's options and passed on whole. A new kind of program is one more field here, and a place
that reads it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, fields
from typing import Any


def _option(default: Any, help_text: str) -> Any:
    """A field that is a command line option by the same name."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class Kind:
    """One kind of worlds. By default a node runs tasks."""

    nodes: int = _option(1, "nodes of the world")
    actors: bool = _option(False, "programs with actors")
    circles: bool = _option(False, "programs whose actors wait for each other, some of them in circles")
    restarts: bool = _option(False, "of all faults of nodes, only restarts of their daemons")
    groups: bool = _option(False, "programs with tasks (and with --actors, actors) in placement groups")
    streams: bool = _option(False, "programs with tasks (and with --actors, methods) that yield")
    drains: bool = _option(False, "programs with actors; nodes are drained, and nothing else happens to them")
    bare: bool = _option(False, "programs on a node without CPUs, while others join late")
    elastic: bool = _option(False, "programs on a node without CPUs, while others join as there is work, and leave when they are idle")
    durable: bool = _option(False, "programs with durable values, which outlive nodes and daemons")
    elsewhere: bool = _option(False, "programs whose driver waits for one task on another node after the other")
    detached: bool = _option(False, "programs with detached actors, which another driver looks for")
    clocks: bool = _option(False, "no two processes have the same clock")
    watches: bool = _option(False, "processes watch for the last refs of what they drop")

    @classmethod
    def of(cls, options: Namespace) -> Kind:
        """The kind that these options choose."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})

    def arguments(self) -> list[str]:
        """The options of the command line that choose this kind."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default}
        return [word for name, value in chosen.items() for word in (f"--{name}", *(() if value is True else (str(value),)))]

    def __or__(self, other: Kind) -> Kind:
        """A kind with what either has, and the larger number of nodes."""
        return Kind(*(max(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)))


def add_options(parser: ArgumentParser) -> None:
    """Add one option for each field of a kind."""
    for each in fields(Kind):
        number: dict[str, Any] = {"action": "store_true"} if each.default is False else {"type": int, "default": each.default}
        parser.add_argument(f"--{each.name}", help=each.metadata["help"], **number)


ONE_NODE = Kind()


__all__ = ["ONE_NODE", "Kind", "add_options"]
