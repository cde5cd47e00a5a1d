"""Options of functions and calls as they travel: (name, value) pairs, only those that were set.

======================  =========================================================================================================
``demand``              resources of one attempt: sorted (resource, amount in 1/10,000) pairs; CPU 1 unless set
``num_returns``         number of values (default 1)
``max_retries``         runs after the loss of a worker (default: config; of a call: its handle's); -1 is without end
``retry_errors``        True: the worker may report RETRY (it knows which exceptions)
``retry_on``            names of exception classes after which a call is repeated, ``max_retries`` times (call rows only)
``timeout``             seconds from submission to outcome
``run_timeout``         seconds of one attempt, from its begin
``name``                the name that people see
``env``                 environment: (variables, working directory, module paths); a worker serves one
``inline``              False: never run on top of another task
``paths``               where the exporting program finds its modules (functions only; set by clients that joined a node)
``directory``           that program's working directory, and its functions' if it exists (functions only; set as ``paths`` is)
``prelude``             a module to import before the function is loaded (functions only; see ``zfabric.ray_mode``)
``modules``             the state of the files of the program's own modules, once one has changed (functions only)
``deterministic``       True: its values may be dropped and rebuilt instead of spilled
``strategy``            where tasks may run: rows (rank, label, "in" or "not in", values), rank "hard", "soft" or "spread" (``accepts``);
                        or in a placement group (``group_strategy``); empty: anywhere, even if the parent captures its children
``captured``            the strategy of a task that sets none, from a parent that captures its children in its group (call rows only)
``stream``              the task's value is the end of a stream, which may be so many values ahead of its consumer (0: as configured)
``dynamic``             True: the call's value is a generator of all that the method yields (call rows only)
``concurrency_groups``  most calls of an actor that run at once, by group; ``max_concurrency`` for the default group
``concurrency_group``   the group of a call (call rows only)
``checkpoint_every``    classes only: calls of their actors are logged, with a checkpoint after so many (0: never)
``unlogged``            classes only, with ``checkpoint_every``: calls run at once, without a log; checkpoints at quiet moments
``readonly``            classes only, with ``checkpoint_every``: names of methods that change nothing, and are not logged
``copy``                True: arguments arrive as writable copies (call rows only)
``ask``                 True: request the outcome of a call that may have run; it runs again only if it is ``readonly`` (call rows only)
``farewell``            classes only: True if instances act at a clean end (``__exit__``, ``__del__``, …)
``wrapper``             runs a function in its place: a module, the name of a function there, and texts for it (``util.tracing``)
``contains``            refs inside the arguments or the function, and packages: pinned until the task is done; of functions: refs inside
======================  =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

RESOURCE_UNIT = 10_000
"""Fixed point: resource amounts are integers in 1/10,000, so that fractions add up."""

MEMORY, STORE_MEMORY = "memory", "object_store_memory"
"""Resources in bytes: what tasks may reserve, and the size of the object store."""
NODE_RESOURCE = "node:"
"""Begins the resource of a node's address, such as ``node:10.0.0.7``, of which each node has one unit."""
ACCELERATOR_RESOURCE = "accelerator_type:"
"""Begins the resource of the model of a node's GPUs: "accelerator_type:A100", of amount 1."""
HEAD_RESOURCE = f"{NODE_RESOURCE}__internal_head__"
"""The resource that the head alone has, by Ray's name."""

Demand = tuple[tuple[str, int], ...]
Environment = tuple[tuple[tuple[str, str], ...], str, tuple[str, ...]]

VARIABLE_BYTES_MAX = 128 * 1024 - 1
"""Longest environment variable with its name: what Linux passes to a program."""
VARIABLES_BYTES_MAX = 1024 * 1024
"""Most bytes of a task's environment variables: they travel with its function, and select its workers."""

