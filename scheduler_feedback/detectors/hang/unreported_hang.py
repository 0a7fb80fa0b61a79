"""Hangs of jobs that report neither steps nor collectives, detected by missing traffic and by SM activity.

While a synchronous job hangs, its waiting ranks poll in a collective. Polling keeps their SMs active and draws more
power than an idle GPU. A rank that is stuck in its own work does not poll: it runs nothing, or one kernel that does not
finish. If all ranks poll alike, the transport is at fault, and the detector can accuse only a failing port. If most
ranks run nothing, the job does other work, such as saving, and the detector reports nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.iteration.job_slowdown import RATES

LEAST_SECONDS = 40.0
"""A job hangs only if it has had no traffic for at least this time in seconds."""

TIMES_THE_LONGEST = 1.5
"""A job hangs only if it has had no traffic for at least this multiple of its longest pause so far."""

LEAST_WATCHED_SECONDS, LEAST_WINDOWS = 180.0, 8
"""A hang is reported only after the job's traffic was received for at least LEAST_WATCHED_SECONDS seconds and in at
least LEAST_WINDOWS windows. The detector must first learn the usual pauses of the job."""

LEAST_IDLE_WINDOWS = 2
"""A job hangs only if it has had no traffic in at least this number of windows."""

NOTHING = 0.02
"""A window counts as without traffic if its traffic is at most this share of the job's usual traffic. A network always
has some background traffic."""

NEWEST = 1 / 16
"""Weight of a new window with traffic in the usual traffic: a mean over about sixteen windows with traffic."""

POLLS = 0.02
"""A hang is reported only if the SMs of the median rank are active for at least this share, because waiting ranks poll.
A collective uses one block per channel, and NCCL has at least two channels. An idle GPU has zero activity."""

APART = 0.5
"""A rank does not poll like the others if its SM activity differs from that of the median rank by more than this share
of the median rank's."""

ALIKE = 0.1
"""The ranks that poll run one kernel. If the SM activity of the middle half of them differs by more than this
share, they do not poll: after a restart, ranks start up at different speeds."""

RUNS_ON = 0.5
"""A kernel that runs on, while the others poll, keeps at least this share of the SMs busy. A rank that starts or
compiles, and runs short kernels, has less."""

LEAST_IO_WAIT = 0.1
"""No hang is reported if the host of a rank that does not poll waits for its disks for more than this share of the
time. The rank is then saving or reading."""

ALONE_SECONDS = 600.0
"""The first rank may save alone while the others wait. If it is not known whether its host waits for disks, a hang is
reported only after this time, after which PyTorch by default ends the job."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A hang: a job that transfers no data."""

    seconds: float
    """Time since the job's last traffic, in seconds."""
    usual_pause: float
    """Longest earlier pause in the job's traffic, in seconds."""
    ranks: IndexArray
    """Indices of the ranks that do not poll; empty if all poll."""
    polling: float
    """SM activity of the median rank, as a share of its SMs."""
    theirs: float
    """SM activity of the first rank that does not poll, as a share of its SMs."""
    unknown: int
    """Number of ranks without counters."""
    evidence: tuple[Evidence, ...]
    by_power: bool = False
    """Whether `polling` and `theirs` are watts, because SM activity is not measured."""


