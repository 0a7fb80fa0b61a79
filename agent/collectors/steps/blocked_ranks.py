"""Ranks that make no progress: when the agent asks them where they are blocked, and the events about their answers.

Pure: time is an argument. A rank makes progress whenever its ring has a new record. If it makes none for several of its
usual steps, the agent asks it over its connection, so that the evidence is on its way before anything restarts the job.
The agent asks again after longer and longer pauses: two equal answers show that the rank has not moved.

The content of an answer is a claim of the rank. It affects only the verdicts and texts about its own job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.schema.frame import RANK_BLOCKED, EventRecord, Member
from agent.sources.steps.step_messages import BlockedReport
from agent.sources.steps.tenants import Tenant, fair_shares

QUIET_NS = 5_000_000_000
"""Shortest time in ns without a record after which a rank is asked. A verdict is due within 15 s of a hang: 5 s until
the first question, 4 s until the second, and the delays of frames and detection."""

QUIET_STEPS = 3
"""A rank is asked after this multiple of its usual step without a record, so that long steps cause no questions. The
detector needs a longer pause (hang.py, TIMES_THE_USUAL)."""

UNKNOWN_QUIET_NS = 60_000_000_000
"""Time in ns without a record after which a rank is asked that has not finished a step: it may be starting."""

AGAIN_NS = (4_000_000_000, 15_000_000_000, 30_000_000_000, 60_000_000_000)
"""Pauses in ns between the questions to one rank. The last one repeats."""

ANSWER_NS = 3_000_000_000
"""Time in ns after which a question counts as not answered. An answer takes a millisecond unless the process is stopped
or a C call holds Python's interpreter lock."""

QUESTIONS_A_RUN = 16
"""Maximum number of questions in one run of the step collector, shared fairly among tenants. With answers of at most
9 kB the events of one frame stay below 300 kB."""


@dataclass(slots=True)
class _Quiet:
    """Questions to one rank since its last progress."""

    progress_ns: int
    """Time of the rank's newest record when it was asked first."""
    asked_ns: int = 0
    questions: int = 0
    unanswered: bool = False
    """Whether the last question was neither answered nor reported as unanswered."""


class BlockedRanks:
    """Questions to the ranks of one node. Owned by the step collector's thread."""

    def __init__(self) -> None:
        self._quiet: dict[Member, _Quiet] = {}

    def due(self, ranks: Mapping[Member, tuple[Tenant, int, float]], now_ns: int) -> list[Member]:
        """Return the ranks to ask now, at most QUESTIONS_A_RUN.

        ranks: for each rank that answers questions, its tenant, the time of its newest record in ns, and the length of
        its usual step in ns (0 if it has not finished one).
        """
        for member in [member for member in self._quiet if member not in ranks]:
            del self._quiet[member]
        wanted: dict[Tenant, list[Member]] = {}
        for member, (tenant, progress_ns, usual_ns) in ranks.items():
            quiet = self._quiet.get(member)
            if quiet is not None and quiet.progress_ns != progress_ns:
                del self._quiet[member]
                quiet = None
            if quiet is None:
                after_ns = max(QUIET_NS, QUIET_STEPS * usual_ns) if usual_ns else UNKNOWN_QUIET_NS
                is_due = now_ns - progress_ns >= after_ns
            else:
                pause_ns = AGAIN_NS[min(quiet.questions, len(AGAIN_NS)) - 1]
                is_due = not quiet.unanswered and now_ns - quiet.asked_ns >= pause_ns
            if is_due:
                wanted.setdefault(tenant, []).append(member)
        shares = fair_shares([len(members) for members in wanted.values()], QUESTIONS_A_RUN)
        found = [one for members, share in zip(wanted.values(), shares, strict=True) for one in members[:share]]
        for member in found:
            quiet = self._quiet.setdefault(member, _Quiet(ranks[member][1]))
            quiet.asked_ns, quiet.unanswered = now_ns, True
            quiet.questions += 1
        return found

    def answered(self, member: Member, report: BlockedReport, now_ns: int, wall_ns: int) -> EventRecord | None:
        """Return the event about a rank's answer; None if the rank has made progress since the question."""
        quiet = self._quiet.get(member)
        if quiet is None or not quiet.questions:
            return None
        quiet.unanswered = False
        return event_of(member, report, now_ns - quiet.progress_ns, wall_ns)

    def silent(self, now_ns: int, wall_ns: int) -> list[EventRecord]:
        """Return an event about each rank that has not answered its question in time."""
        found = []
        for member, quiet in self._quiet.items():
            if quiet.unanswered and now_ns - quiet.asked_ns >= ANSWER_NS:
                quiet.unanswered = False
                found.append(event_of(member, None, now_ns - quiet.progress_ns, wall_ns))
        return found


def event_of(member: Member, report: BlockedReport | None, quiet_ns: int, wall_ns: int) -> EventRecord:
    """Return the event about a blocked rank. report: its answer; None if it did not answer."""
    detail = {"quiet_seconds": f"{quiet_ns / 1e9:.1f}", "answered": "0" if report is None else "1"}
    if report is not None:
        detail |= {"where": _printable(report.where), "stacks": _stacks(report.stacks)}
        if report.communicators:
            detail["communicators"] = _printable(report.communicators)
        if (collective := report.collective) is not None:
            detail |= {
                "operation": _printable(collective.operation),
                "group": _printable(collective.group),
                "group_ranks": _printable(collective.ranks),
            }
            numbers: Sequence[tuple[str, int | None]] = (("sequence", collective.sequence), ("bytes", collective.bytes))
            detail |= {name: str(number) for name, number in numbers if number is not None}
    return EventRecord(RANK_BLOCKED, f"rank {member.rank}", wall_ns, detail, member)


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _stacks(text: str) -> str:
    return "\n".join(_printable(line) for line in text.split("\n"))
