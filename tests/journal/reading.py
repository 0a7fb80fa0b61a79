"""Reading of a journal up to one moment, as a list."""

from __future__ import annotations

from scheduler_feedback.journal.store import Loaded, Reader


def journal_to(reader: Reader, now_ns: int | None = None, cycle: int | None = None) -> Loaded:
    """Return the replay up to a time or a cycle, read as a whole."""
    with reader.replaying(now_ns=now_ns, cycle=cycle) as running:
        return Loaded(running.state, {}, tuple(running.journal))
