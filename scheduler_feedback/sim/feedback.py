"""Feedback: what a detector would say of the slow nodes of a simulation, and when; its delay and errors are measured.

The real detectors read counters a second; a trace of months has none. So here the detector is a table of what the
detection benchmark measured: how probably it finds a slowdown of a size, and after how long. What it then says goes to
the same cycle as a real verdict.

========== ============================================================================================================
`off`      nothing is ever said
`on`       verdicts as measured: late, with the size a little wrong, sometimes not at all, sometimes of the innocent
`told`     at once and exactly: which node is slow, and how much; not for how long
`oracle`   at once and exactly: which node is slow, how much, and for how long
========== ============================================================================================================
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from scheduler_feedback.core.cycle_context import nanoseconds
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict
from scheduler_feedback.sim.occurrence import Occurrence

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine
    from scheduler_feedback.sim.truth import Gang


@dataclass(frozen=True, slots=True)
class Slowness:
    """A node is slow. number: of the fault, unique in the simulation. until_ns: when it ends."""

    number: int
    node: str
    slowdown: float
    until_ns: int


@dataclass(frozen=True, slots=True)
class Quality:
    """What the detector does with slowdowns of at least so much.

    found: share that it finds. p50_seconds, p95_seconds: of the delay from the onset to the verdict.
    """

    slowdown: float
    found: float
    p50_seconds: float
    p95_seconds: float


MEASURED = (
    Quality(1.0, 0.0, math.inf, math.inf),
    Quality(1.10, 0.8, 16.3, 34.7),
    Quality(1.20, 1.0, 4.5, 9.3),
    Quality(1.50, 1.0, 4.5, 6.3),
)
"""`python -m benchmarks.straggler --json`, gangs of eight ranks, the worse of the steady and the intermittent fault in
each column (docs/measurements/2026-11-21-one-machine.md). Between two sizes that of the smaller holds."""

_LEAST_PEERS = 4
"""Smaller gangs are judged by their own past alone, so one that starts on a slow node gives nothing to see
(docs: detection; two peers cannot out-vote each other)."""

_P95 = 1.645  # of the standard normal distribution


@dataclass(frozen=True, slots=True)
class DetectorModel:
    """The detector's errors.

    clear_seconds: how long after the slowness has ended the verdict is taken back. size_error: standard deviation of
    the logarithm of the slowdown that it says. confidence: that it says, least and most. false_per_1000_gpu_days: how
    often an innocent gang's member is accused; such a verdict is taken back after false_seconds.
    """

    quality: Sequence[Quality] = MEASURED
    clear_seconds: float = 15.0
    size_error: float = 0.05
    confidence: tuple[float, float] = (0.9, 0.999)
    false_per_1000_gpu_days: float = 0.0
    false_seconds: float = 600.0
    false_slowdown: tuple[float, float] = (1.1, 1.5)

    def delay_seconds(self, slowdown: float, draw: random.Random) -> float | None:
        """From the onset to the verdict; None where it is never found. Log-normal through both quantiles."""
        quality = self.quality[max(bisect_right([one.slowdown for one in self.quality], slowdown) - 1, 0)]
        found, at = draw.random() < quality.found, draw.gauss(0.0, 1.0)
        if not found:
            return None
        return quality.p50_seconds * math.exp(at * math.log(quality.p95_seconds / quality.p50_seconds) / _P95)


@dataclass(frozen=True, slots=True)
class Hurt:
    """A gang runs on a slow node, from now on. began_so: the node was slow already when the gang started there."""

    engine: Engine
    slowness: Slowness
    job_id: str
    gang: Gang
    began_so: bool
    now_ns: int


class Feedback(Protocol):
    """Who tells the cycle about slow nodes. All events are for now."""

    def begin(self, engine: Engine) -> None:
        """The simulation is about to begin."""

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        """A node has become slow."""

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        """It makes a gang slow."""

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        """The node is sound again."""


class Detector:
    """As measured. Draws are by fault, job and attempt, so that they do not depend on what else happens."""

    def __init__(self, model: DetectorModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._said: dict[int, list[tuple[str, str]]] = {}
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

        def say(engine: Engine, at_ns: int) -> Iterable[Event]:
            if engine.gangs.get(job_id) is not gang or gang.stopping or slowness.until_ns <= at_ns:
                return
            verdict = verdict_of(hurt, size, confidence, at_ns)
            self._said.setdefault(slowness.number, []).append((verdict.verdict_id, job_id))
            yield verdict

        hurt.engine.later(Occurrence(hurt.now_ns + nanoseconds(delay), say))
        return ()

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        said = self._said.pop(slowness.number, [])

        def take_back(engine: Engine, at_ns: int) -> Iterable[Event]:  # noqa: ARG001 - an occurrence's signature
            for verdict_id, gang in said:
                yield Cleared(verdict_id, gang, at_ns, "keeps pace again")

        if said:
            engine.later(Occurrence(now_ns + nanoseconds(self._model.clear_seconds), take_back))
        return ()

    # --- false verdicts -----------------------------------------------------------------------------------------------

    def _next_false(self, engine: Engine, now_ns: int) -> None:
        """All slots count, busy or not: a draw that meets an idle one says nothing."""
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

            def take_back(engine: Engine, back_ns: int) -> Iterable[Event]:  # noqa: ARG001
                yield Cleared(verdict.verdict_id, job_id, back_ns, "keeps pace")

            engine.later(Occurrence(at_ns + nanoseconds(self._model.false_seconds), take_back))
            yield verdict

        engine.later(Occurrence(at_ns, accuse))


class Oracle:
    """Knows at once and exactly which node is slow and how much; and for how long, if it is to say that."""

    def __init__(self, for_how_long: bool = True) -> None:
        self._for_how_long = for_how_long

    def begin(self, engine: Engine) -> None:
        pass

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        yield self._said(verdict_alone(slowness, now_ns))

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        yield self._said(verdict_of(hurt, hurt.slowness.slowdown, 1.0, hurt.now_ns, exact=True))

    def _said(self, verdict: Verdict) -> Verdict:
        return verdict if self._for_how_long else replace(verdict, lasts_seconds=None)

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:
        yield Cleared(_alone(slowness), "", now_ns, "the node is sound again")
        for verdict in [v for v in engine.state.verdicts.values() if v.verdict_id.startswith(f"s{slowness.number}-")]:
            yield Cleared(verdict.verdict_id, verdict.gang, now_ns, "the node is sound again")


def verdict_of(hurt: Hurt, size: float, confidence: float, now_ns: int, exact: bool = False) -> Verdict:
    """The verdict that this gang's member on this node is a straggler."""
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
    """That the node is slow, whether or not anything runs on it."""
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