@dataclass(slots=True)
class Traffic:
    """Traffic of one job that reports no steps, and the SM activity of its ranks during pauses."""

    shape: Shape
    usual: float = math.nan
    """Usual bytes per second of a rank; NaN before the first traffic."""
    first_ns: int = 0
    """Time of the first traffic, in ns."""
    moved_ns: int = 0
    """Time of the newest traffic, in ns."""
    longest: float = 0.0
    """Longest pause between traffic so far, in seconds."""
    windows: int = 0
    idle_windows: int = 0
    """Number of windows since the newest traffic."""
    busy: FloatArray = field(init=False)
    """Sum of each rank's SM activity over the windows since the newest traffic: float64 [n]."""
    waits: FloatArray = field(init=False)
    """Sum, over the windows since the newest traffic, of the share of time that each rank's host waits for disks:
    float64 [n]."""
    counted: FloatArray = field(init=False)
    """For each rank, the number of windows since the newest traffic with a known SM activity: float64 [n]."""
    watts: FloatArray = field(init=False)
    """Sum of each rank's power over these windows, in watts: float64 [n]."""
    powered: FloatArray = field(init=False)
    """For each rank, the number of these windows with a known power: float64 [n]."""
    waited: npt.NDArray[np.bool_] = field(init=False)
    """bool [n]: whether it is known how long the rank's host waits for disks."""

    def __post_init__(self) -> None:
        self._begin()

    def take(self, values: Float32Array, at_ns: int) -> bool:
        """Add one window of counters, [features, ranks], that ended at `at_ns`. Return whether traffic resumed after a
        pause."""
        rows = values[[FEATURE[name] for name in RATES]]
        known = np.isfinite(rows)
        reporting = int(known.any(axis=0).sum())
        if 2 * reporting <= len(self.shape):
            return False
        moved = float(rows[known].sum()) / reporting
        if not moved > NOTHING * (0.0 if math.isnan(self.usual) else self.usual):
            self._still(values)
            return False
        self.windows += 1
        self.usual = moved if math.isnan(self.usual) else self.usual + NEWEST * (moved - self.usual)
        paused = self.idle_windows > 0
        if paused:
            self.longest = max(self.longest, (at_ns - self.moved_ns) * 1e-9)
            self._begin()
        self.first_ns = self.first_ns or at_ns
        self.moved_ns = at_ns
        return paused

    def stuck(self, now_ns: int, made_steps: bool = False) -> Stuck | None:
        """Return the hang, with the ranks that are not waiting in a collective; None if there is none.

        made_steps: whether the job reported enough steps to show its usual pauses.
        """
        seconds = (now_ns - self.moved_ns) * 1e-9
        if self.idle_windows < LEAST_IDLE_WINDOWS or seconds < max(LEAST_SECONDS, TIMES_THE_LONGEST * self.longest):
            return None
        if not made_steps and (
            self.windows < LEAST_WINDOWS or (self.moved_ns - self.first_ns) * 1e-9 < LEAST_WATCHED_SECONDS
        ):
            return None
        by_power = 2 * int((self.counted > 0).sum()) <= len(self.shape)
        sums, counted = (self.watts, self.powered) if by_power else (self.busy, self.counted)
        known = counted > 0
        if 2 * int(known.sum()) <= len(self.shape):
            return None
        level = sums[known] / counted[known]
        polling = float(np.median(level))
        if not by_power and polling < POLLS:
            return None
        # By power, a rank that draws more than the others proves nothing: these may be idle.
        differs = polling - level > APART * polling
        if not by_power:
            differs |= level > max((1 + APART) * polling, RUNS_ON)
            upper, lower = np.quantile(level[~differs], (0.75, 0.25)).tolist()
            if upper - lower > ALIKE * polling:
                return None
        apart = np.flatnonzero(known)[differs]
        if by_power and not len(apart):
            return None
        theirs = float(sums[apart[0]] / counted[apart[0]]) if len(apart) else math.nan
        if len(apart) and float(self.waits[apart].max()) > LEAST_IO_WAIT * self.idle_windows:
            return None
        if len(apart) and apart[0] == 0 and not self.waited[0] and seconds < ALONE_SECONDS:
            return None
        words = f"they draw {polling:.0f} W" if by_power else f"their SMs are {polling:.0%} busy"
        alike = Evidence(
            "ranks_that_poll", float(known.sum() - len(apart)), float(len(self.shape)), "ranks",
            f"all ranks; {words}, and they transfer no data", 2.0,
        )  # fmt: skip
        silence = Evidence(
            "seconds_without_traffic", seconds, self.longest, "seconds", "its longest earlier pause", 2.0
        )
        unknown = int((~known).sum())
        return Stuck(seconds, self.longest, apart, polling, theirs, unknown, (silence, alike), by_power)

    def _still(self, values: Float32Array) -> None:
        self.idle_windows += 1
        busy, waits, watts = (values[FEATURE[name]] for name in ("sm_active", "io_waiting", "power"))
        if self.idle_windows == 1:
            return  # it may have worked in a part of this window
        known = np.isfinite(busy)
        self.busy[known] += busy[known]
        self.counted += known
        self.waits += np.nan_to_num(waits)
        self.waited |= np.isfinite(waits)
        self.watts += np.nan_to_num(watts)
        self.powered += np.isfinite(watts)

    def _begin(self) -> None:
        self.idle_windows = 0
        self.busy, self.waits, self.counted, self.watts, self.powered = np.zeros((5, len(self.shape)))
        self.waited = np.zeros(len(self.shape), np.bool_)


class UnreportedHangs:
    """Traffic of all jobs that report no steps. Owned by the hang detector."""

    def __init__(self) -> None:
        self._of: dict[str, Traffic] = {}

    def keep(self, jobs: set[str]) -> None:
        """Drop the state of all jobs that are not in `jobs`."""
        for gone in self._of.keys() - jobs:
            del self._of[gone]

    def take(self, job: JobTelemetry, windows: Float32Array, at_ns: list[int]) -> Traffic:
        """Add new windows of a job's counters, [features, windows, ranks], and return the job's traffic.

        at_ns: time at which each window ended.
        """
        traffic = self._of.get(job.shape.job)
        if traffic is None or traffic.shape is not job.shape:
            traffic = self._of[job.shape.job] = Traffic(job.shape)
        for window, ended_ns in enumerate(at_ns):
            traffic.take(windows[:, window], ended_ns)
        return traffic


def never_arrived(stuck: Stuck) -> tuple[Cause, Evidence]:
    """Return the cause and the evidence against a rank that has not entered the collective of its peers."""
    if stuck.by_power:
        words = "power of the median rank, which is polling; nothing runs on this rank"
        return Cause.NEVER_ARRIVED, Evidence("power", stuck.theirs, stuck.polling, "watts", words, 4.0)
    words = "SM activity of the median rank, which is polling; nothing runs on this rank"
    if stuck.theirs > stuck.polling:
        words = "SM activity of the median rank, which is polling; a kernel on this rank runs on"
    return Cause.NEVER_ARRIVED, Evidence("sm_active", stuck.theirs, stuck.polling, "ratio", words, 4.0)
