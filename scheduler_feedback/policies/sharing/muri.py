"""Muri: up to four jobs share slots if their stages use different resources at the same time.

Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM'22, section 4. In each phase of an
iteration, every job uses another resource, and the longest stage of the phase decides when the next one begins.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

from scheduler_feedback.policies.sharing.case import Case, Chance

MOST_JOBS = 4
"""Largest number of jobs in a group, one per resource (section 4)."""


def chance(case: Case) -> Chance | None:
    """Return the share of time in which the resources are in use; None if the group is no faster than its host alone.

    All jobs of a group have the same number of ranks, as in Muri, so that no rank of a gang waits for another rank.
    """
    group = (case.host, *case.others, case.guest)
    stages = tuple(job.spec.stages for job in group)
    if len(group) > MOST_JOBS or not all(stages) or len({len(one) for one in stages}) > 1:
        return None
    if case.guest.spec.ranks != len(case.host.ranks):
        return None
    together = iteration_seconds(stages)
    gain = sum(sum(one) for one in stages) / together  # total speed: each runs at (its iteration / the group's)
    without = sum(sum(one) for one in stages[:-1]) / iteration_seconds(stages[:-1])
    if gain <= without:
        return None
    return Chance(gain, f"{gain:.2f}x together by their stages")


@lru_cache(maxsize=1 << 16)
def iteration_seconds(stages: tuple[tuple[float, ...], ...]) -> float:
    """Return the shortest duration in which each of these jobs makes one iteration.

    stages[job][resource]: seconds. In each phase, a job with offset k uses resource phase - k, modulo the number of
    phases, and no two jobs have the same offset. The longest stage in use is the duration of the phase.
    """
    phases = max(len(stages[0]), len(stages))
    padded = tuple((*one, *(0.0,) * (phases - len(one))) for one in stages)
    first, rest = padded[0], padded[1:]
    return min(
        sum(
            max(first[phase], *(one[(phase - offset) % phases] for one, offset in zip(rest, offsets, strict=True)))
            for phase in range(phases)
        )
        if rest
        else sum(first)
        for offsets in permutations(range(1, phases), len(rest))
    )
