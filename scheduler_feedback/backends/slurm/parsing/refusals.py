"""Slurm records that could not be read: counted, and logged once each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from scheduler_feedback.backends.slurm.parsing.slurm_objects import Refused

MOST_LOGGED = 20
"""Maximum number of records that are logged; others are only counted, because a user can make any number of them."""

_log = logging.getLogger(__name__)


class Refusals:
    """Log and counts of the refused records."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter({"job": 0, "node": 0})
        """Number of refused records by kind. A record counts once in each listing."""
        self._logged: set[tuple[str, object]] = set()

    def note(self, refused: Iterable[Refused]) -> None:
        for one in refused:
            self.counts[one.kind] += 1
            key = one.kind, one.key if one.key is not None else one.where
            if key in self._logged or len(self._logged) > MOST_LOGGED:
                continue
            self._logged.add(key)
            if len(self._logged) > MOST_LOGGED:
                _log.warning("more Slurm records cannot be read; from now on they are counted and not logged")
                continue
            _log.warning("%s; the other records are used", sentence(one))


def sentence(one: Refused) -> str:
    """Return which record was refused, and why."""
    named = f"{one.kind} {one.key!r}" if one.key is not None else f"a {one.kind}"
    return f"{named} cannot be read: {one.where}{one.why}"[:400]
