"""Translation of pods, nodes, groups and queues into the cycle's jobs, nodes and queues. No I/O.

A gang is the pods of a PodGroup; a pod without a group is a gang of one. Ranks are GPUs: a pod that requests eight is a
group of eight ranks on one node. Only the number of slots matters, not which ones: the kubelet's device manager chooses
a pod's devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from msgspec import structs

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.annotations import (
    count_of,
    dataset_of,
    flag_of,
    level_of,
    seconds_of,
)
from scheduler_feedback.backends.kubernetes.objects.constraints import (
    OURS,
    SHARED,
    Constraint,
    constraint_of,
    is_accelerator,
    refusal,
)
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import MEMBERS, bounded, is_elastic
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Node, Pod, PodGroup, Queue
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import RECREATING
from scheduler_feedback.backends.kubernetes.objects.quantities import amounts, requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_order import INDEX_LABELS, rank_key, whole
from scheduler_feedback.core import state as core
from scheduler_feedback.core.cluster import Level, Limit
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import Group, JobSpec
from scheduler_feedback.policies.intake.job_admission import malformed

SCHEDULER = "gangwatch"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Label of coscheduling that names a pod's group (sigs.k8s.io/scheduler-plugins, apis/scheduling/v1alpha1)."""

QUEUE = f"{OURS}queue"
TIME_LIMIT = f"{OURS}time-limit-seconds"
RESTARTABLE = f"{OURS}restartable"
PREEMPTIBLE = f"{OURS}preemptible"
RESTART_COST = f"{OURS}restart-cost-seconds"
CHECKPOINT_INTERVAL = f"{OURS}checkpoint-interval-seconds"
WORKLOAD = f"{OURS}workload"
REQUIRED_TOPOLOGY = f"{OURS}required-topology"
PREFERRED_TOPOLOGY = f"{OURS}preferred-topology"
ATTEMPT = f"{OURS}attempt"
RANK = f"{OURS}rank"
SLOTS = f"{OURS}slots"
JOB = f"{OURS}job"
"""Annotation that we write on a bound pod: the job id of its gang. A later gang of the same name has another."""

PLACEMENT = f"{OURS}placement"
BEYOND = f"{OURS}beyond-least"
"""Annotation of a pod that was bound when its group already had its least number of pods."""

WORLD_SIZE = f"{OURS}world-size"
"""Annotation that we write on a pod: the number of ranks of its gang."""

NETWORK_CLASS = f"{OURS}network-class"
"""Annotation that we write on a pod: the priority class of its gang's network traffic."""

ARRAY = f"{OURS}array"
ARRAY_PARALLEL = f"{OURS}array-parallel"

_RETRIES_BY_OWNER = 1_000_000
"""Limit on retries of a gang that has an owner, too high to be reached: the owner limits the retries."""


@dataclass(frozen=True, slots=True)
class TopologyLabels:
    """Names of the node labels that locate a node in the network, one for each level; '' if the cluster has no such
    level.

    NVIDIA's GPU feature discovery sets nvidia.com/gpu.clique on nodes that share an NVLink domain.
    """

    spine: str = "topology.gangwatch.io/spine"
    rack: str = "topology.gangwatch.io/rack"
    rail: str = "topology.gangwatch.io/rail"
    island: str = "nvidia.com/gpu.clique"
    gpu_type: str = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang, built from Kubernetes' objects."""

    job_id: str
    """Id of the job in the cycle's state."""

    key: str
    """'NAMESPACE/NAME' of the gang's group, or of its only pod."""

    pods: tuple[Pod, ...]
    """Pods in the order of their ranks."""

    constraint: Constraint | None
    """Constraint of the gang's GPU pods; None if their constraints differ."""

    refused: str
    """Reason why the gang is not scheduled; '' if it is scheduled."""

    spec: JobSpec | None
    """Specification of the gang's job; None if the gang is refused, or if pods are missing."""

    grouped: bool
    beyond: tuple[Pod, ...] = ()
    """Pods that exceed the group's least number of pods. Each becomes a gang of one once all other pods are bound."""

    array_of: str = ""
    """Name of the job array that the gang belongs to; '' for none."""

    array_index: int = 0
    """Index of the gang in its job array."""


