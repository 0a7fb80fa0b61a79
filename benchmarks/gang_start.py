"""Time from ``apply`` until every rank of an 8-rank gang runs, compared with starting the programs by subprocess.

python -m benchmarks.gang_start [--runs N]

Prints one JSON document; exits with 1 if a figure is out of its range. The gang runs on four nodes of two slots, so
four shims must be ready before any rank starts. The start by subprocess is a lower bound. The ranges are wide enough
for any machine, and detect only large changes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from scheduler_feedback.backends.local import attempt_files
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event
from scheduler_feedback.core.job import JobSpec, Slot, StopReason

RANKS = 8
SLOTS = 2
COMMAND = ("sleep", "300")
_OBSERVE_SECONDS = 0.005

MAX_GANG_SECONDS = 2.0  # 0.08 s on two cores of an otherwise idle machine
MAX_SHIM_RESIDENT_BYTES = 32 * 1024 * 1024  # 12 MB with CPython 3.11


def gang(backend: LocalBackend, state_folder: Path, job_id: str) -> tuple[float, float, float, int]:
    """Start and stop a gang. Return the durations of apply(), of the start of all ranks and of the stop, and a shim's
    memory.

    Durations are in seconds. Stopping runs from SIGTERM to the end of the gang. The memory is the resident memory of
    one shim in bytes.
    """
    placement = tuple(Slot(f"n{rank // SLOTS}", rank % SLOTS) for rank in range(RANKS))
    began = time.perf_counter()
    backend.apply(StartGang(f"start-{job_id}", job_id, 1, JobSpec("gang", COMMAND, RANKS), placement))
    applied = time.perf_counter()
    running = _observe(backend, job_id)
    started = time.perf_counter()
    if not isinstance(running, AttemptRunning):
        raise SystemExit(f"the gang did not start: {running}")
    about = attempt_files.read(str(state_folder / "jobs" / job_id / "1" / "n0" / attempt_files.SHIM)) or {}
    resident_pages = int(Path(f"/proc/{about['pid']}/statm").read_text().split()[1])
    stopping = time.perf_counter()
    backend.apply(StopGang(f"stop-{job_id}", job_id, 1, "SIGTERM", 10.0, StopReason.CANCEL))
    ended = _observe(backend, job_id)
    stopped = time.perf_counter()
    if not isinstance(ended, AttemptEnded):
        raise SystemExit(f"the gang did not end: {ended}")
    return applied - began, started - began, stopped - stopping, resident_pages * 4096


def _observe(backend: LocalBackend, job_id: str) -> Event:
    """Wait for the next event of the attempt and return it."""
    while True:
        for event in backend.observe([(job_id, 1)]):
            return event
        time.sleep(_OBSERVE_SECONDS)


def bare() -> float:
    """Return the seconds to start the same number of processes directly, without shims."""
    began = time.perf_counter()
    processes = [
        subprocess.Popen(COMMAND, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for _ in range(RANKS)
    ]
    seconds = time.perf_counter() - began
    for process in processes:
        process.kill()
        process.wait()
    return seconds


def measure(runs: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="gang-start-") as folder:
        state_folder = Path(folder)
        backend = LocalBackend(state_folder, [LocalNode(f"n{number}", SLOTS) for number in range(RANKS // SLOTS)])
        gangs, peers = [], []
        for run in range(runs):  # alternating, so that both run under the same load
            gangs.append(gang(backend, state_folder, f"j-{run}"))
            peers.append(bare())
    apply_seconds, running_seconds, stop_seconds, resident_bytes = (list(column) for column in zip(*gangs, strict=True))
    return {
        "ranks": RANKS,
        "nodes": RANKS // SLOTS,
        "runs": runs,
        "apply_seconds": _summary(apply_seconds),
        "apply_to_running_seconds": _summary(running_seconds),
        "stop_to_ended_seconds": _summary(stop_seconds),
        "bare_popen_seconds": _summary(peers),
        "running_over_bare": statistics.median(running_seconds) / statistics.median(peers),
        "shim_resident_bytes": max(resident_bytes),
        "in_range": statistics.median(running_seconds) < MAX_GANG_SECONDS
        and max(resident_bytes) < MAX_SHIM_RESIDENT_BYTES,
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "max": max(seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="accepted for likeness: JSON is the only form")
    measured = measure(parser.parse_args().runs)
    print(json.dumps(measured, indent=2))
    return 0 if measured["in_range"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
