"""An attempt: the pods of a gang that were bound together, and the state of each. No I/O.

A member is a place in the gang: its ranks, its node, and its current pod. A deleted pod leaves a hole. The owner's
replacement pod fills it, so a gang keeps its slots when it loses a member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from sys import intern
from typing import Annotated

import msgspec

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of, summed
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.rank_order import rank_key, whole
from scheduler_feedback.backends.kubernetes.objects.translate import (
    JOB,
    PLACEMENT,
    RANK,
    WORLD_SIZE,
    attempt_of,
    is_of_job,
    ranks_of,
    slots_of,
    slots_written,
)
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event, RankExit, RankFailed, RankSeen
from scheduler_feedback.core.job import Slot

UNKNOWN_FAILURE = 1
"""Exit code of a failed pod that has none (after a deadline or an eviction)."""


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Place(msgspec.Struct, array_like=True):
    node: str
    rank: _Count
    slots: tuple[_Count, ...]


class _Written(msgspec.Struct):
    attempt: _Count
    pods: dict[str, _Place]
    job: str = ""


_written = msgspec.json.Decoder(_Written)


class Phase(StrEnum):
    BINDING = "binding"  # or waiting for its pods
    BOUND = "bound"
    UNDOING = "undoing"  # not all of it could be bound
    STOPPING = "stopping"


@dataclass(slots=True)
class Member:
    """One pod of the gang and its ranks. The pod may be missing."""

    name: str
    """'NAMESPACE/NAME' of the member's current or latest pod."""

    uid: str
    """Uid of the member's pod; '' while the pod is missing."""

    node: str
    ranks: range
    slots: tuple[int, ...]
    """Slots of the pod, one for each of its ranks."""

    bound: bool = False
    exit_code: int | None = None
    finished_at: str = ""
    """When the first failed container of a pod that is over ended (RFC 3339, UTC); '' if unknown."""
    over: bool = False

    @property
    def hole(self) -> bool:
        return not self.uid


@dataclass(slots=True)
class Attempt:
    """One attempt of a gang, with its pods and their states."""

    job_id: str
    number: int
    """Number of the attempt in the cycle's state."""

    key: str
    """Key of the attempt's gang: 'NAMESPACE/NAME' of its group, or of its only pod."""

    placement: tuple[Slot, ...]
    phase: Phase = Phase.BINDING
    members: list[Member] = field(default_factory=list)
    reported: bool = False
    """Whether the cycle has received the event that all pods run."""

    ran: bool = False
    why_stopped: str = ""
    failure: str = ""
    action_id: str = ""
    """Id of the start action; '' if the attempt was adopted after a restart."""

    probe: bool = False
    """Whether the attempt's pod is a probe."""

    beyond: bool = False
    """Whether the attempt is of a single pod that exceeds its group's least number of pods."""

    network_class: str = ""
    """Number of the priority class of its network traffic; '' if it has none."""


class DoesNotFitError(Exception):
    """A pod of the gang cannot go where the cycle placed it. node: '' if no single node is the cause.

    passing: whether pods that have ended still have devices there, which the claim controller is about to free.
    """

    def __init__(self, why: str, node: str = "", constraint: str = "", *, passing: bool = False) -> None:
        super().__init__(why)
        self.node, self.constraint, self.passing = node, constraint, passing


def assign(cache: InformerCache, pods: Sequence[Pod], placement: Sequence[Slot]) -> list[Member]:
    """Assign each pod of a gang to a node and reserve its resources in the cache; on error change nothing.

    GPU pods get the slots that the cycle has chosen. A pod without GPUs gets the first node of the gang with enough
    room, else any node with enough room. Raises DoesNotFitError.
    """
    members: list[Member] = []
    with cache.lock:
        try:
            for pod, ranks in zip(pods, ranks_of(pods), strict=True):
                if len(ranks):
                    members.append(_assign(cache, pod, ranks, placement))
            for pod, ranks in zip(pods, ranks_of(pods), strict=True):
                if not len(ranks):
                    near = dict.fromkeys(member.node for member in members)
                    members.append(_assign_anywhere(cache, pod, near))
        except DoesNotFitError:
            for member in members:
                cache.unassume(member.uid)
            raise
    return members


def _assign(cache: InformerCache, pod: Pod, ranks: range, placement: Sequence[Slot]) -> Member:
    if ranks.stop > len(placement):
        raise DoesNotFitError(f"it has {ranks.stop} ranks now, but had {len(placement)} when it was placed")
    slots = placement[ranks.start : ranks.stop]
    nodes = {slot.node for slot in slots}
    if len(nodes) > 1:
        raise DoesNotFitError(f"pod {pod.metadata.name} cannot be on several nodes: {', '.join(sorted(nodes))}")
    return _put(cache, pod, nodes.pop(), ranks, tuple(slot.slot for slot in slots))


