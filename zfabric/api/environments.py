"""Environments of tasks, ``runtime_env``: validated, and their local paths sent to the cluster.

Each path is packed and stored once in a program, when it is first used. The archive is a value in the object store, which every node with
a task of that environment fetches once. The program retains it. Calls name it as a ref inside their arguments (``contains``), so that it
can be fetched wherever they run.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from zfabric.adapters.serialization import serialize
from zfabric.api.errors import near
from zfabric.exceptions import OptionError, OptionTypeError, RuntimeEnvSetupError
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import (
    NO_ENVIRONMENT,
    PACKAGE_SCHEME,
    RUNTIME_ENV_VARIABLE,
    VARIABLE_BYTES_MAX,
    VARIABLES_BYTES_MAX,
    Environment,
    option,
)
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface


class RuntimeEnv(NamedTuple):
    """A validated ``runtime_env``."""

    variables: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    """The working directory: a local path, or a sent package. Empty: the program's, where a node has it."""
    modules: tuple[str, ...] = ()
    """Entries of ``sys.path``, likewise."""
    excludes: tuple[str, ...] = ()
    """Patterns of files that are not sent."""
    pip: tuple[tuple[str, ...], tuple[str, ...], bool] = ((), (), False)
    """What is installed: requirements, options of ``pip install``, and whether ``pip check`` must find nothing."""


NO_RUNTIME_ENV = RuntimeEnv()


def inherited(runtime_env: Mapping[str, Any], parent: RuntimeEnv) -> RuntimeEnv:
    """Return ``runtime_env``, validated, on top of ``parent``: variables are added, other fields replaced."""
    own = environment_of(runtime_env)
    merged = tuple(sorted({**dict(parent.variables), **dict(own.variables)}.items()))
    return RuntimeEnv(
        merged, own.directory or parent.directory, own.modules or parent.modules, own.excludes, own.pip if own.pip[0] else parent.pip
    )


def encoded(environment: RuntimeEnv) -> Environment:
    """Encode an environment for messages, with a variable that repeats it for what its tasks submit."""
    whole = json.dumps((environment.variables, environment.directory, environment.modules, environment.pip))
    passed_on = {**dict(environment.variables), RUNTIME_ENV_VARIABLE: whole}
    return tuple(sorted(passed_on.items())), environment.directory, environment.modules


def pip_of(environment: RuntimeEnv) -> dict[str, Any]:
    """What is installed, in the form of ``runtime_env["pip"]``; empty if nothing is."""
    lines, options, check = environment.pip
    return {"packages": list(lines), "pip_install_options": list(options), "pip_check": check} if lines else {}


def decoded(text: str) -> RuntimeEnv:
    """Return the environment that ``encoded`` repeats in its variable."""
    variables, directory, modules, (lines, options, check) = json.loads(text)
    pip = tuple(lines), tuple(options), check
    return RuntimeEnv(tuple((name, value) for name, value in variables), directory, tuple(modules), pip=pip)


PIP_BYTES_MAX = 64 * 1024
"""Most bytes of all requirements: they travel with each function."""
REQUIREMENTS_BYTES_MAX = 16 * PIP_BYTES_MAX
"""Largest file of requirements, with its comments."""
_INSTALLED = ("uv", "conda", "container", "image_uri")
"""Fields of ``runtime_env`` that Ray installs or starts for a task."""
_UNUSED = ("config",)
_KNOWN = ("env_vars", "working_dir", "py_modules", "excludes", "pip")


