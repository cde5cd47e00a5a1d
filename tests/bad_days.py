"""Bad days: real nodes on this machine are killed, paused and cut off while programs run, and every result is checked.

    python tests/bad_days.py                                    # programs and faults, by name
    python tests/bad_days.py --programs chain --faults kill_node pause_node --seeds 5
    python tests/bad_days.py --minutes 60                       # the whole matrix, again and again with other seeds
    python tests/bad_days.py --links                            # faults of links of the kernel (``veth``) instead of the relay's

Each case is a program (``programs_of_nodes``) on a cluster of three nodes of one CPU, whose connections pass through a relay (``relay``),
and a fault that strikes while it runs. A case fails if a value is wrong, if anything raises that may not, if it takes too long, if a task
ran again that no dead process had run, or if anything is left: an object that nobody holds, a process, a session, shared memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import veth
from faults import descendants, name_of, restore
from programs_of_nodes import LOG, PROGRAMS, Execution, Program, executions
from relay import CUT, Fault, Relay, RelayedCluster

import zfabric as zf
from zfabric.runtime import interface
from zfabric.runtime.session import sweep

NODES = 3
"""Nodes with which a case begins."""
LEASE = 2.0
"""Seconds of ``node_lease`` where nodes die or are held up: short, so that much happens in a case."""
REST_SECONDS = 30.0
"""How long a cluster may take to release what a program held."""
GONE_SECONDS = 30.0
"""How long the last processes may take to end."""
CASE_SECONDS = 240.0
"""After which a case is taken to hang: stacks are printed, and the run ends."""
MARK = "ZFABRIC_BAD_DAYS"
"""The environment variable that all processes of a run inherit."""


class Day:
    """One case: a cluster, what strikes it, and what must be true afterwards."""

    def __init__(self, cluster: RelayedCluster | veth.LinkedCluster, seed: int) -> None:
        self.cluster = cluster
        self.relay = cluster.relay
        self.chance = random.Random(seed)
        self.dead_nodes: set[str] = set()
        """Nodes that died, or may have been declared dead."""
        self.dead_pids: set[int] = set()
        self.dead_daemons = 0
        self.story: list[str] = []
        """What was done, for people."""

    @property
    def others(self) -> list[Any]:
        """Nodes other than the head."""
        return [node for node in self.cluster.nodes[1:] if node.alive()]

    def say(self, text: str) -> None:
        self.story.append(text)

    def pause(self, least: float = 0.0, most: float = 1.0) -> None:
        """Let the program go on for a while."""
        time.sleep(self.chance.uniform(least, most))

    def processes(self, name: str, *nodes: Any) -> list[tuple[Any, int]]:
        """Processes of this name, with their nodes; of all nodes by default."""
        return [(node, pid) for node in nodes or self.cluster.nodes for pid in descendants(node.pid) if name_of(pid) == name]

    def kill(self, name: str, *nodes: Any) -> Any:
        """Kill a process of this name by chance; the node, or None if there is none."""
        found = self.processes(name, *nodes)
        if not found:
            return None
        node, pid = self.chance.choice(found)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.dead_pids.add(pid)
        self.dead_daemons += name == "zf-daemon"
        self.say(f"{name} {pid} of {node.name} killed")
        return node

    def lose(self, node: Any, how: str) -> None:
        """Note that a node dies."""
        self.dead_nodes.add(node.node_id)
        self.say(f"{node.name} ({node.node_id}) {how}")

    def note_deaths(self) -> None:
        """Note which nodes the cluster has declared dead: with short leases, a busy machine may have held up others than those struck."""
        living = {row["NodeID"] for row in zf.nodes()}
        self.dead_nodes |= {node.node_id for node in self.cluster.nodes} - living

    def may_restart(self, execution: Execution) -> bool:
        """Whether the process that executed this has died."""
        return execution.node in self.dead_nodes or execution.pid in self.dead_pids


# --- faults -------------------------------------------------------------------------------------------------------------------------


def none(day: Day) -> None:
    """Nothing: the relay alone."""


def kill_node(day: Day) -> None:
    """A node dies as by a power failure."""
    day.pause()
    node = day.chance.choice(day.others)
    day.lose(node, "killed")
    node.kill()


def kill_two_nodes(day: Day) -> None:
    """Both nodes other than the head's die, one soon after the other."""
    kill_node(day)
    kill_node(day)


