"""The command, and the play from beginning to end."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from gangwatch.demo.account import Account, uninterrupted
from gangwatch.demo.conductor import Conductor
from gangwatch.demo.play import Play, Schedule, measure_pace
from gangwatch.demo.report import summary
from gangwatch.demo.screen import Screen


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(30, 3600), default=90.0, show_default=True, help="Length.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which rank is disturbed, how, and the training.")
@click.option(
    "--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the report (JSON)."
)
@click.option("--no-disturbance", is_flag=True, help="Disturb nothing: gangwatch must stay silent.")
@click.option("--state", "folder", type=click.Path(file_okay=False, path_type=Path), help="Keep everything here.")
@click.option("--json", "as_json", is_flag=True, help="Print the report on standard output.")
def demo(
    seconds: float, seed: int, report_path: Path | None, no_disturbance: bool, folder: Path | None, as_json: bool
) -> None:
    """Four virtual nodes, three jobs and a fault, on this machine.

    Training runs; a process that gangwatch knows nothing of takes run time away from one of its ranks. The rank, the
    node and the cause must be found from telemetry, the training moved, the hole backfilled without delaying the head
    of the queue, and the node trusted again once the fault is over. Exits with 0 if every promise was kept, 1 if not.

    \b
    Example:
      gangwatch demo --seed 7 --report report.json
    """
    if report_path is not None and not report_path.parent.is_dir():
        raise click.BadParameter(f"{report_path.parent} is no folder", param_hint="--report")
    keep = folder is not None
    work = folder or Path(tempfile.mkdtemp(prefix="gangwatch-demo-"))
    if keep and work.exists() and any(work.iterdir()):
        raise click.BadParameter(f"{work} is not empty", param_hint="--state")
    work.mkdir(parents=True, exist_ok=True)
    try:
        report = perform(work, seed, Schedule.of(seconds), disturbed=not no_disturbance)
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    text = json.dumps(report, indent=2)
    if report_path is not None:
        report_path.write_text(text + "\n")
    if as_json:
        click.echo(text)
    for line in summary(report):
        click.echo(line, err=as_json)
    for line in report["failures"]:
        click.echo(f"NOT KEPT: {line}", err=True)
    sys.exit(0 if report["passed"] else 1)


def perform(work: Path, seed: int, schedule: Schedule, disturbed: bool) -> dict[str, Any]:
    """Give the whole play in the folder `work` and return its report."""
    began = time.monotonic()
    with Screen() as screen:
        screen.say("measuring a training step on this machine")
        pace, step_seconds = measure_pace(work / "calibration", seed)
        conductor = Conductor(work, seed, schedule, screen.say)
        play: Play = conductor.play
        play.pace_seconds, play.step_seconds = pace, step_seconds
        play.steps = round(schedule.training_seconds(disturbed) / step_seconds)
        screen.watch(conductor)
        conductor.perform(disturbed)
        screen.say("the same training once more, without gangwatch, to compare the weights")
        account = Account(play, conductor.listener.steps(), uninterrupted(play))
        report = account.report()
    return report | {"seconds": time.monotonic() - began}
