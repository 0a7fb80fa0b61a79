"""Fuzz targets: responses of a kubelet, as pod-resources messages and as gRPC over HTTP/2."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from typing import cast

import h2.exceptions
import hpack
import hyperframe.frame as frames

from agent.schema.errors import SourceError
from agent.sources.kubelet import kubelet, pod_resources
from benchmarks.fuzz import mutate
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target

# --- pod-resources ---------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(chance: random.Random, number: int, content: bytes | int) -> bytes:
    """Return one protobuf field. Some have a wrong number, wire type or length."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    wire = 2 if chance.random() < 0.99 else chance.choice((0, 1, 3, 5, 7))
    number = number if chance.random() < 0.99 else chance.choice((0, 9, 17, 1 << 29))
    length = len(content) + (0 if chance.random() < 0.99 else chance.choice((-1, 1, 1000, 1 << 40)))
    return _varint(number << 3 | wire) + (_varint(max(length, 0)) if wire == 2 else b"") + content


def _word(chance: random.Random) -> bytes:
    if chance.random() < 0.01:
        return b"\xff\xfe"
    return chance.choice(
        ("nvidia.com/gpu", "GPU-1", "default", "train-0", "", "0", chance.choice(mutate.TEXTS))
    ).encode()


def _message(chance: random.Random, makers: Sequence[tuple[int, Callable[[], bytes | int]]], most: int = 3) -> bytes:
    made = b""
    for number, make in makers:
        for _ in range(chance.randrange(1, most)):
            made += _field(chance, number, make())
    if chance.random() < 0.1:
        made += _field(chance, chance.choice((8, 9, 15)), chance.choice((7, b"", b"x" * 9)))
    if chance.random() < 0.05:
        made += chance.choice(
            (_varint(8 << 3 | 1) + b"12345678", _varint(8 << 3 | 5) + b"1234", b"\x80" * 12, b"\xff" * 9 + b"\x7f")
        )
    return made


def _make_pods(chance: random.Random) -> bytes:
    def word() -> bytes:
        return _word(chance)

    def devices() -> bytes:
        return _message(chance, ((1, word), (2, word)), 4)

    def claimed() -> bytes:
        return _message(chance, ((1, lambda: _message(chance, ((1, word),))), (2, word), (3, word), (4, word)))

    def claim() -> bytes:
        return _message(chance, ((2, word), (3, word), (4, claimed)))

    def container() -> bytes:
        return _message(chance, ((1, word), (2, devices), (5, claim), (3, lambda: 7)))

    def pod() -> bytes:
        return _message(chance, ((1, word), (2, word), (3, container)))

    if chance.random() < 0.2:
        made = b"a" + _message(chance, ((1, devices),), 4)
    else:
        made = b"l" + _message(chance, ((1, pod),), 3)
    if chance.random() < 0.002:
        made += _field(chance, 1, b"") * (pod_resources.MAX_DEVICES + 2)
    return mutate.octets(chance, made) if chance.random() < 0.25 else made


def _parse_pods(data: bytes) -> str:
    parse: Callable[[bytes], object] = pod_resources.parse_allocatable if data[:1] == b"a" else pod_resources.parse_list
    try:
        parse(data[1:])
    except SourceError as error:
        first = str(error).endswith(("byte 0", "byte 1"))  # the key of the first field
        return REFUSED_FIRST if first else REFUSED
    return ACCEPTED


# --- the call --------------------------------------------------------------------------------------------------------


class _Wire:
    """Replacement of a socket whose peer has already sent all of its data."""

    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece, self._at = data, piece, 0

    def sendall(self, _: bytes) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def recv(self, most: int) -> bytes:
        part = self._data[self._at : self._at + min(most, self._piece)]
        self._at += len(part)
        return part


