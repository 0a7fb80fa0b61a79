"""Records of Slurm's that could not be read: counted, logged once each, and described."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from scheduler_feedback.backends.slurm.parsing.slurm_objects import Refused

MOST_LOGGED = 20
"""Records that are remembered as logged. Beyond that they are only counted: a user makes as many as he likes."""

_log = logging.getLogger(__name__)


class Refusals:
    """What was refused so far. counts: refused records by kind, one a listing."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter({"job": 0, "node": 0})
        self._logged: set[tuple[str, object]] = set()

    def note(self, refused: Iterable[Refused]) -> None:
        for one in refused:
            self.counts[one.kind] += 1
            key = one.kind, one.key if one.key is not None else one.where
            if key in self._logged or len(self._logged) > MOST_LOGGED:
                continue
            self._logged.add(key)
            if len(self._logged) > MOST_LOGGED:
                _log.warning("more records of Slurm's can't be read; they are counted and no more logged")
                continue
            _log.warning("%s; the others are used", sentence(one))


def sentence(one: Refused) -> str:
    """Which record, and why."""
    named = f"{one.kind} {one.key!r}" if one.key is not None else f"a {one.kind}"
    return f"{named} is not read: {one.where}{one.why}"[:400]