def kill_worker(day: Day) -> None:
    """Workers of any node die, one after the other."""
    for _ in range(4):
        day.pause(0.1, 0.5)
        day.kill("zf-worker")


def kill_agent(day: Day) -> None:
    """Transfer agents of any node die, one after the other."""
    for _ in range(4):
        day.pause(0.1, 0.5)
        day.kill("zf-transfer")


def kill_daemon(day: Day) -> None:
    """The daemon of a node other than the head's dies."""
    day.pause()
    node = day.kill("zf-daemon", *day.others)
    day.dead_nodes.add(node.node_id)


def kill_head_daemon(day: Day) -> None:
    """The daemon of the head dies."""
    day.pause()
    day.kill("zf-daemon", day.cluster.nodes[0])


def kill_node_and_head_daemon(day: Day) -> None:
    """A node dies, and the daemon of the head while it takes over, or soon after."""
    kill_node(day)
    day.pause(0.0, 2 * LEASE)
    kill_head_daemon(day)


def kill_head_daemon_and_node(day: Day) -> None:
    """The daemon of the head dies, and a node before that has registered with the next one, or soon after."""
    kill_head_daemon(day)
    day.pause(0.0, 0.5)
    kill_node(day)


def pause_node(day: Day) -> None:
    """A node is stopped past its lease, and continued: it is fenced."""
    day.pause()
    node = day.chance.choice(day.others)
    day.lose(node, "paused")
    node.pause()
    day.pause(1.5 * LEASE, 3 * LEASE)
    node.resume()
    day.say(f"{node.name} continued")


def pause_briefly(day: Day) -> None:
    """A node is stopped for less than its lease, three times."""
    for _ in range(3):
        day.pause(0.0, 0.3)
        node = day.chance.choice(day.cluster.nodes)
        node.pause()
        day.pause(0.1, 0.3 * LEASE)
        node.resume()
        day.say(f"{node.name} paused briefly")


def pause_head_daemon(day: Day) -> None:
    """The head's daemon is stopped for longer than a lease: no healthy node is ended for it, though all of them may end themselves."""
    day.pause()
    (_, pid), *_ = day.processes("zf-daemon", day.cluster.nodes[0])
    os.kill(pid, signal.SIGSTOP)
    day.pause(0.3 * LEASE, 0.6 * LEASE)
    os.kill(pid, signal.SIGCONT)
    day.say("the head's daemon paused")


def two_nodes(day: Day) -> tuple[str, str]:
    one, other = day.chance.sample([node.name for node in day.cluster.nodes], 2)
    return one, other


def with_head(day: Day, *names: str) -> None:
    """Note who may die if these two cannot reach each other: with the head, the other one."""
    for node in day.cluster.nodes[1:]:
        if node.name in names:
            day.dead_nodes.add(node.node_id)


def cut(day: Day) -> None:
    """Two nodes cannot reach each other for a while."""
    day.pause()
    one, other = two_nodes(day)
    with_head(day, one, other)
    day.relay.cut(one, other)
    day.pause(0.5, 2 * LEASE)
    day.relay.heal()
    day.say(f"{one} and {other} were cut")


def cut_one_way(day: Day) -> None:
    """Nothing passes from one node to another for a while, but back."""
    day.pause()
    one, other = two_nodes(day)
    with_head(day, one, other)
    day.relay.fault(one, other, CUT)
    day.pause(0.5, 2 * LEASE)
    day.relay.heal()
    day.say(f"{one} to {other} was cut")


