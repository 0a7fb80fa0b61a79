"""Newest known state of one node, from the node's newest frame."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent.schema.frame import AnyLayout, Member, Record, RecordTable, StepRecord
from scheduler_feedback.core.telemetry.node_clock import NodeClock
from scheduler_feedback.core.telemetry.series.consumption import Group
from scheduler_feedback.core.telemetry.series.occurrences import WatchedNode
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang
from scheduler_feedback.core.telemetry.telemetry import IndexArray

MOST_WAITING = 512
"""Maximum number of records of one node that wait until the scheduler has their gang: a minute of one-second steps of
eight ranks. Beyond that, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class KnownRanks:
    """Ranks of a table of records that the node may report, all of one gang."""

    members: tuple[Member, ...]
    """Ranks of the table."""
    gang: Gang
    """Attempt of the gang to which their records are added."""
    columns: IndexArray
    """intp [m]: column of each rank in the gang."""
    slots: IndexArray
    """intp [m]: slot of each rank in the arrays of all gangs."""
    ranks: frozenset[int] | None
    """Ranks of the gang that the node may report; None: any."""
    changes: int
    """Value of the gang's `changes` at that time."""
    news: object = None
    """The backend's data when the node was last allowed to report them; None: its decision is not kept."""
    here: object = None
    """Placement of the node at that time; compared by identity."""


@dataclass(slots=True)
class NodeView:
    """State of a node as of its newest frame."""

    name: str
    """Name of the node."""
    machine: str = ""
    """boot_id. Nodes with the same machine share processors and clock."""
    agent_id: str = ""
    """Id of the agent process."""
    seq: int = 0
    """Sequence number of the newest frame."""
    wall_ns: int = 0
    """Wall time of the newest frame, in nanoseconds since 1970."""
    monotonic_ns: int = 0
    """Time of the newest frame on the node's monotonic clock, in nanoseconds."""
    received_ns: int = 0
    """Time at which the newest frame was received, on the receiver's clock."""
    clock: NodeClock = field(default_factory=NodeClock)
    """Conversion of the node's monotonic times to the controller's wall time."""
    frames_missed: int = 0
    """Number of frames that are missing in the sequence so far."""
    frames_refused: int = 0
    """Number of frames so far that were dropped because they are repeated or out of order."""
    records_missed: int = 0
    """Number of records that are missing in the sequence so far."""
    _record_seq: int | None = None
    """Expected sequence number of the next record; None before the first frame."""
    _layout: AnyLayout | None = None
    """Layout of the newest frame, with the accepted names of its ranks."""
    _layout_id: str = ""
    """Id of the layout that was read last."""
    _series_id: str = ""
    """Id of the layout whose series are used: that of the newest frame with counters that were not superseded."""
    _cohort: object = None
    """Nodes with the same series in the same places (series_queue.py)."""
    _kind_row: int = 0
    """Row of the node in the features of its cohort."""
    _watched: WatchedNode | None = None
    """Monitored series of the node."""
    _queued: int = -1
    """Number of batches that were processed before the node's newest frame was queued."""
    _groups: list[Group] = field(default_factory=list)
    """Groups of ranks whose consumption the layout contains."""
    _has_states: bool = False
    """Whether the kernel states of the node's ranks are kept (process_states.py)."""
    _group_rows: list[int] = field(default_factory=list)
    """Row of each group in the arrays of its places."""
    _records: tuple[Record, ...] | RecordTable = ()
    """Records of the newest frame if all of them are about open steps and collectives; otherwise empty."""
    _opened: tuple[tuple[Gang, IndexArray], ...] = ()
    """Cells of the open steps and collectives of the newest frame, by gang (open_table.py)."""
    _tables_queued: int = -1
    """Number of batches of tables that were processed before the node's newest table was queued."""
    _ranks: KnownRanks | None = None
    """Ranks of the node's last table of records, if all of them were accepted."""
    _here: object = None
    """Placement of the node when its newest frame was processed; compared by identity."""
    _waiting: deque[tuple[int, StepRecord]] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    """Records of gangs that the scheduler's state does not contain yet, each with its time of receipt."""
    _waiting_ns: int = 0
    """Time of the next check of the waiting records."""

    def wall_of(self, monotonic_ns: int) -> int:
        """Convert a time of this node's monotonic clock to wall time, by its newest frame."""
        return monotonic_ns + self.wall_ns - self.monotonic_ns - self.clock.skew_ns
