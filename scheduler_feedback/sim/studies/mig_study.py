"""Study of MIG instances: how much work a cluster does if instances follow the requests, or if they are fixed.

Tasks arrive over time and wait in order of arrival; a task that fits starts, also before an earlier one that does not.
A task needs an instance with enough compute slices, and is as fast in a larger one. With fixed instances it takes the
smallest free one. With instances that follow the requests, its instance is created before it starts, and destroyed at
its end; running instances never move. Nothing is reserved for a task that waits, so large ones can wait for long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from scheduler_feedback.policies.shares.mig_profiles import (
    COMPUTE_SLICES,
    PROFILES,
    MigProfile,
    best_start,
    first_start,
)

CREATE_SECONDS = 10.0
"""Time to create the instance of a task: an assumption."""

Layout = tuple[str, ...]
"""Names of the profiles of a GPU's instances."""


@dataclass(frozen=True, slots=True)
class MigTask:
    """One task."""

    at: float
    """Time of arrival, in seconds."""
    seconds: float
    """Run time in seconds."""
    profile: MigProfile
    """Smallest profile with which it can run."""


class Instances:
    """Instances of a cluster. A subclass says which one a task gets."""

    def take(self, profile: MigProfile) -> object | None:
        """Take an instance for a task, and return it; None if there is none."""
        raise NotImplementedError

    def give(self, instance: object) -> None:
        """Give the instance of an ended task back."""
        raise NotImplementedError

    delay = 0.0
    """Time from taking an instance to the start of its task, in seconds."""


class FixedInstances(Instances):
    """Instances that are never changed."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._free: dict[str, int] = {}
        for layout in layouts:
            for name in layout:
                self._free[name] = self._free.get(name, 0) + 1

    def take(self, profile: MigProfile) -> object | None:
        able = [PROFILES[name] for name, count in self._free.items() if count]
        able = [one for one in able if one.compute >= profile.compute and one.memory >= profile.memory]
        if not able:
            return None
        chosen = min(able, key=lambda one: (one.compute, one.memory)).name
        self._free[chosen] -= 1
        return chosen

    def give(self, instance: object) -> None:
        assert isinstance(instance, str)
        self._free[instance] += 1


class FollowingInstances(Instances):
    """Instances that are created for each task."""

    delay = CREATE_SECONDS

    def __init__(self, gpus: int, demand: Mapping[str, float] | None) -> None:
        """demand: share of the requests by profile, for the best start; None: the first start is used."""
        self.busy = [0] * gpus
        self._demand = demand

    def take(self, profile: MigProfile) -> object | None:
        if self._demand is None:
            found = first_start(self.busy, profile)
        else:
            found = best_start(self.busy, profile, self._demand)
        if found is None:
            return None
        mask = dict(profile.masks())[found[1]]
        self.busy[found[0]] |= mask
        return found[0], mask

    def give(self, instance: object) -> None:
        assert isinstance(instance, tuple)
        self.busy[instance[0]] &= ~instance[1]


def useful_slices(tasks: Sequence[MigTask], instances: Instances, gpus: int) -> float:
    """Return the mean share of compute slices with which tasks work, from the first to the last arrival.

    A task works with the slices of its own profile, also in a larger instance.
    """
    end = tasks[-1].at
    waiting: list[MigTask] = []
    running: list[tuple[float, int, object]] = []
    done, number, count = 0.0, 0, 0
    while number < len(tasks):
        now = min(tasks[number].at, running[0][0] if running else float("inf"))
        while running and running[0][0] <= now:
            instances.give(heappop(running)[2])
        while number < len(tasks) and tasks[number].at <= now:
            waiting.append(tasks[number])
            number += 1
        left: list[MigTask] = []
        refused: set[str] = set()
        for task in waiting:
            name = task.profile.name
            instance = None if name in refused else instances.take(task.profile)
            if instance is None:
                refused.add(name)
                left.append(task)
                continue
            count += 1
            start = now + instances.delay
            heappush(running, (start + task.seconds, count, instance))
            done += task.profile.compute * max(min(start + task.seconds, end) - min(start, end), 0.0)
        waiting = left
    return done / ((end - tasks[0].at) * gpus * COMPUTE_SLICES)


def poisson(kinds: Sequence[tuple[MigProfile, float]], count: int, gpus: int, load: float, seed: int) -> list[MigTask]:
    """Return tasks drawn from `kinds` (profile, run time in seconds), with Poisson arrivals.

    load: requested compute slices, relative to those of the cluster.
    """
    chance = random.Random(f"mig {seed}")
    drawn = [chance.choice(kinds) for _ in range(count)]
    work = sum(profile.compute * seconds for profile, seconds in drawn)
    gap = work / count / (gpus * COMPUTE_SLICES * load)
    at, found = 0.0, []
    for profile, seconds in drawn:
        at += chance.expovariate(1 / gap)
        found.append(MigTask(at, seconds, profile))
    return found


def demand_of(kinds: Sequence[tuple[MigProfile, float]], weigh: Callable[[float], float]) -> dict[str, float]:
    """Return the share of each profile in these kinds. weigh: returns the weight of a run time in seconds."""
    total: dict[str, float] = {}
    for profile, seconds in kinds:
        total[profile.name] = total.get(profile.name, 0.0) + weigh(seconds)
    return {name: value / sum(total.values()) for name, value in sorted(total.items())}


def fitted(kinds: Sequence[tuple[MigProfile, float]], gpus: int, seed: int) -> list[Layout]:
    """Return fixed layouts for these kinds of tasks, known beforehand: those of a cluster that such tasks fill.

    Tasks are drawn in proportion to their run time, because that is the mix that runs at any time.
    """
    chance = random.Random(f"layout {seed}")
    demand = demand_of(kinds, lambda seconds: seconds)
    room = FollowingInstances(gpus, demand)
    layouts: list[list[str]] = [[] for _ in range(gpus)]
    names, weights = list(demand), list(demand.values())
    failures = 0
    while failures < 50 * len(names):
        name = chance.choices(names, weights)[0]
        instance = room.take(PROFILES[name])
        if instance is None:
            failures += 1
            continue
        assert isinstance(instance, tuple)
        layouts[instance[0]].append(name)
    return [tuple(layout) for layout in layouts]
