"""Index of the parts of slots that are left, which chooses a slot for a job by FGD or by best fit.

Nodes with equal slots left form a group, so that a choice compares groups and not nodes. The index follows from the
state alone: nodes that have changed are read again before the next choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.index.domains import lowest
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.shares.declared_parts import FULL, Left, Part, left_after, left_of, part_of
from scheduler_feedback.policies.shares.fragmentation import Fragmentation
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI, Room
from scheduler_feedback.policies.shares.placement_rules import SCALE_MILLI, STEPS
from scheduler_feedback.policies.shares.seen_requests import workload


MOST_GROUPS = 1024
"""Maximum number of groups without nodes whose choices are kept."""


class Group(NamedTuple):
    """Properties of a node on which the choice depends."""

    gpu_type: str
    """GPU type of the slots."""
    device_mib: int
    """Device memory of a slot in MiB; 0: unknown."""
    left: tuple[Left, ...]
    """What is left of each slot, in descending order."""


class Choice(NamedTuple):
    """How well a group of nodes suits a request; the largest is best."""

    score: float
    """Score of the rule."""
    fullness: int
    """Minus the thousandths of the node's slots that remain usable."""
    slot_fullness: int
    """Minus the thousandths of the chosen slot that remain usable."""
    left: Left
    """What is left now of the slot to use; for whole slots, that of a free slot."""


