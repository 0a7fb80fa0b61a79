"""Fleet: what all frames of all nodes say by now. Folds frames; decides nothing.

One frame is folded in once, in order: (boot_id, agent_id, seq) is its identity, a repeat or a straggling older one is
dropped and counted, a hole in the sequence is counted. Memory is bounded: by gang (gangs.py), and by forgetting gangs
that nothing was heard of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent.schema.errors import FrameError
from agent.schema.frame import (
    AnyLayout,
    Column,
    CounterArray,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    ValidArray,
    check_fits,
)
from scheduler_feedback.core.consumption import Consumption, Group
from scheduler_feedback.core.counting import Counting
from scheduler_feedback.core.gangs import CONSUMED, Gang, IntArray
from scheduler_feedback.core.occurrences import Occurrences
from scheduler_feedback.core.telemetry import IndexArray

FORGET_NS = 600_000_000_000
"""A gang unheard of for ten minutes has ended without word: longer than any pause for a checkpoint that we know of."""

MOST_GANGS = 1 << 16
"""More gangs than 100,000 GPUs hold; what comes beyond is refused and counted, so that no sender fills memory."""

MOST_RANKS = 1 << 17
"""Highest rank number taken for one."""

LARGEST = 1 << 62
"""No step number, attempt or time in nanoseconds reaches this (146 years); sums of two still fit 64 bits."""

CLOCK_SLACK_NS = 1_000_000_000
"""A record may end after its frame's own time by a reader's delay, not by more."""

SAME_CLOCK_NS = 1_000_000_000
"""A node's wall clock that moved against its monotonic one by less than this was adjusted; by more, it was set anew."""

OLDEST_RECORD_NS = 3_600_000_000_000
"""A record from longer ago than an hour is none of this agent's ring."""

Sample = tuple[str, tuple[tuple[str, str], ...], float]
"""Name of the catalogue, labels, value: what the exposition takes."""


_Pressure = tuple[int, CounterArray, ValidArray]
"""Sample time, and for each resource the time that tasks waited for it and whether that is known."""


@dataclass(slots=True)
class NodeView:
    """What is known of a node from its newest frame.

    machine: its boot_id: nodes with one machine share processors and clock. seq, wall_ns, monotonic_ns: of the newest
    frame; received_ns: when it came, on the receiver's clock. offset_ns: wall time less the monotonic one, as it was
    when the wall clock was last set anew.
    frames_missed, records_missed: holes in the sequences. frames_refused: repeats and frames out of order.
    """

    name: str
    machine: str = ""
    agent_id: str = ""
    seq: int = 0
    wall_ns: int = 0
    monotonic_ns: int = 0
    received_ns: int = 0
    offset_ns: int = 0
    frames_missed: int = 0
    frames_refused: int = 0
    records_missed: int = 0
    _record_seq: int | None = None
    _layout_id: str = ""
    _groups: list[Group] = field(default_factory=list)
    _records: tuple[Record, ...] = ()
    _opened: tuple[tuple[Gang, IntArray], ...] = ()
    _pressures: tuple[str, ...] = ()
    _pressure_index: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    _pressure_tier: int = 0
    _pressure: tuple[_Pressure | None, _Pressure | None] = (None, None)

    @property
    def pressure(self) -> dict[str, float]:
        """Share of time in which some task waited, by resource; those that are not known are left out."""
        before, now = self._pressure
        if before is None or now is None or now[0] <= before[0]:
            return {}
        return {
            resource: min(1.0, int(now[1][index] - before[1][index]) / (now[0] - before[0]))
            for index, resource in enumerate(self._pressures)
            if now[2][index] and before[2][index] and now[1][index] >= before[1][index]
        }

    def _take_pressure(self, frame: Frame) -> None:
        if not self._pressures:
            return
        now = self._pressure[1]
        at_ns = int(frame.tier_ns[self._pressure_tier])
        if now is None or at_ns != now[0]:
            index = self._pressure_index
            self._pressure = now, (at_ns, frame.counters[index], frame.counters_valid[index])

    def wall_of(self, monotonic_ns: int) -> int:
        """Wall time of an instant on this node's monotonic clock, by its newest frame."""
        return monotonic_ns + self.wall_ns - self.monotonic_ns


