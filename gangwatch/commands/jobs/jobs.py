"""Commands for jobs: submit, jobs, logs, cancel."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from gangwatch.commands.jobs.shape import shape_options
from gangwatch.commands.jobs.templates import rendered, template_options
from gangwatch.commands.options import (
    client_of,
    duration,
    environment,
    json_option,
    plain,
    print_json,
    say,
    state_option,
    user_name,
)
from gangwatch.controller_client import Client, RefusedError
from gangwatch.display.job_name import name_of
from gangwatch.state_folder import NotRunningError, StateFolder
from gangwatch.support.rank_logs import RankLogs
from scheduler_feedback.core.job import JobKind, JobState

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

POLL_SECONDS = 0.25
"""Seconds between two requests for the state of a job that the command follows."""

_NEVER_PASSED_ON = re.compile(
    r"GANGWATCH_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)
"""Environment variables that a job does not inherit from its submitter, which may itself be a rank of a job."""


def submitters_environment() -> dict[str, str]:
    """Return the environment variables of this process that a job inherits. Values that are not UTF-8 are left out."""
    return {
        name: value
        for name, value in os.environ.items()
        if _NEVER_PASSED_ON.fullmatch(name) is None and _is_text(name + value)
    }


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that Python keeps as lone surrogates (PEP 383)
        return False
    return True


def _signal_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise click.BadParameter(f"{value!r} is not a signal that a program can handle")
    return name


# Options end at the command: `submit python -c ...` needs no `--`, though it reads better with it.
@click.command(context_settings={"allow_interspersed_args": False})
@state_option
@click.option("--name", callback=plain, help="Name of the job. Default: its script (train for python train.py).")
@click.option(
    "--ranks", type=click.IntRange(1), default=1, show_default=True, help="Processes, one per slot; all start or none."
)
@click.option(
    "--time-limit",
    callback=duration,
    metavar="DURATION",
    help="Your estimate of the whole run time: 10m, 2h, 1:00:00, 2-00:00:00.",
)
@click.option("--restartable", is_flag=True, help="The job resumes from its own checkpoint, so it may be moved.")
@click.option(
    "--checkpoint-signal", default="SIGTERM", show_default=True, callback=_signal_name, help="Signal to save and exit."
)
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Time between that signal and SIGKILL.",
)
@click.option(
    "--restart-cost",
    default="10s",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Your estimate of loading and warm-up after a restart.",
)
@click.option("--max-retries", type=click.IntRange(0), default=0, show_default=True, help="Retries after failures.")
@click.option(
    "--env",
    "given_environment",
    multiple=True,
    callback=environment,
    metavar="NAME=VALUE",
    help="Environment variable of the job; repeatable.",
)
@click.option(
    "--chdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    metavar="DIR",
    help="Working directory of the job. Default: the current one.",
)
@click.option("--queue", default="default", show_default=True, callback=plain, help="Queue of the job.")
@shape_options
@template_options
@click.option("--wait", is_flag=True, help="Follow the job to its end; exit with 0 only if it completed.")
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(
    state: StateFolder,
    name: str | None,
    ranks: int,
    time_limit: float | None,
    restartable: bool,
    checkpoint_signal: str,
    grace: float,
    restart_cost: float,
    max_retries: int,
    given_environment: dict[str, str],
    chdir: Path | None,
    queue: str,
    shape: dict[str, Any],
    template_name: str | None,
    template_values: dict[str, str],
    wait: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Submit COMMAND as a gang: all its ranks start together, or none starts. Prints the job id.

    The job runs with your environment, in the current directory, without a shell. Each rank has RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment, as with torchrun.

    \b
    Example:
      gangwatch submit --ranks 4 --restartable --time-limit 2h -- python train.py --steps 1000
      gangwatch submit --ranks 8 --min-ranks 4 --max-ranks 16 --preemptible -- python train.py
      gangwatch submit --array 100%8 --after j-000001 -- python evaluate.py
      gangwatch submit --template mpi --ranks 4 -- ./solve input.dat
    """
    if template_name is not None:
        made = rendered(template_name, template_values, command)
        shape = made.fields | shape
        name, command = name or name_of(command), tuple(made.command)
        given_environment = made.environment | given_environment
    elif template_values:
        raise click.UsageError("--set needs --template")
    specification: dict[str, Any] = {
        "name": name or name_of(command),
        "command": list(command),
        "ranks": ranks,
        "user": user_name(),
        "queue": queue,
        "time_limit_seconds": time_limit,
        "restartable": restartable,
        "checkpoint_signal": checkpoint_signal,
        "grace_seconds": grace,
        "restart_cost_seconds": restart_cost,
        "max_retries": max_retries,
        "working_directory": str(chdir or Path.cwd()),
        "environment": submitters_environment() | given_environment,
    }
    specification = _over(shape, specification)
    client = client_of(state)
    answer: dict[str, Any] = client.post("/api/jobs", specification)
    if not wait:
        if as_json:
            print_json(answer)
        else:
            click.echo(answer["job"])
        return 0
    if not as_json:
        click.echo(answer["job"])
    size = int(specification.get("array_size") or 0)
    ended = [_follow(client, f"{answer['job']}.{index}") for index in range(size)] or [_follow(client, answer["job"])]
    if as_json:
        print_json(ended if size else ended[0])
    return 0 if all(job["state"] == "completed" for job in ended) else 1


