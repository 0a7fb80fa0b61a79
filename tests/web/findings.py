"""Findings to show on pages."""

from __future__ import annotations

import time

from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict


def straggler(job_id: str, words: str = "its peers") -> Verdict:
    """A verdict about rank 0 of the job's first attempt, on node n0."""
    now_ns = time.time_ns()
    return Verdict(
        f"{job_id}/1/0/7", Kind.STRAGGLER, job_id, 1, 0, "n0", Cause.SUSPENDED, 0.97, 1.4, 0.2, 0.28,
        now_ns - 5_000_000_000, now_ns,
        (
            Evidence("run time", 0.1, 0.2, "s", words, 3.0),
            Evidence("step_seconds", 0.3, 0.2, "seconds", words, 1.0),
            Evidence("off_processor_seconds_a_step", 0.15, 0.15, "seconds", f"its whole excess, less {words}'", 2.0),
        ),
        (("n0", 12),),
    )  # fmt: skip
