"""Stories: what the store has of a job, put together with what it has of the nodes that the job ran on."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_feedback import api_documents as documents
from scheduler_feedback.store import Reader


def story_of(store: Reader, job_id: str) -> Sequence[documents.Document]:
    """The job's story, oldest first; empty where nothing is known of it. Raises StoreError."""
    own = store.entries_of(job_id)
    starts = store.actions_of(job_id)
    nodes = {slot.node for recorded in starts for slot in documents.placement_of(recorded)}
    of_node = {node: store.entries_of(f"node:{node}") for node in nodes}
    ended = next((numbered.cycle for numbered in reversed(own) if numbered.entry.kind == "ended"), None)
    return documents.story(own, starts, of_node, ended)
