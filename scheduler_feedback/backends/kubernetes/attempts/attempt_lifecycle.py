"""Start and stop of attempts: sequences of API requests in the event loop.

Each method works on one attempt and ends by reporting the result to the cycle, whatever the API server responds: an
attempt without a result would keep its slots until the start's timeout. To stop an attempt, set its phase; work in
progress checks the phase and gives up. Requests of a leader that may not act for a moment wait in the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.api_connection import Connection
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.binding import (
    bind_all,
    bind_one,
    create_once,
    delete_all,
    has_node,
    write_placement,
)
from scheduler_feedback.backends.kubernetes.attempts.claim_binding import Reservation, release_all, reserve_all
from scheduler_feedback.backends.kubernetes.attempts.gang_resize import resize
from scheduler_feedback.backends.kubernetes.attempts.gang_stop import (
    left_suspended,
    owner_has_ended,
    resume,
    stop,
    suspend_owners,
)
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import (
    Attempt,
    DoesNotFitError,
    Member,
    Phase,
    assign,
    ended,
    place_of,
    requests_by_node,
    scan_attempt,
)
from scheduler_feedback.backends.kubernetes.attempts.repetition import until_done
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import is_elastic
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import kind_at
from scheduler_feedback.backends.kubernetes.objects.translate import Gang, group_of, slots_of
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import ActionFailed, AttemptUnknown, CancelRequested, Event

PODS_SECONDS = 10.0
"""Seconds that a start waits for missing pods; an owner recreates them within a second or two."""

RECREATED_SECONDS = 30.0
"""Seconds by which the end of a stopped gang is delayed. So the gang keeps its slots until its owner has recreated its
pods."""

REMOVED_SECONDS = 30.0
"""Seconds that a suspended job of Kubeflow waits for the removal of its deleted pods. A kubelet removes a pod that has
ended within a second or two; a finalizer of others may keep it."""

FREED_SECONDS = 5.0
"""Seconds that a start waits for devices of pods that have ended; the claim controller frees them within a second."""

STARTS_AT_ONCE = 128
"""Maximum number of gangs whose pods are bound to nodes at one time: twice the maximum number of requests, so that the
API server is never idle. In a cycle with thousands of starts, the first gangs are bound before the others begin."""

_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)


class AttemptLifecycle:
    """Starts, stops and undoes attempts.

    emit: sends an event to the cycle. queue_scan: queues the attempt for the next scan. last_pods: the latest pods of
    each job, from which its owner is found.
    """

    def __init__(
        self,
        connection: Connection,
        cache: InformerCache,
        emit: Callable[[Event], None],
        queue_scan: Callable[[Attempt], None],
        last_pods: Mapping[str, Sequence[Pod]],
    ) -> None:
        self._connection, self._cache = connection, cache
        self._emit, self._queue_scan, self._last_pods = emit, queue_scan, last_pods
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)

    def hold(self, attempt: Attempt) -> None:
        """Record in the cache that the cycle counts the slots of the attempt's pods."""
        for member in attempt.members:
            if member.uid:
                self._cache.hold(member.uid, place_of(attempt, member))

    # --- starting ----------------------------------------------------------------------------------------------------

    async def start(self, attempt: Attempt, action: StartGang) -> None:
        """Bind all pods of the gang to the nodes in the action. If one pod cannot be bound, the start fails."""
        try:
            await self._start(attempt, action)
        except Exception as error:  # the server refuses to store the placement, for example
            if not isinstance(error, BackendError):
                _log.error("%s: this is a bug, please report it", attempt.job_id, exc_info=error)
            self._unplan(attempt)
            await self._fail(attempt, [str(error) or type(error).__name__])

    async def _start(self, attempt: Attempt, action: StartGang) -> None:
        gang = await self._all_there(attempt, PODS_SECONDS, Phase.BINDING)
        if gang is not None and (group := self._elastic(attempt)) is not None:
            await resize(self._connection.client, group, gang.pods, len(action.placement) // slots_of(gang.pods[0]))
            gang = await self._all_there(attempt, PODS_SECONDS, Phase.BINDING, len(action.placement))
        if gang is not None:
            async with self._starting:
                gang = await self._all_there(attempt, 0.0, Phase.BINDING)  # pods may have changed during the wait
                wanted = gang is not None and attempt.phase is Phase.BINDING
                failures = await self._assign_and_bind(attempt, action, gang) if gang is not None and wanted else []
            if wanted:
                if failures:  # outside of `_starting`: pods may take long to end
                    await self._fail(attempt, failures)
                return
        self._unplan(attempt)
        if attempt.phase is Phase.BINDING:
            why = await owner_has_ended(self._connection.client, self._last_pods.get(attempt.job_id, []))
            if why:
                self._emit(CancelRequested(attempt.job_id, f"its owner, a Job that is {why.lower()}"))
            self._emit(ActionFailed(action.action_id, attempt.job_id, self._why_not_there(attempt)))

    async def _assign_and_bind(self, attempt: Attempt, action: StartGang, gang: Gang) -> list[str]:
        """Assign the pods to nodes and bind them; return the errors of pods that could not be bound."""
        until = asyncio.get_running_loop().time() + FREED_SECONDS
        while True:
            try:
                with self._cache.lock:
                    self._unplan(attempt)
                    attempt.members = assign(self._cache, gang.pods, action.placement)
                    attempt.beyond = not gang.grouped and bool(group_of(gang.pods[0]))
                    self.hold(attempt)
                break
            except DoesNotFitError as error:
                if error.passing and asyncio.get_running_loop().time() < until and _wanted(attempt):
                    with self._cache.lock:
                        key = (attempt.job_id, attempt.number)
                        self._cache.plan(key, requests_by_node(gang.pods, action.placement))
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                if error.node:
                    self._cache.bar(error.constraint, error.node)
                self._emit(ActionFailed(action.action_id, attempt.job_id, str(error)))
                return []
        group = self._cache.groups.get(attempt.key)
        if gang.grouped and group is not None:
            await write_placement(self._connection.client, group.path, attempt, lambda: _wanted(attempt))
        return await self._bind(attempt)

    def _why_not_there(self, attempt: Attempt) -> str:
        """Return why a start found no complete gang of pods without nodes."""
        gang = self._cache.gang(attempt.key) if attempt.key else None
        bound = [pod.metadata.name for pod in gang.pods if pod.spec.node_name] if gang is not None else []
        if not bound:
            return "its pods do not exist yet"
        names = ", ".join(bound[:3]) + (f" and {len(bound) - 3} more" if len(bound) > 3 else "")
        return f"pods that an earlier gang of this name left have nodes already; delete them: {names}"

    def _elastic(self, attempt: Attempt) -> PodGroup | None:
        """Return the attempt's group if it is that of an elastic gang."""
        group = self._cache.groups.get(attempt.key)
        return group if group is not None and is_elastic(group) else None

    def _unplan(self, attempt: Attempt) -> None:
        self._cache.unplan((attempt.job_id, attempt.number), {slot.node for slot in attempt.placement})

    async def start_probe(self, attempt: Attempt, action: StartGang, body: dict[str, Any]) -> None:
        """Create the pod that probes a node, and wait until the cache has it."""
        client = self._connection.client
        namespace = body["metadata"]["namespace"]
        try:
            uid = await create_once(client, f"/api/v1/namespaces/{namespace}/pods", body, lambda: _wanted(attempt))
        except BackendError as error:
            attempt.failure = str(error)
            self._emit(ActionFailed(action.action_id, attempt.job_id, str(error)))
            return
        node, slots = action.placement[0].node, tuple(slot.slot for slot in action.placement)
        attempt.members = [Member(attempt.key, uid, node, range(len(slots)), slots, bound=True)]
        self.hold(attempt)
        loop = asyncio.get_running_loop()
        until = loop.time() + PODS_SECONDS
        while loop.time() < until and not any(pod.metadata.uid == uid for pod in self._cache.pods_of(attempt.key)):
            await asyncio.sleep(_LOOK_SECONDS)
        if attempt.phase is Phase.BINDING:
            attempt.phase = Phase.BOUND
            self._queue_scan(attempt)

    async def delete_probe(self, pod: Pod) -> None:
        """Delete the pod of a probe that is no longer needed."""
        member = Member(pod.metadata.key, pod.metadata.uid, "", range(0), ())
        await until_done(lambda: delete_all(self._connection.client, [member]), f"{member.name}: the deletion")

    async def bind(self, attempt: Attempt) -> None:
        """Bind the gang's pods that are not bound yet; if one cannot be bound, undo the attempt."""
        if failures := await self._bind(attempt):
            await self._fail(attempt, failures)

    async def _bind(self, attempt: Attempt) -> list[str]:
        failures = await self._reserve_claims(attempt, attempt.members)
        if not failures:
            failures = await bind_all(self._connection.client, attempt, lambda: _wanted(attempt))
        if not failures and attempt.phase is Phase.BINDING:
            attempt.phase = Phase.BOUND
            self._queue_scan(attempt)
        return failures

    async def _fail(self, attempt: Attempt, failures: Sequence[str]) -> None:
        """Undo a start that failed; one that is being stopped is left to the stop."""
        attempt.failure = "; ".join(failures[:3])
        if attempt.phase is Phase.BINDING:
            attempt.phase = Phase.UNDOING
            await self.undo(attempt)

    async def bind_in_place(self, attempt: Attempt, member: Member) -> None:
        """Bind the replacement of a lost pod."""
        client = self._connection.client
        failures = await self._reserve_claims(attempt, [member])
        why = failures[0] if failures else await bind_one(client, attempt, member, lambda: _wanted(attempt))
        if why:
            await self._release_claims([member])
            _log.warning("%s: %s", attempt.job_id, why)
            with self._cache.lock:
                self._cache.unassume(member.uid)
                member.uid = ""
        self._queue_scan(attempt)

    async def _reserve_claims(self, attempt: Attempt, members: Sequence[Member]) -> list[str]:
        """Write the devices of these unbound pods into their claims, before any of them is bound. Return errors."""
        wanted: list[Reservation] = []
        with self._cache.lock:
            pods = {pod.metadata.uid: pod for pod in self._cache.pods_of(attempt.key)}
        claiming = [
            (member, pod, pod.spec.devices.claims)
            for member in members
            if not member.bound and (pod := pods.get(member.uid)) is not None and pod.spec.devices is not None
        ]
        # An earlier attempt's devices of these pods may be on their way back (``release_abandoned``). A pod that is
        # bound before this is done would run without devices.
        keys = {claim.key for _, _, claims in claiming for claim in claims}
        while _wanted(attempt) and self._cache.is_releasing_any(keys):
            await asyncio.sleep(_LOOK_SECONDS)
        with self._cache.lock:
            for member, pod, claims in claiming:
                for claim in claims:
                    allocation = self._cache.devices.assumed(claim.key)
                    wanted.append(Reservation(claim.key, pod.metadata.name, member.uid, allocation))
        if not wanted:
            return []
        return await reserve_all(self._connection.client, wanted, lambda: _wanted(attempt))

    async def _release_claims(self, members: Iterable[Member]) -> None:
        """Remove these pods, which were not bound, from their claims, and free the devices of these claims."""
        with self._cache.lock:
            uids = {member.uid for member in members if member.uid and not member.bound}
            claims = [(key, uid) for key, uid in self._cache.devices.claims_for(uids)]
        if claims:
            await self.release_claims(claims)

    async def release_abandoned(self, claims: Iterable[tuple[str, str]]) -> None:
        """Release claims of pods without an attempt: (key of the claim, uid of the pod).

        The server may have bound a pod since the cache got it, on a request of an earlier leader.
        """
        claims = list(claims)
        try:
            free: list[tuple[str, str]] = []
            for key, uid in claims:
                name = self._cache.key_of(uid)
                if name and not await self._has_node(name, uid):
                    free.append((key, uid))
            if free:
                await self.release_claims(free)
        finally:
            self._cache.claims_released(key for key, _ in claims)

    async def _has_node(self, name: str, uid: str) -> bool:
        return await until_done(lambda: has_node(self._connection.client, name, uid), f"{name}: the query for its node")

    async def release_claims(self, claims: Iterable[tuple[str, str]]) -> None:
        """Release these claims: (key of the claim, uid of a pod that was not bound)."""
        for why in await release_all(self._connection.client, claims):
            _log.warning("%s", why)

    async def _all_there(self, attempt: Attempt, seconds: float, phase: Phase, slots: int = 0) -> Gang | None:
        """Return the gang once all its pods exist and none is bound. slots: GPUs that its pods must request; 0: any.

        Return None after `seconds`, or if the attempt is no longer in `phase`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            gang = self._cache.gang(attempt.key) if attempt.key else None
            if (
                gang is not None
                and gang.spec is not None
                and not any(pod.spec.node_name for pod in gang.pods)
                and slots in (0, sum(map(slots_of, gang.pods)))
            ):
                return gang
            if loop.time() >= until or attempt.phase is not phase:
                return None
            await asyncio.sleep(_LOOK_SECONDS)

    async def undo(self, attempt: Attempt) -> None:
        """Delete the bound pods, and report to the cycle that the start failed."""
        await self._delete(attempt)
        if attempt.phase is Phase.STOPPING:  # ``stop`` reports the end
            return
        if attempt.action_id:
            self._emit(ActionFailed(attempt.action_id, attempt.job_id, attempt.failure))
        else:
            self._emit(AttemptUnknown(attempt.job_id, attempt.number))

    async def _delete(self, attempt: Attempt) -> None:
        """Delete the bound pods of a gang that never ran as a whole. Their owners are suspended meanwhile.

        A Job counts a deleted pod as a failure, also if it never ran (kubernetes, job_controller.go, isPodFailed). With
        a backoffLimit of 0 the Job would have failed for ever.
        """
        client = self._connection.client
        bound = {member.uid: member for member in attempt.members if member.bound}
        with self._cache.lock:
            living = [pod for pod in self._cache.pods_of(attempt.key) if pod.metadata.uid in bound and not pod.over]
        await self._release_claims(attempt.members)
        for member in attempt.members:
            if not member.bound:
                self._cache.unassume(member.uid)
        suspended = await suspend_owners(client, living)
        of_jobs = {pod.metadata.uid for pod in living if pod.owner is not None and pod.owner.uid in suspended}
        deleted = [member for uid, member in bound.items() if uid not in of_jobs]
        await until_done(lambda: delete_all(client, deleted), f"{attempt.job_id}: the deletion of its pods")
        if suspended:
            await self._gone(attempt)
            await self._removed(attempt, suspended.values())
        for path in dict.fromkeys(suspended.values()):
            await resume(client, path)

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def stop(self, attempt: Attempt, action: StopGang) -> None:
        """Stop the gang in a way that its owner tolerates; else report why not and leave it running."""
        client, cache = self._connection.client, self._cache
        with cache.lock:
            uids = {member.uid for member in attempt.members if member.uid}
            pods = [pod for pod in cache.pods_of(attempt.key) if pod.metadata.uid in uids]
        # Pods that never ran together have nothing to lose, and no budget counts unhealthy pods.
        if attempt.probe or not attempt.reported:
            await self._delete(attempt)
            await self._gone(attempt)
            self._emit(ended(attempt))
            return
        try:
            suspended = await stop(client, attempt.members, pods)
        except BackendError as error:
            attempt.phase, attempt.why_stopped = Phase.BOUND, ""
            self._queue_scan(attempt)
            self._emit(ActionFailed(action.action_id, attempt.job_id, str(error)))
            return
        await self._gone(attempt)
        await self._removed(attempt, suspended)
        for path in suspended:
            await resume(client, path)
        if any(pod.owner is not None for pod in pods):
            await self._all_there(attempt, RECREATED_SECONDS, Phase.STOPPING)
        with cache.lock:
            scan_attempt(attempt, {pod.metadata.uid: pod for pod in cache.pods_of(attempt.key)})
            self._emit(ended(attempt))

    async def _gone(self, attempt: Attempt) -> None:
        """Wait until no pod of the attempt uses its node."""
        while True:
            with self._cache.lock:
                living = {pod.metadata.uid for pod in self._cache.pods_of(attempt.key) if not pod.over}
                if not any(member.bound and member.uid in living for member in attempt.members):
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _removed(self, attempt: Attempt, suspended: Iterable[str]) -> None:
        """Wait until the attempt's deleted pods are removed, at most REMOVED_SECONDS, if Kubeflow's jobs are suspended.

        The training operator fails a job for ever if a failed pod exists when it is resumed, also a pod that is being
        deleted (kubeflow/training-operator, pytorchjob_controller.go, UpdateJobStatus).
        """
        if not any(kind_at(path).in_run_policy for path in suspended):
            return
        uids = {member.uid for member in attempt.members}
        until = asyncio.get_running_loop().time() + REMOVED_SECONDS
        while asyncio.get_running_loop().time() < until:
            with self._cache.lock:
                pods = [pod for pod in self._cache.pods_of(attempt.key) if pod.metadata.uid in uids]
            if not any(pod.metadata.deletion_timestamp for pod in pods):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def resume_left(self) -> None:
        """Resume Jobs and other owners that an earlier leader suspended."""
        client = self._connection.client
        paths = await until_done(lambda: left_suspended(client), "the search for suspended owners of gangs")
        for path in paths:
            _log.info("%s was left suspended by an earlier leader; resuming it", path)
        await asyncio.gather(*(resume(client, path) for path in paths))


def _wanted(attempt: Attempt) -> bool:
    """Return whether the attempt is still to be started."""
    return attempt.phase is not Phase.STOPPING
