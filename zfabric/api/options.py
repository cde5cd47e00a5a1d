"""Options of remote functions, classes and methods: validated here, and encoded for messages (``protocol.options``).

Ray options that do not change what a program computes are accepted without effect:

- ``object_store_memory``: a node has one store for all its tasks, and writes to disk what does not fit;
- ``max_calls``, with a warning: workers do not exit after a number of calls;
- ``allow_out_of_order_execution``: calls of one caller begin in order; in actors that run several at once, no call waits for another's
  arguments;
- ``enable_task_events``, ``_metadata`` and ``_labels``.

Options for unsupported features, and Ray's deprecated ones for placement groups (now ``scheduling_strategy``), raise OptionError unless
empty.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from typing import Any

from zfabric.api.environments import NO_RUNTIME_ENV, RuntimeEnv, encoded, environment_of, inherited, sent
from zfabric.api.errors import near
from zfabric.api.strategies import check_selector, check_strategy, strategy_of
from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.machines.common.resources import amount_of, demand_of, named_demand
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import ONE_CPU, STORE_MEMORY, Demand

Pairs = tuple[tuple[str, Any], ...]

RETURNS_MAX = 100_000
"""Largest ``num_returns``: each value is an object."""
CONCURRENCY_MAX = 1_000_000
"""Most calls that an actor runs at once. Threads and coroutines are made on demand."""


BUFFERED_MAX = 10_000
"""Largest ``max_buffered``: the worker retains these values, and the consumer requests them."""


def _whole(name: str, least: int, most: int) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionTypeError(f"{name} is an int, not {value!r}")
        if not least <= value <= most:
            raise OptionError(f"{name} is from {least} to {most}, not {value!r}")

    return check


def _num_returns(value: Any) -> None:
    if value in ("dynamic", "streaming"):
        return
    if isinstance(value, str):
        raise OptionTypeError(f'num_returns is an int, "streaming" or "dynamic", not {value!r}')
    _whole("num_returns", 0, RETURNS_MAX)(value)


def _retry_exceptions(value: Any) -> None:
    if isinstance(value, bool):
        return
    if not isinstance(value, (list, tuple)) or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in value):
        raise OptionTypeError(f"retry_exceptions is True, False or a list of exception classes, not {value!r}")


def _max_calls(value: Any) -> None:
    _whole("max_calls", 0, 2**31)(value)
    if value:
        text = (
            f"max_calls={value} has no effect: a worker goes on after any number of calls. What a library does not give back leaves with a "
            "process of its own: run it in an actor that you end, or with num_gpus (such a process ends with its tasks)."
        )
        warnings.warn(text, RuntimeWarning, stacklevel=4)


TIMEOUT_MAX = 10**9
"""Longest timeout of a call, in seconds: far below a message's largest integer."""


