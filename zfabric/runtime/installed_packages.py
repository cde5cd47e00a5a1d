"""Virtual environments for ``runtime_env={"pip": ...}``, made once per node by a process of their own.

An environment also sees the node's packages, behind its own. Other workers wait for its maker, and share a failure's reason for
``RETRY_SECONDS``, so that many tasks do not each start pip.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from zfabric.adapters import processes
from zfabric.adapters.cached_directories import CachedDirectory, use
from zfabric.config import Config
from zfabric.exceptions import RuntimeEnvSetupError
from zfabric.runtime.logs import tail

RETRY_SECONDS = 10.0
SITE_DIRECTORIES = ("site-packages", "dist-packages")

Requirements = tuple[Sequence[str], Sequence[str], bool]
"""(lines of a requirements file, options of ``pip install``, whether ``pip check`` must succeed)."""


def environment_with(requirements: Requirements, variables: Mapping[str, str], root: str, config: Config) -> CachedDirectory:
    """Find or make the environment with these requirements below ``root``. ``variables`` may configure pip (``PIP_…``).

    Raises RuntimeEnvSetupError with pip's last lines.
    """
    began = time.monotonic()
    of_pip = sorted((name, value) for name, value in variables.items() if name.startswith("PIP_"))
    content = json.dumps([requirements, of_pip, sys.version, sys.executable])
    name = f"pip-{hashlib.sha256(content.encode()).hexdigest()[:32]}"

    def make(path: str) -> None:
        failure = f"{root}/{name}/failure"
        if os.path.exists(failure):
            with open(failure) as file:
                failed, text = json.load(file)
            if failed >= began - RETRY_SECONDS:
                raise RuntimeEnvSetupError(text)
        try:
            _install(path, requirements, dict(of_pip), config.environment_seconds)
        except RuntimeEnvSetupError as error:
            with open(failure, "w") as file:
                json.dump((time.monotonic(), str(error)), file)
            raise

    try:
        return use(root, name, make, config.environments_bytes)
    except OSError as error:
        raise RuntimeEnvSetupError(f"the environment for runtime_env['pip'] cannot be made in {root}: {error}") from None


def python_of(directory: str) -> str:
    """An environment's interpreter."""
    return f"{directory}/bin/python"


def site_of(directory: str) -> str:
    """An environment's packages."""
    return f"{directory}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def put_on_path(site: str, paths: Sequence[str]) -> list[str]:
    """Put ``site`` before all other packages of ``paths``."""
    others = [path for path in paths if path != site]
    first = next((index for index, path in enumerate(others) if is_site(path)), len(others))
    return [*others[:first], site, *others[first:]]


def is_site(path: str) -> bool:
    """Whether packages are installed in this directory."""
    return os.path.basename(path) in SITE_DIRECTORIES


def _install(directory: str, requirements: Requirements, variables: Mapping[str, str], seconds: float) -> None:
    lines, options, check = requirements
    log = f"{os.path.dirname(directory)}/pip.log"
    run = partial(_run, log=log, directory=directory, variables=variables, until=time.monotonic() + seconds)
    run([sys.executable, "-I", "-m", "venv", "--without-pip", directory], "the virtual environment cannot be made")
    with open(f"{site_of(directory)}/zfabric_node.pth", "w") as file:
        for path in dict.fromkeys(filter(is_site, sys.path)):
            file.write(f"import site; site.addsitedir({path!r})\n")
    wanted = f"{directory}/requirements.txt"
    with open(wanted, "w") as file:
        file.write("".join(f"{line}\n" for line in lines))
    python = python_of(directory)
    if importlib.util.find_spec("pip") is None:
        run([python, "-m", "ensurepip"], f"there is no pip for {sys.executable} on this node, and ensurepip cannot install one")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run([*pip, "install", "-r", wanted, *options], f"pip cannot install {', '.join(lines)[:200]}")
    if check:
        run([*pip, "check"], "pip check has found packages that do not fit together")


def _run(command: Sequence[str], failure: str, *, log: str, directory: str, variables: Mapping[str, str], until: float) -> None:
    """Run a command, its output in ``log``. Raises RuntimeEnvSetupError if it fails, or has not ended by ``until``."""
    import subprocess

    own = os.getpid()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: processes.die_with_parent(own),
        )
        try:
            status = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)  # Its children end with the process group.
            process.wait()
            raise RuntimeEnvSetupError(f"{failure}: it took too long (config 'environment_seconds'):\n{tail(log)}") from None
    if status:
        raise RuntimeEnvSetupError(f"{failure}:\n{tail(log)}")