def _headers(chance: random.Random, pairs: list[tuple[str, str]], last: bool) -> bytes:
    frame = frames.HeadersFrame(1 if chance.random() < 0.98 else 3)
    frame.data = hpack.Encoder().encode(pairs)
    frame.flags.add("END_HEADERS")
    if last:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def _make_call(chance: random.Random) -> bytes:
    """Make the data that the server sends in one gRPC call. The first byte of the input is the size of each read from
    the socket."""
    body = _make_pods(chance)[1:] if chance.random() < 0.4 else b""
    length = len(body) if chance.random() < 0.9 else chance.choice((0, 1, len(body) + 1, 2**32 - 1))
    flag = b"\0" if chance.random() < 0.95 else b"\1"
    message = flag + length.to_bytes(4, "big") + body
    if chance.random() < 0.05:
        message = message[: chance.randrange(6)]
    settings = frames.SettingsFrame(0)
    settings.settings = {4: chance.choice((65535, 0, 2**31 - 1)), 5: 16384}
    parts = [settings.serialize()]
    if chance.random() < 0.05:
        parts.append(frames.PingFrame(0, b"12345678").serialize())
    status = chance.choice(("200", "200", "200", "200", "200", "200", "404", "503", ""))
    first = [(":status", status), ("content-type", "application/grpc")]
    code = chance.choice(("0",) * 12 + ("12", "8", "14", "99", "", "x"))
    trailers = [
        ("grpc-status", code),
        *([("grpc-message", chance.choice(("no", "%41%", "%zz", "é")))] if chance.random() < 0.3 else []),
    ]
    if chance.random() < 0.1:  # trailers only
        parts.append(_headers(chance, first + trailers, True))
    else:
        parts.append(_headers(chance, first, False))
        while message:
            size = chance.choice((1, 9, 100, 16384))
            frame = frames.DataFrame(1, message[:size])
            parts.append(frame.serialize())
            message = message[size:]
            if len(parts) > 40:
                size = 16384
        if chance.random() < 0.9:
            parts.append(_headers(chance, trailers if chance.random() < 0.95 else [], True))
    what = chance.random()
    if what < 0.04:
        parts.insert(
            chance.randrange(len(parts)), frames.RstStreamFrame(1, error_code=chance.choice((0, 2, 8))).serialize()
        )
    elif what < 0.08:
        parts.insert(chance.randrange(len(parts)), frames.GoAwayFrame(0, last_stream_id=1, error_code=2).serialize())
    elif what < 0.12:
        chance.shuffle(parts)
    elif what < 0.16:
        del parts[chance.randrange(len(parts))]
    made = b"".join(parts)
    if chance.random() < 0.2:
        made = mutate.octets(chance, made)
    return bytes([chance.choice((1, 7, 100, 255))]) + made


def _parse_call(data: bytes) -> str:
    piece = (data[0] if data else 1) * 64
    wire = cast(socket.socket, _Wire(data[1:], piece))
    try:
        call = kubelet._Call(wire, "/v1.PodResourcesLister/List", 1.0)
        answer = call.run(b"", time.monotonic() + 5.0)
        pod_resources.parse_list(answer)
    except (SourceError, h2.exceptions.H2Error, ValueError) as error:
        # `Kubelet._call` refuses these errors. hpack and h2 raise ValueError for octets that no peer should send.
        if isinstance(error, ValueError) and error.__traceback__ is not None:
            _reraise_own(error)
        return REFUSED_FIRST if isinstance(error, h2.exceptions.ProtocolError) else REFUSED
    return ACCEPTED


def _reraise_own(error: ValueError) -> None:
    """Raise the error again if it comes from gangwatch's code. Errors of h2 and hpack are ignored."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None and "/agent/" in trace.tb_frame.f_code.co_filename:
        raise error


TARGETS = (
    Target(
        "kubelet-pod-resources",
        _make_pods,
        _parse_pods,
        ("agent.sources.kubelet.pod_resources", "agent.sources.kubelet.protobuf_reader"),
    ),
    Target("kubelet-http2", _make_call, _parse_call, ("agent.sources.kubelet.kubelet:_Call",)),
)