def cut_off(day: Day) -> None:
    """A node is cut off from all others past its lease: it stops itself."""
    day.pause()
    node = day.chance.choice(day.others)
    day.lose(node, "cut off")
    day.relay.cut(node.name, "*")
    day.pause(1.5 * LEASE, 2.5 * LEASE)
    day.relay.heal()


def flap(day: Day) -> None:
    """A connection comes and goes."""
    one, other = two_nodes(day)
    with_head(day, one, other)
    for _ in range(6):
        day.pause(0.0, 0.3)
        day.relay.cut(one, other)
        day.pause(0.0, 0.3)
        day.relay.heal()
        if day.chance.random() < 0.5:
            day.relay.reset(one, other)
    day.say(f"{one} and {other} flapped")


def reset(day: Day) -> None:
    """All connections end, several times."""
    for _ in range(4):
        day.pause(0.0, 0.5)
        day.say(f"{day.relay.reset()} connections reset")


def slow(day: Day) -> None:
    """Each way takes 200 ms, and one packet in a hundred is lost."""
    day.relay.fault("*", "*", Fault(delay=0.2, loss=0.01, stall=0.4))
    day.pause(2.0, 4.0)
    day.relay.heal()


def thin(day: Day) -> None:
    """Values pass at 2 MB/s."""
    day.relay.fault("*", "*", Fault(rate=2e6), "transfer")
    day.pause(2.0, 4.0)
    day.relay.heal()


def dead_data_path(day: Day) -> None:
    """The transfer channel of a node is dead for a while, its control channel lives."""
    node = day.chance.choice(day.others)
    day.relay.cut(node.name, "*", "transfer")
    day.pause(2.0, 4.0)
    day.relay.heal()
    day.say(f"the data path of {node.name} was dead")


def replace_nodes(day: Day) -> None:
    """Nodes are lost and added again."""
    for _ in range(2):
        kill_node(day)
        added = day.cluster.add_node()
        day.say(f"{added.name} added")


def add_nodes(day: Day) -> None:
    """Nodes are added under load."""
    for _ in range(2):
        day.pause()
        day.say(f"{day.cluster.add_node().name} added")


def kill_everything(day: Day) -> None:
    """Workers, agents, connections and nodes, several of each."""
    for _ in range(6):
        day.chance.choice([kill_worker, kill_agent, reset, pause_briefly, kill_head_daemon, kill_daemon])(day)
        if day.chance.random() < 0.4 and day.others:
            kill_node(day)
            day.cluster.add_node()


FAULTS: dict[str, Callable[[Day], None]] = {
    each.__name__: each
    for each in (
        none, kill_node, kill_two_nodes, kill_worker, kill_agent, kill_daemon, kill_head_daemon, kill_node_and_head_daemon,
        kill_head_daemon_and_node, pause_node, pause_briefly, pause_head_daemon, cut, cut_one_way, cut_off, flap, reset, slow, thin,
        dead_data_path, replace_nodes, add_nodes, kill_everything,
    )
}  # fmt: skip


IN_GOOD_HEALTH = (
    "none", "kill_worker", "kill_agent", "kill_daemon", "kill_head_daemon", "reset", "slow", "thin", "dead_data_path", "add_nodes",
)  # fmt: skip
"""Faults of which no node dies. Leases are the usual ones then: a busy machine may hold up a node for longer than a short one."""
OF_LINKS = ("kill_node", "pause_node", "cut", "cut_one_way", "cut_off", "slow")
"""Faults for clusters whose nodes are joined by links of the kernel."""
OF_QUEUES = ("slow",)
"""Those that need netem as well."""
CANNOT = 75
"""The exit status if there can be no links here."""


# --- one case -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def surroundings() -> Iterator[str]:
    """A directory of its own for the sessions of a run, and a mark for its processes; both are looked at afterwards."""
    before = {name: os.environ.get(name) for name in ("TMPDIR", MARK, LOG)}
    directory = tempfile.mkdtemp(prefix="zfb-", dir="/tmp")
    os.environ.update({"TMPDIR": directory, MARK: uuid.uuid4().hex, LOG: f"{directory}/executions"})
    memory = set(Path("/dev/shm").glob("zfabric*"))
    try:
        yield directory
        check_gone(directory, memory)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(directory, ignore_errors=True)


