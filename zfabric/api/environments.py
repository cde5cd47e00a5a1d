"""Environments of tasks: ``runtime_env``, validated here. Its local paths are sent to nodes when it is first used (``api.packages``)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from zfabric.api.errors import near
from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import (
    PACKAGE_SCHEME,
    RUNTIME_ENV_VARIABLE,
    VARIABLE_BYTES_MAX,
    VARIABLES_BYTES_MAX,
    Environment,
)


class RuntimeEnv(NamedTuple):
    """A validated ``runtime_env``."""

    variables: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    """The working directory: a local path, or a package that was sent. Empty: that of the program, where a node has it."""
    modules: tuple[str, ...] = ()
    """What is put on ``sys.path``, likewise."""
    excludes: tuple[str, ...] = ()
    """Patterns of files that are not sent."""


NO_RUNTIME_ENV = RuntimeEnv()


def inherited(runtime_env: Mapping[str, Any], parent: RuntimeEnv) -> RuntimeEnv:
    """Return ``runtime_env``, validated, on top of ``parent``: variables are added, other fields replace the parent's."""
    own = environment_of(runtime_env)
    merged = tuple(sorted({**dict(parent.variables), **dict(own.variables)}.items()))
    return RuntimeEnv(merged, own.directory or parent.directory, own.modules or parent.modules, own.excludes)


def encoded(environment: RuntimeEnv) -> Environment:
    """Encode an environment for messages, with a variable that repeats all of it for what its tasks submit."""
    whole = json.dumps((environment.variables, environment.directory, environment.modules))
    passed_on = {**dict(environment.variables), RUNTIME_ENV_VARIABLE: whole}
    return tuple(sorted(passed_on.items())), environment.directory, environment.modules


def decoded(text: str) -> RuntimeEnv:
    """Return the environment that ``encoded`` repeats in its variable."""
    variables, directory, modules = json.loads(text)
    return RuntimeEnv(tuple((name, value) for name, value in variables), directory, tuple(modules))


_INSTALLED = ("pip", "uv", "conda", "container", "image_uri")
"""Fields of ``runtime_env`` that Ray installs or starts for a task."""
_UNUSED = ("config",)
"""Fields that configure how Ray builds environments."""
_KNOWN = ("env_vars", "working_dir", "py_modules", "excludes")


def environment_of(runtime_env: Any) -> RuntimeEnv:
    """Validate ``runtime_env``. Raises OptionError if a path does not exist."""
    if not isinstance(runtime_env, Mapping):
        raise OptionTypeError(f"runtime_env is a dict, not {runtime_env!r}")
    for name, value in runtime_env.items():
        if name in _INSTALLED and value:
            raise OptionError(
                f"runtime_env[{name!r}]: nothing is installed for tasks here, which run in the Python of the program that started the "
                f"cluster; install it there. There are {', '.join(_KNOWN)}"
            )
        if name not in _KNOWN and name not in _UNUSED and value:
            raise OptionError(f"runtime_env has no {name!r} here, only {', '.join(_KNOWN)}{near(name, _KNOWN)}")
    return RuntimeEnv(
        _variables(runtime_env.get("env_vars") or {}),
        _directory(runtime_env.get("working_dir")),
        _modules(runtime_env.get("py_modules") or []),
        _texts("excludes", "patterns of files", runtime_env.get("excludes") or []),
    )


def _variables(variables: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(variables, Mapping):
        raise OptionTypeError(f"runtime_env['env_vars'] is a dict of str to str, not {variables!r}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionTypeError(f"runtime_env['env_vars'] is a dict of str to str, not {name!r}: {value!r}")
        check_length("runtime_env['env_vars']: a variable with its value", f"{name}={value}", VARIABLE_BYTES_MAX)
        if not name or "=" in name or "\0" in name + value or not is_text(name + value):
            raise OptionError(f"runtime_env['env_vars'] cannot have {name!r}: {value!r}")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in variables.items())
    if size > VARIABLES_BYTES_MAX:
        raise OptionError(f"runtime_env['env_vars'] has at most {VARIABLES_BYTES_MAX:,} bytes in all, not {size:,}")
    return tuple(sorted(variables.items()))


def _texts(field: str, what: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) and is_text(value) for value in values):
        raise OptionTypeError(f"runtime_env[{field!r}] is a list of {what}, not {values!r}")
    return tuple(values)


def _directory(value: Any) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, (str, os.PathLike)):
        raise OptionTypeError(f"runtime_env['working_dir'] is the path of a directory, not {value!r}")
    path = _local("runtime_env['working_dir']", value)
    if not path.startswith(PACKAGE_SCHEME) and not os.path.isdir(path):
        raise OptionError(f"runtime_env['working_dir'] is not a directory: {path!r}")
    return path


def _modules(modules: Any) -> tuple[str, ...]:
    if isinstance(modules, (str, os.PathLike)) or not isinstance(modules, (list, tuple)):
        raise OptionTypeError(f"runtime_env['py_modules'] is a list of paths or modules, not {modules!r}")
    return tuple(dict.fromkeys(_module(module, f"runtime_env['py_modules'][{index}]") for index, module in enumerate(modules)))


def _module(module: Any, where: str) -> str:
    """The path of a module: of its file, of its package's directory, or of an archive."""
    if isinstance(module, type(os)):
        module = next(iter(getattr(module, "__path__", ())), None) or module.__file__
    if not isinstance(module, (str, os.PathLike)):
        raise OptionTypeError(f"{where} is a path or a module, not {module!r}")
    path = _local(where, module)
    if not path.startswith(PACKAGE_SCHEME) and not os.path.exists(path):
        raise OptionError(f"{where} does not exist: {path!r}")
    return path


def _local(where: str, value: Any) -> str:
    """An absolute path; what was sent already stays as it is."""
    text = str(os.fspath(value))
    path = text if text.startswith(PACKAGE_SCHEME) else os.path.abspath(os.path.expanduser(text))
    check_length(where, path)
    if not is_text(path):
        raise OptionError(f"{where} is text, and {path!r} is not (it has no UTF-8)")
    return path
