"""Jobs that run on a started cluster on their own: from the command line, and with Ray's client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Place, a_place
from conftest import running_cluster
from faults import PATIENCE, descendants, eventually, gone, name_of

import zfabric as zf
from zfabric.adapters.processes import children
from zfabric.job_submission import JobStatus, JobSubmissionClient
from zfabric.protocol.names import JOBS_NAMESPACE
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session
from zfabric.util import jobs
from zfabric.util.jobs import JobFiles

PROGRAM = """
import sys
import zfabric as zf
zf.init()
print("sum", sum(zf.get([zf.remote(lambda x: x).remote(i) for i in range(10)])), *sys.argv[1:])
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def place() -> Iterator[Place]:
    with a_place() as found:
        yield found


@pytest.fixture(scope="module")
def client() -> Iterator[JobSubmissionClient]:
    with running_cluster(num_cpus=1):
        yield JobSubmissionClient()


def run(place: Place, *arguments: str, code: int = 0) -> str:
    done = place.run(*arguments, code=code)
    return done.stdout + done.stderr


def test_a_program_outlives_whoever_submitted_it_and_is_listed_by_the_next_cluster(place: Place) -> None:
    Path(place.directory, "program.py").write_text(PROGRAM)
    start = ("start", "--num-cpus", "1", "--store", f"{place.directory}/store")
    started = place.json(*start)
    identifier = run(place, "submit", "--detach", "program.py", "3", "a b").strip()
    assert "sum 45 3 a b" in run(place, "job", "logs", "-f", identifier, code=3)
    (job,) = json.loads(run(place, "jobs", "--json"))
    assert (job["submission_id"], job["status"], job["driver_exit_code"]) == (identifier, "FAILED", 3)
    assert "exit code 3" in run(place, "job", "status", identifier, code=1)
    named = run(place, "submit", "--detach", "--id", "again", "-m", "program").strip()
    assert named == "again"
    assert "sum 45" in run(place, "job", "logs", "-f", "again")
    assert "job 'again' already" in run(place, "submit", "--detach", "--id", "again", "program.py", code=2)
    run(place, "job", "delete", identifier)
    assert [row["submission_id"] for row in json.loads(run(place, "jobs", "--json"))] == ["again"]
    assert "there is no job" in run(place, "job", "status", identifier, code=1)
    Path(place.directory, "long.py").write_text("import time, zfabric as zf\nzf.init()\nprint('on', flush=True)\ntime.sleep(1000)\n")
    run(place, "submit", "--detach", "--id", "cut-off", "long.py")
    output = Path(place.directory, "store", "jobs", "cut-off.log")
    eventually(lambda: output.exists() and "on" in output.read_text(), "the long one")
    supervisor = int(Session(started["session"]).describe()["supervisor"])
    (daemon,) = (pid for pid in children(supervisor) if name_of(pid) == "zf-daemon")
    os.kill(daemon, signal.SIGKILL)
    before = {row["submission_id"]: row for row in json.loads(run(place, "jobs", "--json"))}
    assert {job: row["status"] for job, row in before.items()} == {"again": "SUCCEEDED", "cut-off": "RUNNING"}
    run(place, "stop")
    eventually(lambda: gone(before["cut-off"]["pid"]), "the end of its process")
    with zf.init(place.json(*start)["session"]):
        former = JobSubmissionClient()
        after = {row["submission_id"]: row for row in former.list_jobs()}
        assert {job: (row["status"], row["driver_exit_code"]) for job, row in after.items()} == {
            "again": (JobStatus.SUCCEEDED, 0),
            "cut-off": (JobStatus.FAILED, None),
        }
        assert dict(after["again"]) == before["again"]
        assert "did not outlive its cluster" in after["cut-off"].message
        assert "sum 45" in former.get_job_logs("again")
        assert list(former.follow_job_logs("cut-off")) == ["on\n"]
        assert not former.stop_job("again")
        with pytest.raises(zf.JobError, match="a job 'again' already"):
            former.submit_job(entrypoint="true", submission_id="again")
        assert former.delete_job("again")
        assert [row.submission_id for row in former.list_jobs()] == ["cut-off"]
        assert sorted(each.name for each in output.parent.iterdir()) == ["cut-off.json", "cut-off.log"]
    run(place, "stop")


