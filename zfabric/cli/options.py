"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zfabric.config import Config, size_of
from zfabric.exceptions import ConfigError, FabricError

Function = TypeVar("Function", bound=Callable[..., Any])


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # Generic for type checkers alone.
    """A whole number within bounds; errors name the unit."""

    name = "number"

    def __init__(self, what: str, minimum: int, maximum: int | None = None) -> None:
        self.what = what
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail."""
        try:
            number = int(value)
        except ValueError:
            number = self.minimum - 1
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            bounds = f"{self.minimum:,} or more" if self.maximum is None else f"from {self.minimum:,} to {self.maximum:,}"
            self.fail(f"{value!r} is not a {self.what}: write a whole number, {bounds}", param, ctx)
        return number


class Seconds(click.ParamType):  # type: ignore[type-arg]  # As above.
    """A time in seconds, up to ``SECONDS_MAX``."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds <= SECONDS_MAX:  # Not a number is neither.
            self.fail(f"{value!r} is not a time in seconds: write a number from 0 to {SECONDS_MAX:,.0f}", param, ctx)
        return seconds


SECONDS_MAX = 1e7
"""Four months: what a timer of the system takes."""
PID = WholeNumber("pid of a process", 1)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    size = size_of(value)
    if size is None:
        raise click.BadParameter(f"{value!r} is not a size; write bytes, or a number with a unit such as 512MiB or 2GB", ctx, param)
    return size


def _resources(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, float] | None:
    if value is None:
        return None
    from zfabric.machines.common.resources import demand_of

    try:
        amounts = json.loads(value)
    except ValueError:
        amounts = None
    if not isinstance(amounts, dict):
        raise click.BadParameter(f"""{value!r} is not a JSON object; write for example '{{"tpu": 2}}'""", ctx, param)
    try:
        demand_of(None, None, amounts)
    except (FabricError, ValueError, TypeError) as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return amounts


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    settings = {}
    for value in values:
        name, equals, text = value.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", ctx, param)
        try:
            settings[name] = setting(name, text.strip())
            Config.of(settings)
        except ConfigError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return settings


def setting(name: str, text: str) -> Any:
    """Parse a setting's value. Raises ConfigError."""
    default = dict(Config().pairs()).get(name, "")
    if isinstance(default, bool):
        truth = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
        if text.lower() not in truth:
            raise ConfigError(f"config {name!r} is true or false, not {text!r}")
        return truth[text.lower()]
    if isinstance(default, int):
        size = size_of(text)
        if size is None:
            raise ConfigError(f"config {name!r} is a whole number (512MiB and the like will do), not {text!r}")
        return size
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"config {name!r} is a number, not {text!r}") from None
    if isinstance(default, tuple):
        return tuple(each.strip() for each in text.split(",") if each.strip())
    return text


def cluster_options(function: Function) -> Function:
    """Add a new cluster's options."""
    for decorate in (
        click.option(
            "--config", callback=_settings, multiple=True, metavar="NAME=VALUE", help="A setting of zfabric.config; may be repeated."
        ),
        click.option(
            "--object-store-memory",
            callback=_size,
            metavar="SIZE",
            help="Shared memory for values, such as 2GiB; by default 30% of the memory.",
        ),
        click.option(
            "--memory",
            callback=_size,
            metavar="SIZE",
            help="Memory that tasks may reserve, such as 8GiB; by default 70% of what there is beside the object store.",
        ),
        click.option("--resources", callback=_resources, metavar="JSON", help="""Further resources, such as '{"tpu": 2}'."""),
        click.option("--num-gpus", type=WholeNumber("number of GPUs", 0), metavar="N", help="GPUs; by default all of this machine."),
        click.option("--num-cpus", type=WholeNumber("number of CPUs", 0), metavar="N", help="CPUs; by default all of this machine."),
    ):
        function = decorate(function)
    return function


def address_option(function: Function) -> Function:
    """Add the option for the cluster to query."""
    text = 'The cluster: a session directory, tcp://HOST:PORT, or "auto" for the started one. [env: ZFABRIC_ADDRESS]'
    return click.option("--address", metavar="ADDRESS", help=text)(function)


def json_option(function: Function) -> Function:
    """Add the option for one JSON document instead of a table."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")(function)
