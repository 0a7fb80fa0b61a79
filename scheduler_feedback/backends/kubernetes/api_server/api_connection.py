"""The connection to the API server: a thread with an event loop that runs the watches and the queued work.

The cycle's thread starts and stops the connection and queues work, but never waits for results.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from agent.schema.errors import BackendError, GangwatchError
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch, all_synced

_SYNC_SECONDS = 60.0
_STOP_SECONDS = 5.0

Key = tuple[str, int]
"""Key of queued work, usually of one attempt. Pieces of work with the same key run one after the other."""

_log = logging.getLogger(__name__)


class Connection:
    """Connection to the API server: a thread, a client and the watches.

    watching: returns the watches of a client, by name. once_synced: returns work to run once, after all watches have
    listed their objects. may_write: returns whether this controller is the leader; checked before every write.
    """

    def __init__(
        self,
        access: Access,
        watching: Callable[[Client], Mapping[str, Watch[Any]]],
        once_synced: Callable[[], Iterable[Coroutine[Any, Any, None]]],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may_write = may_write
        self._access, self._watching, self._once_synced = access, watching, once_synced
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._client: Client | None = None
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.watches: Mapping[str, Watch[Any]] = {}

    # --- from any thread ---------------------------------------------------------------------------------------------

    def start(self, timeout_seconds: float = _SYNC_SECONDS) -> None:
        """Connect, and list the objects of all watches. Raises BackendError if that takes too long."""
        self._thread = threading.Thread(target=self._main, name="kubernetes", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_seconds + 1):
            raise BackendError(f"{self._access.url}: the first listing did not finish in {timeout_seconds:g} s")
        if self._failure is not None:
            raise BackendError(f"{self._access.url}: {self._failure}") from self._failure

    def stop(self) -> None:
        """End the thread and leave work in progress as it is."""
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

    def check(self) -> None:
        """Raise BackendError if the connection has ended, which only a bug causes."""
        if self._failure is not None:
            raise BackendError(f"the connection to the API server has ended: {self._failure}")

    def busy(self, key: Key) -> bool:
        """Return whether work on this key is in progress."""
        return key in self._tasks

    def go(self, key: Key, work: Coroutine[Any, Any, None]) -> None:
        """Run this work after earlier work on the same key. Raises BackendError if the connection has ended."""
        loop = self._loop
        if loop is None or loop.is_closed() or self._failure is not None:
            work.close()
            raise BackendError("the connection to the API server has ended")

        def begin() -> None:
            self._tasks[key] = loop.create_task(self._guarded(key, work, self._tasks.get(key)))

        loop.call_soon_threadsafe(begin)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._failure = error
            if not isinstance(error, GangwatchError):
                _log.critical("the Kubernetes thread has ended: this is a bug, please report it", exc_info=error)
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        async with Client(self._access, may_write=self._may_write) as client:
            self._client = client
            self.watches = self._watching(client)
            watching = [asyncio.create_task(watch.run(), name=name) for name, watch in self.watches.items()]
            once: list[asyncio.Task[None]] = []
            ending = asyncio.create_task(self._ending.wait())
            try:
                if missing := await all_synced(self.watches, _SYNC_SECONDS):
                    raise BackendError(f"{', '.join(missing)} could not be listed in {_SYNC_SECONDS:g} s")
                once = [asyncio.create_task(self._logged(work)) for work in self._once_synced()]
                self._ready.set()
                done, _ = await asyncio.wait([ending, *watching], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task is not ending:
                        await task  # only a bug ends a watch
            finally:
                tasks: list[asyncio.Task[Any]] = [ending, *watching, *once, *self._tasks.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BackendError as error:
            _log.error("%s", error)

    async def _guarded(self, key: Key, work: Coroutine[Any, Any, None], before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await work
        except BackendError as error:
            _log.error("%s, attempt %d: %s", *key, error)
        except Exception as error:
            _log.error("%s, attempt %d: this is a bug, please report it", *key, exc_info=error)
        finally:
            work.close()
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]
