"""Queries of the cycle's state from the event loop that talks to Slurm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from scheduler_feedback.core.state import State

ANSWER_SECONDS = 5.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Ask(Protocol):
    """Type of ``CycleThread.ask``: runs a function on the cycle's state and returns a future of the result."""

    def __call__(self, question: Callable[[State], _T], /) -> Future[_T]: ...


class Cycle:
    """Access to the cycle's state. ask: None until the cycle runs."""

    def __init__(self) -> None:
        self.ask: Ask | None = None

    async def asked(self, question: Callable[[State], _T], otherwise: _T) -> _T:
        """Return the result of the question; `otherwise` if no cycle runs, or if it does not respond in time."""
        if self.ask is None:
            return otherwise
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.ask(question)), ANSWER_SECONDS)
        except Exception as error:  # the cycle is stopping, or its store fails
            _log.debug("the cycle does not respond: %s", error)
            return otherwise

    async def frozen(self) -> bool:
        """Return whether actions are frozen; True also if the cycle does not respond."""
        return await self.asked(lambda state: state.frozen, True)
