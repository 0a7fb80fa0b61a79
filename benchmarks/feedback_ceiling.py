"""What could be saved at best by who does not know how long a fault lasts: ``python -m benchmarks.feedback_ceiling``.

Of each transient fault of ``benchmarks.feedback_pays`` the gangs are taken that ran on its node when it began. Each of
them stays or moves, on its own: in this stretch nobody waits. With r what it loses in a second, L how long the fault
lasts, R how long the gang would run on if it stayed, and C what a move costs, that costs it

    who stays                                r E min(L, R)
    who knows L and R                        E min(r min(L, R), C)
    who knows the law of L and R, not L      the least over T of  r E min(L, T) + P(L > T) C,  for T < R, and of staying

The last is optimal stopping with the law from which the simulator draws (``sim.faults.life``), with what is slow and
how much known at once and exactly, and with each gang's end known: more than any scheduler knows. No rule that does not
foresee L does better on average, whatever it learns. Gangs that start on a slow node later on lose nothing: who is told
of the node starts them elsewhere, so what `off` lost by them is saved by both; and so is what a fault took that hit a
gang while it was slow already.

``drawn`` is what the same rule, with the same T, makes of the lives that were drawn, as in feedback_pays.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.feedback_pays import FIRST, JOBS, NODES, SEEDS
from benchmarks.policies import POLICIES, data_folder
from scheduler_feedback.core.events import Event
from scheduler_feedback.sim import faults
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.feedback import Hurt, Slowness
from scheduler_feedback.sim.nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from scheduler_feedback.sim.trace import Trace
from scheduler_feedback.sim.truth import Gang

RESTART_COSTS_SECONDS = (10.0, 30.0, 60.0, 120.0, 300.0, 900.0)

_WAITS = (0.0, *(2.0 ** (step / 16) for step in range(16 * 24)))
"""In seconds: sixteenths of octaves up to half a year."""


@dataclass(frozen=True, slots=True)
class Life:
    """Log-normal: how long faults last. mean_seconds: of the lives themselves; sigma: of their logarithm."""

    mean_seconds: float
    sigma: float

    def outlasts(self, seconds: float) -> float:
        """The probability that one lasts longer."""
        return _below(-self._at(seconds)) if seconds > 0 else 1.0

    def until(self, seconds: float) -> float:
        """E min(L, seconds), in seconds."""
        if seconds <= 0:
            return 0.0
        inside = 1.0 if math.isinf(seconds) else _below(self._at(seconds) - self.sigma)
        return self.mean_seconds * inside + (0.0 if math.isinf(seconds) else seconds * self.outlasts(seconds))

    def _at(self, seconds: float) -> float:
        return (math.log(seconds / self.mean_seconds) + self.sigma**2 / 2) / self.sigma


def _below(deviations: float) -> float:
    return math.erfc(-deviations / math.sqrt(2)) / 2


@dataclass(frozen=True, slots=True)
class Hit:
    """A gang on the node of a fault that begins. runs_seconds: for so long yet, if it stays and the fault goes on."""

    life: Life
    lasted_seconds: float
    slowdown: float
    runs_seconds: float

    @property
    def lost_in_a_second(self) -> float:
        return 1 - 1 / self.slowdown

    def best_wait(self, cost_seconds: float) -> tuple[float, float]:
        """The cheapest that can be expected without foresight, in seconds, and the wait that it needs; inf: to stay."""
        rate, life = self.lost_in_a_second, self.life
        stays = (rate * life.until(self.runs_seconds), math.inf)
        waits = (wait for wait in _WAITS if wait < self.runs_seconds)
        return min(stays, *((rate * life.until(wait) + life.outlasts(wait) * cost_seconds, wait) for wait in waits))

    def expected(self, cost_seconds: float) -> Costs:
        rate = self.lost_in_a_second
        known = self.life.until(min(self.runs_seconds, cost_seconds / rate))
        return Costs(rate * self.life.until(self.runs_seconds), self.best_wait(cost_seconds)[0], rate * known)

    def drawn(self, cost_seconds: float) -> Costs:
        rate, both = self.lost_in_a_second, min(self.lasted_seconds, self.runs_seconds)
        wait = self.best_wait(cost_seconds)[1]
        return Costs(
            rate * both, rate * both if both <= wait else rate * wait + cost_seconds, min(rate * both, cost_seconds)
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """In seconds: of who stays, of who waits and moves as is best without foresight, of who knows how long it lasts."""

    stays: float
    stops: float
    knows: float

    def __add__(self, other: Costs) -> Costs:
        return Costs(self.stays + other.stays, self.stops + other.stops, self.knows + other.knows)

    def share(self, avoided: float) -> float:
        """Of what who knows saves, what is saved without foresight. avoided: what both save at no cost besides."""
        return (self.stays - self.stops + avoided) / (self.stays - self.knows + avoided)


class Witness:
    """Says nothing of slow nodes, and keeps whom they hit. lives: by slowdown, which no two faults share."""

    def __init__(self, lives: dict[float, Life]) -> None:
        self.hits: list[Hit] = []
        self._lives = lives
        self._slow_until_ns: dict[str, int] = {}

    def begin(self, engine: Engine) -> None:
        pass

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:  # noqa: ARG002 - Feedback's signature
        return ()

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        fault, slow_until_ns = hurt.slowness, self._slow_until_ns.get(hurt.job_id, 0)
        self._slow_until_ns[hurt.job_id] = max(slow_until_ns, fault.until_ns)
        if not hurt.began_so and slow_until_ns <= hurt.now_ns:
            lasted = (fault.until_ns - hurt.now_ns) / 1e9
            runs = _left_seconds(hurt.gang, hurt.now_ns) * fault.slowdown
            self.hits.append(Hit(self._lives[fault.slowdown], lasted, fault.slowdown, runs))
        return ()

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:  # noqa: ARG002
        return ()


def _left_seconds(gang: Gang, now_ns: int) -> float:
    """Work that is left of it, in time at full speed."""
    elapsed_ns = max(now_ns - gang.since_ns - gang.warm_ns, 0)
    return (gang.left_ns - elapsed_ns * gang.speed) / gang.full_speed / 1e9


def witnessed(trace: Trace, seed: int) -> tuple[list[Hit], float]:
    """Whom the faults of this seed hit while nobody says anything, and what all jobs lost to them, in seconds."""
    drawn = faults.transient(trace.jobs, seed).by_job or {}
    ranks = {job.job_id: job.spec.ranks for job in trace.jobs}
    witness = Witness({fault.slowdown: Life(*faults.life(ranks[job_id])) for job_id, fault in drawn.items()})
    engine = Simulation(
        trace, grid(NODES, 8), POLICIES["default"], faults="transient", feedback=witness, seed=seed
    ).engine()
    engine.run()
    lost_ns = sum(
        course.ended_ns - course.submitted_ns - course.waiting_ns - course.work_ns
        for course in engine.courses.values()
        if course.ended_ns is not None
    )
    return witness.hits, lost_ns / 1e9


def ceiling(hits: list[Hit], avoided: float, cost_seconds: float, of_all: int) -> dict[str, Any]:
    """What can be saved at best at this cost of a move, in seconds a job."""
    document: dict[str, Any] = {"restart_cost_seconds": cost_seconds}
    for name, costs in (
        ("expected", [hit.expected(cost_seconds) for hit in hits]),
        ("drawn", [hit.drawn(cost_seconds) for hit in hits]),
    ):
        whole = sum(costs, Costs(0.0, 0.0, 0.0))
        document[name] = {
            "saved_without_foresight": (whole.stays - whole.stops + avoided) / of_all,
            "saved_with_it": (whole.stays - whole.knows + avoided) / of_all,
            "share": whole.share(avoided),
        }
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--restart-costs", type=float, nargs="+", default=RESTART_COSTS_SECONDS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    trace = replace(trace, jobs=trace.jobs[FIRST : FIRST + JOBS])
    hits: list[Hit] = []
    lost: list[float] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        found, seconds = witnessed(trace, seed)
        print(f"seed {seed}: {len(found)} gangs were hit, {seconds / len(trace.jobs):.1f} s lost", file=sys.stderr)
        hits += found
        lost.append(seconds)
    avoided = sum(lost) - sum(hit.drawn(1.0).stays for hit in hits)
    of_all = len(trace.jobs) * arguments.seeds
    document = {
        "jobs": len(trace.jobs),
        "seeds": [arguments.first_seed, arguments.first_seed + arguments.seeds - 1],
        "gangs_hit": len(hits),
        "lost_seconds": statistics.fmean(lost) / len(trace.jobs),
        "avoided_by_both_seconds": avoided / of_all,
        "ceilings": [ceiling(hits, avoided, cost, of_all) for cost in arguments.restart_costs],
    }
    if arguments.json:
        print(json.dumps(document, indent=2))
        return 0
    for one in document["ceilings"]:
        shares = f"{one['expected']['share']:.1%} on average, {one['drawn']['share']:.1%} of the lives drawn"
        print(f"a restart of {one['restart_cost_seconds']:g} s: without foresight {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
