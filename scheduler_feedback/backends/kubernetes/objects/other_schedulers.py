"""Gangs of other schedulers: recognised by annotations on pods, observed while they run, never changed. No I/O.

Gang of a pod, by the first of these that it has:

=============================================  =========================================================
annotation ``pod-group-name``                  KAI's pod grouper (KAI-Scheduler, pkg/common/constants)
annotation ``scheduling.k8s.io/group-name``    Volcano (and ``scheduling.volcano.sh/group-name``)
label ``kueue.x-k8s.io/pod-group-name``        Kueue's groups of plain pods
label ``scheduling.x-k8s.io/pod-group``        coscheduling; ``pod-group.scheduling.sigs.k8s.io[/name]`` before
``spec.schedulingGroup``                       upstream's own gangs
label ``jobset.sigs.k8s.io/jobset-name``       a JobSet, also as Kueue admits it
label ``leaderworkerset.sigs.k8s.io/name``     a LeaderWorkerSet: each of its groups is a gang
label ``ray.io/cluster``                       a RayCluster
label ``training.kubeflow.org/job-name``       Kubeflow's jobs
the pod's controller                           any other owner of several pods: a Job, a StatefulSet
=============================================  =========================================================

A pod with none of these, or of a ReplicaSet (independent serving replicas), is a gang of one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import exit_code_of
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.rank_order import rank_key
from scheduler_feedback.backends.kubernetes.objects.translate import GROUP_LABEL, slots_of, wall_ns
from scheduler_feedback.core.events import AttemptEnded, Event, Hosted, RankExit
from scheduler_feedback.core.job import JobKind, JobSpec, Slot

SETTLED_SECONDS = 3.0
"""Seconds for which all pods of a gang must run unchanged before the gang is observed. Other schedulers start the pods
of a gang one by one."""

_ANNOTATIONS = (
    ("kai", "pod-group-name"),
    ("volcano", "scheduling.k8s.io/group-name"),
    ("volcano", "scheduling.volcano.sh/group-name"),
)
_LABELS = (
    ("kueue", "kueue.x-k8s.io/pod-group-name"),
    ("podgroup", GROUP_LABEL),
    ("podgroup", "pod-group.scheduling.sigs.k8s.io"),
    ("podgroup", "pod-group.scheduling.sigs.k8s.io/name"),
    ("jobset", "jobset.sigs.k8s.io/jobset-name"),
    ("lws", "leaderworkerset.sigs.k8s.io/name"),
    ("kubeflow", "training.kubeflow.org/job-name"),
    ("raycluster", "ray.io/cluster"),
)
_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
_QUEUES = ("kai.scheduler/queue", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_MOST_NUMBERS = 20_000
"""Maximum number of gangs whose latest attempt number is kept: far more than the ended jobs that the cycle keeps."""


def gang_of(pod: Pod) -> str:
    """Return the cycle's name of the pod's gang: 'NAMESPACE.NAME.KIND'."""
    metadata = pod.metadata
    found = [(kind, metadata.annotation(key)) for kind, key in _ANNOTATIONS]
    found += [(kind, metadata.label(key)) for kind, key in _LABELS[:4]]
    if pod.spec.scheduling_group is not None:
        found.append(("podgroup", pod.spec.scheduling_group.pod_group_name))
    found += [(kind, metadata.label(key)) for kind, key in _LABELS[4:]]
    owner = pod.owner
    if owner is not None and owner.kind != "ReplicaSet":
        found.append((owner.kind.lower(), owner.name))
    kind, name = next(((kind, name) for kind, name in found if name), ("pod", metadata.name))
    if kind == "lws":
        name = f"{name}-{metadata.label(_GROUP_INDEX, '0')}"
    return f"{metadata.namespace}.{name}.{kind}"


def queue_of(pod: Pod) -> str:
    """Return the queue of another scheduler that the pod's labels name; '' for none."""
    return next((found for key in _QUEUES if (found := pod.metadata.label(key))), "")


@dataclass(slots=True)
class _Member:
    """A pod of an observed gang. A pod that ended with exit code 0 stays a member until the gang ends."""

    pod: Pod
    slots: tuple[int, ...]
    exit_code: int | None = None


@dataclass(slots=True)
class _Gang:
    """A gang of another scheduler."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """Bound pods that have not ended, by uid."""

    members: dict[str, _Member] = field(default_factory=dict)
    """Pods of the gang's attempt in the cycle's state, by uid; empty if there is no attempt."""

    attempt: int = 0
    since: float = 0.0
    """Time of the last change of the gang's pods or their phase, in seconds of a monotonic clock."""


