"""HTTP/1.1 messages of an agent: requests without a body, and responses that are sent as a whole or as a stream.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from agent.schema.identity import Certificate

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
"""Pattern of a header line (RFC 9112 section 5): name, colon, and a value without control characters."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, independent of its connection.

    headers: by lower-case name; several of one name are joined by commas. old: whether the request uses HTTP/1.0, where
    the server ends a response by closing the connection. certificate: the peer's verified certificate, without names if
    the peer has sent none; None without TLS.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    peer: str = ""
    old: bool = False
    certificate: Certificate | None = None


class Stream(Protocol):
    """A response body that is produced part by part."""

    def next(self, timeout_seconds: float) -> bytes | None:
        """Return the next part of the body; empty after the timeout, None at the end."""

    def take_request(self, data: bytes) -> bool:
        """Take bytes that the reader has sent during the response. Return False if they are not valid."""

    def close(self) -> None:
        """Release the stream after its end, or after its reader disconnected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: status, type, and a body of bytes or a stream."""

    status: int
    content_type: str
    body: bytes | Stream
    headers: tuple[tuple[str, str], ...] = ()


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode("utf-8", "replace"), headers)


class BadRequestError(Exception):
    """Invalid request, with the status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_request(head: bytes, peer: str = "", certificate: Certificate | None = None) -> tuple[Request, bool]:
    """Parse a request from its line and headers, without the empty line. Return it, and whether to keep the connection
    open.

    Raises BadRequestError if the request is invalid or has a body.
    """
    lines = head.split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(lines[0])
    if found is None:
        raise BadRequestError(400, "the first line is not a request of HTTP/1.0 or 1.1 for a path")
    method, target, minor = found[1].decode(), found[2].decode(), found[3]
    headers: dict[str, str] = {}
    for line in lines[1:]:
        pair = _HEADER.fullmatch(line)
        if pair is None:
            raise BadRequestError(400, "a header line is malformed")
        name, value = pair[1].decode().lower(), pair[2].decode("latin-1")
        if name in headers:
            if name in ("host", "content-length", "authorization"):
                raise BadRequestError(400, f"duplicate header {name}")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if minor == b"1" and "host" not in headers:
        raise BadRequestError(400, "no host")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise BadRequestError(413, "requests with a body are not supported")
    path, _, query = target.partition("?")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    kept = "close" not in options and (minor == b"1" or "keep-alive" in options)
    request = Request(method, path, query.partition("#")[0], headers, peer, minor == b"0", certificate)
    return request, kept


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether Accept-Encoding allows gzip (RFC 9110 section 12.5.3), by name or '*', and not with q=0."""
    weights = weighted(headers.get("accept-encoding", ""))
    return weights.get("gzip", weights.get("*", 0.0)) > 0.0


@lru_cache(maxsize=16)  # a scraper sends the same header at every scrape
def weighted(header: str) -> Mapping[str, float]:
    """Return the weight of each choice in an Accept or Accept-Encoding header.

    Parameters other than the weight stay in the name of the choice.
    """
    weights: dict[str, float] = {}
    for choice in header.lower().split(","):
        parts = [part.strip() for part in choice.split(";")]
        weight = 1.0
        kept: list[str] = []
        for part in parts:
            if part.startswith("q="):
                try:
                    weight = float(part[2:])
                except ValueError:
                    weight = 0.0
            elif part:
                kept.append(part.replace(" ", ""))
        if kept:
            name = ";".join(kept)
            weights[name] = max(weight, weights.get(name, 0.0))
    return weights
