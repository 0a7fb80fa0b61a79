"""Bounds of the controller's server: what the configuration sets, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_SECONDS = 10.0
"""From the first byte of a request to the end of its headers, and from connecting to the first byte; and for a TLS
handshake. An agent's server gives as long (exporter/serving/agent_http.py)."""

BODY_SECONDS = 30.0
"""For a request's body, a megabyte at most: 35 kB/s."""

IDLE_SECONDS = 60.0
"""A kept connection without a request is closed after this; it makes room for another before where places are short."""

SEND_SECONDS = 10.0
LEAST_SENT_BYTES = 40_000
"""A client that takes fewer bytes of an answer in SEND_SECONDS, while that many wait, is gone: 4 kB/s."""

HEAD_BYTES = 16 * 1024
"""Of a request line and its headers together; nginx and Apache allow 8 KiB a line."""

BODY_BYTES = 1024 * 1024
"""Of a request; the API has the same bound for a submission (api_requests.MAX_BODY_BYTES)."""

LINGER_SECONDS, LINGER_BYTES = 2.0, 1024 * 1024
"""What is still taken of a request that was answered before it ended: closing over unread bytes would reset the answer
away before it is read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server. On loopback a peer is a user, elsewhere an address; who holds the token is a peer too."""

    connections: int = 1024
    """At one time. Fewer where the process may not open so many files (descriptors.most_connections)."""

    connections_each: int = 256
    """Of one peer: a proxy with twenty people's browsers behind it has about 120."""

    connects_per_second: float = 200.0
    """New connections of one peer, in the long run; twice as many at once. A scraper needs one a minute. Root and the
    server's own user on this machine have no such bound: they could end the server anyway."""

    answering_each: int = 128
    """Requests of one peer that are being answered, or wait for their turn; event streams are among them."""

    requests_per_second: float = 100.0
    """Requests of one peer, in the long run; twice as many at once. More wait for their turn."""

    requests_per_second_all: float = 400.0
    """Of all peers together that hold no token: each takes about half a millisecond of the processor."""

    most_wait_seconds: float = 5.0
    """A request that would wait longer for its turn is refused with 429."""
