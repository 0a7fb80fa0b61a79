"""Gandiva: try any pair of jobs, and keep it while both together are measured to be faster than one after the other.

Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI'18, section 3. ``separation`` undoes a
pair once its speeds are measured; a pair of workloads that was undone is not tried again.
"""

from __future__ import annotations

from scheduler_feedback.policies.sharing.case import Case, Chance, combined, pays
from scheduler_feedback.policies.sharing.pair_speeds import speed_beside

UNTRIED = 1.0
"""Combined throughput that is assumed of a pair without a measurement: pairs that are known to gain go first."""


def chance(case: Case) -> Chance | None:
    """Return the gain of this pairing; None if it is known to be no gain, or if several jobs are there already."""
    if case.others:
        return None
    guest, host = case.guest.spec, case.host.spec
    mine, theirs = speed_beside(case.state, guest, (host,)), speed_beside(case.state, host, (guest,))
    if mine is None or theirs is None:
        return Chance(UNTRIED, "not measured yet")
    together = combined(len(case.host.ranks), theirs, guest.ranks, mine)
    if not pays(len(case.host.ranks), theirs, guest.ranks, mine, case.state.policy.separate_below):
        return None
    return Chance(together, f"measured {together:.2f}x together")
