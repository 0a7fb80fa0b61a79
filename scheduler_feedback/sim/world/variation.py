"""Differences between the GPUs and hosts of one healthy job: speeds, drift, GPU models, clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray
from scheduler_feedback.sim.world.clos_fabric import RACK_NODES, Place
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.physics.hardware import GpuModel
from scheduler_feedback.sim.world.physics.power import EXPONENT, Governor
from scheduler_feedback.sim.world.plan import MEMORY_PART, Plan
from scheduler_feedback.sim.world.traits import Traits

SPREAD_RANGE = (0.04, 0.08, 0.22)
"""Least, mean and largest range of the speeds of equal GPUs in one job, relative to the median. Sinha et al., "Not All
GPUs Are Created Equal" (SC 2022), found 8 % on average and 22 % at most, over clusters and applications. (Their
outliers, up to 1.5 times slower than the median, are faults here: a locked clock from the first step.)"""

WHISKERS = 5.4
"""Distance between the whiskers of a box plot, in standard deviations of a normal distribution. The ranges above leave
out what lies outside of them."""

MEDIAN_CLOCK = 0.93
"""Clock of the median GPU under the power cap, as a share of boost, in jobs whose GPUs are limited by power. The spread
is one of clocks: chips need different power for the same clock (SC 2022, section IV)."""

DRIFT_SECONDS, DRIFT = 600.0, 0.01
"""Time constant in seconds, and standard deviation, of each GPU's slow drift in speed. DEVELOPMENT VALUE: sizes of the
order that step traces show between windows of ten minutes."""

DAY_SECONDS = 86_400.0
DIURNAL = (0.005, 0.02)
"""Smallest and largest amplitude of a rack's change of speed over the day, by the temperature of its inlet air and the
power that leakage then needs. DEVELOPMENT VALUE."""

OTHER_SHARE = (0.15, 0.5)
"""Smallest and largest share of the nodes with the other GPU model."""

SYNCHRONISED_SECONDS = 2e-3
"""Standard deviation of a host's clock error with NTP (node_clock.py of the product assumes milliseconds)."""

WRONG_SHARE = 0.25
"""Share of hosts without a working time service, in jobs with wrong clocks."""

WRONG_SECONDS = (0.05, 1.8)
"""Smallest and largest clock error of such a host. The product itself corrects errors of more than 2 s."""

WRONG_RATE = 50e-6
"""Largest drift of such a host's clock, in seconds per second: a usual tolerance of quartz crystals."""


