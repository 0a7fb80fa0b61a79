"""The command `gangwatch demo`: runs the demo and prints its report."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangwatch.extras import needs

if TYPE_CHECKING:
    from gangwatch.demo.play import Schedule

# The demo brings in numpy, SQLite and rich, which `--help` and shell completion must not load: the functions that need
# its parts import them.


@click.command("demo")
@needs("controller")
@click.option(
    "--seconds", type=click.FloatRange(30, 3600), default=90.0, show_default=True, help="Approximate duration."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the disturbance and of the training.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as JSON to a file.",
)
@click.option("--no-disturbance", is_flag=True, help="Disturb nothing; gangwatch must report no verdict.")
@click.option(
    "--state",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Empty folder for all files, which are kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
def demo(
    seconds: float, seed: int, report_path: Path | None, no_disturbance: bool, folder: Path | None, as_json: bool
) -> None:
    """Run a demo on this machine: four virtual nodes, three jobs and a fault.

    A separate process, which gangwatch does not control, slows one rank of a training job. From telemetry alone,
    gangwatch must detect the rank, the node and the cause, and move the job. It must backfill the freed slots without
    delaying the head of the queue, and use the node again after the fault. The exit code is 0 if all checks passed,
    1 if not.

    \b
    Example:
      gangwatch demo --seed 7 --report report.json
    """
    from gangwatch.demo.play import Schedule
    from gangwatch.demo.report import summary

    if report_path is not None and not report_path.parent.is_dir():
        raise click.BadParameter(f"{report_path.parent} is not a folder", param_hint="--report")
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
        click.echo(f"FAILED: {line}", err=True)
    sys.exit(0 if report["passed"] else 1)


def perform(work: Path, seed: int, schedule: Schedule, disturbed: bool) -> dict[str, Any]:
    """Run the whole demo in the folder `work` and return its report.

    schedule: duration of each part. disturbed: whether to slow a rank.
    """
    from gangwatch.demo.account import Account, uninterrupted
    from gangwatch.demo.conductor import Conductor
    from gangwatch.demo.play import measure_pace
    from gangwatch.demo.screen import Screen

    began = time.monotonic()
    with Screen() as screen:
        screen.say("measuring the step time on this machine")
        pace, step_seconds = measure_pace(work / "calibration", seed)
        conductor = Conductor(work, seed, schedule, screen.say)
        play = conductor.play
        play.pace_seconds, play.step_seconds = pace, step_seconds
        play.steps = round(schedule.training_seconds(disturbed) / step_seconds)
        screen.watch(conductor)
        conductor.perform(disturbed)
        screen.say("running the same training without gangwatch, to compare the final weights")
        account = Account(play, conductor.listener.steps(), uninterrupted(play))
        report = account.report()
    return report | {"seconds": time.monotonic() - began}
