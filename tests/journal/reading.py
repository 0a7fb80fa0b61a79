"""Helper that reads a journal up to one moment."""

from __future__ import annotations

from scheduler_feedback.journal.store import Loaded, Reader


def journal_to(reader: Reader, now_ns: int | None = None, cycle: int | None = None) -> Loaded:
    """Return the content of the journal until a time or a cycle."""
    with reader.replaying(now_ns=now_ns, cycle=cycle) as running:
        return Loaded(running.state, {}, tuple(running.journal))
