"""Index of the parts of slots that are left, which chooses a slot for a job by FGD or by best fit.

Nodes with equal slots left form a group, so that a choice compares groups and not nodes. The index follows from the
state alone: nodes that have changed are read again before the next choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.index.domains import lowest
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.shares.declared_parts import FULL, Left, Part, left_after, left_of, part_of
from scheduler_feedback.policies.shares.fragmentation import Fragmentation
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI, Room
from scheduler_feedback.policies.shares.placement_rules import LARGEST_CPU_MILLI, LARGEST_GPU_MILLI, SCALE_MILLI, STEPS
from scheduler_feedback.policies.shares.seen_requests import workload

MOST_GROUPS = 1024
"""Maximum number of groups without nodes whose choices are kept."""

MOST_REQUESTS = 4096
"""Maximum number of different requests whose choices are kept."""


UNKNOWN_CPU = 1 << 40
"""Free thousandths of a processor of a node that has not reported any: enough for every request."""


class Request(NamedTuple):
    """What a job requests on one node."""

    part: Part
    """Part of one slot. With several ranks, or a part that is unknown, whole slots are used."""
    ranks: int
    """Number of slots."""
    cpu_milli: int
    """Thousandths of a processor of all ranks together."""
    shared_only: bool = False
    """Whether only slots are used that other jobs hold already."""


class Group(NamedTuple):
    """Properties of a node on which the choice depends."""

    gpu_type: str
    """GPU type of the slots."""
    device_mib: int
    """Device memory of a slot in MiB; 0: unknown."""
    cpu_milli: int
    """Free thousandths of a processor; UNKNOWN_CPU if the node has reported none."""
    left: tuple[Left, ...]
    """Free part of each slot, in descending order."""


class Choice(NamedTuple):
    """How well a group of nodes suits a request; the largest is best."""

    score: float
    """Score of the rule."""
    fullness: float
    """Minus the share of the largest node's slots and processors that remains usable, as in ``placement_rules``."""
    slot_fullness: int
    """Minus the thousandths of the chosen slot that remain usable."""
    left: Left
    """Present free part of the slot to use; for whole slots, that of a free slot."""


@dataclass(slots=True)
class Alike:
    """Nodes of one group, and the choices among them that are known."""

    group: Group
    """Properties of all of these nodes."""
    members: int = 0
    """The nodes, as a bit mask."""
    choices: dict[int, Choice | None] = field(default_factory=dict)
    """How well a request suits, by its number; None: it does not fit."""