def check_gone(directory: str, memory: set[Path]) -> None:
    """Raise AssertionError if a process, session or shared memory is left."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        sweep()
        left: list[Any] = [each for each in marked() if each != os.getpid()]
        left += [str(path) for path in Path(directory).glob("zfabric-*/*")]
        left += [str(path) for path in set(Path("/dev/shm").glob("zfabric*")) - memory]
        if not left:
            return
        if time.monotonic() > until:
            raise AssertionError(f"left behind: {[(each, name_of(each) if isinstance(each, int) else '') for each in left]}")
        time.sleep(0.05)  # These processes are no children of this one: their end raises no event.


def marked() -> list[int]:
    """Processes of this run."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def check_executions(day: Day, program: Program) -> None:
    """Raise AssertionError if a task ran again that no dead process had run. What tasks submit has no name of its own."""
    if not program.flat:
        return
    most = 1 + (len(day.dead_nodes) + day.dead_daemons if program.lineage else 0)
    lasting: dict[str, list[Execution]] = {}
    for each in executions():
        if not day.may_restart(each):
            lasting.setdefault(each.task, []).append(each)
    again = {task: found for task, found in lasting.items() if len(found) > most}
    if again:
        some = list(again.items())[:3]
        raise AssertionError(f"{len(again)} tasks ran again in living processes: {some}; died: {day.dead_nodes}, {day.dead_pids}")


def check_rest() -> None:
    """Raise AssertionError if the cluster still has objects or tasks, though the program holds none."""
    client = interface.current()
    assert client is not None
    until = time.monotonic() + REST_SECONDS
    while True:
        left = [row for what in ("objects", "tasks") for row in client.query(what, timeout=30.0) if row.get("kind") != "actor"]
        if not left:
            return
        if time.monotonic() > until:
            raise AssertionError(f"{len(left)} objects and tasks are left that nobody holds: {left[:3]}")
        time.sleep(0.05)  # What other nodes release raises no event here.


@contextmanager
def cluster_for(fault: str, links: bool = False) -> Iterator[Any]:
    """A cluster of nodes of one CPU for cases of this fault. At the end nothing is left of them."""
    made: Any = veth.LinkedCluster if links else RelayedCluster
    # All workers need numpy, and some programs start many.
    config = {"preload": ("numpy",)} if fault in IN_GOOD_HEALTH else {"preload": ("numpy",), "node_lease": LEASE}
    options: dict[str, Any] = {"object_store_memory": 64 * 2**20, "config": config}
    with (
        surroundings(),
        veth.Network() if links else Relay() as relay,
        made(relay, nodes=NODES, cpus_per_node=1, **options) as cluster,
    ):
        yield cluster


def run_case(cluster: Any, program: str, fault: str, seed: int, size: int = 1, rounds: int = 2) -> str:
    """Run one case on a cluster for its fault; the story of what was done. Raises what was wrong, with the story.

    Another may follow: no fault strikes any more, and each case begins with three nodes.
    """
    cluster.relay("seed", seed)
    with zf.init(cluster.address, log_to_driver=False):
        restore(cluster, NODES)
        day = Day(cluster, seed)
        errors: list[BaseException] = []

        def strike() -> None:
            try:
                FAULTS[fault](day)
            except BaseException as error:  # The main thread raises it.
                errors.append(error)

        striking = threading.Thread(target=strike, daemon=True)
        striking.start()
        try:
            done = 0
            while done < rounds or striking.is_alive():
                Path(os.environ[LOG]).write_text("")
                PROGRAMS[program].run(size)
                if fault not in IN_GOOD_HEALTH:
                    day.note_deaths()
                check_executions(day, PROGRAMS[program])
                done += 1
            striking.join()
            if errors:
                raise errors[0]
            check_rest()
        except BaseException as error:  # Ctrl-C too: the story says how far it came.
            error.add_note("; ".join(day.story))
            keep_logs(program, fault, seed)
            striking.join()
            day.relay.heal()
            raise
    return "; ".join(day.story)


