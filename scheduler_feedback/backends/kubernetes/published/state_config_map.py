"""State that belongs to no single object, in a ConfigMap: the use of queues, and run times of similar jobs.

A controller with an empty state folder continues from it, so that fair shares and learned estimates survive takeovers.
It is written once a minute if it has changed. If a controller crashes, changes since its last write are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.lease import while_leading
from scheduler_feedback.core.formats import FORMATS, version_key
from scheduler_feedback.core.state import Ended, State
from scheduler_feedback.policies.index.runtime_history import BINS, KINDS

PERIOD_SECONDS = 60.0

MOST_HISTORY_BYTES = 512 * 1024
"""Maximum size of the saved run times; if they need more, the rarest kinds of jobs are left out. An API object has at
most 1 MiB (the limit of the server and of etcd on requests)."""

MOST_RECENT = 1000
"""Maximum number of saved ended jobs whose run times are not yet in the histograms (``Kept.history``)."""

_KEY = "memory.json"
_log = logging.getLogger(__name__)


def memory_name(lease: str) -> str:
    """Return the name of the ConfigMap of the controllers that share a lease."""
    return f"{lease}-memory"


class Kept(msgspec.Struct):
    """Content of the ConfigMap: copies of parts of the cycle's state."""

    queue_use: dict[str, float] = {}
    queue_use_ns: int = 0
    history: dict[str, list[tuple[int, float]]] = {}
    """Histogram of run times for each kind of job: (bin, count) of every bin that is not empty."""

    trust: list[float] = []
    lately: list[Ended] = []
    """The most recently ended jobs."""

    minimum_reader: str = ""
    """Oldest release that can read the content; '' for any. Content of a newer release is neither read nor
    overwritten."""


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class _Needs(msgspec.Struct):
    """The part of the content that names the release that can read it. In a newer release the other fields may have
    other types.
    """

    minimum_reader: str = ""


MOST_SECONDS = 1e9
"""A saved run time that exceeds this number of seconds (thirty years) is damaged and is ignored."""

_kept = msgspec.json.Decoder(Kept)
_needs = msgspec.json.Decoder(_Needs)
_maps = msgspec.json.Decoder(_ConfigMap)


def kept_of(state: State) -> bytes:
    """Return the part of the state that the ConfigMap stores, as JSON. Runs between two cycles and changes nothing."""
    kinds = sorted(state.history.items(), key=lambda item: -sum(item[1]))
    history: dict[str, list[tuple[int, float]]] = {}
    size = 0
    for kind, counts in kinds:
        nonzero = [(number, round(count, 4)) for number, count in enumerate(counts) if round(count, 4)]
        size += len(kind) + 16 * len(nonzero)
        if size > MOST_HISTORY_BYTES:
            break
        history[kind] = nonzero
    use = {queue: round(seconds, 3) for queue, seconds in state.queue_use.items()}
    trust = [round(score, 6) for score in state.trust]
    return msgspec.json.encode(Kept(use, state.queue_use_ns, history, trust, state.recently_ended[-MOST_RECENT:]))


def needed_release(text: bytes) -> str:
    """Return the release that is needed to read the content, if it is newer than this one; else ''."""
    try:
        needed = _needs.decode(text).minimum_reader
        return needed if needed and version_key(needed) > version_key(FORMATS.newest) else ""
    except (msgspec.MsgspecError, ValueError, RecursionError):  # in msgspec 0.19, its errors are no ValueErrors
        return ""  # the content is damaged and may be overwritten


def give_back(text: bytes, state: State) -> None:
    """Restore the content into a new state. Content that cannot be read is ignored."""
    if needed := needed_release(text):
        _log.error(
            "reading the saved queue use and run times needs gangwatch %s or newer: the saved data stays unchanged, "
            "and both start empty until that release runs",
            needed,
        )
        return
    try:
        kept = _kept.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.error("the saved queue use and run times cannot be read, so both start empty: %s", error)
        return
    state.queue_use = {queue: seconds for queue, seconds in kept.queue_use.items() if seconds >= 0}
    state.queue_use_ns = max(0, min(kept.queue_use_ns, state.now_ns))
    state.trust = kept.trust if len(kept.trust) == len(KINDS) else []
    state.recently_ended = [ended for ended in kept.lately if 0 <= ended.seconds <= MOST_SECONDS]
    for kind, nonzero in kept.history.items():
        counts = state.history[kind] = [0.0] * BINS
        for number, count in nonzero:
            if 0 <= number < BINS and count >= 0:
                counts[number] = count


async def read(client: Client, namespace: str, name: str) -> bytes:
    """Return the saved content; b'' if there is none. Raises BackendError if the server does not return it."""
    try:
        found = await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", _maps)
    except RefusedError as error:
        if error.code != 404:
            raise
        return b""
    return found.data.get(_KEY, "").encode()


class StateWriter:
    """Writer of the ConfigMap in the backend's event loop. ask: queries the cycle's state between two cycles."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        ask: Callable[[Callable[[State], bytes]], Future[bytes]],
        may_act: Callable[[], bool],
    ) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._ask, self._may_act = ask, may_act
        self._written = b""
        self._may_write: bool | None = None  # None: the existing content has not been checked

    async def run(self) -> None:
        """Write changes of the state to the ConfigMap until cancelled."""
        await while_leading(self.once, self._may_act, PERIOD_SECONDS, "keeping")

    async def once(self) -> None:
        """Write the content if it has changed since the last write. Content of a newer release is never overwritten."""
        if self._may_write is None:
            self._may_write = not needed_release(await read(self._client, self._namespace, self._name))
        if not self._may_write:
            return
        text = await asyncio.wrap_future(self._ask(kept_of))
        if text == self._written:
            return
        folder = f"/api/v1/namespaces/{self._namespace}/configmaps"
        data = {"data": {_KEY: text.decode()}}
        try:
            await self._client.patch(f"{folder}/{self._name}", data)
        except RefusedError as error:
            if error.code != 404:
                raise
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **data}
            await self._client.create(folder, body)
        self._written = text
