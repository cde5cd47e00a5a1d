"""The loop of ``zfabric autoscale``: observes a cluster and its jobs, has the policy decide, and submits and cancels jobs.

The cluster does not need this loop: nodes join and leave by themselves. Each turn sends all nodes what is requested (the query
"autoscaler"), so that ``zfabric status``, ``explain`` and the warnings of programs name it.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from zfabric.api.cluster import demand_of
from zfabric.exceptions import ConfigError, FabricError
from zfabric.launch.cluster_file import ScalingFile
from zfabric.launch.policy import PENDING, Decision, Observation, ObservedNode, ScalingPolicy, WaitingWork
from zfabric.launch.providers import PROVIDERS, KindLaunch, ProviderError, reason_of, start_command
from zfabric.protocol.names import counted, quantity, span
from zfabric.protocol.options import GROUP_POLICIES, NODE_ID, RESOURCE_UNIT, Strategy, describe_strategy
from zfabric.runtime.connect import attach
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.session import LOOPBACK, Session, user_directory

_, _, STRICT_PACK, STRICT_SPREAD = GROUP_POLICIES
TURN_SECONDS = 1.0
REPORT_SECONDS = 60.0
"""For how long nodes believe a report: longer than a turn in which a job scheduler's commands do not answer."""


class ClusterEndedError(FabricError):
    """The cluster has ended, and its autoscaler with it."""


class Autoscaler:
    """Scales the cluster of ``session`` as ``file`` says. ``say`` receives lines for people.

    Raises ConfigError if nodes cannot join this cluster.
    """

    def __init__(self, file: ScalingFile, session: Session, say: Callable[[str], None]) -> None:
        self._file = file
        self._session = session
        self._say = say
        self._client: DriverClient | None = None
        self._policy = ScalingPolicy([entry.kind for entry in file.kinds])
        self._said: dict[str, str] = {}
        """The last line about each kind and each demand."""
        address, key_file = self._joining()
        launches: dict[str, dict[str, KindLaunch]] = {}
        for entry in file.kinds:
            command = start_command(entry.python, address, key_file, entry.kind.name, entry.options)
            launch = KindLaunch(command, file.before, entry.sbatch, entry.submit, entry.states, entry.cancel)
            launches.setdefault(entry.provider, {})[entry.kind.name] = launch
        self._providers = [PROVIDERS[name](file.name, kinds) for name, kinds in launches.items()]
        self._provider_of = {kind: each for each, kinds in zip(self._providers, launches.values(), strict=True) for kind in kinds}

    def _joining(self) -> tuple[str, str]:
        """The address and the key file with which nodes join. Raises ConfigError."""
        cluster, membership = self._session.cluster(), self._session.membership()
        if cluster is None or membership is None:
            raise ConfigError("the cluster is a node that no other can join: start it with `zfabric start --head`")
        with self._connected() as client:
            address = self._file.address or next(str(row["address"]) for row in client.query("nodes") if row["head"])
        local = all(entry.provider == "local" for entry in self._file.kinds)
        if f"//{LOOPBACK}:" in address and not local:
            self._say(f"the head is at {address}, which other machines do not reach: `zfabric start --head --host ADDRESS` chooses another")
        key_file = self._file.key_file or cluster.key_file or self._session.cluster_key
        if not os.path.exists(key_file):
            raise ConfigError(f"there is no key file {key_file}: write key_file under [cluster] in {self._file.path}")
        return address, key_file

    # -- the loop --

    def run(self) -> None:
        """Take turns until the cluster ends. Raises ClusterEndedError, and ConfigError if another autoscaler of it runs here."""
        with self._alone():
            kinds = ", ".join(f"{kind.name!r} ({kind.min} to {kind.max})" for kind in self._policy.kinds)
            self._say(f"scaling the cluster {self._file.name!r} by nodes of kind {kinds}")
            self._said = {kind.name: _joined(kind.name, 0) for kind in self._policy.kinds}
            try:
                while True:
                    began = time.monotonic()
                    self._try_turn()
                    time.sleep(max(0.0, began + TURN_SECONDS - time.monotonic()))  # Nobody notifies it of demand.
            finally:
                self._leave()

    def _try_turn(self) -> None:
        try:
            with self._connected() as client:
                self.turn(client)
            self._said.pop("cluster", None)
        except FabricError as error:
            if not self._session.alive():
                reason = self._session.failure()  # Empty if it was stopped.
                raise ClusterEndedError(f"the cluster has ended: {reason}" if reason else "the cluster has ended") from None
            self._say_once("cluster", f"the cluster does not answer: {error}")

    @contextmanager
    def _connected(self) -> Iterator[DriverClient]:
        """A connection, reused until an error."""
        if self._client is None:
            self._client = attach(self._session, kind="tool")
        try:
            yield self._client
        except BaseException:
            client, self._client = self._client, None
            with suppress(FabricError):
                client.close()
            raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise ConfigError if another autoscaler of this cluster runs here: two would submit twice."""
        descriptor = os.open(f"{user_directory()}/autoscale-{self._file.name}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ConfigError(f"another autoscaler of the cluster {self._file.name!r} runs on this machine") from None
        finally:
            os.close(descriptor)

    def _leave(self) -> None:
        """Cancel the jobs that have not begun."""
        for provider in self._providers:
            with suppress(ProviderError):
                jobs = provider.states().items()
                pending = [job for job, found in jobs if found.state == PENDING and not self._policy.has_joined(found.kind, job)]
                if pending:
                    provider.cancel(pending)
                    self._say(f"cancelled {counted(len(pending), 'job')} that had not begun")
        with suppress(FabricError), self._connected() as client:
            client.query("autoscaler", (), (), 0.0, timeout=1.0)
            client.close()

    # -- a turn --

    def turn(self, client: DriverClient) -> Decision:
        """Observe, decide, act and report, once. Raises FabricError if the cluster does not answer."""
        jobs = self._jobs()
        work, nodes = observed(client)
        decision = self._policy.turn(time.monotonic(), Observation(work, nodes, jobs))
        for kind, job in decision.failed:
            self._policy.explain(kind, reason_of(self._provider_of[kind], job))
        for kind, count in decision.submit:
            self._submit(kind, count)
        for kind, found in decision.cancel:
            self._cancel(kind, found)
        self._report(client, decision)
        return decision

    def _jobs(self) -> dict[str, dict[str, str] | str]:
        """The states of each kind's jobs, or why they are unknown."""
        found: dict[str, dict[str, str] | str] = {}
        for provider in self._providers:
            kinds = [kind for kind, each in self._provider_of.items() if each is provider]
            try:
                jobs = provider.states()
            except ProviderError as error:
                found.update(dict.fromkeys(kinds, str(error)))
                continue
            found.update({kind: {job: info.state for job, info in jobs.items() if info.kind == kind} for kind in kinds})
        return found

    def _submit(self, kind: str, count: int) -> None:
        try:
            jobs = self._provider_of[kind].submit(kind, count)
        except ProviderError as error:
            self._policy.refused(time.monotonic(), kind, str(error))
            return
        self._policy.submitted(kind, jobs)
        self._say(f"kind {kind!r}: submitted {counted(count, 'job')}")

    def _cancel(self, kind: str, jobs: tuple[str, ...]) -> None:
        try:
            self._provider_of[kind].cancel(jobs)
            self._say(f"kind {kind!r}: cancelled {counted(len(jobs), 'pending job')} that nothing needs")
        except ProviderError as error:
            self._say(f"kind {kind!r}: {counted(len(jobs), 'pending job')} could not be cancelled: {error}")

    def _report(self, client: DriverClient, decision: Decision) -> None:
        """Report to all nodes, and say what has changed."""
        report = self._policy.report(time.monotonic())
        client.query("autoscaler", report, tuple(bytes.fromhex(node) for node in decision.keep), REPORT_SECONDS)
        for each in report:
            self._say_once(each.name, _joined(each.name, each.nodes))
            self._say_once(f"unknown {each.name}", each.unknown and each.requested())
            self._say_once(f"failed {each.name}", each.reason and f"kind {each.name!r}: a job failed: {each.reason}")
            paused = f"kind {each.name!r}: nothing is submitted for {span(each.pause_seconds)}" if each.pause_seconds else ""
            self._say_once(f"paused {each.name}", paused, again=False)
        unmet = "; ".join(sorted({describe_work(work) for work in decision.unmet}))
        self._say_once("unmet", unmet and f"no kind of nodes can run tasks that ask for {unmet}")

    def _say_once(self, about: str, text: str, again: bool = True) -> None:
        """Say something, unless the last text about it was the same (or, without ``again``, not empty). An empty text ends it."""
        last = self._said.get(about, "")
        self._said[about] = text
        if text and text != last and (again or not last):
            self._say(text)


