"""Conversion of a fleet's new data into telemetry for the detectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Member
from scheduler_feedback.core.fabric import ALL_RAILS, Fabric
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.counter_features import COORDINATES, Device
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang, GangConsumed, IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURES,
    Counters,
    IndexArray,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
    no_counters,
)

WINDOW_NS = 1_000_000_000
"""Length of a window of counters: one second, because frames arrive once a second."""

NO_DEVICE = Device()

JOBS_AT_ONCE = 32
"""Number of jobs whose telemetry is one part of the work: some milliseconds."""


@dataclass(slots=True, eq=False)
class _Seen:
    """Telemetry of one attempt that earlier calls have returned."""

    gang: Gang
    """The attempt whose telemetry was returned."""
    cursor: int = 0
    """Sequence number of the newest returned step."""
    shape: Shape = field(default_factory=lambda: Shape("", 0, np.zeros(0, np.int64), ()))
    """Ranks of the attempt and their places, as last returned."""
    nodes: tuple[str, ...] = ()
    """Nodes of the attempt's ranks, sorted."""
    of_node: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """int [n]: index of each rank's node in `nodes`."""
    offset_ns: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [n]: offset from each rank's host clock to wall time, in nanoseconds."""
    shared: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """bool [n]: whether another node is on each rank's machine."""
    changes: int = -1
    """Value of the gang's `changes` when the shape and the arrays were computed."""
    stepped: bool = False
    """Whether any step of the attempt has been returned."""
    no_steps: StepTable | None = None
    """A table without steps, which most ticks return."""


T = TypeVar("T")


class _Once(Generic[T]):
    """A function without arguments that is called at most once, when its result is first needed."""

    __slots__ = ("_make", "_result")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make

    def __call__(self) -> T:
        if self._make is not None:
            self._result, self._make = self._make(), None
        return self._result


