"""What the fleet knows of one node, from its newest frame."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.schema.frame import Record
from scheduler_feedback.core.consumption import Group
from scheduler_feedback.core.gangs import Gang, IntArray
from scheduler_feedback.core.node_clock import NodeClock


@dataclass(slots=True)
class NodeView:
    """What is known of a node from its newest frame.

    machine: its boot_id: nodes with one machine share processors and clock. seq, wall_ns, monotonic_ns: of the newest
    frame; received_ns: when it came, on the receiver's clock. clock: what its times are in the controller's.
    frames_missed, records_missed: holes in the sequences. frames_refused: repeats and frames out of order.
    """

    name: str
    machine: str = ""
    agent_id: str = ""
    seq: int = 0
    wall_ns: int = 0
    monotonic_ns: int = 0
    received_ns: int = 0
    clock: NodeClock = field(default_factory=NodeClock)
    frames_missed: int = 0
    frames_refused: int = 0
    records_missed: int = 0
    _record_seq: int | None = None
    _layout_id: str = ""
    _groups: list[Group] = field(default_factory=list)
    _records: tuple[Record, ...] = ()
    _opened: tuple[tuple[Gang, IntArray], ...] = ()

    def wall_of(self, monotonic_ns: int) -> int:
        """Wall time of an instant on this node's monotonic clock, by its newest frame."""
        return monotonic_ns + self.wall_ns - self.monotonic_ns - self.clock.skew_ns
