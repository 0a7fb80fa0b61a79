"""Feedback: simulated verdicts about slow nodes, with measured delays and errors.

The real detectors read counters every second, which a trace of months does not contain. The simulated detector is a
table of results of the detection benchmark: the probability and delay of detection by size of the slowdown. Its
verdicts go to the same cycle as real ones.

========== ============================================================================================================
`off`      no verdicts
`on`       verdicts as measured: with delay and a slightly wrong size, some missing, some against healthy ranks
`told`     immediate and exact verdicts: which node is slow and how much, but not for how long
`oracle`   immediate and exact verdicts: which node is slow, how much, and for how long
========== ============================================================================================================
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict
from scheduler_feedback.sim.occurrence import Occurrence

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine
    from scheduler_feedback.sim.truth import Gang

FEEDBACKS = ("off", "on", "told", "oracle")
"""Values of `--feedback`: the kinds of simulated verdicts."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """A period in which a node is slow."""

    number: int
    """Number of the fault, unique in the simulation."""
    node: str
    """Name of the node."""
    slowdown: float
    """Run time of a job on the node, divided by its run time on a healthy node."""
    until_ns: int
    """Simulated time at which the fault ends, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Share of faults that the simulated detector finds, and its delay, for faults of at least a given slowdown."""

    slowdown: float
    """Smallest slowdown for which these values apply."""
    found: float
    """Share of these faults that the detector finds, 0 to 1."""
    p50_seconds: float
    """Median delay from the start of a fault to its verdict, in seconds."""
    p95_seconds: float
    """95 % quantile of the delay from the start of a fault to its verdict, in seconds."""


MEASURED = (
    Quality(1.0, 0.0, math.inf, math.inf),
    Quality(1.10, 0.8, 16.3, 34.7),
    Quality(1.20, 1.0, 4.5, 9.3),
    Quality(1.50, 1.0, 4.5, 6.3),
)
"""Detection results of `python -m benchmarks.straggler --json` for gangs of eight ranks. Each value is the worse one of
steady and intermittent faults (docs/measurements/2026-11-21-one-machine.md). Between two slowdowns, the values of the
smaller slowdown apply."""

_LEAST_PEERS = 4
"""Minimum number of slots of a gang whose ranks are compared with each other. Smaller gangs are only compared with
their own past, so a start on a slow node is not detectable (docs: detection)."""

_P95 = 1.645  # of the standard normal distribution


@dataclass(frozen=True, slots=True)
class DetectorModel:
    """Errors of the simulated detector."""

    quality: Sequence[Quality] = MEASURED
    """Share of faults found and delay, for each range of slowdowns."""
    clear_seconds: float = 15.0
    """Seconds from the end of a fault until its verdict is cleared."""
    size_error: float = 0.05
    """Standard deviation of the logarithm of the reported slowdown."""
    confidence: tuple[float, float] = (0.9, 0.999)
    """Minimum and maximum reported confidence."""
    false_per_1000_gpu_days: float = 0.0
    """Number of false verdicts against members of healthy gangs, per 1000 GPU-days."""
    false_seconds: float = 600.0
    """Seconds after which a false verdict is cleared."""
    false_slowdown: tuple[float, float] = (1.1, 1.5)
    """Minimum and maximum slowdown of a false verdict."""

    def delay_seconds(self, slowdown: float, draw: random.Random) -> float | None:
        """Draw the random delay in seconds from a fault's start to its verdict; None if the fault is not detected.

        The delay is log-normal and has the measured median and 95 % quantile.
        """
        quality = self.quality[max(bisect_right([one.slowdown for one in self.quality], slowdown) - 1, 0)]
        found, at = draw.random() < quality.found, draw.gauss(0.0, 1.0)
        if not found:
            return None
        return quality.p50_seconds * math.exp(at * math.log(quality.p95_seconds / quality.p50_seconds) / _P95)


@dataclass(frozen=True, slots=True)
class Hurt:
    """A gang on a node that becomes slow, or that is already slow when the gang starts."""

    engine: Engine
    """Simulation in which the gang runs."""
    slowness: Slowness
    """Fault that makes the node slow."""
    job_id: str
    """Job of the gang."""
    gang: Gang
    """Gang that the slow node delays."""
    began_so: bool
    """Whether the node was already slow when the gang started there."""
    now_ns: int
    """Simulated time at which the slow node begins to delay the gang, in nanoseconds."""


class Feedback(Protocol):
    """Source of verdicts about slow nodes. All returned events are for the current time."""

    def begin(self, engine: Engine) -> None:
        """Prepare for the start of the simulation."""

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        """Return the events to publish when a node becomes slow."""

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        """Return the events to publish when a slow node begins to delay a gang."""

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        """Return the events to publish when a node is no longer slow."""


class Detector:
    """Simulated detector with measured delays and errors.

    Each fault, job and attempt has its own random numbers, so other decisions do not change them.
    """

    def __init__(self, model: DetectorModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._active: dict[int, list[tuple[str, str]]] = {}
        self._innocent = 0

    def begin(self, engine: Engine) -> None:
        if self._model.false_per_1000_gpu_days > 0:
            self._next_false(engine, engine.first_ns)

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:  # noqa: ARG002 - it sees gangs, not nodes
        return ()

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        slowness, job_id, gang = hurt.slowness, hurt.job_id, hurt.gang
        if hurt.began_so and gang.slots < _LEAST_PEERS:
            return ()
        draw = random.Random(f"{self._seed}/{slowness.number}/{job_id}/{gang.attempt}")
        delay = self._model.delay_seconds(slowness.slowdown, draw)
        size = 1 + (slowness.slowdown - 1) * math.exp(draw.gauss(0.0, self._model.size_error))
        confidence = draw.uniform(*self._model.confidence)
        if delay is None:
            return ()

        def report(engine: Engine, at_ns: int) -> Iterable[Event]:
            if engine.gangs.get(job_id) is not gang or gang.stopping or slowness.until_ns <= at_ns:
                return
            verdict = verdict_of(hurt, size, confidence, at_ns)
            self._active.setdefault(slowness.number, []).append((verdict.verdict_id, job_id))
            yield verdict

        hurt.engine.later(Occurrence(hurt.now_ns + nanoseconds(delay), report))
        return ()

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        active = self._active.pop(slowness.number, [])

        def clear(engine: Engine, at_ns: int) -> Iterable[Event]:  # noqa: ARG001 - an occurrence's signature
            for verdict_id, gang in active:
                yield Cleared(verdict_id, gang, at_ns, "runs at normal speed again")

        if active:
            engine.later(Occurrence(now_ns + nanoseconds(self._model.clear_seconds), clear))
        return ()

    # --- false verdicts -----------------------------------------------------------------------------------------------

    def _next_false(self, engine: Engine, now_ns: int) -> None:
        """Schedule the next false verdict, against a random slot. If that slot is idle then, no verdict is reported."""
        slots = sum(engine.account.capacity.values())
        per_second = self._model.false_per_1000_gpu_days * slots / 1000 / 86400
        draw = random.Random(f"{self._seed}/false/{self._innocent}")
        self._innocent += 1
        at_ns = now_ns + nanoseconds(draw.expovariate(per_second))

        def accuse(engine: Engine, at_ns: int) -> Iterable[Event]:
            self._next_false(engine, at_ns)
            node = draw.choices(list(engine.account.capacity), list(engine.account.capacity.values()))[0]
            gangs = engine.machines.on_node.get(node, {})
            slot = draw.randrange(engine.account.capacity[node])
            on_it = [job_id for job_id, gang in gangs.items() for _ in range(gang.nodes[node])]
            if slot >= len(on_it):
                return
            job_id, gang = on_it[slot], gangs[on_it[slot]]
            if gang.stopping:
                return
            size = draw.uniform(*self._model.false_slowdown)
            slowness = Slowness(-self._innocent, node, size, at_ns)
            hurt = Hurt(engine, slowness, job_id, gang, False, at_ns)
            verdict = verdict_of(hurt, size, draw.uniform(*self._model.confidence), at_ns)

            def clear(engine: Engine, back_ns: int) -> Iterable[Event]:  # noqa: ARG001
                yield Cleared(verdict.verdict_id, job_id, back_ns, "runs at normal speed")

            engine.later(Occurrence(at_ns + nanoseconds(self._model.false_seconds), clear))
            yield verdict

        engine.later(Occurrence(at_ns, accuse))


class Oracle:
    """Immediate and exact verdicts: which node is slow, how much and, if `for_how_long`, until when."""

    def __init__(self, for_how_long: bool = True) -> None:
        self._for_how_long = for_how_long

    def begin(self, engine: Engine) -> None:
        pass

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        yield self._reported(verdict_alone(slowness, now_ns))

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        yield self._reported(verdict_of(hurt, hurt.slowness.slowdown, 1.0, hurt.now_ns, exact=True))

    def _reported(self, verdict: Verdict) -> Verdict:
        return verdict if self._for_how_long else replace(verdict, lasts_seconds=None)

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        yield Cleared(_alone(slowness), "", now_ns, "the node is healthy again")
        for verdict in [v for v in engine.state.verdicts.values() if v.verdict_id.startswith(f"s{slowness.number}-")]:
            yield Cleared(verdict.verdict_id, verdict.gang, now_ns, "the node is healthy again")


def verdict_of(hurt: Hurt, size: float, confidence: float, now_ns: int, exact: bool = False) -> Verdict:
    """Return the verdict that this gang's rank on the slow node is a straggler."""
    slowness, job_id, gang, onset_ns = hurt.slowness, hurt.job_id, hurt.gang, hurt.now_ns
    ranks = hurt.engine.state.jobs[job_id].ranks
    rank = next((one.rank for one in ranks if one.slot.node == slowness.node), 0)
    return Verdict(
        verdict_id=f"s{slowness.number}-{job_id}-{gang.attempt}",
        kind=Kind.STRAGGLER,
        gang=job_id,
        attempt=gang.attempt,
        rank=rank,
        node=slowness.node,
        cause=Cause.COMPUTE,
        confidence=confidence,
        slowdown=size,
        step_seconds_before=1.0,
        step_seconds_now=size,
        first_wall_ns=onset_ns,
        last_wall_ns=now_ns,
        detector="oracle" if exact else "simulated",
        level="node",
        lasts_seconds=(slowness.until_ns - onset_ns) / 1e9 if exact else None,
    )


def _alone(slowness: Slowness) -> str:
    return f"s{slowness.number}"


def verdict_alone(slowness: Slowness, now_ns: int) -> Verdict:
    """Return the verdict that the node is slow, regardless of the gangs on it."""
    return Verdict(
        verdict_id=_alone(slowness),
        kind=Kind.STRAGGLER,
        gang="",
        attempt=0,
        rank=-1,
        node=slowness.node,
        cause=Cause.COMPUTE,
        confidence=1.0,
        slowdown=slowness.slowdown,
        step_seconds_before=1.0,
        step_seconds_now=slowness.slowdown,
        first_wall_ns=now_ns,
        last_wall_ns=now_ns,
        detector="oracle",
        level="node",
        lasts_seconds=(slowness.until_ns - now_ns) / 1e9,
    )
