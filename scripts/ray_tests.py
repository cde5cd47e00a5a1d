"""Runs tests of Ray's on Ray itself and on zfabric, in the same environment: which of those that pass on Ray pass here.

    python scripts/ray_tests.py RESULTS.json --python ENVIRONMENT/bin/python [--first N] [--again] DIRECTORY...

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
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEST_SECONDS = 60
FILE_SECONDS = 420
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(TEST_SECONDS), "-o", "junit_family=xunit1", "--no-header")
SYSTEMS = {"ray": (), "zfabric": ("-m", "zfabric.as_ray")}


def outcomes(system: str, python: str, file: Path) -> dict[str, str]:
    """Run a file of tests; return the outcome of each test that began: "passed", "skipped", or what it raised."""
    with tempfile.TemporaryDirectory(prefix="tests-") as directory:
        report = f"{directory}/report.xml"
        environment = {**os.environ, "TMPDIR": directory, "RAY_USAGE_STATS_ENABLED": "0", "HOME": directory}
        if system == "zfabric":
            environment["PYTHONPATH"] = str(ROOT)
        command = [python, *SYSTEMS[system], "-m", "pytest", *OPTIONS, f"--junitxml={report}", str(file)]
        with open(f"{directory}/output", "wb") as output:
            running = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True)
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
        if not os.path.exists(report):
            return {}
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in ElementTree.parse(report).iter("testcase")}


def _end_daemons(directory: str) -> None:
    """Kill what a run has left: each process whose environment names its directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={directory}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return "skipped" if kind == "skipped" else f"{kind}: {(found.get('message') or '')[:300]}"
    return "passed"


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
    parser.add_argument("places", nargs="+")
    given = parser.parse_args()
    known = json.loads(given.results.read_text()) if given.results.exists() else {}
    for file in files_of(given.places, given.first):
        entry = known.setdefault(str(file), {})
        for system in SYSTEMS:
            if system not in entry or (given.again and system == "zfabric"):
                entry[system] = outcomes(system, given.python, file)
                given.results.write_text(json.dumps(known, indent=1))
        passed = [name for name, outcome in entry["ray"].items() if outcome == "passed"]
        here = [name for name in passed if entry["zfabric"].get(name) == "passed"]
        print(f"{len(here)} of {len(passed)}  {file}", flush=True)
    rows = known.values()
    passed = [(entry, name) for entry in rows for name, outcome in entry.get("ray", {}).items() if outcome == "passed"]
    here = sum(entry.get("zfabric", {}).get(name) == "passed" for entry, name in passed)
    print(f"{here} of {len(passed)} tests that pass on Ray pass on zfabric ({here / max(1, len(passed)):.0%})")


if __name__ == "__main__":
    sys.exit(main())
