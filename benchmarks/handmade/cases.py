"""Hand-written cases: odd sizes, step times and phases of jobs, each healthy or with one known fault.

The cases were written before any detector was run on them, by an author who had read the detectors and the other
generators. A step is a plain model: each rank works for its own time, and all ranks wait for the slowest one. In a
pipeline, the slowest stage sets the pace of a replica.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Case:
    """One trace: what each rank does in each step, and who is at fault."""

    own: Array
    """Seconds of own work: [steps, ranks]."""
    stages: int = 1
    """Pipeline stages. Rank r is in stage r // (ranks / stages)."""
    per_node: int = 8
    culprits: tuple[int, ...] = ()
    """Ranks at fault; empty for a healthy job."""
    healthy: Array | None = None
    """`own` without the fault; None for a healthy job."""
    experts: int = 0
    """Experts of each group of ranks; rank r computes expert r % experts."""
    layout: bool = True
    common: Array | None = None
    """Seconds that each step takes longer for all ranks, in collectives: [steps]."""
    lost: NDArray[np.bool_] | None = None
    """Samples that are not in the file: [steps, ranks]."""
    numbers: NDArray[np.int64] | None = None
    """Step number of each row; None for 0, 1, 2, ..."""
    tokens: Array | None = None
    names: list[str] = field(default_factory=list)

    def times(self, own: Array) -> tuple[Array, Array]:
        """Return seconds and waits of each rank, each [steps, ranks]."""
        steps, ranks = own.shape
        if self.stages > 1:
            width, micro = ranks // self.stages, 8
            piece = own.reshape(steps, self.stages, width) / micro
            length = piece.sum(axis=1) + (micro - 1) * piece.max(axis=1)
            total = length.max(axis=1)
        else:
            total = own.max(axis=1)
        total = total + 0.02 * np.median(own) + (0 if self.common is None else self.common)
        seconds = np.repeat(total[:, None], ranks, axis=1)
        return seconds, seconds - own

    def cost(self) -> float:
        """Return the mean step with the fault divided by that without, over the steps that it affects."""
        if self.healthy is None:
            return 1.0
        sick = (self.own != self.healthy).any(axis=1)
        return float(self.times(self.own)[0][sick].mean() / self.times(self.healthy)[0][sick].mean())


def work(rng: Generator, steps: int, ranks: int, base: float, noise: float = 0.015, spread: float = 0.02) -> Array:
    """Return the own work of healthy ranks: equal GPUs with a small spread, and noise with a short memory."""
    jitter = rng.standard_normal((steps, ranks))
    for n in range(1, steps):
        jitter[n] = 0.5 * jitter[n - 1] + 0.87 * jitter[n]
    own: Array = base * np.exp(noise * jitter + spread * rng.standard_normal(ranks))
    own[0] *= 6
    own[1] *= 1.5
    return own


def _slow(own: Array, who: tuple[int, ...], factor: float, first: int, last: int | None = None) -> Array:
    sick = own.copy()
    sick[first:last, list(who)] *= factor
    return sick


def _fault(
    own: Array, who: tuple[int, ...], factor: float, first: int, stages: int = 1, per_node: int = 8, layout: bool = True
) -> Case:
    sick = _slow(own, who, factor, first)
    return Case(sick, stages=stages, per_node=per_node, culprits=who, healthy=own, layout=layout)


def two_ranks(rng: Generator) -> Case:
    """Two ranks; the second one becomes slower by 30 %."""
    return _fault(work(rng, 150, 2, 0.8), (1,), 1.3, 80, per_node=1)


def three_ranks(rng: Generator) -> Case:
    """Three ranks on three nodes; one becomes slower by 20 %."""
    return _fault(work(rng, 160, 3, 1.3), (2,), 1.2, 90, per_node=1)


def five_ranks(rng: Generator) -> Case:
    """Five ranks; one becomes slower by 15 %."""
    return _fault(work(rng, 200, 5, 0.4), (3,), 1.15, 100)


