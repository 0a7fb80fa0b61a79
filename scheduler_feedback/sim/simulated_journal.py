"""Journal of a simulation, in the store format of production, so that `gangwatch replay` reads both.

A simulation's journal need not survive a crash. Each transaction therefore contains many cycles, and writes are not
synced. The entries of stories are not stored, because a replay creates them again.
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
"""Number of cycles that are written in one database transaction. The transaction itself then costs little compared with
the rows that it writes."""


class JournalFile(Journal):
    """Journal in a new file. Raises StoreError if the file exists or cannot be written."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise StoreError(f"{path}: already exists; a simulation needs a new file for its journal")
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
