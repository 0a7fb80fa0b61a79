"""Shared slots in `gangwatch simulate`: which jobs of a trace share slots, how many on one slot, and how fast."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.speeds.co_location import TABLE, CoSpeed, of_pairs, of_parts, of_stages
from scheduler_feedback.sim.speeds.gavel_throughputs import is_gavel, read_gavel

USUAL_JOBS = {Sharing.NONE: 1, Sharing.MURI: 4, Sharing.FGD: 100, Sharing.BEST_FIT: 100}
"""Jobs on one slot if the user gives no number; two for all other rules, which measure pairs. Where jobs declare their
parts, these are the limit: 100 is one job per hundredth of a slot."""

Speeds = dict[str, dict[str, float]]
"""Workload -> other workload on the same slot -> speed of the first, relative to its speed alone."""


@dataclass(frozen=True, slots=True)
class SharedSlots:
    """What the user says about shared slots."""

    jobs_per_slot: int | None = None
    """Maximum number of jobs on one slot; None: the usual number of the rule."""
    shareable: bool = False
    """Whether all jobs are shareable, restartable and preemptible, whatever the trace says."""
    opportunistic: float = 0.0
    """Share of the jobs that are opportunistic if the rule is `antman`, drawn at random."""
    pair_speeds: TABLE = field(default_factory=dict)
    """True speeds of pairs by GPU type; those of '' hold on all types. Pairs that are absent share time equally."""
    seed: int = 0
    """Seed of the draw."""

    def of_file(self, jobs_per_slot: int) -> SharedSlots:
        """Return this with the number of a configuration file, unless the user gave one. 1: the file has none."""
        return self if self.jobs_per_slot or jobs_per_slot < 2 else replace(self, jobs_per_slot=jobs_per_slot)

    def nodes(self, nodes: Sequence[NodeSeen], rule: Sharing) -> tuple[NodeSeen, ...]:
        """Return the nodes with the number of jobs that may share a slot under this rule."""
        many = self.jobs_per_slot or max([USUAL_JOBS.get(rule, 2), *(node.jobs_per_slot for node in nodes)])
        return tuple(structs.replace(node, jobs_per_slot=many) for node in nodes)

    def trace(self, trace: Trace, rule: Sharing) -> Trace:
        """Return the trace with the jobs that share slots under this rule. Its notes say if there is none."""
        if not self.shareable and not self.opportunistic:
            return _noted(trace, rule)
        chance = random.Random(f"opportunistic {self.seed}")
        jobs = []
        for job in trace.jobs:
            drawn = chance.random() < self.opportunistic  # drawn for every job, so that all rules see the same ones
            leftover = rule.opportunistic and (job.spec.opportunistic or drawn)
            changes: dict[str, bool] = {"opportunistic": leftover}
            if self.shareable or leftover:
                changes |= {"shareable": True, "restartable": True, "preemptible": True}
            jobs.append(replace(job, spec=structs.replace(job.spec, **changes)))
        return _noted(replace(trace, jobs=tuple(jobs)), rule)

    def co_speed(self, rule: Sharing, nodes: Sequence[NodeSeen]) -> CoSpeed:
        """Return the true speeds of jobs that share slots: by their stages under `muri`, else those of pairs.

        Without speeds of pairs, jobs that declare their parts of a slot run as fast as alone under `fgd` and
        `best-fit`.
        """
        if rule is Sharing.MURI:
            return of_stages
        if rule.divides and not self.pair_speeds:
            return of_parts
        everywhere = self.pair_speeds.get("", {})
        return of_pairs({node.gpu_type: self.pair_speeds.get(node.gpu_type, everywhere) for node in nodes})


def _noted(trace: Trace, rule: Sharing) -> Trace:
    """Return the trace with a note if the rule has no effect, because no job may share slots or reports a latency."""
    if rule is Sharing.MUXFLOW:
        note = "the sharing rule muxflow has no effect: the jobs of a trace report no latency, so none lends its slots"
        return replace(trace, notes=(*trace.notes, note))
    if rule is Sharing.NONE or any(job.spec.shareable for job in trace.jobs):
        return trace
    if rule.divides:
        note = f"the sharing rule {rule.value} has no effect: no job of the trace is shareable and declares its part"
        return replace(trace, notes=(*trace.notes, note))
    note = f"the sharing rule {rule.value} has no effect: no job of the trace may share slots (see --shareable)"
    return replace(trace, notes=(*trace.notes, note))


def read_pair_speeds(path: Path) -> TABLE:
    """Read speeds of pairs: a JSON object, or throughputs in Gavel's format. Raises TraceError."""
    if is_gavel(path):
        return read_gavel(path).pairs
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Speeds)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}; it must be a JSON object: workload -> other workload -> speed") from error
    for one, row in found.items():
        for other, speed in row.items():
            if not 0 <= speed <= 1:
                raise TraceError(f"{path}: {one} beside {other}: the speed {speed:g} is not between 0 and 1")
    if not any(found.values()):
        raise TraceError(f"{path}: contains no speed")
    return {"": found}
