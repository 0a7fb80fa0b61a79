"""Hangs of jobs that report neither steps nor collectives: no byte moves any more, and who has nothing to run.

While a synchronous job hangs its ranks poll in a collective: their SMs are busy with it, and draw more than an idle GPU
does. One that is stuck in its own work does not poll: it runs nothing, or one kernel without end. Where all poll alike
it is the transport, and nobody is named without a port that fails. Where nothing runs on most ranks the job does
something else, such as saving, and is left alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.iteration.job_slowdown import RATES

LEAST_SECONDS = 40.0
TIMES_THE_LONGEST = 1.5
"""As for jobs that report (hang.py): silence is a hang beyond forty seconds and one and a half times the longest pause
of the traffic so far."""

LEAST_WATCHED_SECONDS, LEAST_WINDOWS = 180.0, 8
"""So long must it have been seen at work for its pauses to be known."""

LEAST_SILENT_WINDOWS = 2
NOTHING = 0.02
"""Of the usual traffic: less is what a fabric has to say to itself."""

NEWEST = 1 / 16
"""What is usual is a mean over some sixteen windows in which something moved."""

POLLS = 0.02
"""Share of the SMs: a collective that polls holds one block a channel, of which NCCL has two at least; idle is zero."""

APART = 0.5
"""By half of what the middle rank has on its SMs."""

LEAST_IO_WAIT = 0.1
"""Share of time. A rank that does not poll while its host waits for its disks so long writes or reads: it saves."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job none of whose bytes move. seconds: since when; usual_pause: the longest before. ranks: places of those that
    don't poll, empty where all do; polling: of the middle rank's SMs, theirs. unknown: ranks of which nothing is heard.
    """

    seconds: float
    usual_pause: float
    ranks: IndexArray
    polling: float
    theirs: float
    unknown: int
    evidence: tuple[Evidence, ...]


@dataclass(slots=True)
class Traffic:
    """What one job that reports nothing moves, window by window.

    usual: bytes a second a rank while it works, NaN before anything moved. first_ns, moved_ns: when it was first and
    last seen to move any; longest: seconds of its longest pause. silent: windows since. busy, waits: float64 [n], sums
    over those windows of what is on the SMs and of waits for disks; heard: in how many of them the first was known.
    """

    shape: Shape
    usual: float = math.nan
    first_ns: int = 0
    moved_ns: int = 0
    longest: float = 0.0
    windows: int = 0
    silent: int = 0
    busy: FloatArray = field(init=False)
    waits: FloatArray = field(init=False)
    heard: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def take(self, values: Float32Array, at_ns: int) -> bool:
        """One more window, [features, ranks], that ended then; whether anything moved in it after a pause."""
        rows = values[[FEATURE[name] for name in RATES]]
        known = np.isfinite(rows)
        heard = int(known.any(axis=0).sum())
        if 2 * heard <= len(self.shape):
            return False
        moved = float(rows[known].sum()) / heard
        if not moved > NOTHING * (0.0 if math.isnan(self.usual) else self.usual):
            self._still(values)
            return False
        self.windows += 1
        self.usual = moved if math.isnan(self.usual) else self.usual + NEWEST * (moved - self.usual)
        paused = self.silent > 0
        if paused:
            self.longest = max(self.longest, (at_ns - self.moved_ns) * 1e-9)
            self._begin()
        self.first_ns = self.first_ns or at_ns
        self.moved_ns = at_ns
        return paused

    def stuck(self, now_ns: int) -> Stuck | None:
        """Where it hangs: who does not poll; None where it moves, or does something else."""
        seconds = (now_ns - self.moved_ns) * 1e-9
        if self.silent < LEAST_SILENT_WINDOWS or seconds < max(LEAST_SECONDS, TIMES_THE_LONGEST * self.longest):
            return None
        if self.windows < LEAST_WINDOWS or (self.moved_ns - self.first_ns) * 1e-9 < LEAST_WATCHED_SECONDS:
            return None
        known = self.heard > 0
        if 2 * int(known.sum()) <= len(self.shape):
            return None
        busy = self.busy[known] / self.heard[known]
        polling = float(np.median(busy))
        if polling < POLLS:
            return None
        apart = np.flatnonzero(known)[np.abs(busy - polling) > APART * polling]
        theirs = float(self.busy[apart[0]] / self.heard[apart[0]]) if len(apart) else math.nan
        if len(apart) and float(self.waits[apart].max()) > LEAST_IO_WAIT * self.silent:
            return None
        alike = Evidence(
            "ranks_that_poll", float(known.sum() - len(apart)), float(len(self.shape)), "ranks",
            f"all ranks; their SMs are {polling:.0%} busy, and they transfer no data", 2.0,
        )  # fmt: skip
        silence = Evidence(
            "seconds_without_traffic", seconds, self.longest, "seconds", "its longest earlier pause", 2.0
        )
        unknown = int((~known).sum())
        return Stuck(seconds, self.longest, apart, polling, theirs, unknown, (silence, alike))

    def _still(self, values: Float32Array) -> None:
        self.silent += 1
        busy, waits = values[FEATURE["sm_active"]], values[FEATURE["io_waiting"]]
        if self.silent == 1:
            return  # it may still have worked in a part of this one
        known = np.isfinite(busy)
        self.busy[known] += busy[known]
        self.heard += known
        self.waits += np.nan_to_num(waits)

    def _begin(self) -> None:
        self.silent = 0
        self.busy, self.waits, self.heard = (np.zeros(len(self.shape)) for _ in range(3))


class UnreportedHangs:
    """The traffic of all jobs that report no steps. Owned by the hang detector."""

    def __init__(self) -> None:
        self._of: dict[str, Traffic] = {}

    def keep(self, jobs: set[str]) -> None:
        """Forget all others."""
        for gone in self._of.keys() - jobs:
            del self._of[gone]

    def take(self, job: JobTelemetry, windows: Float32Array, at_ns: list[int]) -> Traffic:
        """What is new of a job, [features, windows, ranks] that ended at these times; what is known of it since."""
        traffic = self._of.get(job.shape.job)
        if traffic is None or traffic.shape is not job.shape:
            traffic = self._of[job.shape.job] = Traffic(job.shape)
        for window, ended_ns in enumerate(at_ns):
            traffic.take(windows[:, window], ended_ns)
        return traffic


def never_arrived(stuck: Stuck) -> tuple[Cause, Evidence]:
    """Why one that does not poll is accused."""
    words = "SM activity of the median rank, which is polling; nothing runs on this rank"
    if stuck.theirs > stuck.polling:
        words = "SM activity of the median rank, which is polling; a kernel on this rank runs on"
    return Cause.NEVER_ARRIVED, Evidence("sm_active", stuck.theirs, stuck.polling, "ratio", words, 4.0)
