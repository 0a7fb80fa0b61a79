"""Limits of the controller's server, configurable and fixed."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_SECONDS = 10.0
"""Timeout from connecting to the first byte, from there to the end of the headers, and of a TLS handshake. The agent
has the same timeout (exporter/serving/agent_http.py)."""

BODY_SECONDS = 30.0
"""Timeout of a request's body. A body of one megabyte, the maximum, needs 35 kB/s."""

IDLE_SECONDS = 60.0
"""Timeout of an idle connection. At the connection limit, idle connections are closed earlier."""

SEND_SECONDS = 10.0
LEAST_SENT_BYTES = 40_000
"""A client that reads fewer bytes of a response in SEND_SECONDS, while as many are queued, is disconnected: 4 kB/s."""

HEAD_BYTES = 16 * 1024
"""Maximum size of request line and headers together; nginx and Apache allow 8 KiB per line."""

BODY_BYTES = 1024 * 1024
"""Maximum size of a request body; equal to the API's limit of a submission (api_requests.MAX_BODY_BYTES)."""

LINGER_SECONDS, LINGER_BYTES = 2.0, 1024 * 1024
"""Maximum time to read input after an early response, and maximum number of bytes. Closing with unread bytes would
reset the connection, and the client would lose the response."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server. A peer is a user on loopback, else an address; the holders of the token are one peer."""

    connections: int = 1024
    """Maximum number of open connections. Lower if the process may open fewer files (descriptors.most_connections)."""

    connections_each: int = 256
    """Open connections per peer: a proxy for the browsers of twenty people has about 120."""

    connects_per_second: float = 200.0
    """Rate of new connections per peer, with bursts of twice as many. A scraper needs one a minute. Root and the
    server's own user on this machine have no such limit: they could end the server anyway."""

    answering_each: int = 128
    """Concurrent requests per peer, including delayed ones and event streams."""

    requests_per_second: float = 100.0
    """Rate of requests per peer, with bursts of twice as many. Further requests are delayed."""

    requests_per_second_all: float = 400.0
    """Rate of requests of all peers without a token together. Each request takes about half a millisecond of a
    processor."""

    most_wait_seconds: float = 5.0
    """Maximum delay of a request; beyond it the response is 429."""
