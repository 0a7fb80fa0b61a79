"""Open event streams of pages and tools, their limits per peer, and the newest entries in memory.

The newest entries stay in memory, so that an up-to-date stream does not read the journal. With a hundred open pages no
page reads a new entry from disk, and each entry is encoded once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agent.schema.peer_quota import NoPlaceError, Places
from agent.schema.sample import Sample
from scheduler_feedback.api import documents as documents
from scheduler_feedback.journal.store import NumberedEntry

MOST_STREAMS = 256
"""Maximum number of event streams open at one time, of pages and tools."""

MOST_STREAMS_EACH = 64
"""Maximum number of event streams of one peer: enough for twenty users behind one proxy, with three pages each."""

LEAST_SECONDS = 10.0
"""Minimum age in seconds of a stream that is closed to make room for another. This happens when its peer opens one
stream too many, or when the maximum is reached and a peer with fewer streams opens one. The reader of the closed stream
reconnects. Younger streams are kept, so that many readers do not close each other's streams again and again."""

MOST_KEPT = 1024
"""Number of newest entries kept in memory; a stream that is further behind reads the journal."""


class FullError(Exception):
    """Error: no further stream can be opened now. Its text gives the reason."""


class Written:
    """A log entry, with its encoding as a server-sent event, which is created on first use."""

    __slots__ = ("_event", "numbered")

    def __init__(self, numbered: NumberedEntry) -> None:
        self.numbered = numbered
        self._event = b""

    @property
    def event(self) -> bytes:
        """The entry encoded as a server-sent event."""
        if not self._event:
            self._event = event_of(self.numbered)
        return self._event


def event_of(numbered: NumberedEntry) -> bytes:
    """Encode an entry as a server-sent event."""
    data = msgspec.json.encode(documents.entry_document(numbered))
    return b"id: %d\nevent: entry\ndata: %b\n\n" % (numbered.entry_id, data)


class Subscription:
    """One open event stream. ended: whether the stream must end."""

    __slots__ = ("_loop", "ended", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = False
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """End the stream soon. Call it from the stream's event loop."""
        self.ended = True
        self.wake.set()

    def rouse(self) -> None:
        """Wake the stream, so that it sends new entries. May be called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self.wake.set)
        except RuntimeError:
            pass  # the loop is closed, and its streams with it


class Subscribers:
    """All open event streams, which are woken when entries are written.

    ``wrote`` may be called from any thread, most other methods only from the event loop that serves the streams.
    """

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
        """Yield metric samples about the streams. May be called from any thread."""
        yield "gangwatch_event_streams", (), float(len(self._open))
        yield "gangwatch_event_streams_refused_total", (), float(self._refused)
        yield "gangwatch_event_streams_displaced_total", (), float(self._displaced)

    def open(self, peer: str) -> Subscription:
        """Open a stream for the peer. Raises FullError if no more streams are allowed."""
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
        """Remove a stream that has ended."""
        self._places.drop(subscription)
        with self._lock:
            self._open.discard(subscription)

    def close(self) -> None:
        """End all streams, and refuse new ones."""
        self.closed = True
        for subscription in list(self._open):
            subscription.end()

    # --- entries -----------------------------------------------------------------------------------------------------

    def wrote(self, entries: Sequence[NumberedEntry]) -> None:
        """Add entries that were written to disk, and wake all streams."""
        with self._lock:
            newest = self._written[-1].numbered.entry_id if self._written else -1
            if entries[0].entry_id != newest + 1:  # the first entry, or a gap because of a bug: read the journal
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
        """Number of the newest entry; None if no entry was written since the start of the controller."""
        with self._lock:
            return self._written[-1].numbered.entry_id if self._written else None

    def after(self, entry_id: int) -> list[Written] | None:
        """Return the entries with a higher number; None if some of them are only in the journal."""
        with self._lock:
            if entry_id < self._before or self._before < 0:
                return None
            wanted = self._written[-1].numbered.entry_id - entry_id  # numbers have no gaps
            return [self._written[place] for place in range(len(self._written) - wanted, len(self._written))]
