"""Stories: the stored log entries of a job, merged with the entries of the nodes on which it ran."""

from __future__ import annotations

from scheduler_feedback.api import documents as documents
from scheduler_feedback.journal.store import Reader

_LARGEST = 2**63 - 1  # of an SQLite integer


class Story:
    """A job's story, read in pages. Its methods read from disk, and raise StoreError.

    It includes each node's entries from the start of an attempt on the node to the start of the next attempt. So it
    also shows what happened to a node after the gang was moved away.
    """

    def __init__(self, store: Reader, job_id: str) -> None:
        self._store = store
        self._job_id = job_id
        self._parts: list[tuple[str, int, int]] | None = None

    def page(self, after: int, most: int) -> list[documents.Document]:
        """Return at most `most` entries with a number above `after`, the oldest first; empty for an unknown job."""
        return [documents.entry_document(one) for one in self._store.entries_of_all(self._wanted(), after, most)]

    def newest(self, most: int) -> list[documents.Document]:
        """Return at most `most` of the newest entries, newest first."""
        found = self._store.entries_of_all(self._wanted(), most=most, newest=True)
        return [documents.entry_document(one) for one in found]

    def _wanted(self) -> list[tuple[str, int, int]]:
        """Return the job and nodes whose entries belong to the story: (subject, first cycle, last cycle) for each."""
        if self._parts is None:
            begun = [one for one in self._store.actions_of(self._job_id) if documents.placement_of(one)]
            ended = self._store.end_of(self._job_id)
            ends = [*(one.cycle for one in begun[1:]), _LARGEST if ended is None else ended]
            self._parts = [(self._job_id, 0, _LARGEST)]
            for recorded, until in zip(begun, ends, strict=True) if begun else ():
                for node in {slot.node for slot in documents.placement_of(recorded)}:
                    self._parts.append((f"node:{node}", recorded.cycle, until))
        return self._parts
