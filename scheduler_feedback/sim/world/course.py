"""Simulation of a job over time: blocks of steps with random variation and faults.

With active faults, each block is simulated twice with the same random variation: with and without the faults. The
difference is the true cost of the faults in each step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.block import Block, add_own_times, given, hang_first_step, rows
from scheduler_feedback.sim.world.clos_fabric import Place
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.effect import EFFECTS
from scheduler_feedback.sim.world.fault import DISORDERS, Fault
from scheduler_feedback.sim.world.physics import step_timing
from scheduler_feedback.sim.world.plan import Plan
from scheduler_feedback.sim.world.scene import Scene, Signal
from scheduler_feedback.sim.world.traits import NO_TRAITS, Restart, Traits
from scheduler_feedback.sim.world.variation import Variation
from scheduler_feedback.sim.world.weather import Weather

MOST_MAGNITUDE = 2000.0
"""Upper limit in the search for a fault's magnitude. Beyond it, a device would be broken rather than slow."""

MOST_CELLS = 3_000_000
"""Maximum of steps times ranks in one simulated block, so that a block fits into the processor's caches."""


@dataclass(slots=True)
class Course:
    """One simulated job and its progress."""

    plan: Plan
    """Parallel layout and work of the job."""
    place: Place
    """Nodes, GPUs and NICs of the job's ranks."""
    random: np.random.Generator
    """Random generator of the job."""
    begin: float = 0.0
    """Start of the job, in seconds on the world's clock."""
    adaptive: bool = True
    """Whether the fabric uses adaptive routing."""
    block_seconds: float = 20.0
    """Duration of a block in seconds. Short blocks follow changes of faults and GPU clocks more closely."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of the job. A fault may be added until it begins."""
    neighbours: dict[str, Course] = field(default_factory=dict)
    """Other jobs that disturb this job, by name."""
    now: float = 0.0
    """Start of the next step, in seconds on the world's clock."""
    number: int = 1
    """Number of the next step."""
    usual: float = 0.0
    """Duration of a healthy step in seconds."""
    meeting: float = 0.5
    """Share of a healthy step that has passed when the gradient exchange begins."""
    hung: bool = False
    """Whether the job has hung: its last step never ends."""
    reports: bool = True
    """Whether the job's ranks report their steps."""
    finish: float = np.inf
    """End of the job, in seconds on the world's clock; infinite by default."""
    blocks: list[Block] = field(default_factory=list)
    """Simulated blocks that are not deleted yet, in order of time."""
    traits: Traits = NO_TRAITS
    """Properties that only some jobs have."""
    weather: Weather = field(init=False)
    """Random variation of the job's devices and work while it is healthy."""
    _fault_random: np.random.Generator = field(init=False)
    """Random generator of the job's faults."""
    _shares: tuple[FloatArray, FloatArray] = field(init=False)
    """For each GPU, the share of time in which it computes, and the share in which it polls in a collective."""
    variation: Variation | None = field(init=False, default=None)
    """Differences between the GPUs and hosts of the job; None if it has no traits."""
    _habit_random: np.random.Generator = field(init=False)
    """Random generator of the job's habits."""
    _crashes: list[Restart] = field(init=False)
    """Crashes that have not happened yet, in order of time."""

    def __post_init__(self) -> None:
        self.now = self.begin
        self.weather = Weather.of(self.plan, self.place, self.adaptive, self.begin, self.random)
        self._fault_random = np.random.default_rng(self.random.integers(2**63))
        self._habit_random = np.random.default_rng([self.traits.seed, 91])
        self._crashes = sorted(self.traits.restarts, key=lambda crash: crash.at)
        if self.traits != NO_TRAITS:
            self.variation = Variation.of(self.traits, self.plan, self.place, self.weather.governor, self.begin)
        self._shares = np.full(self.plan.gpus, 0.75), np.full(self.plan.gpus, 0.2)
        sample = step_timing.run(self.plan, self._sample(4))
        self.usual = float(np.median(sample.seconds - sample.pause))
        self.meeting = float(np.median(sample.meet)) / self.usual

    # --- magnitudes ---------------------------------------------------------------------------------------------------

    def _sample(self, steps: int) -> Conditions:
        """Return random conditions for a few trial steps, in whole rounds. The random state of the job does not
        change."""
        steps = -(-steps // self.plan.sync_steps) * self.plan.sync_steps
        aside = replace(
            self.weather,
            random=np.random.default_rng(self.plan.gpus),
            next_saving=np.inf,
            next_evaluation=np.inf,
            drift=self.weather.drift.copy(),
        )
        times = np.full(steps, self.begin)
        conditions = aside.draw(1, times, self.weather.governor.free_clock())[0]
        if self.variation is not None:
            self.variation.apply(conditions, times, keep=True)
        return conditions

    def solved(self, fault: Fault) -> Fault:
        """Return the fault with the magnitude that slows the job by the fault's severity.

        Raises ValueError if no magnitude causes this severity, because the job does not depend enough on the faulty
        part.
        """
        if DISORDERS[fault.disorder].lasting:
            return fault
        steps = 36 if self.plan.varies or fault.disorder in ("garbage-collection", "checkpoint") else 6
        conditions = self._sample(steps)
        steps = len(conditions.pause)
        usual_seconds = float(step_timing.run(self.plan, conditions).seconds.mean())
        overlap = np.full(steps, self._mean_overlap(fault))

        def cost(magnitude: float) -> float:
            happening = copy.copy(conditions)
            scene = self._scene(fault, happening, overlap, np.random.default_rng(5))
            EFFECTS[fault.disorder](scene, fault, np.ones(steps), magnitude)
            return float(step_timing.run(self.plan, happening).seconds.mean()) / usual_seconds - 1.0

        low, high = 0.0, 0.5
        while cost(high) < fault.severity:
            low, high = high, high * 2.0
            if high > MOST_MAGNITUDE:
                raise ValueError(f"{fault.disorder} cannot slow {self.plan.name} by {fault.severity:.0%}")
        for _ in range(12):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if cost(middle) < fault.severity else (low, middle)
        return replace(fault, magnitude=high)

    def _mean_overlap(self, fault: Fault) -> float:
        neighbour = self.neighbours.get(fault.aggressor)
        return 1.0 if neighbour is None else neighbour.sending()

    def sending(self) -> float:
        """Return the share of time in which this job's NICs send."""
        return 1.0 if self.plan.exchange_bytes else 1.0 - self.meeting

    def _scene(self, fault: Fault, happening: Conditions, overlap: FloatArray, random: np.random.Generator) -> Scene:
        ranks = np.asarray(fault.ranks, np.intp)
        own = np.zeros(self.plan.gpus, bool)
        own[ranks] = True
        on_node = np.isin(self.place.node, self.place.node[ranks])
        leaves = {self.place.uplinks[rank] for rank in fault.ranks}
        on_leaf = np.array([name in leaves for name in self.place.uplinks])
        return Scene(
            self.plan,
            happening,
            ranks,
            np.flatnonzero(on_node & ~own),
            np.flatnonzero(on_leaf & ~own),
            self.usual,
            random,
            overlap,
            self.number,
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance_to(self, until: float) -> None:
        """Simulate steps until one ends at or after `until`, or the job hangs."""
        while self.now < until and not self.hung:
            self._take()

    def forget(self, before: float) -> None:
        """Delete the blocks that ended before this time, except the newest."""
        while len(self.blocks) > 1 and self.blocks[0].end[-1] < before:
            self.blocks.pop(0)

    def _take(self) -> None:
        """Simulate one block of steps."""
        plan, governor = self.plan, self.weather.governor
        steps = int(np.clip(round(self.block_seconds / self.usual), 1, max(1, MOST_CELLS // plan.gpus)))
        steps = -(-steps // plan.sync_steps) * plan.sync_steps
        times = self.now + self.usual * np.arange(steps)
        last = float(times[-1]) + self.usual
        active = [f for f in self.faults if f.disorder in EFFECTS and f.begin < last and f.end > self.now]
        hindrance = self._cooling_hindrance(active, times)
        clock, thermal, power = governor.clocks(steps * self.usual, *self._shares, 1.0, hindrance)
        conditions, tokens, squares = self.weather.draw(self.number, times, governor.free_clock())
        signals = list[Signal]()
        if self.variation is not None:
            plain = copy.copy(conditions)
            self.variation.apply(conditions, times)
            self._apply_habits(conditions, times, signals)
            tokens, squares = given(plan, tokens, squares, plain, conditions)
        without = taken = step_timing.run(plan, conditions)
        happening = conditions
        if active:
            happening = copy.copy(conditions)
            happening.clock = clock.reshape(1, *plan.shape).astype(np.float32)
            for fault in active:
                self._apply(fault, happening, times, signals)
            taken = step_timing.run(plan, happening)
            tokens, squares = given(plan, tokens, squares, conditions, happening)
        ends = self.now + np.cumsum(taken.seconds)
        hang = next((f for f in self.faults if f.disorder in HANGS and f.begin < ends[-1]), None)
        kept = steps if hang is None else int((ends <= hang.begin).sum())
        hangs = None
        if hang is not None and kept == 0:
            hangs, kept = (hang.ranks[0], HANGS[hang.disorder]), 1
            self.hung = True
            hang_first_step(hang, taken, signals)
        crash = self._crashes[0] if hang is None and self._crashes and self._crashes[0].at < ends[-1] else None
        if crash is not None:
            self._crashes.pop(0)
            kept = int((ends <= crash.at).sum())
        begin = np.concatenate([[self.now], self.now + np.cumsum(taken.seconds)])[: steps + 1]
        flat = (steps, plan.gpus)
        products = np.minimum(taken.kernels, taken.kernels * taken.product_share)
        block = Block(
            first=self.number,
            begin=begin[:kept],
            meet=begin[:kept] + taken.meet[:kept],
            end=begin[1 : kept + 1],
            pause=taken.pause[:kept],
            without=without.seconds[:kept],
            kernels=taken.kernels.reshape(flat)[:kept],
            products=products.reshape(flat)[:kept],
            stall=rows(taken.stall, kept),
            clock=rows(happening.clock, kept),
            nic=rows(happening.nic, kept),
            tokens=None if tokens is None else tokens.reshape(flat)[:kept],
            squares=None if squares is None else squares.reshape(flat)[:kept],
            celsius=governor.celsius.astype(np.float32),
            thermal=thermal.astype(np.float32),
            power=power.astype(np.float32),
            signals=[replace(signal, values=signal.values[:kept]) for signal in signals],
            hangs=hangs,
        )
        if taken.replica_seconds is not None:
            add_own_times(block, plan, begin[:steps], taken.replica_seconds)
        if kept:
            self.blocks.append(block)
            self.now = float(block.end[-1])
            self.number += kept
        if crash is not None:
            self.now, self.number = max(self.now, crash.at + crash.seconds), self._first_repeated(crash)
        elif hangs is None:
            self._update_averages(block, taken, without)

    def _cooling_hindrance(self, active: list[Fault], times: FloatArray) -> FloatArray:
        """Return the factor by which thermal faults increase each GPU's thermal resistance: float64 [ranks]."""
        hindrance = np.ones(self.plan.gpus)
        for fault in active:
            mean = float(fault.intensity(times).mean()) if fault.disorder == "thermal" else 0.0
            if mean > 0:
                ranks = np.asarray(fault.ranks, np.intp)
                slowed = 1.0 / (1.0 + fault.magnitude * mean)
                hindrance *= self.weather.governor.hindrance_for(slowed, ranks, *self._shares)
        return hindrance

    def _update_averages(self, block: Block, taken: step_timing.Steps, without: step_timing.Steps) -> None:
        """Update the duration of a healthy step, and the shares of computing and polling, from a simulated block."""
        working = np.maximum(taken.seconds - taken.pause, 1e-6)
        self.usual = float(np.median(without.seconds - without.pause))
        self.meeting = float(np.median(taken.meet / working))
        busy = (block.kernels.sum(axis=0) / working[: len(block)].sum()).astype(np.float64)
        held = block.stall.mean(axis=0) / self.usual
        self._shares = np.clip(busy, 0.05, 1.0), np.clip(1.0 - busy - held, 0.0, 1.0)

    def _first_repeated(self, crash: Restart) -> int:
        """Return the number of the first step after a crash: it repeats steps, and begins a round."""
        finished = max(0, self.number - 1 - crash.back)
        return 1 + finished // self.plan.sync_steps * self.plan.sync_steps

    def _apply_habits(self, conditions: Conditions, times: FloatArray, signals: list[Signal]) -> None:
        """Apply the work of single ranks that belongs to the healthy job."""
        for habit in self.traits.habits:
            scene = self._scene(habit, conditions, np.ones(len(times)), self._habit_random)
            EFFECTS[habit.disorder](scene, habit, habit.intensity(times), habit.magnitude)
            signals += scene.signals

    def _apply(self, fault: Fault, happening: Conditions, times: FloatArray, signals: list[Signal]) -> None:
        intensity = fault.intensity(times)
        if not intensity.any():
            return
        neighbour = self.neighbours.get(fault.aggressor)
        overlap: FloatArray = np.ones(len(times))
        if neighbour is not None:
            overlap = neighbour.overlap(times + self.meeting * self.usual, times + self.usual)
        if fault.disorder == "thermal":
            return  # the governor has already applied it
        scene = self._scene(fault, happening, overlap, self._fault_random)
        EFFECTS[fault.disorder](scene, fault, intensity, fault.magnitude)
        signals += scene.signals

    def overlap(self, begin: FloatArray, end: FloatArray) -> FloatArray:
        """Return the share of each interval in which this job's NICs send; 0 before its start and after it hangs."""
        self.advance_to(float(end.max()))
        if not self.blocks:
            return np.zeros(len(begin))
        if self.plan.exchange_bytes:
            both = np.minimum(end, self.now) - np.maximum(begin, self.begin)
            return np.asarray(np.clip(both, 0.0, None) / (end - begin))
        edges = np.concatenate([np.stack([b.meet, b.end - b.pause], axis=1).reshape(-1) for b in self.blocks])
        sent = np.concatenate([[0.0], np.cumsum(np.where(np.arange(len(edges) - 1) % 2 == 0, np.diff(edges), 0.0))])
        both = np.interp(end, edges, sent) - np.interp(begin, edges, sent)
        return np.asarray(np.clip(both / (end - begin), 0.0, 1.0))


HANGS: dict[str, str] = {"hang-compute": "compute", "hang-transport": "transport", "detachment": "compute"}
"""Part of the step in which a job hangs ('compute' or 'transport'), by class of the fault."""
