"""Context of one run of the cycle: state, time, and the actions and entries decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of


@dataclass(slots=True)
class CycleContext:
    """State, time and results of one run of the cycle."""

    state: State
    """State of the cycle; policies change it in place."""
    now_ns: int
    """Time of the cycle, in ns; equal to ``state.now_ns``."""
    index: SchedulingIndex = field(init=False)
    """Values derived from the state, and the methods that change it."""
    actions: list[Action] = field(default_factory=list)
    """Actions for the backend that this cycle has decided."""
    entries: list[Entry] = field(default_factory=list)
    """Log entries written so far in this cycle; `explain` and `story` show them."""
    arrived: list[str] = field(default_factory=list)
    """Ids of the jobs that became pending in this cycle."""
    evaluated: bool = False
    """Whether this cycle evaluated decisions on which later cycles may depend, for example in a preemption pass. Such a
    cycle is written to the journal even if it decided nothing."""
    due: bool = False
    """Whether a policy's timeout has expired, so that every decision is evaluated again."""

    def __post_init__(self) -> None:
        self.index = index_of(self.state)

    def record(
        self, subject: str, kind: str, text: str, detail: tuple[tuple[str, str], ...] = (), applied: bool = True
    ) -> None:
        """Add a log entry, which `explain` and `story` show."""
        self.entries.append(Entry(self.now_ns, subject, kind, text, applied, detail))

    def decide(
        self, subject: str, kind: str, text: str, detail: tuple[tuple[str, str], ...] = (), outcome: str = "applied"
    ) -> None:
        """Add a log entry about a decision, and count the decision. Only an 'applied' decision is carried out."""
        self.record(subject, kind, text, detail, outcome == "applied")
        self.count("decisions", kind, outcome)

    def count(self, *name: str) -> None:
        """Add one to the metrics counter with this name. ``core.state_metrics`` publishes it."""
        key = "/".join(name)
        self.state.counts[key] = self.state.counts.get(key, 0) + 1

    def action_id(self) -> str:
        """Return the next action id. Ids increase and are never reused."""
        self.state.action_count += 1
        return f"a-{self.state.action_count:06d}"

    def after(self, seconds: float) -> int:
        """Return the time of the cycle plus this many seconds, in nanoseconds."""
        return self.now_ns + nanoseconds(seconds)
