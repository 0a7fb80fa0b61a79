"""Detector results in the cycle's names, held until the cycle can judge them.

The cycle must first know the gang, which a snapshot provides. A verdict also needs a listing of Slurm's whole queue
that is newer than itself: the cycle weighs a slow node against the jobs that wait for it. Results of one gang keep
their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from scheduler_feedback.backends.slurm.slurm_names import gang_of, job_id_of, number_of, renamed
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Verdict

HELD_BACK_SECONDS = 120.0
"""How long a result of an unknown gang is held until a snapshot has that gang."""


class PendingVerdicts:
    """Queue of held results. ``take`` runs on the watch's thread, ``free`` on the cycle's. Times: monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_back: deque[tuple[float, Event]] = deque()
        self.wants_queue = False
        """Whether a verdict is held until the whole queue is listed."""

    def take(self, events: Sequence[Event], known: Collection[str], now: float) -> list[Event]:
        """Return the results that the cycle may have at once and hold the others. known: gangs of the cycle's state."""
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
        """Whether a held result needs an early scan."""
        return bool(self._held_back)

    def free(self, known: Collection[str], listed_seconds: float, now: float) -> list[Event]:
        """Release the results that the cycle can judge. listed_seconds: when the newest listing of the queue began."""
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
