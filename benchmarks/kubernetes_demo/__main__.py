"""`gangwatch demo` on Kubernetes: `make demo-kubernetes`, or `python -m benchmarks.kubernetes_demo --report FILE`.

As root on Debian 12, after `make components`. Starts a cluster with three real kubelets on this machine, installs the
chart by Helm, and trains a gang of four pods in numpy, with checkpoints on a volume. A CPU quota on the control group
of one pod, of which gangwatch has no information, slows one rank. gangwatch must detect the rank and the node, move the
gang (evict its pods, bind the Job's new ones elsewhere), backfill a short gang without delaying the head of the queue,
and use the node again after probe and probation. Prints the report of `gangwatch demo`, and exits with 1 if a check
failed. Its limits are those of containers: 30 s from the verdict to the next step, 1 s of delay for the head.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_demo.conductor import NODES, RESTART_SECONDS, Conductor
from benchmarks.kubernetes_demo.manifests import BATCH
from gangwatch.demo.account import Account
from gangwatch.demo.play import (
    LOAD,
    RANKS_AT_ONCE,
    TRAINING_RANKS,
    Play,
    Schedule,
    plain_environment,
    run_training,
    training_command,
)
from gangwatch.demo.report import Limits, summary
from tests.kubernetes.real_kubelets import RealCluster, parent_folder

LEAST_STEP_SECONDS = 0.2
LEAST_WORK_SECONDS = 0.012
"""Least CPU time of a rank and step on this machine. The kernel's least CPU quota is 1 ms in 100 ms, so a rank that
works less in two periods is not slowed by any quota."""
LIMITS = Limits(detect_seconds=15.0, running_again_seconds=30.0, head_delay_seconds=1.0)


def perform(work: Path, seed: int, schedule: Schedule, *, disturbed: bool) -> dict[str, Any]:
    """Run the whole demo with all of its files in the folder `work`, and return its report."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    play = Play(work / "state", seed)
    cluster = RealCluster(work / "cluster")
    say(f"starting {NODES} nodes")
    with cluster.running(NODES) as api:
        say("measuring the step time on this machine")
        batch, play.pace_seconds, play.step_seconds = pace(work / "calibration", seed)
        seconds = schedule.training_seconds(disturbed) + (RESTART_SECONDS if disturbed else 0.0)
        play.steps = round(seconds / play.step_seconds)
        conductor = Conductor(work, play, batch, schedule, cluster, api, say)
        say("installing the chart")
        try:
            conductor.perform(disturbed)
        except BaseException:
            say(cluster.logs())
            raise
    say("running the same training without gangwatch, to compare the final weights")
    report = Account(play, conductor.steps(), uninterrupted(play, batch, work), LIMITS).report()
    return report | {"nodes": NODES, "seconds": time.monotonic() - began}


def alone(folder: Path, steps: int, seed: int, ranks: int, batch: int) -> dict[str, Any]:
    """Run the training without a cluster and without pauses, and return its result.

    Pods do not have this machine's settings of OpenBLAS, with which it may round otherwise (OPENBLAS_CORETYPE).
    """
    folder.mkdir()
    kept = {name: value for name, value in plain_environment().items() if not name.startswith("OPENBLAS_")}
    command = [*training_command(steps, seed, 0.0, folder), f"--batch={batch}"]
    return run_training(command, ranks, kept | {"OPENBLAS_NUM_THREADS": "1"})


def pace(folder: Path, seed: int) -> tuple[int, float, float]:
    """Return (samples of a rank and step, pause per step, expected step time); times in seconds.

    Six pods then use the share LOAD of this machine at most. A step takes two periods of a CPU quota at least, and its
    batch is large enough to give this machine's processor LEAST_WORK_SECONDS of work.
    """
    folder.mkdir()
    batch = BATCH
    work = float(alone(folder / str(batch), 100, seed, 1, batch)["step_seconds"])
    while work < LEAST_WORK_SECONDS:
        batch = max(batch + 1, round(batch * min(4.0, 1.1 * LEAST_WORK_SECONDS / work)))
        work = float(alone(folder / str(batch), 100, seed, 1, batch)["step_seconds"])
    step = max(LEAST_STEP_SECONDS, RANKS_AT_ONCE * work / (LOAD * len(os.sched_getaffinity(0))))
    return batch, step - work, step


def uninterrupted(play: Play, batch: int, work: Path) -> dict[str, Any]:
    return alone(work / "uninterrupted", play.steps, play.seed, TRAINING_RANKS, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report as JSON to a file")
    parser.add_argument("--seconds", type=float, default=90.0, help="approximate duration without start and end")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training; it also selects the disturbed rank")
    parser.add_argument("--no-disturbance", action="store_true", help="disturb nothing: there must be no verdict")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="new folder with a short path, to keep all files in"
    )
    options = parser.parse_args()
    if options.report is not None and not options.report.parent.is_dir():
        parser.error(f"--report: {options.report.parent} is not a folder")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} exists already")
    work = options.keep or Path(tempfile.mkdtemp(prefix="gw-", dir=parent_folder()))  # sockets have short paths
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o755)  # containers read and write a folder in it
    try:
        report = perform(work, options.seed, Schedule.of(options.seconds), disturbed=not options.no_disturbance)
    finally:
        if options.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    text = json.dumps(report, indent=2)
    if options.report is not None:
        options.report.write_text(text + "\n")
    else:
        print(text)
    for line in summary(report):
        print(line, file=sys.stderr)
    for line in report["failures"]:
        print(f"FAILED: {line}", file=sys.stderr)
    sys.exit(0 if report["passed"] else 1)


if __name__ == "__main__":
    main()
