"""Effects of a simulation's faults: slow nodes, failing nodes, and notices to the source of simulated verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from scheduler_feedback.core.events import Event
from scheduler_feedback.sim.failures import NodeFailure
from scheduler_feedback.sim.faults import Faults
from scheduler_feedback.sim.occurrence import Occurrence
from scheduler_feedback.sim.simulated_feedback import Feedback, Hurt, Slowness

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine
    from scheduler_feedback.sim.truth import Gang


class Disturbances:
    """Faults of one simulation. If several faults slow one node at the same time, the largest slowdown applies."""

    def __init__(self, faults: Faults, feedback: Feedback | None) -> None:
        self._by_job = dict(faults.by_job or {})
        self._by_node = faults.by_node
        self._failures = faults.failures
        self._feedback = feedback
        self._active: dict[str, dict[int, Slowness]] = {}
        self._number = 0

    def begin(self, engine: Engine) -> None:
        """Schedule every fault that slows a node at a given time, and prepare the source of simulated verdicts."""
        for fault in self._by_node:
            slowness = self._named(fault.node, fault.slowdown, fault.begin_ns + fault.lasts_ns)
            engine.later(Occurrence(fault.begin_ns, partial(self._begins, slowness)))
        for failure in self._failures:
            engine.later(Occurrence(failure.at_ns, partial(self._fails, failure)))
        if self._feedback is not None:
            self._feedback.begin(engine)

    def _fails(self, failure: NodeFailure, engine: Engine, now_ns: int) -> Iterator[Event]:
        """End all gangs on the node, and remove the node until it is repaired."""
        for job_id in list(engine.machines.on_node.get(failure.node, {})):
            yield engine.fail(job_id, now_ns, f"{failure.node} failed: {failure.component}")
        yield engine.node(failure.node, present=False)
        engine.later(Occurrence(now_ns + failure.lasts_ns, partial(self._returns, failure.node)))

    def _returns(self, node: str, engine: Engine, now_ns: int) -> Iterator[Event]:  # noqa: ARG002 - an Occurrence's
        yield engine.node(node, present=True)

    def _named(self, node: str, slowdown: float, until_ns: int) -> Slowness:
        self._number += 1
        return Slowness(self._number, node, slowdown, until_ns)

    def started(self, engine: Engine, job_id: str, gang: Gang, now_ns: int) -> Iterator[Event]:
        """Notify the source of verdicts about each slow node of a started gang, and schedule the job's fault."""
        for node in gang.nodes:
            for slowness in self._active.get(node, {}).values():
                if self._feedback is not None:
                    yield from self._feedback.slows(Hurt(engine, slowness, job_id, gang, True, now_ns))
        if job_id in self._by_job:
            self._await_hit(engine, job_id, gang, now_ns)

    def _await_hit(self, engine: Engine, job_id: str, gang: Gang, now_ns: int) -> None:
        """Schedule a check for the earliest time at which the fault of the job can begin.

        The fault begins once the job has done a given amount of work. If a slow gang has not done it yet, the check
        repeats.
        """
        done_ns = gang.course.work_ns - gang.left_ns
        missing_ns = max(self._by_job[job_id].at_work_ns - done_ns, 0)
        at_ns = now_ns + gang.warm_ns + round(missing_ns / gang.speed)
        engine.later(Occurrence(at_ns, partial(self._hit, job_id, gang)))

    def _hit(self, job_id: str, gang: Gang, engine: Engine, now_ns: int) -> Iterator[Event]:
        fault = self._by_job.get(job_id)
        if fault is None or engine.gangs.get(job_id) is not gang or gang.stopping:
            return
        gang.advance(now_ns)
        engine.reschedule(job_id, gang)
        # Division and rounding may leave it some nanoseconds short, which would repeat the check forever.
        if gang.course.work_ns - gang.left_ns + 1000 < fault.at_work_ns:
            self._await_hit(engine, job_id, gang, now_ns)
            return
        del self._by_job[job_id]
        ranks = engine.state.jobs[job_id].ranks
        node = ranks[min(fault.rank, len(ranks) - 1)].slot.node
        yield from self._begins(self._named(node, fault.slowdown, now_ns + fault.lasts_ns), engine, now_ns)

    def _begins(self, slowness: Slowness, engine: Engine, now_ns: int) -> Iterator[Event]:
        self._active.setdefault(slowness.node, {})[slowness.number] = slowness
        self._set(engine, slowness.node, now_ns)
        engine.later(Occurrence(slowness.until_ns, partial(self._ends, slowness)))
        if self._feedback is None:
            return
        yield from self._feedback.slow(slowness, now_ns)
        for job_id, gang in list(engine.machines.on_node.get(slowness.node, {}).items()):
            if not gang.stopping:
                yield from self._feedback.slows(Hurt(engine, slowness, job_id, gang, False, now_ns))

    def _ends(self, slowness: Slowness, engine: Engine, now_ns: int) -> Iterable[Event]:
        del self._active[slowness.node][slowness.number]
        self._set(engine, slowness.node, now_ns)
        return () if self._feedback is None else self._feedback.sound(engine, slowness, now_ns)

    def _set(self, engine: Engine, node: str, now_ns: int) -> None:
        worst = max((one.slowdown for one in self._active[node].values()), default=1.0)
        for job_id, gang in engine.machines.slow(node, worst, now_ns):
            engine.reschedule(job_id, gang)
