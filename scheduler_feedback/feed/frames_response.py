"""Parser of a response to ``GET /frames``: bytes in, messages out. It has no socket, so that tests can cut streams
anywhere.

Anything other than HTTP/1.1 as the agents send it is refused (RFC 9112: a status line, headers, a chunked body). The
one exception: a proxy may close the body instead of chunking it.
"""

from __future__ import annotations

import re

from agent.schema.errors import FrameError, GangwatchError
from agent.schema.wire import MessageSplitter
from scheduler_feedback.feed import power_orders, shift_orders

MOST_HEAD_BYTES = 16 * 1024
"""Limit of status line and headers together, the same as agents have for requests (exporter/serving/agent_http.py)."""

MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""Maximum size of one message. A layout has 75 bytes per column and a frame 8, so even a node with every column stays
far below the limit. The wire format allows more, but a controller cannot buffer that much for 10,000 agents."""

EVERY_HEADER = b"gangwatch-every"
SAMPLES_HEADER = b"gangwatch-samples"
ORDER_HEADERS = {b"gangwatch-power-limits": power_orders.WORD, b"gangwatch-time-shifts": shift_orders.WORD}
"""First word of the orders that an agent accepts during the response, by the header that says so."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([\t -~\x80-\xff]*))?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_EVERY = re.compile(rb"[1-9][0-9]{0,2}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_MOST_CHUNK_LINE = 10


class RefusedError(GangwatchError):
    """The agent responded, but not with a stream of frames."""


class Response:
    """A parser of one response.

    ended: whether the body is complete. most_every: the largest N for which the agent accepts ``every N`` during the
    response; 1 if it does not accept that, as agents of earlier releases. most_samples: the largest number of samples
    in one message for which the agent can be asked; 1 for agents that send only the newest sample. orders: first words
    of the orders that the agent accepts during the response.
    """

    __slots__ = (
        "_begin", "_between", "_chunked", "_head", "_left", "_line", "_size", "_splitter", "ended", "most_every",
        "most_samples", "orders",
    )  # fmt: skip

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._chunked = True
        self._left = 0  # bytes left of the current chunk; -2 and -1 before its CR and LF
        self._line = b""  # received part of a chunk's first line
        self._splitter = MessageSplitter(MOST_MESSAGE_BYTES)
        self._between = False  # whether a chunk with a whole message may follow
        self._begin, self._size = b"", 0  # first bytes and size of the last such chunk
        self.ended = False
        self.most_every = self.most_samples = 1
        self.orders = frozenset[bytes]()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Return all messages that `data` completes, in order. Keeps only copies of `data`.

        Raises RefusedError for another status than 200, FrameError for an invalid response.
        """
        if self._between and (message := self._whole_message(data)) is not None:
            return [message]  # the usual case: exactly one chunk with exactly one message
        data = bytes(data)
        if self._head is not None:
            data = self._take_head(data)
        messages = self._take_chunks(data) if self._chunked else self._splitter.feed(data)
        in_chunk = self._head is not None or not self._chunked or self._left or self._line
        self._between = not in_chunk and not self._splitter.pending
        return messages

    def _whole_message(self, data: bytes | memoryview) -> bytes | None:
        """Return the message if the data is one chunk with one message, otherwise None."""
        if data[-2:] != b"\r\n":
            return None
        begin = self._begin
        if len(data) == self._size and data[: len(begin)] == begin:  # most messages are as long as the last one
            return bytes(data[len(begin) : -2])
        line = _CHUNK.match(data)
        if line is None:
            return None
        start, length = line.end(), int(line[1], 16)
        if (
            len(data) != start + length + 2
            or int.from_bytes(data[start : start + 4], "big") != length - 4
            or length - 4 > MOST_MESSAGE_BYTES
        ):
            return None
        self._begin, self._size = bytes(data[: start + 4]), len(data)
        return bytes(data[start + 4 : -2])

    def _take_head(self, data: bytes) -> bytes:
        """Parse the status line and the headers once they are complete; return the data after them."""
        assert self._head is not None
        data = self._head + data
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found and len(data) <= MOST_HEAD_BYTES:
            self._head = data
            if not b"HTTP/1.".startswith(data[:7]):
                raise FrameError("its response is not HTTP/1.1")
            return b""
        if len(head) > MOST_HEAD_BYTES:
            raise FrameError(f"the head of its response is longer than {MOST_HEAD_BYTES} bytes")
        self._head = None
        lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(lines[0])
        if status is None:
            raise FrameError("its response is not HTTP/1.1")
        if status[1] != b"200":
            reason = (status[2] or b"").decode("latin-1")
            raise RefusedError(f"responded {status[1].decode()} {reason}".rstrip())
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            pair = _HEADER.fullmatch(line)
            if pair is None:
                raise FrameError("a header line of its response is malformed")
            name = pair[1].lower()
            headers[name] = headers[name] + b", " + pair[2] if name in headers else pair[2]
        encoding = headers.get(b"transfer-encoding", b"").lower()
        if encoding not in (b"", b"chunked") or b"content-encoding" in headers:
            raise FrameError("its response is encoded in a way that was not requested")
        if b"content-length" in headers:
            raise FrameError("its response has a length, so it is not a stream")
        self.most_every, self.most_samples = (
            int(most) if _EVERY.fullmatch(most := headers.get(name, b"")) else 1
            for name in (EVERY_HEADER, SAMPLES_HEADER)
        )
        self.orders = frozenset(word for header, word in ORDER_HEADERS.items() if headers.get(header) == b"1")
        self._chunked = bool(encoding)
        return rest

    def _take_chunks(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._left > 0:
                part = data[at : at + self._left]
                messages += self._splitter.feed(part)
                at += len(part)
                self._left = self._left - len(part) or -2
            elif self._left < 0:
                if data[at] != (0x0D if self._left == -2 else 0x0A):
                    raise FrameError("a chunk does not end where its size says")
                at += 1
                self._left += 1
            else:
                at = self._take_line(data, at)
        return messages

    def _take_line(self, data: bytes, at: int) -> int:
        """Parse a chunk's first line, or a part of it; return where it ends in `data`."""
        before = len(self._line)
        self._line += data[at : at + _MOST_CHUNK_LINE - before]
        line = _CHUNK.match(self._line)
        if line is None:
            if len(self._line) >= _MOST_CHUNK_LINE or b"\n" in self._line:
                raise FrameError("a chunk does not begin with its size")
            return at + len(self._line) - before
        self._line = b""
        self._left = int(line[1], 16)
        self.ended = self._left == 0
        return at + line.end() - before
