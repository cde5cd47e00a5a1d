"""Lists and summaries of tasks, actors, objects, nodes, jobs, workers and placement groups, under Ray's names.

Rows are dictionaries whose keys are attributes, too, with Ray's words for states. The same queries serve ``zfabric tasks --json`` and its
neighbours, which have more columns.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from zfabric.api.lifecycle import connected
from zfabric.protocol.messages.queries import LIST_LIMIT

TASK_STATES = {
    "waiting": "PENDING_ARGS_AVAIL",
    "queued": "PENDING_NODE_ASSIGNMENT",
    "infeasible": "PENDING_NODE_ASSIGNMENT",
    "assigned": "SUBMITTED_TO_WORKER",
    "running": "RUNNING",
    "blocked": "RUNNING_IN_RAY_GET",
    "finished": "FINISHED",
    "failed": "FAILED",
}
"""Ray's names of task states."""
ACTOR_STATES = {"alive": "ALIVE", "blocked": "ALIVE", "ending": "ALIVE", "dead": "DEAD", "restarting": "RESTARTING"}
"""Ray's names of actor states; all others are of actors being made."""

Filter = tuple[str, str, Any]
"""(column, "=" or "!=", value)"""


class StateRow(dict[str, Any]):
    """A row: ``row["state"]`` and ``row.state`` are the same."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this row has no {name!r}; it has {', '.join(self)}") from None


def list_tasks(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List tasks of all nodes, the running ones first; ended ones as long as somebody refers to their values.

    ``filters`` are ``(column, "=" or "!=", value)``, all of which must hold. At most ``limit`` (up to 10,000) rows are returned. Raises
    ValueError for an unknown column or a limit out of bounds. Filters of columns other than the state look at the first 10,000 tasks; a
    RuntimeWarning says so where there are more.

    >>> import zfabric as zf
    >>> from zfabric.util.state import list_tasks
    >>> ref = zf.remote(lambda: 1).options(name="one").remote()
    >>> zf.get(ref)
    1
    >>> [task.state for task in list_tasks(filters=[("name", "=", "one")])]
    ['FINISHED']
    """
    states = [each[2] for each in filters or () if isinstance(each, (tuple, list)) and len(each) == 3 and each[:2] == ("state", "=")]
    asked = [own for own, known in TASK_STATES.items() if all(known == str(state).upper() for state in states)]
    return _chosen(_located("tasks", _task, tuple(asked)), filters, limit, "list_tasks", ignored)


