"""The feed, which is started again after a bug."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agent.schema.errors import GangwatchError
from scheduler_feedback.feed import Feed
from scheduler_feedback.part_failures import PartFailures

PAUSE_SECONDS, PAUSE_MOST_SECONDS = 1.0, 60.0
"""Pauses before the feed is started again after a bug in its thread: 1, 2, 4, ... 60 s."""

PROVEN_SECONDS = 30.0
"""A restarted feed counts as working again after it has run for this many seconds. By then it has opened and read every
agent's stream."""

_log = logging.getLogger(__name__)


class RestartingFeed:
    """Runner of a feed. make: returns a new feed, or raises GangwatchError if its credentials cannot be loaded.

    Attributes: `feed`, the current one.
    """

    def __init__(self, make: Callable[[], Feed], failures: PartFailures) -> None:
        self._make, self._failures = make, failures
        self.feed = make()

    async def run(self) -> None:
        """Read the agents' streams until cancelled. After a bug, start again, with growing pauses."""
        pause_seconds = PAUSE_SECONDS
        while True:
            reading = asyncio.create_task(self.feed.run(), name="feed")
            try:
                done, _ = await asyncio.wait({reading}, timeout=PROVEN_SECONDS)
                if not done:
                    pause_seconds = PAUSE_SECONDS
                    self._failures.back("feed")
                await reading
            except Exception as error:
                self._failures.report("feed", error, f"started again in {pause_seconds:.0f} s", out=True)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_MOST_SECONDS)
            try:
                self.feed = self._make()
            except GangwatchError as error:
                _log.error("feed credentials not loaded, the former ones stay valid: %s", error)
