"""Watch of the API server, independent of the schedulers, and concurrent creation of thousands of objects."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Metadata, Node, Part

LIMIT_SECONDS = 200.0
_AT_ONCE = 64
_LOOK_SECONDS = 0.01


class _Spec(Part):
    node_name: str = ""


class _Status(Part):
    conditions: list[Condition] | None = None


class _PartialObject(Part):
    """Fields of an API object that the benchmark needs. Other fields are not decoded, to save CPU time."""

    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class Seen:
    """Bound pods, tainted nodes, and objects with an unschedulable condition. A separate thread updates them.

    All times are monotonic, in seconds, at which the watch delivered the change.
    """

    def __init__(self, access: Access, groups: Sequence[str]) -> None:
        """groups: API paths of the groups to watch."""
        self.bound: dict[str, str] = {}  # pods, and the node of each
        self.tainted: set[str] = set()
        self.added: dict[str, float] = {}  # pods, and when each was first seen
        self.unschedulable: dict[str, float] = {}  # groups and pods whose condition is false, and since when
        self.first: float | None = None  # when the first pod was seen bound since ``forget``
        self.last = 0.0
        self._access, self._groups = access, groups
        self._ready = threading.Event()
        self._client: Client | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._live()), daemon=True)

    def __enter__(self) -> Seen:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        self._loop.close()

    def forget(self) -> None:
        """Reset the time of the first bound pod."""
        self.first = None

    def follow(self, groups: str) -> None:
        """Also watch the groups at this API path, whose definition was created after the start."""
        asyncio.run_coroutine_threadsafe(self._follow(groups), self._loop).result(60)

    async def _follow(self, groups: str) -> None:
        assert self._client is not None, "it was started"
        watch: Watch[Any] = Watch(self._client, groups, _PartialObject, self._group)
        self._tasks.append(asyncio.create_task(watch.run()))
        await watch.synced.wait()

    async def _live(self) -> None:
        async with Client(self._access, agent="benchmark-watch") as client:
            watches: list[Watch[Any]] = [
                Watch(client, "/api/v1/pods", _PartialObject, self._pod),
                Watch(client, "/api/v1/nodes", Node, self._node),
                *(Watch(client, group, _PartialObject, self._group) for group in self._groups),
            ]
            self._client = client
            tasks = self._tasks
            tasks += [asyncio.create_task(watch.run()) for watch in watches]
            for watch in watches:
                await watch.synced.wait()
            self._ready.set()
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pod(self, key: str, _before: _PartialObject | None, after: _PartialObject | None) -> None:
        if after is None:
            self.bound.pop(key, None)
            self.added.pop(key, None)
            self.unschedulable.pop(key, None)
            return
        self.added.setdefault(key, time.monotonic())
        if after.spec.node_name:
            if key not in self.bound:
                self.bound[key] = after.spec.node_name
                self.last = time.monotonic()
                self.first = self.first or self.last
        elif _unschedulable(after):
            self.unschedulable.setdefault(key, time.monotonic())

    def _node(self, key: str, _before: Node | None, after: Node | None) -> None:
        marked = after is not None and any(taint.key == "gangwatch.io/quarantine" for taint in after.spec.taints or ())
        (self.tainted.add if marked else self.tainted.discard)(key)

    def _group(self, key: str, _before: _PartialObject | None, after: _PartialObject | None) -> None:
        if after is not None and _unschedulable(after):
            self.unschedulable.setdefault(key, time.monotonic())
        else:
            self.unschedulable.pop(key, None)


def _unschedulable(some: _PartialObject) -> bool:
    """Return whether a condition says that it cannot be scheduled. Volcano's is true, and those of others are false.

    Kueue's PodsReady is false at first and says nothing about that.
    """
    return any(
        one.status == ("True" if one.type == "Unschedulable" else "False")
        for one in some.status.conditions or ()
        if one.type != "PodsReady"
    )


class Load:
    """Client that creates or changes many objects concurrently. It retries requests if the server is too busy."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._sent = 0.0

    def create(self, path: str, bodies: list[Any]) -> float:
        """Create objects. Return the monotonic time at which the last request was sent."""
        asyncio.run(self._all(lambda client, body: client.create(path, body), bodies))
        return self._sent

    def patch(self, paths: list[str], body: Any) -> None:
        """Apply the same patch to all objects at these paths."""
        asyncio.run(self._all(lambda client, path: client.patch(path, body), paths))

    def delete(self, paths: list[str]) -> None:
        options = {"gracePeriodSeconds": 0}
        asyncio.run(self._all(lambda client, path: client.delete(path, options), paths))

    async def _all(self, work: Callable[[Client, Any], Any], items: list[Any]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        async with Client(self._access, agent="benchmark-load") as client:

            async def one(item: Any) -> None:
                again = False
                async with gate:
                    while True:
                        self._sent = time.monotonic()
                        try:
                            await work(client, item)
                        except UnreachableError:
                            again = True
                            await asyncio.sleep(1)
                        except RefusedError as error:
                            if not again or error.code not in (404, 409):  # an earlier try without a response did it
                                raise
                            return
                        else:
                            return

            await asyncio.gather(*(one(item) for item in items))


class NotInTimeError(AssertionError):
    """A condition was not true within its limit."""


def until(what: str, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> float:
    """Wait until the condition is true and return the monotonic time. Raises NotInTimeError after the limit."""
    limit = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > limit:
            raise NotInTimeError(f"not in {limit_seconds:g} s: {what}")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic()
