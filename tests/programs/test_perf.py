"""The harness of ``perf``: every question is answered, the figures of its samples are right, and nothing stops the others.

No figure is asserted: these runs are as quick as can be, on a machine that has other things to do.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import eventually, gone, next_line

from perf import isolated, machine, peers, report
from perf.__main__ import ask, listing, main
from perf.floors import Echo
from perf.peers import __main__ as peer_process
from perf.peers import environment
from perf.peers.zfabric import Zfabric
from perf.programs import run_program
from perf.question import WORKERS, Aim, Question, Run, Samples
from perf.questions import MODULES, load
from perf.workloads import WORKLOADS, Workload, chain, fibonacci, reduce_tree

ROOT = Path(__file__).parents[2]
QUESTIONS = load()


def run_perf(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ends before the time of a test is up, and shows its progress."""
    try:
        return subprocess.run([sys.executable, "-m", "perf", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"perf {' '.join(arguments)} did not end; it has said:\n{error.stdout!r}\n{error.stderr!r}")


# --- the questions ------------------------------------------------------------------------------------------------------------


def test_every_file_is_a_question_with_a_docstring() -> None:
    files = {path.stem for path in (ROOT / "perf" / "questions").glob("*.py")} - {"__init__"}
    assert files == set(MODULES)
    for name in MODULES:
        module = sys.modules[f"perf.questions.{name}"]
        assert "?" in (module.__doc__ or ""), name
        assert module.QUESTION.aims


def test_the_list_names_all_questions_with_their_budgets() -> None:
    done = run_perf()
    assert done.returncode == 0
    for question in QUESTIONS.values():
        assert question.name in done.stdout
        assert question.asks in done.stdout
    assert "≥ 100,000 tasks/s" in done.stdout
    assert "≤ 3 × floor" in done.stdout
    assert [row["question"] for row in json.loads(listing(QUESTIONS, as_json=True))] == list(QUESTIONS)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks_asink"]) == 2
    assert "there is no question 'tasks_asink'; there are tasks_async" in capsys.readouterr().err


@dataclass(frozen=True)
class OfOneCluster(Run):
    """Asks questions of the cluster and the echo that run: to start one for each takes longer than most answers."""

    shared_echo: Echo | None = None

    @contextmanager
    def cluster(self, **options: Any) -> Iterator[Zfabric]:
        assert not options
        yield Zfabric()

    @contextmanager
    def echo(self, encrypted: bool = False) -> Iterator[Echo]:
        assert self.shared_echo is not None
        assert not encrypted
        yield self.shared_echo


def answer(name: str, run: Run) -> dict[str, Any]:
    """The answer to a question, as small as can be. In this process: to start another one would take as long as to answer most.

    loky leaves a process behind until its own ends.
    """
    result = (isolated.answer if name == "joblib" else Question.answer)(QUESTIONS[name], run)
    assert not result["error"]
    return result


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run from the command line; the page that it was written into is beside the answers."""
    page = tmp_path_factory.mktemp("perf") / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    done = run_perf("import", "get_small", "--quick", "--json", "--write", str(page))
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "page": page.read_text()}


def test_a_run_records_its_machine_and_time(run_of_two: dict[str, Any]) -> None:
    assert run_of_two["format"] == report.FORMAT
    assert run_of_two["quick"]
    assert run_of_two["repeat"] == 1
    assert run_of_two["date"].endswith("UTC")
    facts = run_of_two["machine"]
    assert facts["cores"] >= 1
    assert facts["memory_gib"] > 0
    assert facts["kernel"]
    assert facts["python"].startswith("3.")
    assert all(facts["libraries"].values())


SHARED = {
    name
    for name, question in QUESTIONS.items()
    if "run.cluster() as system" in inspect.getsource(question.measure) and name not in ("idle", "joblib", "actors_10000_memory")
}
"""Questions of any cluster of two workers. How much a heap grows shows in a new one alone: others return what earlier questions took."""


@pytest.fixture(scope="class")
def of_one_cluster() -> Iterator[OfOneCluster]:
    system = Zfabric()
    system.start(WORKERS)
    with Echo(quick=True) as echo:
        yield OfOneCluster(repeat=1, quick=True, shared_echo=echo)
    system.stop()


class TestQuestionsOfOneCluster:
    @pytest.mark.parametrize("name", sorted(SHARED))
    def test_each_is_answered(self, run_of_two: dict[str, Any], of_one_cluster: OfOneCluster, name: str) -> None:
        check_answer(answer(name, of_one_cluster), name, run_of_two)


@pytest.mark.parametrize("name", [name for name, question in QUESTIONS.items() if not question.apart and name not in SHARED])
def test_every_other_question_is_answered(run_of_two: dict[str, Any], name: str) -> None:
    check_answer(answer(name, Run(repeat=1, quick=True)), name, run_of_two)


def check_answer(result: dict[str, Any], name: str, whole: dict[str, Any]) -> None:
    assert f"| {name}" in report.markdown({**whole, "results": [result]})
    assert result["question"] == name
    aims = QUESTIONS[name].aims
    assert [figure["figure"] for figure in result["figures"]] == [aim.figure for aim in aims]
    for aim, figure in zip(aims, result["figures"], strict=True):
        assert figure["unit"] == aim.unit
        assert figure["value"] == statistics.median(figure["samples"])
        assert math.isfinite(figure["value"])
        # CPU time is counted in ticks, and heaps in what they grew by: small runs may come to none.
        assert figure["value"] > 0 or name in (
            "cpu_per_task",
            "queued_million",
            "idle",
            "page",
            "nodes_idle",
            "nodes_elsewhere",
            "nodes_refs",
            "pipeline",
        )
        assert figure["low"] <= figure["value"] <= figure["high"]
        if figure["floor"]:
            assert figure["floor"]["what"]
            assert len(figure["floor"]["samples"]) == len(figure["samples"])
            if figure["floor"]["value"]:
                assert figure["ratio"] == pytest.approx(figure["value"] / figure["floor"]["value"])


def test_results_are_written_into_the_page(run_of_two: dict[str, Any]) -> None:
    assert [(result["question"], result["error"]) for result in run_of_two["results"]] == [("import", ""), ("get_small", "")]
    page = run_of_two["page"]
    assert page.startswith(f"before\n{report.BEGIN}\n")
    assert page.endswith(f"{report.END}\nafter\n")
    assert "old" not in page
    for name in ("import", "get_small"):
        assert f"| {name}" in page


# --- when something goes wrong ------------------------------------------------------------------------------------------------


def asked(*questions: Question, timeout: float | None = None) -> list[dict[str, Any]]:
    options = Namespace(json=True, markdown=False, write=None, repeat=1, passes=1, quick=True, peers=False, timeout=timeout)
    results: list[dict[str, Any]] = ask(list(questions), options)["results"]
    return results


def test_a_question_that_fails_is_reported_and_the_next_is_asked() -> None:
    broken = Question("no_such_question", "", (), lambda run: Samples([]))
    first, second = asked(broken, QUESTIONS["import"])
    assert first["question"] == "no_such_question"
    assert "KeyError" in first["error"]
    assert first["figures"] == []
    assert second["error"] == ""
    assert second["figures"]


def test_a_question_that_takes_too_long_is_ended_with_all_it_started() -> None:
    (result,) = asked(QUESTIONS["idle"], timeout=0.3)
    assert "it took longer than 0.3 s" in result["error"]
    left = []
    for pid in machine.descendants(os.getpid()):
        with suppress(OSError):  # Processes of other tests may be ending.
            left += [pid] if b"perf.isolated" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    assert left == []


def test_no_process_outlives_a_program() -> None:
    """Neither one in another process group, nor the daemons of its cluster, nor a directory of temporary files."""
    source = """
import os, subprocess, sys
import zfabric as zf
zf.init(num_cpus=1)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
daemon = zf.get(zf.remote(os.getppid).remote())
print(child.pid, daemon, os.environ["TMPDIR"], flush=True)
os._exit(3)
"""
    ended = run_program([sys.executable, "-c", source], ROOT, 100)
    assert ended.problem == "ended with code 3", ended.report
    *pids, temporary = ended.output.split()
    # One that was ending by itself has no memory any more, by which it would be found, and may be there for a moment.
    eventually(lambda: all(map(gone, map(int, pids))), "the end of both processes")
    assert not os.path.exists(temporary)
    assert run_program([sys.executable, "-c", source], ROOT, 0.01).problem == "took longer than 0.01 s"


def test_a_failure_sets_the_exit_code_and_is_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--quick", "--timeout", "0.01", "--markdown"]) == 1
    assert "`import` gave no figure: it took longer than 0.01 s" in capsys.readouterr().out


def test_a_system_with_wrong_results_is_not_measured() -> None:
    class Wrong:
        def remote(self, function: Any) -> Any:
            return Namespace(remote=lambda *arguments: 0)

        def get(self, refs: Any) -> Any:
            return 41

    for workload in (chain, reduce_tree):
        with pytest.raises(RuntimeError, match="its speed means nothing"):
            workload(Wrong(), 3)  # type: ignore[arg-type]


# --- figures of samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aim", "value", "ratio", "verdict"),
    [
        (Aim("", "tasks/s", True, 100_000), 100_000, None, "within budget"),
        (Aim("", "tasks/s", True, 100_000), 50_000, None, "within bound"),
        (Aim("", "tasks/s", True, 100_000), 49_999, None, "missed"),
        (Aim("", "ms", False, 100), 100, None, "within budget"),
        (Aim("", "ms", False, 100), 139, None, "within bound"),
        (Aim("", "ms", False, 100), 141, None, "missed"),
        (Aim("", "µs", False, 3.0, relative=True), 900, 3.0, "within budget"),
        (Aim("", "µs", False, 3.0, relative=True), 1, 4.3, "missed"),
        (Aim("", "µs", False, 3.0, relative=True), 900, None, ""),
        (Aim("", "tasks/s", True), 1, 1.0, ""),
    ],
)
def test_verdicts(aim: Aim, value: float, ratio: float | None, verdict: str) -> None:
    assert aim.verdict(value, ratio) == verdict


def test_figures_are_medians_and_peers_are_compared_the_right_way() -> None:
    samples = Samples([1.0, 9.0, 2.0], "floor", [4.0, 4.0, 5.0], {"ray": [8.0, 4.0, 4.0]})
    slower_is_better = samples.figure(Aim("", "s", False, 3.0))
    assert (slower_is_better["value"], slower_is_better["ratio"]) == (2.0, 0.5)
    assert (slower_is_better["low"], slower_is_better["high"]) == (1.0, 9.0)
    assert slower_is_better["peers"]["ray"]["times_better"] == 2.0
    assert samples.figure(Aim("", "tasks/s", True))["peers"]["ray"]["times_better"] == 0.5


def test_samples_are_taken_in_turns() -> None:
    order: list[str] = []

    def take(name: str) -> float:
        order.append(name)
        return 1.0

    samples = Run(repeat=4).interleave(lambda: take("ours"), "floor", lambda: take("floor"), lambda: {"ray": take("ray")})
    assert order == ["ours", "floor", "ray"] * 3 + ["ours", "floor"]
    assert samples.peers == {"ray": [1.0] * 3}


def test_several_passes_are_one_result_of_all_their_samples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad minute of the machine's host is in one of the passes, not in all samples of a question."""
    order: list[str] = []
    aim = Aim("", "s", False, 3.0)
    times = iter([1.0, 2.0, 30.0, 40.0, 5.0, 6.0])

    def answer(question: Question, run: Run, seconds_max: float | None) -> dict[str, Any]:
        order.append(question.name)
        return question.answer(run)

    def measure(run: Run) -> Samples:
        ours = next(times)
        return Samples([ours], "bare", [ours / 2], {"ray": [ours * 4]})

    monkeypatch.setattr(isolated, "answer", answer)
    options = Namespace(json=False, markdown=False, write=None, repeat=1, passes=3, quick=False, peers=False, timeout=None)
    found = ask([Question("one", "", (aim,), measure), Question("two", "", (aim,), measure)], options)
    assert order == ["one", "two"] * 3
    one, two = (result["figures"][0] for result in found["results"])
    assert (one["samples"], one["value"], one["verdict"]) == ([1.0, 30.0, 5.0], 5.0, "missed")
    assert (two["floor"]["samples"], two["ratio"], two["peers"]["ray"]["times_better"]) == ([1.0, 20.0, 3.0], 2.0, 4.0)
    assert "medians of 1 rounds in each of 3 passes through all questions" in report.markdown(found)
    assert capsys.readouterr().out.count("one: ") == 1


def test_a_question_that_failed_in_one_pass_has_failed() -> None:
    question = Question("one", "", (Aim("", "s", False),), lambda run: Samples([2.0]))
    result = question.together([question.answer(Run()), question.failed("it took longer than 5 s"), question.answer(Run())])
    assert result["error"] == "it took longer than 5 s"
    assert result["figures"][0]["samples"] == [2.0, 2.0]
    found = {"date": "", "commit": "", "machine": machine.facts(), "repeat": 1, "passes": 3, "quick": False, "peers": {}, "absent": {}}
    assert "- `one` failed in a pass: it took longer than 5 s" in report.markdown({**found, "results": [result]})
    assert question.together([question.failed("no")] * 2)["figures"] == []


def test_the_table_shows_ray_beside_ours() -> None:
    figure = Samples([100_000.0], "raw messages", [200_000.0], {"ray": [2_000.0], "pool": [10_000.0]}).figure(
        Aim("", "tasks/s", True, 100_000)
    )
    found = {
        "date": "today",
        "commit": "abc",
        "machine": machine.facts(),
        "repeat": 1,
        "passes": 1,
        "quick": False,
        "peers": {"ray": "2.60.0", "pool": "3.11"},
        "absent": {"dask": "no network"},
        "results": [{"question": "tasks_async", "asks": "how many", "seconds": 1.0, "error": "", "figures": [figure]}],
    }
    page = report.markdown(found)
    assert "| tasks_async | 100,000 | tasks/s | 200,000 | 0.5 | ≥ 100,000 | ≥ 50,000 | within budget | 2,000 | 50 |" in page.splitlines()
    assert "| tasks_async | tasks/s | 10,000 |" in page.splitlines()
    assert "- `tasks_async`: raw messages" in page.splitlines()
    assert "- **Absent**: dask (no network)" in page
    assert "pool: 10,000 tasks/s; zfabric is 10 times as good" in report.text(found["results"][0])  # type: ignore[index]


def test_a_page_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place for results"):
        report.write_into(page, "results")
    assert page.read_text() == "no marks"


# --- peers --------------------------------------------------------------------------------------------------------------------


def test_a_peer_runs_the_same_workloads_in_a_process_of_its_own() -> None:
    for workload in [name for name, work in WORKLOADS.items() if "pool" in work.peers and not name.startswith("idle")]:
        assert peers.sample("pool", sys.executable, workload, 10, 2, 2) > 0
    assert peers.cold("pool", sys.executable, 2) > 0


def test_peers_are_asked_only_for_what_they_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def sample(*arguments: Any) -> float:
        calls.append(arguments)
        return 7.0

    monkeypatch.setattr(peers, "sample", sample)
    monkeypatch.setitem(WORKLOADS, "some", Workload(lambda system, size: 0.0, 100, 5, {"ray": 50}))
    assert Run(peers={"ray": "/ray/python", "pool": "/python"}).ask_peers("some") == {"ray": 7.0}
    assert calls == [("ray", "/ray/python", "some", 50, 5, 2)]


def test_workloads_on_two_nodes_run_on_two_nodes_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(peers.OF_NODES.keys() >= work.peers.keys() for work in WORKLOADS.values() if work.nodes)
    monkeypatch.setattr(peers.importlib, "import_module", lambda name: Namespace(Ray=lambda: "one node", RayNodes=lambda: "two nodes"))
    started: list[Any] = []

    def load(name: str, nodes: bool = False) -> Any:
        started.append(peers.load(name, nodes))
        raise SystemExit

    monkeypatch.setattr(peer_process, "load", load)
    for workload in ("elsewhere_sync", "tasks_sync"):
        with pytest.raises(SystemExit):
            peer_process.main("ray", workload, 1, 1, 2)
    assert started == ["two nodes", "one node"]


def test_the_output_of_a_failed_peer_is_shown() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)pool gave no sample \(exit code 1\).*KeyError: 'no_such'"):
        peers.sample("pool", sys.executable, "no_such", 1, 0, 1)