NO_ENVIRONMENT: Environment = ((), "", ())
RUNTIME_ENV_VARIABLE = "ZFABRIC_RUNTIME_ENV"
"""A variable with the whole runtime env as JSON, for tasks that a worker submits. User code does not see it."""
PACKAGE_SCHEME = "zf://"
"""Begins a path of an environment that is sent to each node: ``zf://`` object id / hash / entry.

The object is an archive (``adapters.packages``), the entry a part of it, or empty for its root.
"""
Strategy = tuple[tuple[str, str, str, tuple[str, ...]], ...]
"""The nodes where a task may run: rows (rank, label, operator, values). Rank "hard": a node must accept the row.

"soft": nodes that do come first. "spread": tasks are dealt out evenly, without a label. "here": this node's share of such tasks. "group":
in a placement group. "bundle": in those bundles of one that this node has.
"""
SPREAD: Strategy = (("spread", "", "", ()),)
HERE: Strategy = (("here", "", "", ()),)
"""Begins the strategy of tasks that were dealt to this node; the former one follows."""
GROUP_POLICIES = "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"
"""How the bundles of a placement group may be distributed over nodes."""
ANY_BUNDLE = -1
"""The index that stands for any bundle of a placement group."""
WHOLE_GROUP = -2
"""The same, once all bundles are reserved."""
NODE_ID = ""
"""The label that each node has by itself: its id, as text."""
ONE_CPU: Demand = (("CPU", RESOURCE_UNIT),)


RETURNS_MAX = 1_000_000
"""Most values of one task: each has a record."""

STREAM_VALUES_MAX = 2**30 - 2
"""Most values of one stream: as many as an object's index can number."""

LOG_NUMBERS_MAX = 2**63
"""One past the largest number of a logged call: eight bytes of a key, in order."""

LOGGED = -2
"""Retries of a logged actor's calls: without end, since the actor runs no repeated call twice."""

CHECKPOINT_PARTS_MAX = 2**20
"""Most parts of a checkpoint."""

OPTION_TYPES: dict[str, tuple[type, ...]] = {
    "demand": (tuple,),
    "num_returns": (int,),
    "strategy": (tuple,),
    "captured": (tuple,),
    "stream": (int,),
    "dynamic": (bool,),
    "max_retries": (int,),
    "retry_errors": (bool,),
    "retry_on": (tuple,),
    "timeout": (int, float),
    "run_timeout": (int, float),
    "name": (str,),
    "env": (tuple,),
    "inline": (bool,),
    "deterministic": (bool,),
    "contains": (tuple,),
    "wrapper": (tuple,),
    "parent": (bytes,),
    "paths": (tuple,),
    "directory": (str,),
    "prelude": (str,),
    "modules": (str,),
    "actor": (bytes,),
    "detached": (bool,),
    "namespace": (str,),
    "max_restarts": (int,),
    "max_concurrency": (int,),
    "checkpoint_every": (int,),
    "unlogged": (bool,),
    "ask": (bool,),
    "copy": (bool,),
    "concurrency_groups": (tuple,),
    "concurrency_group": (str,),
    "lightweight": (bool,),
    "readonly": (tuple,),
    "farewell": (bool,),
    "remake": (tuple,),
}
"""The types that values of known options may have; frames with others are refused."""


def option(pairs: tuple[tuple[str, Any], ...] | None, name: str, default: Any = None) -> Any:
    """The value of ``name`` in ``pairs``, or ``default``."""
    for key, value in pairs or ():
        if key == name:
            return value
    return default


def is_shared(name: str) -> bool:
    """Whether tasks compete for the resource: not for a node's address, nor the size of its store.

    >>> is_shared("memory"), is_shared("node:10.0.0.7")
    (True, False)
    """
    return name != STORE_MEMORY and not name.startswith(NODE_RESOURCE)


