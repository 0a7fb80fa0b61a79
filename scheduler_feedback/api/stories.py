"""Stories: what the store has of a job, put together with what it has of the nodes that the job ran on."""

from __future__ import annotations

from scheduler_feedback.api import documents as documents
from scheduler_feedback.journal.store import Reader

_LARGEST = 2**63 - 1  # of an SQLite integer


class Story:
    """A job's story, read in pages. Its methods wait for the disk, and raise StoreError.

    Of each node it has what was written from the start of an attempt that was there to the start of the next: what is
    done to a node that a gang was moved away from belongs to the gang's story.
    """

    def __init__(self, store: Reader, job_id: str) -> None:
        self._store = store
        self._job_id = job_id
        self._parts: list[tuple[str, int, int]] | None = None

    def page(self, after: int, most: int) -> list[documents.Document]:
        """The entries after this one, oldest first, at most so many; none where nothing is known of the job."""
        return [documents.entry_document(one) for one in self._store.entries_of_all(self._wanted(), after, most)]

    def newest(self, most: int) -> list[documents.Document]:
        """The newest entries, the newest first."""
        found = self._store.entries_of_all(self._wanted(), most=most, newest=True)
        return [documents.entry_document(one) for one in found]

    def _wanted(self) -> list[tuple[str, int, int]]:
        """Whose entries belong to it, each from its first cycle to its last."""
        if self._parts is None:
            begun = [one for one in self._store.actions_of(self._job_id) if documents.placement_of(one)]
            ended = self._store.end_of(self._job_id)
            ends = [*(one.cycle for one in begun[1:]), _LARGEST if ended is None else ended]
            self._parts = [(self._job_id, 0, _LARGEST)]
            for recorded, until in zip(begun, ends, strict=True) if begun else ():
                for node in {slot.node for slot in documents.placement_of(recorded)}:
                    self._parts.append((f"node:{node}", recorded.cycle, until))
        return self._parts
