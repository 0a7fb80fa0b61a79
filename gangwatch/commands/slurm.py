"""Commands for Slurm: slurm report, slurm submit, slurm hold, slurm release."""

from __future__ import annotations

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
    """Submit restartable jobs to Slurm, hold and release jobs, and report gangwatch's actions.

    \b
    Examples:
      gangwatch slurm submit --signal USR1 --grace 60 -- --nodes=16 train.sh
      gangwatch slurm report
    """


@slurm.command()
@state_option
@click.option(
    "--since", "hours", type=float, default=24.0, show_default=True, metavar="HOURS", help="Period to report."
)
@json_option
def report(state: StateFolder, hours: float, as_json: bool) -> None:
    """Show gangwatch's actions in Slurm with their reasons; in `advise`, the actions it would have taken.

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
        say(f"no actions in the last {hours:g} hours")


@slurm.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--signal",
    "signal_name",
    default="",
    metavar="NAME",
    help="Signal to save a checkpoint, such as USR1. Default: none.",
)
@click.option("--batch", is_flag=True, help="Send the signal to the batch script, not to its steps.")
@click.option("--grace", type=float, default=30.0, show_default=True, metavar="SECONDS", help="Time that a save takes.")
@click.option(
    "--restart", type=float, default=30.0, show_default=True, metavar="SECONDS", help="Time that a start takes."
)
@click.option("--every", type=float, metavar="SECONDS", help="Checkpoint interval, if the job saves only on its own.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(
    signal_name: str, batch: bool, grace: float, restart: float, every: float | None, arguments: tuple[str, ...]
) -> None:
    """Run sbatch with ARGUMENTS and declare the job restartable, so that gangwatch may requeue it off a bad node.

    The arguments after -- go to sbatch unchanged. The declaration is the job's comment plus --requeue.

    \b
    Example:
      gangwatch slurm submit --signal USR1 --grace 60 -- --nodes=16 --gpus-per-node=8 train.sh
    """
    from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, comment_of, of_comment

    if any(word == "--comment" or word.startswith("--comment=") for word in arguments):
        raise click.UsageError("--comment is not allowed: gangwatch declares the job restartable in its comment")
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
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@click.option("--reason", default="", metavar="TEXT", help="Recorded in the audit log.")
@click.argument("jobs", nargs=-1, required=True, type=int)
def hold(state: StateFolder, config_file: Path | None, dry_run: bool, reason: str, jobs: tuple[int, ...]) -> None:
    """Hold pending jobs (scontrol hold) and record it in the audit log.

    \b
    Example:
      gangwatch slurm hold --reason "its data is on a bad disk" 4711
    """
    _each(state, config_file, "hold", jobs, dry_run, reason)


@slurm.command()
@state_option
@config_option
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@click.option("--reason", default="", metavar="TEXT", help="Recorded in the audit log.")
@click.argument("jobs", nargs=-1, required=True, type=int)
def release(state: StateFolder, config_file: Path | None, dry_run: bool, reason: str, jobs: tuple[int, ...]) -> None:
    """Release held jobs (scontrol release) and record it in the audit log.

    \b
    Example:
      gangwatch slurm release 4711
    """
    _each(state, config_file, "release", jobs, dry_run, reason)


def _each(
    state: StateFolder, config_file: Path | None, word: str, jobs: tuple[int, ...], dry_run: bool, reason: str
) -> None:
    """Run `scontrol hold` or `scontrol release` for each job.

    Raises GangwatchError at the end if any command failed.
    """
    # Here and in `report`: asyncio, msgspec and the backend, which `--help` and shell completion must not load.
    import asyncio

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
