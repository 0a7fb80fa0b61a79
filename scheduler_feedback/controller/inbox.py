"""Inbox: what other threads put to the cycle's thread: questions, wishes, and events that they saw."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent.schema.errors import GangwatchError
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.state import State


class StoppedError(GangwatchError):
    """The controller is stopping or has failed; what was asked has not happened."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An event that is to be taken in; `make` gives it for the present state, or raises why not."""

    make: Callable[[State], Event]
    answer: Future[Event]

    def refuse(self, error: Exception) -> None:
        _refuse(self.answer, error)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the state between two cycles."""

    ask: Callable[[State], Any]
    answer: Future[Any]

    def put_to(self, state: State) -> None:
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(self.ask(state))
            except Exception as error:
                self.answer.set_exception(error)

    def refuse(self, error: Exception) -> None:
        _refuse(self.answer, error)


def _refuse(answer: Future[Any], error: Exception) -> None:
    """Answer with the error, where somebody still waits."""
    if not answer.done() and (answer.running() or answer.set_running_or_notify_cancel()):
        answer.set_exception(error)


@dataclass(slots=True)
class Arrived:
    """What was in the inbox."""

    questions: list[Question] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Inbox:
    """Any thread puts, one takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Question | Wish | Sequence[Event] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.open = True

    def put(self, message: Question | Wish) -> None:
        """Put a question or wish; one that comes too late is answered with StoppedError at once."""
        with self._lock:
            if self.open:
                self._queue.put(message)
                return
        message.refuse(StoppedError(_TOO_LATE))

    def tell(self, events: Sequence[Event]) -> None:
        """Put events that have been seen."""
        self._queue.put(tuple(events))

    def wake(self) -> None:
        """Let the taker return without waiting."""
        self._queue.put(None)

    def take(self, timeout_seconds: float) -> Arrived:
        """All that has arrived; waits at most so long for a first message."""
        arrived = Arrived()
        try:
            message = self._queue.get(timeout=timeout_seconds)
            while True:
                if isinstance(message, Question):
                    arrived.questions.append(message)
                elif isinstance(message, Wish):
                    arrived.wishes.append(message)
                elif message is not None:
                    arrived.events += message
                message = self._queue.get_nowait()
        except queue.Empty:
            return arrived

    def close(self) -> None:
        """Answer what is left, and from now on everything, with StoppedError."""
        with self._lock:
            self.open = False
        arrived = self.take(0.0)
        left: list[Question | Wish] = [*arrived.questions, *arrived.wishes]
        for message in left:
            message.refuse(StoppedError(_TOO_LATE))


_TOO_LATE = "the controller is stopping or has failed"
