"""Datasets in the caches of nodes, as far as the scheduler knows: a node keeps what its jobs have read.

The cache of a node has `Policy.dataset_cache_gib`. A job that runs on the node leaves its dataset there, and the
datasets that were used least recently make room, as in a cache that the nodes manage themselves (the page cache, or
Alluxio, JuiceFS or fsspec on a local disk). Nothing asks the nodes, so a cache that was emptied is known only once the
node disappears.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.core.state import CachedDataset, State

MOST_KEPT = 256
"""Maximum number of datasets of a node that are remembered: jobs may name any number of tiny ones."""

MOST_NAMED = 3
"""Maximum number of nodes that a text names."""


def note_use(state: State, spec: JobSpec, nodes: Iterable[str]) -> None:
    """Record that the job reads its dataset on these nodes now."""
    room = state.policy.dataset_cache_gib
    if not spec.dataset or not room:
        return
    for node in dict.fromkeys(nodes):
        forget(state, node, spec.dataset)
        if spec.dataset_gib > room:
            continue
        kept = sorted(_on(state, node), key=lambda one: (-one[1].used_ns, one[0]))
        left = room - spec.dataset_gib
        for number, (name, cached) in enumerate(kept, 1):
            left -= cached.gib
            if left < 0 or number >= MOST_KEPT:
                forget(state, node, name)
        state.datasets.setdefault(spec.dataset, {})[node] = CachedDataset(spec.dataset_gib, state.now_ns)


def _on(state: State, node: str) -> list[tuple[str, CachedDataset]]:
    return [(name, nodes[node]) for name, nodes in state.datasets.items() if node in nodes]


def forget(state: State, node: str, dataset: str = "") -> None:
    """Remove a dataset from what is known about the node; without a name, all of them."""
    for name in [dataset] if dataset else list(state.datasets):
        nodes = state.datasets.get(name, {})
        nodes.pop(node, None)
        if not nodes:
            state.datasets.pop(name, None)


def in_words(state: State, spec: JobSpec, slots: Iterable[Slot]) -> str:
    """Return where the starting gang's dataset is, as a part of a sentence; '' if nothing is known about it."""
    warm = state.datasets.get(spec.dataset)
    if not state.policy.dataset_cache_gib or not warm:
        return ""
    cold = [node for node in dict.fromkeys(slot.node for slot in slots) if node not in warm]
    if not cold:
        return f"; dataset {spec.dataset} is expected in the cache of all its nodes"
    named = ", ".join(cold[:MOST_NAMED]) + (f" and {len(cold) - MOST_NAMED} more" if len(cold) > MOST_NAMED else "")
    return f"; dataset {spec.dataset} is not in the cache of {named}"
