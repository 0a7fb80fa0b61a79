"""Who waits for entries: every open event stream, woken when some were written."""

from __future__ import annotations

import asyncio


class Subscribers:
    """Wakes every open event stream when entries were written. ``wake`` may be called from any thread."""

    def __init__(self) -> None:
        self._events: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._events)

    def add(self) -> asyncio.Event:
        event = asyncio.Event()
        self._events[event] = asyncio.get_running_loop()
        return event

    def remove(self, event: asyncio.Event) -> None:
        self._events.pop(event, None)

    def wake(self) -> None:
        for event, loop in list(self._events.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                pass  # the loop has closed, and its streams with it

    def close(self) -> None:
        """End every stream. In the loop that serves them."""
        self.closed = True
        for event in self._events:
            event.set()
