"""Newest reports of ranks that make no progress: where each is blocked, by gang. No I/O.

The agents ask such ranks (agent/collectors/steps/blocked_ranks.py). Memory is bounded: beyond MOST_STACKS the reports
are kept without stacks, beyond MOST_REPORTS new ones are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.schema.frame import RANK_BLOCKED, EventRecord
from scheduler_feedback.core.plain_text import plain

MOST_STACKS = 4096
"""Maximum number of kept reports with stacks, of at most 8 kB each: 32 MB."""

MOST_REPORTS = 1 << 16
"""Maximum number of kept reports."""

MOST_WORD, MOST_STACKS_CHARACTERS = 512, 8192
"""Maximum length of a text of a report, and of its stacks. Longer ones are cut: an agent may send anything."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Newest report about one rank that makes no progress."""

    rank: int
    """Number of the rank."""
    node: str
    """Node that reported it."""
    at_ns: int
    """Time of the report on the detector's clock, in nanoseconds since 1970."""
    since_ns: int
    """Time of the first report of the same place, on the same clock."""
    reports: int
    """Number of consecutive reports of the same place."""
    answered: bool
    """Whether the process answered. If not, it is stopped or a C call holds Python's interpreter lock."""
    quiet_seconds: float = 0.0
    """Time since the rank's last record of a step or collective."""
    where: str = ""
    """Innermost place of the main thread, in words; '' if unknown."""
    stacks: str = ""
    """Python stacks of its threads, one frame a line."""
    operation: str = ""
    """Operation of the collective in which the rank is; '' if it is in none that it records."""
    group: str = ""
    """Name of the collective's process group."""
    group_ranks: str = ""
    """Ranks of that group, for example "0-7"."""
    sequence: int | None = None
    """Number of the collective in its group; None if it is not counted."""
    bytes: int | None = None
    """Size of the rank's input in bytes; None if unknown."""
    communicators: str = ""
    """NCCL's communicators that are incomplete or out of step according to the rank's RAS, in words; '' if unknown."""

    @property
    def in_collective(self) -> bool:
        return bool(self.operation)

    def is_as(self, other: Blocked) -> bool:
        """Return whether the rank is at the same place as in another report about it."""
        return (
            self.answered == other.answered
            and (self.where, self.operation, self.group, self.sequence)
            == (other.where, other.operation, other.group, other.sequence)
            and _main(self.stacks) == _main(other.stacks)
        )


def _main(stacks: str) -> str:
    """Return the stack of the main thread, which is the first one."""
    return stacks.split("\nthread ", 1)[0]


def read(record: EventRecord, rank: int, node: str, at_ns: int) -> Blocked | None:
    """Return the report in an agent's event; None if the event is of another kind. at_ns: time of the event on the
    detector's clock."""
    if record.kind != RANK_BLOCKED:
        return None
    detail = record.detail

    def word(name: str) -> str:
        return plain(detail.get(name, "")[:MOST_WORD])

    stacks = detail.get("stacks", "")[:MOST_STACKS_CHARACTERS].split("\n")
    return Blocked(
        rank, node, at_ns, at_ns, 1, detail.get("answered") == "1", _seconds(word("quiet_seconds")),
        word("where"), "\n".join(map(plain, stacks)), word("operation"), word("group"),
        word("group_ranks"), _count(word("sequence")), _count(word("bytes")),
        word("communicators"),
    )  # fmt: skip


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _seconds(text: str) -> float:
    try:
        seconds = float(text[:32])
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds < 1e9 else 0.0


class BlockedRanks:
    """Newest reports of all gangs. Owned by the thread that processes frames.

    dropped: number of reports that were dropped because there were too many.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[int, Blocked]] = {}
        self._reports = 0
        self._stacks = 0
        self.dropped = 0

    def add(self, gang: str, report: Blocked) -> None:
        """Keep the report, in place of an earlier one of the same rank."""
        of_gang = self._of.setdefault(gang, {})
        before = of_gang.get(report.rank)
        if before is None and self._reports >= MOST_REPORTS:
            self.dropped += 1
            if not of_gang:
                del self._of[gang]
            return
        if before is not None:
            if report.is_as(before):
                report = replace(report, since_ns=before.since_ns, reports=before.reports + 1)
            self._stacks -= bool(before.stacks)
        if report.stacks and self._stacks >= MOST_STACKS:
            report = replace(report, stacks="")
        self._stacks += bool(report.stacks)
        self._reports += before is None
        of_gang[report.rank] = report

    def of(self, gang: str) -> Mapping[int, Blocked]:
        """Return the newest report of each rank of the gang that sent one, by rank."""
        return self._of.get(gang, {})

    def forget(self, gang: str) -> None:
        """Delete the reports of the gang."""
        gone = self._of.pop(gang, {})
        self._reports -= len(gone)
        self._stacks -= sum(bool(report.stacks) for report in gone.values())
