"""Runs tests of Ray's on Ray itself and on zfabric, in the same environment: which of those that pass on Ray pass here.

    python scripts/ray_tests.py RESULTS.json --python ENVIRONMENT/bin/python [--first N] [--again] [--only SYSTEM] DIRECTORY...

Ray's wheels have no tests: copy those of the release into the installed package (``ray/tune/tests`` and so on), and name these directories,
or files. ``--first N`` takes the first N files of each directory in the order of a hash of their names. Each file runs in a process
of its own, first on Ray, with a limit for each test and for the file; what passes there is written down before zfabric is asked, and is
not asked again without ``--again``. A test that hangs, and one that is not reached, has failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEST_SECONDS = 60
FILE_SECONDS = 420
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(TEST_SECONDS), "-p", "outcomes_plugin")
SYSTEMS = ("ray", "zfabric")


PLUGIN = """
import json, os

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = str(getattr(report.longrepr, "reprcrash", report.longrepr))[-300:] if report.failed else ""
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(json.dumps([report.nodeid.rpartition("/")[2], report.outcome, text]) + "\\n")
"""
"""Writes down the outcome of each test as soon as it is known: a file that hangs at its end, and is killed, has these all the same."""


def outcomes(system: str, python: str, file: Path) -> dict[str, str]:
    """Run a file of tests; return the outcome of each test that ended: "passed", "skipped", or what it raised."""
    with tempfile.TemporaryDirectory(prefix="tests-") as directory:
        report = Path(directory, "outcomes")
        report.touch()
        Path(directory, "outcomes_plugin.py").write_text(PLUGIN)
        environment = {
            **os.environ,
            "TMPDIR": directory,
            "HOME": directory,
            "OUTCOMES": str(report),
            "PYTHONPATH": directory,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if system == "zfabric":  # Every program that the tests start enters the mode, as if this were its first line.
            Path(directory, "sitecustomize.py").write_text("import zfabric.as_ray\n")
            environment["PYTHONPATH"] += f":{ROOT}"
        else:  # Tests start Ray by its command.
            environment["PATH"] = f"{os.path.dirname(os.path.abspath(python))}:{os.environ['PATH']}"
        with open(f"{directory}/output", "wb") as output:
            running = subprocess.Popen(
                [python, "-m", "pytest", *OPTIONS, str(file)],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                running.wait(FILE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                for sent in (signal.SIGINT, signal.SIGKILL):
                    try:
                        os.killpg(running.pid, sent)
                        running.wait(20)
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
                _end_daemons(directory)
        found: dict[str, str] = {}
        for name, outcome, text in map(json.loads, report.read_text().splitlines()):
            if found.get(name, "passed") == "passed":  # A test that passes, and fails where it is cleaned up, has failed.
                found[name] = f"failed: {text}" if outcome == "failed" else outcome
        return found


def _end_daemons(directory: str) -> None:
    """Kill what a run has left: each process whose environment names its directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={directory}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def files_of(places: list[str], first: int | None) -> list[Path]:
    """The files of tests in these places, those of a directory in the order of a hash of their names."""
    found = []
    for place in map(Path, places):
        files = place.rglob("test_*.py") if place.is_dir() else [place]
        found += sorted(files, key=lambda file: hashlib.sha256(file.name.encode()).digest())[:first]
    return found


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--first", type=int)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", choices=SYSTEMS, help="ask this one alone, and count when the other has been asked")
    parser.add_argument("places", nargs="+")
    given = parser.parse_args()
    known = json.loads(given.results.read_text()) if given.results.exists() else {}
    for file in files_of(given.places, given.first):
        entry = known.setdefault(str(file), {})
        for system in (given.only,) if given.only else SYSTEMS:
            if system not in entry or (given.again and system == "zfabric"):
                entry[system] = outcomes(system, given.python, file)
                given.results.write_text(json.dumps(known, indent=1))
        passed = {system: {name for name, outcome in of.items() if outcome == "passed"} for system, of in entry.items()}
        if given.only:
            print(f"{len(passed[given.only])} pass  {file}", flush=True)
        else:
            print(f"{len(passed['ray'] & passed['zfabric'])} of {len(passed['ray'])}  {file}", flush=True)
    rows = known.values()
    passed = [(entry, name) for entry in rows for name, outcome in entry.get("ray", {}).items() if outcome == "passed"]
    here = sum(entry.get("zfabric", {}).get(name) == "passed" for entry, name in passed)
    print(f"{here} of {len(passed)} tests that pass on Ray pass on zfabric ({here / max(1, len(passed)):.0%})")


if __name__ == "__main__":
    sys.exit(main())
