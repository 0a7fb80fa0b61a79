"""Queue of frames for a reader in another thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

from agent.schema.frame import Frame, Layout

Listener = Callable[[Layout, Frame], None]


class Subscription:
    """Queue of new frames for one reader in its own thread. A slow reader loses the oldest frames."""

    def __init__(self, most: int, remove: Callable[[Listener], None]) -> None:
        self._frames: deque[tuple[Layout, Frame]] = deque(maxlen=most)
        self._condition = threading.Condition()
        self._remove = remove
        self._closed = False
        self.lost = 0

    def put(self, layout: Layout, frame: Frame) -> None:
        """Add a frame without waiting for the reader. Called by the node."""
        with self._condition:
            self.lost += len(self._frames) == self._frames.maxlen
            self._frames.append((layout, frame))
            self._condition.notify()

    def get(self, timeout_seconds: float | None = None) -> tuple[Layout, Frame] | None:
        """Return the oldest unread frame, or None after the timeout or if the subscription was closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._frames or self._closed, timeout_seconds)
            return self._frames.popleft() if self._frames else None

    def close(self) -> None:
        """Stop the subscription and wake a waiting reader."""
        self._remove(self.put)
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def __iter__(self) -> Iterator[tuple[Layout, Frame]]:
        while (newest := self.get()) is not None:
            yield newest

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