class ExternalGangs:
    """All bound GPU pods, of every scheduler. Uses the cache's lock."""

    def __init__(self, cache: InformerCache, settled_seconds: float = SETTLED_SECONDS) -> None:
        self._cache, self._settled_seconds = cache, settled_seconds
        self._gangs: dict[str, _Gang] = {}
        self._unsettled: set[str] = set()
        self._slots: dict[str, tuple[int, ...]] = {}  # by uid
        self._taken: dict[str, set[int]] = {}  # by node
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._pending: list[Event] = []

    # --- from the watch ----------------------------------------------------------------------------------------------

    def pod_changed(self, before: Pod | None, after: Pod | None, now: float) -> None:
        """Update the gangs after a pod has changed. now: seconds of a monotonic clock."""
        with self._cache.lock:
            if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
                self._gone(before, None, now)
            if after is None or not after.spec.node_name:
                return
            if after.over:
                self._gone(after, exit_code_of(after), now)
            elif slots_of(after):
                self._runs(after, now)

    def _runs(self, pod: Pod, now: float) -> None:
        uid, name = pod.metadata.uid, gang_of(pod)
        gang = self._gangs.setdefault(name, _Gang())
        known = gang.pods.get(uid)
        gang.pods[uid] = pod
        if known is not None and known.status.phase == pod.status.phase:
            return
        if known is None:
            self._number(pod)
        gang.since = now
        self._unsettled.add(name)

    def _gone(self, pod: Pod, exit_code: int | None, now: float) -> None:
        """Remove a pod that no longer uses its node. exit_code: None if the pod has disappeared."""
        name, uid = gang_of(pod), pod.metadata.uid
        gang = self._gangs.get(name)
        if gang is None or gang.pods.pop(uid, None) is None:
            return
        self._taken[pod.spec.node_name].difference_update(self._slots.pop(uid, ()))
        member = gang.members.get(uid)
        self._cache.release(uid)
        if member is not None:
            member.exit_code = exit_code
            if exit_code != 0 or not gang.pods:
                self._end(name, gang)
        gang.since = now
        self._unsettled.add(name)
        if not gang.pods and not gang.members:
            del self._gangs[name]

    def _number(self, pod: Pod) -> None:
        """Assign the pod the lowest free slot numbers of its node. Only the number of slots matters."""
        taken = self._taken.setdefault(pod.spec.node_name, set())
        count = slots_of(pod)
        free = (number for number in range(len(taken) + count) if number not in taken)
        slots = tuple(number for number, _ in zip(free, range(count), strict=False))
        taken.update(slots)
        self._slots[pod.metadata.uid] = slots
        self._cache.hold(pod.metadata.uid, Place("", 0, pod.spec.node_name, range(0)))

    # --- for the core ------------------------------------------------------------------------------------------------

    def events(self, holding: Iterable[tuple[str, int]], now: float) -> list[Event]:
        """Return the events that the cycle does not have yet. holding: the attempts that hold slots in the cycle's
        state.
        """
        with self._cache.lock:
            events, self._pending = self._pending, []
            for job_id, attempt in holding:
                gang = self._gangs.get(job_id)
                self._numbers[job_id] = max(self._numbers.get(job_id, 0), attempt)
                if (gang is None or not gang.members or gang.attempt != attempt) and not _has_end(events, job_id):
                    events.append(AttemptEnded(job_id, attempt, (), reason="it was not observed for a while"))
            for name in sorted(self._unsettled):
                gang = self._gangs.get(name)
                if gang is not None and now - gang.since < self._settled_seconds:
                    continue
                self._unsettled.discard(name)
                if gang is not None:
                    events += self._settle(name, gang)
            return events

    def _settle(self, name: str, gang: _Gang) -> list[Event]:
        """Report a gang whose pods have not changed for a while, if all of them run."""
        if not gang.pods or any(pod.status.phase != "Running" for pod in gang.pods.values()):
            return []
        if gang.members and gang.pods.keys() <= gang.members.keys():
            return []
        events, self._pending = self._pending, []
        if gang.members:
            self._end(name, gang)
            events += self._pending
            self._pending = []
        gang.attempt = self._numbers[name] = self._numbers.pop(name, 0) + 1
        while len(self._numbers) > _MOST_NUMBERS:
            self._numbers.popitem(last=False)
        placement: list[Slot] = []
        for pod in sorted(gang.pods.values(), key=rank_key):
            uid = pod.metadata.uid
            gang.members[uid] = _Member(pod, self._slots[uid])
            ranks = range(len(placement), len(placement) + len(self._slots[uid]))
            placement += [Slot(pod.spec.node_name, slot) for slot in self._slots[uid]]
            self._cache.release(uid)
            self._cache.hold(uid, Place(name, gang.attempt, pod.spec.node_name, ranks))
        first = next(iter(gang.members.values())).pod
        began_ns = max(wall_ns(member.pod.status.start_time) for member in gang.members.values())
        return [*events, Hosted(name, gang.attempt, _spec(name, first, len(placement)), tuple(placement), began_ns)]

    def _end(self, name: str, gang: _Gang) -> None:
        """End the gang's attempt, because its pods have changed or ended."""
        exits, first = [], 0
        for member in gang.members.values():
            exits += [RankExit(rank, member.exit_code) for rank in range(first, first + len(member.slots))]
            first += len(member.slots)
        self._pending.append(AttemptEnded(name, gang.attempt, tuple(exits), reason="its pods changed or ended"))
        for uid, member in gang.members.items():
            self._cache.release(uid)
            if uid in gang.pods:
                self._cache.hold(uid, Place("", 0, member.pod.spec.node_name, range(0)))
        gang.members = {}

    def concerned(self, job_id: str, node: str) -> list[Pod]:
        """Return the gang's pods on the node; without a job id, every GPU pod there."""
        with self._cache.lock:
            gangs = self._gangs.values() if not job_id else [self._gangs.get(job_id, _Gang())]
            return [pod for gang in gangs for pod in gang.pods.values() if pod.spec.node_name == node]


def _has_end(events: Iterable[Event], job_id: str) -> bool:
    return any(isinstance(event, AttemptEnded) and event.job_id == job_id for event in events)


def _spec(name: str, pod: Pod, ranks: int) -> JobSpec:
    """Return the specification of an external gang."""
    queue = queue_of(pod) or "default"
    short = name.partition(".")[2].rpartition(".")[0]
    return JobSpec(short, (f"{pod.spec.scheduler_name}: {name}",), ranks, queue=queue, kind=JobKind.EXTERNAL)
