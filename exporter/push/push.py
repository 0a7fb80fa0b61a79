"""Push to a receiver: a bounded queue, which never blocks the producer of frames, and a sender thread.

If the receiver is unavailable or overloaded, the frame is sent again with exponential backoff. Permanently refused
frames are dropped and counted, and so is the oldest frame if the queue is full.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from agent.schema.frame import Frame, Layout
from agent.schema.sample import Sample
from exporter.prometheus.profiles import left_out_by
from exporter.push.delivery import Delivery, Outcome
from exporter.push.target import PushTarget

if TYPE_CHECKING:
    from exporter.prometheus.exposition import Settings

log = logging.getLogger(__name__)

BACKOFF_LEAST_SECONDS = 1.0
BACKOFF_MOST_SECONDS = 60.0
"""Maximum pause between retries. The OTLP specification asks for exponential back-off with jitter; the pauses of
Prometheus' remote write are 30 ms to 5 s."""

STOP_SECONDS = 2.0


class Sink(Protocol):
    """Protocol of a receiver of frames. To add one, add a file and a line in SINKS."""

    name: str

    def delivery(self, target: PushTarget, wanted: Callable[[str], bool]) -> Delivery[tuple[Layout, Frame]]:
        """Return the delivery of frames to this target. wanted: whether a metric is published.

        Raises ConfigError if a file or the endpoint can't be used, or a library is not installed.
        """


class Source(Protocol):
    def newest(self) -> tuple[Layout, Frame] | None: ...

    def add_listener(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]: ...


T = TypeVar("T")


class Outbox(Generic[T]):
    """Queue and sender of items (frames, samples or spans) to one target, in order, until ``stop``.

    most: maximum queue length; in a full queue the oldest item is dropped.
    """

    def __init__(self, delivery: Delivery[T], target: PushTarget, most: int) -> None:
        self._delivery, self._target, self._most = delivery, target, most
        self._queue: deque[T] = deque()
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"push {delivery.name}", daemon=True)
        self.sent = self.failures = self.dropped_full = self.refused = 0
        self._complaint = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting items. Send the queued items within STOP_SECONDS until an attempt fails; the rest is lost."""
        self._until = time.monotonic() + STOP_SECONDS
        self._stopping.set()
        with self._wake:
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of this outbox."""
        sink = ("sink", self._delivery.name)
        yield "gangwatch_push_sent_total", (sink,), self.sent
        yield "gangwatch_push_failures_total", (sink,), self.failures
        yield "gangwatch_push_dropped_total", (("reason", "queue full"), sink), self.dropped_full
        yield "gangwatch_push_dropped_total", (("reason", "refused"), sink), self.refused
        yield "gangwatch_push_queue_frames", (sink,), len(self._queue)

    def put(self, item: T) -> None:
        """Queue an item. Never blocks."""
        with self._wake:
            if len(self._queue) >= self._most:
                self._queue.popleft()
                self.dropped_full += 1
                if self.dropped_full == 1 or self.dropped_full % 100 == 0:
                    log.warning("push %s: the queue is full; %d frames dropped", self._delivery.name, self.dropped_full)
            self._queue.append(item)
            self._wake.notify()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_seconds = BACKOFF_LEAST_SECONDS
        while not self._stopping.is_set() or time.monotonic() < self._until:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stopping.is_set())
                if not self._queue:
                    break
                item = self._queue[0]
            try:
                wait_seconds = self._push(item)
            except Exception:
                # A bug in encoding one item: do not retry it; the next may work.
                log.exception(
                    "push %s: can't encode a frame, which is dropped; this is a bug, please report it",
                    self._delivery.name,
                )
                self.refused += 1
                wait_seconds = None
            if wait_seconds is None:
                pause_seconds = BACKOFF_LEAST_SECONDS
                with self._wake:
                    # A full queue may have dropped it meanwhile.
                    if self._queue and self._queue[0] is item:
                        self._queue.popleft()
                continue
            if self._stopping.wait(max(wait_seconds, pause_seconds * random.uniform(0.5, 1.0))):
                break
            pause_seconds = min(BACKOFF_MOST_SECONDS, 2 * pause_seconds)
        self._delivery.close()

    def _push(self, item: T) -> float | None:
        """Send one item. Return None if it was accepted or permanently refused, else the minimum number of seconds
        before a retry."""
        try:
            outcome = self._delivery.deliver(item)
        except OSError as error:
            outcome = Outcome(False, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, True)
        if outcome.accepted:
            self.sent += 1
            if outcome.reason:
                self._say(f"partly refused: {outcome.reason}")
            elif self._complaint:
                log.info("push %s: the receiver accepts frames", self._delivery.name)
                self._complaint = ""
            return None
        self.failures += 1
        self._say(outcome.reason)
        if outcome.again:
            return outcome.wait_seconds
        self.refused += 1
        return None

    def _say(self, reason: str) -> None:
        # Log a repeated reason only once; the counters have the number.
        if reason != self._complaint:
            log.warning("push %s to %s: %s", self._delivery.name, self._target.endpoint, reason)
            self._complaint = reason


class Pusher(Outbox[tuple[Layout, Frame]]):
    """Queue and sender of one source's frames to one target, until ``stop``."""

    def __init__(self, sink: Sink, target: PushTarget, source: Source, settings: Settings) -> None:
        """Read the files and check the endpoint. Raises ConfigError if a file or the endpoint can't be used."""
        self._sink, self._source, self._settings = sink, source, settings
        super().__init__(sink.delivery(target, self._wanted), target, target.queue_frames)
        self._remove: Callable[[], None] | None = None
        self._due_ns: int | None = None

    def is_like(self, others: Iterable[Pusher]) -> bool:
        """Return whether one of `others` has the same sink, target and settings, so that it can be used instead."""
        mine = (self._sink.name, self._target, self._settings)
        return any(mine == (other._sink.name, other._target, other._settings) for other in others)

    def start(self) -> None:
        self._remove = self._source.add_listener(self.offer)
        super().start()

    def stop(self) -> None:
        """Stop accepting frames; ``Outbox.stop`` sends the queued ones."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()
        super().stop()

    def offer(self, layout: Layout, frame: Frame) -> None:
        """Queue the frame if the push interval has passed. Called by the node with each frame; never blocks."""
        if self._due_ns is None:
            self._due_ns = frame.monotonic_ns
        if frame.monotonic_ns < self._due_ns:
            return
        interval_ns = round(self._target.interval_seconds * 1e9)
        # By the frames' clock, on a schedule without drift; frames missed in a pause are not made up for.
        self._due_ns += interval_ns * (1 + (frame.monotonic_ns - self._due_ns) // interval_ns)
        self.put((layout, frame))

    def _wanted(self, name: str) -> bool:
        settings = self._settings
        return left_out_by(name, settings.profile, settings.allow, settings.deny) is None
