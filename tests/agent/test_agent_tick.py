"""The benchmark of agent ticks prints all documented keys. Only a full benchmark run checks the values."""

from __future__ import annotations

import json

from benchmarks.agent_tick import measure


def test_the_benchmark_measures_both_encoders_on_the_same_series() -> None:
    result = json.loads(json.dumps(measure(ranks=1, threads=3, rounds=4)))
    assert result["series"] > 30
    assert set(result["cpu_microseconds"]) == {
        "host_collect",
        "process_collect",
        "tick_with_frame",
        "rings_pread",
        "rings_pread_without_news",
        "rings_mapped",
        "rings_mapped_without_news",
        "exposition",
        "exposition_prometheus_client",
    }
    assert all(value > 0 for value in result["cpu_microseconds"].values())
    assert result["exposition_ratio"] > 1
