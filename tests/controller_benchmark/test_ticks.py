"""Benchmark of a tick's parts: it is deterministic, and leaves the product as it was."""

from __future__ import annotations

import gc

from benchmarks.controller.ticks import measure
from scheduler_feedback.core.telemetry.telemetry_update import Look


def test_two_runs_report_the_same_events_and_all_parts() -> None:
    before, thresholds = Look.next, gc.get_threshold()
    first, second = (measure(24, 20.0, 8, 2.5, 2, 5.0, seed=2) for _ in range(2))
    assert first["events"] > 0
    assert first["events_digest"] == second["events_digest"]
    assert {"tick", "telemetry", "counters", "straggler", "interference", "arbiter"} <= first[
        "cpu_ms_mean_and_p95"
    ].keys()
    assert Look.next is before and gc.get_threshold() == thresholds


def test_data_of_ended_jobs_stays_until_it_is_deleted() -> None:
    kept, deleted = (measure(24, 30.0, 4, 2.5, 2, ended, seed=2, lifetime_seconds=40.0) for ended in (1_000.0, 0.0))
    assert kept["known_gangs"] > deleted["known_gangs"] == deleted["jobs"]