def _joined(kind: str, nodes: int) -> str:
    return f"kind {kind!r}: {counted(nodes, 'node')} joined"


def observed(client: DriverClient) -> tuple[list[WaitingWork], list[ObservedNode]]:
    """What waits in a cluster, and its nodes. A node that has not answered has nothing free; a drained one takes no work."""
    statuses, nodes = client.query("statuses"), client.query("nodes")
    labels = {row["node"]: {**row["labels"], NODE_ID: row["node"]} for row in nodes}
    by_node = {status["node"]: status for status in statuses}
    found = []
    for row in nodes:
        status = by_node.get(row["node"], {"available": {}, "draining": False})
        if not status["draining"]:
            found.append(ObservedNode(row["node"], _units(row["resources"]), _units(status["available"]), labels[row["node"]]))
    demand = demand_of(client.query("demand"), statuses, labels)
    return [*map(_work, demand["demand"]), *(work for group in demand["pending_groups"] for work in _bundles(group))], found


def _work(row: Mapping[str, Any]) -> WaitingWork:
    return WaitingWork(_units(row["resources"]), _terms(row["labels"]), row["ready"], row["oldest_seconds"], row["mean_seconds"])


def _bundles(group: Mapping[str, Any]) -> Iterator[WaitingWork]:
    """A placement group's bundles that are not reserved."""
    bundles = [(_units(bundle["resources"]), _terms(bundle["labels"])) for bundle in group["bundles"]]
    if group["strategy"] == STRICT_PACK:
        total: Counter[str] = Counter()
        for resources, _ in bundles:
            total.update(resources)
        bundles = [(dict(total), tuple(dict.fromkeys(term for _, terms in bundles for term in terms)))]
    for resources, terms in bundles:
        yield WaitingWork(resources, terms, 1, math.inf, None, group["group"] if group["strategy"] == STRICT_SPREAD else "")


def _terms(labels: Mapping[str, Mapping[str, Sequence[str]]]) -> Strategy:
    return tuple(("hard", label, operator, tuple(values)) for label, each in labels.items() for operator, values in each.items())


def _units(amounts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(amount * RESOURCE_UNIT) for name, amount in amounts.items()}


def describe_work(work: WaitingWork) -> str:
    """What waiting tasks ask for.

    >>> describe_work(WaitingWork({"CPU": 20000}, (("hard", "zone", "in", ("a",)),), 3, 0.0, None))
    "2 CPU on a node with label 'zone' a"
    """
    amounts = [quantity(name, amount / RESOURCE_UNIT) for name, amount in sorted(work.resources.items())]
    return f"{', '.join(amounts) or 'nothing'} {describe_strategy(work.terms)}".strip()