def group_of(pod: Pod) -> str:
    """Return 'NAMESPACE/NAME' of the pod's group; '' if it has none."""
    name = pod.metadata.label(GROUP_LABEL)
    if not name and pod.spec.scheduling_group is not None:
        name = pod.spec.scheduling_group.pod_group_name
    return f"{pod.metadata.namespace}/{name}" if name else ""


def job_id_of(metadata: Metadata) -> str:
    """Return a job id that is never reused: a later object of the same name is another job."""
    return f"{metadata.namespace}.{metadata.name}.{metadata.uid[:8]}"


def slots_of(pod: Pod) -> int:
    """Return the number of GPUs or MIG instances that the pod requests."""
    return sum(count for resource, count in requests_of(pod).items() if is_accelerator(resource))


def is_complete(pod: Pod) -> bool:
    """Return whether the pod may be scheduled: no gate holds it, and each of its claims has been made."""
    return not pod.spec.scheduling_gates and (pod.spec.devices is None or not pod.spec.devices.missing)


# --- gangs -----------------------------------------------------------------------------------------------------------


def gang_of(group: PodGroup, pods: Iterable[Pod]) -> Gang:
    """Return the gang of a group; its spec is None while fewer pods exist than the group needs.

    Bound pods stay members when pods are added; the unbound pods follow in the order of their ranks.
    """
    requested, elastic, least = _requested(group), _resizes(group), least_of(group)
    found = [pod for pod in pods if not pod.metadata.deletion_timestamp and not pod.metadata.annotation(BEYOND)]
    found.sort(key=lambda pod: (not pod.spec.node_name, rank_key(pod)))
    members = tuple(sorted(found[:least], key=rank_key))
    job_id, key = job_id_of(group.metadata), group.metadata.key
    if not least:
        return Gang(job_id, key, (), None, "", None, True, tuple(pod for pod in found if not pod.spec.node_name))
    if len(members) < least or not all(map(is_complete, members)):
        return Gang(job_id, key, members, None, "", None, True)
    gang = _gang(job_id, key, members, group.metadata, True)
    if elastic:
        return _with_bounds(gang, group.metadata, requested)
    bound = all(pod.spec.node_name for pod in members)
    return replace(gang, beyond=tuple(found[least:]) if bound else ())


def _requested(group: PodGroup) -> int:
    return 1 if group.spec.min_member is None else max(group.spec.min_member, 0)


def _resizes(group: PodGroup) -> bool:
    return bool(_requested(group)) and is_elastic(group)


def least_of(group: PodGroup) -> int:
    """Return the number of pods that the group needs, for an elastic gang with its present size."""
    requested = _requested(group)
    return (whole(group.metadata.annotation(MEMBERS)) or requested) if _resizes(group) else requested


def _with_bounds(gang: Gang, declared: Metadata, requested: int) -> Gang:
    """Return the gang with the bounds of its size; refused if it cannot be resized."""
    if gang.spec is None:
        return gang
    try:
        return replace(
            gang, spec=bounded(gang.spec, gang.pods, [slots_of(pod) for pod in gang.pods], declared, requested)
        )
    except BackendError as error:
        return replace(gang, spec=None, constraint=None, refused=str(error))


def beyond(pod: Pod, group: PodGroup) -> Gang:
    """Return a gang of one: a pod that exceeds its group's least number of pods. It starts and ends alone.

    The pod is never moved: its owner could not recreate it without all other pods of the group.
    """
    job_id, key = job_id_of(pod.metadata), pod.metadata.key
    if not is_complete(pod):
        return Gang(job_id, key, (pod,), None, "", None, False)
    gang = _gang(job_id, key, (pod,), group.metadata, False)
    if gang.spec is None:
        return gang
    if gang.spec.required_level is not None:
        why = "it is beyond its group's minMember, and the group's required topology cannot be guaranteed for it"
        return replace(gang, spec=None, constraint=None, refused=why)
    name = f"{group.metadata.name}+{pod.metadata.name}"
    spec = structs.replace(
        gang.spec, name=name, command=(key,), restartable=False, preemptible=False, preferred_level=None
    )
    return replace(gang, spec=spec)


def lone(pod: Pod) -> Gang:
    """Return the gang of one for a pod without a group."""
    if not is_complete(pod):
        return Gang(job_id_of(pod.metadata), pod.metadata.key, (pod,), None, "", None, False)
    return _gang(job_id_of(pod.metadata), pod.metadata.key, (pod,), pod.metadata, False)