def _seconds(what: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        seconds: Any = value  # An int may be larger than any float.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise OptionTypeError(f"{what} is a number of seconds above 0, not {value!r}")
        if not seconds > 0:
            raise OptionError(f"{what} is a number of seconds above 0, not {value!r}")
        if TIMEOUT_MAX < seconds < math.inf:
            raise OptionError(f"{what} is at most {TIMEOUT_MAX} seconds, not {value!r}; leave it out for no limit")

    return check


def _name_of(what: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not isinstance(value, str) or not value:
            raise OptionTypeError(f"{what} is a non-empty str, not {value!r}")
        _check_text(what, value)

    return check


def _check_text(what: str, value: str) -> None:
    check_length(what, value)
    if not is_text(value):
        raise OptionError(f"{what} is text, and {value!r} is not (it has no UTF-8)")


def _lifetime(value: Any) -> None:
    if value not in ("detached", "non_detached"):
        raise (OptionError if isinstance(value, str) else OptionTypeError)(f"lifetime is 'detached' or 'non_detached', not {value!r}")


def _flag(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not isinstance(value, bool):
            raise OptionTypeError(f"{name} is True or False, not {value!r}")

    return check


def _nothing(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if value not in (-1, "default") and (value or value == 0):
            raise OptionError(f"{name}={value!r} is not supported: there is nothing here that could honour it")

    return check


def _no_transport(value: Any) -> None:
    if value and value != "object_store":
        raise OptionError("tensors travel through the object store alone: leave tensor_transport and enable_tensor_transport out")


def _demand(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        demand_of(**{name: value})

    return check


def _store_bytes(value: Any) -> None:
    amount_of(STORE_MEMORY, value)


def _runtime_env(value: Any) -> None:
    environment_of(value)


def _pending(value: Any) -> None:
    if value == 0 and not isinstance(value, bool):
        raise OptionError("max_pending_calls is at least 1, or -1 for no limit, not 0")
    _whole("max_pending_calls", -1, 2**31)(value)


def _groups(value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise OptionTypeError(f'concurrency_groups is a dict of how many calls may run, by group, such as {{"io": 2}}, not {value!r}')
    for name, size in value.items():
        _check_text("concurrency_groups: a name", name)
        _whole(f"concurrency_groups[{name!r}]", 1, CONCURRENCY_MAX)(size)


def _anything(value: Any) -> None:
    """Accept any value; the option has no effect."""


_CHECKS: dict[str, Callable[[Any], None]] = {
    "num_cpus": _demand("num_cpus"),
    "num_gpus": _demand("num_gpus"),
    "resources": _demand("resources"),
    "num_returns": _num_returns,
    "max_retries": _whole("max_retries", -1, 2**31),
    "retry_exceptions": _retry_exceptions,
    "max_buffered": _whole("max_buffered", 1, BUFFERED_MAX),
    "timeout": _seconds("timeout"),
    "run_timeout": _seconds("run_timeout"),
    "name": _name_of("name"),
    "runtime_env": _runtime_env,
    "max_concurrency": _whole("max_concurrency", 1, CONCURRENCY_MAX),
    "inline": _flag("inline"),
    "copy": _flag("copy"),
    "deterministic": _flag("deterministic"),
    "scheduling_strategy": check_strategy,
    "label_selector": check_selector,
    "memory": _demand("memory"),
    "accelerator_type": _name_of("accelerator_type"),
    "object_store_memory": _store_bytes,
    "max_calls": _max_calls,
    **dict.fromkeys(("enable_task_events", "_metadata", "_labels"), _anything),
    "_generator_backpressure_num_objects": _whole("_generator_backpressure_num_objects", -1, BUFFERED_MAX),
    **{
        name: _nothing(name)
        for name in (
            "fallback_strategy",
            "placement_group",
            "placement_group_bundle_index",
            "placement_group_capture_child_tasks",
        )
    },
}
_ACTORS_ONLY = {
    "max_restarts",
    "max_task_retries",
    "checkpoint_every",
    "concurrency_groups",
    "lifetime",
    "namespace",
    "get_if_exists",
}


_ACTOR_CHECKS: dict[str, Callable[[Any], None]] = {
    **{
        name: check
        for name, check in _CHECKS.items()
        if name
        not in ("num_returns", "max_buffered", "max_retries", "retry_exceptions", "timeout", "run_timeout", "inline", "deterministic")
    },
    "max_restarts": _whole("max_restarts", -1, 2**31),
    "max_task_retries": _whole("max_task_retries", -1, 2**31),
    "namespace": _name_of("namespace"),
    "get_if_exists": _flag("get_if_exists"),
    "lifetime": _lifetime,
    "concurrency_groups": _groups,
    "max_pending_calls": _pending,
    "checkpoint_every": _whole("checkpoint_every", 0, 2**31),
    "lightweight": _flag("lightweight"),
    "allow_out_of_order_execution": _anything,
    "enable_tensor_transport": _no_transport,
}
ACTOR_OPTIONS = frozenset(_ACTOR_CHECKS)
_METHOD_CHECKS: dict[str, Callable[[Any], None]] = {
    "num_returns": _num_returns,
    "max_buffered": _whole("max_buffered", 1, BUFFERED_MAX),
    "concurrency_group": _name_of("concurrency_group"),
    "readonly": _flag("readonly"),
    "copy": _flag("copy"),
    "timeout": _seconds("timeout"),
    "run_timeout": _seconds("run_timeout"),
    "name": _name_of("name"),
    "max_task_retries": _whole("max_task_retries", -1, 2**31),
    "retry_exceptions": _retry_exceptions,
    **dict.fromkeys(("enable_task_events", "_labels"), _anything),
    "_generator_backpressure_num_objects": _CHECKS["_generator_backpressure_num_objects"],
    "tensor_transport": _no_transport,
}


def _verify(
    options: Mapping[str, Any], checks: Mapping[str, Callable[[Any], None]], what: str, others: Collection[str] = (), whose: str = ""
) -> None:
    """Raise OptionError for an unknown option or an invalid value; ``others`` are options of another kind of target."""
    for name, value in options.items():
        check = checks.get(name)
        if check is None:
            if name in others:
                raise OptionError(f"{name!r} is an option of {whose}")
            raise OptionError(f"{what} has no option {name!r}{near(name, checks)}")
        if value is not None:
            check(value)


def checked_actor(options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate options of a remote class, as ``checked`` does."""
    _verify(options, _ACTOR_CHECKS, "a remote class", _CHECKS, "functions and methods, not of classes")
    return dict(options)


def checked_method(options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate options of a method, as ``checked`` does."""
    _verify(options, _METHOD_CHECKS, "a method", {*_CHECKS, *_ACTOR_CHECKS}, "functions or classes, not of methods")
    _buffered(options)
    return dict(options)


def pairs_of_method(options: Mapping[str, Any], base: Pairs = (), retries: int = 0) -> Pairs:
    """Encode checked options of a method for its calls, on top of ``base``. ``retries`` is the default of ``max_task_retries``, its
    class's.
    """
    found = dict(base)
    returns = options.get("num_returns")
    if returns is not None:
        for name in ("num_returns", "stream", "dynamic"):
            found.pop(name, None)
        if isinstance(returns, str):
            found.update({"stream": 0} if returns == "streaming" else {"dynamic": True})
        elif returns != 1:
            found["num_returns"] = returns
    buffered = options.get("max_buffered") or max(0, options.get("_generator_backpressure_num_objects") or 0)
    if options.get("max_buffered") and "stream" not in found:
        raise OptionError('max_buffered is for methods that yield, or num_returns="streaming": this one makes no stream')
    if "stream" in found and buffered:
        found["stream"] = buffered
    if options.get("max_task_retries") is not None:
        found["max_retries"] = options["max_task_retries"]
    if options.get("retry_exceptions") is not None:
        found.pop("retry_on", None)
        if kinds := _names_of(options["retry_exceptions"]):
            found["retry_on"] = kinds
    if "retry_on" in found:
        found.setdefault("max_retries", max(retries, -1))
    for name in ("timeout", "run_timeout"):
        if options.get(name) is not None:
            found[name] = float(options[name])
    if options.get("concurrency_group") is not None:
        found["concurrency_group"] = options["concurrency_group"]
    if options.get("copy") is not None:
        found.pop("copy", None)
        found.update(copying(options))
    return tuple(found.items())


def copying(options: Mapping[str, Any]) -> Pairs:
    """Encode for each call whether arguments arrive as writable copies. Functions have no such option, so that calls without options are
    prepared without looking for it.
    """
    return (("copy", True),) if options.get("copy") else ()


def _names_of(kinds: Any) -> tuple[str, ...]:
    """Encode exception classes by name, as the worker matches them: True is all, False none."""
    if isinstance(kinds, bool):
        kinds = (Exception,) if kinds else ()
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def group_in(group: Any, groups: Collection[str], whose: str) -> None:
    """Raise OptionError unless ``group`` is one of the concurrency groups."""
    if group is not None and group not in groups:
        known = f"it has {', '.join(groups)}{near(group, groups)}" if groups else f"declare it: concurrency_groups={{{group!r}: 2}}"
        raise OptionError(f"{whose} has no concurrency group {group!r}; {known}")


def check_lightweight(options: Mapping[str, Any], kind: type) -> None:
    """Raise OptionError if a lightweight actor cannot have one of these options, or be of that class."""
    name = kind.__qualname__
    if named_demand({**options, "num_cpus": options.get("num_cpus") or 0}):
        text = "holds no resources, since it shares its process: leave num_cpus, num_gpus, resources and memory out"
    elif (options.get("max_concurrency") or 1) > 1:
        text = "runs its calls one after the other, with those of the actors it shares a process with: leave max_concurrency out"
    elif _asyncs(kind):
        text = "has no methods that are async def, since it shares its process with others: make them plain methods"
    elif options.get("checkpoint_every") is not None or options.get("concurrency_groups"):
        text = "has neither checkpoints nor concurrency groups"
    else:
        return
    raise OptionError(f"{name}: a lightweight actor {text}, or make it an ordinary actor (lightweight=False)")


def pairs_of_actor(options: Mapping[str, Any], blueprint: bytes, default_env: RuntimeEnv = NO_RUNTIME_ENV) -> Pairs:
    """Encode checked options of a class without ``NAMING``, with the blueprint of its handles."""
    plain = {name: value for name, value in options.items() if name in _CHECKS and name not in NAMING}
    found: list[tuple[str, Any]] = [("actor", blueprint), ("inline", False), *pairs_of(plain, default_env, usual=())]
    if options.get("max_restarts") is not None:
        found.append(("max_restarts", options["max_restarts"]))
    if options.get("concurrency_groups"):
        found.append(("concurrency_groups", tuple(options["concurrency_groups"].items())))
    for name in ("lightweight", "farewell"):
        if options.get(name):
            found.append((name, True))
    restarts = options.get("max_restarts")
    found.append(("max_retries", 0 if restarts is None else restarts))
    if options.get("checkpoint_every") is not None:
        found += [("checkpoint_every", options["checkpoint_every"]), ("readonly", options["readonly"])]
        if options["unlogged"]:
            found.append(("unlogged", True))
    return tuple(found)


NAMING = frozenset({"name", "namespace", "lifetime", "get_if_exists"})
"""Options that identify one actor. Calls carry them, so that the class is exported once for all names."""


def naming(options: Mapping[str, Any]) -> Pairs:
    """Encode the ``NAMING`` options for the call that creates an actor."""
    pairs = [(name, options[name]) for name in ("name", "namespace") if options.get(name) is not None]
    return (*pairs, ("detached", True)) if options.get("lifetime") == "detached" else tuple(pairs)


def _asyncs(kind: type) -> list[str]:
    import inspect

    methods = ((each, inspect.getattr_static(kind, each, None)) for each in dir(kind))
    return [each for each, function in methods if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)]


def runs_several(kind: type, options: Mapping[str, Any]) -> bool:
    """Whether an actor runs several calls at once, which then have no order for a replay."""
    return bool(options.get("concurrency_groups")) or is_unordered(kind, options)


def is_unordered(kind: type, options: Mapping[str, Any]) -> bool:
    """Whether calls of one concurrency group run at the same time, so that their order has no meaning."""
    return (options.get("max_concurrency") or 1) > 1 or bool(_asyncs(kind))


def check_checkpoints(kind: type, options: Mapping[str, Any]) -> None:
    """Raise OptionError if an actor of this class cannot resume from checkpoints."""
    if options.get("checkpoint_every") is None:
        return
    name = kind.__qualname__
    if not options.get("max_restarts"):
        raise OptionError(f"{name} has checkpoint_every={options['checkpoint_every']}, and nothing to restart: set max_restarts, too")
    saved = next((each for each in _asyncs(kind) if each in ("__zf_save__", "__zf_load__")), "")
    if saved:
        raise OptionError(f"{name}.{saved} is 'async def': a checkpoint is taken and loaded at one moment, while no coroutine runs")
    if not options["checkpoint_every"] and runs_several(kind, options):
        raise OptionError(
            f"{name} has checkpoint_every=0, which is a log without checkpoints, and runs several calls at once, which have no order to "
            "replay them in: say after how many calls it is to have a checkpoint"
        )
    if hasattr(kind, "__zf_save__") != hasattr(kind, "__zf_load__"):
        raise OptionError(f"{name} has one of __zf_save__ and __zf_load__: a checkpoint needs both, or neither")


def check_streams(name: str, logged: bool, readonly: bool, pairs: Pairs) -> None:
    """Raise OptionError if a method of a logged actor makes a stream that a replay could not repeat."""
    if logged and not readonly and any(key == "stream" for key, _ in pairs):
        raise OptionError(
            f"{name} makes a stream, and its actor's calls are logged: mark it @zf.method(readonly=True), if it changes nothing"
        )


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate ``options``; None means not set. Raises OptionError with advice."""
    _verify(options, _CHECKS, "a remote function", _ACTORS_ONLY, "actors, not of functions")
    _buffered(options)
    return dict(options)


def _buffered(options: Mapping[str, Any]) -> None:
    if options.get("max_buffered") is not None and options.get("num_returns", "streaming") != "streaming":
        raise OptionError('max_buffered is for num_returns="streaming": it says how far a stream may be ahead of its consumer')


def mode_of(options: Mapping[str, Any]) -> str:
    """The kind of a call's result: "streaming", "dynamic", or empty for a number of values."""
    returns = options.get("num_returns")
    return returns if isinstance(returns, str) else ""


def pairs_of(options: Mapping[str, Any], default_env: RuntimeEnv = NO_RUNTIME_ENV, usual: Demand = ONE_CPU) -> Pairs:
    """Encode the set, checked options. A ``runtime_env`` extends ``default_env``; ``usual`` is the demand without options."""

    def value(name: str) -> Any:
        return options.get(name)

    found: list[tuple[str, Any]] = []
    demand = named_demand(options, usual)
    if demand is not None:
        found.append(("demand", demand))
    if value("retry_exceptions"):
        found.append(("retry_errors", True))
    if mode_of(options) == "streaming":
        # Never run on top of a blocked task: it may be the consumer.
        buffered = value("max_buffered") or max(0, value("_generator_backpressure_num_objects") or 0)
        found += [("stream", buffered), ("inline", False)]
    elif not mode_of(options) and value("num_returns") is not None:
        found.append(("num_returns", value("num_returns")))
    for name in ("max_retries", "timeout", "run_timeout", "name", "inline", "deterministic", "max_concurrency"):
        if value(name) is not None and (name, False) not in found:
            found.append((name, float(value(name)) if name in ("timeout", "run_timeout") else value(name)))
    strategy = strategy_of(options)
    if strategy is not None:
        found.append(("strategy", strategy))
    environment = sent(inherited(value("runtime_env") or {}, default_env))
    if environment != NO_RUNTIME_ENV:
        found.append(("env", encoded(environment)))
    return tuple(found)


def difference(base: Pairs, wanted: Pairs) -> Pairs:
    """The pairs of ``wanted`` that ``base`` lacks. (A call cannot remove options: a function with fewer is exported again.)"""
    return tuple(pair for pair in wanted if pair not in base)
