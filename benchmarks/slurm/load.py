"""Measurement of the cost of monitoring an idle Slurm cluster with a long queue."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.slurm.bed import Bed
from tests.slurm.site import Site

_TICKS = os.sysconf("SC_CLK_TCK")

SETTLING_SECONDS = 10.0
"""Seconds after the controller's start in which it loads modules and makes its first poll."""


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds of the process, its threads and the children that it has waited for (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS


def requests(site: Site) -> float:
    line = next(line for line in site.get("metrics").splitlines() if line.startswith("gangwatch_slurm_requests_total "))
    return float(line.split()[1])


def measure(bed: Bed, pending: int, seconds: float) -> dict[str, object]:
    """Return CPU time and requests of a controller in mode `act` that has nothing to do, and CPU time of slurmctld.

    bed: the Slurm cluster. pending: number of pending jobs. seconds: duration of the measurement.
    """
    running = bed.submit("sleep 3600", f"--nodes={bed.count}", "--gpus-per-node=8", "--time=600")
    bed.wait_for("it runs", lambda: bed.job(running)["JobState"] == "RUNNING")
    for _ in range(pending):
        bed.submit("sleep 60", "--nodes=2", "--gpus-per-node=8", "--time=30")
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as name:
        site = Site(bed, Path(name))
        site.folder.chmod(0o700)
        site.start("act", slurm={"idle_seconds": 30.0, "attentive_seconds": 5.0})
        try:
            time.sleep(SETTLING_SECONDS)
            # Measure from one poll to a later one, so that whole periods are counted.
            began, ours, theirs, asked = time.monotonic(), processor_seconds(site.pid), _slurmctld(bed), requests(site)
            time.sleep(seconds)
            took = time.monotonic() - began
            ours, theirs = processor_seconds(site.pid) - ours, _slurmctld(bed) - theirs
            asked = requests(site) - asked
        finally:
            site.stop()
    return {
        "nodes": bed.count,
        "pending": pending,
        "seconds": round(took, 1),
        "core_percent": round(100 * ours / took, 2),
        "requests_per_minute": round(asked / took * 60, 2),
        "slurmctld_core_percent": round(100 * theirs / took, 2),
    }


def _slurmctld(bed: Bed) -> float:
    return processor_seconds(bed.controller_pid())
