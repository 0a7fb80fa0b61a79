"""Limits of the controller's server, configurable and fixed."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_SECONDS = 10.0
"""Timeout for each of these: the TLS handshake, the wait for the first byte of a new connection, and the rest of a
request's headers. The agent has the same timeout (exporter/serving/agent_http.py)."""

BODY_SECONDS = 30.0
"""Timeout of a request's body. A body of one megabyte, the maximum, needs 35 kB/s."""

IDLE_SECONDS = 60.0
"""Timeout of an idle connection. At the connection limit, idle connections are closed earlier."""

SEND_SECONDS = 10.0
LEAST_SENT_BYTES = 40_000
"""A client is disconnected if it reads fewer bytes than this in SEND_SECONDS (4 kB/s) while at least as many are
queued."""

HEAD_BYTES = 16 * 1024
"""Maximum size of request line and headers together; nginx and Apache allow 8 KiB per line."""

BODY_BYTES = 1024 * 1024
"""Maximum size of a request body; equal to the API's limit of a submission (api_requests.MAX_BODY_BYTES)."""

LINGER_SECONDS, LINGER_BYTES = 2.0, 1024 * 1024
"""If a request is answered before it was read completely, the rest is read and dropped for at most this number of
seconds, and at most this number of bytes. Otherwise the connection would be reset, and the client would lose the
response."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server.

    A peer is a user on loopback, elsewhere an address. All clients with the controller's token are one peer.
    """

    connections: int = 1024
    """Maximum number of open connections. The number is lower if the process may open fewer files
    (descriptors.most_connections)."""

    connections_each: int = 256
    """Maximum number of open connections per peer. A proxy for the browsers of twenty people has about 120."""

    connects_per_second: float = 200.0
    """Maximum rate of new connections per peer, with bursts of twice as many. A scraper needs one a minute. Root and
    the server's own user on this machine have no such limit: they could end the server anyway."""

    answering_each: int = 128
    """Maximum number of concurrent requests per peer, including delayed requests and event streams."""

    requests_per_second: float = 100.0
    """Maximum rate of requests per peer, with bursts of twice as many. Further requests are delayed."""

    requests_per_second_all: float = 400.0
    """Maximum rate of requests of all peers without a token together. Each request takes about half a millisecond of a
    processor."""

    most_wait_seconds: float = 5.0
    """Maximum delay of a request; beyond it the response is 429."""
