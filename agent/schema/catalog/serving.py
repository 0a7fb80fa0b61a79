"""The servers: who has connections, and what was refused. The controller's, and the agent's as far as it has them."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

SERVING: tuple[Metric, ...] = (
    Metric("gangwatch_http_connections", "gauge", "Connections that are open.", "", (),
           "the server"),
    Metric("gangwatch_http_connections_limit", "gauge", "Most connections that may be open at one time.", "", (),
           "the server"),
    Metric("gangwatch_http_peers", "gauge", "Addresses, or on loopback users, that have a connection open.", "", (),
           "the server"),
    Metric("gangwatch_http_accepted_total", "counter", "Connections that came.", "", (), "the server"),
    Metric("gangwatch_http_requests_total", "counter", "Requests that came.", "", (), "the server"),
    Metric("gangwatch_http_requests_waited_total", "counter",
           "Requests that waited for their turn, because their peer asked too often.", "", (), "the server"),
    Metric("gangwatch_http_answering", "gauge", "Requests without the token that are being answered, or wait.", "", (),
           "the server"),
    Metric("gangwatch_http_refused_total", "counter",
           "Connections and requests that were refused, or ended early, by reason: late head, late body and late send "
           "(too slow), malformed, length, handshake, places, displaced, rate, answering, descriptors, accept.", "",
           ("reason",), "the server"),
)  # fmt: skip
