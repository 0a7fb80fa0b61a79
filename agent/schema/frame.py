"""Layouts, frames and records. Their wire form is in ``agent.schema.wire``.

A ``Frame`` contains all values of an agent at one time: arrays of gauges and counters, and a bounded list of records. A
``Layout`` describes the columns (series) and is sent only when it changes. The frame contains the id of its layout.
Counters are integers, since a float64 cannot represent large byte counts exactly. Each column has its width in bits, so
that readers can distinguish a wrap from a reset. An absent gauge is NaN; an absent counter has a cleared validity bit.
Zero is a value.

Every tier (the series of one collector) has its own sample time, so that rates are correct for any interval.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.errors import FrameError

MOST_SAMPLES = 16
"""Maximum number of earlier samples in a message. If a reader is later than that, every second one is left out."""

MOST_SAMPLE_BYTES = 1024 * 1024
"""Maximum size of a message's earlier samples, in bytes of values. A controller refuses messages above 4 MiB. A sample
of a node of eight GPUs has 4 kB of requested series, or 44 kB of all series."""

MAX_RECORDS = 4096
"""Maximum number of records in one frame. The oldest records are dropped, which leaves a gap in ``record_seq``."""

GaugeArray = npt.NDArray[np.float64]
CounterArray = npt.NDArray[np.uint64]
ValidArray = npt.NDArray[np.bool_]
TimeArray = npt.NDArray[np.int64]


# --- layout ----------------------------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=False, gc=False):
    """One series of a node: a metric of the catalogue and its labels."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted pairs of label name and value, without the label ``node``."""
    tier: int = 0
    """Position in ``Layout.tiers`` of the collector that samples this series."""
    width: int = 64
    """Width of a counter in bits: 32 or 64. Not used for a gauge."""


class Tier(msgspec.Struct, frozen=True, gc=False):
    """A collector with its interval. All series of a tier are sampled together and share one sample time."""

    name: str
    interval_seconds: float


