"""``zfabric jobs`` and ``job``: programs that run on a started cluster by themselves (``zfabric submit --detach``)."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import click

from zfabric import api as zf
from zfabric.cli.options import address_option, json_option
from zfabric.cli.output import echo, echo_output, print_json, print_table
from zfabric.cli.sessions import chosen_session
from zfabric.protocol.messages.queries import LIST_LIMIT
from zfabric.protocol.names import span
from zfabric.runtime.session import Session
from zfabric.util.jobs import JobDetails, JobStatus, JobSubmissionClient
from zfabric.util.state import list_jobs

EXIT_CODES = {JobStatus.SUCCEEDED: 0, JobStatus.FAILED: 1, JobStatus.STOPPED: 1, JobStatus.PENDING: 0, JobStatus.RUNNING: 0}


def client_at(session: Session) -> JobSubmissionClient:
    """Connect to a session's jobs."""
    zf.init(session.directory, log_to_driver=False)
    return JobSubmissionClient()


def detach(
    session: Session, program: tuple[str, ...], arguments: tuple[str, ...], identifier: str | None, runtime_env: dict[str, Any]
) -> str:
    """Hand a program to a started cluster; return the job's id."""
    command = shlex.join((sys.executable, *program, *arguments))
    try:
        return client_at(session).submit_job(entrypoint=command, submission_id=identifier, runtime_env=runtime_env)
    except ValueError as error:
        raise click.UsageError(str(error).removeprefix("submit_job: ")) from None


@click.command(short_help="List jobs that run on a cluster on their own.")
@address_option
@json_option
def jobs(address: str | None, as_json: bool) -> None:
    """List the jobs of `zfabric submit --detach`, running or ended, that were not deleted."""
    found = client_at(chosen_session(address)).list_jobs()
    if as_json:
        print_json([_plain(job) for job in found])
    elif not found:
        echo("There are no jobs. `zfabric submit --detach PROGRAM` hands one to a started cluster.")
    else:
        numbers = {row["submission_id"]: row["job_id"] for row in list_jobs(limit=LIST_LIMIT)}
        rows = [
            (
                job["submission_id"],
                int(numbers[job["submission_id"]], 16) if job["submission_id"] in numbers else "-",
                job["status"].value.lower(),
                _for(job),
                _code(job),
                job["entrypoint"],
            )
            for job in found
        ]
        print_table(("job", ">number", "status", ">for", ">exit code", "command"), rows, flexible="command")


def _plain(job: JobDetails) -> dict[str, Any]:
    return {**job, "status": job["status"].value}


def _for(job: JobDetails) -> str:
    if job["start_time"] is None:
        return "-"
    end = job["end_time"] / 1000 if job["end_time"] is not None else time.time()
    return span(max(0.0, end - job["start_time"] / 1000))


def _code(job: JobDetails) -> str:
    return "-" if job["driver_exit_code"] is None else str(job["driver_exit_code"])


@click.group(short_help="Show, follow, stop or delete a job.")
def job() -> None:
    """Show, follow, stop or delete a job of `zfabric submit --detach`."""


@job.command(short_help="Show what has become of a job.")
@click.argument("identifier", metavar="ID")
@address_option
@json_option
def status(identifier: str, address: str | None, as_json: bool) -> None:
    """Show what has become of job ID. The exit code is 1 if it has failed or was stopped, else 0."""
    found = _found(client_at(chosen_session(address)), identifier)
    if as_json:
        print_json(_plain(found))
    else:
        more = f" ({found['message']})" if found["message"] else ""
        echo(f"{identifier}: {found['status'].value.lower()}{more}, for {_for(found)}: {found['entrypoint']}")
    sys.exit(EXIT_CODES[found["status"]])


@job.command(short_help="Show the output of a job.")
@click.argument("identifier", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Follow it until the job ends; exits with the job's exit code.")
@address_option
def logs(identifier: str, follow: bool, address: str | None) -> None:
    """Show the output of job ID."""
    client = client_at(chosen_session(address))
    _found(client, identifier)
    if not follow:
        echo_output(client.get_job_logs(identifier), nl=False)
        return
    for text in client.follow_job_logs(identifier):
        echo_output(text, nl=False)
    code = client.get_job_info(identifier).driver_exit_code
    sys.exit(1 if code is None else code if code >= 0 else 128 - code)


@job.command(short_help="Stop a job.")
@click.argument("identifier", metavar="ID")
@address_option
def stop(identifier: str, address: str | None) -> None:
    """Stop job ID: SIGTERM to its processes, SIGKILL three seconds later."""
    client = client_at(chosen_session(address))
    _found(client, identifier)
    stopped = client.stop_job(identifier)
    echo(f"{identifier} is {client.wait_for_job(identifier, 30).value.lower()}" if stopped else f"{identifier} had ended")


@job.command(short_help="Delete a job that has ended.")
@click.argument("identifier", metavar="ID")
@address_option
def delete(identifier: str, address: str | None) -> None:
    """Delete job ID, which has ended. Its output remains in the session's log directory."""
    client = client_at(chosen_session(address))
    _found(client, identifier)
    client.delete_job(identifier)
    echo(f"{identifier} is deleted")


def _found(client: JobSubmissionClient, identifier: str) -> JobDetails:
    try:
        return client.get_job_info(identifier)
    except ValueError:
        raise click.ClickException(f"there is no job {identifier!r} (any more); `zfabric jobs` lists those that there are") from None
