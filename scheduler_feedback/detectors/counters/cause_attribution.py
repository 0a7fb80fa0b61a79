"""Attribution of a slow rank's extra time to a cause, by counters of its own processes; 'unknown' if none is clear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import SAMPLES, STOPPED, FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.stats.medians import median_of_the_others

CAUSE_SHARE = 0.6
"""Minimum share of the excess that a cause must explain. Two halves are not a cause."""

STOPPED_SHARE = 0.3
STOPPED_SECONDS_SHARE = 0.05
"""Minimum share of the excess, and of the step, lost to stops of a process that was found stopped repeatedly. Such a
cause is reported even if the machine has other load."""

OFF_PROCESSOR_SHARE = 0.8
"""Time off the CPU without waiting for it or for a disk, in a process never found stopped. Only such a large share is
attributed to suspension: a process that sleeps on its own looks the same."""

CONTESTED_SHARE = 0.5
"""Minimum share of the excess that is CPU wait or additional CPU time. On a shared machine, load of other nodes can
cause both, the latter through caches, sibling threads, and time stolen by the hypervisor."""

CONTESTED_HINT = 0.2
"""Replaces CONTESTED_SHARE without another clear cause: from a fifth on, other nodes' load cannot be excluded."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Excess of a rank over its own healthy state and its peers, split into parts; seconds a step."""

    cause: Cause
    known: bool
    """Whether the process counters are available. If not, all parts of the excess are NaN."""
    excess: float
    processor: float = np.nan
    queue: float = np.nan
    storage: float = np.nan
    rest: float = np.nan
    """Time off the CPU without waiting for it or for a disk."""
    stopped_share: float = np.nan
    """Share of samples in which a process of the rank was stopped."""
    stopped_again: bool = False
    """Whether the rank was found stopped in more than one slow stretch."""
    on_device: bool = False
    """Whether the rank computes on a GPU."""

    def share(self, part: float) -> float:
        """Return the part as a share of the excess; 0 if the share is unknown."""
        return float(part / self.excess) if self.known and self.excess > 0 else 0.0

    @property
    def may_be_chance_load(self) -> bool:
        """Whether other load on the same machine could be the cause. True without counters."""
        if not self.known:
            return True
        if self.cause is Cause.SUSPENDED and self.stopped_again:
            return False  # load does not stop processes
        return self.contested_share >= (CONTESTED_HINT if self.cause is Cause.UNKNOWN else CONTESTED_SHARE)

    @property
    def contested_share(self) -> float:
        """Share of the excess that other load on the same machine could cause."""
        return self.share(max(self.queue, 0.0) + max(self.processor, 0.0))


@dataclass(frozen=True, slots=True)
class HealthyState:
    """What the n ranks of a gang used during the warm-up."""

    compute: FloatArray
    """Seconds a step, float64 [n]."""
    parts: FloatArray
    """CPU time, CPU wait and disk wait in seconds a step, float64 [n, 3]."""


@dataclass(frozen=True, slots=True)
class AlarmInterval:
    """What the n ranks of a gang used in the interval of an alarm."""

    compute: FloatArray
    """Seconds a step, float64 [n]."""
    per_step: FloatArray
    """Columns of CONSUMED, the first three in seconds a step, float64 [n, 5]."""
    samples: FloatArray
    """Number of samples that found the rank stopped, and number of all samples: float64 [n, 2]."""
    step_seconds: float
    stopped_again: bool
    """Whether samples found the slow rank stopped in more than one slow stretch."""


def attribute(rank: int, interval: AlarmInterval, healthy: HealthyState | None, on_device: bool = False) -> Attribution:
    """Split the rank's excess over its healthy state, less the excess of its peers over theirs.

    healthy: None compares with the peers alone (slow from the start). on_device: the rank computes on a GPU, for which
    its process sleeps or spins; CPU time then does not explain its slowness.
    """
    compute, parts = interval.compute, interval.per_step[:, :3]
    samples, stopped_again = interval.samples, interval.stopped_again
    if healthy is None:
        healthy = HealthyState(np.zeros_like(compute), np.zeros_like(parts))
    shift = compute - healthy.compute
    excess = float(shift[rank] - median_of_the_others(shift, rank))
    grown = parts - healthy.parts
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
    if stopped_again and rest >= max(STOPPED_SHARE * excess, STOPPED_SECONDS_SHARE * interval.step_seconds):
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
