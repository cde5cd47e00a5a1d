"""Workers that begin with a virtual environment's interpreter.

A forked worker has the template's modules, which other versions could not replace. So the environment's maker executes its interpreter
(``become``), which reads an inherited descriptor (``main``).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import msgpack

from zfabric.adapters import processes, termination
from zfabric.adapters.cached_directories import CachedDirectory
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import worker_process
from zfabric.runtime.installed_packages import Requirements, put_on_path, python_of, site_of
from zfabric.runtime.session import Session, Specification

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from zfabric.runtime.fresh_worker import main; main()"


def requirements_of(environment: Iterable[tuple[str, str]]) -> Requirements | None:
    """The packages that a worker's environment asks for, or None."""
    whole = dict(environment).get(RUNTIME_ENV_VARIABLE)
    if whole is None:
        return None
    requirements: Requirements = json.loads(whole)[3]
    return requirements if requirements[0] else None


def become(specification: Specification, found: CachedDirectory, request: tuple[Any, ...]) -> NoReturn:
    """Go on as a worker with this environment, which stays while the worker lives."""
    token, job, environment, threads = request
    work = specification.worker, token, job, environment, threads
    content = (specification.directory, sys.path, site_of(found.path), *work, found.lock, termination.is_disregarded())
    descriptor = os.memfd_create("worker")  # Other users can read arguments and variables.
    with open(descriptor, "wb", closefd=False) as file:
        file.write(msgpack.packb(content, unicode_errors="surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    for inherited in (descriptor, found.lock):
        os.set_inheritable(inherited, True)
    python = python_of(found.path)
    given = {name: value for name, value in environment if name != RUNTIME_ENV_VARIABLE}
    variables = {"PATH": os.defpath, **os.environ, **given, "VIRTUAL_ENV": found.path}
    variables["PATH"] = f"{os.path.dirname(python)}:{variables['PATH']}"
    # Equal text has equal hashes in all such workers.
    variables.setdefault("PYTHONHASHSEED", str(int.from_bytes(hashlib.sha256(specification.directory.encode()).digest()[:4], "big")))
    os.execve(python, [python, "-P", "-c", _PROGRAM, _package_parent(), str(descriptor)], variables)


def _package_parent() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> NoReturn:
    """Run the worker that ``become`` described."""
    descriptor = int(sys.argv[2])
    del sys.argv[1:]  # Hidden from the worker's programs.

    def body() -> None:
        with open(descriptor, "rb") as file:
            content = msgpack.unpackb(file.read(), use_list=False, unicode_errors="surrogateescape")
        directory, paths, site, entry, token, job, environment, threads, lock, is_notice = content
        os.set_inheritable(lock, False)
        if is_notice:
            termination.disregard()
        worker_process.site = site
        sys.path[:] = put_on_path(site, paths)
        processes.set_name("zf-worker")
        worker_process.begin(environment, threads)
        worker_process.run(entry, Session(directory), token, job)

    processes.run_and_exit(body)
