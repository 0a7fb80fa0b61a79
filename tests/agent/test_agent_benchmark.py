"""The agent's benchmark: its counts, its limits, and its timing of driver calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.agent.__main__ import missed, ratios
from benchmarks.agent.real import calls_and_gaps
from benchmarks.agent.scraping import distinct_series
from benchmarks.agent.watched import Period, cpu_ns, summary
from tests import needs
from tests.fakes.nvml.build import build

EXPOSITION = """# HELP gangwatch_gpu_power_watts Power.
gangwatch_gpu_power_watts{gpu="a"} 300
gangwatch_gpu_power_watts{gpu="a"} 301
gangwatch_gpu_power_watts{gpu="b"} NaN
gangwatch_gpu_info{gpu="a"} 1
gangwatch_scrapes_total 0
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300
node_infiniband_info{device="mlx5_0"} 1
latency_bucket{le="1"} 3
"""


def test_only_series_with_a_value_count_and_each_once() -> None:
    assert distinct_series(EXPOSITION) == 6
    assert distinct_series(EXPOSITION, own=True) == 2


def test_every_budget_and_ratio_is_checked() -> None:
    good: dict[str, float | int | str] = {
        "cpu_percent_of_core_1hz": 0.4,
        "cpu_percent_of_core_10hz": 2.0,
        "rss_mib": 60,
        "rss_10hz_mib": 61,
        "rss_otlp_mib": 71,
        "series": 3100,
        "series_default": 1100,
        "scrape_ms_p99": 4,
        "cpu_ms_per_scrape": 4,
    }
    peers: dict[str, dict[str, float | int | str]] = {
        "ours_no_processes": {"cpu_ms_per_scrape": 4},
        "nvitop_exporter_no_processes": {"cpu_ms_per_scrape": 9},
        "nvitop_exporter": {"cpu_ms_per_scrape": 25, "series": 600},
        "node_exporter": {"cpu_ms_per_scrape": 4, "series": 200},
    }

    def judge(ours: dict[str, float | int | str]) -> list[str]:
        found = {"ours": ours, **peers}
        return missed({**found, "ratios": ratios(found)})

    assert judge(good) == []
    for key, bad, broken in (
        ("cpu_percent_of_core_1hz", 0.6, 1),
        ("cpu_percent_of_core_10hz", 3.1, 1),
        ("rss_mib", 73, 1),
        ("rss_10hz_mib", 73, 1),
        ("rss_otlp_mib", 73, 1),
        ("series", 2900, 2),  # also less than five times the peer's count
        ("series_default", 1201, 1),
        ("scrape_ms_p99", 5.1, 1),
        ("cpu_ms_per_scrape", 70, 2),  # over a fifth of one peer, and more per series than the other
    ):
        assert len(judge({**good, key: bad})) == broken, key
    peers["nvitop_exporter_no_processes"]["cpu_ms_per_scrape"] = 7
    assert len(judge(good)) == 1


def test_driver_calls_are_timed_and_missing_ones_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.component("gcc", "gcc libc6-dev")
    monkeypatch.setenv("GANGWATCH_FAKE_NVML_BOARD", "geforce")
    calls, absent = calls_and_gaps(str(build(tmp_path)), ticks=2)
    assert float(calls["nvmlDeviceGetFieldValues"]["us_mean"]) > 0
    assert "gangwatch_nvlink_transmit_bytes_total" in absent
    assert "gangwatch_gpu_temperature_celsius" not in absent


@pytest.mark.parametrize("module", ["benchmarks.agent", "benchmarks.nvml"])
def test_the_part_on_real_gpus_reports_that_there_is_no_driver(module: str, tmp_path: Path) -> None:
    # The process finds this file before the real library, so it sees no driver even on a machine that has one.
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    asked = subprocess.run(
        [sys.executable, "-m", module, "--real", "--json"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr.startswith(f"NVML: {tmp_path}/libnvidia-ml.so.1: "), asked.stderr
    assert asked.stderr.count("\n") == 1, asked.stderr


def test_the_cost_of_a_subscriber_is_the_median_of_the_differences() -> None:
    pairs = [
        (Period(0.010), Period(0.012, 4800.0, 1.0)),
        (Period(0.020), Period(0.021, 4700.0, 1.0)),  # a busy minute: both periods cost more
        (Period(0.010), Period(0.013, 4900.0, 1.1)),
    ]
    found = summary(pairs)
    assert found["cpu_percent_more"] == 0.2, "the difference of the medians would be 0.3"
    assert (found["cpu_percent_more_least"], found["cpu_percent_more_most"]) == (0.1, 0.3)
    assert (found["bytes_a_second"], found["frames_a_second"]) == (4800.0, 1.0)


def test_the_processor_time_contains_all_threads() -> None:
    before, own_ns = cpu_ns(os.getpid()), time.process_time_ns()
    thread = threading.Thread(target=lambda: sum(range(3_000_000)))
    alive = threading.Event()
    holder = threading.Thread(target=alive.wait)
    holder.start()
    thread.start()
    thread.join()
    sum(range(3_000_000))
    assert cpu_ns(os.getpid()) - before >= (time.process_time_ns() - own_ns) * 0.3  # the ended thread does not count
    alive.set()
    holder.join()
