"""Score of the controller's benchmark, compared with hand-computed values, and one small benchmark run."""

from __future__ import annotations

import numpy as np

from benchmarks.controller.__main__ import Settings, measure
from benchmarks.controller.score import Window, largest_in_time, score, score_responses, score_verdicts
from benchmarks.ingest.timeline import Run
from tests.needs import component

SECOND = 1_000_000_000
WINDOW = Window(10 * SECOND, 20 * SECOND)


def nanoseconds(*rows: tuple[float, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return (np.array(rows) * SECOND).astype(np.int64)


def recorded() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return records of four ticks of a slice each: two in the measured time, one before it and one after it."""
    judged = np.array([9, 12, 12, 19, 20], np.int64) * SECOND
    return {
        "judged_ns": judged,
        "made_ns": judged - np.array([50, 1, 1, 4, 50], np.int64) * SECOND,
        "is_newest": np.array([True, True, True, False, True]),
        # start, end, CPU time of the thread, and the thread
        "slices": nanoseconds(
            (8.0, 9.0, 1.0, 7.0), (11.9, 12.0, 2.0, 7.0), (18.7, 19.0, 5.5, 7.0), (19.0, 20.0, 9.0, 7.0)
        ),
        "ticks": nanoseconds((8.0, 9.0), (11.0, 12.0), (18.7, 19.0), (19.0, 20.0)),
        "cycles": nanoseconds((9.0, 9.9), (10.0, 10.25), (19.9, 20.5)),
        "verdict_ns": np.array([11, 16, 17], np.int64) * SECOND,
        "verdict_gang": np.array(["slurm-1.0", "slurm-2", "slurm-2"]),
        "left_out": np.array(3),
        "records_missed": np.array(2),
    }


def test_only_the_window_counts() -> None:
    found = score(recorded(), WINDOW)
    assert found["frames_a_second"] == 0.3
    assert (found["frame_age_seconds_p50"], found["frame_age_seconds_p99"]) == (1.0, 3.94)
    assert (found["messages_a_second"], found["newest_age_seconds_p99"]) == (0.2, 1.0)
    assert (found["tick_ms_p50"], found["tick_ms_p99"]) == (200.0, 298.0)
    assert (found["all_gangs_judged_ms_p50"], found["all_gangs_judged_ms_p99"]) == (650.0, 993.0)
    assert found["cycle_ms_p99"] == 250.0
    assert found["feed_cpu_cores"] == 0.5, "3.5 s of CPU time in the 7 s between the two ticks"
    assert (found["left_out_frames"], found["lost_records"]) == (3, 2)


def test_ticks_of_another_thread_count_by_its_own_cpu_time() -> None:
    records = recorded()
    between = nanoseconds((13.0, 13.2, 100.0, 8.0), (14.0, 14.2, 100.7, 8.0))
    records["slices"] = np.concatenate([records["slices"][:2], between, records["slices"][2:]])
    assert score(records, WINDOW)["feed_cpu_cores"] == 0.6, "3.5 and .7 s in 7 s"


def test_a_run_without_ticks_has_no_figures_and_is_not_in_time() -> None:
    found = score(recorded(), Window(30 * SECOND, 40 * SECOND))
    assert found["frame_age_seconds_p99"] is None and found["tick_ms_p99"] is None and found["feed_cpu_cores"] is None
    assert largest_in_time({"20": found}) is None


def test_the_scrape_is_no_response_of_the_api() -> None:
    responses = [
        ("/", 9 * SECOND, 10 * SECOND),
        ("/metrics", 10 * SECOND, 15 * SECOND),
        ("/", 10 * SECOND, 20 * SECOND),
    ]
    found = score_responses(responses, WINDOW)
    largest = {"/": 1000.0, "/metrics": 5000.0}
    assert found == {"api_ms_p99": 1000.0, "api_ms_largest": largest, "responses": 1, "scrape_ms_p50": 5000.0}


def run(number: int, disturbed_seconds: float, slow: frozenset[int] = frozenset({0})) -> Run:
    return Run(number, 0, 1, 0, 100 * SECOND, SECOND, int(disturbed_seconds * SECOND), slow)


def test_a_verdict_counts_from_the_disturbance_of_its_job() -> None:
    runs = [
        run(1, 12.0),  # its verdict came before the disturbance: a false alarm is no detection
        run(2, 13.0),  # found after 3 s
        run(3, 13.0),  # not found
        run(4, 9.0),  # disturbed before the window
        run(5, 13.0, frozenset()),  # not disturbed
    ]
    found = score_verdicts(recorded(), runs, WINDOW)
    assert found == {"disturbed_jobs": 3, "verdicts": 1, "verdict_seconds_p50": 3.0}


def test_the_largest_size_in_time() -> None:
    ages = {"1000": 0.5, "5000": 2.0, "12500": 2.1}
    assert largest_in_time({nodes: {"frame_age_seconds_p99": age} for nodes, age in ages.items()}) == 5000


def test_a_small_run_measures_the_whole_controller() -> None:
    component("openssl", "openssl")
    settings = Settings(20, warm_seconds=20.0, seconds=25.0, lifetime_seconds=60.0, seed=1, step_seconds=(1.0, 1.3))
    found = measure(settings)
    assert found["lost_records"] == 0 and found["failed_responses"] == 0
    assert float(found["frames_a_second"] or 0) > 0
    times = ("frame_age_seconds_p99", "tick_ms_p99", "all_gangs_judged_ms_p99", "cycle_ms_p99", "api_ms_p99")
    for name in (*times, "cpu_cores", "rss_mib"):
        assert (found[name] or 0) > 0, name
    assert (found["jobs_started"] or 0) > 0
    assert 0 < (found["verdicts"] or 0) <= (found["disturbed_jobs"] or 0)
    assert 0 < (found["verdict_seconds_p50"] or 0) <= settings.seconds
