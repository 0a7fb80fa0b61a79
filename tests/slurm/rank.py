"""Rank of a training gang, started by srun: it computes, waits for all other ranks, and reports its steps.

rank.py FOLDER STEP_SECONDS STEPS [SLOW_FOLDER]

All ranks connect to a unix socket of rank 0 in FOLDER. A step ends when the slowest rank has arrived. On SIGUSR1 a rank
writes its step number and exits with 0; the next attempt continues from there. SLOW_FOLDER: its file with the node's
name contains the factor by which steps take longer on that node.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from gangwatch import steps

SIGNALLED_SECONDS = 5.0
"""On a busy machine, the ranks of a gang may be signalled seconds apart."""


def meet(folder: Path, rank: int, size: int) -> tuple[socket.socket | None, list[socket.socket]]:
    """Return the connection to rank 0; on rank 0, the connections to all other ranks."""
    path = folder / f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}.socket"
    if rank == 0:
        hub = socket.socket(socket.AF_UNIX)
        hub.bind(str(path))
        hub.listen(size)
        return None, [hub.accept()[0] for _ in range(size - 1)]
    way = socket.socket(socket.AF_UNIX)
    while True:
        try:
            way.connect(str(path))
            return way, []
        except OSError:
            time.sleep(0.05)


def slowness(folder: Path | None) -> float:
    try:
        return float((folder / os.environ["SLURMD_NODENAME"]).read_text()) if folder is not None else 1.0
    except (OSError, ValueError):
        return 1.0


def main() -> None:
    folder, step_seconds, count = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    slow = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    saved = folder / f"{os.environ['SLURM_JOB_ID']}.checkpoint"
    done = int(saved.read_text()) if saved.exists() else 0

    def save(_number: int, _frame: object) -> None:
        if rank == 0:
            saved.with_suffix(".new").write_text(str(done))
            saved.with_suffix(".new").replace(saved)
        os._exit(0)

    signal.signal(signal.SIGUSR1, save)
    (folder / f"{os.environ['SLURM_JOB_ID']}.{rank}.pid").write_text(f"{os.getpid()} {os.environ['SLURMD_NODENAME']}")
    reporter = steps.reporter()
    way, others = meet(folder, rank, size)
    while done < count:
        with reporter.step(number=done):
            time.sleep(step_seconds * slowness(slow))
            with reporter.wait():
                try:
                    for other in others:
                        other.recv(1)
                    if way is None:
                        for other in others:
                            other.send(b".")
                    else:
                        way.send(b".")
                        if not way.recv(1):
                            return
                except OSError:  # other ranks have left after their signal; that of this rank may still come
                    time.sleep(SIGNALLED_SECONDS)
                    raise
        done += 1
        if rank == 0 and done % 10 == 0:
            (folder / f"{os.environ['SLURM_JOB_ID']}.progress").write_text(str(done))
    if rank == 0:
        (folder / f"{os.environ['SLURM_JOB_ID']}.done").write_text(str(time.time()))


if __name__ == "__main__":
    main()
