"""True device memory of simulated jobs: how it grows, what agents measure of it, and jobs that run out of it.

A job holds EARLY_SHARE of its peak once it has made some steps, and its peak from a later time of its attempt, for
example after its first evaluation. Whenever a job allocates memory and the jobs on its slot then need more than the
slot has, the job that allocates fails. Agents measure each job up to SAMPLE_SECONDS after each change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import Event, MemoryMeasured
from scheduler_feedback.sim.occurrence import Occurrence

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine
    from scheduler_feedback.sim.truth import Gang

CONTEXT_MIB = 500
"""Memory of a process before its first step: the context of CUDA and its libraries. An assumption of the model."""

EARLY_SECONDS, EARLY_SHARE = 60.0, 0.9
"""Time after which a job has made some steps, and the share of its peak that it then holds. Both are assumptions."""

LATEST_SHARE = 0.9
"""Latest time of the peak, as a share of the job's run time: an assumption of the model."""

SAMPLE_SECONDS = 15.0
"""Time between two measurements (agent/collectors/gpu/gpu_processes.py)."""

OUT_OF_MEMORY = 1
"""Exit code of a program that ends with an exception."""


@dataclass(slots=True)
class DeviceMemory:
    """Device memory of all jobs of one simulation."""

    peaks: Mapping[str, int]
    """Largest memory of a rank in MiB, by job id. A job without one allocates nothing."""
    seed: int = 0
    """Seed of the times of peaks and measurements."""
    failed: list[str] = field(default_factory=list)
    """Ids of the jobs that ran out of memory, once for each time."""
    _used: dict[str, int] = field(default_factory=dict)

    def empty(self) -> DeviceMemory:
        """Return the same memory for another simulation."""
        return DeviceMemory(self.peaks, self.seed)

    def started(self, engine: Engine, job_id: str, gang: Gang, now_ns: int) -> None:
        """Schedule the growth of a started attempt."""
        peak = self.peaks.get(job_id)
        if peak is None:
            return
        chance = random.Random(f"memory {self.seed} {job_id} {gang.attempt}")
        seconds = gang.course.job.run_seconds
        late = max(chance.uniform(0.0, LATEST_SHARE) * seconds, EARLY_SECONDS)
        early = round(EARLY_SHARE * peak)
        self._used[job_id] = 0
        for at, mib, shown in ((1.0, min(CONTEXT_MIB, peak), False), (EARLY_SECONDS, early, True), (late, peak, True)):
            at_ns = now_ns + gang.warm_ns + nanoseconds(at)
            sampled_ns = nanoseconds(chance.uniform(0.0, SAMPLE_SECONDS)) if shown else 0
            engine.later(Occurrence(at_ns, partial(self._grow, job_id, gang, mib, sampled_ns)))

    def _grow(self, job_id: str, gang: Gang, mib: int, sampled_ns: int, engine: Engine, now_ns: int) -> Iterator[Event]:
        if engine.gangs.get(job_id) is not gang or gang.stopping:
            return
        partners = engine.machines.partners(gang)
        for slot in gang.placement:
            others = sum(self._used.get(name, 0) for name, one in partners.items() if slot in one.placement)
            total = engine.state.nodes[slot.node].slot_memory_mib
            if total and others + mib > total:
                self.failed.append(job_id)
                ended = engine.fail(job_id, now_ns, "ran out of device memory")
                yield replace(ended, all_exited_with=OUT_OF_MEMORY, out_of_memory=True)
                return
        self._used[job_id] = mib
        if sampled_ns:
            engine.later(Occurrence(now_ns + sampled_ns, partial(self._measure, job_id, gang, mib)))

    def _measure(self, job_id: str, gang: Gang, mib: int, engine: Engine, now_ns: int) -> Iterator[Event]:
        del now_ns
        if engine.gangs.get(job_id) is gang and not gang.stopping:
            yield MemoryMeasured(job_id, gang.attempt, mib)
