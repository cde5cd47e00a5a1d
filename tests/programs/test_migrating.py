"""docs/migrating-from-ray.md is true, and ordinary programs for Ray's actors run with `import zfabric as ray`."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.api.options import checked, checked_actor

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migrating-from-ray.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def names(text: str) -> list[str]:
    found = [name for line in text.splitlines() if line.startswith("|") for name in re.findall(r"`ray\.([\w.]+)`", line)]
    assert len(found) == len(set(found))
    return found


def exists(path: str) -> bool:
    thing: Any = zf
    for name in path.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            return False
    return True


@pytest.mark.parametrize("name", names(section("The same")))
def test_names_listed_as_the_same_exist(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("name", names(section("Absent")))
def test_names_listed_as_absent_do_not_exist(name: str) -> None:
    assert not exists(name), "it is there now: say so"


def test_the_tables_were_found() -> None:
    assert len(names(section("The same"))) > 30
    assert len(names(section("Absent"))) > 20


def test_each_public_name_of_ray_exists_or_is_on_the_page() -> None:
    """As they were in the version that ``scripts/ray_names.py`` was last run with."""
    place = ROOT / "scripts" / "ray_names.py"
    spec = importlib.util.spec_from_file_location("ray_names", place)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    kept = json.loads((ROOT / "tests" / "programs" / "ray_names.json").read_text())
    assert len(kept["names"]) > 100
    assert script.missing(kept, PAGE) == []
    kept["names"].append("ray.brand_new")
    kept["keywords"]["ray.get"].append("brand_new")
    kept["members"]["ray.ObjectRef"].append("brand_new")
    kept["options"]["classes"].append("brand_new")
    assert script.missing(kept, PAGE) == ["ObjectRef.brand_new", "get(brand_new=)", "option brand_new", "ray.brand_new"]


VALUES = {
    "num_cpus": 1, "num_gpus": 1, "resources": {"special": 1}, "num_returns": 2, "max_retries": 1, "retry_exceptions": True,
    "name": "named", "runtime_env": {"env_vars": {"A": "1"}}, "namespace": "apart", "lifetime": "detached", "max_restarts": 1,
    "max_task_retries": 1, "max_concurrency": 2, "concurrency_groups": {"io": 2}, "max_pending_calls": 10, "memory": 2**20, "max_calls": 0,
    "enable_task_events": False, "checkpoint_every": 5, "scheduling_strategy": "SPREAD",
    "label_selector": {"zone": "in(a, b)"},
}  # fmt: skip


def options_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_options_are_taken_as_the_page_says() -> None:
    same = section("The same")
    honoured, effectless = same.split("Options of functions that are honoured:")[1].split("Options that are taken and have no effect")
    of_functions, of_classes = honoured.split("Options of classes:")
    assert len(options_in(of_functions)) == 11
    for name in (*options_in(of_functions), *options_in(effectless)):
        checked({name: VALUES[name]})
    for name in (*options_in(of_classes), *options_in(effectless)):
        checked_actor({"name": "named", "get_if_exists": True} if name == "get_if_exists" else {name: VALUES[name]})


def test_options_are_refused_as_the_page_says() -> None:
    refused = re.findall(r"`(\w+)=(.*?)`", section("Absent"))
    assert len(refused) == 2
    for name, value in refused:
        for check in (checked, checked_actor):
            with pytest.raises(zf.OptionError, match=name):
                check({name: eval(value, {})})


# --- programs -----------------------------------------------------------------------------------------------------------------


PROGRAMS = {
    "a counter": (
        """
        @ray.remote
        class Counter:
            def __init__(self):
                self.i = 0
            def get(self):
                return self.i
            def incr(self, value):
                self.i += value

        c = Counter.remote()
        for _ in range(10):
            c.incr.remote(1)
        print(ray.get(c.get.remote()))
        """,
        "10",
    ),
    "a tree of actors": (
        """
        @ray.remote(num_cpus=0)
        class Worker:
            def work(self):
                return "done"

        @ray.remote(num_cpus=0)
        class Supervisor:
            def __init__(self):
                self.workers = [Worker.remote() for _ in range(3)]
            def work(self):
                return ray.get([w.work.remote() for w in self.workers])

        sup = Supervisor.remote()
        print(ray.get(sup.work.remote()))
        """,
        "['done', 'done', 'done']",
    ),
    "messages through an actor": (
        """
        import asyncio

        @ray.remote
        class MessageActor:
            def __init__(self):
                self.messages = []
            def add_message(self, message):
                self.messages.append(message)
            def get_and_clear_messages(self):
                messages = self.messages
                self.messages = []
                return messages

        @ray.remote
        def worker(message_actor, j):
            for i in range(10):
                ray.get(message_actor.add_message.remote(f"Message {i} from worker {j}."))

        message_actor = MessageActor.remote()
        ray.get([worker.remote(message_actor, j) for j in range(3)])
        print(len(ray.get(message_actor.get_and_clear_messages.remote())), ray.get(message_actor.get_and_clear_messages.remote()))
        """,
        "30 []",
    ),
    "an async actor": (
        """
        import asyncio

        @ray.remote
        class AsyncActor:
            async def run_task(self):
                await asyncio.sleep(0.01)
                return 1

        actor = AsyncActor.remote()
        print(sum(ray.get([actor.run_task.remote() for _ in range(50)])))

        async def main():
            return await actor.run_task.remote()
        print(asyncio.run(main()))
        """,
        "50\n1",
    ),
    "an event that many wait for": (
        """
        import asyncio

        @ray.remote(num_cpus=0)
        class SignalActor:
            def __init__(self):
                self.ready_event = asyncio.Event()
            def send(self, clear=False):
                self.ready_event.set()
                if clear:
                    self.ready_event.clear()
            async def wait(self, should_wait=True):
                if should_wait:
                    await self.ready_event.wait()

        @ray.remote
        def wait_and_go(signal):
            ray.get(signal.wait.remote())
            print("go!")
            return True

        signal = SignalActor.remote()
        tasks = [wait_and_go.remote(signal) for _ in range(4)]
        ray.get(signal.send.remote())
        print(ray.get(tasks))
        """,
        "[True, True, True, True]",
    ),
    "named, detached and found": (
        """
        @ray.remote
        class Greeter:
            def __init__(self, value):
                self.value = value
            def say_hello(self):
                return self.value

        Greeter.options(name="orange", namespace="colors", lifetime="detached").remote("hello from orange")
        try:
            ray.get_actor("orange")
        except ValueError:
            print("not here")
        orange = ray.get_actor("orange", namespace="colors")
        print(ray.get(orange.say_hello.remote()))
        same = Greeter.options(name="orange", namespace="colors", get_if_exists=True).remote("another")
        print(ray.get(same.say_hello.remote()))
        """,
        "not here\nhello from orange\nhello from orange",
    ),
    "fault tolerance": (
        """
        import os

        @ray.remote(max_restarts=1, max_task_retries=-1)
        class Actor:
            def __init__(self):
                self.counter = 0
            def increment_and_possibly_fail(self):
                if self.counter == 5:
                    os._exit(0)
                self.counter += 1
                return self.counter

        actor = Actor.remote()
        print([ray.get(actor.increment_and_possibly_fail.remote()) for _ in range(10)])
        for _ in range(10):
            try:
                ray.get(actor.increment_and_possibly_fail.remote())
                print("SUCCESS")
            except ray.exceptions.RayActorError:
                print("FAILURE")
        """,
        "[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]\n" + "\n".join(["FAILURE"] * 10),
    ),
    "a pool and a queue": (
        """
        @ray.remote
        class Actor:
            def double(self, n):
                return n * 2

        pool = ray.util.ActorPool([Actor.remote(), Actor.remote()])
        print(list(pool.map(lambda a, v: a.double.remote(v), [1, 2, 3, 4])))

        @ray.remote
        def consumer(queue):
            total = 0
            while (item := queue.get()) is not None:
                total += item
            return total

        queue = ray.util.queue.Queue(maxsize=100)
        result = consumer.remote(queue)
        for i in range(10):
            queue.put(i)
        queue.put(None)
        print(ray.get(result))
        """,
        "[2, 4, 6, 8]\n45",
    ),
    "errors and the end": (
        """
        @ray.remote
        class Actor:
            def fail(self):
                raise ValueError("this one")
            @ray.method(num_returns=2)
            def two(self):
                return 1, 2
            def leave(self):
                ray.actor.exit_actor()

        actor = Actor.remote()
        try:
            ray.get(actor.fail.remote())
        except ValueError as error:
            print(isinstance(error, ray.exceptions.RayTaskError))
        print(ray.get(actor.two.remote()))
        try:
            ray.get(actor.leave.remote())
        except ray.exceptions.RayActorError:
            print("left")
        """,
        "True\n[1, 2]\nleft",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_ordinary_program(name: str, tmp_path: Path) -> None:
    body, printed = PROGRAMS[name]
    program = tmp_path / "program.py"
    program.write_text("import zfabric as ray\n\nray.init(num_cpus=2, log_to_driver=False)\n" + textwrap.dedent(body))
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == printed