def test_files_of_ended_jobs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.runtime.job_files.ENDED_MAX", 2)
    monkeypatch.setattr(Session, "describe", lambda self: {"store": str(tmp_path)})
    facts = {"status": "SUCCEEDED", "message": ""}
    former, now = JobFiles("/one"), JobFiles("/two")
    for number in range(4):
        former.write({**facts, "submission_id": f"job{number}"})
        Path(former.log(f"job{number}")).write_text("output")
        os.utime(tmp_path / "jobs" / f"job{number}.json", (number, number))
    for number in range(3):
        now.write({**facts, "submission_id": f"new{number}", "status": "RUNNING" if not number else "SUCCEEDED"})
    now.delete_oldest()
    assert sorted(now.names()) == ["new0", "new1", "new2"]
    assert list((tmp_path / "jobs").glob("*.log")) == []
    (tmp_path / "jobs" / "new2.json").write_text("{")
    assert now.read("new2") is None, "it was cut short"


def test_a_working_directory_is_sent_with_its_program(place: Place, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a_helper_that_is_sent.py").write_text("ANSWER = 42\n")
    program = "import os, sys, zfabric as zf, a_helper_that_is_sent as a\n@zf.remote\ndef f():\n import a_helper_that_is_sent as b\n"
    program += " return b.ANSWER, os.getcwd()\nprint(a.ANSWER, *zf.get(f.remote()), os.getcwd(), *sys.argv[1:])\n"
    (tmp_path / "inner" / "program.py").write_text(program)
    run(place, "start", "--num-cpus", "1")
    there = str(tmp_path)
    line = place.run("submit", "--working-dir", there, "inner/program.py", "x").stdout.split()
    assert (line[:2], os.path.basename(line[2]), line[3:]) == (["42", "42"], tmp_path.name, [there, "x"])
    assert line[2] != there
    named = run(place, "submit", "--detach", "--id", "sent", "--working-dir", there, str(tmp_path / "inner" / "program.py")).strip()
    (tmp_path / "inner" / "program.py").unlink()  # The job has a copy.
    first, second, here, its = place.run("job", "logs", "-f", named).stdout.splitlines()[-1].split()
    assert (first, second, here) == ("42", "42", its)
    assert its != there
    assert "is not in the working directory" in run(place, "submit", "--working-dir", f"{there}/inner", __file__, code=2)
    run(place, "stop")


def test_without_a_started_cluster_nothing_is_detached(place: Place) -> None:
    Path(place.directory, "program.py").write_text(PROGRAM)
    assert "start one with `zfabric start`" in run(place, "submit", "--detach", "program.py", code=2)
    assert "--id needs --detach" in run(place, "submit", "--id", "x", "program.py", code=2)
    assert "there is no module" in run(place, "submit", "-m", "nothing_here", code=2)


def test_a_module_runs_as_python_runs_it(place: Place) -> None:
    package = Path(place.directory, "things")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("ANSWER = 42\n")
    (package / "__main__.py").write_text("import sys\nfrom .helper import ANSWER\nprint(__name__, __package__, ANSWER, sys.argv[1:])\n")
    assert run(place, "submit", "-m", "things", "x") == "__main__ things 42 ['x']\n"


def test_a_job_is_stopped_with_all_its_processes(client: JobSubmissionClient) -> None:
    job = client.submit_job(entrypoint="sleep 1000 & echo $!; wait", metadata={"who": "me"})
    pid = int(eventually(lambda: client.get_job_logs(job).strip(), "the pid"))
    info = client.get_job_info(job)
    assert (info.status, info.metadata) == (JobStatus.RUNNING, {"who": "me"})
    with pytest.raises(zf.FabricError, match="stop it first"):
        client.delete_job(job)
    assert client.stop_job(job)
    assert client.wait_for_job(job, PATIENCE) == JobStatus.STOPPED
    eventually(lambda: gone(pid), "the end of the job's child")
    assert not client.stop_job(job)
    assert client.delete_job(job)


def test_a_job_that_ignores_sigterm_is_killed(client: JobSubmissionClient) -> None:
    job = client.submit_job(entrypoint="trap '' TERM; echo ready; while true; do sleep 0.1; done")
    eventually(lambda: "ready" in client.get_job_logs(job), "the job")
    client.stop_job(job)
    assert client.wait_for_job(job, PATIENCE) == JobStatus.STOPPED
    assert "signal 9" in client.get_job_info(job).message


def test_variables_directory_and_output(client: JobSubmissionClient, tmp_path: Path) -> None:
    place, module = tmp_path / "place", tmp_path / "a_module_of_a_job.py"
    place.mkdir()
    module.write_text(
        "import zfabric as zf\nprint(zf.get(zf.remote(lambda: __import__('os').environ['COLOUR'] + __import__('os').getcwd()).remote()))"
    )
    environment = {"env_vars": {"COLOUR": "green"}, "working_dir": str(place), "py_modules": [module]}
    command = f"pwd; echo $COLOUR; echo wrong >&2; {sys.executable} -m a_module_of_a_job 2>/dev/null"
    job = client.submit_job(entrypoint=command, runtime_env=environment)
    assert client.wait_for_job(job, PATIENCE) == JobStatus.SUCCEEDED
    directory, *printed = client.get_job_logs(job).splitlines()
    assert (os.path.basename(directory), printed) == ("place", ["green", "wrong", f"green{directory}"])
    assert directory != str(place)
    assert job in [each.submission_id for each in client.list_jobs()]

    async def followed() -> str:
        return "".join([text async for text in client.tail_job_logs(job)])

    assert asyncio.run(followed()) == client.get_job_logs(job)


def test_a_client_is_of_the_cluster_at_its_address(client: JobSubmissionClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = jobs.session_directory()
    for address in (None, "auto", own):
        assert JobSubmissionClient(address).list_jobs() == client.list_jobs()
    monkeypatch.setattr(jobs, "find_session", lambda _: Session(str(tmp_path)))
    with pytest.raises(zf.AlreadyInitializedError, match=re.escape(f"connected to the cluster in {own}, not to the one at 'tcp://a:1'")):
        JobSubmissionClient("tcp://a:1")
    joined: list[str | None] = []
    monkeypatch.setattr(jobs.zf, "is_initialized", lambda: False)
    monkeypatch.setattr(jobs.zf, "init", joined.append)
    for arguments in ({}, {"address": "tcp://a:1"}, {"create_cluster_if_needed": True}):
        JobSubmissionClient(**arguments)
    assert joined == ["auto", "tcp://a:1", None], "no cluster is started that would end with its jobs"


def test_a_job_that_waits_for_resources_is_pending(client: JobSubmissionClient) -> None:
    job = client.submit_job(entrypoint="true", entrypoint_memory=2**49)
    assert client.get_job_status(job) == JobStatus.PENDING
    with pytest.raises(zf.GetTimeoutError, match="PENDING"):
        client.wait_for_job(job, 0.0)
    assert client.get_job_logs(job) == ""
    assert client.stop_job(job)
    assert list(client.follow_job_logs(job)) == []
    assert client.get_job_status(job) == JobStatus.STOPPED
    assert not client.stop_job(job)
    assert client.delete_job(job)


def test_a_job_that_has_ended_holds_no_resources_and_has_its_result(client: JobSubmissionClient) -> None:
    jobs = [client.submit_job(entrypoint=f"echo {word}", entrypoint_num_cpus=1) for word in ("one", "two")]
    assert [client.wait_for_job(job, PATIENCE) for job in jobs] == [JobStatus.SUCCEEDED] * 2
    eventually(lambda: zf.available_resources().get("CPU") == 1.0, "the CPU of both is free")
    assert [client.get_job_logs(job) for job in jobs] == ["one\n", "two\n"]
    assert [client.get_job_info(job).driver_exit_code for job in jobs] == [0, 0]
    assert {job.submission_id for job in client.list_jobs()} >= {*jobs}
    with pytest.raises(ValueError, match="there is a job"):
        client.submit_job(entrypoint="true", submission_id=jobs[0])
    assert not client.stop_job(jobs[0])
    assert all(map(client.delete_job, jobs))
    eventually(lambda: not {job.submission_id for job in client.list_jobs()} & {*jobs}, "they are forgotten")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"entrypoint": ""}, ValueError, "a shell command"),
        ({"entrypoint": "true", "submission_id": "a/b"}, ValueError, "an id has letters"),
        ({"entrypoint": "true", "runtime_env": {"pip": 5}}, ValueError, "runtime_env\\['pip'\\]"),
        ({"entrypoint": "true", "runtime_env": {"working_dir": "/nowhere"}}, ValueError, "not a directory: '/nowhere'"),
        ({"entrypoint": "true", "runtime_env": {"working_dir": "https://a/b.zip"}}, ValueError, "not an address: 'https://a/b.zip'"),
    ],
)
def test_wrong_jobs_are_refused(client: JobSubmissionClient, arguments: dict[str, Any], kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        client.submit_job(**arguments)
    for question in (client.get_job_info, client.get_job_status, client.get_job_logs, client.stop_job, client.delete_job):
        with pytest.raises(RuntimeError, match="there is no job 'nobody'") as caught:
            question("nobody")
        assert isinstance(caught.value, ValueError)


def test_a_job_has_one_identity_and_whoever_watches_it_is_hidden_and_ends(place: Place) -> None:
    Path(place.directory, "waits.py").write_text(
        "import sys, zfabric as zf\nzf.init()\n@zf.remote\ndef held(path):\n import os, time\n print('here', flush=True)\n"
        " while not os.path.exists(path): time.sleep(0.01)\nzf.get(held.remote(sys.argv[1]))\n"
    )
    over = Path(place.directory, "over")
    session = Session(place.json("start", "--num-cpus", "1")["session"])
    run(place, "submit", "--detach", "--id", "mine", "waits.py", str(over))
    tool = attach(session, kind="tool")
    eventually(lambda: tool.query("tasks", 10, ("running",)), "its task runs")
    (job,) = tool.query("status")["jobs"]
    assert (job["submission_id"], job["script"]) == ("mine", "waits.py")
    assert job["command"].endswith(f"waits.py {over}")
    printed = run(place, "status")
    assert f"job {job['number']:<9} waits.py, mine, program {job['pid']}" in printed
    assert job["command"] in printed
    (task,) = tool.query("tasks")
    assert dict(tool.query("explain", bytes.fromhex(task["task_id"]))[2])["job"] == f"{job['number']} (waits.py, mine)"
    assert run(place, "explain", "mine").startswith(f"job {job['number']} (waits.py): running\n")
    assert re.search(rf"^mine +{job['number']} +running", run(place, "jobs"), flags=re.MULTILINE)
    (row,) = tool.query("workers")
    assert (tool.query("actors"), tool.query("status")["actors"], row["task"], tool.query("find", "mine")) == ((), {}, "held", ())
    assert tool.query("status")["workers"] == 1
    watchers = {pid for pid in descendants(session.supervisor()[0]) if name_of(pid).startswith("zf-worker")} - {row["pid"]}
    assert len(watchers) == 1
    assert not watchers & {*tool.query("processes", b"")}
    over.touch()
    assert "here" in run(place, "job", "logs", "-f", "mine")
    eventually(lambda: all(map(gone, watchers)), "the process that watched it has ended")
    eventually(lambda: tool.query("status")["jobs"] == (), "nothing is left of its jobs")
    tool.close()
    assert "succeeded" in run(place, "job", "status", "mine")
    run(place, "stop")


def test_a_job_of_another_node_is_found_when_it_has_ended() -> None:
    zf.shutdown()  # The cluster of the tests above.
    with zf.LocalCluster(nodes=1, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster:
        cluster.add_node(resources={"second": 1})
        with zf.init(cluster.address):
            client = JobSubmissionClient()
            job = client.submit_job(entrypoint="echo there; exit 3", submission_id="there", entrypoint_resources={"second": 1})
            assert client.wait_for_job(job, PATIENCE) == JobStatus.FAILED
            eventually(lambda: JOBS_NAMESPACE not in [row["namespace"] for row in zf.util.list_named_actors(True)], "its actor has ended")
            assert (client.get_job_info(job).driver_exit_code, client.get_job_logs(job)) == (3, "there\n")
            assert [row.submission_id for row in client.list_jobs()] == [job]
            assert not JobFiles(jobs.session_directory()).names(), "they are on the other node"
            with pytest.raises(zf.JobError, match="a job 'there' already"):
                client.submit_job(entrypoint="true", submission_id="there")
            assert not client.stop_job(job)
            assert client.delete_job(job)
            assert client.list_jobs() == []
            with pytest.raises(zf.JobError, match="there is no job 'there'"):
                client.get_job_info(job)