def environment_of(runtime_env: Any) -> RuntimeEnv:
    """Validate ``runtime_env``. Raises OptionError if a path does not exist."""
    if not isinstance(runtime_env, Mapping):
        raise OptionTypeError(f"runtime_env is a dict, not {runtime_env!r}")
    for name, value in runtime_env.items():
        if name in _INSTALLED and value:
            raise OptionError(
                f"runtime_env[{name!r}]: what tasks need is installed by pip here, for the Python of the program that started the cluster; "
                f"there are {', '.join(_KNOWN)}"
            )
        if name not in _KNOWN and name not in _UNUSED and value:
            raise OptionError(f"runtime_env has no {name!r} here, only {', '.join(_KNOWN)}{near(name, _KNOWN)}")
    return RuntimeEnv(
        _variables(runtime_env.get("env_vars") or {}),
        _directory(runtime_env.get("working_dir")),
        _modules(runtime_env.get("py_modules") or []),
        _texts("excludes", "patterns of files", runtime_env.get("excludes") or []),
        _pip(runtime_env.get("pip") or []),
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


def _pip(value: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Validate requirements: a list, the path of a file, or a dict with these and options."""
    options: tuple[str, ...] = ()
    check: Any = False
    if isinstance(value, Mapping):
        known = ("packages", "pip_check", "pip_install_options")
        for name, each in value.items():
            if name not in known and each:
                raise OptionError(f"runtime_env['pip'] has no {name!r} here, only {', '.join(known)}{near(name, known)}")
        options = _texts("pip", "options in 'pip_install_options'", value.get("pip_install_options") or [])
        check = value.get("pip_check") or False
        value = value.get("packages") or []
        if not value:
            raise OptionError("runtime_env['pip'] names no packages")
    if not isinstance(check, bool):
        raise OptionTypeError(f"runtime_env['pip']: pip_check is True or False, not {check!r}")
    lines = _lines(value) if isinstance(value, (str, os.PathLike)) else _texts("pip", "requirements, or the path of a file", value)
    for line in (*lines, *options):
        if "\n" in line or "\0" in line or not line.strip():
            raise OptionError(f"runtime_env['pip'] has one requirement or option in each item, not {line!r}")
    for line in lines:
        if line.split()[0].split("=")[0] in ("-r", "--requirement", "-c", "--constraint"):
            raise OptionError(f"runtime_env['pip'] cannot have {line!r}: nodes do not have that file; put its lines in its place")
    size = sum(len(line.encode()) + 1 for line in (*lines, *options))
    if size > PIP_BYTES_MAX:
        raise OptionError(f"runtime_env['pip'] has at most {PIP_BYTES_MAX:,} bytes, not {size:,}")
    return lines, options if lines else (), check


def _lines(path: str | os.PathLike[str]) -> tuple[str, ...]:
    from zfabric.adapters.packages import read_regular  # Few programs need it, and zipfile with it.

    try:
        content, _ = read_regular(os.path.expanduser(os.fspath(path)), REQUIREMENTS_BYTES_MAX)
        lines = content.decode("utf-8-sig").replace("\\\n", " ").replace("\\\r\n", " ").splitlines()
    except (OSError, ValueError, RuntimeEnvSetupError) as error:
        raise OptionError(f"runtime_env['pip'] names a file of requirements that cannot be read: {error}") from None
    return tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _directory(value: Any) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, (str, os.PathLike)):
        raise OptionTypeError(f"runtime_env['working_dir'] is the path of a directory, not {value!r}")
    path = _local("runtime_env['working_dir']", value)
    if "://" in str(value) and not path.startswith(PACKAGE_SCHEME):
        raise OptionError(f"runtime_env['working_dir'] is a directory of this machine, not an address: {value!r}; download it first")
    if not path.startswith(PACKAGE_SCHEME) and not os.path.isdir(path):
        raise OptionError(f"runtime_env['working_dir'] is not a directory: {path!r}")
    return path


def _modules(modules: Any) -> tuple[str, ...]:
    if isinstance(modules, (str, os.PathLike)) or not isinstance(modules, (list, tuple)):
        raise OptionTypeError(f"runtime_env['py_modules'] is a list of paths or modules, not {modules!r}")
    return tuple(dict.fromkeys(_module(module, f"runtime_env['py_modules'][{index}]") for index, module in enumerate(modules)))


def _module(module: Any, where: str) -> str:
    """The path of a module: its file, its package's directory, or an archive."""
    if isinstance(module, type(os)):
        module = next(iter(getattr(module, "__path__", ())), None) or module.__file__
    if not isinstance(module, (str, os.PathLike)):
        raise OptionTypeError(f"{where} is a path or a module, not {module!r}")
    path = _local(where, module)
    if not path.startswith(PACKAGE_SCHEME) and not os.path.exists(path):
        raise OptionError(f"{where} does not exist: {path!r}")
    return path


def _local(where: str, value: Any) -> str:
    """An absolute path; what was already sent stays as it is."""
    text = str(os.fspath(value))
    path = text if text.startswith(PACKAGE_SCHEME) else os.path.abspath(os.path.expanduser(text))
    check_length(where, path)
    if not is_text(path):
        raise OptionError(f"{where} is text, and {path!r} is not (it has no UTF-8)")
    return path


class _Sent:
    """What this program has sent to a cluster: URIs by path, patterns left out, and whether it is a module."""

    def __init__(self, client: ClientInterface) -> None:
        self.client = client
        self.uris: dict[tuple[str, tuple[str, ...], bool], str] = {}
        self.objects: dict[str, bytes] = {}
        """Object ids by hash."""


_lock = threading.Lock()
_sent: _Sent | None = None


def sent(environment: RuntimeEnv) -> RuntimeEnv:
    """Return an environment with its local paths replaced by what was sent. Raises RuntimeEnvSetupError if something cannot be sent."""
    if not environment.directory and not environment.modules:
        return environment
    excludes = environment.excludes
    directory = environment.directory and _uri(environment.directory, excludes, False)
    return environment._replace(directory=directory, modules=tuple(_uri(path, excludes, True) for path in environment.modules), excludes=())


def _uri(path: str, excludes: tuple[str, ...], is_module: bool) -> str:
    global _sent
    if path.startswith(PACKAGE_SCHEME):
        return path
    client = interface.current()
    if client is None:
        raise OptionError(f"{path!r} cannot be sent before there is a cluster; call zf.init()")
    with _lock:
        if _sent is None or _sent.client is not client:
            _sent = _Sent(client)
        key = path, excludes, is_module
        if key not in _sent.uris:
            from zfabric.adapters.packages import pack  # Only programs that send something need zipfile.

            package = pack(path, client.config.package_bytes, excludes, is_module)
            if package.digest not in _sent.objects:
                _sent.objects[package.digest] = client.put(serialize(package.archive), False)
            _sent.uris[key] = f"{PACKAGE_SCHEME}{_sent.objects[package.digest].hex()}/{package.digest}/{package.entry}"
        return _sent.uris[key]


def _packages_in(environment: Environment) -> tuple[bytes, ...]:
    _, directory, paths = environment
    return tuple(dict.fromkeys(_object_of(path) for path in (directory, *paths) if path.startswith(PACKAGE_SCHEME)))


def _object_of(uri: str) -> bytes:
    return bytes.fromhex(uri.removeprefix(PACKAGE_SCHEME).partition("/")[0])


def packages_of(options: tuple[tuple[str, Any], ...]) -> tuple[bytes, ...]:
    """Ids of the archives that the environment in encoded options names."""
    return _packages_in(option(options, "env", NO_ENVIRONMENT))
