"""Layout, Frame, records, and their wire form.

A ``Frame`` is everything one agent knows at one moment: two arrays of numbers and a bounded list of records. What the
numbers mean stands in a ``Layout``, which travels only when it changes; the frame carries its id. Counters are integers
(a float64 is no longer exact to the byte after 5.6 h at 450 GB/s) and each column says its width, so that a wrap can be
told from a reset. Absent is NaN for a gauge and a cleared validity bit for a counter; it is never zero.

Every tier (a collector at one interval) has its own sample time: a ten-second counter in a one-second frame must
not give the rates 0, 0, ..., 10x.

Wire form: a message is a msgpack map ``{"v": version, "k": "layout" | "frame", ...}``, arrays as little-endian
bytes; on a stream each message follows its length as four bytes, big-endian. A reader takes its own version and
the neighbouring ones, whose unknown fields it ignores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.errors import FrameError, VersionError

WIRE_VERSION = 1
"""Version of the wire form that this build writes."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A longer message is refused unread: 100,000 columns of 9 bytes with their records stay far below it."""

MAX_RECORDS = 4096
"""Most records in one frame; what does not fit is dropped oldest first, and the gap shows in ``record_seq``."""

GaugeArray = npt.NDArray[np.float64]
CounterArray = npt.NDArray[np.uint64]
ValidArray = npt.NDArray[np.bool_]
TimeArray = npt.NDArray[np.int64]


# --- layout ----------------------------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One series of a node: a metric of the catalogue and the labels that single it out.

    ``labels`` are sorted pairs without ``node``; ``tier`` is the index into ``Layout.tiers``; ``width`` is a
    counter's width in bits (32 or 64) and has no meaning for a gauge.
    """

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    tier: int = 0
    width: int = 64


class Tier(msgspec.Struct, frozen=True):
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


def make_layout(node: str, tiers: Iterable[Tier], gauges: Iterable[Column], counters: Iterable[Column]) -> Layout:
    """Build a layout and derive its id (16 hexadecimal digits of BLAKE2b over its content)."""
    body = (node, tuple(tiers), tuple(gauges), tuple(counters))
    digest = hashlib.blake2b(msgspec.msgpack.encode(body), digest_size=8).hexdigest()
    return Layout(digest, *body)


# --- records ---------------------------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One rank of one attempt of a gang: whose step, entry or exit a record tells of."""

    gang: str
    attempt: int
    rank: int


class StepRecord(msgspec.Struct, frozen=True, tag="step"):
    """A finished training step of one rank.

    ``start_ns`` is the host's monotonic clock; ``wait_ns`` is the time spent waiting in collectives, None where the
    reporter could not measure it (unknown is not zero); ``tokens`` None where not reported; ``collectives`` the
    number of collectives entered during the step.
    """

    member: Member
    step: int
    start_ns: int
    duration_ns: int
    wait_ns: int | None = None
    tokens: int | None = None
    collectives: int = 0


class OpenRecord(msgspec.Struct, frozen=True, tag="open"):
    """What a rank is inside of at the frame's time: a step begun and not ended, or a collective entered and not left.

    One a rank and kind and frame, so that a rank that never arrives is seen while it hangs. ``number`` is the step's
    or the collective's number, ``since_ns`` its beginning on the host's monotonic clock.
    """

    member: Member
    what: Literal["step", "collective"]
    number: int
    since_ns: int


class EventRecord(msgspec.Struct, frozen=True, tag="event"):
    """Something that happened once and is no column: an XID, a link change, a refused reporter.

    ``kind`` is a word of the catalogue's event list, ``entity`` names the device or rank it happened to.
    """

    kind: str
    entity: str
    time_ns: int
    detail: dict[str, str] = {}


Record = StepRecord | OpenRecord | EventRecord


# --- frame -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
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


# --- wire ------------------------------------------------------------------------------------------------------------


class _WireFrame(msgspec.Struct):
    v: int
    k: str
    node: str
    boot_id: str
    agent_id: str
    seq: int
    layout_id: str
    wall_ns: int
    monotonic_ns: int
    tier_ns: bytes
    gauges: bytes
    counters: bytes
    counters_valid: bytes
    record_seq: int
    records: tuple[Record, ...]


class _NeighboursFrame(_WireFrame):
    """A frame of another version: its records one by one, since some may be of kinds that are not known here."""

    records: tuple[msgspec.Raw, ...]  # type: ignore[assignment]


class _WireLayout(msgspec.Struct):
    v: int
    k: str
    layout: Layout


class _Envelope(msgspec.Struct):
    v: int
    k: str


_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(_WireFrame)
_neighbours_frame_decoder = msgspec.msgpack.Decoder(_NeighboursFrame)
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_layout_decoder = msgspec.msgpack.Decoder(_WireLayout)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def encode_layout(layout: Layout) -> bytes:
    """The wire form of a layout (one message, without its length prefix)."""
    return _encoder.encode(_WireLayout(WIRE_VERSION, "layout", layout))


def encode_frame(frame: Frame) -> bytes:
    """The wire form of a frame (one message, without its length prefix)."""
    return _encoder.encode(
        _WireFrame(
            WIRE_VERSION,
            "frame",
            frame.node,
            frame.boot_id,
            frame.agent_id,
            frame.seq,
            frame.layout_id,
            frame.wall_ns,
            frame.monotonic_ns,
            frame.tier_ns.astype("<i8").tobytes(),
            frame.gauges.astype("<f8").tobytes(),
            frame.counters.astype("<u8").tobytes(),
            np.packbits(frame.counters_valid, bitorder="little").tobytes(),
            frame.record_seq,
            frame.records,
        )
    )


