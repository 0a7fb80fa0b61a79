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

from scheduler_feedback.backends.kubernetes.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.lease import while_leading
from scheduler_feedback.core.state import Ended, State
from scheduler_feedback.policies.history import BINS

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
    """As the state has it; of each kind's counts those that are not 0, as [bin, count]. lately: the newest of those."""

    queue_use: dict[str, float] = {}
    queue_use_ns: int = 0
    history: dict[str, list[tuple[int, float]]] = {}
    trust: list[float] = []
    lately: list[Ended] = []


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


_kept = msgspec.json.Decoder(Kept)
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


def give_back(text: bytes, state: State) -> None:
    """Let a state that has just begun go on from what was kept. Nothing is taken of what can't be read."""
    try:
        kept = _kept.decode(text)
    except msgspec.MsgspecError as error:
        _log.error("what was kept of queues' use and run times can't be read, they begin anew: %s", error)
        return
    state.queue_use = dict(kept.queue_use)
    state.queue_use_ns = min(kept.queue_use_ns, state.now_ns)
    state.trust, state.lately = kept.trust, kept.lately
    for kind, told in kept.history.items():
        counts = state.history[kind] = [0.0] * BINS
        for number, count in told:
            if 0 <= number < BINS:
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

    async def run(self) -> None:
        """Until cancelled."""
        await while_leading(self.once, self._may_act, PERIOD_SECONDS, "keeping")

    async def once(self) -> None:
        """Ask, and write it where it is another."""
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