class Fleet:
    """Nodes and gangs as the frames received so far show them. Owned by one thread; not locked.

    changes: rises whenever a node's machine or clock is another than it was.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeView] = {}
        self._gangs: dict[str, Gang] = {}
        self._first_steps: list[tuple[str, int, int, int]] = []
        self._stepped: dict[str, int] = {}
        self._newest_received_ns = 0
        self._machines: Counter[str] = Counter()
        self.changes = 0
        self._consumption = Consumption()
        self.counting = Counting()
        self.occurrences = Occurrences()
        self.records_refused = 0
        self.records_of_ended_attempts = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Nodes by name."""
        return self._nodes

    @property
    def gangs(self) -> Mapping[str, Gang]:
        """The newest attempt of each gang, by name."""
        self._consumption.settle()
        return self._gangs

    def first_steps(self) -> list[tuple[str, int, int, int]]:
        """(gang, attempt, step, wall time of its end) of the first finished step of each attempt seen since the last
        call."""
        found, self._first_steps = self._first_steps, []
        return found

    @property
    def newest_received_ns(self) -> int:
        """When the newest frame of any node came, on the receiver's clock; 0 before the first."""
        return self._newest_received_ns

    def gang_step_seconds(self, gang: str) -> float | None:
        """Mean time of the gang's newest steps; None where it is not known or has made none."""
        known = self._gangs.get(gang)
        return None if known is None else known.step_seconds()

    def shares_machine(self, node: str) -> bool:
        """Whether another node is on the same machine (has its boot id): load on one is load on the other."""
        view = self._nodes.get(node)
        return view is not None and self._machines[view.machine] > 1

    def frames_of(self, gang: Gang) -> tuple[tuple[str, int], ...]:
        """Newest frame of each of the gang's nodes: what a person looks up to check a verdict."""
        return tuple((node, self._nodes[node].seq) for node in sorted(set(gang.nodes)) if node in self._nodes)

    def measures(self) -> Iterator[Sample]:
        """Samples of the catalogue that follow from the fleet."""
        for name, gang in self._gangs.items():
            seconds = gang.step_seconds()
            if seconds is not None:
                yield "gangwatch_gang_step_seconds", (("gang", name),), seconds

    # --- folding ------------------------------------------------------------------------------------------------------

    def observe(self, layout: AnyLayout, frame: Frame, received_ns: int) -> bool:
        """Fold in one frame; `received_ns` is the receiver's monotonic clock. True where it was new.

        Raises FrameError where the frame does not fit its layout or names another node; nothing is changed then.
        Records that no reporter could have made are refused one by one and counted.
        """
        check_fits(layout, frame)
        if frame.node != layout.node:
            raise FrameError(f"frame {frame.seq} of {frame.node}: its layout is of node {layout.node}")
        numbers = (frame.seq, frame.wall_ns, frame.monotonic_ns, frame.record_seq)
        if min(numbers) < 0 or max(numbers) >= LARGEST:
            names = ("seq", "wall_ns", "monotonic_ns", "record_seq")
            wrong = ", ".join(f"{n} {v}" for n, v in zip(names, numbers, strict=True) if not 0 <= v < LARGEST)
            raise FrameError(f"frame {frame.seq} of {frame.node}: {wrong}")
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = NodeView(frame.node)
        continues = (node.machine, node.agent_id) == (frame.boot_id, frame.agent_id)
        older = node.machine == frame.boot_id and frame.monotonic_ns < node.monotonic_ns
        if older or (continues and frame.seq <= node.seq):
            node.frames_refused += 1
            return False
        if continues:
            node.frames_missed += frame.seq - node.seq - 1
        elif node.machine != frame.boot_id:
            node._pressure = None, None
            self._machines[node.machine] -= 1
            self._machines[frame.boot_id] += 1
            self.changes += 1
        node.machine, node.agent_id, node.seq = frame.boot_id, frame.agent_id, frame.seq
        node.wall_ns, node.monotonic_ns, node.received_ns = frame.wall_ns, frame.monotonic_ns, received_ns
        offset_ns = frame.wall_ns - frame.monotonic_ns
        if abs(offset_ns - node.offset_ns) > SAME_CLOCK_NS:
            node.offset_ns = offset_ns
            self.changes += 1
        self._newest_received_ns = max(self._newest_received_ns, received_ns)
        if node._layout_id != layout.layout_id:
            layout = layout.whole()
            self._read_layout(node, layout)
        self.counting.take(layout, frame, continues)
        for group in node._groups:
            self._consume(node, group, frame, continues, received_ns)
        node._take_pressure(frame)
        self.occurrences.observe(layout, frame, continues, self._records(node, frame, continues, received_ns))
        return True

    def forget(self, gang: str) -> None:
        """The gang's attempt has ended: drop what is kept of it. Were another under way already, it begins anew."""
        self._gangs.pop(gang, None)

    def forget_silent(self, received_ns: int) -> list[str]:
        """Drop gangs unheard of for FORGET_NS (one that is heard again begins anew); returns their names."""
        silent = [name for name, gang in self._gangs.items() if received_ns - gang.received_ns > FORGET_NS]
        for name in silent:
            del self._gangs[name]
        return silent

    def _gang(self, name: str, attempt: int, received_ns: int) -> Gang | None:
        gang = self._gangs.get(name)
        if gang is None or gang.attempt < attempt:
            if gang is None and len(self._gangs) >= MOST_GANGS:
                self.records_refused += 1
                return None
            gang = self._gangs[name] = Gang(name, attempt)
            gang.received_ns = received_ns
        elif gang.attempt > attempt:
            self.records_of_ended_attempts += 1
            return None
        return gang

    # --- counters -----------------------------------------------------------------------------------------------------

    def _read_layout(self, node: NodeView, layout: Layout) -> None:
        known = {(group.name, group.attempt, group.ranks): group for group in node._groups}
        places: dict[tuple[str, int], dict[int, dict[int, int]]] = {}
        for index, column in enumerate(layout.counters):
            member = _member(column) if column.metric in CONSUMED else None
            if member is not None:
                of_gang = places.setdefault((member.gang, member.attempt), {})
                of_gang.setdefault(member.rank, {})[CONSUMED.index(column.metric)] = index
        if known:
            self._consumption.settle()  # what is queued is of these
        groups = []
        for (name, attempt), of_ranks in places.items():
            ranks = tuple(sorted(of_ranks))
            table = np.array([[of_ranks[rank].get(f, -1) for f in range(len(CONSUMED))] for rank in ranks], np.intp)
            widths = np.array([column.width for column in layout.counters], np.uint8)[table]
            tier = layout.counters[int(table.max())].tier
            old = known.get((name, attempt, ranks))
            groups.append(self._consumption.group(name, attempt, ranks, table, widths, tier, old))
        self._consumption.drop(node._groups)
        node._groups = groups
        node._layout_id = layout.layout_id
        waiting = [
            (dict(column.labels).get("resource", ""), index, column.tier)
            for index, column in enumerate(layout.counters)
            if column.metric == "gangwatch_host_pressure_waiting_seconds_total"
        ]
        node._pressures = tuple(resource for resource, _, _ in waiting)
        node._pressure_index = np.array([index for _, index, _ in waiting], np.intp)
        node._pressure_tier = waiting[0][2] if waiting else 0  # one collector's, and so of one tier
        if waiting:
            node._pressure = None, None

    def _consume(self, node: NodeView, group: Group, frame: Frame, continues: bool, received_ns: int) -> None:
        gang = self._gang(group.name, group.attempt, received_ns)
        if gang is None or frame.tier_ns[group.places.tier] <= 0:
            return
        if gang is not group.gang:
            group.gang = gang
            group.columns = np.array([gang.column(rank, node.name) for rank in group.ranks], np.intp)
        gang.received_ns = received_ns
        self._consumption.take(group, gang, frame, continues)

    # --- records ------------------------------------------------------------------------------------------------------

    def _records(self, node: NodeView, frame: Frame, continues: bool, received_ns: int) -> Sequence[EventRecord]:
        """Take in the frame's records; those among them that are events."""
        records = frame.records
        expected = node._record_seq if continues else None
        if (
            records is node._records
            and node._opened
            and expected == frame.record_seq
            and self._opened_again(node, frame)
        ):
            node._record_seq = frame.record_seq + len(records)
            return ()
        if expected is not None and records:
            if frame.record_seq > expected:
                node.records_missed += frame.record_seq - expected
            elif frame.record_seq < expected:
                records = records[expected - frame.record_seq :]
        if records or not continues:
            node._record_seq = frame.record_seq + len(frame.records)
        newest_end, oldest_end = frame.monotonic_ns + CLOCK_SLACK_NS, frame.monotonic_ns - OLDEST_RECORD_NS
        opened: dict[str, tuple[Gang, list[tuple[bool, int, int, int]]]] = {}
        told: list[EventRecord] = []
        count = 0
        for record in records:
            if isinstance(record, StepRecord):
                member, wait_ns, duration_ns = record.member, record.wait_ns, record.duration_ns
                end_ns = record.start_ns + duration_ns
                if not (
                    duration_ns > 0
                    and record.start_ns >= 0
                    and oldest_end <= end_ns <= newest_end
                    and 0 <= record.step < LARGEST
                    and (wait_ns is None or 0 <= wait_ns <= duration_ns)
                    and _possible(member)
                ):
                    self.records_refused += 1
                    continue
                gang = self._gang(member.gang, member.attempt, received_ns)
                if gang is None:
                    continue
                column = gang.column(member.rank, node.name)
                gang.finish(column, record.step, record.start_ns, duration_ns, wait_ns, received_ns)
                if self._stepped.get(member.gang, -1) < member.attempt:
                    self._stepped[member.gang] = member.attempt
                    self._first_steps.append((member.gang, member.attempt, record.step, node.wall_of(end_ns)))
                    if len(self._stepped) > MOST_GANGS:
                        del self._stepped[next(iter(self._stepped))]
            elif isinstance(record, OpenRecord):
                count += self._open(node, record, opened, received_ns)
            else:
                told.append(record)
        tables = tuple((gang, np.array(rows, np.int64)) for gang, rows in opened.values())
        for gang, table in tables:
            gang.opened_all(table, frame.monotonic_ns)
        node._records, node._opened = (frame.records, tables) if count == len(frame.records) else ((), ())
        return told

    def _open(
        self,
        node: NodeView,
        record: OpenRecord,
        opened: dict[str, tuple[Gang, list[tuple[bool, int, int, int]]]],
        received_ns: int,
    ) -> bool:
        """Take one into the table of its gang; False where it is refused."""
        member = record.member
        if not (_possible(member) and 0 <= record.number < LARGEST and 0 <= record.since_ns < LARGEST):
            self.records_refused += 1
            return False
        gang = self._gang(member.gang, member.attempt, received_ns)
        if gang is None:
            return False
        gang.received_ns = received_ns
        row = (record.what != "step", gang.column(member.rank, node.name), record.number, record.since_ns)
        opened.setdefault(member.gang, (gang, []))[1].append(row)
        return True

    def _opened_again(self, node: NodeView, frame: Frame) -> bool:
        """The node's ranks are inside of what they were inside of a frame ago; False where a gang is another by now."""
        if any(self._gangs.get(gang.name) is not gang for gang, _ in node._opened):
            return False
        for gang, table in node._opened:
            gang.received_ns = node.received_ns
            gang.opened_all(table, frame.monotonic_ns)
        return True


def _possible(member: Member) -> bool:
    return 0 <= member.rank < MOST_RANKS and 0 <= member.attempt < LARGEST and len(member.gang) <= 256


def _member(column: Column) -> Member | None:
    labels = dict(column.labels)
    try:
        member = Member(labels["gang"], int(labels["attempt"]), int(labels["rank"]))
    except (KeyError, ValueError):
        return None
    return member if _possible(member) else None
