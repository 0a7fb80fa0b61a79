"""What the fleet knows of one node, from its newest frame."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent.schema.frame import Record, StepRecord
from scheduler_feedback.core.telemetry.consumption import Group
from scheduler_feedback.core.telemetry.gang_attempts import Gang, IntArray
from scheduler_feedback.core.telemetry.node_clock import NodeClock

MOST_WAITING = 512
"""Records of one node that wait for the scheduler to learn of their gang: a minute of eight ranks' steps of a second.
Beyond them the oldest are dropped."""


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
    _here: object = None
    """The node's placement when its newest frame was folded: compared by identity."""
    _waiting: deque[tuple[int, StepRecord]] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    """Records of gangs that the scheduler may learn of, each with when it came."""
    _waiting_ns: int = 0
    """When they are looked at again."""

    def wall_of(self, monotonic_ns: int) -> int:
        """Wall time of an instant on this node's monotonic clock, by its newest frame."""
        return monotonic_ns + self.wall_ns - self.monotonic_ns - self.clock.skew_ns
