"""Event streams: entries as they are written, each with its number, so that a reader can go on where it left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from scheduler_feedback.api.reading.desk import Desk
from scheduler_feedback.api.subscribers import Subscribers, Subscription, Written
from scheduler_feedback.journal.store import Reader

HEARTBEAT_SECONDS = 15.0
"""A silent event stream says so much, so that proxies (60 s is usual) and readers know that it lives."""

MOST_AT_ONCE = 200
"""Entries that are read from the journal in one piece."""


class Source(Protocol):
    """What a stream needs of a controller."""

    desk: Desk
    subscribers: Subscribers

    @property
    def store(self) -> Reader: ...


async def newest_entry(source: Source, peer: str) -> int:
    """Number of the newest entry ever written."""
    newest = source.subscribers.newest
    return newest if newest is not None else await source.desk.read(peer, source.store.newest_entry_id)


async def entries_after(source: Source, peer: str, entry_id: int) -> tuple[list[Written], bool]:
    """Entries after this one, oldest first; and whether there may be more at once."""
    recent = source.subscribers.after(entry_id)
    if recent is not None:
        return recent, False

    def read() -> list[Written]:
        return [Written(numbered) for numbered in source.store.entries_after(entry_id, MOST_AT_ONCE)]

    found = await source.desk.read(peer, read, patient=True)
    return found, len(found) == MOST_AT_ONCE


async def stream(
    source: Source, subscription: Subscription, peer: str, since: int, goes_on: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Entries after `since`, and then each as it is written, until the subscription ends.

    goes_on: whether the reader is still let in: a token may be revoked while its stream is open.
    """
    subscribers = source.subscribers
    try:
        yield b"retry: 1000\n\n"
        while not subscription.ended and await goes_on():
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
