"""Watching one kind of object: list it, then follow its changes, for ever; nothing is lost and nothing told twice.

What a server promises (https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes): a
watch from a list's resourceVersion tells every later change in order; bookmarks tell how far a quiet watch has come; a
version that is too old is answered with 410, at once or as an ERROR inside of a stream of 200; then one lists again. A
list is compared with what is known, so that what was deleted meanwhile is told as well.
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
"""Objects in a page, client-go's: a page is in memory as bytes, too, while it is read."""

_WATCH_SECONDS = 300
_SILENCE_SECONDS = 150.0
"""A watch that hears nothing for so long is opened again from where it was: a server sends a bookmark about once a
minute, so two were missed. A firewall or a load balancer that forgot the connection tells neither side."""

_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
GONE = 410
_MOST_NAMED = 20
"""Objects that can't be used and are named in the log; the others are counted."""

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
    """The objects at one path, kept in step.

    told(key, before, after) is called for every change, `after` None for what was deleted, `before` None for what is
    new; in the event loop's thread, and it must not block. batch: called around the changes of one read.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[_T],
        told: Callable[[str, _T | None, _T | None], None],
        parameters: Mapping[str, str] | None = None,
        optional: bool = False,
    ) -> None:
        self.path = path
        self.objects: dict[str, _T] = {}
        self.synced = asyncio.Event()
        self.absent = False
        self.lists = self.events = self.reconnects = self.unusable = 0
        self._named: set[str] = set()
        self._client, self._told, self._optional = client, told, optional
        self._parameters = dict(parameters or {})
        self._object = msgspec.json.Decoder(kind)
        self._list = msgspec.json.Decoder(_list_of(kind))
        self._version = ""

    async def run(self) -> None:
        """Until cancelled. An optional kind that the server does not serve counts as empty, and is asked for again."""
        pause = _PAUSE_SECONDS
        while True:
            try:
                if not self._version:
                    await self._list_all()
                await self._follow()
                pause = _PAUSE_SECONDS
            except RefusedError as error:
                if error.code == GONE:
                    self._version = ""
                    continue
                if error.code == 404 and self._optional:
                    self.absent = True
                    self.synced.set()
                    await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
                    continue
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
        """In pages, each of which is told where it differs from what is known; then what was in none is told gone."""
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
        """One watch, to its end: the server ends it after the time that was asked for."""
        seconds = _WATCH_SECONDS + random.randrange(_WATCH_SECONDS)  # not all at once
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
            raise BackendError(f"watch {self.path}: what is not understood: {error}") from error
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
            self._told(key, known, item)
        except BackendError as error:
            # One object that can't be used (a quantity that is none) costs itself: to list all again brings it again.
            self.unusable += 1
            if len(self._named) < _MOST_NAMED and key not in self._named:
                self._named.add(key)
                _log.error("%s: %s is left as it was before: %s", self.path, key, error)


def _list_of(kind: Any) -> Any:
    """The type of a list of that kind."""
    return msgspec.defstruct(f"{kind.__name__}List", [("metadata", ListMetadata), ("items", list[kind])], gc=False)


async def all_synced(watches: Mapping[str, Watch[Any]], seconds: float) -> list[str]:
    """Wait until every one has been listed once; names of those that have not been after so long."""
    waiting: list[Awaitable[Any]] = [watch.synced.wait() for watch in watches.values()]
    try:
        await asyncio.wait_for(asyncio.gather(*waiting), seconds)
    except TimeoutError:
        pass
    return [name for name, watch in watches.items() if not watch.synced.is_set()]