def _assign_anywhere(cache: InformerCache, pod: Pod, near: Iterable[str]) -> Member:
    constraint = constraint_of(pod)
    for node in (*near, *cache.nodes):
        if not cache.why_not(constraint, node):
            return _put(cache, pod, node, range(0), ())
    raise DoesNotFitError(f"no node can take pod {pod.metadata.name}, which requests no GPU")


def _put(cache: InformerCache, pod: Pod, node: str, ranks: range, slots: tuple[int, ...]) -> Member:
    constraint = constraint_of(pod)
    why, free = cache.fit(constraint, node)
    if why:  # the cycle gets the reason with the next report of the node
        raise DoesNotFitError(f"pod {pod.metadata.name} does not fit on {node}: {why}")
    if len(ranks) > free:
        why = f"{constraint.resource}: {len(ranks)} requested, {free} free"
        raise DoesNotFitError(f"pod {pod.metadata.name} does not fit on {node}: {why}", node, constraint.name)
    if why := cache.assume(pod, node):
        passing = cache.is_releasing(pod, node)
        message = f"pod {pod.metadata.name} does not fit on {node}: {why}"
        raise DoesNotFitError(message, node, constraint.name, passing=passing)
    return Member(pod.metadata.key, pod.metadata.uid, node, ranks, slots)


def requests_by_node(pods: Sequence[Pod], placement: Sequence[Slot]) -> dict[str, dict[str, int]]:
    """Return what the gang's GPU pods request in total on each node of their ranks. placement: slots, by rank.

    An elastic gang that grows does not have all of its pods yet: the missing ones equal the others.
    """
    by_node: dict[str, dict[str, int]] = {}
    first, each = next(((pod, count) for pod in pods if (count := slots_of(pod))), (None, 1))
    if first is not None:
        missing = (len(placement) - sum(map(slots_of, pods))) // each
        pods = [*pods, *(first for _ in range(missing))]
    for pod, ranks in zip(pods, ranks_of(pods), strict=True):
        if len(ranks) and ranks.start < len(placement):
            node = placement[ranks.start].node
            by_node[node] = summed((by_node.get(node, {}), requests_of(pod)))
    return by_node


def place_of(attempt: Attempt, member: Member) -> Place:
    """Return the place of the member's pod in its gang."""
    return Place(attempt.job_id, attempt.number, member.node, member.ranks)


# --- reading back ------------------------------------------------------------------------------------------------


def written(attempt: Attempt) -> str:
    """Return the annotation that stores the placement on the group before any pod is bound: '{"attempt": 1, "pods":
    {...}, "job": "..."}'.

    A controller that has only the API's objects continues from this annotation.
    """
    pods = {m.name.partition("/")[2]: _Place(m.node, m.ranks.start, m.slots) for m in attempt.members}
    return msgspec.json.encode(_Written(attempt.number, pods, attempt.job_id)).decode()


def placement_of(
    group: PodGroup | None, job_id: str, number: int | None = None
) -> tuple[int, dict[str, tuple[str, range, tuple[int, ...]]]]:
    """Return (attempt, planned place of each pod) from the group's annotation; (0, {}) if the annotation is missing,
    unreadable, of another attempt, or copied from an earlier group.
    """
    text = group.metadata.annotation(PLACEMENT) if group is not None else ""
    try:
        read = _written.decode(text) if text else _Written(0, {})
    except (msgspec.MsgspecError, RecursionError):  # every user who may create groups may write it
        read = _Written(0, {})
    if read.job not in ("", job_id) or (number is not None and read.attempt != number):
        return 0, {}
    return read.attempt, {
        name: (intern(place.node), range(place.rank, place.rank + len(place.slots)), place.slots)
        for name, place in read.pods.items()
    }


