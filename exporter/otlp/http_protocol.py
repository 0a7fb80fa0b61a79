"""OTLP over HTTP: headers, compression, and the meaning of responses.

https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from exporter.push.delivery import LATER


class OtlpHttp:
    """Language of a receiver of OTLP over HTTP.

    name: name of the sink. what: what a request has. compression: 'gzip' or 'none'.
    """

    def __init__(self, name: str, what: str, compression: str) -> None:
        self.name, self._what, self._compression = name, what, compression

    def headers(self) -> Mapping[str, str]:
        encoding = {} if self._compression == "none" else {"Content-Encoding": self._compression}
        return {"Content-Type": "application/x-protobuf", **encoding, "User-Agent": "gangwatch"}

    def again(self, status: int) -> bool:
        return status in LATER

    def complaint(self, answer: bytes) -> str:
        return partial_success(answer, self._what)


def compressed(request: bytes, compression: str) -> bytes:
    """Return the request as gzip at the fastest level, or unchanged if `compression` is 'none'."""
    if compression == "none":
        return request
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(request) + packer.flush()


def partial_success(answer: bytes, what: str = "points") -> str:
    """Return a text about the items that the receiver refused, '' if it refused none.

    The response for metrics or traces contains partial_success 1 {rejected 1, error_message 2}. If the body is
    malformed, return '': the HTTP status reported success.
    """
    try:
        inner = _fields(answer).get(1)
        partial = _fields(inner) if isinstance(inner, bytes) else {}
    except ValueError:
        return ""
    rejected, message = partial.get(1, 0), partial.get(2, b"")
    if not isinstance(rejected, int) or not isinstance(message, bytes) or not (rejected or message):
        return ""
    return f"{rejected} {what} refused: {message.decode('utf-8', 'replace')}"


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by field number. If a number is repeated, its last field is returned. Raises
    ValueError if it is malformed."""
    found: dict[int, int | bytes] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("cut short")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        match tag & 7:
            case 0:
                found[tag >> 3] = varint()
            case 2:
                length = varint()
                if at + length > len(data):
                    raise ValueError("cut short")
                found[tag >> 3] = data[at : at + length]
                at += length
            case 1:
                at += 8
            case 5:
                at += 4
            case other:
                raise ValueError(f"wire type {other}")
    return found
