"""Data from an agent to its controller: HTTP responses, messages, layouts, frames, certificates and their lists.

Inputs begin as valid ones and are changed in places that the parser checks: a field's value, a length, an order of
events. Only a part of them is changed byte by byte.
"""

from __future__ import annotations

import base64
import functools
import json
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError, FrameError, VersionError
from agent.schema.frame import (
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    PackedLayout,
    StepRecord,
    Tier,
    check_fits,
    make_layout,
    pack,
    select,
)
from agent.schema.identity import of_node, read_certificate, read_revocations, speaks_for
from agent.schema.wire import Decoder, MessageSplitter, encode_frame, encode_layout, with_length
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from gangwatch.certificates.authority import requested
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.gang_attempts import CONSUMED
from scheduler_feedback.core.telemetry.placements import Placed, Placements, Refusal
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.feed.frames_response import RefusedError, Response

SECOND = 1_000_000_000
AT_NS = 1_000 * SECOND
WALL_NS = 1_700_000_000 * SECOND
NODES = ("n0", "n1", "evil")
INTEGERS = (0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
VALUES: tuple[Any, ...] = (
    *INTEGERS, 1e308, float("nan"), float("inf"), "", "x" * 300, "j-1", None, [], {}, b"", b"\0" * 8, True,
)  # fmt: skip

_FEW_BYTES = 0.1
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
        match rng.randrange(4):
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


@functools.cache
def _corpus() -> tuple[bytes, ...]:
    """Return valid messages: a layout of each node, and frames of it."""
    rng = random.Random(18)
    found = []
    for node in NODES:
        for _ in range(8):
            made = layout(rng, node)
            found.append(encode_layout(made))
            found += [encode_frame(frame(rng, made, seq)) for seq in range(1, 6)]
    return tuple(found)


def _change(rng: random.Random, tree: Any, depth: int = 0) -> None:
    """Replace a value somewhere in the tree."""
    if isinstance(tree, dict) and tree:
        key = rng.choice(list(tree))
        if rng.random() < 0.4 or depth > 6 or not isinstance(tree[key], dict | list):
            tree[key] = rng.choice(VALUES)
        else:
            _change(rng, tree[key], depth + 1)
    elif isinstance(tree, list) and tree:
        at = rng.randrange(len(tree))
        if rng.random() < 0.3 or not isinstance(tree[at], dict | list):
            tree[at] = rng.choice(VALUES)
        else:
            _change(rng, tree[at], depth + 1)


def make_message(rng: random.Random) -> bytes:
    """Make one message: mostly well-formed MessagePack of the right kind, with a field that no agent would send."""
    return _changed(rng, rng.choice(_corpus()))


def _changed(rng: random.Random, message: bytes) -> bytes:
    chance = rng.random()
    if chance < _FEW_BYTES:
        return octets(rng, message, rng.randint(1, 4))
    tree = msgspec.msgpack.decode(message)
    if chance < 0.2:  # from a neighbouring release, with fields and records unknown to this one
        tree["v"] = rng.choice((0, 2, 2, 3, -1))
        tree["more"] = [1]
        if "records" in tree:
            tree["records"].append({"type": "tomorrow", "x": 1})
    elif chance < 0.6:
        for _ in range(rng.randint(1, 2)):
            _change(rng, tree)
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
    """Decode like the reader of a stream, which reuses the parts that a frame shares with the one before."""
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
        return REFUSED_FIRST if str(error).startswith("not a message") else REFUSED
    return ACCEPTED


def make_stream(rng: random.Random) -> bytes:
    """Make messages with their lengths, some of them wrong; the first byte is the number of pieces."""
    parts = [with_length(rng.choice(_corpus())) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        at = rng.randrange(len(parts))
        length = rng.choice((0, 1, len(parts[at]), 2**24 + 1, 2**31, 2**32 - 1))
        parts[at] = length.to_bytes(4, "big") + parts[at][4:]
    return bytes([rng.randrange(256)]) + b"".join(parts)


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
    """Make a response as an agent's server sends it; the first byte is the number of pieces."""
    status = rng.choice((b"200 OK",) * 12 + (b"401 Unauthorized", b"301 Moved", b"999", b"200", b"20", b"2000 OK"))
    head = [rng.choice((b"HTTP/1.1",) * 9 + (b"HTTP/1.0", b"HTTP/2", b"ICY")) + b" " + status]
    chunked = rng.random() < 0.8
    if chunked:
        head.append(b"Transfer-Encoding: chunked")
    for _ in range(rng.choice((0, 0, 1, 2))):
        head.append(rng.choice((
            b"Content-Type: application/vnd.gangwatch.frame", b"X: y", b"X: z", b"Content-Length: 5", b"no colon",
            b"Content-Encoding: gzip", b"Transfer-Encoding: gzip", b"A: " + b"b" * rng.choice((10, 17_000)), b"C : d",
        )))  # fmt: skip
    messages = [with_length(rng.choice(_corpus())) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.1:
        messages.append((5 * 1024 * 1024).to_bytes(4, "big"))
    body = b"".join(_chunk(one, rng) for one in messages) if chunked else b"".join(messages)
    if chunked and rng.random() < 0.3:
        body += b"0\r\n\r\n" + rng.choice((b"", b"more"))
    data = b"\r\n".join(head) + b"\r\n\r\n" + body
    data = octets(rng, data, rng.randint(1, 4)) if rng.random() < _FEW_BYTES else data
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


# --- folding ---------------------------------------------------------------------------------------------------------


class _Controller:
    """A fleet with the placement of two jobs, and the messages it was sent."""

    def __init__(self) -> None:
        self.slurm_known = False
        placements = Placements(self._attest)
        self.placements = placements
        placements.follow([self._job("j-1", "n0", "n1"), self._job("j-2", "n1")])
        self.fleet = Fleet(placements)
        self.look = Look(self.fleet)
        self.layouts: dict[str, Layout | PackedLayout] = {}
        self.decoder = Decoder()
        self.now_ns = AT_NS
        self.attempt = 1

    @staticmethod
    def _job(job_id: str, *nodes: str) -> Job:
        ranks = [RankRecord(rank, Slot(node, 0)) for rank, node in enumerate(nodes)]
        return Job(job_id, JobSpec(job_id, ("train",), len(nodes)), JobState.RUNNING, 0, 1, ranks)

    def _attest(self, node: str, gang: str, _came_ns: int) -> Placed | Refusal | None:
        if not gang.startswith("slurm-"):
            return None
        if gang.startswith("slurm-7") and self.slurm_known:
            return Placed(0, None) if node != "evil" else Refusal.NOT_PLACED
        return Refusal.NOT_KNOWN_YET

    def pass_time(self, op: int) -> None:
        """Apply the events between two messages that the input selects."""
        self.now_ns += (SECOND // 10, SECOND, 3 * SECOND, 31 * SECOND)[op & 3]
        if op & 4:
            self.slurm_known = True
        if op & 24 == 24:  # the second job is moved and restarts
            self.attempt += 1
            second = self._job("j-2", "n1" if op & 32 else "n0")
            second.attempt = self.attempt
            self.placements.follow([self._job("j-1", "n0", "n1"), second])
        if op & 96 == 96:
            self._tick_detectors()
        if op & 159 == 159:
            self.now_ns += 601 * SECOND
            self.fleet.forget_silent(self.now_ns)
        elif op & 158 == 158:
            self.fleet.forget("j-1")

    def _tick_detectors(self) -> None:
        self.look.next(WALL_NS + self.now_ns, self.now_ns)
        list(self.fleet.measures())
        self.fleet.newly_refused()
        self.fleet.first_steps()
        assert not self.fleet.failed(), "a frame that could not be folded is a bug"
        assert not self.look.failed, "a gang that could not be put together is a bug"

    def take(self, message: Layout | Frame, op: int) -> bool:
        """Fold a frame as the watch does; return False if its node has sent no layout."""
        if isinstance(message, Layout):
            self.layouts[message.node] = pack(message)
            return True
        of = self.layouts.get(message.node)
        if of is None:
            return False
        check_fits(of, message)
        self.fleet.observe(of, message, self.now_ns, superseded=op & 64 == 64)
        return True


def make_session(rng: random.Random) -> bytes:
    """Make messages of several agents: a layout of each, then frames; a byte before each message selects the events
    before it."""
    layouts = {node: layout(rng, node) for node in rng.sample(NODES, rng.randint(1, 3))}
    seq = 1
    found = [encode_layout(made) for made in layouts.values()]
    twice: dict[str, Frame] = {}
    for _ in range(rng.randint(4, 16)):
        node = rng.choice(list(layouts))
        if rng.random() < 0.1:
            layouts[node] = layout(rng, node)
            found.append(encode_layout(layouts[node]))
        seq += rng.choice((1, 1, 1, 5))
        made = frame(rng, layouts[node], seq)
        if node in twice and rng.random() < 0.3:  # nothing happened since
            made = msgspec.structs.replace(made, records=twice[node].records, record_seq=twice[node].record_seq)
        twice[node] = made
        found.append(encode_frame(made))
    for at, message in enumerate(found):
        if rng.random() < 0.15:
            found[at] = _changed(rng, message)
    return b"".join(bytes([rng.randrange(256)]) + with_length(one) for one in found)


def parse_session(data: bytes) -> str:
    """Decode and fold the messages like a controller that has just started."""
    controller = _Controller()
    decoded, folded = 0, 0
    at = 0
    while at < len(data):
        op, length = data[at], int.from_bytes(data[at + 1 : at + 5], "big")
        message = data[at + 5 : at + 5 + length]
        at += 5 + length
        controller.pass_time(op)
        try:
            received = controller.decoder.decode(message)
            decoded += 1
            if received.node in NODES and controller.take(received, op):  # else the feed refuses it: not its stream
                folded += isinstance(received, Frame)
        except (VersionError, FrameError):
            continue
    controller.pass_time(96)
    return ACCEPTED if folded else REFUSED if decoded else REFUSED_FIRST


# --- certificates ----------------------------------------------------------------------------------------------------


def make_revocations(rng: random.Random) -> bytes:
    """Make a list of revoked certificates."""
    entries: list[Any] = []
    for _ in range(rng.randrange(4)):
        entry: dict[str, Any] = {
            "name": rng.choice((of_node("n0"), "controller.gangwatch.internal", "", "*")),
            "before": rng.choice(("2026-11-23T13:36:36Z", "2026-11-23T13:36:36", "yesterday", 5, None)),
            "barred": rng.choice((True, False)),
            "reason": "x",
        }
        if rng.random() < 0.2:
            _change(rng, entry)
        if rng.random() < 0.2:
            entry.pop(rng.choice(list(entry)))
        entries.append(entry)
    tree: Any = {"revoked": entries}
    if rng.random() < 0.1:
        _change(rng, tree)
    data = json.dumps(tree, default=repr).encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < _FEW_BYTES else data


def parse_revocations(data: bytes) -> str:
    try:
        found = read_revocations(data, "fuzz")
    except ConfigError as error:
        return REFUSED_FIRST if "JSON" in str(error) or "truncated" in str(error) else REFUSED
    again = read_revocations(found.encode(), "fuzz")
    assert again == found
    return ACCEPTED


def make_peer(rng: random.Random) -> bytes:
    """Make a peer certificate as Python's ssl module describes it."""
    names = [
        [
            "DNS",
            rng.choice((of_node("n0"), of_node("n1"), "*.node.gangwatch.internal", "n0", "n0.example.org", "*", "")),
        ]
        for _ in range(rng.randrange(3))
    ]
    if rng.random() < 0.3:
        names.append(rng.choice((["URI", "x"], ["IP Address", "10.0.0.1"], ["DirName", "x"])))
    times = ("Nov 23 13:31:37 2026 GMT", "Nov  3 13:31:37 2026 GMT", "Feb 31 13:31:37 2026 GMT", "soon", "", None, 7)
    tree = {
        "subjectAltName": names,
        "serialNumber": "AB",
        "notBefore": rng.choice(times),
        "notAfter": rng.choice(times),
    }
    for key in list(tree):
        if rng.random() < 0.1:
            del tree[key]
    return json.dumps(tree).encode()


def parse_peer(data: bytes) -> str:
    certificate = read_certificate(json.loads(data))
    is_n0 = {of_node("n0"), "n0"} & certificate.names
    assert speaks_for(certificate, "n0", "10-0-0-5.agents") == bool(is_n0)
    return ACCEPTED if is_n0 else REFUSED


def make_certificate(rng: random.Random) -> bytes:
    """Make a certificate in a PEM file."""
    if rng.random() < 0.05:
        return rng.choice((b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"))
    der = octets(rng, _certificate(), rng.randint(1, 4)) if rng.random() < 0.7 else _certificate()
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def parse_certificate(data: bytes) -> str:
    try:
        begin, end = validity(data)
    except ConfigError as error:
        return REFUSED_FIRST if "in PEM" in str(error) else REFUSED
    assert isinstance(begin, float)
    assert isinstance(end, float)
    return ACCEPTED


def make_request(rng: random.Random) -> bytes:
    """Make a certificate request, as an agent sends it to the controller through the API server."""
    request = rng.choice(_requests())
    return octets(rng, request, rng.randint(1, 4)) if rng.random() < 0.3 else request


def parse_request(data: bytes) -> str:
    try:
        _, names = requested(data)
    except ConfigError as error:
        return REFUSED_FIRST if "not a certificate signing request" in str(error) else REFUSED
    assert all(isinstance(name, str) for name in names)
    return ACCEPTED


@functools.cache
def _certificate() -> bytes:
    key = ec.derive_private_key(18, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n0")])
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 18, begin, begin + timedelta(days=30))
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@functools.cache
def _requests() -> tuple[bytes, ...]:
    """Return requests as agents make them, and some for names that they may not have."""
    found = []
    keys: list[Any] = [ec.derive_private_key(18, ec.SECP256R1()), ec.derive_private_key(18, ec.SECP192R1())]
    for key in keys:
        for extensions in (
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0"))])],
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0")), x509.DNSName("agents.svc")])],
            [x509.SubjectAlternativeName([x509.RFC822Name("a@example.org")])],
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0"))]), x509.BasicConstraints(ca=True, path_length=1)],
            [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])],
            [],
        ):
            builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
            for one in extensions:
                builder = builder.add_extension(one, critical=False)
            found.append(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return tuple(found)


TARGETS: tuple[Target, ...] = (
    Target(
        "frames-message",
        make_message,
        parse_message,
        (
            "agent.schema.wire:Decoder",
            "agent.schema.wire:_array",
            "agent.schema.wire:_checked_layout",
            "agent.schema.wire:_of_neighbour",
            "agent.schema.stream_outline",
        ),
    ),
    Target("frames-stream", make_stream, parse_stream, ("agent.schema.wire:MessageSplitter.feed",)),
    Target("frames-response", make_response, parse_response, ("scheduler_feedback.feed.frames_response",)),
    Target(
        "frames-fold",
        make_session,
        parse_session,
        (
            "scheduler_feedback.core.telemetry.fleet:Fleet.observe",
            "scheduler_feedback.core.telemetry.membership:Membership",
            "scheduler_feedback.core.telemetry.fleet_records:Attempts",
            "scheduler_feedback.core.telemetry.occurrences:Occurrences",
            "scheduler_feedback.core.telemetry.device_locations",
        ),
    ),
    Target("frames-revocations", make_revocations, parse_revocations, ("agent.schema.identity:read_revocations",)),
    Target("frames-peer", make_peer, parse_peer, ("agent.schema.identity:read_certificate",)),
    Target("frames-certificate", make_certificate, parse_certificate, ("agent.schema.certificate_file",)),
    Target("frames-request", make_request, parse_request, ("gangwatch.certificates.authority:requested",)),
)
