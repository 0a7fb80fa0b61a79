"""Messages of other threads to the cycle's thread: questions, requests, and observed events."""

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
    """The controller is stopping or has failed; the request was not processed."""


@dataclass(frozen=True, slots=True)
class UserRequest:
    """A user request. `make` builds the event from the current state, or raises if the request is invalid."""

    make: Callable[[State], Event]
    answer: Future[Event]

    def refuse(self, error: Exception) -> None:
        _refuse(self.answer, error)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the state. The cycle's thread answers it between two cycles."""

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
    """Set the error as the answer, unless the request is already answered or its caller has cancelled it."""
    if not answer.done() and (answer.running() or answer.set_running_or_notify_cancel()):
        answer.set_exception(error)


@dataclass(slots=True)
class Arrived:
    """All messages taken from the inbox at one time."""

    questions: list[Question] = field(default_factory=list)
    requests: list[UserRequest] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Inbox:
    """A queue of messages with many senders and one receiver."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Question | UserRequest | Sequence[Event] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.open = True

    def put(self, message: Question | UserRequest) -> None:
        """Add a question or request. After ``close`` it is answered with StoppedError at once."""
        with self._lock:
            if self.open:
                self._queue.put(message)
                return
        message.refuse(StoppedError(_TOO_LATE))

    def report(self, events: Sequence[Event]) -> None:
        """Add events that the backend observed."""
        self._queue.put(tuple(events))

    def wake(self) -> None:
        """Make the receiver return without waiting."""
        self._queue.put(None)

    def take(self, timeout_seconds: float) -> Arrived:
        """Return all messages; wait at most `timeout_seconds` for the first one."""
        arrived = Arrived()
        try:
            message = self._queue.get(timeout=timeout_seconds)
            while True:
                if isinstance(message, Question):
                    arrived.questions.append(message)
                elif isinstance(message, UserRequest):
                    arrived.requests.append(message)
                elif message is not None:
                    arrived.events += message
                message = self._queue.get_nowait()
        except queue.Empty:
            return arrived

    def close(self) -> None:
        """Answer remaining and later messages with StoppedError."""
        with self._lock:
            self.open = False
        arrived = self.take(0.0)
        left: list[Question | UserRequest] = [*arrived.questions, *arrived.requests]
        for message in left:
            message.refuse(StoppedError(_TOO_LATE))


_TOO_LATE = "the controller is stopping or has failed"
