"""Newest steps and counter windows of each job, stored once as input of all published rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from benchmarks.detection.claims import Claim
from scheduler_feedback.core.telemetry.telemetry import Shape, Telemetry
from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS

MOST_STEPS = 256
"""Maximum number of steps kept of one job. EROICA needs the most steps: twice 50."""

MOST_CELLS = 8_000_000
"""Maximum of steps times ranks kept of one job. Very large jobs therefore keep fewer steps."""

MOST_WINDOWS = 32


@dataclass(slots=True)
class JobHistory:
    """Newest steps and counter windows of one job.

    new: durations of the steps since the last tick, in seconds. now: simulated time in seconds.
    """

    shape: Shape
    ends: deque[float] = field(default_factory=deque)
    seconds: deque[FloatArray] = field(default_factory=deque)
    waits: deque[FloatArray] = field(default_factory=deque)
    windows: deque[FloatArray] = field(default_factory=deque)
    new: list[float] = field(default_factory=list)
    now: float = 0.0

    def take(self, telemetry: Telemetry, number: int, columns: slice) -> None:
        """Add the job's steps and counter windows in the newest telemetry.

        number: index of the job. columns: indices of its ranks among all ranks.
        """
        self.new = []
        self.now = (telemetry.now_ns - WALL_START_NS) / NS
        steps = telemetry.jobs[number].steps
        most = int(min(MOST_STEPS, max(64, MOST_CELLS // max(1, len(self.shape)))))
        if steps is not None:
            reporting = np.flatnonzero(np.isfinite(steps.seconds).any(axis=1))
            ends = (steps.end_ns.max(axis=1) - WALL_START_NS) / NS if len(reporting) else np.zeros(0)
            # Steps end together: a few ranks give the length, and the median tolerates missing reports.
            self.new = [float(v) for v in np.nanmedian(steps.seconds[reporting, :64], axis=1)] if len(reporting) else []
            for row in reporting.tolist():
                self.ends.append(float(ends[row]))
                self.seconds.append(steps.seconds[row])
                self.waits.append(steps.wait_seconds[row])
                if len(self.ends) > most:
                    self.ends.popleft()
                    self.seconds.popleft()
                    self.waits.popleft()
        for window in range(telemetry.counters.values.shape[1]):
            self.windows.append(telemetry.counters.values[:, window, columns])
            if len(self.windows) > MOST_WINDOWS:
                self.windows.popleft()

    def since(self, at: float) -> int:
        """Return the number of stored steps that ended after this simulated time."""
        count = 0
        for end in reversed(self.ends):
            if end <= at:
                break
            count += 1
        return count

    def compute(self, steps: int) -> FloatArray:
        """Return the own part of each rank in the newest steps: float64 [steps, ranks], NaN if not reported."""
        rows = list(self.seconds)[-steps:] if steps else []
        waits = list(self.waits)[-steps:] if steps else []
        return np.array([s - w for s, w in zip(rows, waits, strict=True)]).reshape(len(rows), len(self.shape))

    def medians(self, steps: int) -> FloatArray:
        """Return each rank's median own part over the newest steps: [ranks]. Ranks without reports get the median of
        all."""
        return _medians(self.compute(steps))

    def waiting(self, steps: int) -> FloatArray:
        """Return each rank's median waiting time over the newest steps: [ranks]."""
        return _medians(np.array(list(self.waits)[-steps:]).reshape(-1, len(self.shape)))


def _medians(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    if not known.all():
        filled = values.copy()
        filled[:, ~known.any(axis=0)] = np.median(values[known])
        return np.asarray(np.nanmedian(filled, axis=0))
    return np.asarray(np.median(values, axis=0))


class Rule:
    """A published rule. `judge` names slow ranks of one job, or slow nodes if the rule does not distinguish ranks."""

    name: ClassVar[str] = ""
    every_seconds: ClassVar[float] = 60.0

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        """Return the ranks (int) or nodes (str) that the rule accuses at this time, the worst first."""
        raise NotImplementedError

    def note(self, history: JobHistory) -> None:
        """Update the rule's state from a job's history. Called at every tick, before `judge`."""

    def forget(self, job: str) -> None:
        """Delete the rule's state about a job that has ended."""


class Panel:
    """All published rules, which judge the same telemetry at their own intervals."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._jobs: dict[str, JobHistory] = {}
        self._due: dict[tuple[str, str], float] = {}

    def look(self, telemetry: Telemetry) -> dict[str, list[Claim]]:
        """Return the new claims of each rule about the telemetry of this tick, by name of the rule."""
        now = (telemetry.now_ns - WALL_START_NS) / NS
        found: dict[str, list[Claim]] = {rule.name: [] for rule in self.rules}
        present = {job.shape.job for job in telemetry.jobs}
        for name in [name for name in self._jobs if name not in present]:
            del self._jobs[name]
            for rule in self.rules:
                rule.forget(name)
        for number, (job, columns) in enumerate(zip(telemetry.jobs, telemetry.columns(), strict=True)):
            name = job.shape.job
            history = self._jobs.setdefault(name, JobHistory(job.shape))
            history.take(telemetry, number, columns)
            for rule in self.rules:
                rule.note(history)
                due = self._due.setdefault((rule.name, name), now + rule.every_seconds)
                if now < due:
                    continue
                self._due[(rule.name, name)] = now + rule.every_seconds
                found[rule.name] += _claims(rule.name, history.shape, now, rule.judge(history))
        return found


def _claims(name: str, shape: Shape, now: float, accused: Iterable[int | str]) -> list[Claim]:
    listed = list(accused)
    suspects = tuple(f"node:{one}" if isinstance(one, str) else f"gpu:{shape.gpus[one]}" for one in listed[:4])
    return [
        Claim(
            now,
            f"{name}/{shape.job}/{one}",
            shape.job,
            "straggler",
            rank=-1 if isinstance(one, str) else one,
            node=one if isinstance(one, str) else shape.nodes[one],
            level="node" if isinstance(one, str) else "gpu",
            suspects=suspects[1:],
        )
        for one in listed
    ]


def worst_first(values: FloatArray, flagged: BoolArray) -> list[int]:
    """Return the flagged ranks, the largest value first."""
    ranks = np.flatnonzero(flagged)
    return [int(rank) for rank in ranks[np.argsort(-values[ranks], kind="stable")]]
