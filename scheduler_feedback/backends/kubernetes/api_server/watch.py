"""A watch of one kind of object: list, then follow the changes, without losing or repeating one.

The API server guarantees (https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes):
a watch from a list's resourceVersion sends every later change in order, and bookmarks show the progress of a quiet
watch. If the version is too old, the server answers 410, as a status or as an ERROR in a stream of status 200; then the
client lists again. A new list is compared with the known objects, so that deletions in the meantime are reported, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata

_PAGE = "500"
"""Maximum number of objects in one page of a list, as in client-go. While a page is parsed, its bytes are in memory,
too."""

_WATCH_SECONDS = 300
_SILENCE_SECONDS = 150.0
"""A watch that receives no data for this long is reopened at its last version. A server sends a bookmark about once a
minute, so the watch has missed two. A firewall or load balancer that drops a connection notifies neither side."""

_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
GONE = 410
_MOST_NAMED = 20
"""Maximum number of unusable objects that are named in the log; the others are counted."""

_log = logging.getLogger(__name__)


class Named(Protocol):
    metadata: Metadata


_T = TypeVar("_T", bound=Named)


class ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Envelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Bookmark(msgspec.Struct):
    metadata: Metadata


_envelopes = msgspec.json.Decoder(_Envelope)
_errors = msgspec.json.Decoder(_Error)
_bookmarks = msgspec.json.Decoder(_Bookmark)


class Watch(Generic[_T]):
    """The objects at one path, kept current.

    on_change(key, before, after) is called for every change: `after` is None for a deleted object, `before` for a
    new one. It runs in the event loop's thread and must not block.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[_T],
        on_change: Callable[[str, _T | None, _T | None], None],
        parameters: Mapping[str, str] | None = None,
        optional: bool = False,
    ) -> None:
        self.path = path
        self.objects: dict[str, _T] = {}
        self.synced = asyncio.Event()
        self.absent = False
        self.lists = self.events = self.reconnects = self.unusable = 0
        self._named: set[str] = set()
        self._client, self._on_change, self._optional = client, on_change, optional
        self._parameters = dict(parameters or {})
        self._object = msgspec.json.Decoder(kind)
        self._list = msgspec.json.Decoder(_list_of(kind))
        self._version = ""

    async def run(self) -> None:
        """Run until cancelled. An optional kind that the server does not serve counts as empty and is retried."""
        pause, refused = _PAUSE_SECONDS, ""
        while True:
            try:
                if not self._version:
                    await self._list_all()
                await self._follow()
                pause, refused = _PAUSE_SECONDS, ""
            except RefusedError as error:
                if error.code == GONE:
                    self._version = ""
                    continue
                if error.code == 404 and self._optional:
                    if not self.absent:
                        _log.info("the API server does not serve %s: there are none until it does", self.path)
                    self.absent = True
                    self.synced.set()
                    await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
                    continue
                if str(error) != refused:  # it is tried every 5 s, maybe for hours
                    refused = str(error)
                    _log.error("%s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            except BackendError as error:
                if isinstance(error, UnreachableError):
                    _log.info("%s", error)
                else:
                    _log.error("%s", error)
                    self._version = ""
                self.reconnects += 1
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _list_all(self) -> None:
        """List in pages and report each page's changes; then report the objects that are on no page as deleted."""
        found: set[str] = set()
        more = ""
        while True:
            parameters = {**self._parameters, "limit": _PAGE, **({"continue": more} if more else {})}
            page: Any = await self._client.get(self.path, self._list, **parameters)
            for item in page.items:
                key = item.metadata.key
                found.add(key)
                known = self.objects.get(key)
                if known is None or known.metadata.resource_version != item.metadata.resource_version:
                    self._change(key, item)
            more = page.metadata.continue_
            if not more:
                break
        self.lists += 1
        self.absent = False
        for key in self.objects.keys() - found:
            self._change(key, None)
        self._version = page.metadata.resource_version
        self.synced.set()

    async def _follow(self) -> None:
        """Follow one watch to its end: the server ends it after the requested time."""
        seconds = _WATCH_SECONDS + random.randrange(_WATCH_SECONDS)  # so that the watches end at different times
        parameters = {
            **self._parameters,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        async with self._client.lines(self.path, _SILENCE_SECONDS, **parameters) as lines:
            async for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            envelope = _envelopes.decode(line)
            if envelope.type == "ERROR":
                error = _errors.decode(envelope.object)
                raise RefusedError(f"watch {self.path}", error.code, "", error.message)
            if envelope.type == "BOOKMARK":
                self._version = _bookmarks.decode(envelope.object).metadata.resource_version
                return
            item = self._object.decode(envelope.object)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BackendError(f"watch {self.path}: cannot decode an event: {error}") from error
        self.events += 1
        self._change(item.metadata.key, None if envelope.type == "DELETED" else item)
        self._version = item.metadata.resource_version

    def _change(self, key: str, item: _T | None) -> None:
        known = self.objects.get(key)
        if item is None:
            if known is None:
                return
            del self.objects[key]
        else:
            self.objects[key] = item
        try:
            self._on_change(key, known, item)
        except BackendError as error:
            # An unusable object (with an invalid quantity) is skipped alone: a new list would only bring it again.
            self.unusable += 1
            if len(self._named) < _MOST_NAMED and key not in self._named:
                self._named.add(key)
                _log.error("%s: the change of %s is ignored: %s", self.path, key, error)


def _list_of(kind: Any) -> Any:
    """Return the type into which a list of objects of this kind is decoded."""
    return msgspec.defstruct(f"{kind.__name__}List", [("metadata", ListMetadata), ("items", list[kind])], gc=False)


async def all_synced(watches: Mapping[str, Watch[Any]], seconds: float) -> list[str]:
    """Wait until every watch has listed once. Return the names of the watches that have not by the timeout."""
    waiting: list[Awaitable[Any]] = [watch.synced.wait() for watch in watches.values()]
    try:
        await asyncio.wait_for(asyncio.gather(*waiting), seconds)
    except TimeoutError:
        pass
    return [name for name, watch in watches.items() if not watch.synced.is_set()]
