"""Detector results with the cycle's job names, held until the cycle can evaluate them.

The cycle must first have the gang, which a snapshot provides. A verdict also needs a listing of Slurm's whole queue
that is newer than the verdict: the cycle compares the cost of a slow node with the wait of pending jobs. Results of one
gang keep their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from scheduler_feedback.backends.slurm.slurm_names import gang_of, job_id_of, number_of, renamed
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Verdict

HELD_BACK_SECONDS = 120.0
"""Seconds for which a result of an unknown gang is held until a snapshot has that gang."""


class PendingVerdicts:
    """Queue of held results. The detection thread calls ``take``; the cycle's thread calls ``free``. Times are
    monotonic seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_back: deque[tuple[float, Event]] = deque()
        self.wants_queue = False
        """Whether a held verdict needs a new listing of the whole queue."""

    def take(self, events: Sequence[Event], known: Collection[str], now: float) -> list[Event]:
        """Hold verdicts and results of unknown gangs; return all other results. known: gangs in the cycle's state."""
        ready: list[Event] = []
        with self._lock:
            kept = {gang_of(event) for _, event in self._held_back}
            for raw, event in zip(events, renamed(events), strict=True):
                number = number_of(gang_of(raw))
                waits = number is not None and job_id_of(number) not in known
                if waits or isinstance(event, Verdict) or (number is not None and gang_of(event) in kept):
                    self._held_back.append((now, event))
                    kept.add(gang_of(event))
                    self.wants_queue |= isinstance(event, Verdict)
                else:
                    ready.append(event)
        return ready

    @property
    def waiting(self) -> bool:
        """Whether any result is held. If so, the next scan starts early."""
        return bool(self._held_back)

    def free(self, known: Collection[str], listed_seconds: float, now: float) -> list[Event]:
        """Return the held results whose gang is in the cycle's state, and keep the others.

        A verdict is returned only after a later listing of the queue. listed_seconds: when the newest listing began.
        """
        free: list[Event] = []
        with self._lock:
            kept: deque[tuple[float, Event]] = deque()
            blocked: set[str] = set()
            for since, event in self._held_back:
                gang = gang_of(event)
                judged = not isinstance(event, Verdict) or since < listed_seconds
                if gang not in blocked and judged and (number_of(gang) is None or gang in known):
                    free.append(event)
                elif now - since < HELD_BACK_SECONDS:
                    kept.append((since, event))
                    blocked.add(gang)
            self._held_back = kept
            self.wants_queue = any(isinstance(event, Verdict) for _, event in kept)
        return free