def seven_collect_garbage(rng: Generator) -> Case:
    """Seven ranks collect garbage, each at steps of its own."""
    own = work(rng, 300, 7, 0.5)
    for r in range(7):
        own[int(rng.integers(5, 40)) :: 41, r] += 0.3
    return Case(own)


def one_gpu_a_node(rng: Generator) -> Case:
    """48 nodes with one GPU each; one becomes slower by 12 %."""
    return _fault(work(rng, 200, 48, 1.0, 0.01, 0.01), (29,), 1.15, 110, per_node=1)


def minutes_a_step(rng: Generator) -> Case:
    """Steps of 60 s, 90 of them; one of 16 ranks becomes slower by 25 %."""
    return _fault(work(rng, 90, 16, 60.0), (5,), 1.25, 45)


def milliseconds_a_step(rng: Generator) -> Case:
    """2,000 steps of 20 ms with large noise; one of 8 ranks becomes slower by 20 %."""
    return _fault(work(rng, 2000, 8, 0.02, 0.06), (6,), 1.2, 900)


def milliseconds_healthy(rng: Generator) -> Case:
    """2,000 steps of 20 ms with large noise and pauses of single ranks."""
    own = work(rng, 2000, 8, 0.02, 0.06)
    own[rng.random(own.shape) < 0.004] += 0.05
    return Case(own)


def late_ranks(rng: Generator) -> Case:
    """Four of twelve ranks join at step 60."""
    own = work(rng, 200, 12, 0.7)
    lost = np.zeros(own.shape, np.bool_)
    lost[:60, 8:] = True
    return Case(own, per_node=4, lost=lost)


def late_sick_rank(rng: Generator) -> Case:
    """Four of twelve ranks join at step 60, and one of the others becomes slower by 30 % at step 130."""
    case = _fault(work(rng, 220, 12, 0.7), (2,), 1.3, 130, per_node=4)
    case.lost = np.zeros(case.own.shape, np.bool_)
    case.lost[:60, 8:] = True
    return case


def a_fifth_missing(rng: Generator) -> Case:
    """A fifth of all samples is missing; one of 16 ranks becomes slower by 25 %."""
    case = _fault(work(rng, 250, 16, 0.9), (11,), 1.25, 120)
    case.lost = rng.random(case.own.shape) < 0.2
    return case


def a_reporter_stops(rng: Generator) -> Case:
    """One of 16 ranks sends no samples after step 80."""
    own = work(rng, 180, 16, 0.9)
    lost = np.zeros(own.shape, np.bool_)
    lost[80:, 4] = True
    return Case(own, lost=lost)


def recompiles(rng: Generator) -> Case:
    """Two of eight ranks compile again for some steps when a new length of sequences appears."""
    own = work(rng, 300, 8, 0.6)
    for n in (70, 140, 150, 260):
        for r in rng.choice(8, 2, replace=False):
            own[n : n + int(rng.integers(2, 7)), r] += rng.uniform(0.5, 4)
    return Case(own)


def evaluation(rng: Generator) -> Case:
    """All 24 ranks evaluate for three steps after each 50 steps, with unequal parts of the data."""
    own = work(rng, 320, 24, 1.1)
    part = np.exp(0.15 * rng.standard_normal(24))
    for n in range(50, 320, 50):
        own[n : n + 3] = 3 * part * 1.1 * np.exp(0.02 * rng.standard_normal((min(3, 320 - n), 24)))
    return Case(own)


def evaluation_by_first(rng: Generator) -> Case:
    """The first of 16 ranks evaluates for the time of 20 steps, three times."""
    own = work(rng, 240, 16, 0.5)
    own[[60, 125, 190], 0] += 10
    return Case(own)


def hot_expert(rng: Generator) -> Case:
    """One of four experts receives up to 35 % more work for 120 steps. Tokens are not reported."""
    own = work(rng, 400, 16, 0.8)
    ramp = np.interp(np.arange(400), [120, 150, 240, 270], [0, 0.35, 0.35, 0])
    own[:, np.arange(16) % 4 == 2] *= 1 + ramp[:, None]
    return Case(own, experts=4)


