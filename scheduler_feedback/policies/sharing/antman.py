"""AntMan: opportunistic jobs use what other jobs leave of their slots, and slow them by at most 2 %.

Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning", OSDI'20. The backend gives the opportunistic
job a lower priority on the slot; a host that still becomes slower loses its guest (``separation``).
"""

from __future__ import annotations

from scheduler_feedback.policies.sharing.case import Case, Chance
from scheduler_feedback.policies.sharing.pair_speeds import speed_beside

LEAST_HOST_SPEED = 0.98
"""Least speed of a job with an opportunistic guest, relative to its speed alone: 2 % slower at most."""

UNTRIED = 0.5
"""Speed that is assumed of an opportunistic job beside a job with which it was never measured."""


def chance(case: Case) -> Chance | None:
    """Return the leftover that the opportunistic job would get; None if it would slow the host."""
    guest, host = case.guest.spec, case.host.spec
    if not guest.opportunistic or host.opportunistic or case.others:
        return None
    theirs = speed_beside(case.state, host, (guest,))
    if theirs is not None and theirs < LEAST_HOST_SPEED:
        return None
    mine = speed_beside(case.state, guest, (host,))
    if mine is None:
        return Chance(UNTRIED, "opportunistic; not measured yet")
    return Chance(mine, f"opportunistic; measured to run at {mine:.2f} of its speed alone") if mine > 0 else None
