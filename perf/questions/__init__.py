"""The questions, in the order in which they are listed and asked; one file each."""

from __future__ import annotations

import importlib

from perf.question import Question

MODULES = (
    "tasks_async",
    "tasks_sync",
    "cpu_per_task",
    "args_8kb",
    "args_ref_1mb",
    "chain",
    "reduce_tree",
    "nested",
    "recursion",
    "wait_one_at_a_time",
    "actor_sync",
    "actor_async",
    "actor_args_8kb",
    "actor_values",
    "actor_n_n",
    "actor_create",
    "actor_create_light",
    "actor_logged",
    "actor_replay",
    "actors_10000_memory",
    "put_small",
    "get_small",
    "put_large",
    "get_large",
    "init",
    "import_time",
    "idle",
    "queued_million",
    "transfer",
    "lineage",
    "pipeline",
    "joblib",
    "dask_graphs",
    "page",
    "nodes_ready",
    "nodes_idle",
    "nodes_beside",
    "nodes_elsewhere",
    "nodes_actor",
    "nodes_refs",
    "nodes_placing",
    "nodes_locality",
    "nodes_fanout",
    "nodes_busy",
    "nodes_killed",
    "nodes_restart",
    "nodes_late",
    "nodes_peers",
    "libraries",
)


def load() -> dict[str, Question]:
    """All questions by name."""
    questions = [importlib.import_module(f"perf.questions.{name}").QUESTION for name in MODULES]
    return {question.name: question for question in questions}
