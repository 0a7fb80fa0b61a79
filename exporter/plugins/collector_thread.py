"""Thread that runs one plug-in collector, so that a slow or blocked collector does not delay /metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

COLLECT_SECONDS = 1.0
"""Time in seconds that a page of metrics waits for a collector. Prometheus waits 10 s for the whole page by default."""

T = TypeVar("T")


class NotInTimeError(Exception):
    """The collector did not return within COLLECT_SECONDS of its start. It may still be running."""


class CollectorThread(Generic[T]):
    """Thread that calls a function on request, one call at a time.

    A call that does not return blocks only this thread. The thread starts with the first request and does not keep the
    process alive.
    """

    def __init__(self, name: str, collect: Callable[[], T]) -> None:
        self._name, self._collect = name, collect
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requested = self._finished = 0
        self._began_s = 0.0
        self._stopping = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0
        """Duration of the last finished call, in seconds."""

    def request(self) -> int:
        """Start a call and return its number. If a call is in progress, start none and return its number."""
        with self._condition:
            if self._requested == self._finished and not self._stopping:
                self._requested += 1
                self._began_s = time.monotonic()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"plugin {self._name}", daemon=True)
                    self._thread.start()
                self._condition.notify_all()
            return self._requested

    def result(self, number: int) -> T:
        """Return the result of call `number`. Wait for it until COLLECT_SECONDS after the start of the call.

        Raises NotInTimeError, or the exception of the call.
        """
        with self._condition:
            left = self._began_s + COLLECT_SECONDS - time.monotonic()
            if not self._condition.wait_for(lambda: self._finished >= number, max(left, 0.0)):
                seconds = time.monotonic() - self._began_s
                raise NotInTimeError(f"no result for {seconds:.1f} s, the limit is {COLLECT_SECONDS:g} s")
            if self._error is not None:
                raise self._error.with_traceback(None)  # otherwise each page would make the traceback longer
            assert self._result is not None
            return self._result

    def stop(self) -> None:
        """End the thread after the call in progress. Does not wait."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._requested > self._finished or self._stopping)
                if self._stopping:
                    return
            result: T | None = None
            error: BaseException | None = None
            began_s = time.monotonic()
            try:
                result = self._collect()
            except BaseException as raised:  # other code may raise SystemExit, which must not end this thread
                error = raised
            with self._condition:
                self._result, self._error, self.seconds = result, error, time.monotonic() - began_s
                self._finished = self._requested
                self._condition.notify_all()