def saves_in_background(rng: Generator) -> Case:
    """The first rank saves in the background after each 60 steps: 25 % slower for eight steps."""
    own = work(rng, 400, 16, 0.7)
    for n in range(60, 400, 60):
        own[n : n + 8, 0] *= 1.25
    return Case(own)


def saves_on_each_node(rng: Generator) -> Case:
    """The first rank of each node saves in the background after each 45 steps: 20 % slower for six steps."""
    own = work(rng, 400, 32, 0.7)
    for n in range(45, 400, 45):
        own[n : n + 6, ::8] *= 1.2
    return Case(own)


def from_first_step(rng: Generator) -> Case:
    """One of 16 equal ranks is slower by 40 % from the first step."""
    return _fault(work(rng, 150, 16, 1.0), (9,), 1.4, 0)


def from_first_step_of_stage(rng: Generator) -> Case:
    """One of the four ranks of a stage is slower by 40 % from the first step."""
    return _fault(work(rng, 150, 16, 1.0), (9,), 1.4, 0, stages=4, per_node=4)


def two_of_a_stage(rng: Generator) -> Case:
    """Two of the four ranks of one of four stages, on one node, become slower by 40 %."""
    return _fault(work(rng, 220, 16, 1.0), (5, 6), 1.4, 110, stages=4, per_node=4)


def two_of_a_stage_apart(rng: Generator) -> Case:
    """Two of the four ranks of one of four stages, on two nodes, become slower by 40 %."""
    return _fault(work(rng, 220, 16, 1.0), (5, 6), 1.4, 110, stages=4, per_node=2)


def two_workers(rng: Generator) -> Case:
    """Two of 16 workers on different nodes become slower by 30 % at the same step, and stay slow."""
    return _fault(work(rng, 260, 16, 0.6), (5, 14), 1.3, 120, per_node=4, layout=False)


def three_workers(rng: Generator) -> Case:
    """Three of twelve workers on different nodes become slower by 30 % at the same step, and stay slow."""
    return _fault(work(rng, 260, 12, 0.6), (1, 6, 10), 1.3, 120, per_node=4)


def gradual_on_slower_model(rng: Generator) -> Case:
    """Two of four nodes have GPUs that are slower by 18 %. One GPU there becomes slower by 35 % in 80 steps."""
    own = work(rng, 300, 32, 0.9)
    own[:, 16:] *= 1.18
    sick = own.copy()
    sick[:, 19] *= 1 + 0.35 * np.clip((np.arange(300) - 110) / 80, 0, 1)
    return Case(sick, culprits=(19,), healthy=own)


def mixed_models(rng: Generator) -> Case:
    """Two of four nodes have GPUs that are slower by 18 %."""
    own = work(rng, 300, 32, 0.9)
    own[:, 16:] *= 1.18
    return Case(own)


def short_spells(rng: Generator) -> Case:
    """One of 24 ranks is slower by 60 %, again and again, for five to eight steps."""
    own = work(rng, 400, 24, 0.6)
    sick, n = own.copy(), 120
    while n < 400:
        sick[n : n + int(rng.integers(5, 9)), 13] *= 1.6
        n += int(rng.integers(12, 32))
    return Case(sick, culprits=(13,), healthy=own)


def long_spells(rng: Generator) -> Case:
    """One of 16 ranks is slower by 20 %, for about 40 steps of each 80."""
    own = work(rng, 500, 16, 0.6)
    sick, n = own.copy(), 100
    while n < 500:
        sick[n : n + int(rng.integers(30, 50)), 7] *= 1.2
        n += int(rng.integers(70, 95))
    return Case(sick, culprits=(7,), healthy=own)


