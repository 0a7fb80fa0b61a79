"""Parser of generic resources: 'gpu:h200:8(IDX:0-3,6)', 'gpu:2,shard:4', 'gpu:a100:4(S:0-1)'. No I/O."""

from __future__ import annotations

import re
from functools import lru_cache

_GPU = re.compile(r"gpu(?::([^:,()]+))?:([0-9]{1,9})(?:\(([^)]*)\))?(?=,|$)")
_ALONE = re.compile(r"gpu(?::([^:,()0-9][^:,()]*))?(?=,|$)")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

MOST_GPUS = 1024
"""Maximum GPUs of one node: Slurm's limit on a node's generic resources (gres.c, MAX_GRES_BITMAP)."""


MOST_TEXTS = 4096
"""Number of texts whose meaning is kept: thousands of nodes and jobs have the same few texts in every listing."""


@lru_cache(MOST_TEXTS)
def gpus_of(text: str) -> tuple[int, str]:
    """Return the number of GPUs and their type; the type is '' if there is none or more than one."""
    found = _GPU.findall(text)
    kinds = {kind for kind, _, _ in found}
    count = sum(int(number) for _, number, _ in found)
    if not found and (alone := _ALONE.match(text)) is not None:
        return 1, alone[1] or ""
    return count, kinds.pop() if len(kinds) == 1 else ""


def wanted(a_job: str, a_node: str, a_socket: str, a_task: str, nodes: int, tasks: int) -> int:
    """Return how many GPUs a job requests: the number for the whole job, or the number per node, socket or task,
    multiplied.

    The number of sockets is unknown before the job runs: one for each node is assumed.
    """
    for text, count in ((a_job, 1), (a_node, nodes), (a_socket, nodes), (a_task, tasks)):
        if each := gpus_of(text.replace("=", ":"))[0]:
            return each * count
    return 0


@lru_cache(MOST_TEXTS)
def indices_of(text: str) -> tuple[int, ...]:
    """Return the indices of the GPUs on the node: those listed after IDX, else 0 up to the count minus one.

    Raises ValueError for malformed indices.
    """
    indices: set[int] = set()
    for _, number, inside in _GPU.findall(text):
        _, index, listed = inside.partition("IDX:")
        if not index or listed in ("N/A", ""):
            indices.update(_bounded(len(indices), len(indices) + int(number) - 1, text))
            continue
        for word in listed.split(","):
            span = _SPAN.fullmatch(word)
            if span is None:
                raise ValueError(f"{listed[:40]!r} in {text[:60]!r} are not GPU indices")
            indices.update(_bounded(int(span[1]), int(span[2] or span[1]), text))
    return tuple(sorted(indices))


def _bounded(first: int, last: int, text: str) -> range:
    """Return the indices from first to last. Raises ValueError before it builds a list that no node could have."""
    if last >= MOST_GPUS:
        raise ValueError(f"{text[:60]!r} names GPU {last}: a node has at most {MOST_GPUS}")
    return range(first, last + 1)
