"""Turn: one run of the cycle while it is under way: the state, the time, and what has been decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.state import State


@dataclass(slots=True)
class Turn:
    """state: changed in place. now_ns: the cycle's time. arrived: jobs that became pending in this turn.

    looked: whether it was looked at what to preempt, or what such a look would have thought of was used up: that may
    change what is decided later even where nothing is done.
    """

    state: State
    now_ns: int
    actions: list[Action] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)
    looked: bool = False
    due: bool = False
    """Whether a timeout of a policy has expired: every decision is evaluated again."""

    def tell(
        self, subject: str, kind: str, text: str, detail: tuple[tuple[str, str], ...] = (), applied: bool = True
    ) -> None:
        """Leave a sentence for explain and story."""
        self.entries.append(Entry(self.now_ns, subject, kind, text, applied, detail))

    def decide(
        self, subject: str, kind: str, text: str, detail: tuple[tuple[str, str], ...] = (), outcome: str = "applied"
    ) -> None:
        """Leave a sentence about a decision and count it; only an outcome of 'applied' was really done."""
        self.tell(subject, kind, text, detail, outcome == "applied")
        self.count("decisions", kind, outcome)

    def count(self, *name: str) -> None:
        """One more of what the metrics count under this name; read back by ``core.measures``."""
        key = "/".join(name)
        self.state.counts[key] = self.state.counts.get(key, 0) + 1

    def action_id(self) -> str:
        """The next action's id; rising, and never given twice."""
        self.state.action_count += 1
        return f"a-{self.state.action_count:06d}"

    def after(self, seconds: float) -> int:
        """The instant so many seconds from now."""
        return self.now_ns + nanoseconds(seconds)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def span(seconds: float) -> str:
    """A length of time for a person: '0.4 s', '42 s', '3 min', '2.5 h'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