class SlotParts:
    """Parts of slots that are left on each node, for one plan of free slots."""

    def __init__(self, index: SchedulingIndex) -> None:
        self.index, self.plan = index, index.plan
        topology = self.plan.topology
        self.groups: dict[Group, int] = {}
        """Nodes of each group, as a bit mask."""
        self._group_of: list[Group | None] = [None] * len(topology.names)
        self._stale = set(range(len(topology.names)))
        self.plan.changed = self._stale
        self._choices: dict[Group, dict[tuple[Part, int], Choice | None]] = {}
        self._typical: object = None
        self._fragmentation: Fragmentation | None = None
        self._nodes = [index.state.nodes[name] for name in topology.names]

    def touch(self, slots: Iterable[Slot]) -> None:
        """Note that the jobs on these slots have changed."""
        number = self.plan.topology.number
        self._stale.update(number[slot.node] for slot in slots if slot.node in number)

    # --- what is left ------------------------------------------------------------------------------------------------

    def left_on(self, number: int, barred: int = 0) -> list[Left]:
        """Return what is left of each slot of the node with this number. barred: slots not to use, as a bit mask."""
        node, free = self._nodes[number], self.plan.free_slots(number) & ~barred
        sharers, jobs = self.index.sharers, self.index.state.jobs
        empty = Left(GPU_MILLI, node.slot_memory_mib, node.jobs_per_slot)
        found = []
        for position, slot in enumerate(self.plan.topology.slots[number]):
            here = sharers.get(slot) if not barred >> position & 1 else None
            if free >> position & 1:
                found.append(empty)
            elif here:
                parts = [part_of(jobs[one].spec) for one in here]
                found.append(left_of(parts, node.slot_memory_mib, node.jobs_per_slot))
            else:
                found.append(FULL)
        return found

    def read(self) -> dict[Group, int]:
        """Return the present groups of nodes, each as a bit mask."""
        self._update()
        return self.groups

    def _update(self) -> None:
        """Read the nodes that have changed since the last call."""
        for number in sorted(self._stale):
            bit, old = 1 << number, self._group_of[number]
            group = self._group(number, self.left_on(number))
            if group == old:
                continue
            if old is not None:
                rest = self.groups[old] & ~bit
                if rest:
                    self.groups[old] = rest
                else:
                    del self.groups[old]
                    self._choices.pop(old, None)
            self._group_of[number] = group
            self.groups[group] = self.groups.get(group, 0) | bit
        self._stale.clear()
        requests = self.index.state.requests
        if len(self._choices) > MOST_GROUPS + 2 * len(self.groups):
            self._choices.clear()
        if requests.typical is not self._typical:
            self._typical = requests.typical
            self._choices.clear()
            self._fragmentation = None
            if self.index.state.policy.sharing is Sharing.FGD and requests.typical:
                device_mib = max((node.slot_memory_mib for node in self._nodes), default=0)
                typical = workload(requests, self.plan.topology.largest, device_mib)
                self._fragmentation = Fragmentation(typical)

    def _group(self, number: int, left: Iterable[Left]) -> Group:
        node = self._nodes[number]
        return Group(node.gpu_type, node.slot_memory_mib, tuple(sorted(left, reverse=True)))

    # --- choice ------------------------------------------------------------------------------------------------------

    def choose(
        self, part: Part, ranks: int, allowed: int, kept: Mapping[int, int], shared_only: bool = False
    ) -> tuple[int, Left] | None:
        """Return the best node for the request, and what is left now of the slot to use there; None if it fits nowhere.

        part: part of one slot; with several ranks, or a part that is unknown, whole slots are used. allowed: nodes that
        may be used, as a bit mask. kept: slots that must not be used, as bit masks by number of the node. shared_only:
        whether only slots are considered that other jobs hold already.
        """
        self._update()
        best: tuple[tuple[float, int, int, int], int, Left] | None = None
        apart = sum(1 << number for number in kept)
        candidates = [(group, nodes & allowed & ~apart) for group, nodes in self.groups.items()]
        candidates += [
            (self._group(number, self.left_on(number, mask)), 1 << number)
            for number, mask in kept.items()
            if allowed >> number & 1
        ]
        for group, nodes in candidates:
            if not nodes:
                continue
            choice = self._choice(group, part, -ranks if shared_only else ranks)
            if choice is None:
                continue
            number = lowest(nodes)
            key = (*choice[:3], -number)
            if best is None or key > best[0]:
                best = (key, number, choice.left)
        return None if best is None else best[1:]

    def _choice(self, group: Group, part: Part, ranks: int) -> Choice | None:
        """Return how well the group suits. ranks: number of whole slots; negative: only shared slots are used."""
        known = self._choices.setdefault(group, {})
        found = known.get((part, ranks), False)
        if found is False:
            found = known[(part, ranks)] = self._compute(group, part, abs(ranks), ranks < 0)
        assert found is None or isinstance(found, Choice)
        return found

    def _compute(self, group: Group, part: Part, ranks: int, shared_only: bool) -> Choice | None:
        device = group.device_mib
        now = [left.usable_milli(device) for left in group.left]
        best: Choice | None = None
        for left in dict.fromkeys(group.left):
            empty = left.share_milli == GPU_MILLI and left.memory_mib == device
            if (shared_only and empty) or (ranks > 1 and not empty):
                continue
            after = left_after(left, part, device)
            if after is None:
                continue
            then = now[:]
            if ranks == 1:
                then[group.left.index(left)] = after.usable_milli(device)
            else:
                free = [position for position, one in enumerate(group.left) if one == left]
                if len(free) < ranks:
                    continue
                for position in free[:ranks]:
                    then[position] = 0
            choice = Choice(self._score(group, now, then), -sum(then), -after.usable_milli(device), left)
            if best is None or choice[:3] > best[:3]:
                best = choice
        return best

    def _score(self, group: Group, now: list[int], then: list[int]) -> float:
        """Return the score of using a node's slots in this way; larger is better.

        As in ``placement_rules``, the scores of FGD are whole numbers, so that best fit decides among similar ones.
        """
        if self._fragmentation is None:
            return 0.0
        milli = self._fragmentation.milli
        less = milli(Room(tuple(now), gpu_type=group.gpu_type)) - milli(Room(tuple(then), gpu_type=group.gpu_type))
        return float(math.floor(STEPS / (1 + math.exp(-less / SCALE_MILLI))))

    def slot_of(self, number: int, left: Left, barred: int) -> Slot:
        """Return the first slot of the node of which this is left. barred: slots not to use, as a bit mask."""
        return self.plan.topology.slots[number][self.left_on(number, barred).index(left)]


def parts_of(index: SchedulingIndex) -> SlotParts:
    """Return the parts of slots that are left; build them if the index has none for its present plan."""
    found = index.parts
    if found is None or found.plan is not index.plan:
        found = index.parts = SlotParts(index)
    return found


def kept_slots(index: SchedulingIndex, reserved: Iterable[Slot] = ()) -> dict[int, int]:
    """Return the slots that no job may join, as bit masks by number of the node: claimed, reserved, or being vacated."""
    found: dict[int, int] = {}
    number = index.plan.topology.number
    claimed = (slot for slots in index.claims.values() for slot in slots)
    vacated = (slot for job_id in index.stopping for slot in index.held.get(job_id, ()))
    for slot in (*claimed, *vacated, *reserved):
        if (node := number.get(slot.node)) is not None:
            found[node] = found.get(node, 0) | 1 << slot.slot
    return dict(sorted(found.items()))


def allowed_nodes(index: SchedulingIndex, pools: Iterable[int]) -> int:
    """Return the nodes of these pools, as a bit mask."""
    found = 0
    for pool in pools:
        for nodes in index.plan.with_free[pool]:
            found |= nodes
    return found