def _over(shape: dict[str, Any], specification: dict[str, Any]) -> dict[str, Any]:
    """Return the specification with the fields of `shape`. Options given on the command line take precedence."""
    context = click.get_current_context()
    options = {
        "ranks": "ranks", "queue": "queue", "time_limit_seconds": "time_limit", "name": "name",
        "checkpoint_signal": "checkpoint_signal", "grace_seconds": "grace", "restart_cost_seconds": "restart_cost",
        "max_retries": "max_retries", "working_directory": "chdir",
    }  # fmt: skip
    given = {
        field: specification[field]
        for field, option in options.items()
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT
    }
    # A checkpoint signal or command declares that the job can be stopped and restarted.
    saves = "checkpoint_signal" in given or specification["restartable"] or shape.get("restartable", False)
    saves = saves or bool(shape.get("checkpoint_command"))
    if "ranks" not in given and "ranks" not in shape and shape.get("groups"):
        given["ranks"] = sum(group["ranks"] for group in shape["groups"])
    environment = shape.get("environment", {})
    return {
        **specification,
        **shape,
        **given,
        "restartable": saves,
        "command": specification["command"],
        "environment": environment | specification["environment"] if environment else specification["environment"],
    }


def _follow(client: Client, job_id: str) -> dict[str, Any]:
    """Print each change of the job's state until the job ends. Return the last document of the job."""
    seen = None
    while True:
        job = _get_with_retry(client, job_id)
        now = (job["state"], job["attempt"])
        if now != seen:
            say(f"{job_id} {job['state']}" + (f", attempt {job['attempt']}" if job["attempt"] else ""))
            seen = now
        if JobState(job["state"]).ended:
            return job
        time.sleep(POLL_SECONDS)


def _get_with_retry(client: Client, job_id: str) -> dict[str, Any]:
    """Return the document of the job. Retry while the supervisor restarts the controller."""
    while True:
        try:
            job: dict[str, Any] = client.get(f"/api/jobs/{job_id}")
        except (NotRunningError, RefusedError) as error:
            restarting = isinstance(error, NotRunningError) or error.status == 503
            if not restarting or client.state.supervisor() is None:
                raise
            time.sleep(POLL_SECONDS)
        else:
            return job


