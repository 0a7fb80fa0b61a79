"""Attribution of a slow rank's extra time to a cause, by counters of its own processes. The cause is 'unknown' if no
cause is clear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.series.consumption_trail import MAJOR_FAULTS, SAMPLES, STOPPED
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.stats.medians import median_of_the_others

CAUSE_SHARE = 0.6
"""A cause is reported only if it explains at least this share of a slow rank's extra time. If two causes explain half
each, neither is clear."""

STOPPED_SHARE = 0.3
"""Stops of the rank's process are reported as the cause only if they explain at least this share of its extra time.
Samples must have found the process stopped in several slow periods. Other load on the machine does not matter then."""

STOPPED_SECONDS_SHARE = 0.05
"""Stops of the rank's process are reported as the cause only if they last at least this share of a step."""

OFF_PROCESSOR_SHARE = 0.8
"""A process that was never found stopped is called suspended only if it spends at least this share of the extra time
off the CPU, without waiting for a CPU or disk. The limit is high because a sleeping process looks the same."""

LEAST_FAULTS = 1.0
"""Memory pressure is reported as the cause only if the rank has at least this many more major page faults in each
step."""

FAULT_SECONDS, FLASH_FAULT_SECONDS = 0.01, 50e-6
"""Time of a major page fault, a read of one page: from a rotating or network disk, and from a fast flash disk. Faults
that could not explain CAUSE_SHARE of the excess on the former are not its cause. If they explain it on the latter, they
are, also if the kernel needs processor time for them and the process waits for a processor after each read."""

CONTESTED_SHARE = 0.5
"""Other load on the machine counts as a possible cause if it could explain at least this share of the extra time. Such
load causes waits for the CPU, and more CPU time through caches, sibling threads and a hypervisor."""

CONTESTED_HINT = 0.2
"""Limit that replaces CONTESTED_SHARE if no cause is clear. Other load on the machine then counts as a possible cause
if it could explain a fifth of the extra time."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Excess compute time of a rank over its own healthy state and its peers, split into parts. Times are in seconds a
    step."""

    cause: Cause
    known: bool
    """Whether the process counters are available. If not, all parts of the excess are NaN."""
    excess: float
    processor: float = np.nan
    queue: float = np.nan
    storage: float = np.nan
    rest: float = np.nan
    """Time in which the process was off the CPU and waited neither for a CPU nor for a disk."""
    stopped_share: float = np.nan
    """Share of samples in which a process of the rank was stopped."""
    stopped_again: bool = False
    """Whether samples found the rank stopped in more than one of its slow periods."""
    on_device: bool = False
    """Whether the rank computes on a GPU."""
    faults: float = np.nan
    """Extra major page faults of the rank in each step; NaN if unknown."""

    def share(self, part: float) -> float:
        """Return this part of the excess as a share of the whole excess; 0 if it is unknown."""
        return float(part / self.excess) if self.known and self.excess > 0 else 0.0

    @property
    def asleep(self) -> bool:
        """Whether the processes only sleep more: called suspended, but samples did not find them stopped again."""
        return self.cause is Cause.SUSPENDED and not self.stopped_again

    @property
    def may_be_chance_load(self) -> bool:
        """Whether other load on the same machine could be the cause. True if process counters are not available."""
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
    """Compute time, CPU time and waits of each of the n ranks of a gang, in its warm-up."""

    compute: FloatArray
    """Compute time of each rank in seconds a step: float64 [n]."""
    parts: FloatArray
    """CPU time, wait for a CPU and wait for disks of each rank, in seconds a step: float64 [n, 3]."""
    faults: FloatArray
    """Major page faults of each rank in each step: float64 [n]; NaN if unknown."""


@dataclass(frozen=True, slots=True)
class AlarmInterval:
    """Compute time and process counters of each of the n ranks of a gang, since an alarm began."""

    compute: FloatArray
    """Compute time of each rank in seconds a step: float64 [n]."""
    per_step: FloatArray
    """Increase of each rank's process counters per step, in the order of CONSUMED: float64 [n, 6]. The first three are
    in seconds."""
    samples: FloatArray
    """For each rank, the number of samples that found it stopped, and the number of all samples: float64 [n, 2]."""
    step_seconds: float
    stopped_again: bool
    """Whether samples found the slow rank stopped in more than one of its slow periods."""


def attribute(rank: int, interval: AlarmInterval, healthy: HealthyState | None, on_device: bool = False) -> Attribution:
    """Split a rank's extra time into parts and return its cause. The extra time of its peers is subtracted.

    healthy: None if the rank was slow from the start; it is then compared with its peers alone. on_device: whether the
    rank computes on a GPU. Its process then sleeps or spins, so that CPU time does not explain slowness.
    """
    compute, parts = interval.compute, interval.per_step[:, :3]
    samples, stopped_again = interval.samples, interval.stopped_again
    if healthy is None:
        healthy = HealthyState(np.zeros_like(compute), np.zeros_like(parts), np.zeros_like(compute))
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
    more_faults = interval.per_step[:, MAJOR_FAULTS] - healthy.faults
    known = bool(np.isfinite(more_faults).all())
    faults = float(more_faults[rank] - median_of_the_others(more_faults, rank)) if known else np.nan
    paged = faults >= LEAST_FAULTS and (
        faults * FLASH_FAULT_SECONDS >= CAUSE_SHARE * excess
        or (faults * FAULT_SECONDS >= CAUSE_SHARE * excess and rest + storage >= CAUSE_SHARE * excess)
    )
    taken = float(samples[rank, SAMPLES - STOPPED])
    stopped = float(samples[rank, 0]) / taken if taken > 0 else np.nan
    cause = Cause.UNKNOWN
    if stopped_again and rest >= max(STOPPED_SHARE * excess, STOPPED_SECONDS_SHARE * interval.step_seconds):
        cause = Cause.SUSPENDED
    elif queue >= CAUSE_SHARE * excess:
        cause = Cause.CPU_CONTENTION
    elif paged:
        cause = Cause.MEMORY_PRESSURE  # page faults wait for a disk, whether or not the kernel counts these waits
    elif storage >= CAUSE_SHARE * excess:
        cause = Cause.STORAGE
    elif on_device:
        pass
    elif processor >= CAUSE_SHARE * excess:
        cause = Cause.COMPUTE
    elif rest >= OFF_PROCESSOR_SHARE * excess:
        cause = Cause.SUSPENDED
    return Attribution(cause, True, excess, processor, queue, storage, rest, stopped, stopped_again, on_device, faults)
