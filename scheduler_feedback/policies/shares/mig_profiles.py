"""MIG instances of NVIDIA GPUs: where each profile may start, and the start that leaves most for later instances.

A GPU has eight memory slices and seven compute slices. An instance occupies consecutive memory slices, and each profile
may start at some of them only. Instances can be created and destroyed while others on the GPU run, but a running
instance cannot move. So a bad start blocks larger profiles until the instance ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMPUTE_SLICES = 7
"""Compute slices of a GPU."""

MEMORY_SLICES = 8
"""Memory slices of a GPU."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A profile of MIG instances."""

    name: str
    """Name without the memory size, which depends on the GPU: '3g' is 3g.20gb, 3g.40gb, and so on."""
    compute: int
    """Number of compute slices."""
    memory: int
    """Number of memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may start."""

    def masks(self) -> list[tuple[int, int]]:
        """Return (start, occupied memory slices as a bit mask) of each possible instance."""
        return [(start, ((1 << self.memory) - 1) << start) for start in self.starts]


PROFILES = {
    one.name: one
    for one in (
        MigProfile("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfile("1g+memory", 1, 2, (0, 2, 4, 6)),
        MigProfile("2g", 2, 2, (0, 2, 4)),
        MigProfile("3g", 3, 4, (0, 4)),
        MigProfile("4g", 4, 4, (0,)),
        MigProfile("7g", 7, 8, (0,)),
    )
}
"""Profiles of A100 and H100 by name, without those with media engines. Sources: NVIDIA's MIG user guide, supported
profiles, and the output of `nvidia-smi mig -lgipp` on both: `{0,2,4}:2` are starts and memory slices."""


def smallest(compute: int, memory: int = 0) -> MigProfile | None:
    """Return the smallest profile with these compute and memory slices; None if there is none."""
    able = [one for one in PROFILES.values() if one.compute >= compute and one.memory >= memory]
    return min(able, key=lambda one: (one.compute, one.memory), default=None)


def free_starts(busy: int, profile: MigProfile) -> list[int]:
    """Return the starts at which an instance fits. busy: occupied memory slices, as a bit mask."""
    return [start for start, mask in profile.masks() if not busy & mask]


def room_for(busy: int, demand: Mapping[str, float]) -> float:
    """Return for how many compute slices of typical instances the GPU has room.

    The starts of one profile do not overlap, so it has room for as many as are free. demand: share of the requests by
    name of the profile.
    """
    return sum(
        share * PROFILES[name].compute * len(free_starts(busy, PROFILES[name])) for name, share in demand.items()
    )


def first_start(gpus: Sequence[int], profile: MigProfile) -> tuple[int, int] | None:
    """Return the first (number of the GPU, start) that is free; None if the instance fits nowhere.

    gpus: occupied memory slices of each GPU, as bit masks.
    """
    for number, busy in enumerate(gpus):
        if starts := free_starts(busy, profile):
            return number, starts[0]
    return None


def best_start(gpus: Sequence[int], profile: MigProfile, demand: Mapping[str, float]) -> tuple[int, int] | None:
    """Return the (number of the GPU, start) that takes least room from typical instances; None if it fits nowhere.

    Ties go to the fullest GPU, then to the lowest number and start. The rule is that of FGD (Weng et al., USENIX
    ATC'23) for instances instead of shares.
    """
    best: tuple[tuple[float, int, int, int], tuple[int, int]] | None = None
    seen: set[int] = set()
    for number, busy in enumerate(gpus):
        if busy in seen:  # equal GPUs: the first one is as good
            continue
        seen.add(busy)
        before = room_for(busy, demand)
        for start, mask in profile.masks():
            if busy & mask:
                continue
            lost = round(before - room_for(busy | mask, demand), 9)
            key = (lost, -busy.bit_count(), number, start)
            if best is None or key < best[0]:
                best = key, (number, start)
    return None if best is None else best[1]
