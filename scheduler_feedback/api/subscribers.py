"""Event streams that are open: who has them, how many each may have, and what was written while they wait.

The newest entries are kept here as they were written, so that a stream that keeps up reads no journal: with a hundred
pages open one entry is read by none of them, and encoded once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agent.schema.peer_quota import NoPlaceError, Places
from scheduler_feedback.api import documents as documents
from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.journal.store import NumberedEntry

MOST_STREAMS = 256
"""Event streams open at one time: people's pages and tools."""

MOST_STREAMS_EACH = 64
"""Of one peer: twenty people behind one proxy, with three pages each."""

LEAST_SECONDS = 10.0
"""A stream that has been open for so long makes room where its peer opens one too many, or where all are taken and a
peer with fewer opens one; readers of an ended stream open it again by themselves. A younger one does not, so that too
many who come at once do not end each other's streams in a circle."""

MOST_KEPT = 1024
"""Entries kept in memory, the newest: a stream that is further behind reads the journal."""


class FullError(Exception):
    """No further stream can be opened now; the text says why."""


class Written:
    """An entry, with its bytes as an event, which are made when they are first wanted."""

    __slots__ = ("_event", "numbered")

    def __init__(self, numbered: NumberedEntry) -> None:
        self.numbered = numbered
        self._event = b""

    @property
    def event(self) -> bytes:
        """The entry as a server-sent event."""
        if not self._event:
            self._event = event_of(self.numbered)
        return self._event


def event_of(numbered: NumberedEntry) -> bytes:
    """An entry as a server-sent event."""
    data = msgspec.json.encode(documents.entry_document(numbered))
    return b"id: %d\nevent: entry\ndata: %b\n\n" % (numbered.entry_id, data)


class Subscription:
    """One open stream. ended: whether it has to end."""

    __slots__ = ("_loop", "ended", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = False
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Have it end, soon. From its own loop."""
        self.ended = True
        self.wake.set()

    def rouse(self) -> None:
        """Wake it; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self.wake.set)
        except RuntimeError:
            pass  # the loop has closed, and its streams with it


class Subscribers:
    """Every open event stream, woken when entries were written. ``wrote`` may be called from any thread; all else
    belongs to the loop that serves the streams."""

    def __init__(
        self,
        most: int = MOST_STREAMS,
        most_each: int = MOST_STREAMS_EACH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places: Places[Subscription] = Places(most, most_each, least_s=LEAST_SECONDS)
        self._clock = clock
        self._lock = threading.Lock()
        self._open: set[Subscription] = set()
        self._written: deque[Written] = deque(maxlen=MOST_KEPT)
        self._before = -1
        self._refused = self._displaced = 0
        self.closed = False

    def __len__(self) -> int:
        return len(self._open)

    def measures(self) -> Iterator[Sample]:
        """Series of the catalogue; from any thread."""
        yield "gangwatch_event_streams", (), float(len(self._open))
        yield "gangwatch_event_streams_refused_total", (), float(self._refused)
        yield "gangwatch_event_streams_displaced_total", (), float(self._displaced)

    def open(self, peer: str) -> Subscription:
        """A new stream of the peer. Raises FullError."""
        if self.closed:
            raise FullError("the controller is stopping")
        found = Subscription()
        try:
            displaced = self._places.take(peer, found, self._clock())
        except NoPlaceError as error:
            self._refused += 1
            raise FullError(f"no further stream can be opened now: {error}") from None
        if displaced is not None:
            self._displaced += 1
            displaced.end()
        with self._lock:
            self._open.add(found)
        return found

    def remove(self, subscription: Subscription) -> None:
        """The stream has ended."""
        self._places.drop(subscription)
        with self._lock:
            self._open.discard(subscription)

    def close(self) -> None:
        """End every stream, and open none."""
        self.closed = True
        for subscription in list(self._open):
            subscription.end()

    # --- entries -----------------------------------------------------------------------------------------------------

    def wrote(self, entries: Sequence[NumberedEntry]) -> None:
        """Entries were written, and are durable."""
        with self._lock:
            newest = self._written[-1].numbered.entry_id if self._written else -1
            if entries[0].entry_id != newest + 1:  # the first, or some were lost to a bug: the journal has them
                self._written.clear()
                self._before = entries[0].entry_id - 1
            for numbered in entries:
                if len(self._written) == MOST_KEPT:
                    self._before = self._written[0].numbered.entry_id
                self._written.append(Written(numbered))
            streams = list(self._open)
        for subscription in streams:
            subscription.rouse()

    @property
    def newest(self) -> int | None:
        """Number of the newest entry that was written; None where none was since the start."""
        with self._lock:
            return self._written[-1].numbered.entry_id if self._written else None

    def after(self, entry_id: int) -> list[Written] | None:
        """What was written after this entry; None where the journal must be asked for it."""
        with self._lock:
            if entry_id < self._before or self._before < 0:
                return None
            wanted = self._written[-1].numbered.entry_id - entry_id  # their numbers have no gaps
            return [self._written[place] for place in range(len(self._written) - wanted, len(self._written))]
