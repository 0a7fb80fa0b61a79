"""SJF-BSBF: share only if the mean completion time of both jobs is expected to be shorter than one after the other.

Luo et al., "Scheduling Deep Learning Jobs in Multi-Tenant GPU Clusters via Wise Resource Sharing", IWQoS'24: shortest
job first, best sharing benefit first.
"""

from __future__ import annotations

from scheduler_feedback.policies.sharing.case import Case, Chance, pays
from scheduler_feedback.policies.sharing.pair_speeds import speed_beside


def possible(case: Case) -> Chance | None:
    """Return whether both speeds are known and the pair pays, as a chance without gain; None if not."""
    if case.others:
        return None
    guest, host = case.guest.spec, case.host.spec
    mine, theirs = speed_beside(case.state, guest, (host,)), speed_beside(case.state, host, (guest,))
    if not mine or not theirs:  # unknown, or the pair cannot run together
        return None
    if not pays(len(case.host.ranks), theirs, guest.ranks, mine, case.state.policy.separate_below):
        return None  # it would delay the jobs behind both
    return Chance(0.0, "the pair pays")


def chance(case: Case) -> Chance | None:
    """Return the seconds by which sharing shortens both completion times together; None if it does not."""
    if possible(case) is None:
        return None
    mine = speed_beside(case.state, case.guest.spec, (case.host.spec,))
    theirs = speed_beside(case.state, case.host.spec, (case.guest.spec,))
    assert mine is not None
    assert theirs is not None
    saved = saved_seconds(case.host_seconds, theirs, case.guest_seconds, mine, case.wait_seconds)
    return Chance(saved, f"saves {saved:.0f} s of completion time of both together") if saved > 0 else None


def saved_seconds(
    host: float, host_speed: float, guest: float, guest_speed: float, wait: float = float("inf")
) -> float:
    """Return the sum of both completion times without sharing, minus the sum if they share from now on.

    host, guest: remaining run times alone, in seconds. Without sharing, the guest starts after `wait` seconds, at the
    latest at the end of the host.
    """
    host_ends, guest_ends = host / host_speed, guest / guest_speed
    if host_ends <= guest_ends:
        guest_ends = host_ends + guest - host_ends * guest_speed
    else:
        host_ends = guest_ends + host - guest_ends * host_speed
    return host + (min(wait, host) + guest) - (host_ends + guest_ends)
