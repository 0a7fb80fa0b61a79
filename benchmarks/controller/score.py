"""Computation of one run's figures from the recorded times. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ingest.timeline import Run

MOST_AGE_SECONDS = 2.0
"""Bound on the p99 of a frame's age."""

Figures = dict[str, float | int | dict[str, float] | None]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured time: start and end on the monotonic clock, in nanoseconds."""

    begun_ns: int
    ended_ns: int

    def of(self, at_ns: Array) -> Array:
        """Return for each of these times whether it is in the window, as a bool array."""
        return np.asarray((at_ns >= self.begun_ns) & (at_ns < self.ended_ns))

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.begun_ns) / 1e9


def quantile(values: Array, share: float, digits: int = 3) -> float | None:
    """Return the quantile; None without values."""
    return round(float(np.quantile(values, share)), digits) if len(values) else None


def score(recorded: Mapping[str, Array], window: Window) -> Figures:
    """Return the ages of frames and the durations of ticks and cycles in the window.

    `tick_ms` is the duration of a slice: what the feed's thread does at one go, with detection's lock.
    `all_gangs_judged_ms` is the duration of a whole tick, from the start of its first slice to the end of its last one.
    `newest_age_seconds` counts only the newest frame of each message, `frame_age_seconds` its earlier samples too.

    recorded: the arrays that ``measured.Observers.save`` writes.
    """
    judged = window.of(recorded["judged_ns"])
    ages = (recorded["judged_ns"][judged] - recorded["made_ns"][judged]) / 1e9
    newest_ages = ages[recorded["is_newest"][judged]]
    ticks = recorded["ticks"][window.of(recorded["ticks"][:, 1])]
    cycles = recorded["cycles"][window.of(recorded["cycles"][:, 1])]
    slices = recorded["slices"][window.of(recorded["slices"][:, 1])]
    tick_ms, whole_ms = ((times[:, 1] - times[:, 0]) / 1e6 for times in (slices, ticks))
    cycle_ms = (cycles[:, 1] - cycles[:, 0]) / 1e6
    feed = None
    if len(slices) > 1:
        # If the feed's thread is late, another thread runs some ticks.
        of_threads = [slices[slices[:, 3] == thread] for thread in np.unique(slices[:, 3])]
        used_ns = sum(int(of_one[-1, 2] - of_one[0, 2]) for of_one in of_threads)
        feed = round(float(used_ns / (slices[-1, 1] - slices[0, 1])), 3)
    return {
        "feed_cpu_cores": feed,
        "frames_a_second": round(len(ages) / window.seconds, 1),
        "frame_age_seconds_p50": quantile(ages, 0.5),
        "frame_age_seconds_p99": quantile(ages, 0.99),
        "messages_a_second": round(len(newest_ages) / window.seconds, 1),
        "newest_age_seconds_p50": quantile(newest_ages, 0.5),
        "newest_age_seconds_p99": quantile(newest_ages, 0.99),
        "tick_ms_p50": quantile(tick_ms, 0.5, 1),
        "tick_ms_p99": quantile(tick_ms, 0.99, 1),
        "all_gangs_judged_ms_p50": quantile(whole_ms, 0.5, 1),
        "all_gangs_judged_ms_p99": quantile(whole_ms, 0.99, 1),
        "cycle_ms_p99": quantile(cycle_ms, 0.99, 1),
        "left_out_frames": int(recorded["left_out"]),
        "lost_records": int(recorded["records_missed"]),
    }


def score_responses(responses: Sequence[tuple[str, int, int]], window: Window) -> Figures:
    """Return the durations of the API's and the page's responses, and of the scrapes, that ended in the window."""
    ended = [(path, (end - begun) / 1e6) for path, begun, end in responses if window.begun_ns <= end < window.ended_ns]
    api = np.array([ms for path, ms in ended if path != "/metrics"])
    scrapes = np.array([ms for path, ms in ended if path == "/metrics"])
    return {
        "api_ms_p99": quantile(api, 0.99, 1),
        "api_ms_largest": {  # few responses of each path end in the window, so no quantile
            path: round(max(ms for one, ms in ended if one == path), 1) for path in sorted({path for path, _ in ended})
        },
        "responses": len(api),
        "scrape_ms_p50": quantile(scrapes, 0.5, 1),
    }


def score_verdicts(recorded: Mapping[str, Array], runs: Sequence[Run], window: Window) -> Figures:
    """Return the delays from the slowdown of a job's rank to the first verdict, for slowdowns in the window.

    runs: the jobs that ran in the window. A job without a verdict at the end of the window counts only in
    `disturbed_jobs`.
    """
    first: dict[str, int] = {}
    for at_ns, gang in zip(recorded["verdict_ns"].tolist(), recorded["verdict_gang"].tolist(), strict=True):
        first.setdefault(_job(gang), at_ns)
    disturbed = {
        _job(run.gang): run.disturbed_ns
        for run in runs
        if run.slow and window.begun_ns <= run.disturbed_ns < min(run.ends_ns, window.ended_ns)
    }
    delays = [(first[gang] - at_ns) / 1e9 for gang, at_ns in disturbed.items() if first.get(gang, 0) >= at_ns]
    return {
        "disturbed_jobs": len(disturbed),
        "verdicts": len(delays),
        "verdict_seconds_p50": quantile(np.array(delays), 0.5, 1),
    }


def _job(gang: str) -> str:
    """Return the job's name in a gang's name: 'slurm-7' of 'slurm-7.0'. Agents use the second form."""
    return gang.partition(".")[0]


def largest_in_time(figures: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Return the largest number of nodes whose frames the detectors used in time; None if there is none.

    figures: figures by number of nodes.
    """
    in_time = [
        int(nodes)
        for nodes, found in figures.items()
        if found["frame_age_seconds_p99"] is not None and found["frame_age_seconds_p99"] <= MOST_AGE_SECONDS
    ]
    return max(in_time, default=None)
