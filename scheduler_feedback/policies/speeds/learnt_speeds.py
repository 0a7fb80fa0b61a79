"""Learnt speeds of the state: the measurements of each job class, and the speeds that follow from them.

A class is the jobs of one user with one ``JobSpec.workload``. A job without a workload is a class of its own. The
measurements are part of the state, and come from events (`SpeedMeasured`), so that a replay learns the same. A
measurement counts only while no verdict is active about the job, because a slow node says nothing about the class.

Speeds are relative to the speed that run time estimates assume: the requested ranks, within the narrowest placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import MeasuredSpeed, Policy, State
from scheduler_feedback.policies.speeds.speed_model import Configuration, Measurement, SpeedModel

LEVELS = ("node", "rack", "spine", "cluster")
"""Names of the placement levels, from 0."""

NEAREST = {Level.ISLAND: 0, Level.NODE: 0, Level.RAIL: 1, Level.RACK: 1, Level.SPINE: 2}
"""Placement level of a gang within one domain of a network level."""

MOST_CLASSES = 2000
"""Maximum number of classes in the state. The class that was measured longest ago is dropped."""

MOST_PLACES = 24
"""Maximum number of configurations of one class. The one that was measured longest ago is dropped."""

MOST_WEIGHT = 8.0
"""Maximum weight of a configuration's mean, in measurements. So about the last 8 count."""

FULL_SECONDS = 15.0
"""A measurement over this time or longer has weight 1; a shorter one has less, in proportion."""

LEAST_RATIO, MOST_RATIO = 0.02, 8.0
"""Limits of a learnt speed, as a share of the assumed one, so that a wrong report does not stop a job for ever."""


WORTH = 1.05
"""More ranks are worth their slots only if they are expected to be at least 5 % faster. Predictions are not better."""


class Learnt(NamedTuple):
    """Speed of one configuration of a class, for `gangwatch explain`."""

    place: Configuration
    """GPU type, ranks and placement level."""
    speed: float
    """Expected speed relative to one with the requested ranks in the narrowest placement."""
    spread: float
    """Standard deviation of the logarithm of the speed; 0.1 means 10 %."""
    assumed: float
    """Speed that would be assumed without measurements."""
    weight: float
    """Number of measurements of this configuration, the older ones discounted; 0: predicted from others."""


def class_of(job_id: str, spec: JobSpec) -> str:
    """Return the key of the job's class."""
    return f"{spec.user}|{spec.workload}" if spec.workload else f"job {job_id}"


def level_of(nodes: Iterable[Node]) -> int:
    """Return the placement level of a gang on these nodes."""
    found = list(nodes)
    if len({node.name for node in found}) <= 1:
        return 0
    if len({node.rack for node in found}) <= 1:
        return 1
    return 2 if len({node.spine for node in found}) <= 1 else 3


def placed(state: State, job: Job) -> Configuration | None:
    """Return the configuration of the job's newest attempt; None if one of its nodes is unknown or it has none."""
    nodes = [state.nodes.get(name) for name in dict.fromkeys(rank.slot.node for rank in job.ranks)]
    known = [node for node in nodes if node is not None]
    if not known or len(known) != len(nodes):
        return None
    return Configuration(known[0].gpu_type, len(job.ranks), level_of(known))


def given(policy: Policy | None, spec: JobSpec, gpu_type: str) -> float:
    """Return the given speed of the job on this GPU type: its own, that of the policy's matrix, or 1."""
    if (own := spec.throughput.get(gpu_type)) is not None:
        return own
    if policy is None or not policy.throughput:
        return 1.0
    row = policy.throughput.get(spec.workload) or policy.throughput.get("") or {}
    return row.get(gpu_type, 1.0)


def record(state: State, job: Job, per_second: float, seconds: float, unit: str = "") -> Configuration | None:
    """Add a measurement of the running job. Return its configuration; None if it can't be used.

    per_second: work per second. seconds: time over which it was measured. unit: of the work; measurements of the class
    in another unit are dropped.
    """
    place = placed(state, job)
    if place is None or not (math.isfinite(per_second) and per_second > 0) or not seconds > 0:
        return None
    key = class_of(job.job_id, job.spec)
    rows = state.speeds.pop(key, [])  # the newest class is last
    if rows and rows[0].unit != unit:
        rows = []
    value, weight = math.log(per_second), min(seconds / FULL_SECONDS, 1.0)
    for row in rows:
        if _place(row) == place:
            kept = min(row.weight, MOST_WEIGHT - weight)
            row.log_rate = (row.log_rate * kept + value * weight) / (kept + weight)
            row.weight, row.measured_ns = kept + weight, state.now_ns
            break
    else:
        rows.append(MeasuredSpeed(*place, value, weight, state.now_ns, unit))
    if len(rows) > MOST_PLACES:
        rows.remove(min(rows, key=lambda row: row.measured_ns))
    state.speeds[key] = rows
    if len(state.speeds) > MOST_CLASSES:
        del state.speeds[next(iter(state.speeds))]
    learnt_of(state).forget()
    return place


def _place(row: MeasuredSpeed) -> Configuration:
    return Configuration(row.gpu_type, row.ranks, row.level)