def test_a_peer_that_cannot_be_installed_is_absent_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "DIRECTORY", tmp_path / "venv")
    monkeypatch.setattr(environment, "_run", lambda command: "no space left on device")
    prepared = environment.prepare()
    assert prepared.absent == {"ray": "no space left on device", "dask": "no space left on device"}
    assert prepared.interpreters == {"pool": sys.executable}
    assert list(prepared.versions) == ["pool"]


# --- the machine --------------------------------------------------------------------------------------------------------------


def test_processes_are_measured() -> None:
    shared = "import mmap; shared = mmap.mmap(-1, 2**27); shared[::4096] = bytes(2**15);"  # As the arena is.
    code = f"{shared} print(sum(range(3_000_000)), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
    try:
        assert next_line(child.stdout)
        assert child.pid in machine.descendants(os.getpid())
        assert 2**20 < machine.unique_bytes(child.pid) < 2**27
        assert machine.status_bytes(child.pid, "VmHWM") >= machine.status_bytes(child.pid, "RssAnon") > 0
        assert machine.cpu_seconds(child.pid) == pytest.approx(machine.cpu_seconds_fine([child.pid]), abs=0.05)
        assert machine.cpu_seconds_fine([child.pid]) > 0.005
    finally:
        child.communicate(b"\n")
    assert machine.unique_bytes(child.pid) == 0


def test_what_recursion_is_checked_against() -> None:
    assert [fibonacci(number) for number in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]


def test_a_question_is_measured_in_its_own_process() -> None:
    result = isolated.answer(QUESTIONS["get_small"], Run(2, True))
    assert result["error"] == ""
    assert len(result["figures"][0]["samples"]) == 2


# --- the page -----------------------------------------------------------------------------------------------------------------


def test_the_page_has_a_place_for_results() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    assert page.index(report.BEGIN) < page.index(report.END)
