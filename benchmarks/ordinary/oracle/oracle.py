"""Conversion of doubts (possible failures) to failures, after a doubt has persisted for its patience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.ordinary.oracle import agreement, daemons, lives, places, quotas, reasons, verdicts
from benchmarks.ordinary.oracle.facts import Doubt, Facts, Failure, Instant

Check = Callable[[Facts, Instant], Iterator[Doubt]]

CHECKS: tuple[Check, ...] = (
    places.slots_once,
    places.processes_fit,
    lives.nothing_lost,
    lives.nothing_twice,
    lives.nothing_left,
    lives.states_true,
    lives.ends_true,
    lives.times_true,
    lives.commands_done,
    agreement.statements_agree,
    reasons.reasons_true,
    reasons.room_is_used,
    quotas.quotas_kept,
    verdicts.nobody_accused_wrongly,
    verdicts.everybody_found,
    verdicts.hangs_restarted,
    daemons.nothing_ended,
)

SIGHTINGS = 3
"""Number of times that a wrong state must be seen before it is a failure. One late reading can explain two times."""


class Oracle:
    """Runner of all checks on changed facts, with the duration of each doubt (possible failure).

    checked: number of runs of each check that had data to check.
    """

    def __init__(self, facts: Facts, checks: tuple[Check, ...] = CHECKS) -> None:
        self.facts = facts
        self.checked: Counter[str] = Counter()
        self._checks = checks
        self._since: dict[tuple[str, str, str], tuple[float, int]] = {}

    def judge(self, now: Instant) -> list[Failure]:
        """Run the checks. Return the failures: doubts that have lasted longer than their patience."""
        found: list[Failure] = []
        seen: dict[tuple[str, str, str], tuple[float, int]] = {}
        for check in self._checks:
            self.checked[check.__name__] += 1
            for doubt in check(self.facts, now):
                # Without digits, because the size of an error may change between readings.
                key = (doubt.check, doubt.subject, "".join(c for c in doubt.text if not c.isdigit()))
                since, times = self._since.get(key, (now.fair, 0))
                seen[key] = since, times + 1
                lasted = now.fair - since
                if doubt.patience <= 0 or (lasted > doubt.patience and times + 1 >= SIGHTINGS):
                    text = doubt.text if doubt.patience <= 0 else f"{doubt.text} (for {lasted:.1f} fair seconds)"
                    found.append(Failure(doubt.check, doubt.subject, text, now.wall))
        self._since = seen
        return found

    @property
    def checks(self) -> int:
        """Return the total number of checks that were made."""
        return sum(self.checked.values())