class LearntSpeeds:
    """Speeds that follow from the measurements of one state, with a cache of the models."""

    __slots__ = ("_known", "_largest", "_models", "_policy", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._policy = state.policy
        self._largest: dict[str, int] = {}
        self._models: dict[_Class, tuple[SpeedModel, str]] = {}
        self._known: dict[tuple[_Class, int, Configuration], tuple[float, float]] = {}

    def forget(self) -> None:
        """Drop the cached results, because there is a new measurement or policy."""
        self._policy = self._state.policy
        self._largest.clear()
        self._models.clear()
        self._known.clear()

    def knows(self, job_id: str, spec: JobSpec) -> bool:
        """Return whether the class of the job has measurements that count."""
        speeds = self._state.speeds
        return bool(speeds) and self._state.policy.learn_speeds and class_of(job_id, spec) in speeds

    def correction(self, job_id: str, spec: JobSpec, place: Configuration) -> tuple[float, float]:
        """Return the speed in this configuration as a share of the assumed one, and the standard deviation of its log.

        (1, 0) if the class has no measurements.
        """
        if not self.knows(job_id, spec):
            return 1.0, 0.0
        if self._policy is not self._state.policy:
            self.forget()
        key = class_of(job_id, spec), tuple(spec.throughput.items())
        asked = key, spec.ranks, place
        found = self._known.get(asked)
        if found is None:
            model, gpu_type = self._models.get(key) or self._learn(key, spec)
            usual = Configuration(gpu_type, spec.ranks, self._narrowest(gpu_type, spec.ranks))
            mean, spread = model.log_ratio(place, usual)
            found = self._known[asked] = min(max(math.exp(mean), LEAST_RATIO), MOST_RATIO), spread
        return found

    def _learn(self, key: _Class, spec: JobSpec) -> tuple[SpeedModel, str]:
        """Return the model of the class, and the GPU type on which the speed is 1."""
        measurements: list[Measurement] = []
        weights: dict[str, float] = {}
        for row in self._state.speeds[key[0]]:
            expected = given(self._policy, spec, row.gpu_type)
            measurements.append(Measurement(_place(row), row.log_rate - math.log(row.ranks * expected), row.weight))
            if expected == 1.0:
                weights[row.gpu_type] = weights.get(row.gpu_type, 0.0) + row.weight
        usual = max(sorted(weights), key=lambda name: weights[name], default=ASSUMED_TYPE)
        found = self._models[key] = SpeedModel(measurements), usual
        return found

    def _narrowest(self, gpu_type: str, ranks: int) -> int:
        """Return the placement level of a gang that is placed as narrowly as its size allows."""
        if not self._largest:
            for node in self._state.nodes.values():
                self._largest[node.gpu_type] = max(self._largest.get(node.gpu_type, 0), node.slots)
        return 0 if ranks <= self._largest.get(gpu_type, ranks) else 1

    def speed(self, job_id: str, spec: JobSpec, gpu_type: str, ranks: int, level: int | None = None) -> float:
        """Return the expected speed of the job; 1 is the speed that its run time estimate assumes.

        level: placement level; None: the narrowest one that the number of ranks allows.
        """
        assumed = given(self._state.policy, spec, gpu_type)
        if ranks != spec.ranks:
            assumed *= ranks / spec.ranks
        if not self.knows(job_id, spec):
            return assumed
        place = Configuration(gpu_type, ranks, self._narrowest(gpu_type, ranks) if level is None else level)
        return assumed * self.correction(job_id, spec, place)[0]

    def apart_slowdown(self, job: Job) -> float | None:
        """Return the run time outside of the job's preferred level, divided by that inside; None if it is not learnt.

        It is learnt from measurements of the class at both levels, or at wider ones with other numbers of ranks.
        """
        spec = job.spec
        if spec.preferred_level is None or not self.knows(job.job_id, spec):
            return None
        near = NEAREST[spec.preferred_level]
        rows = self._state.speeds[class_of(job.job_id, spec)]
        usual = max(rows, key=lambda row: (row.level > near, row.weight, row.gpu_type))
        if usual.level <= near:
            return None
        inside, outside = (
            self.correction(job.job_id, spec, Configuration(usual.gpu_type, spec.ranks, level))[0]
            for level in (near, near + 1)
        )
        return max(inside / outside, 1.0)

    def table(self, job: Job) -> list[Learnt]:
        """Return the measured configurations of the job's class, by GPU type, level and ranks."""
        if not self.knows(job.job_id, job.spec):
            return []
        found = []
        for row in self._state.speeds[class_of(job.job_id, job.spec)]:
            place = _place(row)
            assumed = row.ranks / job.spec.ranks * given(self._state.policy, job.spec, row.gpu_type)
            share, spread = self.correction(job.job_id, job.spec, place)
            found.append(Learnt(place, assumed * share, spread, assumed, row.weight))
        return sorted(found, key=lambda one: (one.place.gpu_type, one.place.level, one.place.ranks))


_Class = tuple[str, tuple[tuple[str, float], ...]]
"""Key of a class, and the given speeds of the job."""

ASSUMED_TYPE = "\0assumed"
"""GPU type of the speed 1 if no measured type has the given speed 1: one without measurements."""


def learnt_of(state: State) -> LearntSpeeds:
    """Return the learnt speeds of the state."""
    kept = state.__dict__.get("learnt")
    if not isinstance(kept, LearntSpeeds) or kept._state is not state:
        kept = state.__dict__["learnt"] = LearntSpeeds(state)
    return kept
