"""Rebuild of the state from the API's objects alone, for a controller with an empty state folder. No I/O.

Marks on nodes contain the quarantines, backoffs and accusers. Annotations of groups and pods contain each gang's
attempt, its places and the start of its wait. Reservations follow from these. Everything else starts empty: run times
of similar jobs, the use of each queue, and verdicts (detectors report existing faults again).
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import adopt, inherited_attempt, last_attempt
from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod
from scheduler_feedback.backends.kubernetes.objects.translate import Gang, attempt_of, wall_ns
from scheduler_feedback.backends.kubernetes.published.marks import remembered
from scheduler_feedback.core import cluster
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import Job, JobKind, JobState, RankRecord, Slot
from scheduler_feedback.core.state import Policy, State


def rebuild(
    cache: InformerCache, seen: Iterable[NodeSeen], policy: Policy, now_ns: int
) -> tuple[State, dict[str, str]]:
    """Return the state, and for each job id the key of its gang ('NAMESPACE/NAME').

    The cache must have listed all objects.
    """
    state = State(policy=policy, now_ns=now_ns)
    keys: dict[str, str] = {}
    with cache.lock:
        for one in seen:
            node = cache.nodes.get(one.node)
            if one.present and node is not None:
                state.nodes[one.node] = _node(one, node, now_ns)
        for key in sorted({*cache.groups, *cache.pods}):
            gang = cache.gang(key)
            job = None if gang is None else _job(cache, gang, now_ns)
            if gang is not None and job is not None:
                state.jobs[job.job_id] = job
                keys[job.job_id] = gang.key
    return state, keys


def resumed(cache: InformerCache, jobs: Iterable[Job]) -> tuple[dict[str, str], list[str]]:
    """Return what exists of the jobs that have not ended: the key of each gang by job id, and the jobs without a gang.

    Probes have no gang. The cache must have listed all objects. No watch reports the deletion of a gang that was
    deleted before the list.
    """
    with cache.lock:
        keys = {gang.job_id: key for key in {*cache.groups, *cache.pods} if (gang := cache.gang(key)) is not None}
    left = [job.job_id for job in jobs if not job.state.ended and job.spec.kind is not JobKind.PROBE]
    return {job_id: keys[job_id] for job_id in left if job_id in keys}, [one for one in left if one not in keys]


def _node(seen: NodeSeen, node: Node, now_ns: int) -> cluster.Node:
    memory = remembered(node)
    return cluster.Node(
        seen.node,
        seen.slots,
        seen.devices,
        seen.machine,
        state=memory.state,
        since_ns=memory.since_ns,
        until_ns=memory.until_ns,
        backoff=memory.backoff,
        reason=memory.reason,
        verdict_id=memory.verdict_id,
        accusers=memory.accusers,
        probes=memory.probes,
        gpu_type=seen.gpu_type,
        spine=seen.spine,
        rack=seen.rack,
        rail=seen.rail,
        island=seen.island,
        island_slots=seen.island_slots,
        slowdown=memory.slowdown,
        doubted_ns=memory.doubted_ns,
        refuses=seen.refuses,
        limits=seen.limits,
        free=seen.free,
        reported_ns=now_ns,
    )


def _job(cache: InformerCache, gang: Gang, now_ns: int) -> Job | None:
    """Return the job of a gang that has begun an attempt; None for any other gang, which is then submitted as a new
    job.

    For a bound pod that no kubelet has accepted yet, the attempt's start is now_ns, because no object has the time of
    the binding.
    """
    pods = cache.pods_of(gang.key)
    group = cache.groups.get(gang.key)
    number = last_attempt(group, pods, gang.job_id)
    if not number and not any(pod.spec.node_name and pod not in gang.pods for pod in pods):
        number = inherited_attempt(gang.pods)
    if not number or gang.spec is None:
        return None
    created_ns = wall_ns((group or gang.pods[0]).metadata.creation_timestamp)
    array, index = gang.array_of, gang.array_index
    job = Job(gang.job_id, gang.spec, JobState.PENDING, created_ns, attempt=number, array_of=array, array_index=index)
    attempt = adopt(gang.job_id, number, gang.key, pods, group)
    if attempt is None or not any(member.uid and _begun(cache, member.name) for member in attempt.members):
        return job  # the attempt was given up, and its pods were recreated
    job.state = JobState.STARTING
    job.started_ns = job.attempt_started_ns = min(
        (wall_ns(pod.status.start_time) or now_ns for pod in pods if attempt_of(pod) == number), default=now_ns
    )
    job.ranks = [
        RankRecord(rank, Slot(member.node, slot))
        for member in attempt.members
        for rank, slot in zip(member.ranks, member.slots, strict=True)
    ]
    job.ranks.sort(key=lambda record: record.rank)
    return job


def _begun(cache: InformerCache, name: str) -> bool:
    pod: Pod | None = cache.pods.get(name)
    return pod is not None and not pod.over and bool(pod.spec.node_name) and not pod.metadata.deletion_timestamp