def _gang(job_id: str, key: str, pods: tuple[Pod, ...], declared: Metadata, grouped: bool) -> Gang:
    constraint: Constraint | None = None
    try:
        why = next((f"pod {pod.metadata.name}: {why}" for pod in pods if (why := refusal(pod))), "")
        working = [pod for pod in pods if slots_of(pod)]
        if not why and not working:
            why = "none of its pods requests a GPU: gangwatch places by GPUs"
        constraints = {one.name: one for one in map(constraint_of, working)}
        if not why and len(constraints) > 1:
            differ = "node selector, affinity, tolerations, CPU, memory or claims"
            why = f"its GPU pods differ in {differ}, which is not implemented"
        if not why:
            constraint = next(iter(constraints.values()))
            spec = _spec(pods, declared, constraint)
            why = malformed(spec) or ""
        if not why:
            array_of, array_index = _array(pods[0], declared)
            return Gang(job_id, key, pods, constraint, "", spec, grouped, (), array_of, array_index)
    except BackendError as error:
        why = str(error)
    return Gang(job_id, key, pods, None, why, None, grouped)


def _array(pod: Pod, declared: Metadata) -> tuple[str, int]:
    """Return (name of the gang's job array, index of the gang in the array); ('', 0) if it belongs to no array.

    An annotation names the array. If the only annotation is the limit on parallel gangs, the pods of one owner (for
    example a Job) form an array.
    """
    name = declared.annotation(ARRAY)
    indices = (whole(pod.metadata.label(label)) for label in INDEX_LABELS)
    index = next((index for index in indices if index is not None), 0)
    if name:
        return f"{declared.namespace}.{name}", index
    if declared.annotation(ARRAY_PARALLEL) and pod.owner is not None:
        return f"{declared.namespace}.{pod.owner.name}.{pod.owner.uid[:8]}", index
    return "", 0


def _spec(pods: Sequence[Pod], declared: Metadata, constraint: Constraint) -> JobSpec:
    counts = [slots_of(pod) for pod in pods]
    ranks = sum(counts)
    groups: tuple[Group, ...] = ()
    if any(count > 1 for count in counts):
        groups = tuple(Group(f"pod-{n}", count, same_node=True) for n, count in enumerate(counts) if count)
    first = pods[0]
    owner = first.owner
    again = owner is not None and owner.kind in RECREATING
    deadline = first.spec.active_deadline_seconds
    requests = constraint.requests
    if len({count for count in counts if count}) == 1:  # else no amount is that of every pod
        requests = tuple(sorted((*requests, (constraint.resource, max(counts)))))
    required = level_of(declared, REQUIRED_TOPOLOGY)
    dataset, dataset_gib = dataset_of(declared)
    if required is None and any(pod.spec.devices is not None and pod.spec.devices.channel for pod in pods):
        required = Level.ISLAND  # a ComputeDomain's channels connect nodes of one NVLink domain
    return JobSpec(
        declared.name,
        (declared.key,),
        ranks,
        queue=declared.label(QUEUE) or first.metadata.label(QUEUE, "default"),
        time_limit_seconds=seconds_of(declared, TIME_LIMIT, float(deadline) if deadline else None),
        restartable=flag_of(declared, RESTARTABLE) and again,
        preemptible=flag_of(declared, PREEMPTIBLE) and (again or not flag_of(declared, RESTARTABLE)),
        grace_seconds=float(max(pod.spec.termination_grace_period_seconds for pod in pods)),
        restart_cost_seconds=seconds_of(declared, RESTART_COST, 10.0) or 0.0,
        checkpoint_interval_seconds=seconds_of(declared, CHECKPOINT_INTERVAL, None),
        max_retries=_RETRIES_BY_OWNER if owner is not None else 0,
        priority=max(pod.spec.priority for pod in pods),
        required_level=required,
        preferred_level=None if required is not None else level_of(declared, PREFERRED_TOPOLOGY),
        workload=declared.annotation(WORKLOAD),
        groups=groups,
        constraint=constraint.name,
        requests=requests,
        array_parallel=count_of(declared, ARRAY_PARALLEL),
        dataset=dataset,
        dataset_gib=dataset_gib,
    )


