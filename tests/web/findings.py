"""Verdicts and frames that tests show on pages."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from agent.schema.frame import Frame, Layout, Member, StepRecord, make_layout
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict


def straggler(job_id: str, words: str = "its peers", rank: int = 0, node: str = "n0") -> Verdict:
    """Return a verdict about a rank of the job's first attempt."""
    now_ns = time.time_ns()
    return Verdict(
        f"{job_id}/1/{rank}/7", Kind.STRAGGLER, job_id, 1, rank, node, Cause.SUSPENDED, 0.97, 1.63, 0.31, 0.505,
        now_ns - 5_000_000_000, now_ns,
        (
            Evidence("run time", 0.51, 0.31, "seconds", words, 3.0),
            Evidence("step_seconds", 0.505, 0.31, "seconds", words, 1.0),
            Evidence("off_processor_seconds_a_step", 0.19, 0.2, "seconds", f"its whole excess, less {words}'", 2.0),
        ),
        (("n0", 12),),
    )  # fmt: skip


def step_frames(
    job: dict[str, Any],
    steps: int,
    slow_rank: int,
    slow_from: int,
    stops: Mapping[int, float] | None = None,
    ended_seconds: float = 0.0,
    own_seconds: float = 0.3,
    first: int = 0,
) -> list[tuple[Layout, Frame]]:
    """Return one frame per node of the job. The frames have the last `steps` steps of the job's ranks.

    From step slow_from on, slow_rank takes 1.7 times as long as all others; all ranks wait for the slowest. stops: by
    step, the seconds for which slow_rank is stopped in it. ended_seconds: age of the last step.
    """
    noise = random.Random(7 + first)
    own_ns = [[round(own_seconds * 1e9 * (1 + 0.03 * noise.gauss(0, 1))) for _ in job["ranks"]] for _ in range(steps)]
    for row in own_ns[slow_from:]:
        row[slow_rank] = round(row[slow_rank] * 1.7)
    for step, seconds in (stops or {}).items():
        own_ns[step][slow_rank] += round(seconds * 1e9)
    now_ns = time.monotonic_ns()
    last_ns = now_ns - round(ended_seconds * 1e9)
    longest_ns = [max(row) for row in own_ns]
    ends_ns = list(accumulate(longest_ns))
    on_node: dict[str, list[int]] = {}
    for rank in job["ranks"]:
        on_node.setdefault(rank["node"], []).append(rank["rank"])
    found = []
    for node, ranks in sorted(on_node.items()):
        records = tuple(
            StepRecord(
                Member(job["job"], job["attempt"], rank),
                first + step,
                last_ns - ends_ns[-1] + ends_ns[step] - longest_ns[step],
                longest_ns[step],
                longest_ns[step] - row[rank],
            )
            for step, row in enumerate(own_ns)
            for rank in ranks
        )
        layout = make_layout(node, (), (), ())
        none = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.bool_)
        found.append(
            (
                layout,
                Frame(
                    node,
                    "m",
                    "a",
                    1 + first,
                    layout.layout_id,
                    time.time_ns(),
                    now_ns,
                    *none,
                    first * len(ranks),
                    records,
                ),
            )
        )
    return found
