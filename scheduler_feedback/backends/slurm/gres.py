"""Generic resources, as Slurm writes them: 'gpu:h200:8(IDX:0-3,6)', 'gpu:2,shard:4', 'gpu:a100:4(S:0-1)'. Pure."""

from __future__ import annotations

import re

_GPU = re.compile(r"gpu(?::([^:,()]+))?:(\d+)(?:\(([^)]*)\))?(?=,|$)")
_ALONE = re.compile(r"gpu(?::([^:,()0-9][^:,()]*))?(?=,|$)")


def gpus_of(text: str) -> tuple[int, str]:
    """How many GPUs, and of which type: the only one's, '' where there is none or more than one."""
    found = _GPU.findall(text)
    kinds = {kind for kind, _, _ in found}
    count = sum(int(number) for _, number, _ in found)
    if not found and (alone := _ALONE.match(text)) is not None:
        return 1, alone[1] or ""
    return count, kinds.pop() if len(kinds) == 1 else ""


def wanted(a_job: str, a_node: str, a_task: str, nodes: int, tasks: int) -> int:
    """How many GPUs a job asks for in all: what it said of them for all of it, else a node, else a task."""
    for text, count in ((a_job, 1), (a_node, nodes), (a_task, tasks)):
        if each := gpus_of(text.replace("=", ":"))[0]:
            return each * count
    return 0


def indices_of(text: str) -> tuple[int, ...]:
    """Which GPUs of the node: those that IDX names; where none are named, as many as are counted, from 0.

    Raises ValueError for indices that are none.
    """
    indices: list[int] = []
    for _, number, inside in _GPU.findall(text):
        _, index, listed = inside.partition("IDX:")
        if not index or listed in ("N/A", ""):
            indices += range(len(indices), len(indices) + int(number))
            continue
        for word in listed.split(","):
            first, _, last = word.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                raise ValueError(f"{listed[:40]!r} in {text[:60]!r} are no indices of GPUs")
            indices += range(int(first), int(last or first) + 1)
    return tuple(sorted(set(indices)))
