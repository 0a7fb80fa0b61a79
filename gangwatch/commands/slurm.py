"""Commands beside Slurm: slurm report, slurm submit, slurm hold, slurm release."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import config_option, json_option, print_json, say, state_option
from gangwatch.state_folder import StateFolder


@click.group()
def slurm() -> None:
    """Submit to Slurm as a job that may be moved, and see what was done there, or would have been.

    \b
    Examples:
      gangwatch slurm submit --signal USR1 --grace 60 -- --nodes=16 train.sh
      gangwatch slurm report
    """


@slurm.command()
@state_option
@click.option("--since", "hours", type=float, default=24.0, show_default=True, metavar="HOURS", help="How far back.")
@json_option
def report(state: StateFolder, hours: float, as_json: bool) -> None:
    """Say what was done in Slurm, or in `advise` would have been, and why.

    \b
    Examples:
      gangwatch slurm report
      gangwatch slurm report --since 168 --json
    """
    import time

    import msgspec

    from scheduler_feedback.backends.slurm import slurm_audit as audit

    begin_ns = time.time_ns() - int(hours * 3600e9)
    lines = [line for line in audit.lines(state.path / "slurm-actions.jsonl") if line.wall_ns >= begin_ns]
    counts = Counter((line.action, line.outcome.partition(":")[0]) for line in lines)
    if as_json:
        print_json(
            {
                "counts": [
                    {"action": action, "outcome": outcome, "count": count}
                    for (action, outcome), count in sorted(counts.items())
                ],
                "lines": [msgspec.to_builtins(line) for line in lines],
            }
        )
        return
    for line in lines:
        when = datetime.fromtimestamp(line.wall_ns / 1e9, UTC).astimezone()
        click.echo(f"{when:%Y-%m-%d %H:%M:%S}  {line.action} {line.target}: {line.outcome}; {line.why}")
        for fact in line.evidence[1:]:
            click.echo(f"                       {fact}")
    if not lines:
        say(f"nothing in the last {hours:g} hours")


@slurm.command(context_settings={"ignore_unknown_options": True})
@click.option("--signal", "signal_name", default="", metavar="NAME", help="What makes it save: USR1. Default: none.")
@click.option("--batch", is_flag=True, help="The signal is for the batch script, not for its steps.")
@click.option("--grace", type=float, default=30.0, show_default=True, metavar="SECONDS", help="How long a save takes.")
@click.option("--restart", type=float, default=30.0, show_default=True, metavar="SECONDS", help="What a start takes.")
@click.option("--every", type=float, metavar="SECONDS", help="Between checkpoints, if it saves on its own alone.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(
    signal_name: str, batch: bool, grace: float, restart: float, every: float | None, arguments: tuple[str, ...]
) -> None:
    """Run sbatch with ARGUMENTS, and declare the job restartable: it may be requeued away from a bad node.

    What stands after -- goes to sbatch as it is; the declaration is the job's comment, and --requeue.

    \b
    Example:
      gangwatch slurm submit --signal USR1 --grace 60 -- --nodes=16 --gpus-per-node=8 train.sh
    """
    from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, comment_of, of_comment

    if any(word == "--comment" or word.startswith("--comment=") for word in arguments):
        raise click.UsageError("the comment is where the declaration stands; leave --comment out")
    comment = comment_of(OptIn(True, signal_name.upper().removeprefix("SIG"), batch, grace, restart, every))
    if complaint := of_comment(comment).complaint:
        raise click.UsageError(complaint)
    command = ["sbatch", f"--comment={comment}", "--requeue", *arguments]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise GangwatchError(f"sbatch: {error.strerror}") from None


@slurm.command()
@state_option
@config_option
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--reason", default="", metavar="TEXT", help="For the audit.")
@click.argument("jobs", nargs=-1, required=True, type=int)
def hold(state: StateFolder, config_file: Path | None, dry_run: bool, reason: str, jobs: tuple[int, ...]) -> None:
    """Keep pending jobs from starting, with a line in the audit.

    \b
    Example:
      gangwatch slurm hold --reason "its data is on a bad disk" 4711
    """
    _each(state, config_file, "hold", jobs, dry_run, reason)


@slurm.command()
@state_option
@config_option
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--reason", default="", metavar="TEXT", help="For the audit.")
@click.argument("jobs", nargs=-1, required=True, type=int)
def release(state: StateFolder, config_file: Path | None, dry_run: bool, reason: str, jobs: tuple[int, ...]) -> None:
    """Let held jobs start, with a line in the audit.

    \b
    Example:
      gangwatch slurm release 4711
    """
    _each(state, config_file, "release", jobs, dry_run, reason)


def _each(
    state: StateFolder, config_file: Path | None, word: str, jobs: tuple[int, ...], dry_run: bool, reason: str
) -> None:
    """scontrol hold or release, for each of the jobs. Raises GangwatchError where one fails; the rest is done."""
    from agent.schema.clock import SystemClock
    from gangwatch.configuration.config_file import load
    from scheduler_feedback.backends.slurm.slurm_audit import Audit
    from scheduler_feedback.backends.slurm.slurm_commands import Commands

    section = load(config_file).slurm
    commands = Commands(section.programs, section.configuration, section.timeout_seconds)
    state.prepare()
    audit = Audit(state.path / "slurm-actions.jsonl", SystemClock())
    failed: list[str] = []
    for number in jobs:
        command = ("scontrol", word, str(number))
        if dry_run:
            audit.write(word, str(number), "would", reason, command)
            click.echo(f"would {' '.join(command)}")
            continue
        try:
            asyncio.run(commands.run(*command))
        except GangwatchError as error:
            audit.write(word, str(number), f"failed: {error}", reason, command)
            failed.append(str(error))
        else:
            audit.write(word, str(number), "done", reason, command)
    if failed:
        raise GangwatchError("; ".join(failed))
