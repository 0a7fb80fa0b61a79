"""Checks of a round: no gang half-started, none lost, no rank that runs twice. Pure.

A process is evidence that the API server cannot give: a node without network runs its ranks on, and the API shows its
last report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Rank = tuple[str, int]
"""Gang, and number of the rank in it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A running pod as the API server reports it."""

    rank: int
    node: str
    attempt: int


def twice(processes: Iterable[Rank]) -> set[Rank]:
    """Return the ranks of which two processes run at the same time. processes: the rank of each running process."""
    return {rank for rank, count in Counter(processes).items() if count > 1}


def whole(size: int, members: Iterable[Member], processes: Iterable[int]) -> bool:
    """Return whether a gang runs completely: every rank once, in one attempt, in the API and as a process.

    size: number of ranks of the gang. processes: the rank of each of its running processes.
    """
    members, wanted = list(members), list(range(size))
    return (
        sorted(member.rank for member in members) == wanted
        and len({member.attempt for member in members}) == 1
        and sorted(processes) == wanted
    )


def violations(
    sizes: Mapping[str, int], members: Mapping[str, list[Member]], processes: list[Rank], seen_twice: Iterable[Rank]
) -> list[str]:
    """Return what is wrong after a round, once every fault has been removed and the limit has passed.

    sizes: number of ranks of each gang that was created and not deleted. members: running pods of each gang.
    processes: rank of each running process. seen_twice: ranks that ran twice at any moment of the round.
    """
    found = [f"run twice: rank {rank} of {gang}" for gang, rank in sorted(set(seen_twice))]
    for gang, size in sizes.items():
        own = members.get(gang, [])
        ranks = [rank for name, rank in processes if name == gang]
        if whole(size, own, ranks):
            continue
        state = f"{len(own)} of {size} pods run, with {len(ranks)} processes, attempts {attempts(own)}"
        found.append(f"{'half-started' if own or ranks else 'lost'}: {gang}: {state}")
    return found


def attempts(members: Iterable[Member]) -> list[int]:
    """Return the numbers of the attempts of these pods."""
    return sorted({member.attempt for member in members})
