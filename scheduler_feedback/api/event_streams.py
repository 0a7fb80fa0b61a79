"""Streams of new log entries. Each entry has a number, from which a reader can resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.subscribers import Subscribers, Subscription, Written
from scheduler_feedback.journal.store import Reader

HEARTBEAT_SECONDS = 15.0
"""Interval of heartbeats on an idle stream. Proxies usually close a connection after 60 s without data."""

MOST_AT_ONCE = 200
"""Maximum number of entries that one read fetches from the journal."""


class Source(Protocol):
    """Attributes of a controller that a stream uses."""

    snapshot_reader: SnapshotReader
    subscribers: Subscribers

    @property
    def store(self) -> Reader: ...


async def newest_entry(source: Source, peer: str) -> int:
    """Return the number of the newest journal entry."""
    newest = source.subscribers.newest
    return newest if newest is not None else await source.snapshot_reader.read(peer, source.store.newest_entry_id)


async def entries_after(source: Source, peer: str, entry_id: int) -> tuple[list[Written], bool]:
    """Return (entries with a higher number, the oldest first; whether more of them are available now)."""
    recent = source.subscribers.after(entry_id)
    if recent is not None:
        return recent, False

    def read() -> list[Written]:
        return [Written(numbered) for numbered in source.store.entries_after(entry_id, MOST_AT_ONCE)]

    found = await source.snapshot_reader.read(peer, read, patient=True)
    return found, len(found) == MOST_AT_ONCE


async def stream(
    source: Source, subscription: Subscription, peer: str, since: int, has_access: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yield the entries after number `since`, and then each new entry, until the subscription ends.

    has_access: returns whether the reader still has access: a token may be revoked while its stream is open.
    """
    subscribers = source.subscribers
    try:
        yield b"retry: 1000\n\n"
        while not subscription.ended and await has_access():
            subscription.wake.clear()
            found, more = await entries_after(source, peer, since)
            for written in found:
                since = written.numbered.entry_id
                yield written.event
            if more:
                continue
            try:
                await asyncio.wait_for(subscription.wake.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        subscribers.remove(subscription)
