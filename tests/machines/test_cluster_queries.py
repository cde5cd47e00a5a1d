"""Questions about the whole cluster: every node answers for itself, and those that do not are named."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import DRIVER, OWN, Node

from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, MEMBER, TASK_BYTES

SELF, OTHER, THIRD = b"thisnode", b"\x02node B.", b"\x02node C."


class Asked(Node):
    """A node of three, which a tool asks."""

    def __init__(self) -> None:
        super().__init__()
        self.table(SELF, OTHER, THIRD)
        self.driver()
        self.sent.clear()

    def table(self, *nodes: bytes) -> None:
        """Which nodes there are, by the registry."""
        rows = [(node, number, f"n{number}", "", "", b"", (), (), 0) for number, node in enumerate(nodes, 1)]
        self.send(MEMBER + OWN, m.NodeTable(10 - len(nodes), tuple(rows)))

    def ask(self, what: str, *arguments: Any) -> dict[bytes, int]:
        """Ask a question; answer it for this node. Return the tokens with which the other nodes were asked."""
        self.sent.clear()
        self.send(CLIENT + DRIVER, m.Query(7, what, arguments))
        asked = {to: message.token for to, message in self.take(m.Query)}
        token = asked.pop(LOCAL_SCHEDULER + OWN)
        self.send(LOCAL_SCHEDULER + OWN, m.Query(token, what, arguments))
        for to, answer in self.take(m.Answer):
            self.send(to, answer)
        return {to[1:]: token for to, token in asked.items()}

    def answers(self) -> list[m.Answer]:
        """What the tool was answered."""
        return [answer for _, answer in self.take(m.Answer)]


@pytest.fixture
def node() -> Asked:
    return Asked()


def test_rows_of_all_nodes_come_with_their_nodes(node: Asked) -> None:
    asked = node.ask("workers")
    assert set(asked) == {OTHER, THIRD}
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], ({"pid": 1},), ""))
    assert node.answers() == []
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], ({"pid": 1}, {"pid": 2}), ""))
    (answer,) = node.answers()
    assert answer.token == 7
    assert [(row["node"], row["pid"]) for row in answer.payload if row["pid"]] == [("n2", 1), ("n3", 1), ("n3", 2)]


def test_running_tasks_of_all_nodes_come_before_ended_ones_of_any(node: Asked) -> None:
    asked = node.ask("tasks", 4, ())
    rows = {OTHER: ("running", "failed", "finished", "finished"), THIRD: ("running", "waiting", "finished")}
    for other, states in rows.items():
        answer = tuple({"state": state} for state in states)
        node.send(LOCAL_SCHEDULER + other, m.Answer(asked[other], answer, ""))
    (answer,) = node.answers()
    assert [(row["node"], row["state"]) for row in answer.payload] == [
        ("n2", "running"),
        ("n3", "running"),
        ("n3", "waiting"),
        ("n2", "failed"),
    ]


def test_a_node_that_does_not_answer_is_named_after_two_seconds(node: Asked) -> None:
    asked = node.ask("available_resources")
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], {"CPU": 3.0}, ""))
    assert node.scheduler.next_deadline() is not None
    node.now += 2.0
    node.scheduler.tick(node.now)
    node.turn()
    ((_, notice),) = node.take(m.Notice)
    assert "n3" in notice.text
    assert [answer.payload["CPU"] for answer in node.answers()] == [4.0]
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], {"CPU": 3.0}, ""))
    assert node.answers() == [], "it comes too late"


def test_the_death_of_a_node_ends_the_wait_for_its_answer(node: Asked) -> None:
    asked = node.ask("workers")
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], (), ""))
    node.table(SELF, OTHER)
    assert [answer.token for answer in node.answers()] == [7]


def test_what_another_node_asks_is_answered_for_this_one_alone(node: Asked) -> None:
    node.send(LOCAL_SCHEDULER + OTHER, m.Query(3, "workers", ()))
    assert node.take(m.Query) == []
    assert [to for to, _ in node.take(m.Answer)] == [LOCAL_SCHEDULER + OTHER]


def test_an_error_of_one_node_is_the_answer(node: Asked) -> None:
    asked = node.ask("tasks", 10, ("nonsense",))
    for other, token in asked.items():
        node.send(LOCAL_SCHEDULER + other, m.Answer(token, None, "tasks: there is no state 'nonsense'"))
    (answer,) = node.answers()
    assert "nonsense" in answer.error


# --- one node, clocks, statuses -----------------------------------------------------------------------------------------------------


def test_a_question_is_passed_on_to_one_node(node: Asked) -> None:
    node.send(CLIENT + DRIVER, m.Query(7, "at", (OTHER, "rows", "event", b"", 5)))
    ((to, query),) = node.take(m.Query)
    assert (to, query.what, query.arguments) == (LOCAL_SCHEDULER + OTHER, "rows", ("event", b"", 5))
    node.send(to, m.Answer(query.token, ((), False), ""))
    assert [(answer.token, answer.payload, answer.error) for answer in node.answers()] == [(7, ((), False), "")]


@pytest.mark.parametrize("how", ["silent", "dead", "unknown", "nonsense"])
def test_one_node_that_does_not_answer_is_an_error(node: Asked, how: str) -> None:
    arguments: tuple[Any, ...] = {"unknown": (b"unknown!", "clock"), "nonsense": (OTHER,)}.get(how, (OTHER, "clock"))
    node.send(CLIENT + DRIVER, m.Query(7, "at", arguments))
    if how == "dead":
        node.table(SELF, THIRD)
    if how == "silent":
        node.now += 2.0
        node.scheduler.tick(node.now)
        node.turn()
    (answer,) = node.answers()
    unknown = "this cluster has no such node (any more)"
    expected = {
        "silent": "n2 did not answer within 2 s: it is held up, or has just died",
        "dead": "clock: that node has died",
        "unknown": f"clock: {unknown}",
        "nonsense": f"at: {unknown}",
    }
    assert answer.error == expected[how]


def test_an_answer_of_one_node_that_comes_too_late_is_dropped(node: Asked) -> None:
    node.send(CLIENT + DRIVER, m.Query(7, "at", (OTHER, "clock")))
    ((to, query),) = node.take(m.Query)
    node.now += 2.0
    node.scheduler.tick(node.now)
    node.turn()
    assert len(node.answers()) == 1
    node.send(to, m.Answer(query.token, 1.0, ""))
    assert node.answers() == []


def test_clocks_are_compared_by_round_trips(node: Asked) -> None:
    began = node.now
    asked = node.ask("clock")
    node.now += 0.5
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], began + 100.25, ""))
    node.now += 0.5
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], began, ""))
    (answer,) = node.answers()
    found = {row["name"]: (row["offset"], row["error"]) for row in answer.payload}
    assert found == {"n1": (0.0, 0.0), "n2": (100.0, 0.25), "n3": (-0.5, 0.5)}


def test_the_status_of_each_node_has_its_name(node: Asked) -> None:
    asked = node.ask("statuses")
    row = {"node": OTHER.hex(), "workers": 3}
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], ({**row, "node": THIRD.hex()},), ""))
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], (row,), ""))
    assert node.answers() == [], "the object store of this node is asked first"
    ((to, query),) = [(to, each) for to, each in node.take(m.Query) if each.what == "statistics"]
    node.send(to, m.Answer(query.token, {"used": 5}, ""))
    ((to, own),) = node.take(m.Answer)
    node.send(to, own)
    (answer,) = node.answers()
    assert [(row["name"], row["node"]) for row in answer.payload] == [("n1", SELF.hex()), ("n2", OTHER.hex()), ("n3", THIRD.hex())]
    assert answer.payload[0]["store"] == {"used": 5}


def test_answers_that_do_not_fit_together_are_an_error(node: Asked) -> None:
    asked = node.ask("workers")
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], 5, ""))
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], (), ""))
    (answer,) = node.answers()
    assert "do not fit together" in answer.error


def test_an_actor_that_is_found_is_not_looked_for_on_a_silent_node(node: Asked) -> None:
    asked = node.ask("actor", "", "its name")
    assert node.answers() == []
    node.send(LOCAL_SCHEDULER + OTHER, m.Answer(asked[OTHER], (b"a" * TASK_BYTES, b"its blueprint"), ""))
    assert [answer.payload for answer in node.answers()] == [(b"a" * TASK_BYTES, b"its blueprint")]
    node.send(LOCAL_SCHEDULER + THIRD, m.Answer(asked[THIRD], None, ""))
    assert node.answers() == []
    node.now += 2.0
    node.scheduler.tick(node.now)
    node.turn()
    assert node.take(m.Notice) == []
    node.ask("actor", "", "its name")
    node.now += 2.0
    node.scheduler.tick(node.now)
    node.turn()
    assert "from n2, n3: an actor of this name may be there" in node.take(m.Notice)[0][1].text


def test_a_node_that_looks_for_no_text_is_answered_with_the_reason(node: Asked) -> None:
    node.send(LOCAL_SCHEDULER + OTHER, m.Query(5, "find", (0.0,)))
    assert [(answer.token, answer.error) for answer in node.answers()] == [(5, "find: it takes a text, not 0.0")]