def _array(raw: bytes, dtype: str, field: str) -> npt.NDArray[np.generic]:
    if len(raw) % 8:
        raise FrameError(f"{field}: {len(raw)} bytes are no whole number of 8-byte values")
    return np.frombuffer(raw, dtype=dtype)


def decode(message: bytes) -> Layout | Frame:
    """The layout or frame in one message.

    Raises VersionError for a wire version that is neither ours nor a neighbour's, FrameError (naming the field) for
    anything else that is not a message of ours.
    """
    try:
        envelope = _envelope_decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a message of ours ({len(message)} bytes): {error}") from None
    if abs(envelope.v - WIRE_VERSION) > 1:
        raise VersionError(
            f"wire version {envelope.v}; this build speaks {WIRE_VERSION} and its neighbours: "
            "upgrade the older side one minor version at a time"
        )
    try:
        if envelope.k == "layout":
            return _checked_layout(_layout_decoder.decode(message).layout, envelope.v)
        if envelope.k == "frame" and envelope.v == WIRE_VERSION:
            return _checked_frame(_frame_decoder.decode(message))
        if envelope.k == "frame":
            return _checked_frame(_of_neighbour(_neighbours_frame_decoder.decode(message)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"{envelope.k}: {error}") from None
    raise FrameError(f"message kind {envelope.k!r}: expected 'layout' or 'frame'")


def _of_neighbour(wire: _NeighboursFrame) -> _WireFrame:
    """The frame with those of its records that this version knows. Their numbers then no longer say which is which,
    so ``record_seq`` counts from the first that is kept: a reader sees the missing ones as a gap, which they are.
    """
    known: list[Record] = []
    for raw in wire.records:
        try:
            known.append(_record_decoder.decode(raw))
        except msgspec.ValidationError:
            continue
    fields = msgspec.structs.asdict(wire)
    fields["record_seq"] += len(wire.records) - len(known)
    return _WireFrame(**{**fields, "records": tuple(known)})


def _checked_layout(layout: Layout, version: int) -> Layout:
    for kind, columns in (("gauges", layout.gauges), ("counters", layout.counters)):
        for index, column in enumerate(columns):
            if not 0 <= column.tier < len(layout.tiers):
                raise FrameError(f"layout {kind}[{index}] {column.metric}: tier {column.tier} of {len(layout.tiers)}")
            if column.width not in (32, 64):
                raise FrameError(f"layout {kind}[{index}] {column.metric}: width {column.width}, expected 32 or 64")
    # Another version's digest is over fields that are not known here.
    digest = make_layout(layout.node, layout.tiers, layout.gauges, layout.counters).layout_id
    if version == WIRE_VERSION and digest != layout.layout_id:
        raise FrameError(f"layout {layout.layout_id}: its id is not the digest of its content")
    return layout


def _checked_frame(wire: _WireFrame) -> Frame:
    counters = _array(wire.counters, "<u8", "counters")
    if len(wire.counters_valid) != (len(counters) + 7) // 8:
        raise FrameError(f"counters_valid: {len(wire.counters_valid)} bytes for {len(counters)} counters")
    if len(wire.records) > MAX_RECORDS:
        raise FrameError(f"records: {len(wire.records)}, at most {MAX_RECORDS}")
    valid = np.unpackbits(np.frombuffer(wire.counters_valid, np.uint8), count=len(counters), bitorder="little")
    return Frame(
        node=wire.node,
        boot_id=wire.boot_id,
        agent_id=wire.agent_id,
        seq=wire.seq,
        layout_id=wire.layout_id,
        wall_ns=wire.wall_ns,
        monotonic_ns=wire.monotonic_ns,
        tier_ns=_array(wire.tier_ns, "<i8", "tier_ns").astype(np.int64),
        gauges=_array(wire.gauges, "<f8", "gauges").astype(np.float64),
        counters=counters.astype(np.uint64),
        counters_valid=valid.astype(np.bool_),
        record_seq=wire.record_seq,
        records=wire.records,
    )


def check_fits(layout: Layout, frame: Frame) -> None:
    """Raise FrameError unless the frame's arrays have the layout's lengths and the frame names this layout."""
    if frame.layout_id != layout.layout_id:
        raise FrameError(f"frame {frame.seq} of {frame.node}: layout {frame.layout_id}, not {layout.layout_id}")
    for field, have, want in (
        ("tier_ns", len(frame.tier_ns), len(layout.tiers)),
        ("gauges", len(frame.gauges), len(layout.gauges)),
        ("counters", len(frame.counters), len(layout.counters)),
    ):
        if have != want:
            raise FrameError(f"frame {frame.seq} of {frame.node}: {have} {field}, its layout has {want}")


def with_length(message: bytes) -> bytes:
    """The message as it stands on a stream: its length in four bytes, big-endian, then itself."""
    return len(message).to_bytes(4, "big") + message


class MessageSplitter:
    """Cuts a byte stream into messages. Feed it what arrives; it gives what is complete.

    Raises FrameError for a length over `most_bytes`: the stream cannot be resynchronised after that.
    """

    __slots__ = ("_buffer", "_most_bytes")

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._most_bytes = most_bytes

    @property
    def pending(self) -> bool:
        """Whether a part of a message has come."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """All messages that `data` completes, in order."""
        self._buffer += data
        messages: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > self._most_bytes:
                raise FrameError(f"message of {length} bytes, at most {self._most_bytes}")
            if len(self._buffer) - start - 4 < length:
                break
            messages.append(bytes(self._buffer[start + 4 : start + 4 + length]))
            start += 4 + length
        del self._buffer[:start]
        return messages


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