def is_strategy_alone(options: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a call sets nothing but where its task may run."""
    return len(options) == 1 and options[0][0] == "strategy"


def names_objects(row: tuple[Any, ...]) -> bool:
    """Whether the row of a task names objects: dependencies, or refs inside its arguments."""
    if row[3]:
        return True
    if len(row) > 4:
        for name, value in row[4] or ():
            if name == "contains":
                return bool(value)
    return False


def accepts(labels: Mapping[str, str], terms: Iterable[tuple[str, str, str, tuple[str, ...]]]) -> bool:
    """Whether a node with these labels satisfies rows of a strategy. A label without values to compare with must be set, or not be set.

    >>> accepts({"zone": "a"}, [("hard", "zone", "in", ("a", "b")), ("hard", "slow", "not in", ())])
    True
    """
    for _, label, operator, values in terms:
        found = label in labels and (not values or labels[label] in values)
        if found != (operator == "in"):
            return False
    return True


def only_prefers(strategy: Strategy) -> bool:
    """Whether a strategy lets tasks run on any node, and names no node that they prefer: they are spread, or prefer labels.

    >>> only_prefers(SPREAD), only_prefers((("soft", "zone", "in", ("a",)),)), only_prefers((("soft", NODE_ID, "in", ("00",)),))
    (True, True, False)
    """
    return all(rank in ("spread", "here") or (rank == "soft" and label != NODE_ID) for rank, label, _, _ in strategy)


class Terms(NamedTuple):
    """How to call an actor.

    ``retries``: how often a call is repeated after the loss of the process (``LOGGED`` if it is logged). ``pending``: the most calls
    without an outcome (0: any number). ``keeps``: its checkpoints retain outcomes that callers may not have received. ``unordered``: it
    runs several calls at once, so that no call waits for an earlier one's arguments.
    """

    retries: int = 0
    pending: int = 0
    keeps: bool = False
    unordered: bool = False


ActorCall = tuple[bytes, tuple[tuple[Any, ...], ...] | None, int, Terms]
"""One call of several: (actor id, options, number of values, terms)."""


class GroupTerm(NamedTuple):
    """Where in a placement group a task is to run."""

    group: bytes
    """The id of the group."""
    home: bytes
    """The node that decides about the group."""
    bundle: int
    """The number of a bundle, ``ANY_BUNDLE`` or ``WHOLE_GROUP``."""
    captures: bool
    """Whether what the task submits runs in the group, too, unless it says otherwise."""


def group_strategy(term: GroupTerm) -> Strategy:
    """Encode where in a placement group a task is to run.

    >>> group_of(group_strategy(GroupTerm(b"id", b"node", 2, False))).bundle
    2
    """
    return (("group", term.group.hex(), term.home.hex(), (str(term.bundle), "captures" if term.captures else "")),)


def group_of(strategy: Strategy) -> GroupTerm | None:
    """The placement group of a strategy, if it names one. Raises ValueError if it is malformed."""
    if not strategy or strategy[0][0] not in ("group", "bundle"):
        return None
    _, group, home, (index, captures) = strategy[0]
    return GroupTerm(bytes.fromhex(group), bytes.fromhex(home), int(index), captures != "")


def only_node(strategy: Strategy) -> bytes:
    """The node that a strategy names as the only one; empty if it accepts others, or none.

    >>> only_node((("hard", NODE_ID, "in", ("0102",)),))
    b'\\x01\\x02'
    """
    if len(strategy) != 1 or strategy[0][:3] != ("hard", NODE_ID, "in") or len(strategy[0][3]) != 1:
        return b""
    try:
        return bytes.fromhex(strategy[0][3][0])
    except ValueError:
        return b""


def in_bundle(strategy: Strategy) -> Strategy:
    """The strategy of a placement group's tasks at a node with a bundle of it; empty for other strategies."""
    if not strategy or strategy[0][0] not in ("group", "bundle"):
        return ()
    _, group, home, (index, _) = strategy[0]
    return (("bundle", group, home, (index, "")),)


def describe_strategy(strategy: Strategy) -> str:
    """The nodes that a strategy accepts, in words; empty if it accepts all."""
    parts = []
    for rank, label, operator, values in strategy:
        if rank in ("group", "bundle"):
            index = int(values[0])
            parts.append(f"in {f'bundle {index} of ' if index >= 0 else ''}placement group {label}")
        if rank == "hard":
            what = "node" if label == NODE_ID else f"a node with label {label!r}"
            parts.append(f"on {what} {'not ' if operator == 'not in' else ''}{' or '.join(map(str, values)) or 'set'}")
    return " and ".join(parts)