class SlotParts:
    """Parts of slots that are left on each node, for one plan of free slots."""

    def __init__(self, index: SchedulingIndex, before: SlotParts | None = None) -> None:
        """before: parts of an earlier plan, whose choices are kept."""
        self.index, self.plan = index, index.plan
        topology = self.plan.topology
        self._alike: dict[Group, Alike] = {}
        self._in_use: dict[Group, Alike] = {}
        """Groups that have nodes."""
        self._apart: dict[tuple[int, int], Alike] = {}
        """Groups of nodes without some of their slots, by (number of the node, slots as a bit mask)."""
        self._alike_of: list[Alike | None] = [None] * len(topology.names)
        self._numbers: dict[Request, int] = {}
        self._stale = set(range(len(topology.names)))
        self.plan.changed = self._stale
        self._nodes = [index.state.nodes[name] for name in topology.names]
        self._scale = (topology.largest, max((node.slot_memory_mib for node in self._nodes), default=0))
        self._typical: object = None
        self._fragmentation: Fragmentation | None = None
        if before is not None and before._scale == self._scale:
            self._numbers, self._typical = before._numbers, before._typical
            self._fragmentation = before._fragmentation
            self._alike = {group: Alike(group, 0, one.choices) for group, one in before._alike.items()}

    def touch(self, slots: Iterable[Slot]) -> None:
        """Note that the jobs on these slots have changed."""
        number = self.plan.topology.number
        self._stale.update(number[slot.node] for slot in slots if slot.node in number)

    # --- free parts -------------------------------------------------------------------------------------------------

    def left_on(self, number: int, barred: int = 0) -> list[Left]:
        """Return the free part of each slot of the node with this number. barred: slots not to use, as a bit mask."""
        node, free = self._nodes[number], self.plan.free_slots(number) & ~barred
        sharers, jobs = self.index.sharers, self.index.state.jobs
        empty = Left(GPU_MILLI, node.slot_memory_mib, node.jobs_per_slot)
        found = []
        for position, slot in enumerate(self.plan.topology.slots[number]):
            here = sharers.get(slot) if not barred >> position & 1 else None
            if free >> position & 1:
                found.append(empty)
            elif here and slot not in self.index.divided:
                parts = [part_of(jobs[one]) for one in here]
                found.append(left_of(parts, node.slot_memory_mib, node.jobs_per_slot))
            else:
                found.append(FULL)
        return found

    def read(self) -> dict[Group, int]:
        """Return the present groups of nodes, each as a bit mask."""
        self._update()
        return {group: one.members for group, one in self._in_use.items()}

    def _update(self) -> None:
        """Read the nodes that have changed since the last call."""
        for number in sorted(self._stale):
            bit, old = 1 << number, self._alike_of[number]
            group = self._group(number, self.left_on(number))
            if old is not None:
                if group == old.group:
                    continue
                old.members &= ~bit
                if not old.members:
                    del self._in_use[old.group]
            alike = self._alike_of[number] = self._alike_in(group)
            alike.members |= bit
            self._in_use[group] = alike
        if self._stale:
            self._stale.clear()
            self._apart.clear()
        requests = self.index.state.requests
        if len(self._alike) > MOST_GROUPS + 2 * len(self._nodes) or len(self._numbers) > MOST_REQUESTS:
            self._alike = {group: Alike(group, one.members) for group, one in self._alike.items() if one.members}
            self._alike_of = [None if one is None else self._alike[one.group] for one in self._alike_of]
            self._in_use = dict(self._alike)
            self._numbers.clear()
            self._apart.clear()
        if requests.typical is not self._typical:
            self._typical = requests.typical
            for one in self._alike.values():
                one.choices.clear()
            self._fragmentation = None
            if self.index.state.policy.sharing is Sharing.FGD and requests.typical:
                self._fragmentation = Fragmentation(workload(requests, *self._scale))

    def _alike_in(self, group: Group) -> Alike:
        found = self._alike.get(group)
        if found is None:
            found = self._alike[group] = Alike(group)
        return found

    def _group(self, number: int, left: Iterable[Left]) -> Group:
        node = self._nodes[number]
        cpu = self.plan.cpu_milli_left(number)
        ordered = tuple(sorted(left, reverse=True))
        return Group(node.gpu_type, node.slot_memory_mib, UNKNOWN_CPU if cpu is None else cpu, ordered)

    # --- choice ------------------------------------------------------------------------------------------------------

    def choose(self, request: Request, allowed: int, kept: Mapping[int, int]) -> tuple[int, Left] | None:
        """Return the best node for the request, and the free part of the slot to use there; None if it fits nowhere.

        allowed: nodes that may be used, as a bit mask. kept: slots that must not be used, as bit masks by number of the
        node.
        """
        self._update()
        best: tuple[tuple[float, float, int, int], int, Left] | None = None
        which = self._numbers.setdefault(request, len(self._numbers))
        apart = [number for number in kept if allowed >> number & 1]
        for number in apart:
            allowed &= ~(1 << number)
        candidates = [(one, nodes) for one in self._in_use.values() if (nodes := one.members & allowed)]
        for number in apart:
            which_slots = (number, kept[number])
            if (rest := self._apart.get(which_slots)) is None:
                rest = self._alike_in(self._group(number, self.left_on(*which_slots)))
                self._apart[which_slots] = rest
            candidates.append((rest, 1 << number))
        for alike, nodes in candidates:
            try:
                choice = alike.choices[which]
            except KeyError:
                choice = alike.choices[which] = self._compute(alike.group, request)
            if choice is None or (best is not None and choice[:3] < best[0][:3]):
                continue
            number = lowest(nodes)
            key = (*choice[:3], -number)
            if best is None or key > best[0]:
                best = (key, number, choice.left)
        return None if best is None else best[1:]

    def _compute(self, group: Group, request: Request) -> Choice | None:
        part, ranks, cpu, shared_only = request
        device = group.device_mib
        if cpu > group.cpu_milli:
            return None
        spare_cpu = 0 if group.cpu_milli == UNKNOWN_CPU else group.cpu_milli - cpu
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
            fullness = -(sum(then) / LARGEST_GPU_MILLI + spare_cpu / LARGEST_CPU_MILLI)
            choice = Choice(self._score(group, now, then, cpu), fullness, -after.usable_milli(device), left)
            if best is None or choice[:3] > best[:3]:
                best = choice
        return best

    def _score(self, group: Group, now: list[int], then: list[int], cpu_milli: int) -> float:
        """Return the score of using a node's slots and processors in this way; larger is better.

        As in ``placement_rules``, the scores of FGD are whole numbers, so that best fit decides among similar ones.
        """
        if self._fragmentation is None:
            return 0.0
        milli, cpu, gpu_type = self._fragmentation.milli, group.cpu_milli, group.gpu_type
        less = milli(Room(tuple(now), cpu, 0, gpu_type)) - milli(Room(tuple(then), cpu - cpu_milli, 0, gpu_type))
        return float(math.floor(STEPS / (1 + math.exp(-less / SCALE_MILLI))))

    def slot_of(self, number: int, left: Left, barred: int) -> Slot:
        """Return the first slot of the node with this free part. barred: slots not to use, as a bit mask."""
        return self.plan.topology.slots[number][self.left_on(number, barred).index(left)]


def parts_of(index: SchedulingIndex) -> SlotParts:
    """Return the parts of slots that are left; build them if the index has none for its present plan."""
    found = index.parts
    if found is None or found.plan is not index.plan:
        found = index.parts = SlotParts(index, found)
    return found


def kept_slots(index: SchedulingIndex, reserved: Iterable[Slot] = ()) -> dict[int, int]:
    """Return the slots that no job may join, as bit masks by number of the node.

    They are claimed for a restart, reserved, or held by a job that is to be stopped.
    """
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
