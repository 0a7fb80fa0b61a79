"""What the state holds beyond any one object, kept in a ConfigMap: what queues have used, and how long jobs alike ran.

A controller that begins with nothing goes on from it, so shares are fair and estimates are learned across takeovers. It
is written once a minute where it has changed: what the last minute added is lost with its controller.
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
"""An object of the API is at most 1 MiB (the server's and etcd's limits on requests); of kinds of jobs beyond this,
those that were seen least are left out."""

MOST_LATELY = 1000
"""Jobs that have ended and are not counted by kind yet, where run times are learned from at all."""

_KEY = "memory.json"
_log = logging.getLogger(__name__)


def memory_name(lease: str) -> str:
    """Name of the ConfigMap of the controllers that share a lease."""
    return f"{lease}-memory"


class Kept(msgspec.Struct):
    """As the state has it; of each kind's counts those that are not 0, as [bin, count]. lately: the newest of those.

    minimum_reader: the first release that reads it; '' for any. What a newer one keeps is neither read nor overwritten.
    """

    queue_use: dict[str, float] = {}
    queue_use_ns: int = 0
    history: dict[str, list[tuple[int, float]]] = {}
    trust: list[float] = []
    lately: list[Ended] = []
    minimum_reader: str = ""


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class _Needs(msgspec.Struct):
    """Of what is kept only the release that reads it: the rest may have other types by then."""

    minimum_reader: str = ""


MOST_SECONDS = 1e9
"""Longest run time that is believed: thirty years."""

_kept = msgspec.json.Decoder(Kept)
_needs = msgspec.json.Decoder(_Needs)
_maps = msgspec.json.Decoder(_ConfigMap)


def kept_of(state: State) -> bytes:
    """What is to be kept of the state, as JSON. Called between two cycles, it changes nothing."""
    kinds = sorted(state.history.items(), key=lambda item: -sum(item[1]))
    history: dict[str, list[tuple[int, float]]] = {}
    size = 0
    for kind, counts in kinds:
        told = [(number, round(count, 4)) for number, count in enumerate(counts) if round(count, 4)]
        size += len(kind) + 16 * len(told)
        if size > MOST_HISTORY_BYTES:
            break
        history[kind] = told
    use = {queue: round(seconds, 3) for queue, seconds in state.queue_use.items()}
    trust = [round(score, 6) for score in state.trust]
    return msgspec.json.encode(Kept(use, state.queue_use_ns, history, trust, state.lately[-MOST_LATELY:]))


def needed_release(text: bytes) -> str:
    """The release that is needed to read what was kept, where that is newer than this one; else ''."""
    try:
        needed = _needs.decode(text).minimum_reader
        return needed if needed and version_key(needed) > version_key(FORMATS.newest) else ""
    except (ValueError, RecursionError):
        return ""  # it is damaged, and may be written anew


def give_back(text: bytes, state: State) -> None:
    """Let a state that has just begun go on from what was kept. Nothing is taken of what can't be read."""
    if needed := needed_release(text):
        _log.error(
            "what was kept of queues' use and run times needs gangwatch %s or newer: it is left as it is, and they "
            "begin anew until that release runs",
            needed,
        )
        return
    try:
        kept = _kept.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.error("what was kept of queues' use and run times can't be read, they begin anew: %s", error)
        return
    state.queue_use = {queue: seconds for queue, seconds in kept.queue_use.items() if seconds >= 0}
    state.queue_use_ns = max(0, min(kept.queue_use_ns, state.now_ns))
    state.trust = kept.trust if len(kept.trust) == len(KINDS) else []
    state.lately = [ended for ended in kept.lately if 0 <= ended.seconds <= MOST_SECONDS]
    for kind, told in kept.history.items():
        counts = state.history[kind] = [0.0] * BINS
        for number, count in told:
            if 0 <= number < BINS and count >= 0:
                counts[number] = count


async def read(client: Client, namespace: str, name: str) -> bytes:
    """What was kept; b'' where nothing was. Raises BackendError where the server does not tell."""
    try:
        found = await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", _maps)
    except RefusedError as error:
        if error.code != 404:
            raise
        return b""
    return found.data.get(_KEY, "").encode()


class Keeper:
    """Writes it. Runs in the backend's loop. ask: has a question put to the state between two cycles."""

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
        self._may_write: bool | None = None  # None: what is there has not been looked at

    async def run(self) -> None:
        """Until cancelled."""
        await while_leading(self.once, self._may_act, PERIOD_SECONDS, "keeping")

    async def once(self) -> None:
        """Ask, and write it where it is another; never over what a newer release keeps."""
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
