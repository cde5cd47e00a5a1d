"""Where ``zfabric autoscale`` gets nodes from, with stubs in place of schedulers of jobs, and the kinds of cluster files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import eventually

from zfabric.exceptions import ConfigError
from zfabric.launch import providers
from zfabric.launch.cluster_file import KindEntry, read_scaling_file
from zfabric.launch.policy import PENDING, RUNNING, NodeKind
from zfabric.launch.providers import (
    OUTPUTS_MOST,
    CommandProvider,
    JobInfo,
    KindLaunch,
    LocalProvider,
    PolledJobs,
    Provider,
    ProviderError,
    SlurmProvider,
    reason_of,
    start_command,
)
from zfabric.protocol.scaling import KindReport, kind_reports


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Makes a program of this name, a shell script; what it gets is in the returned file."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(providers, "user_directory", lambda: str(tmp_path))

    def make(name: str, body: str) -> Path:
        path, got = tmp_path / "bin" / name, tmp_path / f"{name}.got"
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{got}\n{body}\n')
        path.chmod(0o700)
        return got

    return make


def launch(**more: Any) -> KindLaunch:
    command = start_command("/srv/my python", "tcp://head:6790", "/home/me/cluster.key", "small", ["--num-cpus=2", "--label=a=$b c"])
    return KindLaunch(command, **more)


def wait_for_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "POLL_SECONDS", 0.0)


def wait_for_end(provider: Provider) -> None:
    eventually(lambda: not provider.states(), "all jobs have ended")


# --- slurm ---------------------------------------------------------------------------------------------------------------------


def test_slurm_gets_an_array_with_the_script_and_the_options_of_the_kind(stub: Callable[[str, str], Path]) -> None:
    got = stub("sbatch", 'cat >"$0.script"; echo "77;cluster"')
    stub("squeue", "true")
    provider = SlurmProvider("lab", {"small": launch(before=("module load x",), sbatch=("--partition=short",))})
    assert provider.states() == {}
    assert provider.submit("small", 2) == ["77_0", "77_1"]
    assert provider.states() == dict.fromkeys(["77_0", "77_1"], JobInfo("small", PENDING))
    options = got.read_text().split("\n")
    assert {"--job-name=zfabric:lab:small", "--array=0-1", "--no-requeue", "--partition=short"} <= set(options)
    *first, start = (got.parent / "bin/sbatch.script").read_text().splitlines()
    assert first == ["#!/bin/sh", "{ module load x", "} || exit"]
    assert start.startswith("exec '/srv/my python' -m zfabric start --block --address=tcp://head:6790 --key-file=/home/me/cluster.key ")
    assert start.endswith("""'--label=a=$b c' --label zfabric-job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\"""")


def test_squeue_is_asked_once_in_a_while_and_lists_this_cluster_alone(
    stub: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "1_0|PD|zfabric:lab:small\\n1_1|R|zfabric:lab:small\\n2_0|R|zfabric:lab:old\\n3|R|zfabric:other:small\\n4|R|mine|more"
    got = stub("squeue", f"printf '{lines}'")
    provider = SlurmProvider("lab", {"small": launch()})
    for _ in range(3):
        assert provider.states() == {"1_0": JobInfo("small", PENDING), "1_1": JobInfo("small", RUNNING)}
    assert got.read_text().count("--me") == 1
    wait_for_poll(monkeypatch)
    stub("squeue", "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    for _ in range(2):
        with pytest.raises(ProviderError, match="`squeue` has failed with exit code 1: slurm_load_jobs error: Unable"):
            provider.states()
    stub("squeue", "sleep 10")
    monkeypatch.setattr(providers, "COMMAND_SECONDS", 0.1)
    with pytest.raises(ProviderError, match=r"`squeue` has not answered within 0\.1 s"):
        provider.states()


def test_an_interrupted_question_is_not_asked_again_at_the_end() -> None:
    asked: list[str] = []

    def ask() -> dict[str, JobInfo]:
        asked.append("")
        raise KeyboardInterrupt

    polled = PolledJobs(ask)
    polled.add("small", ["1"])
    with pytest.raises(KeyboardInterrupt):
        polled.states()
    assert polled.states() == {"1": JobInfo("small", PENDING)}
    assert len(asked) == 1


def test_a_site_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ProviderError, match="`squeue` cannot be run: No such file or directory"):
        SlurmProvider("lab", {"small": launch()}).states()


def test_only_jobs_that_wait_are_cancelled(stub: Callable[[str, str], Path]) -> None:
    got = stub("scancel", "true")
    SlurmProvider("lab", {"small": launch()}).cancel(["1_0", "1_1"])
    assert got.read_text().split() == ["--quiet", "--state=PENDING", "1_0", "1_1"]


# --- commands ------------------------------------------------------------------------------------------------------------------


def test_commands_get_what_stands_in_braces(stub: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    submitted, cancelled = stub("q-submit", "true"), stub("q-cancel", "true")
    submit = "q-submit {id} {kind} {output} ${HOME}; printf %s {script} >script"
    small = launch(submit=submit, states="cat q-states", cancel="q-cancel {ids}")
    monkeypatch.chdir(submitted.parent)
    Path("q-states").touch()
    provider = CommandProvider("lab", {"small": small})
    (job,) = provider.submit("small", 1)
    assert submitted.read_text().split() == [job, "small", f"{provider.directory}/{job}.out", os.environ["HOME"]]
    assert Path("script").read_text().startswith("exec '/srv/my python' -m zfabric start --block --address=tcp://head:6790")
    assert Path("script").read_text().endswith(f"--label zfabric-job={job}\n")
    assert provider.states() == {job: JobInfo("small", PENDING)}
    wait_for_poll(monkeypatch)
    Path("q-states").write_text(f"{job} running\nanother running\nzf-lab.small-nothex running\n")
    assert provider.states() == {job: JobInfo("small", RUNNING)}
    Path("q-states").write_text(f"{job} R\n")
    with pytest.raises(ProviderError, match=r"prints the state 'R' of zf-lab\.small-.*: it is to print pending or running"):
        provider.states()
    provider.cancel([job])
    assert cancelled.read_text().strip() == job


def test_the_start_is_a_command_for_the_shell(stub: Callable[[str, str], Path]) -> None:
    got = stub("run-pod", "true")
    plain = CommandProvider("lab", {"small": launch(submit="run-pod {id} -- {start}", states="true", cancel="true")})
    plain.submit("small", 1)
    assert got.read_text().split("\n")[1:6] == ["--", "/srv/my python", "-m", "zfabric", "start"]
    got.unlink()
    CommandProvider("lab", {"small": launch(before=("cd /srv",), submit="run-pod {start}", states="true", cancel="true")}).submit(
        "small", 1
    )
    assert got.read_text().split("\n")[:5] == ["/bin/sh", "-c", "{ cd /srv", "} || exit", got.read_text().split("\n")[4]]


def test_clusters_and_kinds_whose_names_join_alike_do_not_meet(stub: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = stub("q-cancel", "true")
    commands = {"submit": "echo {id} running >>q-states", "states": "cat q-states", "cancel": "q-cancel {ids}"}
    monkeypatch.chdir(cancelled.parent)
    Path("q-states").touch()
    first = CommandProvider("lab", {"gpu-small": launch(**commands)})
    (job,) = first.submit("gpu-small", 1)
    other = CommandProvider("lab-gpu", {"small": launch(**commands)})
    assert other.states() == {}
    other.cancel([job])
    assert not cancelled.exists()
    assert first.states() == {job: JobInfo("gpu-small", RUNNING)}


def test_errors_have_a_length_that_nodes_accept(stub: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands may be long, and print anything."""
    long = f"true '{2000 * 'x'}'\n"
    provider = CommandProvider(
        "lab", {"small": launch(submit=f"{long}printf '\\377\\033%0900d' 0 >&2; false", states="true", cancel="true")}
    )
    errors = []
    with pytest.raises(ProviderError) as raised:
        provider.submit("small", 1)
    errors.append(str(raised.value))
    strange = f"{long}printf 'zf-lab.small-012345 %0900d' 0"
    with pytest.raises(ProviderError) as raised:
        CommandProvider("lab", {"small": launch(submit="true", states=strange, cancel="true")}).states()
    errors.append(str(raised.value))
    monkeypatch.setattr(providers, "COMMAND_SECONDS", 0.1)
    with pytest.raises(ProviderError) as raised:
        CommandProvider("lab", {"small": launch(submit=f"{long}sleep 10", states="true", cancel="true")}).submit("small", 1)
    errors.append(str(raised.value))
    for error in errors:
        report = KindReport("small", (), (), 0, 0, 0, 1, 0.0, error, error)
        assert kind_reports([report]) == (report,)
        assert error.startswith("`true 'xxx")
        assert "x…` " in error


