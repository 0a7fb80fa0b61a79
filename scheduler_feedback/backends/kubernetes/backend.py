"""The backend: what the core decides about gangs, carried out over the API server; and what became of it.

The cycle's thread calls; a thread with an event loop watches and writes. Between the two stand ``World``, the attempts
(under its lock) and a list of events. Applying and observing only look at those, so neither waits for the server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from agent.schema.errors import BackendError, GangwatchError
from scheduler_feedback.backends.kubernetes.attempt import (
    Attempt,
    DoesNotFitError,
    Member,
    Phase,
    adopt,
    assign,
    ended,
    look_at,
    place_of,
    ranks_seen,
    rejected,
)
from scheduler_feedback.backends.kubernetes.binding import bind_all, bind_one, delete_all, write_placement
from scheduler_feedback.backends.kubernetes.client import Access, Client
from scheduler_feedback.backends.kubernetes.objects import Node, Pod, PodGroup, Queue
from scheduler_feedback.backends.kubernetes.stopping import left_suspended, owner_has_ended, resume, stop
from scheduler_feedback.backends.kubernetes.translate import SCHEDULER, Gang, TopologyLabels, slots_of
from scheduler_feedback.backends.kubernetes.watch import Watch, all_synced
from scheduler_feedback.backends.kubernetes.world import World
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    Event,
    NodeSeen,
    Submitted,
)
from scheduler_feedback.core.job import Slot

PODS_SECONDS = 10.0
"""How long a start waits for pods that are not there yet: an owner makes them anew within a second or two."""

RECREATED_SECONDS = 30.0
"""How long the end of a stopped gang is held back for its owner to make its pods anew, so that they find their place
kept."""

_LOOK_SECONDS = 0.05
_SYNC_SECONDS = 60.0
_STOP_SECONDS = 5.0
PATHS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "podgroups": "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    "queues": "/apis/gangwatch.io/v1alpha1/queues",
}

_log = logging.getLogger(__name__)


class KubernetesBackend:
    """Implements Backend. ``start`` before it is used; ``stop`` ends its thread and leaves every pod as it is.

    may_act: whether this process leads; asked before each write. advise: no gang is taken in, so none is placed.
    """

    def __init__(
        self,
        access: Access,
        *,
        scheduler: str = SCHEDULER,
        labels: TopologyLabels | None = None,
        may_act: Callable[[], bool] = lambda: True,
        advise: bool = False,
    ) -> None:
        self._access = access
        self.world = World(scheduler, labels or TopologyLabels())
        self._may_act, self._advise = may_act, advise
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._gangs: dict[str, Gang] = {}  # by key, as last looked at
        self._told: dict[str, str] = {}  # key -> job id that the core was told of
        self._keys: dict[str, str] = {}  # job id -> key
        self._nodes_told: dict[str, NodeSeen] = {}
        self._last_pods: dict[str, list[Pod]] = {}  # by job id, pods that were once there: for their owners
        self._events: list[Event] = []
        self._changed: set[tuple[str, int]] = set()  # attempts that are to be looked at
        self._by_gang: dict[str, tuple[str, int]] = {}  # newest attempt, by the gang's key
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._client: Client | None = None
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.watches: dict[str, Watch[Any]] = {}

    # --- the thread of the event loop --------------------------------------------------------------------------------

    def start(self, timeout_seconds: float = _SYNC_SECONDS) -> None:
        """Connect, and list everything once. Raises BackendError where that does not come to an end in time."""
        self._thread = threading.Thread(target=self._main, name="kubernetes", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_seconds + 1):
            raise BackendError(f"{self._access.url}: not all was listed in {timeout_seconds:g} s")
        if self._failure is not None:
            raise BackendError(f"{self._access.url}: {self._failure}") from self._failure

    def stop(self) -> None:
        loop, ending = self._loop, self._ending
        if loop is not None and ending is not None:
            try:
                loop.call_soon_threadsafe(ending.set)
            except RuntimeError:  # it has ended already
                pass
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "it was started"
        return self._loop

    @property
    def client(self) -> Client:
        assert self._client is not None, "it was started"
        return self._client

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._failure = error
            if not isinstance(error, GangwatchError):
                _log.critical("the backend's thread ends: this is a bug, please report it", exc_info=error)
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        world = self.world
        async with Client(self._access) as client:
            self._client = client
            self.watches = {
                "nodes": Watch(client, PATHS["nodes"], Node, world.node_told),
                "pods": Watch(client, PATHS["pods"], Pod, world.pod_told),
                "podgroups": Watch(client, PATHS["podgroups"], PodGroup, world.group_told, optional=True),
                "queues": Watch(client, PATHS["queues"], Queue, world.queue_told, optional=True),
            }
            tasks = [asyncio.create_task(watch.run(), name=name) for name, watch in self.watches.items()]
            try:
                if missing := await all_synced(self.watches, _SYNC_SECONDS):
                    raise BackendError(f"{', '.join(missing)} could not be listed in {_SYNC_SECONDS:g} s")
                if self._may_act():
                    for path in await left_suspended(client):
                        tasks.append(asyncio.create_task(self._resume_left(client, path)))
                self._ready.set()
                ended_first = asyncio.create_task(self._ending.wait())
                done, _ = await asyncio.wait([ended_first, *tasks[:4]], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task is not ended_first:
                        await task  # a watch ends by a bug alone
            finally:
                for task in (*tasks, *self._tasks.values()):
                    task.cancel()
                await asyncio.gather(*tasks, *self._tasks.values(), return_exceptions=True)

    async def _resume_left(self, client: Client, path: str) -> None:
        """A Job that a leader before us suspended: its pods are gone soon, whoever was to wait for that."""
        _log.info("%s was left suspended: it is resumed", path)
        try:
            await resume(client, path)
        except BackendError as error:
            _log.error("%s", error)

    def _go(self, key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        """Do this about an attempt, after what is under way about it; that sees by the phase that it is to end."""
        loop = self._loop
        if loop is None or loop.is_closed() or self._failure is not None:
            work.close()
            raise BackendError("the connection to the API server has ended")

        def begin() -> None:
            self._tasks[key] = loop.create_task(self._guarded(key, work, self._tasks.get(key)))

        loop.call_soon_threadsafe(begin)

    async def _guarded(
        self, key: tuple[str, int], work: Coroutine[Any, Any, None], before: asyncio.Task[None] | None
    ) -> None:
        try:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await work
        except BackendError as error:
            _log.error("%s, attempt %d: %s", *key, error)
        finally:
            work.close()
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]

    def _look_again(self, attempt: Attempt) -> None:
        with self.world.lock:
            self._changed.add((attempt.job_id, attempt.number))

    def _say(self, *events: Event) -> None:
        with self.world.lock:
            self._events += events

    # --- Backend -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSeen]:
        self._check()
        seen = self.world.seen()
        self._nodes_told = {node.node: node for node in seen}
        return seen

    def apply(self, action: Action) -> None:
        self._check()
        key = (action.job_id, action.attempt)
        with self.world.lock:
            attempt = self._attempts.get(key)
            if isinstance(action, StartGang):
                if attempt is None:
                    attempt = self._adopted(key)
                    if attempt is None:
                        attempt = Attempt(*key, self._keys.get(action.job_id, ""), action.placement)
                        self._take_up(attempt)
                        self._go(key, self._start(attempt, action))
                    attempt.action_id = action.action_id
                return
            if attempt is None:
                return  # nothing of it is left: ``observe`` says so
            if attempt.phase is Phase.STOPPING:
                return
            attempt.phase, attempt.why_stopped = Phase.STOPPING, action.why.value
        self._go(key, self._stop(attempt, action))

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        self._check()
        with self.world.lock:
            gangs = self._look_at_gangs()
            events = self._look_at_nodes()  # before the gangs: whether a node meets what they ask is known with them
            events += gangs
            held = set(holding)
            for key in held:
                attempt = self._attempts.get(key)
                if attempt is None:
                    attempt = self._adopted(key)
                    if attempt is None:
                        events.append(AttemptUnknown(*key))
                        continue
                if key in self._changed:
                    self._changed.discard(key)
                    events += self._look_at(key, attempt)
            for key in [key for key in self._attempts if key not in held and key not in self._tasks]:
                self._drop(key)
            events += self._events
            self._events = []
            return events

    def _check(self) -> None:
        if self._failure is not None:
            raise BackendError(f"the connection to the API server has ended: {self._failure}")

    def _look_at_nodes(self) -> list[Event]:
        """Nodes that have changed, and the gangs whose slots they do not have any more by number."""
        seen = self.world.seen()
        changed = [node for node in seen if self._nodes_told.get(node.node) != node]
        fewer = {node.node: node.slots for node in changed}
        self._nodes_told.update((node.node, node) for node in changed)
        return [*changed, *self._renumbered(fewer)] if changed else []

    # --- gangs -------------------------------------------------------------------------------------------------------

    def gangs(self) -> list[Gang]:
        """Every gang that there is, as last looked at."""
        with self.world.lock:
            return list(self._gangs.values())

    def _look_at_gangs(self) -> list[Event]:
        """New gangs are submitted, gangs that are gone are cancelled."""
        events: list[Event] = []
        for key in sorted(self.world.take_dirty()):
            if key in self._by_gang:
                self._changed.add(self._by_gang[key])
            gang = self.world.gang(key)
            told = self._told.get(key)
            if gang is None or (told is not None and told != gang.job_id):
                self._gangs.pop(key, None)
                if told is not None:
                    del self._told[key]
                    self._keys.pop(told, None)
                    self._last_pods.pop(told, None)
                    events.append(CancelRequested(told, "the API server, where it was deleted"))
            if gang is None:
                continue
            self._gangs[key], self._keys[gang.job_id] = gang, key
            if gang.constraint is not None:
                self.world.want(gang.constraint)
            if gang.spec is not None and not self._advise:
                self._last_pods[gang.job_id] = list(gang.pods)
                if key not in self._told:
                    self._told[key] = gang.job_id
                    events.append(Submitted(gang.job_id, gang.spec))
        return events

    def know(self, job_id: str, key: str) -> None:
        """The core knows this gang already: its state was built from the API's objects."""
        with self.world.lock:
            self._told[key], self._keys[job_id] = job_id, key

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _adopted(self, key: tuple[str, int]) -> Attempt | None:
        gang_key = self._keys.get(key[0], "")
        if not gang_key:
            return None
        pods = self.world.pods_of(gang_key)
        attempt = adopt(*key, gang_key, pods, self.world.groups.get(gang_key))
        if attempt is None:
            return None
        self._take_up(attempt)
        self._hold(attempt)
        if attempt.phase is Phase.BINDING:
            by_uid = {pod.metadata.uid: pod for pod in pods}
            for member in attempt.members:
                if member.uid and not member.bound:
                    self.world.assume(by_uid[member.uid], member.node)
            self._go(key, self._bind(attempt))
        return attempt

    def _hold(self, attempt: Attempt) -> None:
        for member in attempt.members:
            if member.uid:
                self.world.hold(member.uid, place_of(attempt, member))

    def _take_up(self, attempt: Attempt) -> None:
        key = (attempt.job_id, attempt.number)
        self._attempts[key], self._by_gang[attempt.key] = attempt, key
        self._changed.add(key)

    def _drop(self, key: tuple[str, int]) -> None:
        attempt = self._attempts.pop(key)
        self._changed.discard(key)
        if self._by_gang.get(attempt.key) == key:
            del self._by_gang[attempt.key]
        for member in attempt.members:
            self.world.release(member.uid)

    def _look_at(self, key: tuple[str, int], attempt: Attempt) -> list[Event]:
        if attempt.phase is not Phase.BOUND:
            return []
        pods = {pod.metadata.uid: pod for pod in self.world.pods_of(attempt.key)}
        # A pod that we have bound may not have been seen bound yet, but one that is not there at all is gone.
        if not attempt.told and (why := rejected(attempt, pods)):
            attempt.phase, attempt.failure = Phase.UNDOING, why
            self._go(key, self._undo(attempt))
            return []
        events = look_at(attempt, pods)
        if attempt.phase is Phase.BOUND and any(member.hole for member in attempt.members):
            self._fill_holes(key, attempt, pods)
        return events

    def _fill_holes(self, key: tuple[str, int], attempt: Attempt, pods: dict[str, Pod]) -> None:
        """Pods that an owner made in the stead of lost ones go where those were."""
        taken = {member.uid for member in attempt.members}
        fresh = [
            pod
            for pod in pods.values()
            if pod.metadata.uid not in taken
            and not pod.over
            and not pod.spec.node_name
            and not pod.spec.scheduling_gates
            and not pod.metadata.deletion_timestamp
        ]
        for member in attempt.members:
            if not member.hole:
                continue
            name = member.name
            same = [pod for pod in fresh if slots_of(pod) == len(member.ranks)]
            found = next((pod for pod in same if pod.metadata.key == name), None) or next(iter(same), None)
            if found is None:
                continue
            fresh.remove(found)
            member.name, member.uid, member.bound = found.metadata.key, found.metadata.uid, False
            self.world.hold(member.uid, place_of(attempt, member))
            self.world.assume(found, member.node)
            self._go((f"{key[0]}/{member.ranks.start}", key[1]), self._bind_in_place(attempt, member))

    async def _bind_in_place(self, attempt: Attempt, member: Member) -> None:
        if why := await bind_one(self.client, attempt, member, self._may_act):
            _log.warning("%s: %s", attempt.job_id, why)
            with self.world.lock:
                self.world.unassume(member.uid)
                member.uid = ""
        self._look_again(attempt)

    # --- starting ----------------------------------------------------------------------------------------------------

    async def _start(self, attempt: Attempt, action: StartGang) -> None:
        gang = await self._all_there(attempt, PODS_SECONDS, Phase.BINDING)
        if attempt.phase is not Phase.BINDING:
            return
        if gang is None:
            why = await owner_has_ended(self.client, self._last_pods.get(attempt.job_id, []))
            if why:
                self._say(CancelRequested(attempt.job_id, f"its owner, a Job that is {why.lower()}"))
            self._say(ActionFailed(action.action_id, attempt.job_id, "its pods are not there yet"))
            return
        try:
            with self.world.lock:
                attempt.members = assign(self.world, gang.pods, action.placement)
                self._hold(attempt)
        except DoesNotFitError as error:
            if error.node:
                self.world.bar(error.constraint, error.node)
            self._say(ActionFailed(action.action_id, attempt.job_id, str(error)))
            return
        if gang.grouped:
            await write_placement(self.client, attempt, lambda: self._may_bind(attempt))
        await self._bind(attempt)

    async def _bind(self, attempt: Attempt) -> None:
        failures = await bind_all(self.client, attempt, lambda: self._may_bind(attempt))
        if failures:
            attempt.failure = "; ".join(failures[:3])
            if attempt.phase is Phase.BINDING:
                attempt.phase = Phase.UNDOING
                await self._undo(attempt)
        elif attempt.phase is Phase.BINDING:
            attempt.phase = Phase.BOUND
            self._look_again(attempt)

    def _may_bind(self, attempt: Attempt) -> bool:
        return self._may_act() and attempt.phase is not Phase.STOPPING

    async def _all_there(self, attempt: Attempt, seconds: float, phase: Phase) -> Gang | None:
        """The gang once all of its pods are there and none is bound; None where that does not come about in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            gang = self.world.gang(attempt.key) if attempt.key else None
            if gang is not None and gang.spec is not None and not any(pod.spec.node_name for pod in gang.pods):
                return gang
            if loop.time() >= until or attempt.phase is not phase:
                return None
            await asyncio.sleep(_LOOK_SECONDS)

    async def _undo(self, attempt: Attempt) -> None:
        """None of it may stay: what was bound is deleted, and the core is told that the start failed."""
        bound = [member for member in attempt.members if member.bound]
        for member in attempt.members:
            if not member.bound:
                self.world.unassume(member.uid)
        await delete_all(self.client, bound)
        if attempt.phase is Phase.STOPPING:  # who stops it says so
            return
        if attempt.action_id:
            self._say(ActionFailed(attempt.action_id, attempt.job_id, attempt.failure))
        else:
            self._say(AttemptUnknown(attempt.job_id, attempt.number))

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def _stop(self, attempt: Attempt, action: StopGang) -> None:
        with self.world.lock:
            uids = {member.uid for member in attempt.members if member.uid}
            pods = [pod for pod in self.world.pods_of(attempt.key) if pod.metadata.uid in uids]
        if not attempt.told:  # it never ran: nothing is lost by deleting it, and no budget counts what is not healthy
            for member in attempt.members:
                if not member.bound:
                    self.world.unassume(member.uid)
            await delete_all(self.client, [member for member in attempt.members if member.bound])
            await self._gone(attempt)
            self._say(ended(attempt))
            return
        try:
            suspended = await stop(self.client, attempt.members, pods)
        except BackendError as error:
            attempt.phase, attempt.why_stopped = Phase.BOUND, ""
            self._look_again(attempt)
            self._say(ActionFailed(action.action_id, attempt.job_id, str(error)))
            return
        await self._gone(attempt)
        for path in suspended:
            await resume(self.client, path)
        if any(pod.owner is not None for pod in pods):
            await self._all_there(attempt, RECREATED_SECONDS, Phase.STOPPING)
        with self.world.lock:
            look_at(attempt, {pod.metadata.uid: pod for pod in self.world.pods_of(attempt.key)})
            self._say(ended(attempt))

    async def _gone(self, attempt: Attempt) -> None:
        """Until no pod of the attempt holds anything of its node any more."""
        while True:
            with self.world.lock:
                living = {pod.metadata.uid for pod in self.world.pods_of(attempt.key) if not pod.over}
                if not any(member.bound and member.uid in living for member in attempt.members):
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    # --- slots -------------------------------------------------------------------------------------------------------

    def _renumbered(self, nodes: dict[str, int]) -> list[AttemptRunning]:
        """Attempts that hold slots beyond what their node has left, with numbers that it has: only how many counts."""
        with self.world.lock:
            changed: list[AttemptRunning] = []
            on: dict[str, list[Member]] = {}
            for attempt in self._attempts.values():
                for member in attempt.members:
                    on.setdefault(member.node, []).append(member)
            moved: set[int] = set()
            for node, slots in nodes.items():
                members = on.get(node, [])
                if all(slot < slots for member in members for slot in member.slots):
                    continue
                number = 0
                for member in members:
                    member.slots = tuple(range(number, number + len(member.ranks)))
                    number += len(member.ranks)
                    moved.add(id(member))
            for attempt in self._attempts.values():
                if attempt.told and any(id(member) in moved for member in attempt.members):
                    attempt.placement = tuple(Slot(m.node, slot) for m in attempt.members for slot in m.slots)
                    changed.append(AttemptRunning(attempt.job_id, attempt.number, ranks_seen(attempt)))
            return changed