def list_actors(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List actors of all nodes. Arguments and errors as in ``list_tasks``.

    >>> from zfabric.util.state import list_actors
    >>> list_actors(filters=[("class_name", "=", "Nobody")])
    []
    """
    return _chosen(_located("actors", _actor), filters, limit, "list_actors", ignored)


def list_objects(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List values of all nodes, with sizes in bytes. Arguments and errors as in ``list_tasks``.

    >>> import zfabric as zf
    >>> from zfabric.util.state import list_objects
    >>> ref = zf.put(b"x" * 1000)
    >>> any(row.object_id == ref.hex() for row in list_objects(limit=10_000))
    True
    """
    return _chosen(_located("objects", _object), filters, limit, "list_objects", ignored)


def list_nodes(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List the living nodes. Arguments and errors as in ``list_tasks``.

    >>> from zfabric.util.state import list_nodes
    >>> [node.state for node in list_nodes()]
    ['ALIVE']
    """
    return _chosen([_node(row) for row in connected().query("nodes")], filters, limit, "list_nodes", ignored)


def list_jobs(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List the jobs that this node knows. Arguments and errors as in ``list_tasks``.

    >>> from zfabric.util.state import list_jobs
    >>> list_jobs()[0].status
    'RUNNING'
    """
    rows = [
        StateRow(
            job_id=row["job"],
            status="STOPPED" if row["ended"] else "RUNNING",
            driver_pid=row["pid"],
            namespace=row["namespace"],
            submission_id=row["submission_id"],
            entrypoint=row["command"],
        )
        for row in connected().query("status")["jobs"]
    ]
    return _chosen(rows, filters, limit, "list_jobs", ignored)


def list_workers(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List the worker processes of all nodes. Arguments and errors as in ``list_tasks``.

    >>> from zfabric.util.state import list_workers
    >>> all(worker.is_alive for worker in list_workers())
    True
    """
    return _chosen(_located("workers", _worker), filters, limit, "list_workers", ignored)


def list_placement_groups(*, filters: Sequence[Filter] | None = None, limit: int = 100, **ignored: Any) -> list[StateRow]:
    """List the placement groups of all nodes that were not removed. Arguments and errors as in ``list_tasks``.

    >>> import zfabric as zf
    >>> from zfabric.util.state import list_placement_groups
    >>> group = zf.util.placement_group([{"CPU": 1}], name="listed")
    >>> [each.placement_group_id == group.id.hex() for each in list_placement_groups(filters=[("name", "=", "listed")])]
    [True]
    >>> zf.util.remove_placement_group(group)
    """
    rows = [_group(row) for row in connected().query("groups")]
    return _chosen(rows, filters, limit, "list_placement_groups", ignored)


def get_task(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the task with this id (hexadecimal), or None. Ray's other arguments are ``ignored``, here and below."""
    return next(iter(list_tasks(filters=[("task_id", "=", id)], limit=1, **ignored)), None)


def get_actor(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the actor with this id (hexadecimal), or None."""
    return next(iter(list_actors(filters=[("actor_id", "=", id)], limit=1, **ignored)), None)


def get_node(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the node with this id (hexadecimal), or None."""
    return next(iter(list_nodes(filters=[("node_id", "=", id)], limit=1, **ignored)), None)


def get_job(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the job with this id (hexadecimal), or None."""
    return next(iter(list_jobs(filters=[("job_id", "=", id)], limit=1, **ignored)), None)


def get_worker(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the worker with this id (hexadecimal), or None."""
    return next(iter(list_workers(filters=[("worker_id", "=", id)], limit=1, **ignored)), None)


def get_placement_group(id: str, **ignored: Any) -> StateRow | None:
    """Return the row of the placement group with this id (hexadecimal); None if there is none, or it was removed."""
    return next(iter(list_placement_groups(filters=[("placement_group_id", "=", id)], limit=1, **ignored)), None)


def get_objects(id: str, **ignored: Any) -> list[StateRow]:
    """Return the rows of the value with this id (hexadecimal): one, or none."""
    return list_objects(filters=[("object_id", "=", id)], **ignored)


def summarize_tasks(**ignored: Any) -> dict[str, Any]:
    """Count the tasks of each function by state, also ended ones to which nobody refers any more.

    >>> import zfabric as zf
    >>> from zfabric.util.state import summarize_tasks
    >>> zf.get([zf.remote(lambda: 1).options(name="counted").remote() for _ in range(3)])
    [1, 1, 1]
    >>> isinstance(summarize_tasks()["cluster"]["total_tasks"], int)
    True
    """
    _check_ignored("summarize_tasks", ignored)
    summary: dict[str, Any] = {}
    total = actors = 0
    for row in connected().query("functions"):
        counts = {
            "PENDING": row["waiting"],
            "RUNNING": row["running"],
            "FINISHED": row["finished"],
            "FAILED": row["failed"],
        }
        counts = {state: count for state, count in counts.items() if count}
        known = summary.setdefault(row["name"], {"func_or_class_name": row["name"], "type": _TYPES[row["kind"]], "state_counts": Counter()})
        known["state_counts"].update(counts)
        total += sum(counts.values()) if row["kind"] == "function" else 0
        actors += sum(counts.values()) if row["kind"] == "class" else 0
    for known in summary.values():
        known["state_counts"] = dict(known["state_counts"])
    return {"cluster": {"summary": summary, "total_tasks": total, "total_actor_scheduled": actors, "summary_by": "func_name"}}


_TYPES = {"function": "NORMAL_TASK", "class": "ACTOR_CREATION_TASK"}


def summarize_actors(**ignored: Any) -> dict[str, Any]:
    """Count the actors of each class by state: of the first 10,000, with a RuntimeWarning if there are more.

    >>> from zfabric.util.state import summarize_actors
    >>> summarize_actors()["cluster"]["summary_by"]
    'class'
    """
    _check_ignored("summarize_actors", ignored)
    rows = [_actor(row) for row in connected().query("actors", LIST_LIMIT)]
    _warn_if_cut("summarize_actors", len(rows))
    summary: dict[str, Any] = {}
    for row in rows:
        known = summary.setdefault(row.class_name, {"class_name": row.class_name, "state_counts": {}})
        known["state_counts"][row.state] = known["state_counts"].get(row.state, 0) + 1
    return {"cluster": {"summary": summary, "total_actors": len(rows), "summary_by": "class"}}


def summarize_objects(**ignored: Any) -> dict[str, Any]:
    """Count values and their bytes by the function that made them ("put" for values that were put).

    Only the first 10,000 values count; a RuntimeWarning says so if there are more.

    >>> from zfabric.util.state import summarize_objects
    >>> summarize_objects()["cluster"]["summary_by"]
    'made_by'
    """
    _check_ignored("summarize_objects", ignored)
    rows = connected().query("objects", LIST_LIMIT)
    _warn_if_cut("summarize_objects", len(rows))
    summary: dict[str, Any] = {}
    for row in rows:
        known = summary.setdefault(row["made_by"], {"total_objects": 0, "total_size_mb": 0.0, "total_size_bytes": 0})
        known["total_objects"] += 1
        known["total_size_bytes"] += row["size"]
        known["total_size_mb"] = known["total_size_bytes"] / 2**20
    size = sum(row["size"] for row in rows) / 2**20
    return {"cluster": {"summary": summary, "total_objects": len(rows), "total_size_mb": size, "summary_by": "made_by"}}


def _located(what: str, kind: Callable[[dict[str, Any]], StateRow], *arguments: Any) -> list[StateRow]:
    """The rows of a query, each with its node's name and id: where a task runs or was submitted, and where an actor lives."""
    client = connected()
    nodes = client.query("nodes")
    ids = {row.get("name", ""): row["node"] for row in nodes}  # No two have the same name.
    alone = nodes[0].get("name", "") if len(nodes) == 1 else ""  # Rows of a lone node do not name it.
    rows = client.query(what) if what == "workers" else client.query(what, LIST_LIMIT, *arguments)
    names = [row.get("node") or alone for row in rows]
    return [StateRow({**kind(row), "node": name, "node_id": ids.get(name, "")}) for row, name in zip(rows, names, strict=True)]


def _worker(row: dict[str, Any]) -> StateRow:
    return StateRow(worker_id=row["token"], pid=row["pid"], is_alive=True, worker_type="WORKER", state=row["state"])


def _task(row: dict[str, Any]) -> StateRow:
    return StateRow(
        task_id=row["task_id"],
        name=row["name"],
        func_or_class_name=row["function"],
        state=TASK_STATES[row["state"]],
        job_id=row["job"],
        attempt_number=row["attempt"],
        worker_pid=row["pid"] or None,
        required_resources=row["demand"],
        seconds=row["seconds"],
    )


def _actor(row: dict[str, Any]) -> StateRow:
    return StateRow(
        actor_id=row["actor_id"],
        class_name=row["class"],
        name=row["name"],
        state=ACTOR_STATES.get(row["state"], "PENDING_CREATION"),
        job_id=row["job"],
        pid=row["pid"] or None,
        ray_namespace=row["namespace"],
        num_restarts=row["restarts"],
        is_detached=row["detached"],
        death_cause=row["reason"] or None,
    )


def _object(row: dict[str, Any]) -> StateRow:
    return StateRow(
        object_id=row["object_id"],
        object_size=row["size"],
        task_status=TASK_STATES.get({"pending": "waiting", "failed": "failed"}.get(row["state"], "finished")),
        where=row["where"],
        made_by=row["made_by"],
        holders=row["holders"],
    )


def _node(row: dict[str, Any]) -> StateRow:
    return StateRow(
        node_id=row["node"],
        node_name=row.get("name", ""),
        node_ip=row.get("address", "").rpartition("//")[2].rpartition(":")[0] or "127.0.0.1",
        state="ALIVE",
        is_head_node=bool(row.get("head", True)),
        resources_total=row["resources"],
        labels=row.get("labels", {}),
    )


def _group(row: dict[str, Any]) -> StateRow:
    return StateRow(
        placement_group_id=row["group"],
        name=row["name"],
        state=row["state"],
        strategy=row["strategy"],
        is_detached=row["detached"],
        bundles=list(row["bundles"]),
        bundles_to_node_id=list(row["places"]),
        node=row.get("node", ""),
    )


def _chosen(rows: list[StateRow], filters: Sequence[Filter] | None, limit: int, what: str, ignored: dict[str, Any]) -> list[StateRow]:
    _check_ignored(what, ignored)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= LIST_LIMIT:
        raise ValueError(f"{what}: limit is a number of rows from 1 to {LIST_LIMIT:,}, not {limit!r}")
    found = len(rows)
    for each in filters or ():
        if not (isinstance(each, (tuple, list)) and len(each) == 3 and each[1] in ("=", "!=")):
            raise ValueError(f'{what}: a filter is (column, "=" or "!=", value), not {each!r}')
        column, sign, value = each
        if rows and column not in rows[0]:
            raise ValueError(f"{what}: there is no column {column!r}; there are {', '.join(rows[0])}")
        wanted = str(value).lower()
        rows = [row for row in rows if (str(row[column]).lower() == wanted) == (sign == "=")]
    if len(rows) < limit:
        _warn_if_cut(what, found)
    return rows[:limit]


def _warn_if_cut(what: str, rows: int) -> None:
    if rows >= LIST_LIMIT:
        warnings.warn(f"{what}: only the first {LIST_LIMIT:,} were looked at, and there may be more", RuntimeWarning, stacklevel=3)


def _check_ignored(what: str, given: dict[str, Any]) -> None:
    unknown = given.keys() - {"detail", "timeout", "raise_on_missing_output", "explain", "address"}
    if unknown:
        raise TypeError(f"{what}() has no argument {sorted(unknown)[0]!r}")
