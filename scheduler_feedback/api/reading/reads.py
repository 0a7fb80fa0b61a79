"""One thread that computes the answers for all readers, shared fairly between peers (clients).

Python runs one thread at a time, so work for readers takes CPU time from the scheduler on any thread. One thread for
all readers, which pauses as long as it works, leaves at least half of a CPU to the cycle, detectors and server.
Work comes in pieces of a few milliseconds (a page of a list, one job). The peer that has used the least time is next,
so a peer with a thousand requests delays each piece of another peer by at most one piece.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent.schema.errors import GangwatchError
from agent.schema.sample import Sample

MOST_WAITING = 64
"""Maximum number of queued pieces of work of one peer. A browser sends only six requests at once."""

REST = 1.0
"""Seconds for which the thread pauses after each second of work."""

_T = TypeVar("_T")


class BusyError(GangwatchError):
    """Error: a peer has too many queued reads."""


@dataclass(slots=True)
class _Piece:
    make: Callable[[], Any]
    answer: Future[Any]


@dataclass(slots=True)
class _Peer:
    """Queued work of one peer, and the time that its work took."""

    spent: float
    """Seconds of work that count for this peer; the peer with the lowest number is served first. A peer whose queue was
    empty begins with the lowest number of the other peers, not with 0, so that it is not preferred for long."""

    waiting: deque[_Piece] = field(default_factory=deque)


class Reads:
    """A worker thread for readers. ``run`` may be called from any event loop; the first call starts the thread.

    rest: seconds of pause per second of work; 0 for work that mostly waits for a disk.
    """

    def __init__(self, name: str, rest: float = REST) -> None:
        self._name = name
        self._rest = rest
        self._peers: dict[str, _Peer] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._made = self._refused = 0
        self._seconds = 0.0

    async def run(self, peer: str, make: Callable[[], _T], patient: bool = False) -> _T:
        """Run `make` on the thread for readers, and return its result.

        Raises BusyError if the peer has too many queued pieces, unless `patient` is set, as for the later pieces of one
        answer.
        """
        answer: Future[_T] = Future()
        with self._condition:
            if self._closed:
                raise BusyError("the controller is stopping")
            one = self._peers.get(peer)
            if one is None:
                one = self._peers[peer] = _Peer(min((other.spent for other in self._peers.values()), default=0.0))
            if len(one.waiting) >= MOST_WAITING and not patient:
                self._refused += 1
                raise BusyError(f"you have {MOST_WAITING} reads queued: wait for a response before the next request")
            one.waiting.append(_Piece(make, answer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name=f"reads {self._name}", daemon=True)
                self._thread.start()
            self._condition.notify()
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Stop the thread, and refuse the queued work."""
        with self._condition:
            self._closed = True
            waiting = [piece for peer in self._peers.values() for piece in peer.waiting]
            self._peers.clear()
            self._condition.notify()
        for piece in waiting:
            if piece.answer.set_running_or_notify_cancel():
                piece.answer.set_exception(BusyError("the controller is stopping"))

    def measures(self) -> Iterator[Sample]:
        """Yield metric samples about the reads."""
        of = (("of", self._name),)
        yield "gangwatch_reads_total", of, float(self._made)
        yield "gangwatch_reads_refused_total", of, float(self._refused)
        yield "gangwatch_reads_seconds_total", of, self._seconds
        yield "gangwatch_reads_waiting", of, float(sum(len(peer.waiting) for peer in list(self._peers.values())))

    # --- the thread --------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while (found := self._next()) is not None:
            name, piece = found
            begun = time.thread_time()
            if piece.answer.set_running_or_notify_cancel():
                try:
                    piece.answer.set_result(piece.make())
                except Exception as error:
                    piece.answer.set_exception(error)
            took = time.thread_time() - begun
            self._made += 1
            self._seconds += took
            with self._condition:
                peer = self._peers.get(name)
                if peer is not None:
                    peer.spent += took
                    if not peer.waiting:
                        # Dropped at once: a peer that returns soon starts at the minimum of the others.
                        del self._peers[name]
            del piece
            if self._rest:
                time.sleep(took * self._rest)

    def _next(self) -> tuple[str, _Piece] | None:
        """Wait for queued work. Return (peer, work) of the peer that has used the least time; None once closed."""
        with self._condition:
            while not self._closed:
                ready = [(peer.spent, name) for name, peer in self._peers.items() if peer.waiting]
                if ready:
                    name = min(ready)[1]
                    return name, self._peers[name].waiting.popleft()
                self._condition.wait()
        return None