def ranks_of(pods: Sequence[Pod]) -> list[range]:
    """Return the range of ranks of each pod; an empty range for a pod without GPUs."""
    found, first = [], 0
    for pod in pods:
        count = slots_of(pod)
        found.append(range(first, first + count))
        first += count
    return found


# --- nodes -----------------------------------------------------------------------------------------------------------


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())


def allocatable_of(node: Node) -> dict[str, int]:
    return amounts(node.status.allocatable)


def resource_of(node: Node) -> str:
    """Return the accelerator whose units are the node's slots: the most frequent one; '' if the node has none."""
    held = {name: count for name, count in allocatable_of(node).items() if is_accelerator(name) and count}
    return max(sorted(held), key=lambda name: held[name], default="")


def node_seen(
    node: Node,
    slots: int,
    refuses: tuple[str, ...],
    labels: TopologyLabels,
    limits: tuple[Limit, ...] = (),
    free: tuple[tuple[str, int], ...] = (),
    accelerators: Collection[str] | None = None,
) -> NodeSeen:
    """Return the node, converted to the cycle's type, with this number of slots. free: see ``cluster.Node.free``.

    accelerators: resources whose units are the node's slots; None: those of its status. A node with MIG profiles of
    several kinds has the type 'PRODUCT mig-mixed', so a gang can use such nodes together whatever their profiles are. A
    node with replicas of shared GPUs has the type 'PRODUCT gpu.shared', so no gang mixes them with whole GPUs.
    """
    metadata = node.metadata
    if accelerators is None:
        accelerators = [name for name, count in allocatable_of(node).items() if is_accelerator(name) and count]
    product = metadata.label(labels.gpu_type) if labels.gpu_type else ""
    profiles = [name.partition("/")[2] for name in accelerators if name.startswith("nvidia.com/mig-") or name == SHARED]
    profile = "mig-mixed" if profiles and len(accelerators) > 1 else "".join(profiles)
    return NodeSeen(
        metadata.name,
        slots,
        present=is_ready(node) and bool(accelerators),
        gpu_type=" ".join(part for part in (product, profile) if part),
        spine=metadata.label(labels.spine) if labels.spine else "",
        rack=metadata.label(labels.rack) if labels.rack else "",
        rail=metadata.label(labels.rail) if labels.rail else "",
        island=metadata.label(labels.island) if labels.island else "",
        refuses=refuses,
        limits=limits,
        free=free,
    )


# --- queues, times ---------------------------------------------------------------------------------------------------


def with_queues(policy: core.Policy, queues: Iterable[Queue]) -> core.Policy:
    """Return the policy with the cluster's queues. It is unchanged if the cluster has no queues."""
    found = tuple(
        core.Queue(q.metadata.name, q.spec.parent, q.spec.weight, q.spec.quota, q.spec.limit, q.spec.borrow)
        for q in sorted(queues, key=lambda queue: queue.metadata.name)
    )
    return replace(policy, queues=found) if found else policy


def wall_ns(timestamp: str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 timestamp; 0 for none."""
    if not timestamp:
        return 0
    try:
        return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1e9)
    except (ValueError, OverflowError):
        return 0


def slots_written(pod: Pod) -> tuple[int, ...]:
    """Return the slots that the annotation of a bound pod contains; () if gangwatch did not bind the pod."""
    parts = pod.metadata.annotation(SLOTS).split(",")
    return tuple(slot for part in parts if (slot := whole(part)) is not None)


def is_of_job(pod: Pod, job_id: str, group: PodGroup | None) -> bool:
    """Return whether gangwatch bound the pod for this job, and not for an earlier gang of the same name.

    Earlier versions wrote no job id. A pod of theirs belongs to an earlier gang if it is older than the gang's group
    and is over or being deleted.
    """
    if written := pod.metadata.annotation(JOB):
        return written == job_id
    if group is None or not (pod.over or pod.metadata.deletion_timestamp):
        return True
    return pod.metadata.creation_timestamp >= group.metadata.creation_timestamp


def attempt_of(pod: Pod) -> int:
    """Return the attempt for which gangwatch bound the pod; 0 if it did not bind it."""
    return (whole(pod.metadata.annotation(ATTEMPT)) or 0) if pod.spec.node_name else 0
