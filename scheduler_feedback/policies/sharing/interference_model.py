"""Predicted speeds of pairs that were never measured: log speed = mean + sensitivity(job) + pressure(other job).

Both effects are fitted to all known pairs by alternating means, shrunk to zero if a workload has few measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.sharing.pair_speeds import known, pair_changes, workload_of

SHRINKAGE = 1.0
"""Number of measurements of the mean that are added to those of each workload: one unusual pair does not decide."""

ROUNDS = 20
"""Number of alternating fits; more change the prediction of Gavel's pairs by less than 0.1 %."""

LEAST_SPEED = 0.01
"""Lower bound of a speed before its logarithm is taken; pairs that cannot run together have 0."""

UNKNOWN = 0.5
"""Predicted speed without any measurement: equal shares of time."""

Table = Mapping[str, Mapping[str, float]]


@dataclass(slots=True)
class Model:
    """Fitted effects, in logarithms of speed."""

    mean: float = math.log(UNKNOWN)
    """Mean of all pairs."""
    sensitivity: dict[str, float] = field(default_factory=dict)
    """Effect of each workload on its own speed beside any other."""
    pressure: dict[str, float] = field(default_factory=dict)
    """Effect of each workload on the speed of any other beside it."""

    def speed(self, one: str, other: str) -> float:
        """Return the predicted speed of the first workload beside the other, at most 1."""
        return min(math.exp(self.mean + self.sensitivity.get(one, 0.0) + self.pressure.get(other, 0.0)), 1.0)


def fit(table: Table, least: float = LEAST_SPEED) -> Model:
    """Return the model that fits these speeds: workload -> other workload -> speed of the first.

    least: lower bound of a speed before its logarithm is taken.
    """
    pairs = [(one, other, math.log(max(speed, least))) for one, row in table.items() for other, speed in row.items()]
    if not pairs:
        return Model()
    model = Model(mean=sum(value for _, _, value in pairs) / len(pairs))
    for _ in range(ROUNDS):
        others = model.pressure
        model.sensitivity = _effects((one, log - model.mean - others.get(other, 0.0)) for one, other, log in pairs)
        own = model.sensitivity
        model.pressure = _effects((other, log - model.mean - own.get(one, 0.0)) for one, other, log in pairs)
    return model


def _effects(residuals: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for name, value in residuals:
        entry = sums.setdefault(name, [0.0, SHRINKAGE])
        entry[0] += value
        entry[1] += 1
    return {name: total / count for name, (total, count) in sums.items()}


def predicted_speed(state: State, spec: JobSpec, other: JobSpec, least: float = LEAST_SPEED) -> float:
    """Return the known speed of the job beside the other one, else the predicted speed. least: see `fit`."""
    pair = known(state, spec, other)
    if pair is not None:
        return pair
    return _model(state, least).speed(workload_of(spec), workload_of(other))


def measured(state: State, spec: JobSpec) -> bool:
    """Return whether the job's workload has a known speed beside any other."""
    name = workload_of(spec)
    return bool(state.pair_speeds.get(name) or state.policy.pair_speeds.get(name))


def _model(state: State, least: float) -> Model:
    """Return the model of the state's pairs. It is fitted again only if a pair was measured since."""
    basis = (id(state.policy), id(state.pair_speeds), pair_changes(state), least)
    kept = state.__dict__.get("interference")
    if kept is None or kept[0] != basis:
        table = {one: dict(row) for one, row in state.policy.pair_speeds.items()}
        for one, row in state.pair_speeds.items():
            table.setdefault(one, {}).update(row)
        kept = state.__dict__["interference"] = (basis, fit(table, least))
    model: Model = kept[1]
    return model
