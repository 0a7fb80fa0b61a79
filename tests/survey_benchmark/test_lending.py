"""The input of Lyra's row: replicas follow the load, and a late replica breaks the latency objective."""

from __future__ import annotations

from benchmarks.survey.lending import INTERVAL_SECONDS, SERVING_NODES, kept, load, replicas


def test_the_load_is_low_before_dawn_and_high_at_noon() -> None:
    needed = load(86_400, 1)
    assert len(needed) == 86_400 // INTERVAL_SECONDS + 1
    assert needed[0] < 0.55 * SERVING_NODES and needed[len(needed) // 2] > 0.85 * SERVING_NODES
    assert needed != load(86_400, 2)


def test_replicas_are_requested_two_intervals_ahead() -> None:
    found = replicas([1, 1, 1, 5, 5, 1, 1], 0)
    first = {job.job_id.split("-")[1]: job.submitted_ns // (INTERVAL_SECONDS * 1_000_000_000) for job in found}
    assert (first["3"], first["7"]) == (0, 1), "two replicas of headroom"
    assert "8" not in first
    longest = next(job for job in found if job.job_id.startswith("serving-1-"))
    assert longest.run_seconds == 7 * INTERVAL_SECONDS


def test_a_late_replica_breaks_the_objective() -> None:
    needed = [1, 2]
    end = 2.0 * INTERVAL_SECONDS
    assert kept(needed, [(0.0, end), (float(INTERVAL_SECONDS), end)]) == 1.0
    assert kept(needed, [(0.0, end), (INTERVAL_SECONDS + 61.0, end)]) == 0.8