class Layout(msgspec.Struct, frozen=True):
    """Description of the series (columns) in a frame.

    ``layout_id`` is a digest: layouts of equal content have equal ids.
    """

    layout_id: str
    node: str
    tiers: tuple[Tier, ...]
    gauges: tuple[Column, ...]
    counters: tuple[Column, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of tiers (collectors), number of gauges and number of counters in a frame."""
        return len(self.tiers), len(self.gauges), len(self.counters)

    def whole(self) -> Layout:
        """Return the layout itself. A packed layout returns its uncompressed form."""
        return self


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Compressed layout. The fields that are needed to check frames are not compressed.

    For a node of eight GPUs it takes 4 kB instead of 150 kB. A reader can therefore keep the layouts of 10,000 nodes
    in memory.
    """

    layout_id: str
    node: str
    sizes: tuple[int, int, int]
    packed: bytes

    def whole(self) -> Layout:
        """Return the uncompressed layout."""
        return msgspec.msgpack.decode(zlib.decompress(self.packed), type=Layout)


class AnyLayout(Protocol):
    """A layout in any form. It is uncompressed only when it has changed; frames are checked with these fields."""

    @property
    def layout_id(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def sizes(self) -> tuple[int, int, int]: ...
    def whole(self) -> Layout: ...


def pack(layout: Layout) -> PackedLayout:
    """Return the compressed form of a layout."""
    packed = zlib.compress(msgspec.msgpack.encode(layout), 3)
    return PackedLayout(layout.layout_id, layout.node, layout.sizes, packed)


def make_layout(node: str, tiers: Iterable[Tier], gauges: Iterable[Column], counters: Iterable[Column]) -> Layout:
    """Make a layout and compute its id: 16 hexadecimal digits of a BLAKE2b digest of its content."""
    body = (node, tuple(tiers), tuple(gauges), tuple(counters))
    digest = hashlib.blake2b(msgspec.msgpack.encode(body), digest_size=8).hexdigest()
    return Layout(digest, *body)


# --- records ---------------------------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank of one attempt of a gang, to which a record belongs."""

    gang: str
    attempt: int
    rank: int


class StepRecord(msgspec.Struct, frozen=True, tag="step", gc=False):
    """Finished training step of one rank."""

    member: Member
    step: int
    start_ns: int
    """Start of the step in nanoseconds on the host's monotonic clock."""
    duration_ns: int
    wait_ns: int | None = None
    """Nanoseconds spent waiting in collectives; None if the training process could not measure the time."""
    tokens: int | None = None
    """Number of tokens of the step; None if not reported."""
    collectives: int = 0
    """Number of collectives that the rank entered during the step."""
    squares: int | None = None
    """Sum of the squared lengths of the step's sequences; None if not reported."""


class OpenRecord(msgspec.Struct, frozen=True, tag="open", gc=False):
    """Step or collective of a rank that has not ended at the time of the frame. It shows a hang while the hang lasts.

    Each frame has at most one open step and one open collective per rank.
    """

    member: Member
    what: Literal["step", "collective"]
    number: int
    """Number of the step or collective."""
    since_ns: int
    """Start of the step or collective in nanoseconds on the host's monotonic clock."""


RANK_BLOCKED = "rank-blocked"
"""Kind of the event that a rank makes no progress. detail: answered ('0' or '1'), quiet_seconds, and the rank's claims:
where, stacks, operation, group, group_ranks, sequence, bytes, communicators."""


class EventRecord(msgspec.Struct, frozen=True, tag="event", gc=False):
    """Event on a node, such as an XID, a link change or the refusal of a training process.

    ``kind`` is the type of the event, ``entity`` the affected device, rank or process.
    """

    kind: str
    entity: str
    time_ns: int
    detail: dict[str, str] = {}
    member: Member | None = None
    """The rank of an event about a rank; None for other events."""


Record = StepRecord | OpenRecord | EventRecord


ROW_BYTES = 64
"""Length of a row of a record table: eight int64 (agent/schema/record_table.py)."""


class RecordTable(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Records of steps and collectives as rows of integers (agent/schema/record_table.py)."""

    members: tuple[Member, ...]
    """Ranks of the rows."""
    rows: bytes
    """Rows of ROW_BYTES, in the order of the records."""

    def __len__(self) -> int:
        return len(self.rows) // ROW_BYTES

    def after(self, count: int) -> RecordTable:
        """Return the table without its first rows."""
        return RecordTable(self.members, self.rows[count * ROW_BYTES :])


# --- frame -----------------------------------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False):
    """All values of an agent at one time."""

    node: str
    boot_id: str
    """The host's /proc/sys/kernel/random/boot_id. Nodes with the same boot_id share one machine and one clock."""
    agent_id: str
    """Id of one run of the agent. It changes with every start of the agent."""
    seq: int
    """Number of the frame, from 1 at the agent's start. (boot_id, agent_id, seq) is unique."""
    layout_id: str
    wall_ns: int
    """Wall time at which the frame was assembled, in nanoseconds since the Unix epoch."""
    monotonic_ns: int
    """Time of the sample in nanoseconds on the host's monotonic clock."""
    tier_ns: TimeArray
    """Monotonic sample time of each tier (collector) in nanoseconds: int64 [tiers]. 0 if the tier has never been
    sampled."""
    gauges: GaugeArray
    """Values of the gauges, in the order of the layout: float64 [gauges]. An absent value is NaN."""
    counters: CounterArray
    """Values of the counters, in the order of the layout: uint64 [counters]."""
    counters_valid: ValidArray
    """Whether each counter has a value: bool [counters]. False if the value is absent."""
    record_seq: int = 0
    """Sequence number of the first record. A reader that has received record n expects n + 1."""
    records: tuple[Record, ...] = ()
    table: RecordTable | None = None
    """The records as a table, if the reader requested it. `records` is then empty."""
    left_out: int = 0
    """Number of records between `record_seq` and the next frame's that are not in the frame, because later ones replace
    them: open steps and collectives of earlier samples."""
    earlier: tuple[Frame, ...] = ()
    """Earlier samples of the same agent with the same layout, in order, without records. Only a reader that can read
    them gets them (``reads_samples``)."""

    def joined(self, before: Frame, keep: bool) -> Frame:
        """Return this frame with the samples and records of an earlier frame of the same agent with the same layout.

        keep: whether the values of `before` become an earlier sample. If there are more than MOST_SAMPLES, or of
        MOST_SAMPLE_BYTES, every second one is left out, and later ones are kept at the same distance. Open steps and
        collectives of `before` are left out, because this frame has the newer ones. If there are more than MAX_RECORDS,
        the oldest are dropped, which leaves a gap in ``record_seq``.
        """
        earlier = before.earlier
        if keep and (len(earlier) < 2 or before.seq - earlier[-1].seq >= earlier[1].seq - earlier[0].seq):
            earlier += (msgspec.structs.replace(before, record_seq=0, records=(), left_out=0, earlier=()),)
            size = before.tier_ns.nbytes + before.gauges.nbytes + before.counters.nbytes
            if len(earlier) > MOST_SAMPLES or len(earlier) * size > MOST_SAMPLE_BYTES:
                earlier = earlier[1::2]
        records = (*(one for one in before.records if not isinstance(one, OpenRecord)), *self.records)
        kept = records[-MAX_RECORDS:]
        first, left_out = before.record_seq, before.left_out + len(before.records) + len(self.records) - len(records)
        if len(kept) < len(records):
            first, left_out = self.record_seq + len(self.records) - len(kept), 0
        return msgspec.structs.replace(self, record_seq=first, records=kept, left_out=left_out, earlier=earlier)

    def with_records_of(self, earlier: Frame) -> Frame:
        """Return this frame with the records of an earlier frame of the same agent before its own.

        If there are more than MAX_RECORDS, the oldest are dropped, which leaves a gap in ``record_seq``.
        """
        records = earlier.records + self.records
        kept = records[-MAX_RECORDS:]
        first = self.record_seq + len(self.records) - len(kept)
        return msgspec.structs.replace(self, record_seq=first, records=kept)


def check_fits(layout: AnyLayout, frame: Frame) -> None:
    """Raise FrameError unless the frame names this layout and its arrays have the lengths that the layout requires."""
    if frame.layout_id != layout.layout_id:
        raise FrameError(f"frame {frame.seq} of {frame.node}: layout {frame.layout_id}, expected {layout.layout_id}")
    sizes = len(frame.tier_ns), len(frame.gauges), len(frame.counters)
    if sizes != layout.sizes:
        for field, have, want in zip(("tier_ns", "gauges", "counters"), sizes, layout.sizes, strict=True):
            if have != want:
                raise FrameError(f"frame {frame.seq} of {frame.node}: {have} {field}, expected {want} by its layout")


# --- selection -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """The series that a subscriber requests, as positions in the arrays of one layout's frames.

    A selection may also add up counters, such as those of all links of a GPU, and replace them by their sum.
    """

    layout: Layout
    gauge_index: npt.NDArray[np.intp]
    counter_index: npt.NDArray[np.intp]
    counter_starts: npt.NDArray[np.intp] | None = None
    """If counters are added up: for each sum, the position in `counter_index` where its counters begin. None if no
    counters are added up."""
    tier_index: npt.NDArray[np.intp] | None = None
    """Positions of the tiers (collectors) of the selected series; None for all tiers."""

    def apply(self, frame: Frame) -> Frame:
        """Return the frame with the selected series and all records. A sum is absent if one of its counters is
        absent."""
        counters, valid = frame.counters[self.counter_index], frame.counters_valid[self.counter_index]
        if self.counter_starts is not None and len(counters):
            counters = np.add.reduceat(counters, self.counter_starts)
            valid = np.logical_and.reduceat(valid, self.counter_starts)
        return Frame(
            frame.node,
            frame.boot_id,
            frame.agent_id,
            frame.seq,
            self.layout.layout_id,
            frame.wall_ns,
            frame.monotonic_ns,
            frame.tier_ns if self.tier_index is None else frame.tier_ns[self.tier_index],
            frame.gauges[self.gauge_index],
            counters,
            valid,
            frame.record_seq,
            frame.records,
            frame.table,
            frame.left_out,
            tuple(self.apply(one) if one.layout_id != self.layout.layout_id else one for one in frame.earlier),
        )


def select(layout: Layout, metrics: Sequence[str]) -> Selection:
    """Select series by metric name. A name with ``*`` at the end is a prefix. An empty list selects all series."""

    def wanted(name: str) -> bool:
        return not metrics or any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in metrics
        )

    gauges = [index for index, column in enumerate(layout.gauges) if wanted(column.metric)]
    counters = [index for index, column in enumerate(layout.counters) if wanted(column.metric)]
    narrowed = make_layout(
        layout.node, layout.tiers, (layout.gauges[i] for i in gauges), (layout.counters[i] for i in counters)
    )
    return Selection(narrowed, np.array(gauges, np.intp), np.array(counters, np.intp))
