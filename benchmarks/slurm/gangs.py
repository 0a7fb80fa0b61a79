"""Comparison of the same gangs on Slurm alone and on Slurm with gangwatch, while one node is slow.

The gangs are those of the Philly trace with two nodes and more, in its order, eight GPUs to a node. Run times are
scaled down to a minute and sizes are bounded, so that a run ends in minutes. Ranks are real processes under srun
that synchronise at every step; a step takes 60 ms, and 1.3 times as long on the slow node, from SLOW_AFTER_SECONDS
on. Agents, detectors and Slurm are real.
"""

from __future__ import annotations

import csv
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.bed import GPUS, Bed
from tests.slurm.site import Site, agents, gang_script

STEP_SECONDS = 0.06
SLOW_NODE = "gpu002"
SLOW_AFTER_SECONDS = 20.0
LEAST_SECONDS, MOST_SECONDS = 15.0, 50.0
MOST_NODES = 6
PATIENCE_SECONDS = 400.0


@dataclass(frozen=True, slots=True)
class Gang:
    """A job of the trace, scaled down. run_seconds: run time on healthy nodes without other jobs."""

    nodes: int
    run_seconds: float


def data_folder() -> Path:
    return Path(os.environ.get("GANGWATCH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def of_philly(path: Path, count: int, first: int = 0) -> list[Gang]:
    """Return `count` jobs of the trace with two or more nodes and a run time of at least an hour, from index `first`
    on."""
    found: list[Gang] = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            gpus, seconds = int(row["num_gpus"]), float(row["duration"])
            if gpus < 2 * GPUS or seconds < 3600:
                continue
            first -= 1
            if first >= 0:
                continue
            # Map an hour to LEAST_SECONDS and a week to MOST_SECONDS, on a logarithmic scale between them.
            place = min(math.log(seconds / 3600) / math.log(168), 1.0)
            scaled = LEAST_SECONDS + place * (MOST_SECONDS - LEAST_SECONDS)
            found.append(Gang(min(-(-gpus // GPUS), MOST_NODES), scaled))
            if len(found) == count:
                break
    return found


def run(bed: Bed, gangs: list[Gang], slowdown: float, feedback: bool) -> dict[str, object]:
    """Submit all gangs at once, and return the figures of their run. Raises TimeoutError if they do not end.

    bed: the Slurm cluster. slowdown: factor of step times on the slow node. feedback: whether gangwatch moves jobs.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp")))
        state, work, slow = folder / "state", folder / "work", folder / "slow"
        for part in (state, work, slow):
            part.mkdir(mode=0o700)
        site = Site(bed, state)
        bed.export({"GANGWATCH_SOCKET": f"{state}/run/{{node}}.sock"} if feedback else {})
        if feedback:
            stack.enter_context(agents(state, bed.names))
            policy = {"quarantine_seconds": 3600.0, "migration_cooldown_seconds": 10.0}
            site.start("act", slurm={"attentive_seconds": 1.0, "idle_seconds": 10.0}, policy=policy)
            stack.callback(site.stop)
        began = time.time()
        numbers = [_submit(bed, gang, work, slow) for gang in gangs]
        slowed = False
        while len(ended := list(_ended(work, numbers))) < len(numbers):
            if not slowed and time.time() - began > SLOW_AFTER_SECONDS:
                (slow / SLOW_NODE).write_text(str(slowdown))
                slowed = True
            if time.time() - began > PATIENCE_SECONDS:
                raise TimeoutError(
                    f"{len(ended)} of {len(numbers)} gangs have ended\n{bed.ask('squeue')}\n{site.said()}"
                )
            time.sleep(0.5)
        taken = sorted(at - began for at in ended)
        restarts = sum(int(bed.job(number)["Restarts"]) for number in numbers)
        done = [line for line in site.audit() if line["outcome"] == "done"]
        bed.reset()
    return {
        "makespan_seconds": round(taken[-1], 1),
        "average_jct_seconds": round(sum(taken) / len(taken), 1),
        "gangs": len(gangs),
        "requeued": restarts,
        "drained": sorted({line["target"] for line in done if line["action"] == "drain"}),
    }


def _submit(bed: Bed, gang: Gang, work: Path, slow: Path) -> str:
    steps = round(gang.run_seconds / STEP_SECONDS)
    return bed.submit(
        gang_script(work, STEP_SECONDS, steps, slow),
        f"--nodes={gang.nodes}", "--ntasks-per-node=1", f"--gpus-per-node={GPUS}", "--time=2",
        "--comment=gangwatch:restartable,signal=USR1,grace=1,restart=2",
    )  # fmt: skip


def _ended(work: Path, numbers: list[str]) -> Iterator[float]:
    """Yield the end time of each gang that has completed all of its steps."""
    for number in numbers:
        path = work / f"{number}.done"
        if path.exists() and (text := path.read_text()):
            yield float(text)
