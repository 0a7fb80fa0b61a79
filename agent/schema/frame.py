"""Layout, Frame, and records; their wire form is in ``agent.schema.wire``.

A ``Frame`` is everything one agent knows at one moment: two arrays of numbers and a bounded list of records. What the
numbers mean stands in a ``Layout``, which travels only when it changes; the frame carries its id. Counters are integers
(a float64 is no longer exact to the byte after 5.6 h at 450 GB/s) and each column says its width, so that a wrap can be
told from a reset. Absent is NaN for a gauge and a cleared validity bit for a counter; it is never zero.

Every tier (a collector at one interval) has its own sample time: a ten-second counter in a one-second frame must
not give the rates 0, 0, ..., 10x.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.errors import FrameError

MAX_RECORDS = 4096
"""Most records in one frame; what does not fit is dropped oldest first, and the gap shows in ``record_seq``."""

GaugeArray = npt.NDArray[np.float64]
CounterArray = npt.NDArray[np.uint64]
ValidArray = npt.NDArray[np.bool_]
TimeArray = npt.NDArray[np.int64]


# --- layout ----------------------------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=False, gc=False):
    """One series of a node: a metric of the catalogue and the labels that single it out.

    ``labels`` are sorted pairs without ``node``; ``tier`` is the index into ``Layout.tiers``; ``width`` is a
    counter's width in bits (32 or 64) and has no meaning for a gauge.
    """

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    tier: int = 0
    width: int = 64


class Tier(msgspec.Struct, frozen=True, gc=False):
    """A collector at one interval: its columns are sampled together and share one sample time."""

    name: str
    interval_seconds: float


class Layout(msgspec.Struct, frozen=True):
    """What the columns of a frame mean. ``layout_id`` is the digest of the rest: equal content, equal id."""

    layout_id: str
    node: str
    tiers: tuple[Tier, ...]
    gauges: tuple[Column, ...]
    counters: tuple[Column, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many tiers, gauges and counters a frame has."""
        return len(self.tiers), len(self.gauges), len(self.counters)

    def whole(self) -> Layout:
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """A layout put away: what frames are checked against, and the rest as compressed bytes.

    Of a node of eight GPUs it takes 4 kB where the layout takes 150; a reader of 10,000 nodes needs each layout once.
    """

    layout_id: str
    node: str
    sizes: tuple[int, int, int]
    packed: bytes

    def whole(self) -> Layout:
        """The layout itself."""
        return msgspec.msgpack.decode(zlib.decompress(self.packed), type=Layout)


AnyLayout = Layout | PackedLayout


def pack(layout: Layout) -> PackedLayout:
    """Put a layout away."""
    packed = zlib.compress(msgspec.msgpack.encode(layout), 3)
    return PackedLayout(layout.layout_id, layout.node, layout.sizes, packed)


def make_layout(node: str, tiers: Iterable[Tier], gauges: Iterable[Column], counters: Iterable[Column]) -> Layout:
    """Build a layout and derive its id (16 hexadecimal digits of BLAKE2b over its content)."""
    body = (node, tuple(tiers), tuple(gauges), tuple(counters))
    digest = hashlib.blake2b(msgspec.msgpack.encode(body), digest_size=8).hexdigest()
    return Layout(digest, *body)


# --- records ---------------------------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank of one attempt of a gang: whose step, entry or exit a record tells of."""

    gang: str
    attempt: int
    rank: int


class StepRecord(msgspec.Struct, frozen=True, tag="step", gc=False):
    """A finished training step of one rank.

    ``start_ns`` is the host's monotonic clock; ``wait_ns`` is the time spent waiting in collectives, None where the
    reporter could not measure it (unknown is not zero); ``tokens`` and ``squares`` (the sum of the squared lengths of
    its sequences) None where not reported; ``collectives`` the number of collectives entered during the step.
    """

    member: Member
    step: int
    start_ns: int
    duration_ns: int
    wait_ns: int | None = None
    tokens: int | None = None
    collectives: int = 0
    squares: int | None = None


class OpenRecord(msgspec.Struct, frozen=True, tag="open", gc=False):
    """What a rank is inside of at the frame's time: a step begun and not ended, or a collective entered and not left.

    One a rank and kind and frame, so that a rank that never arrives is seen while it hangs. ``number`` is the step's
    or the collective's number, ``since_ns`` its beginning on the host's monotonic clock.
    """

    member: Member
    what: Literal["step", "collective"]
    number: int
    since_ns: int


class EventRecord(msgspec.Struct, frozen=True, tag="event", gc=False):
    """Something that happened once and is no column: an XID, a link change, a refused reporter.

    ``kind`` is a word of the catalogue's event list, ``entity`` names the device or rank it happened to.
    """

    kind: str
    entity: str
    time_ns: int
    detail: dict[str, str] = {}


Record = StepRecord | OpenRecord | EventRecord


# --- frame -----------------------------------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Everything an agent knows at one moment.

    seq: rises by one a frame from 1 at the agent's start; (boot_id, agent_id, seq) is unique.
    boot_id: the host's /proc/sys/kernel/random/boot_id: nodes with one boot_id share one machine and one clock.
    agent_id: changes with every start of the agent.
    wall_ns, monotonic_ns: when the frame was put together.
    tier_ns: int64 [tiers], monotonic sample time of each tier, 0 where it has never succeeded.
    gauges: float64 [gauge columns], NaN where absent.
    counters: uint64 [counter columns]; counters_valid: bool [counter columns], False where absent.
    record_seq: sequence number of the first record; a reader that saw up to n expects n + 1.
    """

    node: str
    boot_id: str
    agent_id: str
    seq: int
    layout_id: str
    wall_ns: int
    monotonic_ns: int
    tier_ns: TimeArray
    gauges: GaugeArray
    counters: CounterArray
    counters_valid: ValidArray
    record_seq: int = 0
    records: tuple[Record, ...] = ()


def check_fits(layout: AnyLayout, frame: Frame) -> None:
    """Raise FrameError unless the frame's arrays have the layout's lengths and the frame names this layout."""
    if frame.layout_id != layout.layout_id:
        raise FrameError(f"frame {frame.seq} of {frame.node}: layout {frame.layout_id}, not {layout.layout_id}")
    sizes = len(frame.tier_ns), len(frame.gauges), len(frame.counters)
    if sizes != layout.sizes:
        for field, have, want in zip(("tier_ns", "gauges", "counters"), sizes, layout.sizes, strict=True):
            if have != want:
                raise FrameError(f"frame {frame.seq} of {frame.node}: {have} {field}, its layout has {want}")


# --- selection -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """The columns that a subscriber asked for, prepared for one layout.

    counter_starts: where counters are summed, the place in `counter_index` at which the parts of each sum begin; None
    where nothing is summed. tier_index: the tiers that the selected columns are of; None for all.
    """

    layout: Layout
    gauge_index: npt.NDArray[np.intp]
    counter_index: npt.NDArray[np.intp]
    counter_starts: npt.NDArray[np.intp] | None = None
    tier_index: npt.NDArray[np.intp] | None = None

    def apply(self, frame: Frame) -> Frame:
        """The frame with only the selected columns; records stay whole. A sum of which a part is absent is absent."""
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
        )


def select(layout: Layout, metrics: Sequence[str]) -> Selection:
    """Prepare a selection by metric name; a name ending in ``*`` selects by prefix. No names select everything."""

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
