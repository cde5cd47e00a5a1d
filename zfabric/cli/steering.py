"""``zfabric cancel`` and ``kill``: end tasks and actors by their ids."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from zfabric.api.cluster import cancel_by_id, kill_by_id
from zfabric.cli.listings import find_one, readable
from zfabric.cli.options import address_option, json_option
from zfabric.cli.output import echo, print_json
from zfabric.cli.sessions import chosen_session, connected
from zfabric.protocol.ids import TASK_BYTES, is_put
from zfabric.protocol.messages.queries import PENDING_STATES
from zfabric.runtime.driver import DriverClient


@click.command(short_help="Cancel tasks, of any program and on any node.")
@click.argument("identifiers", metavar="ID...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Kill the worker of a running task instead of interrupting the task.")
@click.option("--no-recursive", "alone", is_flag=True, help="Leave the tasks alone that the task has submitted.")
@address_option
@json_option
def cancel(identifiers: tuple[str, ...], force: bool, alone: bool, address: str | None, as_json: bool) -> None:
    """Cancel tasks, as zf.cancel(ref) does in their program: one that has not begun never runs, a running one is interrupted.

    ID is the id of a task or of its value as tables show it (1-3fa2-57), or in hex or its first digits. Whoever waits for the value gets
    TaskCancelledError. The exit code is 1 if a task has ended or is not known.
    """

    def one(client: DriverClient, subject: str) -> dict[str, Any]:
        found = find_one(client, subject, ("task",))
        task_id = _task_of(subject, found)
        answer = cancel_by_id(client, task_id, force, not alone)
        if answer is None:
            raise click.ClickException(f"{subject!r} is not a task that could be cancelled: it has ended and was forgotten")
        shown = f"{readable(task_id.hex())} ({answer['name']})"
        if answer["goes_on"]:
            raise click.ClickException(f"task {shown} is {answer['state']}: {answer['goes_on']}")
        begun = answer["state"] not in PENDING_STATES
        text = f"Cancelled task {shown}: it was {answer['state']}" + (", and is being " + ("killed" if force else "interrupted")) * begun
        return {"id": task_id.hex(), "name": answer["name"], "state": answer["state"], "text": f"{text}."}

    _each(identifiers, one, address, as_json)


@click.command(short_help="End actors, of any program and on any node.")
@click.argument("actors", metavar="ACTOR...", nargs=-1, required=True)
@click.option("--restart", is_flag=True, help="Let the actor restart if it has restarts left, as after a crash.")
@address_option
@json_option
def kill(actors: tuple[str, ...], restart: bool, address: str | None, as_json: bool) -> None:
    """End actors at once, as zf.kill(handle) does in their program: their calls raise ActorDiedError.

    ACTOR is an actor's name, or its id as tables show it (1-3fa2-57), or in hex or its first digits. The exit code is 1 if an actor is
    dead or is not known.
    """

    def one(client: DriverClient, subject: str) -> dict[str, Any]:
        found = find_one(client, subject, ("actor",))
        if found["kind"] != "actor":
            hint = f"; to cancel it: zfabric cancel {subject}" if found["kind"] == "task" else ""
            raise click.UsageError(f"{subject!r} is no actor, but {_described(found)}{hint}")
        actor_id = bytes.fromhex(found["id"])
        answer = kill_by_id(client, actor_id, not restart)
        shown = f"{readable(found['id'])} ({found['name']})"
        if answer is None or answer["state"] == "dead":
            raise click.ClickException(f"actor {shown} is dead already")
        text = f"Killed actor {shown}: it was {answer['state']}" + (", and restarts if it has restarts left" if restart else "")
        return {"id": found["id"], "class": answer["class"], "name": answer["name"], "state": answer["state"], "text": f"{text}."}

    _each(actors, one, address, as_json)


def _task_of(subject: str, found: dict[str, str]) -> bytes:
    """The task that is named, or that makes the named object. Raises ClickException."""
    identifier = bytes.fromhex(found["id"])
    if found["kind"] == "actor":
        raise click.UsageError(f"{subject!r} is {_described(found)}; to end it: zfabric kill {subject}")
    if found["kind"] == "worker":
        raise click.UsageError(f"{subject!r} is {_described(found)}; give the id of a task: zfabric tasks lists them")
    if len(identifier) > TASK_BYTES and is_put(identifier):
        raise click.UsageError(f"{subject!r} was put: no task makes it")
    if found["kind"] == "object" and found["name"] == "put":
        raise click.ClickException(f"{subject!r} is the result of an actor's call: whoever has called cancels it (zf.cancel(ref))")
    return identifier[:TASK_BYTES]


def _described(found: dict[str, str]) -> str:
    article = "an" if found["kind"][0] in "ao" else "a"
    return f"{article} {found['kind']} ({found['name']})"


def _each(subjects: tuple[str, ...], act: Callable[[DriverClient, str], dict[str, Any]], address: str | None, as_json: bool) -> None:
    """Act on each subject; a failure does not stop the others."""
    done, code = [], 0
    with connected(chosen_session(address)) as client:
        for subject in dict.fromkeys(subjects):
            try:
                done.append(act(client, subject))
            except click.ClickException as error:
                if len(subjects) == 1:
                    raise
                echo(f"Error: {error.format_message()}", err=True)
                code = max(code, error.exit_code)
                continue
            if not as_json:
                echo(done[-1]["text"])
    if as_json:
        print_json([{key: value for key, value in row.items() if key != "text"} for row in done])
    if code:
        sys.exit(code)