def longer_sequences(rng: Generator) -> Case:
    """The length of sequences grows: all steps become longer by 4 % after each 30 steps."""
    own = work(rng, 300, 16, 0.5)
    return Case(own * 1.04 ** (np.arange(300) // 30)[:, None])


def larger_batch(rng: Generator) -> Case:
    """The job accumulates gradients over twice as many batches for 60 steps."""
    own = work(rng, 240, 8, 0.5)
    own[100:160] *= 2
    return Case(own)


def last_stage(rng: Generator) -> Case:
    """The last of four stages has 30 % more work."""
    own = work(rng, 200, 32, 0.8)
    own[:, 24:] *= 1.3
    return Case(own, stages=4)


def slow_network(rng: Generator) -> Case:
    """All collectives become longer at step 100."""
    own = work(rng, 220, 16, 0.5)
    return Case(own, common=np.where(np.arange(220) >= 100, 0.2, 0.0))


def capped_node(rng: Generator) -> Case:
    """One of six nodes becomes slower by 12 %."""
    return _fault(work(rng, 240, 48, 1.0), tuple(range(16, 24)), 1.12, 120)


def restart(rng: Generator) -> Case:
    """The job restarts after step 120, repeats 15 steps, and takes a minute to load."""
    own = work(rng, 240, 16, 0.6)
    own[120] += 60 * np.exp(0.05 * rng.standard_normal(16))
    numbers = np.arange(240)
    return Case(own, numbers=np.where(numbers < 120, numbers, numbers - 15))


def loader_of_a_node(rng: Generator) -> Case:
    """The data loader of one of four nodes is slow for 15 steps, twice."""
    own = work(rng, 320, 16, 0.6)
    for n in (110, 230):
        own[n : n + 15, 4:8] += 0.25 * np.exp(0.3 * rng.standard_normal((15, 1)))
    return Case(own, per_node=4)


def last_replica_has_less(rng: Generator) -> Case:
    """The last of nine replicas has a quarter of the work in each tenth step, at the end of its data."""
    own = work(rng, 300, 9, 0.9)
    own[9::10, 8] *= 0.25
    return Case(own, per_node=3)


def uneven_lengths(rng: Generator) -> Case:
    """Each of twelve ranks gets sequences of other lengths in each step. Tokens are reported."""
    share = np.exp(0.2 * rng.standard_normal((260, 12)))
    return Case(work(rng, 260, 12, 0.7) * (0.3 + 0.7 * share), tokens=np.round(8192 * share))


def a_rank_a_stage(rng: Generator) -> Case:
    """Six stages of one rank each; the fourth becomes slower by 30 %."""
    return _fault(work(rng, 240, 6, 0.9), (3,), 1.3, 120, stages=6, per_node=2)


def two_stages(rng: Generator) -> Case:
    """Two stages of one rank each; the second becomes slower by 40 %."""
    return _fault(work(rng, 240, 2, 0.9), (1,), 1.4, 120, stages=2, per_node=1)


def three_of_a_node(rng: Generator) -> Case:
    """Three of the eight ranks of one of three nodes become slower by 20 %."""
    return _fault(work(rng, 240, 24, 0.9), (9, 10, 14), 1.2, 120)


def one_after_the_other(rng: Generator) -> Case:
    """One of 16 ranks is slower by 30 % for 60 steps, then another one on another node until the end."""
    own = work(rng, 320, 16, 0.6)
    sick = _slow(_slow(own, (3,), 1.3, 100, 160), (13,), 1.3, 200)
    return Case(sick, culprits=(3, 13), healthy=own)


def nine_per_cent(rng: Generator) -> Case:
    """One of eight steady ranks becomes slower by 9 %."""
    return _fault(work(rng, 400, 8, 0.5, 0.006, 0.004), (2,), 1.09, 200)


def fault_while_sequences_grow(rng: Generator) -> Case:
    """All steps become longer by 4 % after each 30 steps, and one of 16 ranks becomes slower by 25 %."""
    own = work(rng, 300, 16, 0.5) * 1.04 ** (np.arange(300) // 30)[:, None]
    return _fault(own, (6,), 1.25, 160)


def noisy_cloud(rng: Generator) -> Case:
    """Twelve ranks with noise of 12 % in each step."""
    return Case(work(rng, 400, 12, 0.3, 0.12, 0.03), per_node=2)


def alternating(rng: Generator) -> Case:
    """Each second step of all ten ranks is longer by half."""
    own = work(rng, 300, 10, 0.4)
    own[::2] *= 1.5
    return Case(own, per_node=2)


def popular_to_the_end(rng: Generator) -> Case:
    """One of four experts receives 30 % more work from step 150 on. Tokens are not reported."""
    own = work(rng, 400, 16, 0.8)
    own[150:, np.arange(16) % 4 == 1] *= 1.3
    return Case(own, experts=4)


def all_compile(rng: Generator) -> Case:
    """All 16 ranks compile again, four times, each for one to three steps and unequally long."""
    own = work(rng, 260, 16, 0.4)
    for n in (60, 61, 130, 200):
        own[n] += rng.uniform(1, 6, 16)
    return Case(own)


def an_hour_of_pause(rng: Generator) -> Case:
    """All ranks pause for an hour; then the job goes on as before."""
    own = work(rng, 200, 16, 0.8)
    own[110] += 3600
    return Case(own)


def a_replica_has_more(rng: Generator) -> Case:
    """One of four replicas of four stages gets 20 % more data from step 120 on."""
    own = work(rng, 260, 16, 0.8)
    own[120:, np.arange(16) % 4 == 2] *= 1.2
    return Case(own, stages=4, per_node=4)


def sick_from_start_and_mixed(rng: Generator) -> Case:
    """Two of four nodes have GPUs that are slower by 18 %. One GPU there is slower by 40 % from the first step."""
    own = work(rng, 200, 32, 0.9)
    own[:, 16:] *= 1.18
    return _fault(own, (21,), 1.4, 0)


def heating_up(rng: Generator) -> Case:
    """One of 16 GPUs becomes slower by 25 % over 150 steps, and fast again after a pause of the job, twice."""
    own = work(rng, 480, 16, 0.7)
    factor = 1 + 0.25 * np.clip(((np.arange(480) - 60) % 210) / 150, 0, 1)
    factor[:60] = 1
    sick = own.copy()
    sick[:, 10] *= factor
    return Case(sick, culprits=(10,), healthy=own)


def five_of_twenty(rng: Generator) -> Case:
    """Five of twenty ranks, each on a node of its own, become slower by 15 to 40 % within ten steps."""
    own = work(rng, 300, 20, 0.7)
    sick, who = own.copy(), (1, 5, 8, 13, 18)
    for r in who:
        sick[140 + int(rng.integers(0, 10)) :, r] *= rng.uniform(1.15, 1.4)
    return Case(sick, culprits=who, healthy=own, per_node=2)


def drifting_together(rng: Generator) -> Case:
    """All 24 ranks become slower by 15 % over 200 steps: the room becomes warmer."""
    own = work(rng, 400, 24, 0.7)
    return Case(own * (1 + 0.15 * np.clip((np.arange(400) - 100) / 200, 0, 1))[:, None])


CASES: tuple[Callable[[Generator], Case], ...] = (
    two_ranks, three_ranks, five_ranks, seven_collect_garbage, one_gpu_a_node, minutes_a_step, milliseconds_a_step,
    milliseconds_healthy, late_ranks, late_sick_rank, a_fifth_missing, a_reporter_stops, recompiles, evaluation,
    evaluation_by_first, hot_expert, saves_in_background, saves_on_each_node, from_first_step,
    from_first_step_of_stage, two_of_a_stage, two_of_a_stage_apart, two_workers, three_workers,
    gradual_on_slower_model, mixed_models, short_spells, long_spells, longer_sequences, larger_batch, last_stage,
    slow_network, capped_node, restart, loader_of_a_node, last_replica_has_less, uneven_lengths, a_rank_a_stage,
    two_stages, three_of_a_node, one_after_the_other, nine_per_cent, fault_while_sequences_grow, noisy_cloud,
    alternating, popular_to_the_end, all_compile, an_hour_of_pause, a_replica_has_more, sick_from_start_and_mixed,
    heating_up, five_of_twenty, drifting_together,
)  # fmt: skip
