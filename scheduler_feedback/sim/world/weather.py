"""Random variation of a healthy job: silicon, kernels, operating system, network, sequences, experts, saving.

None of it is a fault. The source or meaning of each figure is below the figure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.clos_fabric import Place, standing_share
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.physics.power import Governor
from scheduler_feedback.sim.world.plan import Plan

SPREAD = 0.006
"""Standard deviation of constant relative speed differences between GPUs at the same clock. Their causes are memory
timing, placement of host threads and PCIe distance."""

KERNEL_NOISE = 0.006
"""Relative standard deviation of a rank's compute time from step to step. A trace of ByteDance has 0.4-1 % (AR,
balanced)."""

HICCUP_RATE = 2e-4
"""Number of rare short delays per rank and step."""
HICCUP_SECONDS = 0.004
"""Shortest duration of a rare short delay, in seconds."""
HICCUP_TAIL = 1.6
"""Pareto exponent of the duration of rare short delays. Their causes are kernel threads, interrupts and page reclaim
(Petrini et al., "The case of the missing supercomputer performance", 2003)."""

COLLECTION_STEPS = 400
"""Number of steps from one planned garbage collection to the next."""
COLLECTION_SECONDS = (0.05, 0.25)
"""Shortest and longest duration of a planned garbage collection, in seconds. Most large trainings collect garbage on
all ranks together (MegaScale, section 5.1)."""

SAVING_SECONDS = (2.0, 12.0)
SAVING_INTERVAL_SECONDS = (600.0, 1800.0)
EVALUATION_INTERVAL_SECONDS = (3600.0, 14400.0)
EVALUATION_STEPS = (5, 20)

NETWORK_NOISE = 0.03
LENGTH_SIGMA = 0.9
"""Standard deviation of the logarithm of the sum of squared lengths in a microbatch of documents. With 16 microbatches
and 40 % attention, a rank's step varies by about 11 %, as measured in a long-context job."""

DRIFT_STEPS = 60.0
"""Time constant of the slow drift of the experts' load, in steps."""
DRIFT = 0.05
"""Standard deviation of the slow drift of the experts' load."""
LOAD_NOISE = 0.03
"""Standard deviation of the random load of the experts from batch to batch. Auxiliary losses keep the load of the
experts about as even as this."""