def keep_logs(program: str, fault: str, seed: int) -> None:
    """Copy the logs of all nodes, for whoever looks into a failure; ``ZFABRIC_BAD_DAYS_KEEP`` names the directory."""
    place = os.environ.get("ZFABRIC_BAD_DAYS_KEEP")
    if not place:
        return
    target = Path(place, f"{program}-{fault}-{seed}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with suppress(Exception):
        import json

        client = interface.current()
        assert client is not None
        for what in ("tasks", "objects", "workers", "status"):
            (target / f"{what}.json").write_text(json.dumps(client.query(what, timeout=10.0), indent=1, default=repr))
    for path in Path(os.environ["TMPDIR"]).glob("zfabric-*/*/logs"):
        with suppress(Exception):
            shutil.copytree(path, target / path.parent.name)


# --- from the command line ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run cases; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description="Kill, pause and cut off real nodes while programs run.")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each pair (1)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with further seeds for so long")
    parser.add_argument("--list", action="store_true", help="list programs and faults")
    parser.add_argument("--links", action="store_true", help=f"join nodes by links of the kernel; exit with {CANNOT} where there are none")
    options = parser.parse_args()
    if options.list:
        for name, thing in [*((name, program.run) for name, program in PROGRAMS.items()), *FAULTS.items()]:
            print(f"{name:<18} {(thing.__doc__ or '').splitlines()[0]}")
        return
    if options.links:
        possible = enter_network()
        options.faults = [each for each in options.faults if each in possible]
    until = time.monotonic() + 60 * options.minutes
    failed = count = 0
    for seed in itertools.count(options.start):
        if seed >= options.start + options.seeds and time.monotonic() > until:
            break
        for fault, program in itertools.product(options.faults, options.programs):
            begun = time.monotonic()
            count += 1
            guard = threading.Timer(CASE_SECONDS, hang, (program, fault, seed))
            guard.daemon = True
            guard.start()
            try:
                with cluster_for(fault, options.links) as cluster:
                    run_case(cluster, program, fault, seed)
                print(f"ok     {program} {fault} {seed} ({time.monotonic() - begun:.1f} s)", flush=True)
            except Exception as error:  # A failed case is counted, and the others still run.
                failed += 1
                notes = " | ".join(getattr(error, "__notes__", []))
                print(
                    f"FAILED {program} {fault} {seed} ({time.monotonic() - begun:.1f} s): {type(error).__name__}: {error} [{notes}]",
                    flush=True,
                )
                if not isinstance(error, zf.FabricError):
                    traceback.print_exc()
            finally:
                guard.cancel()
    print(f"{count} cases, {failed} failed")
    sys.exit(failed > 0)


def enter_network() -> tuple[str, ...]:
    """Run this program in a network of its own; return the faults that its links can have. Say which they cannot, and why."""
    reason = veth.why_not()
    if reason:
        print(f"NOT RUN: no links of the kernel can be made here: {reason}", file=sys.stderr, flush=True)
        sys.exit(CANNOT)
    veth.enter()
    reason = veth.why_not(netem=True)
    if not reason:
        return OF_LINKS
    print(f"NOT RUN: {', '.join(OF_QUEUES)}: packets cannot be delayed here: {reason}", file=sys.stderr, flush=True)
    return tuple(each for each in OF_LINKS if each not in OF_QUEUES)


def hang(program: str, fault: str, seed: int) -> None:
    """End a run that hangs, with the stacks of its threads."""
    import faulthandler

    print(f"HANG   {program} {fault} {seed}", flush=True)
    faulthandler.dump_traceback()
    os._exit(3)


if __name__ == "__main__":
    main()