def test_a_directory_of_output_that_is_removed_is_made_again(stub: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_poll(monkeypatch)
    stub("sbatch", "echo 1")
    stub("squeue", "true")
    makers: list[Callable[[], Provider]] = [
        lambda: local(""),
        lambda: SlurmProvider("lab", {"small": launch()}),
        lambda: CommandProvider("lab", {"small": launch(submit="echo >{output}", states="true", cancel="true")}),
    ]
    for make in makers:
        provider = make()
        shutil.rmtree(provider.directory)
        assert provider.states() == {}
        shutil.rmtree(provider.directory, ignore_errors=True)
        provider.submit("small", 1)
        assert os.path.isdir(provider.directory)
        wait_for_end(provider)
    shutil.rmtree(provider.directory)
    Path(provider.directory).parent.rmdir()
    Path(provider.directory).parent.touch()
    for call in (makers[1], lambda: provider.submit("small", 1)):
        with pytest.raises(ProviderError, match=r"^the directory of jobs' output, .*/autoscale/lab, cannot be made: "):
            call()


# --- processes -----------------------------------------------------------------------------------------------------------------


def local(script: str) -> LocalProvider:
    return LocalProvider("lab", {"small": KindLaunch((sys.executable, "-c", script))})


def test_processes_are_found_by_another_provider_and_end_at_sigterm(stub: Callable[[str, str], Path]) -> None:
    first = local("import time; time.sleep(100)")
    jobs = first.submit("small", 2)
    other = local("")
    assert other.states() == dict.fromkeys(jobs, JobInfo("small", RUNNING))
    eventually(lambda: all((Path(first.directory) / f"{job}.out").read_text() for job in jobs), "they write their pids")
    other.cancel(jobs[:1])
    eventually(lambda: list(other.states()) == jobs[1:], "one has ended")
    other.cancel(jobs)
    eventually(lambda: not first.states(), "both have ended")


def test_a_command_before_that_fails_ends_the_job_with_its_words(stub: Callable[[str, str], Path]) -> None:
    command = (sys.executable, "-c", "print('it has begun')")
    provider = LocalProvider("lab", {"small": KindLaunch(command, before=("true # no module", "echo no module cuda >&2; false"))})
    (job,) = provider.submit("small", 1)
    wait_for_end(provider)
    assert reason_of(provider, job) == "no module cuda"


def test_the_reason_is_the_last_error_of_a_job(stub: Callable[[str, str], Path]) -> None:
    failing = local("import sys; sys.exit('Error: no route to host\\nIt can join again later.')")
    (job,) = failing.submit("small", 1)
    wait_for_end(failing)
    assert reason_of(failing, job) == "no route to host"
    silent = local("")
    (job,) = silent.submit("small", 1)
    wait_for_end(silent)
    assert reason_of(silent, job) == f"job {job} has ended without output"
    assert reason_of(silent, "another") == "job another has ended without output"


def test_output_of_ended_jobs_is_retained_for_a_while(stub: Callable[[str, str], Path]) -> None:
    provider = local("")
    for number in range(OUTPUTS_MOST + 5):
        path = Path(provider.directory) / f"small.{number}.out"
        path.touch()
        os.utime(path, (number, number))
    (Path(provider.directory) / "notes").touch()
    assert provider.states() == {}
    left = sorted(os.listdir(provider.directory))
    assert len(left) == OUTPUTS_MOST + 1
    assert "small.4.out" not in left


# --- the file ------------------------------------------------------------------------------------------------------------------

FILE = """
[cluster]
name = "lab"
before = ["module load x"]
key_file = "~/lab.key"

[[kinds]]
name = "gpu"
provider = "slurm"
num_cpus = 8
num_gpus = 1
memory = "1KiB"
resources = { disk = 0.5 }
labels = { zone = "a" }
min = 1
max = 4
grace = 10
sbatch = ["--gpus=1"]

[[kinds]]
name = "pbs"
provider = "command"
python = "/opt/python"
num_cpus = 1
max = 1
submit = "qsub {script}"
states = "list"
cancel = "qdel {ids}"
"""


def test_kinds_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(FILE)
    file = read_scaling_file(str(path))
    assert file[1:5] == ("lab", ("module load x",), "", os.path.expanduser("~/lab.key"))
    amounts = {"CPU": 80_000, "GPU": 10_000, "memory": 10_240_000, "disk": 5_000}
    options = ("--idle-timeout=60", "--wait=300", "--grace=10")
    more = ("--num-cpus=8", "--num-gpus=1", "--memory=1KiB", '--resources={"disk": 0.5}', "--label=zone=a")
    gpu = NodeKind("gpu", amounts, {"zone": "a"}, 1, 4)
    assert file.kinds[0] == KindEntry(gpu, "slurm", sys.executable, (*options, *more), ("--gpus=1",), "", "", "")
    assert file.kinds[1][1:3] == ("command", "/opt/python")
    assert file.kinds[1][5:] == ("qsub {script}", "list", "qdel {ids}")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("max = 4", "", "[[kinds]] 1: has no max: write max = 8"),
        ("min = 1", "min = 5", "[[kinds]] 1: min is 5, which is more than max, 4"),
        ('"slurm"', '"sge"', '[[kinds]] 1: provider is "sge": write "local", "slurm" or "command", as in provider = "slurm"'),
        ("sbatch", "sbacth", "[[kinds]] 1: has no key 'sbacth'; did you mean 'sbatch'?"),
        ("sbatch =", "states = 'x'\nsbatch =", '[[kinds]] 1: states is for provider = "command", and the provider is "slurm"'),
        ('states = "list"', "", "[[kinds]] 2: has no states: write states = "),
        ('"pbs"', '"gpu"', "the kind 'gpu' is there twice: choose another name"),
        ("max = 4", f"max = {10**30}", "[[kinds]] 1: max is 1000000000000000000000000000000: write a whole number, from 1 to 10,000, as"),
        ("min = 1", "min = -1", "[[kinds]] 1: min is -1: write a whole number, from 0 to 10,000, as in min = 0"),
        ("num_cpus = 8", f"num_cpus = {10**30}", "[[kinds]] 1: num_cpus is at most "),
        ("grace = 10", "idle_timeout = nan", "idle_timeout is NaN: write a time in seconds"),
        (
            '{ zone = "a" }',
            '{ zfabric-kind = "a" }',
            "[[kinds]] 1: labels has 'zfabric-kind', which the autoscaler sets",
        ),
        ("[[kinds]]", "[[kinds]]\n" * 101, " has 202 [[kinds]]: write at most 100"),
        ("grace = 10", "grace = -1", "[[kinds]] 1: grace is -1: write a time in seconds, above 0 and up to 10,000,000, as in grace = 25"),
        ("[[kinds]]", "[[kind]]", "the file has no section 'kind'; did you mean 'kinds'?"),
        (FILE[FILE.index("[[kinds]]") :], "", 'has no [[kinds]]: write [[kinds]] with name = "small", provider = "slurm"'),
        (
            "key_file",
            'address = "head:6790"\nkey_file',
            '[cluster] address is "head:6790": write the address of the head, as in address = "tcp',
        ),
    ],
)
def test_errors_of_a_file_say_what_to_write(tmp_path: Path, old: str, new: str, error: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        read_scaling_file(str(path))
    assert error in str(raised.value)
