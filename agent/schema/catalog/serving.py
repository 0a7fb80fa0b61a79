"""Metrics of the HTTP servers of the controller and, where they apply, of the agent."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

SERVING: tuple[Metric, ...] = (
    Metric("gangwatch_http_connections", "gauge", "Open connections.", "", (),
           "the server"),
    Metric("gangwatch_http_connections_limit", "gauge", "Maximum number of open connections.", "", (),
           "the server"),
    Metric("gangwatch_http_peers", "gauge", "Peers with an open connection: addresses, or users on loopback.", "", (),
           "the server"),
    Metric("gangwatch_http_accepted_total", "counter", "Connections accepted.", "", (), "the server"),
    Metric("gangwatch_http_requests_total", "counter", "Requests received.", "", (), "the server"),
    Metric("gangwatch_http_requests_waited_total", "counter",
           "Requests delayed because their peer exceeded its request rate.", "", (), "the server"),
    Metric("gangwatch_http_answering", "gauge", "Requests without a token in progress or waiting.", "", (),
           "the server"),
    Metric("gangwatch_http_refused_total", "counter",
           "Connections and requests refused or closed early, by reason: late head, late body and late send "
           "(too slow), malformed, length, handshake, places, displaced, rate, answering, descriptors, accept.", "",
           ("reason",), "the server"),
)  # fmt: skip
