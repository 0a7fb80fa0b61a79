"""Fuzz targets: data from an agent to its controller: HTTP responses, messages, layouts and frames.

Inputs are valid data with a change in a value, a length or the order of events. Few inputs are changed byte by byte.
"""

from __future__ import annotations

import functools
import random
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from agent.schema.errors import FrameError, VersionError
from agent.schema.frame import (
    MOST_SAMPLES,
    RANK_BLOCKED,
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    StepRecord,
    Tier,
    make_layout,
    pack,
    select,
)
from agent.schema.wire import Decoder, MessageSplitter, decode, encode_frame, encode_layout, with_length
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED
from scheduler_feedback.feed.frames_response import RefusedError, Response

SECOND = 1_000_000_000
AT_NS = 1_000 * SECOND
WALL_NS = 1_700_000_000 * SECOND
NODES = ("n0", "n1", "evil")
INTEGERS = (0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
VALUES: tuple[Any, ...] = (
    *INTEGERS, 1e308, float("nan"), float("inf"), "", "x" * 300, "j-1", None, [], {}, b"", b"\0" * 8, True,
)  # fmt: skip

FEW_BYTES = 0.1
"""Share of the inputs that are changed byte by byte."""


# --- messages --------------------------------------------------------------------------------------------------------


def _member(rng: random.Random) -> Member:
    gang = rng.choice(
        ("j-1", "j-1", "j-2", "j-9", "slurm-7.0", "slurm-8.0", "uid-0/x", f"uid-{rng.randrange(99)}/y", "")
    )
    return Member(gang, rng.choice((1, 1, 1, 0, 2, 2**61)), rng.choice((0, 1, 1, 2, 300)))


def _labels(member: Member, **more: str) -> tuple[tuple[str, str], ...]:
    labels = {"attempt": str(member.attempt), "gang": member.gang, "rank": str(member.rank), **more}
    return tuple(sorted(labels.items()))


def layout(rng: random.Random, node: str) -> Layout:
    """Return a layout as an agent makes it, with some ranks that may belong to other nodes."""
    members = [_member(rng) for _ in range(rng.randrange(4))]
    gpu = f"GPU-{rng.choice(NODES)}"
    gauges = [
        Column("gangwatch_gpu_info", (("gpu", gpu), ("pci_address", "0000:17:00.0"))),
        Column("gangwatch_topology_rail_info", (("nic", "mlx5_0"), ("pci_address", "0000:17:00.0"), ("rail", "1"),
                                                ("switch", "s"))),
        Column("gangwatch_rdma_device_info", (("device", "m0"), ("netdev", "ib0"), ("pci_address", "0000:18:00.0"))),
        Column("gangwatch_gpu_recovery_action", (("action", "gpu_reset"), ("gpu", gpu))),
        Column("gangwatch_gpu_up", (("gpu", gpu),)),
        Column("gangwatch_network_carrier", (("device", "ib0"),)),
        Column("gangwatch_gpu_temperature_celsius", (("gpu", gpu),)),
        *(Column(name, (("pci_address", "0000:17:00.0"),)) for name in (
            "gangwatch_pcie_link_generation", "gangwatch_pcie_link_lanes", "gangwatch_pcie_link_generation_maximum",
            "gangwatch_pcie_link_lanes_maximum")),
    ]  # fmt: skip
    gauges += [Column("gangwatch_gpu_owner_info", _labels(one, gpu=gpu)) for one in members]
    gauges += [Column("gangwatch_rank_process_state", _labels(one)) for one in members]
    gauges += [Column("gangwatch_rank_place_info", _labels(one, data="0", stage="1", tensor="0")) for one in members]
    counters = [Column(name, _labels(one)) for one in members for name in (*CONSUMED, "gangwatch_rank_steps_total")]
    counters += [
        Column("gangwatch_rdma_port_link_downed_total", (("device", "mlx5_0"), ("port", "1")), 0, rng.choice((32, 64))),
        Column("gangwatch_gpu_throttle_seconds_total", (("gpu", gpu), ("reason", "sw_thermal"))),
    ]
    rng.shuffle(gauges)
    tiers = [Tier("host", 1.0)] * rng.choice((1, 1, 2))
    return make_layout(node, tiers, gauges, counters)


def frame(rng: random.Random, of: Layout, seq: int) -> Frame:
    """Return a frame of the layout, taken at second `seq`."""
    at_ns = AT_NS + seq * SECOND
    records: list[Any] = []
    for _ in range(rng.choice((0, 1, 2, 6))):
        member = _member(rng)
        duration_ns = rng.choice((SECOND // 2, SECOND, 1))
        match rng.randrange(5):
            case 4:
                records.append(_blocked(rng, member, WALL_NS + seq * SECOND))
            case 0:
                kind = rng.choice(("xid", "gpu_lost", "nic_link", "recovery-action", "device-lost", "part-replaced"))
                entity = rng.choice(("0000:17:00.0", "GPU-n0", "mlx5_0", "n0"))
                detail = {"code": "79", "state": "down", "gpu": "GPU-n1", "netdev": "ib0"}
                records.append(EventRecord(kind, entity, WALL_NS + seq * SECOND, detail))
            case 1:
                records.append(OpenRecord(member, rng.choice(("step", "collective")), seq, at_ns))
            case _:
                wait_ns = rng.choice((None, 0, duration_ns))
                tokens = rng.choice((None, 4096))
                records.append(StepRecord(member, seq, at_ns - duration_ns, duration_ns, wait_ns, tokens, 1, tokens))
    tiers, gauges, counters = of.sizes
    return Frame(
        of.node, f"boot-{rng.choice(NODES)}", rng.choice(("a", "a", "b")), seq, of.layout_id, WALL_NS + seq * SECOND,
        at_ns, np.full(tiers, at_ns, "<i8"), np.array([rng.choice((0.0, 1.0, float("nan"))) for _ in range(gauges)]),
        np.full(counters, seq * 1000, np.uint64), np.array([rng.random() < 0.9 for _ in range(counters)], np.bool_),
        rng.choice((0, seq * 10)), tuple(records),
    )  # fmt: skip


def _blocked(rng: random.Random, member: Member, wall_ns: int) -> EventRecord:
    """Return a report of where a rank is blocked."""
    words = {name: rng.choice(("", "a.py:1 in f", "x" * 600, "\x1b[2J")) for name in ("where", "operation", "group")}
    numbers = {name: rng.choice(("", "7", "-1", "nan", "9" * 40)) for name in ("sequence", "bytes", "quiet_seconds")}
    detail = {"answered": rng.choice(("0", "1")), "stacks": "thread MainThread\n  a.py:1 in f", **words, **numbers}
    return EventRecord(RANK_BLOCKED, f"rank {member.rank}", wall_ns, detail, member)


@functools.cache
def _corpus() -> tuple[bytes, ...]:
    """Return valid messages: one layout of each node, and frames of these layouts."""
    rng = random.Random(18)
    found = []
    for node in NODES:
        for _ in range(8):
            made = layout(rng, node)
            found.append(encode_layout(made))
            found += [encode_frame(frame(rng, made, seq), as_table=seq % 2 == 0) for seq in range(1, 6)]
            found.append(encode_frame(batch(rng, made, 6), as_table=True))
    return tuple(found)


def batch(rng: random.Random, of: Layout, first: int) -> Frame:
    """Return a frame with the records of several frames, and with the values of some of them as earlier samples.

    They are taken in the seconds from `first` on.
    """
    joined = frame(rng, of, first)
    for seq in range(first + 1, first + rng.choice((2, 8, 8, 40))):
        later = msgspec.structs.replace(
            frame(rng, of, seq), boot_id=joined.boot_id, agent_id=joined.agent_id,
            record_seq=joined.record_seq + len(joined.records) + joined.left_out,
        )  # fmt: skip
        joined = later.joined(joined, keep=rng.random() < 0.5)
    return joined


def change(rng: random.Random, tree: Any, depth: int = 0) -> None:
    """Replace a random value in the decoded message `tree`."""
    if isinstance(tree, dict) and tree:
        key = rng.choice(list(tree))
        if rng.random() < 0.4 or depth > 6 or not isinstance(tree[key], dict | list):
            tree[key] = rng.choice(VALUES)
        else:
            change(rng, tree[key], depth + 1)
    elif isinstance(tree, list) and tree:
        at = rng.randrange(len(tree))
        if rng.random() < 0.3 or not isinstance(tree[at], dict | list):
            tree[at] = rng.choice(VALUES)
        else:
            change(rng, tree[at], depth + 1)


def _change_row(rng: random.Random, table: dict[str, Any]) -> None:
    """Replace a number in a table of records."""
    if isinstance(rows := table.get("rows"), bytes) and len(rows) >= 8:
        at = rng.randrange(len(rows) // 8) * 8
        number = rng.choice([one for one in INTEGERS if -(2**63) <= one < 2**63])
        table["rows"] = rows[:at] + number.to_bytes(8, "little", signed=True) + rows[at + 8 :]


def make_message(rng: random.Random) -> bytes:
    """Make one message: mostly valid MessagePack, with one field that no agent would send."""
    return changed(rng, rng.choice(_corpus()))


def changed(rng: random.Random, message: bytes) -> bytes:
    chance = rng.random()
    if chance < FEW_BYTES:
        return octets(rng, message, rng.randint(1, 4))
    tree = msgspec.msgpack.decode(message)
    if chance < 0.2:  # from a neighbouring release, with fields and records unknown to this one
        tree["v"] = rng.choice((0, 2, 2, 3, -1))
        tree["more"] = [1]
        if isinstance(tree.get("records"), list):
            tree["records"].append({"type": "tomorrow", "x": 1})
    elif chance < 0.6:
        for _ in range(rng.randint(1, 2)):
            change(rng, tree)
    if isinstance(tree, dict) and isinstance(tree.get("records"), dict) and rng.random() < 0.7:
        _change_row(rng, tree["records"])
    if "layout" in tree and isinstance(tree["layout"], dict) and rng.random() < 0.7:
        try:  # set its id to the digest of its content, else every change would be refused here
            made = msgspec.convert(tree["layout"], Layout)
            tree["layout"]["layout_id"] = make_layout(made.node, made.tiers, made.gauges, made.counters).layout_id
        except msgspec.ValidationError:
            pass
    return msgspec.msgpack.encode(tree)


# --- messages --------------------------------------------------------------------------------------------------------

_decoders: dict[str, Decoder] = {}


def parse_message(data: bytes) -> str:
    """Decode a message as the controller does for a stream, with the state of the previous message."""
    decoder = _decoders.setdefault("stream", Decoder())
    if len(data) % 5 == 0:
        _decoders.clear()
    try:
        message = decoder.decode(data)
        if isinstance(message, Layout):
            packed = pack(message)
            assert packed.whole() == message
            select(message, ("gangwatch_rank_*",))
        else:
            decoder.decode(data)  # the same again: through the cached outline
    except VersionError:
        return REFUSED
    except FrameError as error:
        return REFUSED_FIRST if str(error).startswith("not a gangwatch message") else REFUSED
    return ACCEPTED


def make_stream(rng: random.Random) -> bytes:
    """Make messages with their lengths, some of which are wrong.

    The first byte of the input is the number of pieces in which they arrive.
    """
    parts = [with_length(rng.choice(_corpus())) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        at = rng.randrange(len(parts))
        length = rng.choice((0, 1, len(parts[at]), 2**24 + 1, 2**31, 2**32 - 1))
        parts[at] = length.to_bytes(4, "big") + parts[at][4:]
    return bytes([rng.randrange(256)]) + b"".join(parts)


def make_batch(rng: random.Random) -> bytes:
    """Make a message with earlier samples. One sample has another number, time or length than agents send."""
    tree = msgspec.msgpack.decode(rng.choice(_batches()))
    samples = tree["earlier"]
    chance = rng.random()
    if chance < 0.1:
        return changed(rng, msgspec.msgpack.encode(tree))
    if samples and chance < 0.5:
        sample = rng.choice(samples)
        field = rng.randrange(len(sample))
        value = sample[field]
        if isinstance(value, bytes):
            sample[field] = rng.choice((value[:-8], value + bytes(8), value[:-1], b"", rng.randbytes(len(value)), 1))
        else:
            sample[field] = rng.choice((value - 1, value + 1, value + 3, -value, *INTEGERS))
    elif samples and chance < 0.7:
        rng.choice((samples.reverse, samples.clear, samples.pop, lambda: samples.extend(samples * 9)))()
    elif chance < 0.8:
        tree["left_out"] = rng.choice(VALUES)
    elif chance < 0.9:
        tree["earlier"] = rng.choice((*VALUES, [[]], [1], [samples]))
    return msgspec.msgpack.encode(tree)


@functools.cache
def _batches() -> tuple[bytes, ...]:
    """Return valid messages with earlier samples."""
    rng = random.Random(22)
    found = (batch(rng, layout(rng, "n0"), 6) for _ in range(40))
    return tuple(encode_frame(one, as_table=True) for one in found if one.earlier or one.left_out)


def parse_batch(data: bytes) -> str:
    """Decode a message with earlier samples between two plain frames, as the controller does for a stream."""
    decoder = Decoder()
    before, after = _corpus()[1], _corpus()[2]
    decoder.decode(before)
    outcome = ACCEPTED
    try:
        received = decoder.decode(data)
        if isinstance(received, Frame):
            _check_samples(received)
    except VersionError:
        outcome = REFUSED
    except FrameError as error:
        outcome = REFUSED_FIRST if str(error).startswith("not a gangwatch message") else REFUSED
    kept, expected = decoder.decode(after), decode(after)
    assert isinstance(kept, Frame) and isinstance(expected, Frame)
    assert encode_frame(kept) == encode_frame(expected), "the next frame is unaffected"
    return outcome


def _check_samples(received: Frame) -> None:
    """Check what every reader of an accepted message relies on."""
    samples = (*received.earlier, received)
    assert len(received.earlier) <= MOST_SAMPLES
    assert all(one.seq < after.seq and one.monotonic_ns <= after.monotonic_ns for one, after in pairwise(samples))
    shapes = {(one.tier_ns.shape, one.gauges.shape, one.counters.shape, one.counters_valid.shape) for one in samples}
    assert len(shapes) == 1 and not any(one.records or one.table for one in received.earlier)
    if received.seq < 2**62 and received.record_seq < 2**62:
        encode_frame(msgspec.structs.replace(received, seq=received.seq + 1).joined(received, keep=True))


def parse_stream(data: bytes) -> str:
    splitter = MessageSplitter()
    count, size, body = 0, 1 + data[0] * 8, data[1:]
    first = True
    try:
        for start in range(0, len(body), size):
            count += len(splitter.feed(body[start : start + size]))
            first = first and not count
    except FrameError:
        return REFUSED_FIRST if first else REFUSED
    return ACCEPTED


# --- HTTP ------------------------------------------------------------------------------------------------------------


def _chunk(data: bytes, rng: random.Random) -> bytes:
    size = f"{len(data):x}" if rng.random() < 0.95 else rng.choice(("zz", "", "fffffffff", "-1", "0x10", " 5"))
    end = b"\r\n" if rng.random() < 0.97 else rng.choice((b"", b"\n\r", b"xx"))
    return size.encode() + b"\r\n" + data + end


def make_response(rng: random.Random) -> bytes:
    """Make an HTTP response of an agent's server. The first byte of the input is the number of pieces in which it
    arrives."""
    status = rng.choice((b"200 OK",) * 12 + (b"401 Unauthorized", b"301 Moved", b"999", b"200", b"20", b"2000 OK"))
    head = [rng.choice((b"HTTP/1.1",) * 9 + (b"HTTP/1.0", b"HTTP/2", b"ICY")) + b" " + status]
    chunked = rng.random() < 0.8
    if chunked:
        head.append(b"Transfer-Encoding: chunked")
    for _ in range(rng.choice((0, 0, 1, 2))):
        head.append(rng.choice((
            b"Content-Type: application/vnd.gangwatch.frame", b"X: y", b"X: z", b"Content-Length: 5", b"no colon",
            b"Gangwatch-Every: 100", b"Gangwatch-Samples: 16", b"Gangwatch-Samples: 99999999999999999999",
            b"Content-Encoding: gzip", b"Transfer-Encoding: gzip", b"A: " + b"b" * rng.choice((10, 17_000)), b"C : d",
        )))  # fmt: skip
    messages = [with_length(rng.choice(_corpus())) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.1:
        messages.append((5 * 1024 * 1024).to_bytes(4, "big"))
    body = b"".join(_chunk(one, rng) for one in messages) if chunked else b"".join(messages)
    if chunked and rng.random() < 0.3:
        body += b"0\r\n\r\n" + rng.choice((b"", b"more"))
    data = b"\r\n".join(head) + b"\r\n\r\n" + body
    data = octets(rng, data, rng.randint(1, 4)) if rng.random() < FEW_BYTES else data
    return bytes([rng.randrange(256)]) + data


def parse_response(data: bytes) -> str:
    response = Response()
    size, body = 1 + data[0] * 16, data[1:]
    head = True
    try:
        # Deliver it in pieces of any size, or the head alone and the rest at once.
        head_end = body.find(b"\r\n\r\n") + 4
        starts = list(range(0, len(body), size)) if data[0] < 128 else [0, head_end]
        for start, end in pairwise([*starts, len(body)]):
            messages = response.feed(memoryview(body)[start:end])
            head = head and not messages
            if response.ended:
                break
    except RefusedError:
        return REFUSED
    except FrameError as error:
        return REFUSED_FIRST if "no HTTP/1.1" in str(error) else REFUSED
    return ACCEPTED


TARGETS: tuple[Target, ...] = (
    Target(
        "frames-message",
        make_message,
        parse_message,
        (
            "agent.schema.wire:Decoder",
            "agent.schema.wire:_array",
            "agent.schema.wire:_checked_table",
            "agent.schema.wire:_checked_layout",
            "agent.schema.wire:_of_neighbour",
            "agent.schema.stream_outline",
        ),
    ),
    Target(
        "frames-batch",
        make_batch,
        parse_batch,
        ("agent.schema.wire:Decoder._batch", "agent.schema.wire:_valid_of", "agent.schema.frame:Frame.joined"),
    ),
    Target("frames-stream", make_stream, parse_stream, ("agent.schema.wire:MessageSplitter.feed",)),
    Target("frames-response", make_response, parse_response, ("scheduler_feedback.feed.frames_response",)),
)
