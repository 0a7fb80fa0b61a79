"""Parser of an agent's stream of frames: any division into reads, and invalid responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import FrameError
from agent.schema.wire import with_length
from scheduler_feedback.feed.frames_response import MOST_HEAD_BYTES, MOST_MESSAGE_BYTES, RefusedError, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.gangwatch.frame\r\nTransfer-Encoding: chunked\r\n\r\n"
UNCHUNKED = b"HTTP/1.0 200 OK\r\nServer: a proxy\r\n\r\n"


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


def parsed(parts: list[bytes]) -> tuple[list[bytes], bool]:
    response = Response()
    return [message for part in parts for message in response.feed(part)], response.ended


@given(st.data())
def test_messages_are_complete_for_any_chunks_and_reads(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.binary(max_size=300), max_size=6))
    stream = b"".join(map(with_length, messages))
    chunked = data.draw(st.booleans())
    if chunked:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        wire = HEAD + b"".join(chunk(part) for part in parts if part) + b"0\r\n\r\n"
    else:
        wire = UNCHUNKED + stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    reads = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert parsed([read for read in reads if read]) == (messages, chunked)


def test_a_byte_at_a_time() -> None:
    wire = HEAD + chunk(with_length(b"one")) + chunk(with_length(b"two")) + b"0\r\n\r\n"
    assert parsed([bytes([byte]) for byte in wire]) == ([b"one", b"two"], True)


def test_data_after_the_end_is_ignored() -> None:
    assert parsed([HEAD + chunk(with_length(b"one")) + b"0\r\nTrailer: x\r\n\r\nHTTP/1.1 200 OK\r\n"]) == (
        [b"one"],
        True,
    )


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\nno", "responded 401 Unauthorized"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\n\r\n", "responded 302 Found"),
        (b"HTTP/1.1 503\r\n\r\n", "responded 503"),
    ],
)
def test_another_status_is_reported(head: bytes, reason: str) -> None:
    with pytest.raises(RefusedError, match=f"^{reason}$"):
        parsed([head])


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP/1.1"),
        (b"HTTP/2 200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nname : value\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\nname: a\x00b\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MOST_HEAD_BYTES, "longer than"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", "not a stream"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "encoded"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "encoded"),
        (HEAD + b"x\r\n", "does not begin with its size"),
        (HEAD + b"+5\r\n", "does not begin with its size"),
        (HEAD + b"0x5\r\n", "does not begin with its size"),
        (HEAD + b"5;extension\r\n", "does not begin with its size"),
        (HEAD + b"123456789\r\n", "does not begin with its size"),
        (HEAD + b"5\nabcde", "does not begin with its size"),
        (HEAD + b"2\r\nabcd", "does not end where"),
        (HEAD + b"2\r\nab\rx", "does not end where"),
        (HEAD + chunk((MOST_MESSAGE_BYTES + 1).to_bytes(4, "big")), "message of"),
        (UNCHUNKED + b"\xff\xff\xff\xff", "message of"),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
def test_an_invalid_response_is_refused(wire: bytes, complaint: str, bytewise: bool) -> None:
    with pytest.raises(FrameError, match=complaint):
        parsed([bytes([byte]) for byte in wire] if bytewise else [wire])


@pytest.mark.parametrize(
    ("header", "most"),
    [(b"", 1), (b"Gangwatch-Every: 100\r\n", 100), (b"Gangwatch-Every: 0\r\n", 1), (b"gangwatch-every: x\r\n", 1)],
)
def test_the_head_says_how_many_frames_may_be_left_out(header: bytes, most: int) -> None:
    response = Response()
    response.feed(HEAD.replace(b"\r\n", b"\r\n" + header, 1))
    assert response.most_every == most
