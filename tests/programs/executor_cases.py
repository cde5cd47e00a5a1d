"""CPython's own tests of executors, with ``zf.Executor`` in place of the standard library's.

A script: ``test_executor`` starts it where the package ``test`` is that of an interpreter which has them. It prints how many
passed, and exits with 1 if one failed.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from test import test_concurrent_futures as theirs  # type: ignore[import-untyped]

import zfabric as zf

OTHERS = {
    "test_free_reference": "the thread that sets a result may be slow to forget it, as theirs; test_map_retains_no_result waits for it",
    "test_killed_child": "it kills a child of the pool, and all calls fail; here the worker's call runs again",
    "test_processes_terminate": "it shares a semaphore with children of the pool; workers are no children of the program",
    "test_saturation": "the same",
    "test_context_manager_shutdown": "it looks at the pool's own processes",
    "test_del_shutdown": "the same",
    "test_shutdown_no_wait": "the same",
    "test_idle_process_reuse_one": "the same",
    "test_idle_process_reuse_multiple": "the same",
    "test_shutdown_deadlock_pickle": "it looks at the pool's own thread",
    "test_ressources_gced_in_workers": "a multiprocessing.Manager admits only children of the program, unless workers set its key",
    "test_max_tasks_per_child": "an option of ProcessPoolExecutor that zf.Executor does not have",
    "test_max_tasks_per_child_defaults_to_spawn_context": "the same",
    "test_max_tasks_early_shutdown": "the same",
    "test_max_workers_too_large": "for Windows",
    "test_traceback": "the error is a TaskError, too, which has the remote traceback in its text and not as its cause",
    "test_exit_during_func_exec_on_worker": "a call that exits raises a TaskError, which ends no program that reads it",
    "test_error_at_task_unpickle": "the call fails, with the error, and the pool is not broken",
    "test_exit_at_task_unpickle": "the same",
    "test_error_during_result_unpickle_in_result_handler": "the same",
    "test_exit_during_result_unpickle_in_result_handler": "the same",
    "test_exit_during_result_pickle_on_worker": "the same",
}
"""Cases that cannot hold for a cluster's workers, and why. Those for threads alone, which look at them, are not taken."""
CPUS = 12
"""Calls of several cases sleep side by side."""
LONGER = {3: 9.0}
"""A case takes for granted that who waits for a call of 1.5 s goes on before one of 3 s has ended: on a busy machine it may not."""


def sleep(seconds: float) -> None:
    """Sleep, in calls of the cases."""
    time.sleep(LONGER.get(seconds, seconds))


class ZfabricExecutor(zf.Executor):
    """Takes the context of multiprocessing that pools of processes take, and does not use it."""

    def __init__(self, *args: Any, mp_context: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Ours(theirs.ExecutorMixin):  # type: ignore[misc, no-any-unimported]
    executor_type = ZfabricExecutor

    def get_context(self) -> Any:
        return multiprocessing.get_context("spawn")


class FailingInitializerTest(theirs.FailingInitializerMixin, Ours, unittest.TestCase):  # type: ignore[misc, no-any-unimported]
    def setUp(self) -> None:
        self.executor_kwargs = {"initializer": theirs.init_fail}
        self.log_queue = None  # The error is logged in this process, as with threads.
        theirs.ExecutorMixin.setUp(self)


def run_program(_: str, code: str) -> tuple[int, bytes, bytes]:
    """Run a case's own program with ``ZfabricExecutor``; return its output without the name of the call that printed it."""
    code = code.replace("from concurrent.futures", "from executor_cases")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    return ran.returncode, re.sub(rb"(?m)^\(\w+ pid=\d+\) ", b"", ran.stdout), ran.stderr


def all_cases() -> list[Any]:
    mixins = [theirs.InitializerMixin, theirs.ProcessPoolShutdownTest, theirs.ExecutorDeadlockTest, *SLEEPING]
    kinds = [type(each.__name__, (each, Ours, unittest.TestCase), dict.fromkeys(OTHERS)) for each in mixins]
    return [case for kind in [*kinds, FailingInitializerTest] for case in unittest.defaultTestLoader.loadTestsFromTestCase(kind)]


SLEEPING = (theirs.WaitTests, theirs.AsCompletedTests, theirs.ProcessPoolExecutorTest)
"""Cases that mostly sleep, and run side by side."""


def main() -> int:
    theirs.assert_python_ok = run_program
    theirs.BrokenProcessPool, theirs.PicklingError = zf.WorkerCrashedError, zf.SerializationError
    theirs.time = SimpleNamespace(**{**vars(time), "sleep": sleep})
    zf.init(num_cpus=CPUS, log_to_driver=False, config={"preload": (theirs.__name__,)})
    cases = all_cases()
    results = [unittest.TestResult() for _ in cases]
    with ThreadPoolExecutor(CPUS) as side_by_side:
        side_by_side.map(lambda case, result: isinstance(case, SLEEPING) and case.run(result), cases, results)
        for case, result in zip(cases, results, strict=True):
            if not isinstance(case, SLEEPING):
                case.run(result)
    zf.shutdown()
    for result in results:
        for case, text in result.failures + result.errors:
            print(case, text, sep="\n", file=sys.stderr)
    print(sum(result.wasSuccessful() and not result.skipped for result in results))
    return not all(result.wasSuccessful() for result in results)


if __name__ == "__main__":
    sys.exit(main())
