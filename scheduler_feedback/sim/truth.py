"""True progress of each job and true speed of its gang, independent of the scheduler's estimates.

A gang is as fast as its slowest rank: a node with slowdown 1.5 makes every gang on it take 1.5 times as long. The
speed of a gang is that of ``measured_speeds``, if the simulation has them for its workload; else it is proportional to
its ranks, relative to the requested ranks (the work is divided evenly). After a restart, it makes no progress for the
restart cost. Times are whole nanoseconds, so an undisturbed job ends exactly on
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.policies.network.link_speeds import Flow, Window
from scheduler_feedback.policies.network.network_class import VARIABLE
from scheduler_feedback.policies.speeds.learnt_speeds import level_of
from scheduler_feedback.sim.job_trace import TraceJob
from scheduler_feedback.sim.speeds.co_location import CoSpeed, equal_shares
from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads
from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds
from scheduler_feedback.sim.speeds.shared_links import SharedLinks, loads


@dataclass(slots=True)
class Course:
    """Progress of a job."""

    job: TraceJob
    """The job in the trace."""
    work_ns: int
    """Total work of the job: its run time in nanoseconds if it runs alone at full speed."""
    left_ns: int
    """Work that is not yet done and saved, in nanoseconds of run time at full speed."""
    submitted_ns: int
    """Simulated time of submission, in nanoseconds."""
    waits_since_ns: int | None = None
    """Simulated time at which the current wait began; None while the job runs or before it is submitted."""
    waiting_ns: int = 0
    """Total time of the job's finished waits, in nanoseconds."""
    starts: int = 0
    """Number of the job's attempts that have started."""
    ranks: int = 0
    """Number of ranks of the newest attempt; 0 before the first."""
    first_start_ns: int | None = None
    """Simulated time of the job's first start, in nanoseconds; None before it."""
    ended_ns: int | None = None
    """Simulated time of the job's end, in nanoseconds; None before it."""


@dataclass(slots=True)
class Gang:
    """A running attempt."""

    course: Course
    """Progress of the attempt's job."""
    attempt: int
    """Number of the attempt."""
    nodes: dict[str, int]
    """Number of ranks on each node."""
    slots: int
    """Number of slots that the attempt holds."""
    began_ns: int
    """Simulated time of the attempt's start, in nanoseconds."""
    since_ns: int
    """Simulated time at which left_ns was updated last, in nanoseconds."""
    left_ns: int
    """Remaining work of the job, in nanoseconds of run time at full speed."""
    warm_ns: int
    """Remaining part of the restart cost and of the load of the dataset, in nanoseconds. The gang makes no progress
    during this time."""
    full_speed: float
    """Speed if all nodes are healthy, given the number of ranks and the GPU type. 1 is full speed."""
    speed: float
    """Current speed. 1 is the full speed of the requested number of ranks."""
    due: int = 0
    """Number of the newest entry of the timetable for this gang's end. Older entries are ignored."""
    stopping: bool = False
    """Whether the stop of the attempt was requested."""
    placement: tuple[Slot, ...] = ()
    """Slots of the ranks, by rank."""
    gpu_type: str = ""
    """GPU type of the slots."""
    beside: float = 1.0
    """Speed beside the jobs that share its slots, relative to running alone."""
    linked: float = 1.0
    """Speed beside the gangs that share its uplinks, relative to running alone."""
    limited: float = 1.0
    """Speed at the power limits of its GPUs, relative to the highest ones."""
    flow: Flow | None = None
    """Its traffic on uplinks; None if it has none."""
    window: Window | None = None
    """When its steps begin, as the scheduler has decided; None: at any time."""
    network_seconds: float = 0.0
    """Time of its communication in the steps with least, in seconds."""
    slot_share: float = 0.0
    """Part of each slot that the attempt uses; 0: not limited."""

    @property
    def spec(self) -> JobSpec:
        """Specification of the job, with the part of each slot that this attempt uses."""
        spec = self.course.job.spec
        return spec if spec.slot_share == self.slot_share else replace(spec, slot_share=self.slot_share)

    def advance(self, now_ns: int, lost_ns: int = 0) -> None:
        """Subtract the work done until now from left_ns. lost_ns: part of that time without progress."""
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
        """Time at which the gang ends if nothing changes."""
        left = self.left_ns if self.speed == 1 else round(self.left_ns / self.speed)
        return self.since_ns + self.warm_ns + max(left, 0)

    @property
    def done_seconds(self) -> float:
        return (self.course.work_ns - self.left_ns) / 1e9