@dataclass(slots=True)
class Weather:
    """Random variation of one job. next_saving, next_evaluation: simulated times of the next save and evaluation."""

    plan: Plan
    random: np.random.Generator
    governor: Governor
    spread: FloatArray
    share: FloatArray
    next_saving: float
    next_evaluation: float
    saving_interval: float
    evaluation_interval: float
    evaluating: int = 0
    drift: FloatArray = field(default_factory=lambda: np.zeros(0))
    _collection_phase: int = 0

    @classmethod
    def of(cls, plan: Plan, place: Place, adaptive: bool, begin: float, random: np.random.Generator) -> Weather:
        """Draw the part of a job's random variation that does not change over time, such as speeds of GPUs."""
        spread = np.exp(SPREAD * np.clip(random.standard_normal(plan.gpus), -3.5, 3.5)).reshape(1, *plan.shape)
        share = standing_share(place, adaptive, random).reshape(1, *plan.shape)
        saving = float(random.uniform(*SAVING_INTERVAL_SECONDS))
        evaluation = float(random.uniform(*EVALUATION_INTERVAL_SECONDS))
        return cls(
            plan,
            random,
            Governor.of(plan.model, plan.gpus, random),
            spread.astype(np.float32),
            share.astype(np.float32),
            begin + saving * float(random.uniform(0.3, 1.0)),
            begin + evaluation * float(random.uniform(0.3, 1.0)),
            saving,
            evaluation,
            drift=DRIFT * random.standard_normal(plan.shape) if plan.expert_share else np.zeros(0),
            _collection_phase=int(random.integers(COLLECTION_STEPS)),
        )

    def draw(
        self, number: int, times: FloatArray, clock: FloatArray
    ) -> tuple[Conditions, FloatArray | None, FloatArray | None]:
        """Return the conditions of the steps from `number` on, which begin near `times`, at these GPU clocks [gpus].

        Also returns the tokens and the sums of squared lengths of each step and rank, [steps, stages, data, tensor], or
        None if they are the same for all ranks.
        """
        plan, random, steps = self.plan, self.random, len(times)
        shape = plan.shape
        noise = random.standard_normal((steps, *shape), dtype=np.float32)
        noise *= KERNEL_NOISE
        noise += 1.0
        noise *= self.spread
        one = np.ones((1, *shape), np.float32)
        weight, tokens, squares = self._lengths(steps)
        load = one
        if plan.expert_share:
            load = self._load(steps)
            tokens = load * np.float32(plan.tokens)
        conditions = Conditions(
            clock=clock.reshape(1, *shape).astype(np.float32),
            memory=one,
            nvlink=one,
            nic=self.share,
            host=one,
            noise=noise,
            stall=self._stalls(number, steps),
            weight=weight,
            load=load,
            network=np.exp(NETWORK_NOISE * random.standard_normal(steps)),
            pause=np.zeros(steps),
            extent=np.ones(steps),
        )
        self._phases(times, conditions)
        return conditions, tokens, squares

    def _stalls(self, number: int, steps: int) -> FloatArray:
        plan, random = self.plan, self.random
        count = int(random.poisson(HICCUP_RATE * steps * plan.gpus))
        numbers = np.arange(number, number + steps) + self._collection_phase
        collecting = np.flatnonzero(numbers % COLLECTION_STEPS == 0)
        if not count and not len(collecting):
            return np.zeros((1, *plan.shape), np.float32)
        stall = np.zeros((steps, plan.gpus), np.float32)
        if count:
            length = HICCUP_SECONDS * (1.0 + random.pareto(HICCUP_TAIL, count))
            where = random.integers(0, steps, count), random.integers(0, plan.gpus, count)
            np.add.at(stall, where, np.minimum(length, 2.0).astype(np.float32))
        for row in collecting:
            stall[row] += random.uniform(*COLLECTION_SECONDS) * random.uniform(0.8, 1.2, plan.gpus)
        return stall.reshape(steps, *plan.shape)

    def _lengths(self, steps: int) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        plan, random = self.plan, self.random
        if not plan.varies:
            return np.ones((1, plan.data, plan.microbatches), np.float32), None, None
        size = (steps, plan.data, plan.microbatches)
        filled = 1.0 - 0.12 * random.random(size)
        squared = np.exp(LENGTH_SIGMA * random.standard_normal(size) - LENGTH_SIGMA**2 / 2)
        squared = np.minimum(squared, 8.0)
        weight = (1.0 - plan.attention_share) * filled + plan.attention_share * squared
        per_rank = (steps, *plan.shape)
        unit = plan.tokens / plan.microbatches
        tokens = np.broadcast_to((filled.sum(axis=-1) * unit)[:, None, :, None], per_rank)
        squares = np.broadcast_to((squared.sum(axis=-1) * unit * 2048.0)[:, None, :, None], per_rank)
        return weight.astype(np.float32), tokens, squares

    def _load(self, steps: int) -> FloatArray:
        plan, random = self.plan, self.random
        keep = np.exp(-steps / DRIFT_STEPS)
        fresh = DRIFT * random.standard_normal(plan.shape)
        after = keep * self.drift + np.sqrt(1.0 - keep**2) * fresh
        along = np.linspace(0.0, 1.0, steps, dtype=np.float32)[:, None, None, None]
        load = 1.0 + self.drift + (after - self.drift) * along
        load = load + LOAD_NOISE * random.standard_normal((steps, *plan.shape), dtype=np.float32)
        self.drift = after
        grouped = np.maximum(load, 0.5).reshape(steps, plan.stages, -1, plan.expert)
        # The batch determines the total load of an expert group; loads are shares of it.
        grouped = grouped / grouped.mean(axis=-1, keepdims=True)
        return np.asarray(grouped.reshape(steps, *plan.shape), np.float32)

    def _phases(self, times: FloatArray, conditions: Conditions) -> None:
        """Add due saves to the pauses of their steps, and reduce the steps of due evaluations to forward passes."""
        random = self.random
        for row, at in enumerate(times.tolist()):
            if at >= self.next_saving:
                conditions.pause[row] += random.uniform(*SAVING_SECONDS)
                self.next_saving += self.saving_interval
            if at >= self.next_evaluation:
                self.evaluating = int(random.integers(*EVALUATION_STEPS))
                self.next_evaluation += self.evaluation_interval
            if self.evaluating:
                conditions.extent[row] = 1.0 / 3.0  # forwards only
                self.evaluating -= 1