def adopt(job_id: str, number: int, key: str, pods: Sequence[Pod], group: PodGroup | None) -> Attempt | None:
    """Rebuild the attempt from the API's objects after a restart; None if no attempt was begun.

    Its phase is BINDING if some of its pods are still to be bound. Pods of an earlier gang of the same name are not
    adopted, except if all of them still run: then only the group was deleted and created again.
    """
    namespace = key.partition("/")[0]
    bound = sorted((pod for pod in pods if attempt_of(pod) == number), key=rank_key)
    own = [pod for pod in bound if is_of_job(pod, job_id, group)]
    _, places = placement_of(group, job_id, number)
    bound = own if own or places else _left_running(bound)
    by_name = {pod.metadata.name: pod for pod in (*bound, *(pod for pod in pods if not pod.spec.node_name))}
    if not places:
        places = {pod.metadata.name: (pod.spec.node_name, _ranks_written(pod), slots_written(pod)) for pod in bound}
    if not places:
        return None
    attempt = Attempt(job_id, number, key, ())
    substitutes = [pod for pod in bound if pod.metadata.name not in places]  # replacements of lost pods
    for name, (node, ranks, slots) in places.items():
        member = Member(f"{namespace}/{name}", "", node, ranks, slots)
        pod = by_name.get(name) or next((one for one in substitutes if _ranks_written(one) == ranks), None)
        if pod is not None and (pod.over or pod.spec.node_name in ("", node)):
            member.name, member.uid = pod.metadata.key, pod.metadata.uid
            member.bound = bool(pod.spec.node_name)
        attempt.members.append(member)
    placed = {
        rank: Slot(member.node, slot)
        for member in attempt.members
        for rank, slot in zip(member.ranks, member.slots, strict=True)
    }
    attempt.placement = tuple(placed[rank] for rank in sorted(placed))
    waiting = any(not member.bound and member.uid for member in attempt.members)
    attempt.phase = Phase.BINDING if waiting else Phase.BOUND
    return attempt


def last_attempt(group: PodGroup | None, pods: Iterable[Pod], job_id: str) -> int:
    """Return the number of the job's last attempt, from its group and its pods; 0 if it has begun none."""
    own = (pod for pod in pods if is_of_job(pod, job_id, group))
    return max([placement_of(group, job_id)[0], *map(attempt_of, own)])


def inherited_attempt(pods: Sequence[Pod]) -> int:
    """Return the attempt of an earlier gang of the same name whose pods, `pods`, all still run; 0 if there is none."""
    numbers = {attempt_of(pod) for pod in pods}
    return numbers.pop() if len(numbers) == 1 and _left_running(pods) else 0


def _left_running(pods: Sequence[Pod]) -> list[Pod]:
    """Return these pods if they are all pods of one earlier gang and none of them is ending; else []."""
    if any(pod.over or pod.metadata.deletion_timestamp for pod in pods):
        return []
    jobs = {pod.metadata.annotation(JOB) for pod in pods}
    sizes = {size for pod in pods if (size := whole(pod.metadata.annotation(WORLD_SIZE)))}
    return list(pods) if len(jobs) == 1 and sizes <= {sum(len(slots_written(pod)) for pod in pods)} else []


def continues(attempt: Attempt, pods: Iterable[Pod], placement: Sequence[Slot]) -> bool:
    """Return whether this adopted attempt is a start with this placement that an earlier controller began.

    Pods that are being deleted belong to an attempt before it: a controller that lost its state counts from 1 again.
    """
    living = {pod.metadata.uid for pod in pods if not pod.metadata.deletion_timestamp}
    nodes = [slot.node for slot in attempt.placement]
    return nodes == [slot.node for slot in placement] and any(member.uid in living for member in attempt.members)


def _ranks_written(pod: Pod) -> range:
    first = whole(pod.metadata.annotation(RANK)) or 0
    return range(first, first + len(slots_written(pod)))


def scan_attempt(attempt: Attempt, pods: Mapping[str, Pod]) -> list[Event]:
    """Update a bound attempt and return the events that the cycle does not have yet. pods: the gang's pods, by uid."""
    for member in attempt.members:
        if member.hole or member.over:
            continue
        pod = pods.get(member.uid)
        if pod is None or (pod.over and pod.metadata.deletion_timestamp and exit_code_of(pod)):
            member.uid = ""  # it was killed by its deletion, which is not a failure
        elif pod.over:
            member.over, member.exit_code, member.finished_at = True, exit_code_of(pod), _finished_at(pod)
            # It may end before it was seen running; a pod that a kubelet rejects never has a container.
            attempt.ran |= bool(pod.status.container_statuses) or not member.exit_code
    job_id, number = attempt.job_id, attempt.number
    if all(member.hole or member.over for member in attempt.members):
        if attempt.phase is Phase.STOPPING:
            return []
        return [*_failure(attempt), ended(attempt)] if attempt.ran else [ended(attempt)]
    running = [pod for m in attempt.members if (pod := pods.get(m.uid)) is not None and pod.status.phase == "Running"]
    alive = sum(1 for member in attempt.members if member.over and member.exit_code == 0) + len(running)
    if not attempt.reported and alive == len(attempt.members):
        attempt.reported = attempt.ran = True
        return [AttemptRunning(job_id, number, ranks_seen(attempt))]
    # Also of a gang that has not run as a whole: it would keep its slots for as long as a start may take.
    return _failure(attempt)


