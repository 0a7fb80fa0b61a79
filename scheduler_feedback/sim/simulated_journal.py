"""Journal of a simulation: the same store as in production, so that `gangwatch replay` reads both.

Nothing depends on a simulation's journal surviving a crash, so many cycles are one transaction and no write is waited
for. Sentences (entries) are not kept: a replay says them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.schema.errors import StoreError
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import Outcome
from scheduler_feedback.journal.store import CycleRow, Store
from scheduler_feedback.sim.engine import Journal

BATCH_CYCLES = 2000
"""Cycles a transaction: enough that its cost is lost among those of the rows."""


class JournalFile(Journal):
    """Writes every cycle to a new file. Raises StoreError where the file exists or can't be written."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise StoreError(f"{path}: exists already; a simulation's journal begins empty")
        self._store = Store(path, durable=False)
        self._rows: list[CycleRow] = []

    def write(self, now_ns: int, events: Sequence[Event], outcome: Outcome, state: State) -> None:
        self._rows.append(CycleRow(state.cycle, now_ns, events, outcome.actions))
        if len(self._rows) >= BATCH_CYCLES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._store.close()

    def _flush(self) -> None:
        self._store.append_all(self._rows)
        self._rows = []
