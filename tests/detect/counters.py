"""Recordings with counters: jobs of 16 ranks on two nodes, whose steps contain a collective and no waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

STEPS, RANKS, ONSET = 60, 16, 30
USUAL, POLLS = {"sm_active": 0.8, "tensor_active": 0.45, "power": 600.0}, {"sm_active": 0.15, "power": 250.0}
STEP_SECONDS = 2.0

Change = Callable[[int, bool], Mapping[str, float]]
"""Return the counters of a rank that differ from those of its peers. Arguments: rank, whether the fault has begun."""


def lines(slower: float, change: Change, onset: int = ONSET, steps: int = STEPS) -> list[dict[str, Any]]:
    """Return steps that take `slower` times as long from the step `onset` on, and counters of each second.

    All ranks poll in the additional time, except those whose counters are changed.
    """
    random = np.random.default_rng(5)
    found: list[dict[str, Any]] = []
    now, ends = 0.0, []
    for step in range(steps):
        length = STEP_SECONDS * (slower if step >= onset else 1.0) * float(np.exp(random.normal(0.0, 0.003)))
        now += length
        ends.append(now)
        found += [
            {"step": step, "rank": rank, "node": f"n{rank // 8}", "seconds": length, "end": now}
            for rank in range(RANKS)
        ]  # fmt: skip
    for second in range(1, int(now)):
        faulty = onset > 0 and second > ends[onset - 1]
        lost = 1.0 - 1.0 / slower if faulty else 0.0
        for rank in range(RANKS):
            values = {name: usual * (1 - lost) + POLLS.get(name, 0.0) * lost for name, usual in USUAL.items()}
            values |= {"sm_clock": 1.75e9, "cpu_waiting": 0.01, "io_waiting": 0.0, "nic_sequence_errors": 0.0}
            values |= change(rank, faulty)
            noisy = {name: value * float(np.exp(random.normal(0.0, 0.01))) for name, value in values.items()}
            found.append({"at": float(second), "rank": rank, **noisy})
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write the rows as JSON lines."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path
