"""Start of a MIG instance on a GPU: the one that takes least room from the instances that jobs typically ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_feedback.core.mig import MigProfile, named


def free_starts(busy: int, profile: MigProfile) -> list[int]:
    """Return the starts at which an instance fits. busy: occupied memory slices, as a bit mask."""
    return [start for start in profile.starts if not busy & profile.mask(start)]


def room_for(profiles: Sequence[MigProfile], busy: int, demand: Mapping[str, float]) -> float:
    """Return for how many compute slices of typical instances the GPU has room.

    The starts of one profile do not overlap, so it has room for as many instances as there are free starts. profiles:
    those of the GPU. demand: weight of each profile among the requests.
    """
    return sum(demand[one.name] * one.compute * len(free_starts(busy, one)) for one in profiles if demand.get(one.name))


def best_start(
    profiles: Sequence[MigProfile], busy: int, name: str, demand: Mapping[str, float]
) -> tuple[float, int] | None:
    """Return (lost room, start) of the start that takes least room from typical instances; None if none is free.

    Ties go to the start that takes least room from instances of all profiles, then to the lowest one. The rule is that
    of FGD (Weng et al., USENIX ATC'23) for instances instead of shares.
    """
    profile = named(profiles, name)
    if profile is None:
        return None
    every = {one.name: 1.0 for one in profiles}
    before, of_all = room_for(profiles, busy, demand), room_for(profiles, busy, every)
    found = []
    for start in free_starts(busy, profile):
        then = busy | profile.mask(start)
        lost = round(before - room_for(profiles, then, demand), 9)
        found.append((lost, of_all - room_for(profiles, then, every), start))
    if not found:
        return None
    lost, _, start = min(found)
    return lost, start
