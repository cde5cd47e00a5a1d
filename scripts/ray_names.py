"""Compares the public names of a Ray that is installed beside us with ours and with docs/migrating-from-ray.md.

    python scripts/ray_names.py PYTHON           # an interpreter that can import ray
    python scripts/ray_names.py PYTHON --write   # also keeps the names, in tests/programs/ray_names.json

It prints what is neither ours nor on the page. What is compared: the names in Ray's public modules, the public attributes of its
classes that programs use, and the keywords of its functions. A test does the same with the names that were kept, without Ray.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "programs" / "ray_names.json"
PAGE = ROOT / "docs" / "migrating-from-ray.md"

COLLECT = """
import inspect, json, warnings
warnings.simplefilter("ignore")
import ray, ray.actor, ray.exceptions, ray.util, ray.util.queue, ray.util.multiprocessing, ray.util.scheduling_strategies
import ray.util.actor_pool, ray.runtime_context, ray.cross_language, ray.util.multiprocessing.pool as pool

def listed(thing):
    return sorted(getattr(thing, "__all__", None) or (name for name in vars(thing) if not name.startswith("_")))

def own(module):
    for name in listed(module):
        thing = getattr(module, name, None)
        if not inspect.ismodule(thing) and getattr(thing, "__module__", "ray").startswith("ray"):
            yield name

def members(kind):
    return sorted(name for name in dir(kind) if not name.startswith("_") and name not in dir(Exception))

modules = {"ray": listed(ray), "ray.util": listed(ray.util), "ray.actor": ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]}
kinds = {name: getattr(ray.exceptions, name) for name in own(ray.exceptions)}
modules["ray.exceptions"] = [name for name, kind in kinds.items() if inspect.isclass(kind) and issubclass(kind, BaseException)]
modules["ray.util.queue"] = [name for name in ("Queue", "Empty", "Full")]
modules["ray.util.multiprocessing"] = sorted({*listed(ray.util.multiprocessing)})
modules["ray.util.scheduling_strategies"] = [name for name in own(ray.util.scheduling_strategies) if name.endswith("Strategy")]
classes = {
    "ray.runtime_context.RuntimeContext": ray.runtime_context.RuntimeContext,
    "ray.ObjectRef": ray.ObjectRef,
    "ray.ObjectRefGenerator": ray.ObjectRefGenerator,
    "ray.util.ActorPool": ray.util.ActorPool,
    "ray.util.queue.Queue": ray.util.queue.Queue,
    "ray.util.multiprocessing.Pool": pool.Pool,
    "ray.exceptions.RayTaskError": ray.exceptions.RayTaskError,
    "ray.exceptions.RayActorError": ray.exceptions.RayActorError,
}
called = ("init", "shutdown", "get", "put", "wait", "cancel", "kill", "get_actor", "timeline", "nodes")
functions = {"ray." + name: getattr(ray, name) for name in called}
functions["ray.util.as_completed"] = ray.util.as_completed
functions["ray.util.map_unordered"] = ray.util.map_unordered
functions["ray.util.ActorPool"] = ray.util.ActorPool.__init__
functions["ray.util.ActorPool.map"] = ray.util.ActorPool.map
functions["ray.util.ActorPool.get_next"] = ray.util.ActorPool.get_next
functions["ray.util.queue.Queue"] = ray.util.queue.Queue.__init__
functions["ray.util.multiprocessing.Pool"] = pool.Pool.__init__
from ray._common import ray_option_utils as options
def keywords(function):
    named = inspect.signature(function).parameters.items()
    return [name for name, parameter in named if name != "self" and parameter.kind != parameter.VAR_KEYWORD]

print(json.dumps({
    "version": ray.__version__,
    "names": sorted(f"{module}.{name}" for module, names in modules.items() for name in names),
    "members": {path: members(kind) for path, kind in classes.items()},
    "keywords": {path: keywords(function) for path, function in functions.items()},
    "options": {"functions": sorted(options.task_options), "classes": sorted(options.actor_options)},
}))
"""


class _Quoted:
    """What a page has between backticks."""

    def __init__(self, page: str) -> None:
        self.page = page

    def __contains__(self, name: str) -> bool:
        return f"`{name}`" in self.page


def missing(names: dict[str, Any], page: str) -> list[str]:
    """Those of Ray's names that are neither ours nor on the page."""
    import zfabric as zf
    from zfabric.api import lifecycle, options
    from zfabric.api.context import RuntimeContext

    quoted = _Quoted(page)
    ours = {"ray.runtime_context.RuntimeContext": RuntimeContext}
    lacking = [name for name in names["names"] if name not in quoted and not _exists(zf, name)]
    for path, members in names["members"].items():
        kind = ours.get(path) or _found(zf, path)
        short = path.rpartition(".")[2]
        lacking += [f"{short}.{each}" for each in members if not hasattr(kind, each) and f"{short}.{each}" not in quoted]
    for path, keywords in names["keywords"].items():
        taken = inspect.signature(_found(zf, path)).parameters
        short = path.partition(".")[2]
        lacking += [
            f"{short}({each}=)" for each in keywords if each not in taken and each not in quoted and f"{short}({each}=)" not in quoted
        ]
    lacking += [f"init({each}=)" for each in names["keywords"]["ray.init"] if each not in quoted or not _taken_by_init(each, lifecycle)]
    for kind, known in (("functions", options._CHECKS), ("classes", options.ACTOR_OPTIONS)):
        lacking += [f"option {each}" for each in names["options"][kind] if each not in known and each not in quoted]
    return sorted(set(lacking))


def _taken_by_init(name: str, lifecycle: Any) -> bool:
    return name == "local_mode" or name in lifecycle._IGNORED or name in inspect.signature(lifecycle.init).parameters


def _found(root: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root


def _exists(root: Any, path: str) -> bool:
    try:
        _found(root, path)
    except AttributeError:
        return False
    return True


def main() -> None:
    """Ask the interpreter, compare, and say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("python", help="an interpreter in whose environment Ray is installed")
    parser.add_argument("--write", action="store_true", help=f"keep the names in {KEPT.name}")
    arguments = parser.parse_args()
    found = subprocess.run([arguments.python, "-c", COLLECT], capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"{arguments.python} cannot list Ray's names:\n{found.stderr}")
    names = json.loads(found.stdout.splitlines()[-1])
    if arguments.write:
        KEPT.write_text(json.dumps(names, indent=1) + "\n")
    lacking = missing(names, PAGE.read_text())
    print("\n".join(lacking) or f"all of the names of Ray {names['version']} are ours or on the page")
    sys.exit(bool(lacking))


if __name__ == "__main__":
    main()
