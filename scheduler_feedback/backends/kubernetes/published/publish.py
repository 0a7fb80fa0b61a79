"""The cycle's state, published for people and other schedulers: on nodes, groups and pods, and as events.

Once a second the publisher queries the cycle and writes what differs, up to a limit a second. Between these passes, it
publishes why new gangs are pending. Text that changes all the time is not rewritten each time: the reason of a wait is
written again when its kind changes, when the expected start moves by more than a tenth, or once a minute. A write that
the server refuses is repeated after a pause, which doubles up to a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from scheduler_feedback.backends.kubernetes.api_server.client import MERGE_PATCH, STRATEGIC_PATCH, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.lease import while_leading
from scheduler_feedback.backends.kubernetes.objects.declared_keys import EXPECTED_START, without_effect
from scheduler_feedback.backends.kubernetes.objects.objects import COSCHEDULING, Metadata, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import Gang
from scheduler_feedback.backends.kubernetes.published.advice import Accusation, Advice, accusations_of
from scheduler_feedback.backends.kubernetes.published.back_off import BackOff
from scheduler_feedback.backends.kubernetes.published.incomplete import (
    Since,
    what_is_missing,
    why_not_running,
    without_group,
)
from scheduler_feedback.backends.kubernetes.published.marks import Marks, changes, marks_of
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.queue.waiting_reasons import what_binds

PERIOD_SECONDS = 1.0
NEW_SECONDS = 0.2
"""Pause between two passes for new gangs. With a pass a second, the reason of a wait took up to a second to appear."""
WRITES_A_PERIOD = 64
"""Maximum number of objects written a second: changes of all nodes at once must not overload the API server."""

MOST_QUERIED = 256
"""Maximum number of pending gangs whose reason is queried at once. Each query delays the next cycle."""

BEING_BOUND_NS = 5_000_000_000
"""Starts that are shorter than this are not published: such a start ends before anyone reads its status, and writing
the status costs the API server more than the binding."""

STARTING = "Starting"
_WARNINGS = ("Refused", "Capacity", "Failed", "NoGroup", "NoEffect")
"""Reasons of events that need the user's attention."""

_AGAIN_NS = 60_000_000_000
_log = logging.getLogger(__name__)

Write = tuple[str, Callable[[], Awaitable[None]]]
"""A write: key of the object for pauses after refusals ('' for none), and the request. Nodes' keys have the prefix
_NODE; other keys are job ids and uids of pods."""

_NODE = "node "


@dataclass(frozen=True, slots=True)
class GangStatus:
    """Scheduling status of a gang."""

    scheduled: bool
    """Whether all pods of the gang have a node."""

    reason: str
    """Reason of the condition or event, one word."""

    message: str
    expected_ns: int | None = None
    """Expected time of the gang's start; None if unknown."""


@dataclass(frozen=True, slots=True)
class StateView:
    """Part of the cycle's state that is published, read in one query."""

    marks: dict[str, Marks]
    statuses: dict[str, GangStatus]
    now_ns: int
    accusations: tuple[Accusation, ...] = ()
    started: frozenset[str] = frozenset()
    """Ids of the queried jobs that are not pending."""


def view_of(state: State, job_ids: Iterable[str], *, evicts: bool = False, nodes: bool = True) -> StateView:
    """Return the part of the state that is published. Runs between two cycles and changes nothing.

    nodes: whether to include marks of nodes and accusations.
    """
    marks = {name: marks_of(node, evicts=evicts) for name, node in state.nodes.items()} if nodes else {}
    statuses: dict[str, GangStatus] = {}
    started: list[str] = []
    for job_id in job_ids:
        job = state.jobs.get(job_id)
        if job is None:
            continue
        if job.state is not JobState.PENDING:
            started.append(job_id)
        if job.state is JobState.PENDING:
            word, why = what_binds(state, job)
            reason = "".join(part.capitalize() for part in word.split("-")) or "Waits"
            statuses[job_id] = GangStatus(False, reason, why or job.failure or "pending", job.expected_start_ns)
        elif job.state.ended:
            statuses[job_id] = GangStatus(False, job.state.value.capitalize(), job.end_reason)
        elif job.state is JobState.STARTING:
            if state.now_ns - (job.attempt_started_ns or 0) < BEING_BOUND_NS:
                continue
            statuses[job_id] = GangStatus(False, STARTING, f"attempt {job.attempt} is being bound")
        else:
            message = f"all pods of attempt {job.attempt} have their places"
            if len(job.ranks) != job.spec.ranks:
                message += f"; it runs with {len(job.ranks)} of the {job.spec.ranks} ranks that it asks for"
            statuses[job_id] = GangStatus(True, "Scheduled", message)
    return StateView(marks, statuses, state.now_ns, accusations_of(state) if nodes else (), frozenset(started))


