"""Fleet: what all frames of all nodes say by now. Folds frames; decides nothing.

One frame is folded in once, in order: (boot_id, agent_id, seq) is its identity, a repeat or a straggling older one is
dropped and counted, a hole in the sequence is counted. Memory is bounded: by gang (gangs.py), and by forgetting gangs
that nothing was heard of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sys import intern

import numpy as np

from agent.schema.errors import FrameError
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Member, check_fits
from scheduler_feedback.core.telemetry.consumption import Consumption, Group
from scheduler_feedback.core.telemetry.counter_features import Counting, Failed
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.fleet_records import LARGEST, Attempts, possible
from scheduler_feedback.core.telemetry.gang_attempts import CONSUMED, Gang, IntArray
from scheduler_feedback.core.telemetry.membership import Membership
from scheduler_feedback.core.telemetry.occurrences import Occurrences
from scheduler_feedback.core.telemetry.placements import Placements, Refusal
from scheduler_feedback.core.telemetry.process_states import NodeStates, states_of

Sample = tuple[str, tuple[tuple[str, str], ...], float]
"""Name of the catalogue, labels, value: what the exposition takes."""


class Fleet:
    """Nodes and gangs as the frames received so far show them. Owned by one thread; not locked.

    aside: nodes whose frames are not folded because one of them showed a bug, and the (gang, attempt) that had ranks
    there: what is known of these is not whole, and nobody is to judge them.
    placements: which ranks each node may report; all else is refused and counted. None: every node may report anything,
    which is for recordings and simulations, where the frames are one's own.
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
        self._consumption = Consumption()
        self._states: dict[str, NodeStates] = {}
        self.counting = Counting()
        self.occurrences = Occurrences(None if placements is None else parts)
        self.aside: dict[str, set[tuple[str, int]]] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Nodes by name."""
        return self._nodes

    @property
    def gangs(self) -> Mapping[str, Gang]:
        """The newest attempt of each gang, by name."""
        self._consumption.settle()
        return self._attempts.gangs

    @property
    def guarded(self) -> bool:
        """Whether each node may report its own ranks only."""
        return self._membership is not None

    @property
    def records_refused(self) -> int:
        """Records that no reporter could have made."""
        return self._attempts.refused

    @property
    def records_of_ended_attempts(self) -> int:
        """Records of an attempt of which a newer one is known."""
        return self._attempts.ended

    def first_steps(self) -> list[tuple[str, int, int, int]]:
        """(gang, attempt, step, wall time of its end) of the first finished step of each attempt seen since the last
        call."""
        return self._attempts.first_steps()

    @property
    def newest_received_ns(self) -> int:
        """When the newest frame of any node came, on the receiver's clock; 0 before the first."""
        return self._newest_received_ns

    def touched(self) -> set[str]:
        """Nodes whose machine, clock or layout is another than it was at the last call."""
        found, self._touched = self._touched, set()
        return found

    def gang_step_seconds(self, gang: str) -> float | None:
        """Mean time of the gang's newest steps; None where it is not known or has made none."""
        known = self._attempts.gangs.get(gang)
        return None if known is None else known.step_seconds()

    def shares_machine(self, node: str) -> bool:
        """Whether another node is on the same machine: load on one is load on the other.

        It has the node's boot id, and its agent is reached at the same address: any agent may send any boot id.
        """
        view = self._nodes.get(node)
        if view is None:
            return False
        others = self._machines.get(view.machine, set()) - {node}  # absent: of a node that has named no machine
        return bool(others) and (
            self._membership is None or any(self._membership.same_host(node, other) for other in others)
        )

    def frames_of(self, gang: Gang) -> tuple[tuple[str, int], ...]:
        """Newest frame of each of the gang's nodes: what a person looks up to check a verdict."""
        return tuple((node, self._nodes[node].seq) for node in sorted(set(gang.nodes)) if node in self._nodes)

    def process_states(self, gang: Gang) -> IntArray:
        """int64 [n] by rising rank: the newest ProcessState of each, or UNKNOWN_STATE."""
        return states_of(gang, self._states)

    def measures(self) -> Iterator[Sample]:
        """Samples of the catalogue that follow from the fleet."""
        for name, gang in self._attempts.gangs.items():
            seconds = gang.step_seconds()
            if seconds is not None:
                yield "gangwatch_gang_step_seconds", (("gang", name),), seconds
        for name, node in self._nodes.items():
            if node.clock.skew_ns:
                yield "gangwatch_node_clock_skew_seconds", (("node", name),), node.clock.skew_ns / 1e9
        if self._membership is not None:
            refused = self._membership.refused.copy()
            for name, count in self.occurrences.passed_over.items():
                refused[name, Refusal.LIMIT] += count
            for (name, why), count in refused.items():
                labels = (("node", name), ("reason", why.value))
                yield "gangwatch_watch_records_refused_total", labels, float(count)

    # --- folding ------------------------------------------------------------------------------------------------------

    def set_clock(self, wall_ns: int, received_now_ns: int) -> None:
        """The controller's own clocks at one instant: wall time, and the clock by which frames are received. Known, it
        corrects nodes whose wall clocks are wrong (node_clock.py)."""
        self._here_ns = wall_ns - received_now_ns

    def observe(self, layout: AnyLayout, frame: Frame, received_ns: int, superseded: bool = False) -> bool:
        """Fold in one frame; `received_ns` is the receiver's monotonic clock. True where it was new.

        superseded: whether the same agent's next frame is here already. Its counters say all that this one's do, over
        both seconds; only records are taken then.

        Raises FrameError where the frame does not fit its layout or names another node; nothing is changed then.
        Records that no reporter could have made are refused one by one and counted.
        """
        check_fits(layout, frame)
        if frame.node != layout.node:
            raise FrameError(f"frame {frame.seq} of {frame.node}: its layout is of node {layout.node}")
        seq, monotonic_ns = frame.seq, frame.monotonic_ns
        if not (
            0 <= seq < LARGEST
            and 0 <= frame.wall_ns < LARGEST
            and 0 <= monotonic_ns < LARGEST
            and 0 <= frame.record_seq < LARGEST
        ):
            names = ("seq", "wall_ns", "monotonic_ns", "record_seq")
            wrong = ", ".join(f"{name} {getattr(frame, name)}" for name in names)
            raise FrameError(f"frame {seq} of {frame.node}: one of {wrong} is out of range")
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = NodeView(frame.node)
        same_machine = node.machine == frame.boot_id
        continues = same_machine and node.agent_id == frame.agent_id
        if (same_machine and monotonic_ns < node.monotonic_ns) or (continues and seq <= node.seq):
            node.frames_refused += 1
            return False
        if continues:
            node.frames_missed += seq - node.seq - 1
        elif not same_machine:
            self._move(node, frame.boot_id)
        node.machine, node.agent_id, node.seq = frame.boot_id, frame.agent_id, seq
        node.wall_ns, node.monotonic_ns, node.received_ns = frame.wall_ns, monotonic_ns, received_ns
        if node.clock.take(frame.wall_ns, monotonic_ns, received_ns, self._here_ns):
            self._touched.add(node.name)
        if received_ns > self._newest_received_ns:
            self._newest_received_ns = received_ns
        if self._membership is not None:
            here = self._membership.here(node.name)
            if node._here is not here:
                node._here, node._records, node._opened = here, (), ()  # what was counted is looked at anew
            layout = self._membership.layout_of(layout, received_ns)
        if node._layout_id != layout.layout_id:
            layout = layout.whole()
            self._read_layout(node, layout)
            self._touched.add(node.name)
        whole = not (superseded and continues)
        if whole:
            if (states := self._states.get(node.name)) is not None:
                states.take(frame)
            self.counting.take(layout, frame, continues)
            for group in node._groups:
                self._consume(node, group, frame, continues, received_ns)
        told = self._attempts.take(node, frame, continues, received_ns)
        if whole or told:
            self.occurrences.observe(layout, frame, continues, told)
        return True

    def newly_refused(self) -> list[tuple[str, str, Refusal]]:
        """(node, gang, why) of the first record or series of each node and reason that was refused since the last
        call: one line for the log, where the counts tell the rest."""
        if self._membership is None:
            return []
        found, self._membership.newly_refused = self._membership.newly_refused, []
        return found

    def failed(self) -> list[Failed]:
        """(node, error) of the frames that could not be folded since the last call: each is a bug."""
        found = [*self._consumption.failed, *self.counting.failed]
        self._consumption.failed.clear()
        self.counting.failed.clear()
        return found

    def set_aside(self, name: str) -> None:
        """Fold no frame of the node until it is readmitted, and forget what its frames have left."""
        gangs = self._attempts.gangs.values()
        self.aside[name] = {(gang.name, gang.attempt) for gang in gangs if name in gang.nodes}
        self.counting.drop(name)
        self.occurrences.forget(name)
        node = self._nodes.get(name)
        if node is not None:
            self._consumption.drop(node._groups)
            if self._membership is not None:
                self._membership.drop(name)
            fresh = NodeView(name, node.machine)
            fresh.received_ns = node.received_ns
            self._nodes[name] = fresh
            self._touched.add(name)

    def hear(self, name: str, received_ns: int) -> None:
        """A frame of a node that is set aside has come: its agent is alive."""
        if (node := self._nodes.get(name)) is not None:
            node.received_ns = received_ns
        self._newest_received_ns = max(self._newest_received_ns, received_ns)

    def readmit(self, name: str) -> None:
        """Fold the node's frames again. Its gangs begin anew: of their steps a part is missing by now."""
        for gang, attempt in self.aside.pop(name, ()):
            if (known := self._attempts.gangs.get(gang)) is not None and known.attempt == attempt:
                self.forget(gang)

    def forget(self, gang: str) -> None:
        """The gang's attempt has ended: drop what is kept of it. Were another under way already, it begins anew."""
        self._attempts.forget(gang)

    def forget_silent(self, received_ns: int) -> list[str]:
        """Drop gangs unheard of for ten minutes (one that is heard again begins anew); returns their names."""
        return self._attempts.forget_silent(received_ns)

    def _move(self, node: NodeView, machine: str) -> None:
        """The node is on another machine: whoever else stands on it, or stood beside it, may share less or more."""
        for beside in (self._machines.get(node.machine, set()), self._machines.setdefault(machine, set())):
            self._touched |= beside
        self._touched.add(node.name)
        left = self._machines.get(node.machine, set())
        left.discard(node.name)
        if not left:
            self._machines.pop(node.machine, None)
        self._machines.setdefault(machine, set()).add(node.name)

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
            widths = np.array([[layout.counters[place].width for place in row] for row in table.tolist()], np.uint8)
            tier = layout.counters[int(table.max())].tier
            old = known.get((name, attempt, ranks))
            sizes = len(layout.tiers), len(layout.counters)
            groups.append(self._consumption.group(name, attempt, ranks, table, widths, tier, sizes, old))
        self._consumption.drop(node._groups)
        node._groups = groups
        states = NodeStates(layout.gauges, self._states.pop(node.name, None), self._attempts.gangs)
        if states.members or states.gone:
            self._states[node.name] = states
        node._layout_id = layout.layout_id

    def _consume(self, node: NodeView, group: Group, frame: Frame, continues: bool, received_ns: int) -> None:
        gang = self._attempts.of(group.name, group.attempt, received_ns)
        if gang is None or frame.tier_ns[group.places.tier] <= 0:
            return
        gang.received_ns = received_ns
        if gang is not group.gang:
            columns = [self._attempts.column(gang, rank, node.name) for rank in group.ranks]
            if -1 in columns:
                return  # one of these ranks is another node's
            group.gang = gang
            group.columns = np.array(columns, np.intp)
        self._consumption.take(group, gang, frame, continues)


def _member(column: Column) -> Member | None:
    labels = dict(column.labels)
    try:
        member = Member(intern(labels["gang"]), int(labels["attempt"]), int(labels["rank"]))
    except (KeyError, ValueError):
        return None
    return member if possible(member) else None
