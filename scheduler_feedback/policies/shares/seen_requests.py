"""Typical requests, learnt from the jobs that have arrived: the workload whose fragmentation FGD minimises."""

from __future__ import annotations

from msgspec import structs

from scheduler_feedback.core.job import Job, JobKind
from scheduler_feedback.core.state import SeenRequest, SeenRequests, State
from scheduler_feedback.policies.shares.declared_parts import Part, cpu_milli_of, part_of
from scheduler_feedback.policies.shares.fragmentation import most_frequent
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI, Request

MOST_KINDS = 512
"""Maximum number of kinds of requests that are kept; the rarest are forgotten."""

MOST_SEEN = 10_000.0
"""Number of jobs after which all weights are halved, so that the typical requests follow the workload: our choice."""

GROWTH = 1.5
"""The typical requests are replaced when the number of jobs has grown by this factor: our choice. A replacement makes
every known score of a node invalid, so it must be rare."""


def note_request(state: State, job: Job) -> None:
    """Count the request of a job that has arrived. The first call also counts the jobs that are already in the state.

    It does nothing unless the rule of `Policy.sharing` divides slots.
    """
    if not state.policy.sharing.divides:
        return
    seen = state.requests
    for one in [job] if seen.counts else list(state.jobs.values()):
        if one.spec.kind is JobKind.TRAINING:
            _count(seen, one)
    if seen.seen >= GROWTH * seen.typical_at:
        kept = most_frequent({key: row.weight for key, row in seen.counts.items()})
        seen.typical = tuple(structs.replace(seen.counts[key], weight=share) for key, share in kept.items())
        seen.typical_at = seen.seen


def _count(seen: SeenRequests, job: Job) -> None:
    spec = job.spec
    part = part_of(job) if spec.shareable else Part(0, 0)
    cpu = cpu_milli_of(spec)
    key = f"{spec.ranks}:{part.share_milli}:{part.memory_mib}:{cpu}:{'|'.join(spec.gpu_types)}"
    row = seen.counts.get(key)
    if row is None:
        row = SeenRequest(spec.ranks, part.share_milli, part.memory_mib, cpu, spec.gpu_types, 0.0)
    seen.counts[key] = structs.replace(row, weight=row.weight + 1)
    seen.seen += 1
    if seen.seen > MOST_SEEN:
        seen.counts = {one: structs.replace(old, weight=old.weight / 2) for one, old in seen.counts.items()}
        seen.seen, seen.typical_at = seen.seen / 2, seen.typical_at / 2
    if len(seen.counts) > MOST_KINDS:
        rarest = min(seen.counts, key=lambda one: (seen.counts[one].weight, one))
        seen.seen -= seen.counts.pop(rarest).weight


def workload(seen: SeenRequests, largest: int, device_mib: int) -> dict[Request, float]:
    """Return the typical requests and their shares, which add up to 1; empty if no job has been seen.

    largest: number of slots of the largest node; a larger gang counts as one whole node. device_mib: device memory of a
    slot, which turns requested memory into a part of the slot; 0: unknown.
    """
    found: dict[Request, float] = {}
    for row in seen.typical:
        part = Part(row.share_milli, row.memory_mib)
        milli = part.usable_milli(device_mib) if row.ranks == 1 and part.known_on(device_mib) else GPU_MILLI
        ranks = min(row.ranks, largest)
        request = Request(ranks, min(max(milli, 1), GPU_MILLI), ranks * row.cpu_milli, gpu_types=row.gpu_types)
        found[request] = found.get(request, 0.0) + row.weight
    return found
