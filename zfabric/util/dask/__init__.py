"""Dask on the cluster: ``x.compute(scheduler=get)``, or ``dask.config.set(scheduler=get)`` for all that follows.

Ready tasks run together, as many as a few milliseconds allow, as one task of the cluster. Values between them stay in the store; only what
was asked for comes to the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import dask
    from dask._task_spec import convert_legacy_graph as _convert_legacy_graph  # noqa: F401  # Older versions have none.
except ImportError as error:
    raise ImportError("zfabric.util.dask needs Dask 2025.1 or newer: pip install 'zfabric[dask]'") from error

from zfabric.util.dask.graphs import StoredValue
from zfabric.util.dask.scheduler import compute

__all__ = [
    "StoredValue",
    "disable_dask_on_ray",
    "disable_dask_on_zfabric",
    "enable_dask_on_ray",
    "enable_dask_on_zfabric",
    "get",
    "persist",
    "ray_dask_get",
]


def get(dsk: Any, keys: Any, *, options: Mapping[str, Any] | None = None, callbacks: Any = None, **_settings: Any) -> Any:
    """Run the graph ``dsk`` on the cluster, and return the values of ``keys``: one key, or lists of keys, as nested tuples.

    This is a scheduler of Dask's: programs pass it as ``scheduler=``. The cluster is started if there is none. ``options`` are those of
    ``zf.remote`` for the tasks: ``num_cpus``, ``resources``, ``max_retries``, ``runtime_env``, … ``callbacks`` are Dask's own. Settings of
    other schedulers (``num_workers``, ``pool``, …) have no effect.

    Raises what a task has raised, KeyError for keys that the graph lacks, ValueError if it lacks what a task needs, RuntimeError for a
    cycle, and OptionError for invalid options. An error or Ctrl-C cancels what still runs.

    >>> import dask
    >>> from zfabric.util.dask import get
    >>> total = dask.delayed(sum)([dask.delayed(pow)(n, 2) for n in range(4)])
    >>> total.compute(scheduler=get)
    14
    """
    return compute(dsk, keys, options or {}, False, callbacks)


def _get_stored(dsk: Any, keys: Any, *, options: Mapping[str, Any] | None = None, callbacks: Any = None, **_settings: Any) -> Any:
    """Run a graph; return what stands for the values, which stay in the store."""
    return compute(dsk, keys, options or {}, True, callbacks)


def persist(*collections: Any, **settings: Any) -> tuple[Any, ...]:
    """Compute ``collections`` (arrays, data frames, bags, delayed values) and return them with their values, which stay in the store.

    ``settings`` are those of ``dask.persist`` and of ``get``. The values are released with the last collection that needs them. From Dask
    2026.1 on, ``dask.persist`` and ``x.persist()`` with the scheduler ``get`` (or ``ray_dask_get``) do the same; before, they fetch the
    values.

    >>> import dask
    >>> from zfabric.util.dask import get, persist
    >>> (squares,) = persist(dask.delayed(pow)(3, 2))
    >>> (squares + 1).compute(scheduler=get)
    10
    """
    found: tuple[Any, ...] = dask.persist(*collections, **{**settings, "scheduler": _get_stored})
    return found


def _persist(collections: Any, **settings: Any) -> tuple[Any, ...]:
    """Dask calls it for ``x.persist(scheduler=get)``."""
    return persist(*collections, **settings)


vars(get)["persist"] = _persist


def enable_dask_on_zfabric() -> Any:
    """Make ``get`` Dask's scheduler, and ``"tasks"`` the way in which data frames are shuffled.

    Takes effect at once; used as a context manager, until the end of its block.

    >>> import dask
    >>> from zfabric.util.dask import enable_dask_on_zfabric
    >>> with enable_dask_on_zfabric():
    ...     dask.delayed(abs)(-3).compute()
    3
    """
    return dask.config.set({"scheduler": get, "dataframe.shuffle.method": "tasks"})


def disable_dask_on_zfabric() -> Any:
    """Make Dask choose its scheduler and its shuffle by itself again."""
    return dask.config.set({"scheduler": None, "dataframe.shuffle.method": None})


def ray_dask_get(
    dsk: Any,
    keys: Any,
    *,
    ray_persist: bool = False,
    ray_remote_args: Mapping[str, Any] | None = None,
    callbacks: Any = None,
    **_settings: Any,
) -> Any:
    """Run the graph ``dsk`` for ``keys`` as ``get`` does, with its ``callbacks``, under Ray's names.

    ``ray_remote_args`` are the ``options`` of ``get``. With ``ray_persist=True`` it returns what stands for the values, which stay in the
    store: each has its ``ref``.
    """
    return compute(dsk, keys, ray_remote_args or {}, ray_persist, callbacks)


def _persist_under_rays_names(collections: Any, *, ray_remote_args: Mapping[str, Any] | None = None, **settings: Any) -> tuple[Any, ...]:
    """Dask calls it for ``x.persist(scheduler=ray_dask_get)``."""
    return persist(*collections, **settings, options=ray_remote_args)


vars(ray_dask_get)["persist"] = _persist_under_rays_names

enable_dask_on_ray = enable_dask_on_zfabric
disable_dask_on_ray = disable_dask_on_zfabric