class Look:
    """Stream of telemetry from a fleet, for one reader. Each step, window and event is returned once.

    aside: gang -> attempt that is excluded because building its telemetry raised an exception.
    failed: (gang, error) of these exceptions, until the caller clears the list.
    """

    def __init__(self, fleet: Fleet, fabric: Fabric | None = None) -> None:
        self._fleet = fleet
        self._fabric = Fabric() if fabric is None else fabric
        self._seen: dict[str, _Seen] = {}
        self._window_ns = 0
        self._placed: tuple[Shape, ...] = ()
        self.aside: dict[str, int] = {}
        self.failed: list[tuple[str, Exception]] = []

    def next(self, now_ns: int, received_now_ns: int | None = None) -> Telemetry:
        """Return the telemetry since the last call.

        now_ns: wall time. received_now_ns: the same time on the receiver's clock; None: the receipt of the newest
        frame.
        """
        *_, found = self.next_in_parts(now_ns, received_now_ns)
        assert found is not None
        return found

    def next_in_parts(self, now_ns: int, received_now_ns: int | None = None) -> Iterator[Telemetry | None]:
        """Do the same in parts: yield None after each of them, and the telemetry at the end. The fleet must not change
        meanwhile."""
        fleet = self._fleet
        gangs = fleet.gangs
        for name in self._seen.keys() - gangs.keys():
            del self._seen[name]
        touched = fleet.touched()
        yield None
        found: list[JobTelemetry] = []
        for job in self._jobs(gangs, touched):
            found.append(job)
            if not len(found) % JOBS_AT_ONCE:
                yield None
        jobs = tuple(found)
        events = fleet.occurrences.take()
        here_ns = fleet.newest_received_ns if received_now_ns is None else received_now_ns
        last_received_ns = {name: now_ns - (here_ns - node.received_ns) for name, node in fleet.nodes.items()}
        yield Telemetry(now_ns, jobs, self._counters(jobs, now_ns), events, last_received_ns)

    def _jobs(self, gangs: Mapping[str, Gang], touched: set[str]) -> Iterator[JobTelemetry]:
        """Yield the telemetry of every gang with complete data. An exception excludes only the gang that raised it."""
        for name in self.aside.keys() - gangs.keys():
            del self.aside[name]
        # Ranks whose frames are not processed would look like hanging ranks.
        incomplete = set().union(*self._fleet.aside.values())
        for name, gang in gangs.items():
            if not len(gang) or self.aside.get(name) == gang.attempt:
                continue
            if (name, gang.attempt) in incomplete:
                self._seen.pop(name, None)
                continue
            try:
                job = self._job(gang, touched)
            except Exception as error:
                self.aside[name] = gang.attempt
                self._seen.pop(name, None)
                self.failed.append((name, error))
            else:
                yield job

    def _counters(self, jobs: tuple[JobTelemetry, ...], now_ns: int) -> Counters:
        """Return one window per second: the newest features of each node's ranks since the last window."""
        ranks = sum(len(job.shape) for job in jobs)
        if now_ns - self._window_ns < WINDOW_NS:
            return no_counters(ranks)
        self._window_ns = now_ns
        kinds = self._fleet.counting.kinds
        self._place(jobs)
        values = np.full((len(FEATURES), 1, ranks), np.nan, np.float32)
        # The sampling time of traffic is needed only for jobs that report no steps.
        needed = any(job.steps is None for job in jobs)
        lag_seconds = np.full(ranks, np.nan, np.float32) if needed else None
        offset_ns = np.concatenate([self._seen[job.shape.job].offset_ns for job in jobs]) if needed else None
        for kind in kinds:
            rows = np.flatnonzero(kind.fresh)
            kind.fresh[rows] = False
            columns = kind.columns[rows]
            known = columns >= 0
            values[:, 0, columns[known]] = np.moveaxis(kind.values[rows], 1, 0)[:, known]
            if lag_seconds is None or offset_ns is None or (sampled_ns := kind.traffic_sampled_ns(rows)) is None:
                continue
            sampled = np.broadcast_to(sampled_ns[:, None], columns.shape)[known]
            lag = (now_ns - offset_ns[columns[known]] - sampled) * 1e-9
            lag_seconds[columns[known]] = np.where(sampled > 0, lag, np.nan)
        return Counters(np.array([now_ns], np.int64), WINDOW_NS * 1e-9, values, lag_seconds)

    def _place(self, jobs: tuple[JobTelemetry, ...]) -> None:
        """Assign a column to each rank on each node; recompute only the nodes whose ranks changed."""
        counting, before = self._fleet.counting, self._placed
        now = self._placed = tuple(job.shape for job in jobs)
        changed = counting.take_changed()
        starts = _starts(now)
        if now != before:
            # Ranks of unchanged jobs keep their positions within their jobs.
            old = _starts(before)
            moved_to = np.full(sum(map(len, before)) + 1, -1, np.intp)
            for name in old.keys() | starts.keys():
                (shape, start), (was, place) = starts.get(name, (None, 0)), old.get(name, (None, 0))
                if was is not None and was is shape:
                    moved_to[place : place + len(was)] = np.arange(start, start + len(was))
                else:
                    changed.update(*(one.nodes for one in (was, shape) if one is not None))
            for kind in counting.kinds:
                kind.columns = moved_to.take(kind.columns)  # -1 selects the last entry, which is -1
        for node in changed:
            counts = counting.nodes.get(node)
            if counts is not None and counts.kind is not None:
                of = node if self._fleet.guarded else None
                counts.kind.columns[counts.row] = [_column(member, of, starts) for member in counts.members]

    def _job(self, gang: Gang, touched: set[str]) -> JobTelemetry:
        seen = self._of(gang, touched)
        shape, offset_ns = seen.shape, seen.offset_ns
        steps = gang.completed(seen.cursor)
        table = None
        if steps is not None:
            seen.cursor, seen.stepped = int(steps.sequence[-1]), True
            table = StepTable(
                steps.number, steps.end_ns + offset_ns, steps.seconds, steps.wait_seconds, steps.tokens, steps.squares
            )
        elif seen.stepped:
            if seen.no_steps is None or seen.no_steps.seconds.shape[1] != len(shape):
                none = np.zeros((0, len(shape)))
                seen.no_steps = StepTable(np.zeros(0, np.int64), np.zeros((0, len(shape)), np.int64), none, none)
            table = seen.no_steps

        return JobTelemetry(
            shape,
            table,
            _Once(lambda: _walled(gang.open_steps(), offset_ns)),
            _Once(lambda: _walled(gang.open_collectives(), offset_ns)),
            _Once(gang.newest_steps),
            GangConsumed(gang, offset_ns),
            seen.shared,
            _Once(lambda: self._frames(seen.nodes)),
            lambda: self._fleet.process_states(gang),
            lambda: self._fleet.device_memory(gang),
            lambda: self._fleet.blocked(gang.name),
        )

    def _frames(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """Return the newest frame of each of these nodes, for the evidence of a verdict."""
        nodes = self._fleet.nodes
        return tuple((node, nodes[node].seq) for node in names if node in nodes)

    def _is_of(self, member: Member, gang: Gang, node: str) -> bool:
        """Return whether `member` is a rank of the gang, and the node may report this rank."""
        if (member.gang, member.attempt) != (gang.name, gang.attempt):
            return False
        return not self._fleet.guarded or gang.is_on(member.rank, node)

    def _devices(self, gang: Gang, nodes: tuple[str, ...]) -> dict[int, Device]:
        """Return the devices of each rank with a known GPU."""
        found = {}
        for node in nodes:
            counts = self._fleet.counting.nodes.get(node)
            for member, device in zip(counts.members, counts.devices, strict=True) if counts is not None else ():
                if (
                    (member.gang, member.attempt) == (gang.name, gang.attempt)
                    and device[0]
                    and gang.is_on(member.rank, node)
                ):
                    found[member.rank] = device
        return found

    def _coordinates(self, gang: Gang, nodes: tuple[str, ...]) -> dict[str, IntArray]:
        """Return the coordinates that every rank reports, by name.

        Incomplete layouts are ignored, because a rank without coordinates would look like a separate stage. Layouts in
        which two ranks report the same coordinates are also ignored.
        """
        found: dict[int, tuple[int, ...]] = {}
        for node in nodes:
            counts = self._fleet.counting.nodes.get(node)
            for member, place in counts.coordinates.items() if counts is not None else ():
                if self._is_of(member, gang, node):
                    found[member.rank] = place
        if any(rank not in found for rank in gang.ranks):
            return {}
        table = np.array([found[rank] for rank in gang.ranks], np.int64)
        reported = {name: table[:, index] for index, name in enumerate(COORDINATES) if (table[:, index] >= 0).all()}
        places = [reported[name] for name in ("data", "stage", "tensor") if name in reported]
        if len(places) == 3 and len(np.unique(np.stack(places, axis=1), axis=0)) < len(table):
            return {}
        return reported

    def _shape(self, gang: Gang, nodes: tuple[str, ...], old: Shape) -> Shape:
        """Return the gang's ranks and their places. Returns the object `old` if nothing has changed."""
        devices = self._devices(gang, nodes)
        coordinates = self._coordinates(gang, nodes)
        if len(old) == len(gang) and old.attempt == gang.attempt and old.nodes == gang.nodes:
            gpus = tuple(devices.get(rank, NO_DEVICE).gpu for rank in gang.ranks)
            models = tuple(devices.get(rank, NO_DEVICE).model for rank in gang.ranks)
            unmoved = all(np.array_equal(old.coordinate(name), values) for name, values in coordinates.items())
            if (not devices or (old.gpus, old.models) == (gpus, models)) and unmoved:
                return old
        known = [devices.get(rank, NO_DEVICE) for rank in gang.ranks] if devices else []
        # Virtual nodes share a machine with each other and with other programs, so no disturbing job can be identified.
        sharing = {"host": tuple("" if self._fleet.shares_machine(node) else node for node in gang.nodes)}
        if known:
            sharing["nic"] = tuple(one.nic for one in known)
            switches = tuple(one.switch if host else "" for one, host in zip(known, sharing["host"], strict=True))
            if any(switches):
                sharing["pcie_switch"] = switches
        rails = np.array([one.rail for one in known], np.int64) if known else None
        if len(self._fabric):
            rail_of = [ALL_RAILS] * len(gang) if rails is None else rails.tolist()
            uplinks = tuple(map(self._fabric.uplink, gang.nodes, rail_of))
            if any(uplinks):
                sharing["uplink"] = uplinks
        return Shape(
            gang.name, gang.attempt, np.array(gang.ranks, np.int64), gang.nodes, tuple(one.gpu for one in known),
            tuple(one.nic for one in known), rail=rails, sharing=sharing, models=tuple(one.model for one in known),
            **coordinates,
        )  # fmt: skip

    def _of(self, gang: Gang, touched: set[str]) -> _Seen:
        """Return the updated record of what earlier calls have returned about the gang.

        touched: nodes that have changed.
        """
        seen = self._seen.get(gang.name)
        # A forgotten gang may have restarted since the last call, with other ranks under the same attempt.
        if seen is None or seen.gang is not gang:
            seen = self._seen[gang.name] = _Seen(gang)
        changed = seen.changes != gang.changes
        if changed or (touched and not touched.isdisjoint(seen.nodes)):
            if changed:
                nodes = gang.nodes
                seen.nodes = tuple(sorted(set(nodes)))
                number = {node: index for index, node in enumerate(seen.nodes)}
                seen.of_node = np.array([number[node] for node in nodes], np.intp)
            seen.changes = gang.changes
            seen.shape = self._shape(gang, seen.nodes, seen.shape)
            views = self._fleet.nodes
            clocks = [views[node].clock.to_wall_ns if node in views else 0 for node in seen.nodes]
            offset_ns = np.array(clocks, np.int64)
            seen.offset_ns = offset_ns[seen.of_node]
            shared = np.array([self._fleet.shares_machine(node) for node in seen.nodes], np.bool_)
            seen.shared = shared[seen.of_node]
        seen.cursor = min(seen.cursor, gang.newest_sequence)
        return seen


_Starts = dict[str, tuple[Shape, int]]


def _starts(shapes: tuple[Shape, ...]) -> _Starts:
    """Return the shape of each job and the index of its first column."""
    found, at = {}, 0
    for shape in shapes:
        found[shape.job] = shape, at
        at += len(shape)
    return found


def _column(member: Member, node: str | None, starts: _Starts) -> int:
    """Return the column of a rank; -1 if no job's shape contains the rank, or contains it on a node other than
    `node`."""
    found = starts.get(member.gang)
    if found is None or found[0].attempt != member.attempt:
        return -1
    place = found[0].place.get(member.rank)
    if place is None or (node is not None and found[0].nodes[place] != node):
        return -1
    return found[1] + place


def _walled(opened: IntArray, offset_ns: IntArray) -> IntArray:
    """Convert the times of open steps or collectives to wall time. The value -1 (never) is not changed."""
    found = opened.copy()
    found[:, 1:] += offset_ns[:, None]
    found[opened[:, 0] < 0, 1:] = -1
    return found