def _failure(attempt: Attempt) -> list[Event]:
    """Return the failure of the member that failed first, once. The others often fail because of it."""
    failed = [member for member in attempt.members if member.over and member.exit_code]
    if not failed or attempt.phase is not Phase.BOUND or attempt.failure:
        return []
    first = min(failed, key=lambda member: (not member.finished_at, member.finished_at))
    attempt.failure = f"pod {first.name} failed"
    rank = first.ranks.start if len(first.ranks) else 0
    return [RankFailed(attempt.job_id, attempt.number, rank, first.exit_code or UNKNOWN_FAILURE)]


def ranks_seen(attempt: Attempt) -> tuple[RankSeen, ...]:
    """Return the slot of each rank. Process ids are 0 (unknown), because the kubelet starts the processes."""
    return tuple(
        RankSeen(rank, member.node, slot, 0, 0)
        for member in attempt.members
        for rank, slot in zip(member.ranks, member.slots, strict=True)
    )


def ended(attempt: Attempt) -> AttemptEnded:
    """Return the end of the attempt with the exit code of each rank; None for ranks of a pod that has disappeared."""
    exits = tuple(
        RankExit(rank, member.exit_code if member.over else None) for member in attempt.members for rank in member.ranks
    )
    launchers = [member for member in attempt.members if not len(member.ranks)]
    reason = next((f"pod {m.name} exited with {m.exit_code}" for m in launchers if m.exit_code), "")
    stopped = bool(attempt.why_stopped)
    return AttemptEnded(
        attempt.job_id,
        attempt.number,
        exits,
        started=attempt.ran,
        reason=attempt.failure or reason,
        signalled=stopped,
        why=attempt.why_stopped,
    )


def exit_code_of(pod: Pod) -> int:
    """Return the exit code of the first container that failed; 0 if the pod succeeded."""
    if pod.status.phase == "Succeeded":
        return 0
    for status in pod.status.container_statuses or ():
        if status.state.terminated is not None and status.state.terminated.exit_code:
            return status.state.terminated.exit_code
    return UNKNOWN_FAILURE


def _finished_at(pod: Pod) -> str:
    """Return when the first container that failed ended; '' if none failed, or its end is unknown."""
    ends = [status.state.terminated for status in pod.status.container_statuses or () if status.state.terminated]
    return min((end.finished_at for end in ends if end.exit_code and end.finished_at), default="")


def rejected(attempt: Attempt, pods: Mapping[str, Pod]) -> str:
    """Return why a kubelet rejected a pod that was bound to its node; '' if none did.

    A kubelet that rejects a pod sets its phase to Failed and a reason before it starts any container
    (pkg/kubelet/kubelet.go, rejectPod).
    """
    for member in attempt.members:
        pod = pods.get(member.uid)
        if pod is not None and pod.status.phase == "Failed" and not pod.status.container_statuses and pod.status.reason:
            return f"{member.node} rejected pod {member.name}: {pod.status.reason} {pod.status.message}".strip()
    return ""


def renumbered(attempts: Collection[Attempt], slots_of: Mapping[str, int]) -> list[AttemptRunning]:
    """Assign new slot numbers to attempts whose slots no longer exist on their node. Only the number of slots matters.

    slots_of: nodes that have changed, with their current number of slots.
    """
    on: dict[str, list[Member]] = {}
    for attempt in attempts:
        for member in attempt.members:
            on.setdefault(member.node, []).append(member)
    moved: set[int] = set()
    for node, slots in slots_of.items():
        members = on.get(node, [])
        if all(slot < slots for member in members for slot in member.slots):
            continue
        number = 0
        for member in members:
            member.slots = tuple(range(number, number + len(member.ranks)))
            number += len(member.ranks)
            moved.add(id(member))
    changed: list[AttemptRunning] = []
    for attempt in attempts:
        if attempt.reported and any(id(member) in moved for member in attempt.members):
            attempt.placement = tuple(Slot(m.node, slot) for m in attempt.members for slot in m.slots)
            changed.append(AttemptRunning(attempt.job_id, attempt.number, ranks_seen(attempt)))
    return changed
