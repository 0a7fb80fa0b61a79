"""Rank of a training with a fixed global batch. A step takes SERIAL + PARALLEL / ranks seconds, and reports its tokens.

    python elastic_rank.py STEPS_FILE SERIAL PARALLEL STEPS

Rank 0 keeps the number of finished steps in STEPS_FILE, from which a restart with another number of ranks continues.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from gangwatch import steps

BATCH = 1200
"""Tokens of all ranks in one step."""


def main() -> None:
    file, serial, parallel, last = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    done = int(file.read_text()) if file.exists() else 0
    reporter = steps.reporter()
    due = time.monotonic()
    for _ in range(done, last):
        with reporter.step(tokens=BATCH // ranks):
            due = max(due + serial + parallel / ranks, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))
        done += 1
        if rank == 0:
            file.with_suffix(".new").write_text(str(done))
            file.with_suffix(".new").replace(file)
        if stopped:
            sys.exit(128 + signal.SIGTERM)


main()
