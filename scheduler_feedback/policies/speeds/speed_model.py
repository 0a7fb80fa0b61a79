"""Model of the speed of one job class, from a few measured configurations, with its uncertainty.

The logarithm of the speed is a Gaussian process over configurations (Rasmussen, Williams, 2006, chapter 2)::

    log speed = base + log(ranks) + log(given speed of the GPU type) + deviation

So a class without measurements is as fast as today's assumption says: proportional to its ranks, and to the given speed
of the GPU type. The deviation has an expectation of 0 and these independent parts:

- a parallel efficiency: linear in log(ranks), and a random walk in log(ranks), because efficiency changes with size;
- an effect of the GPU type, and one of the type on the efficiency, because a collective slows faster GPUs more;
- an effect of each placement level that the gang crosses;
- an effect of the one configuration, for everything else.

A measurement moves the prediction of its own configuration most, and of similar ones less. All predictions are ratios
of two configurations, so the unit of the measurements does not matter. The code is plain Python, because the same
measurements must give the same bits on every machine that replays a journal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SLOPE = 0.35
"""Standard deviation of the parallel efficiency: log speed per log(ranks)."""
BEND = 0.12
"""Standard deviation of the random walk of the efficiency, per square root of log(ranks)."""
TYPE = 0.5
"""Standard deviation of the effect of a GPU type, beyond its given speed."""
TYPE_SLOPE = 0.2
"""Standard deviation of the efficiency of a GPU type, beyond that of the class."""
CROSSING = 0.25
"""Standard deviation of the effect of one placement level that a gang crosses."""
OWN = 0.05
"""Standard deviation of the effect of one configuration."""
NOISE = 0.05
"""Standard deviation of one measurement, with differences between the jobs of one class."""
BASE = 3.0
"""Standard deviation of the base, around the mean of the measurements. Large: nothing is known about it."""

# SLOPE and TYPE_SLOPE are moments of Gavel's public throughputs (benchmarks/survey/data, 57 curves): the log
# efficiency per log(ranks) has a root mean square of 0.32 to 0.44 by GPU type, and differs between two types by 0.28,
# which is 0.2 for each. The others are assumptions. ``python -m benchmarks.survey.learning`` tests all of them on other
# tables.


class Configuration(NamedTuple):
    """What the speed of a job class depends on."""

    gpu_type: str
    """GPU type of the gang; '' if the nodes have no type."""
    ranks: int
    """Number of ranks."""
    level: int
    """Placement level: 0 for one node, 1 for several nodes of one rack, 2 for several racks, 3 for several spines."""


class Measurement(NamedTuple):
    """Measured speed of one configuration."""

    place: Configuration
    """Configuration of the gang."""
    deviation: float
    """Log of the measured speed minus that of the assumed one, in an arbitrary unit."""
    weight: float
    """Number of measurements of this configuration, the older ones discounted."""


def _covariance(a: Configuration, b: Configuration) -> float:
    """Return the covariance of the deviations of two configurations, without the base."""
    log_a, log_b = math.log(a.ranks), math.log(b.ranks)
    found = SLOPE * SLOPE * log_a * log_b + BEND * BEND * min(log_a, log_b)
    found += CROSSING * CROSSING * min(a.level, b.level)
    if a.gpu_type == b.gpu_type:
        found += TYPE * TYPE + TYPE_SLOPE * TYPE_SLOPE * log_a * log_b
    if a == b:
        found += OWN * OWN
    return found


class SpeedModel:
    """Posterior of one class. measurements: at most one for each configuration."""

    __slots__ = ("_cholesky", "_places", "_weights")

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._places = [one.place for one in measurements]
        mean = 0.0
        for one in measurements:
            mean += one.deviation / len(measurements)
        matrix = [
            [
                BASE * BASE + _covariance(one.place, other.place) + (NOISE * NOISE / one.weight if n == m else 0.0)
                for m, other in enumerate(measurements)
            ]
            for n, one in enumerate(measurements)
        ]
        self._cholesky = _cholesky(matrix)
        self._weights = _back(self._cholesky, _forward(self._cholesky, [one.deviation - mean for one in measurements]))

    def log_ratio(self, one: Configuration, other: Configuration) -> tuple[float, float]:
        """Return the expected difference of the two deviations, and its standard deviation."""
        cross = [
            _covariance(one, place) - _covariance(other, place) for place in self._places
        ]  # the base cancels out, because it is the same for both
        mean = 0.0
        for weight, value in zip(self._weights, cross, strict=True):
            mean += weight * value
        spread = _covariance(one, one) + _covariance(other, other) - 2 * _covariance(one, other)
        for value in _forward(self._cholesky, cross):
            spread -= value * value
        return mean, math.sqrt(max(spread, 0.0))


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """Return the lower triangle L with L L^T = matrix, which is positive definite because of the noise."""
    lower: list[list[float]] = []
    for n, row in enumerate(matrix):
        mine: list[float] = []
        for m in range(n + 1):
            value = row[m]
            for k in range(m):
                value -= mine[k] * (mine if m == n else lower[m])[k]
            mine.append(math.sqrt(value) if m == n else value / lower[m][m])
        lower.append(mine)
    return lower


def _forward(lower: list[list[float]], values: Sequence[float]) -> list[float]:
    """Return x with L x = values."""
    found: list[float] = []
    for row, value in zip(lower, values, strict=True):
        for m, known in enumerate(found):
            value -= row[m] * known
        found.append(value / row[len(found)])
    return found


def _back(lower: list[list[float]], values: Sequence[float]) -> list[float]:
    """Return x with L^T x = values."""
    found = list(values)
    for n in range(len(found) - 1, -1, -1):
        for m in range(n + 1, len(found)):
            found[n] -= lower[m][n] * found[m]
        found[n] /= lower[n][n]
    return found