@click.command()
@state_option
@click.option("--active", is_flag=True, help="Only jobs that have not ended (the default of the table).")
@click.option("--ended", is_flag=True, help="Only jobs that have ended.")
@click.option("--all", "every", is_flag=True, help="Ended jobs too (the default with --json).")
@click.option(
    "--in-state",
    "states",
    multiple=True,
    type=click.Choice([known.value for known in JobState]),
    help="Only jobs in this state; repeatable.",
)
@click.option("--user", default="", metavar="NAME", help="Only jobs of this user.")
@click.option("--queue", default="", metavar="NAME", help="Only jobs in this queue.")
@json_option
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def jobs(
    state: StateFolder,
    active: bool,
    ended: bool,
    every: bool,
    states: tuple[str, ...],
    user: str,
    queue: str,
    as_json: bool,
    jobs: tuple[str, ...],
) -> None:
    """List jobs: user, queue, state, run time, and the reason why a job is pending, slow or ended. With JOB, show all
    details of that job.

    The table omits ended jobs unless you pass --ended, --all or --in-state. JOB may be an array.

    With --json: a list of {job, name, user, queue, state, attempt, size, ranks, verdicts, reason, ...}. A rank is
    {rank, node, slot, pid, start_time, exit_code}; start_time is in clock ticks since boot, or null if unknown. A
    verdict with standing: false is no longer active.

    \b
    Example:
      gangwatch jobs --user ana --in-state pending
      gangwatch jobs j-000001
      gangwatch jobs --ended --json
    """
    if sum((active, ended, every)) > 1:
        raise click.UsageError("use at most one of --active, --ended and --all")
    client = client_of(state)
    if jobs:
        if active or ended or every or states or user or queue:
            raise click.UsageError("JOB can't be combined with a filter option")
        found = [document for job in jobs for document in _of(client, job)]
    else:
        wanted = (
            {one for one in JobState if (one.ended if ended else not one.ended)} if ended or active else set(JobState)
        )
        if not (ended or active or every or states or as_json):
            wanted = {one for one in JobState if not one.ended}
        if states:
            wanted &= {JobState(name) for name in states}
        found = _listed(client, wanted, user, queue)
    if as_json:
        print_json(found)
        return
    from gangwatch.display import rendering  # rich, which --json does not need, is half of the start-up time

    if jobs:
        rendering.job_details(found)
        return
    rendering.jobs(found)
    if (
        not found
        and not (ended or every or states)
        and (over := _listed(client, {one for one in JobState if one.ended}, user, queue))
    ):
        say(f"{len(over)} ended jobs are not shown: `gangwatch jobs --ended` lists them")


def _listed(client: Client, states: set[JobState], user: str, queue: str) -> list[dict[str, Any]]:
    """Return the jobs in one of these states, of this user and queue ('' for all). Probes are left out; `gangwatch
    nodes` shows them."""
    if not states:
        return []
    query = {"state": ",".join(sorted(states)), "user": user, "queue": queue}
    listed = client.get_all("/api/jobs?" + urlencode({name: value for name, value in query.items() if value}))
    return [job for job in listed if job["kind"] != JobKind.PROBE]


def _of(client: Client, job: str) -> list[dict[str, Any]]:
    """Return the documents of the job with this id, or of all jobs of the array with this id."""
    if JOB_ID.fullmatch(job) is None:
        raise click.BadParameter(f"{job!r} is not a job id", param_hint="JOB")
    try:
        return [client.get(f"/api/jobs/{job}")]
    except RefusedError as error:
        members = [one for one in _listed(client, set(JobState), "", "") if one["job"].rpartition(".")[0] == job]
        if error.status != 404 or not members:
            raise
        return members


@click.command()
@state_option
@click.argument("job")
@click.option("--rank", type=click.IntRange(0), help="Only this rank. Default: all ranks, each line with its rank.")
@click.option("--attempt", type=click.IntRange(1), help="Default: the latest.")
@click.option("--tail", "tail_lines", type=click.IntRange(0), metavar="N", help="Only the last N lines of each rank.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the job ends.")
def logs(
    state: StateFolder, job: str, rank: int | None, attempt: int | None, tail_lines: int | None, follow: bool
) -> None:
    """Show the standard output and standard error of the ranks of JOB.

    Reads the files in the state folder; no controller is needed.

    \b
    Example:
      gangwatch logs j-000001 --rank 0 --tail 20 --follow
    """
    if JOB_ID.fullmatch(job) is None:
        raise click.BadParameter(f"{job!r} is not a job id", param_hint="JOB")
    reader = RankLogs(state, job, attempt, rank)
    if not follow:
        reader.require_any()
    for line in reader.newest(tail_lines, final=not follow):
        click.echo(line, nl=False)
    while follow:
        ended = _has_ended(state, job)
        for line in reader.more(ended):
            click.echo(line, nl=False)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _has_ended(state: StateFolder, job: str) -> bool:
    return JobState(_get_with_retry(client_of(state), job)["state"]).ended


@click.command()
@state_option
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def cancel(state: StateFolder, jobs: tuple[str, ...]) -> int:
    """Stop each JOB: send its checkpoint signal, wait for its grace period, then kill all its processes.

    \b
    Example:
      gangwatch cancel j-000001 j-000002
    """
    client = client_of(state)
    refused = 0
    for job in jobs:
        if JOB_ID.fullmatch(job) is None:
            raise click.BadParameter(f"{job!r} is not a job id", param_hint="JOB")
        try:
            client.post(f"/api/jobs/{job}/cancel", {"by": user_name()})
        except RefusedError as error:
            say(f"Error: {error}")
            refused += 1
        else:
            say(f"{job}: cancelling")
    return 1 if refused else 0
