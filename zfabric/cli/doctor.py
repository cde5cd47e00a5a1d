"""``zfabric doctor``: checks whether this machine can run zfabric, with advice.

A check yields findings; an error in a check is a problem, too. So each check imports what it examines.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from zfabric.cli.options import json_option
from zfabric.cli.output import echo, print_json
from zfabric.cli.sessions import about
from zfabric.exceptions import FabricError
from zfabric.protocol.names import size

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""A note concerns speed, or informs; a problem prevents something."""
COLOURS = {OK: "green", NOTE: "yellow", PROBLEM: "red"}

MiB = 2**20
MEMORY_MIN = 512 * MiB
DISK_MIN = 256 * MiB
FILES_MIN = 1024
"""Each worker and peer takes a few."""
PROCESSES_MIN = 256
TRY_SECONDS = 30.0


class Finding(NamedTuple):
    """A check's finding; ``advice`` is empty if nothing is needed."""

    check: str
    level: str
    text: str
    advice: str = ""


@click.command(short_help="Check this machine, and advise on problems.")
@json_option
@click.option("--no-try", is_flag=True, help="Do not test a small cluster.")
def doctor(as_json: bool, no_try: bool) -> int:
    """Check this machine: Python, libraries, memory, limits, session directory, clusters that run or were left behind. Then start
    a small cluster and run a task on it.

    Exits with 1 if there is a problem.
    """
    findings = [finding for check in CHECKS for finding in _findings(check)]
    if not no_try and all(finding.level != PROBLEM for finding in findings):
        findings += _findings(try_it)
    problems = sum(finding.level == PROBLEM for finding in findings)
    if as_json:
        print_json({"ok": not problems, "findings": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            echo(f"{finding.check:<11} ", nl=False)
            echo(f"{finding.level:<8}", nl=False, fg=COLOURS[finding.level], bold=finding.level == PROBLEM)
            echo(f" {finding.text}")
            for line in finding.advice.splitlines():
                echo(f"{'':<20} {line}")
        echo("\n" + (f"{problems} problem{'s' if problems > 1 else ''}." if problems else "This machine is fit."))
    return 1 if problems else 0


def _findings(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as error:  # A failed check is a finding, and the others still run.
        name = check.__name__.replace("_", " ").strip()
        found.append(Finding(name, PROBLEM, f"could not be checked: {type(error).__name__}: {error}"))
    return found


# -- the checks --


def python() -> Iterator[Finding]:
    """Check the interpreter and the system."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, f"{version} at {sys.executable}")
    system = os.uname()
    if system.sysname != "Linux":
        yield Finding("system", PROBLEM, system.sysname, "zfabric runs on Linux: it needs pidfds, memfds and PR_SET_PDEATHSIG")
        return
    os.close(os.pidfd_open(os.getpid()))
    os.close(os.memfd_create("zfabric-doctor"))
    yield Finding("system", OK, f"Linux {system.release}, {system.machine}, {os.cpu_count()} CPUs")


def libraries() -> Iterator[Finding]:
    """Compare zfabric's declared dependencies with the installed versions."""
    from importlib.metadata import PackageNotFoundError, requires, version

    found = []
    for requirement in requires("zfabric") or ():
        parsed = re.match(r"([\w.-]+)\s*(?:\(?([^;)]*)\)?)?\s*(;.*)?$", requirement)
        if parsed is None or "extra" in (parsed[3] or ""):
            continue
        name = parsed[1]
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Finding("libraries", PROBLEM, f"{name} is not installed", f"pip install '{requirement}'")
            continue
        wrong = [bound for bound in (parsed[2] or "").split(",") if not satisfies(installed, bound.strip())]
        if wrong:
            yield Finding("libraries", PROBLEM, f"{name} {installed} is not {', '.join(wrong)}", f"pip install '{requirement}'")
        found.append(f"{name} {installed}")
    yield Finding("libraries", OK, ", ".join(found))


def satisfies(version: str, bound: str) -> bool:
    """Whether a version is within ``>=…`` or ``<…``; pip checks other forms."""
    parsed = re.fullmatch(r"(>=|<)\s*([\d.]+)", bound)
    if parsed is None:
        return True
    have, want = (tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3]) for text in (version, parsed[2]))
    width = max(len(have), len(want))
    have, want = (each + (0,) * (width - len(each)) for each in (have, want))
    return have >= want if parsed[1] == ">=" else have < want


def zeromq() -> Iterator[Finding]:
    """Check the transport."""
    import zmq

    if not zmq.has("ipc"):
        yield Finding(
            "zeromq",
            PROBLEM,
            f"libzmq {zmq.zmq_version()} without ipc",
            "install pyzmq from its wheel: pip install --force-reinstall pyzmq",
        )
    else:
        curve = "with" if zmq.has("curve") else "without"
        yield Finding("zeromq", OK, f"libzmq {zmq.zmq_version()}, ipc, {curve} CURVE")


def lmdb_format() -> Iterator[Finding]:
    """Check LMDB's version: the file format changed between 0.9 and 1.0."""
    import lmdb

    from zfabric.adapters.journal import LMDB_MAJOR

    version = lmdb.version()
    text = f"LMDB {'.'.join(map(str, version[:3]))}"
    if version[0] != LMDB_MAJOR:
        yield Finding("lmdb", PROBLEM, f"{text} writes another file format", f"install a binding of LMDB {LMDB_MAJOR}.x, as setup.cfg says")
    else:
        yield Finding("lmdb", OK, text)


def memory() -> Iterator[Finding]:
    """Check memory, and shared memory for values."""
    from zfabric.adapters.processes import memory_available, memory_total

    total, available = memory_total(), memory_available()
    text = f"{size(available)} available of {size(total)}"
    if available < MEMORY_MIN:
        yield Finding("memory", PROBLEM, text, "end other programs, or give the container more memory")
    else:
        yield Finding("memory", OK, text)
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        yield Finding("/dev/shm", OK, "not there, and not needed: values live in anonymous shared memory")
        return
    free, whole = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    yield Finding("/dev/shm", OK, f"{size(free)} free of {size(whole)}; not needed, values live in anonymous shared memory")


def huge_pages() -> Iterator[Finding]:
    """Check huge pages: with them, first writes of large arrays are several times as fast."""
    chosen = {}
    for name in ("enabled", "shmem_enabled"):
        try:
            with open(f"/sys/kernel/mm/transparent_hugepage/{name}", encoding="ascii") as file:
                found = re.search(r"\[(\w+)\]", file.read())
        except OSError:
            found = None
        chosen[name] = found[1] if found is not None else "unknown"
    text = f"transparent huge pages: {chosen['enabled']}, for shared memory: {chosen['shmem_enabled']}"
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    if chosen["shmem_enabled"] in ("deny", "unknown"):
        yield Finding("huge pages", NOTE, text, f"the first write of large values is slower; as root: echo advise > {path}")
    elif release < (6, 1):
        yield Finding(
            "huge pages", NOTE, f"{text}; the kernel has no MADV_COLLAPSE", "the first write of large values is faster from Linux 6.1 on"
        )
    else:
        yield Finding("huge pages", OK, text)


def limits() -> Iterator[Finding]:
    """Check the shell's limits on processes."""
    for name, kind, least, option in (
        ("open files", resource.RLIMIT_NOFILE, FILES_MIN, "-n"),
        ("processes", resource.RLIMIT_NPROC, PROCESSES_MIN, "-u"),
        ("address space", resource.RLIMIT_AS, 2**40, "-v"),
        ("file size", resource.RLIMIT_FSIZE, 2**40, "-f"),
    ):
        soft, hard = resource.getrlimit(kind)
        if soft == resource.RLIM_INFINITY or soft >= least:
            yield Finding("limits", OK, f"{name}: {'unlimited' if soft == resource.RLIM_INFINITY else f'{soft:,}'}")
            continue
        wanted = least if hard == resource.RLIM_INFINITY or hard >= least else hard
        advice = f"ulimit {option} {'unlimited' if least == 2**40 else wanted}"
        if hard != resource.RLIM_INFINITY and hard < least:
            advice = f"the hard limit is {hard:,}; raise it in /etc/security/limits.conf, then {advice}"
        yield Finding("limits", PROBLEM, f"{name}: {soft:,} is too few", advice)


def session_directory() -> Iterator[Finding]:
    """Check the directory for sockets, logs and stores."""
    from zfabric.runtime.session import user_directory

    wanted = os.environ.get("TMPDIR", "").rstrip("/")
    try:
        parent = user_directory()
    except FabricError as error:
        yield Finding("directory", PROBLEM, str(error))
        return
    base = os.path.dirname(parent)
    if wanted and wanted != base:
        text = f"{parent}, since sockets below TMPDIR ({wanted}) would have paths that are too long or no UTF-8, or it is no directory"
        yield Finding("directory", NOTE, text, "set TMPDIR to a shorter path if sessions are to lie there")
    else:
        yield Finding("directory", OK, f"{parent}, open to you only")
    status = os.statvfs(parent)
    free = status.f_bavail * status.f_frsize
    text = f"{size(free)} free for control store, logs and spilled values"
    if free < DISK_MIN:
        yield Finding("disk", PROBLEM, text, f"free some of the disk of {parent}, or set TMPDIR to a directory on another")
    elif not os.access(parent, os.W_OK):
        yield Finding("disk", PROBLEM, f"{parent} cannot be written", "set TMPDIR to a directory that can")
    else:
        yield Finding("disk", OK, text)


def sessions() -> Iterator[Finding]:
    """Check running clusters and remains of dead ones."""
    from zfabric.runtime.session import Session, find_sessions, user_directory

    parent = user_directory()
    running = find_sessions()
    for session in running:
        problem = _unanswered(session)
        text = f"{session.directory}, {about(session)}"
        if problem:
            where = f"--address {session.directory}"
            advice = f"its logs: zfabric logs --daemon {where}\nto end it: zfabric stop {where}"
            yield Finding("clusters", PROBLEM, f"{text}, does not answer: {problem}", advice)
        else:
            yield Finding("clusters", OK, text)
    if not running:
        yield Finding("clusters", OK, "none is running")
    names = [name for name in os.listdir(parent) if name.startswith(("s-", "dead-"))]
    dead = [name for name in names if name.startswith("dead-") or not Session(f"{parent}/{name}").alive()]
    if dead:
        text = f"{len(dead)} director{'y' if len(dead) == 1 else 'ies'} of clusters that were killed: {', '.join(sorted(dead)[:5])}"
        yield Finding("leftovers", NOTE, text, "nothing to do: the next zf.init() or `zfabric start` removes them")


def _unanswered(session: object) -> str:
    from zfabric.cli.sessions import connected
    from zfabric.runtime.session import Session

    assert isinstance(session, Session)
    try:
        with connected(session) as client:
            client.query("status")
    except FabricError as error:
        return str(error) if session.alive() else ""  # It has ended meanwhile.
    return ""


def try_it() -> Iterator[Finding]:
    """Start the smallest cluster, and run a task with a value in shared memory."""
    import time

    from zfabric import api as zf

    began = time.monotonic()
    try:
        with zf.init(address="local", num_cpus=1, num_gpus=0, object_store_memory=64 * MiB, log_to_driver=False):
            answer = zf.get(zf.remote(len).remote(zf.put(bytes(MiB))), timeout=TRY_SECONDS)
    except Exception as error:  # Whatever prevents a task from running.
        reason, _, details = str(error).partition("\n")
        yield Finding("a cluster", PROBLEM, f"a task could not be run: {type(error).__name__}: {reason}", details)
        return
    if answer != MiB:
        yield Finding("a cluster", PROBLEM, f"a task returned {answer!r} instead of {MiB}")
    else:
        yield Finding("a cluster", OK, f"started, ran a task and ended in {time.monotonic() - began:.2f} s")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    libraries,
    zeromq,
    lmdb_format,
    memory,
    huge_pages,
    limits,
    session_directory,
    sessions,
)
