"""How fast are programs of Ray's libraries, unchanged, beside Ray itself?

The programs are those of ``tests/libraries``, in the environments that ``./scripts/test-libraries`` makes. Each runs from its first process
to its last on zfabric and, with ``--peers``, on the Ray of the same environment, in turns. Where a program's libraries are not installed,
the question fails and names them. A median of walls below Ray's, a mean of 1.5 times Ray, and rates above Ray's are what is wanted.
"""

from __future__ import annotations

import json
import statistics
import sys

from perf import machine
from perf.programs import run_program
from perf.question import Aim, Question, Run, Samples

PROGRAMS = {
    "tune_trials": "trials/s",
    "rllib_ppo": "env steps/s",
    "rllib_dqn": "env steps/s",
    "data_pipeline": "rows/s",
    "train_ddp": "rows/s",
    "serve_application": "requests/s",
    "modin_frames": "rows/s",
    "daft_query": "rows/s",
    "flower_fedavg": "rounds/s",
    "evotorch_snes": "generations/s",
}
"""Program -> the unit of its steady rate."""
ENVIRONMENTS = {"flower_fedavg": ".venv-libraries-flower"}
"""The environment of a program that has not the usual one."""
PROGRAM_SECONDS_MAX = 240
MEAN = "times Ray, geometric mean"


def measure(run: Run) -> dict[str, Samples]:
    """Wall time and steady rate of each program, one run of each system a round."""
    samples = {name: Samples([]) for name in FIGURES}
    for _ in range(run.repeat):
        for program in QUICK if run.quick else PROGRAMS:
            _add(samples, program, "", *_once(program, on_ray=False))
            if "ray" in run.peers:
                _add(samples, program, "ray", *_once(program, on_ray=True))
    walls = {name: each for name, each in samples.items() if name.endswith(": wall") and each.peers}
    ratios = [statistics.median(each.peers["ray"]) / statistics.median(each.values) for each in walls.values()]
    if ratios:
        samples[MEAN] = Samples([statistics.geometric_mean(ratios)])
    return {name: each for name, each in samples.items() if each.values}


def _add(samples: dict[str, Samples], program: str, peer: str, wall: float, rate: float) -> None:
    for figure, value in ((f"{program}: wall", wall), (f"{program}: steady rate", rate)):
        (samples[figure].peers.setdefault(peer, []) if peer else samples[figure].values).append(value)


def _once(program: str, on_ray: bool) -> tuple[float, float]:
    """Seconds from the start of the program's process to its end, and the rate that it reports."""
    interpreter = machine.ROOT / ENVIRONMENTS.get(program, ".venv-libraries") / "bin" / "python"
    if not interpreter.exists():
        raise RuntimeError(f"{interpreter.parents[1].name} does not exist: ./scripts/test-libraries makes it")
    command = [str(interpreter), *([] if on_ray else ["-m", "zfabric.as_ray"]), f"{program}.py"]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", **({"PYTHONPATH": ""} if on_ray else {})}
    ended = run_program(command, machine.ROOT / "tests" / "libraries" / "programs", PROGRAM_SECONDS_MAX, variables)
    system = "Ray" if on_ray else "zfabric"
    if ended.problem:
        raise RuntimeError(f"{program} on {system} {ended.report}")
    outcome = json.loads(next(line for line in reversed(ended.output.splitlines()) if line.startswith('{"program"')))
    print(f"{program} on {system}: {ended.seconds:.1f} s, {outcome['rate']:.4g} {outcome['unit']}", file=sys.stderr, flush=True)
    return ended.seconds, float(outcome["rate"])


QUICK = ("evotorch_snes",)
"""What a quick run has of the programs."""
FIGURES = {
    **{f"{program}: wall": ("s", False) for program in PROGRAMS},
    **{f"{program}: steady rate": (unit, True) for program, unit in PROGRAMS.items()},
}
QUESTION = Question(
    "libraries",
    "programs of Tune, RLlib, Data, Train, Serve, Modin, Daft, Flower and EvoTorch, unchanged, beside Ray",
    (*(Aim(figure, unit, better) for figure, (unit, better) in FIGURES.items()), Aim(MEAN, "", True, 1.5, to_be_done=1.5)),
    measure,
    seconds_max=1200,
    apart=True,
)
