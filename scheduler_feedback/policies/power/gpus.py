"""GPUs of slots, and what their limits add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import Mode, State

TINY = 1e-6
"""Rounding error of sums of watts."""

_Kind = tuple[float, float, float, bool]
"""Lowest, highest and present limit of a GPU, and whether its agent sets limits."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of some slots."""

    kinds: tuple[tuple[_Kind, int], ...]
    """Kinds of GPUs, with the number of each."""
    idle_watts: float
    """Sum of their idle power."""
    unknown: tuple[str, ...] = ()
    """Nodes whose GPUs no agent has reported, sorted."""

    @property
    def least_watts(self) -> float:
        """Lowest limit that all GPUs with settable limits can have; 0 if there are none."""
        return max((kind[0] for kind, _ in self.kinds if kind[3]), default=0.0)

    @property
    def most_watts(self) -> float:
        """Highest limit that all GPUs with settable limits can have; 0 if there are none."""
        return min((kind[1] for kind, _ in self.kinds if kind[3]), default=0.0)

    def watts(self, limit_watts: float, confirmed: bool = False) -> float:
        """Return the sum of the limits if the settable ones are this limit, each within its own bounds.

        confirmed: whether a GPU counts with its reported limit while that is higher.
        """
        total = 0.0
        for (least, most, present, settable), count in self.kinds:
            wanted = min(max(limit_watts, least), most) if settable else present
            total += count * (max(wanted, present) if confirmed else wanted)
        return total


NO_GPUS = Gpus((), 0.0)


def in_force(state: State) -> bool:
    """Return whether the scheduler keeps a power budget. Mode `observe` sets no limits and delays no gang."""
    return state.policy.power_budget_watts > 0 and state.policy.mode is Mode.ACT


def gpus_of(state: State, slots: Iterable[Slot]) -> Gpus:
    """Return the GPUs of these slots. A node without GPUs counts nothing."""
    kinds: Counter[_Kind] = Counter()
    idle, unknown = 0.0, set()
    for slot in slots:
        reported = state.power.get(slot.node)
        if reported is None or slot.slot >= len(reported):
            node = state.nodes.get(slot.node)
            if node is not None and (node.devices or node.gpu_type):
                unknown.add(slot.node)
            continue
        one = reported[slot.slot]
        kinds[one.least_watts, one.most_watts, one.limit_watts, one.settable] += 1
        idle += one.idle_watts
    return Gpus(tuple(sorted(kinds.items())), idle, tuple(sorted(unknown)))


def most_ranks(state: State) -> int | None:
    """Return with how many ranks a gang could run if all other GPUs were idle; None: the budget allows all slots."""
    if not in_force(state) or not state.power or any(name not in state.power for name in state.nodes):
        return None
    reported = [one for slots in state.power.values() for one in slots]
    left = state.policy.power_budget_watts - sum(one.idle_watts for one in reported) + TINY
    needs = sorted((one.least_watts if one.settable else one.limit_watts) - one.idle_watts for one in reported)
    for number, need in enumerate(needs):
        left -= max(need, 0.0)
        if left < 0:
            return number
    return None


def never_fits(state: State, slots: Sequence[Slot]) -> bool:
    """Return whether a gang on these slots would exceed the budget if all other GPUs were idle."""
    if not in_force(state) or not state.power:
        return False
    gpus = gpus_of(state, slots)
    idle = sum(one.idle_watts for reported in state.power.values() for one in reported)
    return gpus.watts(0.0) + idle - gpus.idle_watts > state.policy.power_budget_watts + TINY
