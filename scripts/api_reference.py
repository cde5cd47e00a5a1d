"""Writes api.md: every public name with its signature, its docstring, what it raises, and the version that it came with.

since.json, beside this file, records the versions: a name that has one keeps it, and a new name gets the package's present version.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zfabric
from zfabric.exceptions import FabricError

SINCE = Path(__file__).resolve().parent / "since.json"
"""The version that each public name came with."""

SECTIONS = {
    "Begin and end": ("zfabric", "init", "shutdown", "is_initialized", "LocalCluster"),
    "Tasks": ("zfabric", "remote", "RemoteFunction", "cancel"),
    "Values": ("zfabric", "get", "put", "wait", "as_completed", "progress", "ObjectRef"),
    "Streams": ("zfabric", "ObjectRefGenerator", "YieldStatistics", "DynamicObjectRefGenerator"),
    "Actors": ("zfabric", "ActorClass", "ActorHandle", "method", "typed", "get_actor", "kill", "exit_actor", "actor"),
    "What happens, and where": (
        "zfabric",
        "explain",
        "timeline",
        "nodes",
        "cluster_resources",
        "available_resources",
        "get_runtime_context",
        "get_gpu_ids",
        "__version__",
    ),
    "Executors, pools and queues": ("zfabric", "Executor"),
    "zfabric.util": (
        "zfabric.util",
        "ActorPool",
        "map_unordered",
        "call_all",
        "on_ready",
        "on_freed",
        "locate",
        "as_completed",
        "register_serializer",
        "deregister_serializer",
        "inspect_serializability",
        "list_named_actors",
        "get_node_ip_address",
        "log_once",
    ),
    "zfabric.util.kv": ("zfabric.util.kv", "put", "get", "exists", "delete", "list"),
    "zfabric.util.queue": ("zfabric.util.queue", "Queue", "Empty", "Full"),
    "zfabric.util.multiprocessing": (
        "zfabric.util.multiprocessing",
        "Pool",
        "AsyncResult",
        "IMapIterator",
        "JoinableQueue",
        "TimeoutError",
    ),
    "zfabric.util.metrics": ("zfabric.util.metrics", "Counter", "Gauge", "Histogram"),
    "zfabric.util.tracing": ("zfabric.util.tracing", "enable", "disable", "is_enabled"),
    "zfabric.util.dask": ("zfabric.util.dask", "get", "persist", "enable_dask_on_zfabric", "disable_dask_on_zfabric", "ray_dask_get"),
    "zfabric.util.joblib": ("zfabric.util.joblib", "register", "ZfabricBackend", "register_ray"),
    "Placement groups": (
        "zfabric.util.placement_group",
        "placement_group",
        "remove_placement_group",
        "placement_group_table",
        "get_placement_group",
        "get_current_placement_group",
        "PlacementGroup",
    ),
    "zfabric.util.scheduling_strategies": (
        "zfabric.util.scheduling_strategies",
        "NodeAffinitySchedulingStrategy",
        "NodeLabelSchedulingStrategy",
        "In",
        "NotIn",
        "Exists",
        "DoesNotExist",
        "PlacementGroupSchedulingStrategy",
    ),
}
"""The sections of the page: a title, the module of the names, and the names in order. Exceptions have a section of their own."""

RESULTS = {
    "get_runtime_context": ("zfabric.api.context", "RuntimeContext"),
    "explain": ("zfabric.api.explanations", "Explanation"),
    "Executor": ("zfabric.util.executor", "TaskFuture"),
    "LocalCluster": ("zfabric.util.local_cluster", "LocalNode"),
    "locate": ("zfabric.util.values", "ValueLocation"),
}
"""Classes that programs use and never name, behind the name that returns their instances."""

WIDTH = 100
"""Longer signatures have a line for each parameter."""

UNITS = {"timeout": "seconds", "memory": "bytes"}
"""Parts of the names of parameters that have a unit, and the word for it."""

INTERNAL = {
    "zfabric.ObjectRef.join",
    "zfabric.ObjectRef.travel",
    "zfabric.util.executor.TaskFuture.cancel_unless",
    "zfabric.util.executor.TaskFuture.set_running",
    "zfabric.util.multiprocessing.IMapIterator.start_all",
}
"""Methods without an underscore that only the fabric calls."""

PLUGGED_IN = {"zfabric.util.joblib.ZfabricBackend"}
"""Classes whose methods another library calls, and documents."""


class Entry(NamedTuple):
    """One public name: its full name, what it is, and the docstring that describes its parameters."""

    name: str
    thing: Any
    depth: int

    @property
    def text(self) -> str:
        """Its docstring, or where it is from if it is not of this package."""
        if isinstance(self.thing, str):
            return f'The version of this package: "{zfabric.__version__}".'
        if not self.is_own:
            return f"``{self.name.removeprefix('zfabric.util.')}`` of the standard library."
        return inspect.getdoc(self.thing) or ""

    @property
    def is_own(self) -> bool:
        """Whether this package defines it."""
        return isinstance(self.thing, property) or getattr(self.thing, "__module__", self.thing.__name__).startswith("zfabric")

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """Its parameters; none for names that are not called. Those that only the fabric passes are left out."""
        named = (self.signature or inspect.Signature()).parameters.values()
        return [each for each in named if each.name not in ("self", "client") and not each.name.startswith("_")]

    @property
    def signature(self) -> inspect.Signature | None:
        """Its signature, as the source writes it; None for what programs do not call."""
        made_elsewhere = isinstance(self.thing, type) and "Made by ``" in self.text
        if isinstance(self.thing, property) or not callable(self.thing) or made_elsewhere or self.is_result or not self.is_own:
            return None
        try:
            return inspect.signature(self.thing)
        except ValueError:
            return None

    @property
    def is_result(self) -> bool:
        """Whether programs get it from another name, and never name it."""
        return any(self.name.endswith(f".{name}") and isinstance(self.thing, type) for _, name in RESULTS.values())


def page(markdown: Callable[[str], str], docs: str) -> str:
    """api.md, given what turns a docstring's paragraph into Markdown, and the way from the page's directory to that of docs."""
    since = versions()
    lines = [
        "# The public names\n",
        "Every public name with its signature, what it raises and the version that it came with. `zf` is `zfabric`. Times are in",
        "seconds and sizes in bytes where the text names no other unit. [Settings](configuration.md),",
        f"[commands]({docs}/cli.md) and [names of Ray]({docs}/migrating-from-ray.md) have pages of their own.\n",
    ]
    titles = [*SECTIONS, "Exceptions"]
    lines += [", ".join(f"[{title}](#{anchor(title)})" for title in titles) + ".\n"]
    for title in SECTIONS:
        lines += [f"## {title}\n"]
        if is_absent(title):
            lines += ["What this section needs is not installed here.\n"]
        for entry in entries(title):
            lines += described(entry, markdown, since[entry.name])
    lines += ["## Exceptions\n", *exceptions(markdown, since)]
    return "\n".join(lines).rstrip() + "\n"


def versions() -> dict[str, str]:
    """The version of each public name: the recorded one, and the present one for a name that is new."""
    found = json.loads(SINCE.read_text(encoding="utf-8")) if SINCE.exists() else {}
    recorded = {name: version for version, names in found.items() for name in names}
    absent = [SECTIONS[title][0] for title in SECTIONS if is_absent(title)]
    names = [entry.name for title in SECTIONS for entry in entries(title)]
    names += [name for name in recorded if any(name.startswith(f"{place}.") for place in absent)]
    return {name: recorded.get(name, zfabric.__version__) for name in [*names, *error_classes()]}


def record() -> str:
    """since.json as it should be: the names of each version, sorted."""
    found = versions()
    listed = {version: sorted(name for name in found if found[name] == version) for version in sorted(set(found.values()))}
    return json.dumps(listed, indent=1) + "\n"


def is_absent(title: str) -> bool:
    """Whether the extra that a section needs is not installed. CI has all of them."""
    try:
        importlib.import_module(SECTIONS[title][0])
    except ImportError as error:
        if os.environ.get("CI") == "true" or "pip install" not in str(error):
            raise
        return True
    return False


def entries(title: str) -> Iterator[Entry]:
    """The names of a section, each class followed by its public methods; none if an extra is not installed."""
    place, *names = SECTIONS[title]
    if is_absent(title):
        return
    module = importlib.import_module(place)
    for name in names:
        yield from with_methods(Entry(f"{place}.{name}", getattr(module, name), 3))
        if place == "zfabric" and name in RESULTS:
            there, kind = RESULTS[name]
            yield from with_methods(Entry(f"{there}.{kind}", getattr(importlib.import_module(there), kind), 3))


def with_methods(entry: Entry) -> Iterator[Entry]:
    """A name, and if it is a class, the methods that this package defines."""
    yield entry
    if isinstance(entry.thing, type) and not issubclass(entry.thing, BaseException) and entry.name not in PLUGGED_IN:
        own = [each for each in entry.thing.__mro__ if each.__module__.startswith("zfabric")]
        names = dict.fromkeys(name for each in own for name in vars(each) if not name.startswith("_"))
        for name in names:
            thing = inspect.getattr_static(entry.thing, name)
            if f"{entry.name}.{name}" not in INTERNAL and (isinstance(thing, property) or callable(getattr(entry.thing, name))):
                found = thing if isinstance(thing, property) else getattr(entry.thing, name)
                if inspect.getdoc(found):
                    yield Entry(f"{entry.name}.{name}", found, 4)


def described(entry: Entry, markdown: Callable[[str], str], since: str) -> list[str]:
    """The lines of one name."""
    lines = [f"{'#' * entry.depth} {entry.name}\n"]
    signature = entry.signature
    if signature is not None:
        lines += [f"```python\n{entry.name.rpartition('.')[2]}{spelled(signature, entry.parameters)}\n```\n"]
    lines += [f"{block(each, markdown)}\n" for each in re.split(r"\n\s*\n", entry.text) if each.strip()]
    return [*lines, f"Since {since}.\n"]


class _Annotation(str):
    """A type as its author wrote it, which a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def spelled(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> str:
    """A signature in one line, or in a line for each parameter."""
    shown = [each.replace(annotation=_Annotation(each.annotation)) for each in parameters if isinstance(each.annotation, str)]
    returned = _Annotation(signature.return_annotation) if isinstance(signature.return_annotation, str) else "None"
    line = str(inspect.Signature(shown)) + f" -> {returned}"
    if len(line) <= WIDTH:
        return line
    pieces: list[str] = []
    before = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for parameter in shown:
        if parameter.kind == parameter.KEYWORD_ONLY and before not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            pieces.append("*")
        if before == parameter.POSITIONAL_ONLY != parameter.kind:
            pieces.append("/")
        before = parameter.kind
        pieces.append(str(parameter))
    return "(\n    " + ",\n    ".join(pieces) + f",\n) -> {returned}"


def block(text: str, markdown: Callable[[str], str]) -> str:
    """One paragraph of a docstring: an example, a list, or prose."""
    if text.startswith(">>> "):
        return f"```python\n{text}\n```"
    if text.startswith("- "):
        items = re.split(r"\n(?=- )", text)
        return "\n".join(f"- {linked(markdown(' '.join(item[2:].split())))}" for item in items)
    head, found, rest = text.partition(":\n- ")
    if found:
        return f"{markdown(head)}:\n\n{block('- ' + rest, markdown)}"
    return linked(markdown(text))


def linked(text: str) -> str:
    """Text with a link at each exception of this package that it names, unless it is code."""
    found = r"(?<![`\w.\[])([A-Z]\w*(?:Error|Exception|Unschedulable))\b(?!`)"
    return re.sub(found, lambda name: f"[{name[1]}](#{name[1].lower()})" if hasattr(zfabric, name[1]) else name[1], text)


def exceptions(markdown: Callable[[str], str], since: dict[str, str]) -> list[str]:
    """The table of exceptions: each below its base, with the built-in classes that it also is."""
    lines = [
        "All are instances of `FabricError`. A name of Ray is another name of the same class.\n",
        "| exception | is also | means | since |",
        "|---|---|---|---|",
    ]
    found = error_classes()

    def place(name: str) -> tuple[list[str], bool]:
        """Below the base, and a name of Ray behind the class."""
        return [each.__name__ for each in reversed(found[name].__mro__) if issubclass(each, FabricError)], name != found[name].__name__

    for name in sorted(found, key=place):
        kind = found[name]
        if name != kind.__name__:
            bases, text = "", f"Ray's name of `{kind.__name__}`."
        else:
            others = [each for each in kind.__mro__[1:] if each not in (Exception, BaseException, object)]
            others = [each for each in others if not any(issubclass(other, each) for other in others if other is not each)]
            bases, text = ", ".join(f"`{each.__name__}`" for each in others), markdown(" ".join((inspect.getdoc(kind) or "").split()))
        lines.append(f'| <a id="{name.lower()}"></a>`{name}` | {bases} | {text} | {since[name]} |')
    return lines


def error_classes() -> dict[str, type[Exception]]:
    """The public exceptions, by name."""
    named = {name: getattr(zfabric, name) for name in zfabric.__all__}
    return {name: kind for name, kind in named.items() if isinstance(kind, type) and issubclass(kind, Exception)}


def anchor(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def unexplained() -> dict[str, list[str]]:
    """Parameters that a docstring does not name, nor one that it refers to; times and sizes without their unit."""
    return {entry.name: found for title in SECTIONS for entry in entries(title) if (found := list(_unexplained(entry, [*entries(title)])))}


def _unexplained(entry: Entry, others: list[Entry]) -> Iterator[str]:
    prose = entry.text
    referred = set(re.findall(r"``(\w+)", prose))
    prose += "".join(each.text for each in others if each.name.rpartition(".")[2] in referred and each.depth == entry.depth)
    for parameter in entry.parameters:
        name = parameter.name
        if name not in ("args", "kwargs") and not re.search(rf"``[^`]*\b{name}\b[^`]*``", prose):
            yield name
        unit = next((unit for part, unit in UNITS.items() if part in name), "")
        if unit and unit not in prose:
            yield f"{name}, in {unit}"


def unplaced() -> set[str]:
    """Public names that no section has."""
    there = {f"{place}.{name}" for place, *names in SECTIONS.values() for name in names}
    there |= {f"zfabric.util.{name}" for name in SECTIONS["Placement groups"][1:]}
    everything = {f"zfabric.{name}" for name in zfabric.__all__}
    everything |= {f"zfabric.util.{name}" for name in importlib.import_module("zfabric.util").__all__}
    errors = {each for each in everything if isinstance(found := getattr(zfabric, each[8:], None), type) and issubclass(found, FabricError)}
    return everything - there - errors
