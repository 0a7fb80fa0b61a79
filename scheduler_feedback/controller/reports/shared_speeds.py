"""Measured speeds of jobs that share slots, from the step times that agents report.

A job's speed is its usual step time alone, divided by its step time beside the others. The step time alone comes from
the job itself, or from an earlier job with the same workload, number of ranks and GPU type. A job of which neither was
seen alone is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_feedback.core.events import SharedSpeed
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Sharing, State
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.sharing.pair_speeds import workload_of

TRIAL_NS = 20 * 10**9
"""Time for which jobs share slots before their speeds are measured, in ns. With the steps below, jobs with steps
shorter than a second are measured, and separated if they interfere, within Gandiva's minute."""

STEPS = 16
"""Number of newest steps in the mean (``Gang.step_seconds``). All of them must be of the present group."""

StepSeconds = Callable[[str], float | None]
"""Function that returns the mean time of a job's newest steps in seconds; None if it reports none."""

_Kind = tuple[str, int, str]
_Group = tuple[int, tuple[str, ...]]


@dataclass(slots=True)
class SharedSpeeds:
    """Measurement of all jobs that share slots. Used by the cycle's thread only."""

    step_seconds: StepSeconds
    """Returns the mean step time of a job."""
    _alone: dict[_Kind, float] = field(default_factory=dict)
    """Step time alone in seconds, by workload, number of ranks and GPU type."""
    _groups: dict[str, tuple[_Group, int]] = field(default_factory=dict)
    """Attempt and partners of each job, and since when."""
    _measured: set[str] = field(default_factory=set)
    """Ids of the jobs that were measured in their present group."""

    def measure(self, state: State, now_ns: int) -> list[SharedSpeed]:
        """Return new measurements. now_ns: monotonic time."""
        if state.policy.sharing is Sharing.NONE:
            return []
        index = index_of(state)
        running = {
            one: job
            for one in index.running
            if (job := state.jobs[one]).spec.shareable and not job.spec.latency_objective_seconds
        }  # the steps of a service are requests: their rate is no speed (``latencies``)
        for gone in self._groups.keys() - running.keys():
            del self._groups[gone]
            self._measured.discard(gone)
        found = [self._one(state, job, tuple(index.partners(one)), now_ns) for one, job in sorted(running.items())]
        return [one for one in found if one is not None]

    def _one(self, state: State, job: Job, partners: tuple[str, ...], now_ns: int) -> SharedSpeed | None:
        group = (job.attempt, partners)
        known, since_ns = self._groups.get(job.job_id, ((0, ()), now_ns))
        if known != group:
            self._groups[job.job_id] = (group, now_ns)
            self._measured.discard(job.job_id)
            return None
        if any(state.jobs[one].state is not JobState.RUNNING for one in partners) or job.job_id in self._measured:
            return None
        seconds = self.step_seconds(job.job_id)
        if not seconds or (now_ns - since_ns) / 1e9 < STEPS * seconds:
            return None
        node = state.nodes.get(job.ranks[0].slot.node)
        kind = (workload_of(job.spec), len(job.ranks), "" if node is None else node.gpu_type)
        if not partners:
            self._alone[kind] = seconds
            return None
        if now_ns - since_ns < TRIAL_NS or kind not in self._alone:
            return None
        self._measured.add(job.job_id)
        return SharedSpeed(job.job_id, job.attempt, partners, min(self._alone[kind] / seconds, 1.0))
