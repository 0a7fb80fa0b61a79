"""Where a slow rank's extra time went, by its processes' own counters: the cause, or an honest 'unknown'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import SAMPLES, STOPPED, FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.stats.medians import median_of_the_others

CAUSE_SHARE = 0.6
"""A cause explains at least this share of the excess; two halves are no cause."""

STOPPED_SHARE = 0.3
STOPPED_SECONDS_SHARE = 0.05
"""A process that was found stopped again and again: what it lost so is named even beside other load, where it is a
good part of the excess and five per cent of the step by itself."""

OFF_PROCESSOR_SHARE = 0.8
"""Off the processor without waiting for it or for a disk, but never seen stopped: only so clear a case is called
suspended, since a process that sleeps by itself looks alike."""

CONTESTED_SHARE = 0.5
"""Waiting for a processor and needing more of it, behind half of the excess: on a shared machine anyone's load could
be doing it, the latter through caches, sibling threads and time stolen by the hypervisor."""

CONTESTED_HINT = 0.2
"""Behind a fifth of it: on a shared machine, without any other clear cause, load cannot be excluded."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The excess of a rank over its own healthy state and its peers, split; seconds a step.

    known: whether the counters are there; all parts are NaN otherwise. rest: off the processor without waiting for
    it or for a disk. stopped_share: share of samples in which a process of the rank was stopped; stopped_again: in
    more than one slow stretch. on_device: the rank computes on a GPU.
    """

    cause: Cause
    known: bool
    excess: float
    processor: float = np.nan
    queue: float = np.nan
    storage: float = np.nan
    rest: float = np.nan
    stopped_share: float = np.nan
    stopped_again: bool = False
    on_device: bool = False

    def share(self, part: float) -> float:
        """The part as a share of the excess; 0 where unknown."""
        return float(part / self.excess) if self.known and self.excess > 0 else 0.0

    @property
    def may_be_chance_load(self) -> bool:
        """Whether other load on the same machine could be behind it. Without counters it could."""
        if not self.known:
            return True
        if self.cause is Cause.SUSPENDED and self.stopped_again:
            return False  # load stops nobody
        return self.contested_share >= (CONTESTED_HINT if self.cause is Cause.UNKNOWN else CONTESTED_SHARE)

    @property
    def contested_share(self) -> float:
        """Share of the excess that other load on the same machine could cause."""
        return self.share(max(self.queue, 0.0) + max(self.processor, 0.0))


def attribute(
    rank: int,
    compute: FloatArray,
    per_step: FloatArray,
    samples: FloatArray,
    usual_compute: FloatArray | None,
    usual_parts: FloatArray | None,
    step_seconds: float,
    stopped_again: bool,
    on_device: bool = False,
) -> Attribution:
    """Split what `rank` needs a step beyond its healthy state, less what its peers need beyond theirs.

    compute: float64 [n], seconds a step in the alarm interval; per_step: float64 [n, 5] as CONSUMED, the first three
    in seconds a step; samples: float64 [n, 2], stopped samples and samples in the interval. usual_compute [n] and
    usual_parts [n, 3]: the healthy state; None compares with the peers alone (slow from the start). stopped_again:
    whether samples found the rank stopped in more than one slow stretch. on_device: the rank computes on a GPU, for
    which its process sleeps or spins: time on the processor, and off it, then says nothing of why it is slow.
    """
    parts = per_step[:, :3]
    if usual_compute is None or usual_parts is None:
        usual_compute, usual_parts = np.zeros_like(compute), np.zeros_like(parts)
    shift = compute - usual_compute
    excess = float(shift[rank] - median_of_the_others(shift, rank))
    grown = parts - usual_parts
    if not np.isfinite(grown[:, :2]).all() or excess <= 0:
        return Attribution(Cause.UNKNOWN, False, excess)
    processor, queue, storage = (
        float(grown[rank, i] - median_of_the_others(grown[:, i], rank)) if np.isfinite(grown[:, i]).all() else 0.0
        for i in range(3)
    )
    rest = excess - processor - queue - storage
    taken = float(samples[rank, SAMPLES - STOPPED])
    stopped = float(samples[rank, 0]) / taken if taken > 0 else np.nan
    cause = Cause.UNKNOWN
    if stopped_again and rest >= max(STOPPED_SHARE * excess, STOPPED_SECONDS_SHARE * step_seconds):
        cause = Cause.SUSPENDED
    elif queue >= CAUSE_SHARE * excess:
        cause = Cause.CPU_CONTENTION
    elif storage >= CAUSE_SHARE * excess:
        cause = Cause.STORAGE
    elif on_device:
        pass
    elif processor >= CAUSE_SHARE * excess:
        cause = Cause.COMPUTE
    elif rest >= OFF_PROCESSOR_SHARE * excess:
        cause = Cause.SUSPENDED
    return Attribution(cause, True, excess, processor, queue, storage, rest, stopped, stopped_again, on_device)
