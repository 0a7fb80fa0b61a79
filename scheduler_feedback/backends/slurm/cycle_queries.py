"""Asking the cycle: questions about its state from the loop that speaks to Slurm."""

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
    """``CycleThread.ask``."""

    def __call__(self, question: Callable[[State], _T], /) -> Future[_T]: ...


class Cycle:
    """The cycle, as far as it can be asked. ask: None until there is one."""

    def __init__(self) -> None:
        self.ask: Ask | None = None

    async def asked(self, question: Callable[[State], _T], otherwise: _T) -> _T:
        """What the question gives; `otherwise` while there is no cycle, or where it does not answer in time."""
        if self.ask is None:
            return otherwise
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.ask(question)), ANSWER_SECONDS)
        except Exception as error:  # it is stopping, or the store fails: nothing new is known
            _log.debug("the cycle does not answer: %s", error)
            return otherwise

    async def frozen(self) -> bool:
        """Whether nothing may be done; also where the cycle can't be asked."""
        return await self.asked(lambda state: state.frozen, True)
