"""Repetition of work that must not be left half done, such as the deletion of bound pods or the resumption of a Job.

An attempt whose work ended with an error would have no outcome: the cycle would wait for it until a timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent.schema.errors import BackendError

_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0
"""An administrator who gives back a right expects the effect within some seconds."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def until_done(work: Callable[[], Awaitable[_T]], what: str) -> _T:
    """Repeat the work until it raises no BackendError; return its result. Log every new error.

    what: the work, for the log.
    """
    pause, logged = _PAUSE_SECONDS, ""
    while True:
        try:
            return await work()
        except BackendError as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("%s is repeated until it succeeds: %s", what, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