@dataclass(slots=True)
class Machines:
    """True slowdowns of the nodes, and the gangs on them."""

    slowdown: dict[str, float] = field(default_factory=dict)
    apart_slowdown: float = 1.0
    """Run time of a gang outside of one domain of its preferred level, divided by its run time inside."""
    co_speed: CoSpeed = equal_shares
    """Speeds of jobs that share slots."""
    speeds: MeasuredSpeeds | None = None
    """Real speeds by workload; None: proportional to the ranks, and to the given `throughput` of the job."""
    links: SharedLinks | None = None
    """Uplinks that gangs share; None: they do not slow each other down."""
    datasets: DatasetLoads | None = None
    """Caches of datasets on the nodes; None: gangs start without loading."""
    crossing: dict[str, dict[str, Gang]] = field(default_factory=dict)
    """Gangs that use each uplink, by uplink (``shared_links.loads``) and job id."""
    largest: int = 0
    """Largest number of slots of a node."""
    on_node: dict[str, dict[str, Gang]] = field(default_factory=dict)
    on_slot: dict[Slot, dict[str, Gang]] = field(default_factory=dict)
    """Gangs of shareable jobs, by slot and job id."""

    def worst(self, nodes: Iterable[str]) -> float:
        if not self.slowdown:
            return 1.0
        return max((self.slowdown.get(name, 1.0) for name in nodes), default=1.0)

    def slow(self, node: str, slowdown: float, now_ns: int) -> Iterator[tuple[str, Gang]]:
        """Set a node's slowdown from now on, and yield the gangs whose expected end changes."""
        if slowdown > 1:
            self.slowdown[node] = slowdown
        else:
            self.slowdown.pop(node, None)
        for job_id, gang in self.on_node.get(node, {}).items():
            speed = self._speed(gang)
            if speed != gang.speed and not gang.stopping:
                gang.advance(now_ns)
                gang.speed = speed
                yield job_id, gang

    def start(self, action: StartGang, course: Course, nodes: dict[str, Node], now_ns: int) -> Gang:
        """Return the running attempt that this action starts, and add it to its nodes."""
        ranks: dict[str, int] = {}
        for slot in action.placement:
            ranks[slot.node] = ranks.get(slot.node, 0) + 1
        spec = course.job.spec
        placed = [nodes[name] for name in ranks]
        measured = self._measured(spec, placed, len(action.placement))
        full_speed = len(action.placement) / spec.ranks if measured is None else measured
        if spec.throughput and measured is None:
            full_speed *= min(spec.throughput.get(node.gpu_type, 1.0) for node in placed)
        if self.apart_slowdown != 1.0 and _is_apart(spec.preferred_level, placed):
            full_speed /= self.apart_slowdown
        warm = nanoseconds(spec.restart_cost_seconds) if course.starts else 0
        if course.starts and course.ranks != len(action.placement):
            warm += nanoseconds(spec.reshard_seconds)
        if self.datasets is not None:
            warm += nanoseconds(self.datasets.read(spec, ranks))
        course.ranks = len(action.placement)
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
            placement=action.placement,
            gpu_type=nodes[action.placement[0].node].gpu_type,
            slot_share=action.spec.slot_share,
        )
        for name in ranks:
            self.on_node.setdefault(name, {})[action.job_id] = gang
        if spec.joins_slots:
            for slot in gang.placement:
                self.on_slot.setdefault(slot, {})[action.job_id] = gang
        self._join_links(action.job_id, gang, nodes, action.spec)
        course.starts += 1
        return gang

    def _measured(self, spec: JobSpec, nodes: Sequence[Node], ranks: int) -> float | None:
        if self.speeds is None:
            return None
        return self.speeds.speed(spec, nodes[0].gpu_type, ranks, level_of(nodes), self._narrowest(spec))

    def _narrowest(self, spec: JobSpec) -> int:
        return 0 if spec.ranks <= self.largest else 1

    def unit(self, spec: JobSpec) -> float:
        """Return the work per second of the job at speed 1, in the unit of its reports."""
        return float(spec.ranks) if self.speeds is None else self.speeds.unit(spec, self._narrowest(spec))

    def leave(self, job_id: str, gang: Gang) -> None:
        """Remove the gang from its nodes."""
        for name in gang.nodes:
            self.on_node[name].pop(job_id, None)
        if self.datasets is not None:
            self.datasets.left(gang.course.job.spec, gang.nodes)
        for link, _ in gang.flow.loads if gang.flow is not None else ():
            self.crossing[link].pop(job_id, None)
        if gang.course.job.spec.joins_slots:
            for slot in dict.fromkeys(gang.placement):
                gangs = self.on_slot[slot]
                gangs.pop(job_id, None)
                if not gangs:
                    del self.on_slot[slot]

    def occupies(self, gang: Gang) -> Mapping[str, int]:
        """Return how many slots of each node no other gang holds."""
        if not gang.course.job.spec.joins_slots:
            return gang.nodes
        found: dict[str, int] = {}
        for slot in dict.fromkeys(gang.placement):
            if not any(other is not gang for other in self.on_slot.get(slot, {}).values()):
                found[slot.node] = found.get(slot.node, 0) + 1
        return found

    def partners(self, gang: Gang) -> dict[str, Gang]:
        """Return the other gangs that share the gang's slots, by job id. Gangs in MIG instances share nothing."""
        if not gang.course.job.spec.shareable:
            return {}
        return {
            job_id: other
            for slot in gang.placement
            for job_id, other in self.on_slot.get(slot, {}).items()
            if other is not gang
        }

    def regroup(self, gangs: Mapping[str, Gang], now_ns: int) -> Iterator[tuple[str, Gang]]:
        """Update the speeds of gangs after a start or an end on their slots, and yield the gangs that continue."""
        for job_id, gang in gangs.items():
            if gang.stopping:
                continue
            gang.advance(now_ns)
            gang.beside = self._beside(gang)
            gang.speed = self._speed(gang)
            yield job_id, gang

    def _speed(self, gang: Gang) -> float:
        return gang.full_speed * gang.beside * gang.linked * gang.limited / self.worst(gang.nodes)

    def limit(self, gang: Gang, limited: float, now_ns: int) -> bool:
        """Change the gang's speed at its power limits; return whether its expected end changes."""
        if limited == gang.limited or gang.stopping:
            return False
        gang.advance(now_ns)
        gang.limited = limited
        gang.speed = self._speed(gang)
        return True

    def _join_links(self, job_id: str, gang: Gang, nodes: Mapping[str, Node], spec: JobSpec) -> None:
        """Add the gang to the uplinks that it uses."""
        if self.links is None or (profile := self.links.profile(spec.workload, gang.slots)) is None:
            return
        found = loads(gang.placement, nodes, self.links.rails)
        if not found:
            return
        gang.flow = Flow(profile, found, int(spec.environment.get(VARIABLE, "0")))
        for link, _ in found:
            self.crossing.setdefault(link, {})[job_id] = gang

    def on_same_links(self, gang: Gang) -> dict[str, Gang]:
        """Return the gangs whose speed depends on each other through shared uplinks, with this one, by job id."""
        found: dict[str, Gang] = {}
        links = [link for link, _ in gang.flow.loads] if gang.flow is not None else []
        seen = set(links)
        while links:
            for job_id, other in self.crossing.get(links.pop(), {}).items():
                if job_id not in found and other.flow is not None:
                    found[job_id] = other
                    fresh = [link for link, _ in other.flow.loads if link not in seen]
                    seen.update(fresh)
                    links += fresh
        return found

    def share_links(self, gangs: Mapping[str, Gang], now_ns: int) -> Iterator[tuple[str, Gang]]:
        """Update the speeds of gangs on shared uplinks after a start or an end, and yield those whose speed changes."""
        assert self.links is not None
        while gangs:
            group = self.on_same_links(next(iter(gangs.values())))
            gangs = {job_id: gang for job_id, gang in gangs.items() if job_id not in group}
            flows = [(gang.flow, job_id) for job_id, gang in group.items() if gang.flow is not None]
            flows.sort()
            windows = [group[job_id].window for _, job_id in flows]
            shared = self.links.speeds([flow for flow, _ in flows], windows if any(windows) else ())
            for (_, job_id), (speed, network_seconds) in zip(flows, shared, strict=True):
                gang = group[job_id]
                gang.network_seconds = network_seconds
                if gang.linked != speed and not gang.stopping:
                    gang.advance(now_ns)
                    gang.linked = speed
                    gang.speed = self._speed(gang)
                    yield job_id, gang

    def wait_share(self, gang: Gang) -> float | None:
        """Return the share of the time for which the gang waits in collectives; None if it does not report that."""
        if self.links is None:
            return None
        profile = self.links.profile(gang.course.job.spec.workload, gang.slots)
        return 1 - gang.linked if profile is None else 1 - (1 - profile.share) * gang.linked

    def step_times(self, gang: Gang) -> tuple[float, float, float]:
        """Return what the gang reports of its steps, in seconds: their mean interval, the communication of the steps
        with least, and the mean delay by a time shift. Zeros if it uses no uplinks.
        """
        if gang.flow is None:
            return 0.0, 0.0, 0.0
        alone = sum(gang.flow.profile)
        interval = alone / gang.linked
        return interval, gang.network_seconds, interval - alone if gang.window is not None else 0.0

    def _beside(self, gang: Gang) -> float:
        """Return the gang's speed beside the jobs on its slots: that of its slowest rank."""
        spec = gang.spec
        groups = {tuple(sorted(job_id for job_id in self.on_slot.get(slot, {}))) for slot in gang.placement}
        known = self.partners(gang)
        return min(
            self.co_speed(spec, tuple(known[one].spec for one in group if one in known), gang.gpu_type)
            if len(group) > 1
            else 1.0
            for group in groups
        )


def _is_apart(level: Level | None, nodes: Sequence[Node]) -> bool:
    """Return whether the nodes are in several domains of this level."""
    match level:
        case None:
            return False
        case Level.RACK:
            return len({node.rack for node in nodes}) > 1
        case Level.SPINE:
            return len({node.spine for node in nodes}) > 1
        case Level.RAIL:
            return len({node.rail for node in nodes}) > 1
    return len(nodes) > 1


def saved_ns(gang: Gang) -> int:
    """Return the job's remaining work, in nanoseconds, if the attempt ends now. Work after the last checkpoint is
    lost."""
    interval = gang.course.job.spec.checkpoint_interval_seconds
    if interval is None:
        return gang.left_ns
    done = gang.course.left_ns - gang.left_ns
    return gang.course.left_ns - done // nanoseconds(interval) * nanoseconds(interval)
