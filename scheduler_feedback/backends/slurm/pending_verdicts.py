"""Findings: what detectors say, in the cycle's names, kept until the cycle can judge it.

That is once it knows the gang, which a look tells it of; and, of a verdict, once Slurm's whole queue was looked at
since: what waits there decides whether a slow node is worth more in use. What is said of a gang stays in its order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from scheduler_feedback.backends.slurm.slurm_names import gang_of, job_id_of, number_of, renamed
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Verdict

HELD_BACK_SECONDS = 120.0
"""What is found of a gang that the cycle does not know yet waits so long for the look that tells of it."""


class Findings:
    """``take`` is called from the watch's thread, ``free`` from the cycle's. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_back: deque[tuple[float, Event]] = deque()
        self.wants_queue = False
        """Whether a verdict is kept until the whole queue has been looked at."""

    def take(self, events: Sequence[Event], known: Collection[str], now: float) -> list[Event]:
        """Those that the cycle may be told at once; the others are kept. known: gangs that the cycle knows."""
        told: list[Event] = []
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
                    told.append(event)
        return told

    @property
    def waiting(self) -> bool:
        """Whether anything is kept for which a look should be hurried."""
        return bool(self._held_back)

    def free(self, known: Collection[str], listed_seconds: float, now: float) -> list[Event]:
        """Those that the cycle may be told by now. listed_seconds: when the newest look at the whole queue began."""
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
