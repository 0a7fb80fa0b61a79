"""Truth: how far each job really is, and how fast its gang really runs, whatever the scheduler believes.

A gang runs as fast as its slowest member: a node with slowdown 1.5 makes every gang on it take 1.5 times as long. A
gang with fewer or more ranks than its job asked for runs in proportion (the work is divided evenly). After a restart it
makes no progress for the restart cost. Times are whole nanoseconds: what nothing disturbs ends to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.cycle_context import nanoseconds
from scheduler_feedback.sim.trace import TraceJob


@dataclass(slots=True)
class Course:
    """A job on its way.

    work_ns: all of its work, in time of running alone at full speed. left_ns: what of it is not done and saved yet.
    waiting_ns: time spent waiting so far. waits_since_ns: None while it runs or before it came.
    """

    job: TraceJob
    work_ns: int
    left_ns: int
    submitted_ns: int
    waits_since_ns: int | None = None
    waiting_ns: int = 0
    starts: int = 0
    first_start_ns: int | None = None
    ended_ns: int | None = None


@dataclass(slots=True)
class Gang:
    """A running attempt. since_ns: up to when its progress is counted in left_ns.

    nodes: how many ranks on each. warm_ns: restart cost still to pay. speed: work a time; full speed is 1.
    due: number of the newest expectation of its end, so that an older one is known to be out of date.
    """

    course: Course
    attempt: int
    nodes: dict[str, int]
    slots: int
    began_ns: int
    since_ns: int
    left_ns: int
    warm_ns: int
    full_speed: float
    speed: float
    due: int = 0
    stopping: bool = False

    def advance(self, now_ns: int, lost_ns: int = 0) -> None:
        """Count the progress up to now, less what a pause of `lost_ns` has cost."""
        elapsed = max(now_ns - self.since_ns - lost_ns, 0)
        self.since_ns = now_ns
        if self.stopping:
            return
        warming = min(elapsed, self.warm_ns)
        self.warm_ns -= warming
        work = elapsed - warming
        self.left_ns -= work if self.speed == 1 else round(work * self.speed)

    @property
    def end_ns(self) -> int:
        """When it ends if nothing changes."""
        left = self.left_ns if self.speed == 1 else round(self.left_ns / self.speed)
        return self.since_ns + self.warm_ns + max(left, 0)

    @property
    def done_seconds(self) -> float:
        return (self.course.work_ns - self.left_ns) / 1e9


@dataclass(slots=True)
class Machines:
    """The nodes as they really are: how slow, and which gangs run on them."""

    slowdown: dict[str, float] = field(default_factory=dict)
    on_node: dict[str, dict[str, Gang]] = field(default_factory=dict)

    def worst(self, nodes: Iterable[str]) -> float:
        if not self.slowdown:
            return 1.0
        return max((self.slowdown.get(name, 1.0) for name in nodes), default=1.0)

    def slow(self, node: str, slowdown: float, now_ns: int) -> Iterator[tuple[str, Gang]]:
        """The node's slowdown is another from now on; the gangs whose expected end that moves."""
        if slowdown > 1:
            self.slowdown[node] = slowdown
        else:
            self.slowdown.pop(node, None)
        for job_id, gang in self.on_node.get(node, {}).items():
            speed = gang.full_speed / self.worst(gang.nodes)
            if speed != gang.speed and not gang.stopping:
                gang.advance(now_ns)
                gang.speed = speed
                yield job_id, gang

    def start(self, action: StartGang, course: Course, nodes: dict[str, Node], now_ns: int) -> Gang:
        """The attempt that this action starts."""
        ranks: dict[str, int] = {}
        for slot in action.placement:
            ranks[slot.node] = ranks.get(slot.node, 0) + 1
        spec = course.job.spec
        full_speed = len(action.placement) / spec.ranks
        if spec.throughput:
            full_speed *= min(spec.throughput.get(nodes[name].gpu_type, 1.0) for name in ranks)
        warm = nanoseconds(spec.restart_cost_seconds) if course.starts else 0
        gang = Gang(
            course,
            action.attempt,
            ranks,
            len(action.placement),
            now_ns,
            now_ns,
            course.left_ns,
            warm,
            full_speed,
            full_speed / self.worst(ranks),
        )
        for name in ranks:
            self.on_node.setdefault(name, {})[action.job_id] = gang
        course.starts += 1
        return gang

    def leave(self, job_id: str, gang: Gang) -> None:
        """The gang is gone from its nodes."""
        for name in gang.nodes:
            self.on_node[name].pop(job_id, None)


def saved_ns(gang: Gang) -> int:
    """The work that is left if the attempt ends now: what came after the last checkpoint is lost."""
    interval = gang.course.job.spec.checkpoint_interval_seconds
    if interval is None:
        return gang.left_ns
    done = gang.course.left_ns - gang.left_ns
    return gang.course.left_ns - done // nanoseconds(interval) * nanoseconds(interval)