def worth_writing(before: GangStatus | None, after: GangStatus, written_ns: int, now_ns: int) -> bool:
    """Return whether the published status is out of date."""
    if before is None or (before.scheduled, before.reason) != (after.scheduled, after.reason):
        return True
    if before == after:
        return False
    if (before.expected_ns is None) is not (after.expected_ns is None):
        return True
    moved_ns = abs(after.expected_ns - before.expected_ns) if before.expected_ns and after.expected_ns else 0
    return moved_ns * 10 > abs((before.expected_ns or 0) - written_ns) or now_ns - written_ns >= _AGAIN_NS


class Publisher:
    """Publisher of the cycle's state. It runs in the backend's event loop.

    ask: queries the cycle's state between two cycles. gangs: returns all gangs. advice: writer of further advice for
    another scheduler. evicts: whether quarantine evicts pods.
    """

    def __init__(
        self,
        client: Client,
        cache: InformerCache,
        gangs: Callable[[], list[Gang]],
        ask: Callable[[Callable[[State], StateView]], Future[StateView]],
        may_act: Callable[[], bool],
        advice: Advice | None = None,
        *,
        evicts: bool = False,
    ) -> None:
        self._client, self._cache, self._gangs, self._ask, self._may_act = client, cache, gangs, ask, may_act
        self._advice, self._evicts = advice, evicts
        self._written: dict[str, tuple[GangStatus, int]] = {}
        self._evaluated: set[str] = set()  # gangs that a pass for new gangs has evaluated
        self._incomplete, self._without_group = Since(), Since()
        self._back_off = BackOff()
        self._cursor = 0
        self._full_seconds = -PERIOD_SECONDS  # monotonic time of the last pass over all gangs and nodes
        self._left = 0  # number of writes until the next one
        self.writes = self.refusals = 0

    async def run(self) -> None:
        """Publish changes until cancelled."""
        await while_leading(self._next_pass, self._may_act, NEW_SECONDS, "publishing")

    async def _next_pass(self) -> None:
        if (now := time.monotonic()) - self._full_seconds >= PERIOD_SECONDS:
            self._full_seconds = now
            await self.once()
        else:
            await self.publish_new()

    async def once(self) -> None:
        """Read the state once, compare it with what is published, and write the differences."""
        gangs = self._gangs()
        asked = self._next(gangs)
        job_ids = [gang.job_id for gang in asked if not gang.refused]
        found = await asyncio.wrap_future(self._ask(lambda state: view_of(state, job_ids, evicts=self._evicts)))
        found.statuses.update(self._missing(gangs, found))
        writes = [
            *self._node_writes(found),
            *self._gang_writes(asked, found),
            *self._pod_writes(found),
        ][:WRITES_A_PERIOD]
        if self._advice is not None:
            advice = await self._advice.writes(found.accusations, WRITES_A_PERIOD - len(writes))
            writes += [("", write) for write in advice]
        self._left = WRITES_A_PERIOD - len(writes)
        await self._write(writes)
        known = {gang.job_id for gang in gangs} | self._without_group.keys()
        for job_id in [job_id for job_id in self._written if job_id not in known]:
            del self._written[job_id]
        self._evaluated &= known
        self._back_off.keep(known | {f"{_NODE}{name}" for name in found.marks})

    async def publish_new(self) -> None:
        """Publish why gangs are pending or refused of which nothing has been published, within the limit of writes."""
        new = [one for one in self._gangs() if one.job_id not in self._written and one.job_id not in self._evaluated]
        if not new or self._left <= 0:
            return
        asked = new[:MOST_QUERIED]
        job_ids = [gang.job_id for gang in asked if not gang.refused]
        found = await asyncio.wrap_future(self._ask(lambda state: view_of(state, job_ids, nodes=False)))
        self._evaluated |= {gang.job_id for gang in asked if gang.refused} | found.started | found.statuses.keys()
        writes = self._gang_writes([gang for gang in asked if gang.job_id not in found.started], found)[: self._left]
        self._left -= len(writes)
        await self._write(writes)

    async def _write(self, writes: Sequence[Write]) -> None:
        """Run these writes at once. Raises the first error that is no refusal."""
        outcomes = await asyncio.gather(*(write() for _, write in writes), return_exceptions=True)
        errors: list[BaseException] = []
        for (key, _), outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, RefusedError):
                self.refusals += 1
                seconds = self._back_off.refused(key) if key else 0.0
                _log.info("publishing: %s%s", outcome, f"; next try in {seconds:g} s" if key else "")
            elif isinstance(outcome, BaseException):
                errors.append(outcome)
            else:
                self.writes += 1
                self._back_off.accepted(key)
        if errors:
            raise errors[0]

    def _next(self, gangs: list[Gang]) -> list[Gang]:
        """Return the gangs to publish in this period of one second: new gangs first, then the others in rotation."""
        new = [gang for gang in gangs if gang.job_id not in self._written][:MOST_QUERIED]
        if len(gangs) <= MOST_QUERIED:
            return gangs
        self._cursor %= len(gangs)
        turn = [*gangs[self._cursor :], *gangs[: self._cursor]][: MOST_QUERIED - len(new)]
        self._cursor += len(turn)
        return list({gang.job_id: gang for gang in (*new, *turn)}.values())

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node_writes(self, found: StateView) -> list[Write]:
        writes: list[Write] = []
        with self._cache.lock:
            for name, node in self._cache.nodes.items():
                body, status = changes(node, found.marks.get(name, Marks()))
                key = f"{_NODE}{name}"
                if (body is not None or status is not None) and not self._back_off.pauses(key):
                    writes.append((key, partial(self._mark, name, body, status)))
        return writes

    async def _mark(self, name: str, body: dict[str, Any] | None, status: dict[str, Any] | None) -> None:
        if body is not None:
            await self._client.patch(f"/api/v1/nodes/{name}", body, MERGE_PATCH)
        if status is not None:
            for condition in status["status"]["conditions"]:
                if "$patch" not in condition:
                    condition["lastTransitionTime"] = condition["lastHeartbeatTime"] = timestamp()
            await self._client.patch(f"/api/v1/nodes/{name}/status", status, STRATEGIC_PATCH)

    # --- gangs -------------------------------------------------------------------------------------------------------

    def _gang_writes(self, gangs: list[Gang], found: StateView) -> list[Write]:
        writes: list[Write] = []
        later: list[Write] = []  # running gangs: the reasons of pending ones are more urgent
        for gang in gangs:
            gang_status = found.statuses.get(gang.job_id)
            if gang.refused:
                gang_status = GangStatus(False, "Refused", gang.refused)
            if gang_status is None or self._back_off.pauses(gang.job_id):
                continue
            if gang_status.reason == STARTING and (why := why_not_running(self._cache.pods_of(gang.key))):
                gang_status = replace(gang_status, message=why)
            before, written_ns = self._written.get(gang.job_id, (None, 0))
            if worth_writing(before, gang_status, written_ns, found.now_ns):
                write = partial(self._write_status, gang, gang_status, before, found.now_ns)
                (later if gang_status.scheduled else writes).append((gang.job_id, write))
        return [*writes, *later]

    def _missing(self, gangs: list[Gang], found: StateView) -> dict[str, GangStatus]:
        """Return the status of each gang that the cycle does not have, because it has been incomplete for a while."""
        missing: dict[str, str] = {}
        with self._cache.lock:
            for gang in gangs:
                group = None if gang.spec is not None else self._cache.groups.get(gang.key)
                if group is None or gang.job_id in found.statuses or gang.job_id in found.started:
                    continue
                if why := what_is_missing(gang, group, self._cache.scheduler):
                    missing[gang.job_id] = why
        lasting = self._incomplete.lasting(missing, time.monotonic())
        return {job_id: GangStatus(False, "Incomplete", missing[job_id]) for job_id in lasting}

    def _pod_writes(self, found: StateView) -> list[Write]:
        """Return the writes of the reason on pods whose group has been absent for a while, once on each pod."""
        pods = {pod.metadata.uid: (pod, why) for pod, why in without_group(self._cache)}
        writes: list[Write] = []
        for uid in self._without_group.lasting(pods, time.monotonic()):
            if uid not in self._written and not self._back_off.pauses(uid):
                pod, why = pods[uid]
                write = partial(self._write_no_group, pod, GangStatus(False, "NoGroup", why), found.now_ns)
                writes.append((uid, write))
        return writes

    async def _write_no_group(self, pod: Pod, status: GangStatus, now_ns: int) -> None:
        await self._write_pod_status(pod, status, None)
        self._written[pod.metadata.uid] = (status, now_ns)

    async def _write_status(self, gang: Gang, gang_status: GangStatus, before: GangStatus | None, now_ns: int) -> None:
        if gang.grouped:
            group = self._cache.groups.get(gang.key)
            if group is not None:
                await self._write_group_status(group, gang_status, before)
        elif not gang_status.scheduled and gang.pods and not gang.pods[0].spec.node_name:
            await self._write_pod_status(gang.pods[0], gang_status, before)
        self._written[gang.job_id] = (gang_status, now_ns)
        if before is None and gang.pods:
            await self._warn(gang)

    async def _warn(self, gang: Gang) -> None:
        """Write an event about a label or annotation of the gang that has no effect, for example a mistyped one."""
        group = self._cache.groups.get(gang.key) if gang.grouped else None
        kind, about = ("Pod", gang.pods[0]) if group is None else ("PodGroup", group)
        if why := without_effect(about.metadata):
            api = "v1" if group is None else group.of_api
            await self._event(_reference(kind, about.metadata, api), GangStatus(False, "NoEffect", why))

    async def _write_group_status(self, group: PodGroup, gang_status: GangStatus, before: GangStatus | None) -> None:
        path = group.path
        condition = {
            "type": SCHEDULED,
            "status": str(gang_status.scheduled),
            "reason": gang_status.reason,
            "message": _message(gang_status),
            "lastTransitionTime": _since(group, str(gang_status.scheduled)),
        }
        status: dict[str, Any] = {"conditions": [condition]}
        if group.of_api == COSCHEDULING:
            status["phase"] = "Scheduled" if gang_status.scheduled else "Pending"
            await self._client.patch(f"{path}/status", {"status": status})
        else:  # other controllers may have their own conditions there
            await self._client.patch(f"{path}/status", {"status": status}, STRATEGIC_PATCH)
        expected = None if gang_status.expected_ns is None else timestamp(gang_status.expected_ns)
        if group.metadata.annotation(EXPECTED_START) != (expected or ""):
            await self._client.patch(path, {"metadata": {"annotations": {EXPECTED_START: expected}}})
        if before is None or before.reason != gang_status.reason:
            await self._event(_reference("PodGroup", group.metadata, group.of_api), gang_status)

    async def _write_pod_status(self, pod: Pod, gang_status: GangStatus, before: GangStatus | None) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"{gang_status.reason}: {_message(gang_status)}",
            "lastTransitionTime": pod.metadata.creation_timestamp or timestamp(),  # no pod loses its node
        }
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/status"
        await self._client.patch(path, {"status": {"conditions": [condition]}}, STRATEGIC_PATCH)
        # `kubectl describe pod` shows events, and no messages of conditions. Pods that merely wait have none: a queue
        # of thousands would cost as many writes.
        if gang_status.reason in _WARNINGS and (before is None or before.reason != gang_status.reason):
            await self._event(_reference("Pod", pod.metadata, "v1"), gang_status)

    async def _event(self, about: dict[str, str], gang_status: GangStatus) -> None:
        now, namespace = timestamp(), about["namespace"]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": namespace},
            "involvedObject": about,
            "type": "Warning" if gang_status.reason in _WARNINGS else "Normal",
            "reason": gang_status.reason,
            "message": _message(gang_status)[:1024],
            "source": {"component": "gangwatch"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(f"/api/v1/namespaces/{namespace}/events", body)


SCHEDULED = "Scheduled"
"""Type of the condition on a group that shows whether all its pods have a node."""


def _since(group: PodGroup, status: str) -> str:
    """Return when the group's condition got this status: of old, or now. A new reason or message does not change it."""
    conditions = group.status.conditions or ()
    before = next((one for one in conditions if one.type == SCHEDULED and one.status == status), None)
    return timestamp() if before is None or not before.last_transition_time else before.last_transition_time


def _message(gang_status: GangStatus) -> str:
    if gang_status.expected_ns is None:
        return gang_status.message
    return f"{gang_status.message}; expected to start at {timestamp(gang_status.expected_ns)}"


def _reference(kind: str, metadata: Metadata, api: str) -> dict[str, str]:
    return {
        "apiVersion": api,
        "kind": kind,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
    }


def timestamp(wall_ns: int | None = None) -> str:
    """Format an instant (None: now) as RFC 3339 in whole seconds."""
    at = datetime.now(UTC) if wall_ns is None else datetime.fromtimestamp(wall_ns / 1e9, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