@dataclass(slots=True)
class Variation:
    """Differences between the n ranks of one job, and the state of their drift."""

    random: np.random.Generator
    """Random generator of the drift."""
    other: BoolArray
    """Whether each rank's GPU is of the other model: [n]."""
    slowness: FloatArray
    """Factor on each rank's compute time because of its GPU model: float32 [n]."""
    boost_hertz: FloatArray
    """Boost clock of each GPU in hertz: float64 [n]."""
    watts_share: FloatArray
    """Power limit of each GPU, as a share of the job's usual model: float64 [n]."""
    drift: FloatArray | None
    """Logarithm of each rank's current drift: float64 [n]; None without drift."""
    amplitude: FloatArray
    """Amplitude of the change over the day: float64 [n]."""
    phase: FloatArray
    """Phase of the change over the day in radians: float64 [n]."""
    clock_offset: FloatArray
    """Error of each rank's host clock at time 0, in seconds: float64 [n]."""
    clock_rate: FloatArray
    """Growth of this error, in seconds per second: float64 [n]."""
    at: float
    """Time of the current drift, in seconds on the world's clock."""

    @classmethod
    def of(cls, traits: Traits, plan: Plan, place: Place, governor: Governor, begin: float) -> Variation:
        """Draw the differences. If the job's GPUs have the published spread, the governor's chips get it."""
        # One generator for each property, so that none depends on which others the job has.
        generators = [np.random.default_rng([traits.seed, number]) for number in range(5)]
        count, nodes = plan.gpus, np.unique(place.node)
        node_of = np.searchsorted(nodes, place.node)
        if traits.spread:
            _spread_chips(governor, generators[0])
        other = np.zeros(count, bool)
        slow, hertz, watts = 1.0, plan.model.boost_hertz, 1.0
        if traits.other_model is not None:
            most = max(1, round(len(nodes) * generators[1].uniform(*OTHER_SHARE)))
            other = np.isin(node_of, generators[1].choice(len(nodes), most, replace=False))
            slow, hertz, watts = _compared(plan.model, traits.other_model)
        zero: FloatArray = np.zeros(count)
        drift: FloatArray | None = None
        amplitude = phase = zero
        if traits.drift:
            drift = DRIFT * generators[2].standard_normal(count)
            racks, rack_of = np.unique(place.node // RACK_NODES, return_inverse=True)
            amplitude = generators[2].uniform(*DIURNAL, len(racks))[rack_of]
            phase = (generators[2].uniform(0.0, 2.0 * np.pi) + generators[2].normal(0.0, 0.3, len(racks)))[rack_of]
        offset, rate = zero, zero
        if traits.wrong_clocks:
            offset, rate = (values[node_of] for values in _clock_errors(len(nodes), generators[3]))
        return cls(
            generators[4],
            other,
            np.where(other, slow, 1.0).astype(np.float32),
            np.where(other, hertz, plan.model.boost_hertz),
            np.where(other, watts, 1.0),
            drift,
            amplitude,
            phase,
            offset,
            rate,
            begin,
        )

    def apply(self, conditions: Conditions, times: FloatArray, keep: bool = False) -> None:
        """Change the conditions of the steps that begin near `times`. keep: whether the drift keeps its state."""
        shape = conditions.noise.shape[1:]
        conditions.noise = conditions.noise * self.slowness.reshape(1, *shape)
        if self.drift is None:
            return
        random = np.random.default_rng(1) if keep else self.random
        share = np.exp(-max(float(times[-1]) - self.at, 0.0) / DRIFT_SECONDS)
        after = share * self.drift + np.sqrt(1.0 - share**2) * DRIFT * random.standard_normal(len(self.drift))
        along = np.linspace(0.0, 1.0, len(times))[:, None]
        slow = self.drift + (after - self.drift) * along
        daily = self.amplitude * np.sin(2.0 * np.pi * times[:, None] / DAY_SECONDS + self.phase)
        conditions.noise = conditions.noise * np.exp(slow + daily).reshape(-1, *shape).astype(np.float32)
        if not keep:
            self.drift, self.at = after, float(times[-1])

    def clock_error(self, at: float) -> FloatArray:
        """Return the error of each rank's host clock at this time, in seconds: float64 [n]."""
        return self.clock_offset + self.clock_rate * at


def _spread_chips(governor: Governor, random: np.random.Generator) -> None:
    """Give the chips the published spread of clocks under the power cap."""
    least, mean, most = SPREAD_RANGE
    sigma = float(np.clip(random.gamma(4.0, (mean - least) / 4.0) + least, least, most)) / WHISKERS
    drawn = np.clip(random.standard_normal(len(governor.full_watts)), -WHISKERS / 2, WHISKERS / 2)
    clock = np.minimum(MEDIAN_CLOCK * np.exp(sigma * drawn), 1.0)
    model = governor.model
    governor.full_watts = model.idle_watts + (model.limit_watts - model.idle_watts) / clock**EXPONENT


def _compared(usual: GpuModel, other: GpuModel) -> tuple[float, float, float]:
    """Return the other model's factor on the compute time, boost clock in hertz, and power limit as a share."""
    products = usual.peak_flops * usual.achieved / (other.peak_flops * other.achieved)
    memory = usual.memory_bytes_per_second / other.memory_bytes_per_second
    slow = (products + MEMORY_PART * memory) / (1.0 + MEMORY_PART)
    return slow, other.boost_hertz, other.limit_watts / usual.limit_watts


def _clock_errors(nodes: int, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return the clock error of each host in seconds, and its growth in seconds per second: [nodes] each."""
    wrong = random.random(nodes) < WRONG_SHARE
    size = random.uniform(*WRONG_SECONDS, nodes) * random.choice([-1.0, 1.0], nodes)
    usual = SYNCHRONISED_SECONDS * random.standard_normal(nodes)
    return np.where(wrong, size, usual), np.where(wrong, random.uniform(-WRONG_RATE, WRONG_RATE, nodes), 0.0)
