"""Fleet: the current state of all nodes and gangs, computed from their frames. It makes no decisions.

Each frame is processed once, in order. (boot_id, agent_id, seq) is its identity. Repeated and older frames are dropped
and counted; gaps in the sequence are counted. Memory is bounded per gang (gang_attempts.py), and stale gangs are
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sys import intern

import numpy as np

from agent.schema.errors import FrameError
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Member, check_fits
from agent.schema.sample import Sample
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.device_memory import NodeMemory, memory_of
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.membership import Membership
from scheduler_feedback.core.telemetry.placements import Placements, Refusal
from scheduler_feedback.core.telemetry.process_states import NodeStates, states_of
from scheduler_feedback.core.telemetry.series.consumption import Consumption, Group
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, NO_OWNER
from scheduler_feedback.core.telemetry.series.counter_features import Counting
from scheduler_feedback.core.telemetry.series.frame_batch import Failed
from scheduler_feedback.core.telemetry.series.occurrences import Occurrences
from scheduler_feedback.core.telemetry.series.series_queue import SeriesQueue
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.telemetry.steps.fleet_records import Attempts
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, Gang, IntArray
from scheduler_feedback.core.telemetry.steps.record_checks import LARGEST_BITS, possible
from scheduler_feedback.core.telemetry.steps.step_ring import Requests


class Fleet:
    """Nodes and gangs as of the frames received so far. Owned by one thread; not locked.

    aside: nodes whose frames are not processed because an earlier frame raised an exception, with each (gang, attempt)
    that had ranks there. Data of these attempts is incomplete, so detectors must skip them.
    placements: ranks that each node may report; other reports are refused and counted. None: every node may report
    anything, for recordings and simulations with trusted frames.
    """

    def __init__(self, placements: Placements | None = None) -> None:
        self._nodes: dict[str, NodeView] = {}
        parts = Parts(lambda node: self._nodes[node].received_ns if node in self._nodes else 0)
        self._membership = None if placements is None else Membership(placements, parts)
        self._attempts = Attempts(self._nodes, self._membership)
        self._newest_received_ns = 0
        self._here_ns: int | None = None
        self._machines: dict[str, set[str]] = {}
        self._touched: set[str] = set()
        self._consumption = Consumption(self._attempts.trails)
        self._states: dict[str, NodeStates] = {}
        self._memory: dict[str, NodeMemory] = {}
        self._counting = Counting()
        self._occurrences = Occurrences(None if placements is None else parts)
        self._series = SeriesQueue(self._counting, self._consumption, self._occurrences)
        self.aside: dict[str, set[tuple[str, int]]] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Newest state of each node, by name."""
        return self._nodes

    @property
    def gangs(self) -> Mapping[str, Gang]:
        """The newest attempt of each gang, by name."""
        self._settle()
        return self._attempts.gangs

    @property
    def counting(self) -> Counting:
        """Features of the ranks of all nodes."""
        self._settle()
        return self._counting

    @property
    def occurrences(self) -> Occurrences:
        """Device events of all nodes."""
        self._settle()
        return self._occurrences

    @property
    def guarded(self) -> bool:
        """Whether each node may only report its own ranks."""
        return self._membership is not None

    @property
    def records_refused(self) -> int:
        """Number of refused records whose values are impossible."""
        self._settle()
        return self._attempts.refused

    @property
    def records_of_ended_attempts(self) -> int:
        """Number of records of attempts that a newer attempt of the gang has replaced."""
        self._settle()
        return self._attempts.ended

    def first_steps(self) -> list[tuple[str, int, int, int]]:
        """Return the first finished step of each attempt since the last call: (gang, attempt, step, end wall time)."""
        self._settle()
        return self._attempts.first_steps()

    @property
    def newest_received_ns(self) -> int:
        """Time at which the newest frame of any node was received, on the receiver's clock; 0 before the first
        frame."""
        return self._newest_received_ns

    def touched(self) -> set[str]:
        """Return the nodes whose machine, clock or layout has changed since the last call."""
        found, self._touched = self._touched, set()
        return found

    def gang_step_seconds(self, gang: str) -> float | None:
        """Return the mean time of the gang's newest steps; None if the gang is unknown or has no steps."""
        known = self.gangs.get(gang)
        return None if known is None else known.step_seconds()

    def gang_requests(self, gang: str) -> Requests | None:
        """Return the gang's newest steps as requests; None if the gang is unknown or has no steps."""
        known = self.gangs.get(gang)
        return None if known is None else known.newest_requests()

    def shares_machine(self, node: str) -> bool:
        """Return whether another node is on the same machine, so that load on one node also affects the other.

        Two nodes are on the same machine if they have the same boot id and their agents have the same address. The boot
        id is not enough, because an agent may send any boot id.
        """
        view = self._nodes.get(node)
        if view is None:
            return False
        others = self._machines.get(view.machine, set()) - {node}  # no entry: the node has sent no boot id
        return bool(others) and (
            self._membership is None or any(self._membership.same_host(node, other) for other in others)
        )

    def frames_of(self, gang: Gang) -> tuple[tuple[str, int], ...]:
        """Return the newest frame of each of the gang's nodes, for the evidence of a verdict."""
        return tuple((node, self._nodes[node].seq) for node in sorted(set(gang.nodes)) if node in self._nodes)

    def process_states(self, gang: Gang) -> IntArray:
        """Return int64 [n], ordered by rank: the newest ProcessState of each rank, or UNKNOWN_STATE."""
        return states_of(gang, self._states)

    def device_memory(self, gang: Gang) -> FloatArray:
        """Return float64 [n], ordered by rank: the newest device memory of each rank in bytes; NaN if it is unknown."""
        return memory_of(gang, self._memory)

    def blocked(self, gang: str) -> Mapping[int, Blocked]:
        """Return the newest report of each rank of the gang that makes no progress, by rank."""
        return self._attempts.blocked.of(gang)

    def measures(self) -> Iterator[Sample]:
        """Yield the fleet's metric samples. Frames may be processed between two samples."""
        for name, gang in list(self.gangs.items()):
            seconds = gang.step_seconds()
            if seconds is not None:
                yield "gangwatch_gang_step_seconds", (("gang", name),), seconds
        for name, node in list(self._nodes.items()):
            if node.clock.skew_ns:
                yield "gangwatch_node_clock_skew_seconds", (("node", name),), node.clock.skew_ns / 1e9
        if self._membership is not None:
            refused = self._membership.refused.copy()
            for name, count in list(self._occurrences.passed_over.items()):
                refused[name, Refusal.LIMIT] += count
            for (name, why), count in refused.items():
                labels = (("node", name), ("reason", why.value))
                yield "gangwatch_watch_records_refused_total", labels, float(count)

    # --- processing frames --------------------------------------------------------------------------------------------

    def set_clock(self, wall_ns: int, received_now_ns: int) -> None:
        """Set the controller's wall time and receiver's clock, read at the same time.

        They are used to correct nodes whose wall clocks are wrong (node_clock.py).
        """
        self._here_ns = wall_ns - received_now_ns

    def observe(self, layout: AnyLayout, frame: Frame, received_ns: int, superseded: bool = False) -> bool:
        """Process one frame. Returns True if it was new.

        received_ns: time of receipt on the receiver's monotonic clock.
        superseded: whether the same agent's next frame has already arrived. The counters of that frame cover both
        seconds, so only the records of this frame are used. The values of its earlier samples are used too.

        Raises FrameError, without any change, if the frame does not fit its layout or names another node. Invalid
        records are refused one by one and counted.
        """
        seq, monotonic_ns = frame.seq, frame.monotonic_ns
        if (
            frame.layout_id != layout.layout_id
            or frame.node != layout.node
            or (len(frame.tier_ns), len(frame.gauges), len(frame.counters)) != layout.sizes
            or (seq | monotonic_ns | frame.wall_ns | frame.record_seq) >> LARGEST_BITS  # negative, or too large
        ):
            raise _misfit(layout, frame)
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = NodeView(frame.node)
        same_machine = node.machine == frame.boot_id
        continues = same_machine and node.agent_id == frame.agent_id
        if (same_machine and monotonic_ns < node.monotonic_ns) or (continues and seq <= node.seq):
            node.frames_refused += 1
            return False
        earlier = frame.earlier
        if continues:
            if seq - node.seq != 1:
                if earlier:
                    earlier = tuple(
                        one for one in earlier if one.seq > node.seq and one.monotonic_ns >= node.monotonic_ns
                    )
                node.frames_missed += seq - node.seq - 1 - len(earlier)
        else:
            if not same_machine:
                self._move(node, frame.boot_id)
            node.machine, node.agent_id = frame.boot_id, frame.agent_id
        node.seq, node.wall_ns, node.monotonic_ns, node.received_ns = seq, frame.wall_ns, monotonic_ns, received_ns
        if node.clock.take(frame.wall_ns, monotonic_ns, received_ns, self._here_ns):
            self._touched.add(node.name)
        if received_ns > self._newest_received_ns:
            self._newest_received_ns = received_ns
        if self._membership is not None:
            here = self._membership.here(frame.node)
            if node._here is not here:
                self._attempts.tables.settle_of_node(node)
                node._here, node._records, node._opened = here, (), ()  # check its records again
            layout = self._membership.layout_of(layout, here, received_ns)
        if node._layout is not layout:
            node._layout = layout
            if node._layout_id != layout.layout_id:
                layout = layout.whole() if self._membership is None else self._membership.whole_of(layout)
                self._read_layout(node, layout)
                self._touched.add(node.name)
        whole = not (superseded and continues)
        if whole:
            if node._has_states:
                self._states[node.name].take(frame)
            if (memory := self._memory.get(node.name)) is not None:
                memory.take(frame)
            if node._series_id != layout.layout_id:
                self._series.read(node, layout, frame)
            for group in node._groups:
                if (gang := group.gang) is not None and not gang.left:
                    gang.received_ns = received_ns
                else:
                    self._join(node, group, frame, received_ns)
        events = self._attempts.take(node, frame, continues, received_ns)
        if events:
            self._series.add_events(node, layout, frame, events)
        if whole:
            left = len(earlier)
            for sample in earlier:
                self._series.add(node, sample, continues, left)
                continues, left = True, left - 1
            self._series.add(node, frame, continues)
        elif events:
            self._series.compare(node, frame, continues)
        return True

    def newly_refused(self) -> list[tuple[str, str, Refusal]]:
        """Return (node, gang, reason) of records and series that were refused since the last call: only the first for
        each node and reason. The caller logs each of these; metrics count all refusals."""
        if self._membership is None:
            return []
        found, self._membership.newly_refused = self._membership.newly_refused, []
        return found

    def failed(self) -> list[Failed]:
        """Return (node, error) of the frames that could not be processed since the last call. Each error is a bug."""
        found: list[Failed] = []
        parts = (self._consumption, self._counting, self._occurrences, self._attempts.tables)
        for failed in [part.failed for part in parts]:
            found += failed
            failed.clear()
        return found

    def set_aside(self, name: str) -> None:
        """Stop processing the node's frames until it is readmitted, and delete its data."""
        gangs = self.gangs.values()
        self.aside[name] = {(gang.name, gang.attempt) for gang in gangs if name in gang.nodes}
        node = self._nodes.get(name)
        if node is not None:
            self._series.drop(node)
        self._counting.drop(name)
        self._occurrences.forget(name)
        if node is not None:
            self._consumption.drop(node._groups)
            if self._membership is not None:
                self._membership.drop(name)
            fresh = NodeView(name, node.machine)
            fresh.received_ns = node.received_ns
            self._nodes[name] = fresh
            self._touched.add(name)

    def note_receipt(self, name: str, received_ns: int) -> None:
        """Record the receipt of a frame from a node that is set aside. The frame shows that the agent is alive."""
        if (node := self._nodes.get(name)) is not None:
            node.received_ns = received_ns
        self._newest_received_ns = max(self._newest_received_ns, received_ns)

    def readmit(self, name: str) -> None:
        """Process the node's frames again. Its gangs start from scratch, because some of their steps are missing."""
        for gang, attempt in self.aside.pop(name, ()):
            if (known := self._attempts.gangs.get(gang)) is not None and known.attempt == attempt:
                self.forget(gang)

    def forget(self, gang: str) -> None:
        """Delete the data of a gang whose attempt has ended.

        If another attempt already runs, its data is collected from scratch.
        """
        self._attempts.forget(gang)

    def forget_silent(self, received_ns: int) -> list[str]:
        """Delete gangs without reports for ten minutes; returns their names.

        If such a gang reports again later, its data is collected from scratch.
        """
        return self._attempts.forget_silent(received_ns)

    def _move(self, node: NodeView, machine: str) -> None:
        """Record that the node is now on another machine, which changes how many nodes share the old and the new
        machine."""
        for affected in (self._machines.get(node.machine, set()), self._machines.setdefault(machine, set())):
            self._touched |= affected
        self._touched.add(node.name)
        left = self._machines.get(node.machine, set())
        left.discard(node.name)
        if not left:
            self._machines.pop(node.machine, None)
        self._machines.setdefault(machine, set()).add(node.name)

    def _settle(self) -> None:
        """Process the queued frames."""
        self._attempts.tables.settle()
        self._series.settle()

    # --- counters -----------------------------------------------------------------------------------------------------

    def _read_layout(self, node: NodeView, layout: Layout) -> None:
        known = {(group.name, group.attempt, group.ranks): group for group in node._groups}
        places: dict[tuple[str, int], dict[int, dict[int, int]]] = {}
        for index, column in enumerate(layout.counters):
            member = _member(column) if column.metric in CONSUMED else None
            if member is not None:
                of_gang = places.setdefault((member.gang, member.attempt), {})
                of_gang.setdefault(member.rank, {})[CONSUMED.index(column.metric)] = index
        self._series.settle_of(node)  # queued frames belong to these groups
        groups = []
        for (name, attempt), of_ranks in places.items():
            ranks = tuple(sorted(of_ranks))
            table = np.array([[of_ranks[rank].get(f, -1) for f in range(len(CONSUMED))] for rank in ranks], np.intp)
            widths = np.array([[layout.counters[place].width for place in row] for row in table.tolist()], np.uint8)
            tier = layout.counters[int(table.max())].tier
            old = known.get((name, attempt, ranks))
            sizes = len(layout.tiers), len(layout.counters)
            groups.append(self._consumption.group(name, attempt, ranks, table, widths, tier, sizes, old))
        self._consumption.drop(node._groups)
        node._groups, node._group_rows = groups, [group.row for group in groups]
        states = NodeStates(layout.gauges, self._states.pop(node.name, None), self._attempts.gangs)
        if states.members or states.gone:
            self._states[node.name] = states
        node._has_states = node.name in self._states
        self._memory.pop(node.name, None)
        if memory := NodeMemory(layout.gauges):
            self._memory[node.name] = memory
        node._layout_id = layout.layout_id

    def _join(self, node: NodeView, group: Group, frame: Frame, received_ns: int) -> None:
        """Find the attempt to which the consumption of the group's ranks is added. It is not used if there is none."""
        gang = self._attempts.of(group.name, group.attempt, received_ns)
        if gang is not None and frame.tier_ns[group.places.tier] <= 0:
            gang = None  # not sampled yet
        columns: list[int] = []
        if gang is not None:
            gang.received_ns = received_ns
            columns = [self._attempts.column(gang, rank, node.name) for rank in group.ranks]
            if -1 in columns:
                gang = None  # one of these ranks belongs to another node
        if gang is not group.gang:
            self._series.settle_of(node)
            group.gang = gang
            group.places.owners[group.row] = NO_OWNER if gang is None else gang.number
            if gang is not None:
                group.places.slots[group.row] = gang.slots_of(np.array(columns, np.intp))


def _misfit(layout: AnyLayout, frame: Frame) -> FrameError:
    """Return the error of a frame that does not fit its layout, names another node, or has a number out of range."""
    try:
        check_fits(layout, frame)
    except FrameError as error:
        return error
    if frame.node != layout.node:
        return FrameError(f"frame {frame.seq} of {frame.node}: its layout is of node {layout.node}")
    names = ("seq", "wall_ns", "monotonic_ns", "record_seq")
    wrong = ", ".join(f"{name} {getattr(frame, name)}" for name in names)
    return FrameError(f"frame {frame.seq} of {frame.node}: one of {wrong} is out of range")


def _member(column: Column) -> Member | None:
    labels = dict(column.labels)
    try:
        member = Member(intern(labels["gang"]), int(labels["attempt"]), int(labels["rank"]))
    except (KeyError, ValueError):
        return None
    return member if possible(member) else None
