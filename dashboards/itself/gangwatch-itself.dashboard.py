"""Dashboard of gangwatch itself: age and completeness of its data, and its use of processor and memory."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, least, worst
from dashboards.panels import (
    BYTES,
    COUNT,
    ONE_IS_GOOD,
    RATIO,
    SECONDS,
    ZERO_IS_GOOD,
    Query,
    number,
    rows,
    series,
    timeline,
)

dashboard = Board(
    "gangwatch-itself",
    "gangwatch itself",
    "Age of samples, failing collectors, cost of agents and controller, and dropped data.",
)

dashboard.row(
    "Now",
    number(
        "Controller",
        "1 if Prometheus can scrape it.",
        COUNT,
        Query(f'min by (cluster) (up{{{CLUSTER}, job="gangwatch-controller"}})'),
        thresholds=ONE_IS_GOOD,
    ),
    number(
        "Agents not responding",
        "Targets that Prometheus cannot scrape.",
        COUNT,
        Query(f'count(up{{{CLUSTER}, job="gangwatch-agent"}} == 0) or vector(0)'),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Frame streams down",
        "Agents from which the controller receives no frames.",
        COUNT,
        Query(f"count(gangwatch_feed_connected{{{CLUSTER}}} == 0) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Failing collectors",
        "Sum over all nodes.",
        COUNT,
        Query(f"count(gangwatch_collector_success{{{CLUSTER}}} == 0) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Parts out of service",
        "Detectors and other parts of the controller that failed because of a bug. Jobs are still started and stopped.",
        COUNT,
        Query(
            f"count(gangwatch_detector_failures_total{{{CLUSTER}}} > 0 "
            f"or gangwatch_part_out_of_service{{{CLUSTER}}} > 0) or vector(0)"
        ),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Oldest frame",
        "Longest time since the newest frame of an agent.",
        SECONDS,
        Query(f"max by (cluster) (gangwatch_feed_frame_age_seconds{{{CLUSTER}}})"),
        thresholds=((None, "green"), (5, "yellow"), (30, "red")),
    ).decimals(1),
)
dashboard.row(
    "Data",
    series(
        "Age of the newest frame",
        "The ten oldest nodes, and the median of all nodes.",
        SECONDS,
        Query(worst(10, f"gangwatch_feed_frame_age_seconds{{{CLUSTER}}}"), "{{node}}"),
        Query(f"quantile by (cluster) (0.5, gangwatch_feed_frame_age_seconds{{{CLUSTER}}})", "median"),
        Query(f"gangwatch_watch_frame_age_seconds{{{CLUSTER}}}", "used by detection"),
    ),
    series(
        "Frames that the controller did not use",
        "Per second. Dropped: processing was too slow. Refused: it does not match its layout or node. Malformed: the "
        "bytes are not a frame.",
        "cps",
        Query(f"rate(gangwatch_watch_frames_dropped_total{{{CLUSTER}}}[$__rate_interval])", "dropped"),
        Query(f"rate(gangwatch_watch_frames_refused_total{{{CLUSTER}}}[$__rate_interval])", "refused"),
        Query(f"sum by (cluster) (rate(gangwatch_feed_malformed_total{{{CLUSTER}}}[$__rate_interval]))", "malformed"),
    ),
    timeline(
        "Collector failures",
        "By node and collector, twenty at most. Metrics of a failing collector are absent; others are not affected.",
        Query(least(20, f"gangwatch_collector_success{{{CLUSTER}}}", "== 0"), "{{node}} {{collector}}"),
        ((None, "red"),),
        width=12,
    ),
    series(
        "Age of collectors' samples",
        "The ten oldest (profile `full`).",
        SECONDS,
        Query(worst(10, f"gangwatch_collector_sample_age_seconds{{{CLUSTER}}}"), "{{node}} {{collector}}"),
    ),
    series(
        "Abstentions",
        "How often a detector measured a slowdown and could not determine its cause, in five minutes.",
        COUNT,
        Query(f"increase(gangwatch_abstentions_total{{{CLUSTER}}}[5m])", "{{detector}}"),
    ),
    rows(
        "Series left out",
        "By reason. `profile` and `deny` are intended; `limit` means that an agent has too many series.",
        COUNT,
        Query(f"sum by (cluster, reason) (gangwatch_exporter_series_left_out{{{CLUSTER}}})", instant=True, table=True),
        names={"Value": "series"},
    ),
)
dashboard.row(
    "Cost",
    series(
        "Processor time of agents",
        "In processors: the highest agents, and the median.",
        RATIO,
        Query(worst(5, f"rate(gangwatch_agent_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])"), "{{node}}"),
        Query(
            f"quantile by (cluster) (0.5, rate(gangwatch_agent_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
            "median",
        ),
    ),
    series(
        "Memory of agents",
        "Resident memory: the highest agents, and the median.",
        BYTES,
        Query(worst(5, f"gangwatch_agent_memory_resident_bytes{{{CLUSTER}}}"), "{{node}}"),
        Query(f"quantile by (cluster) (0.5, gangwatch_agent_memory_resident_bytes{{{CLUSTER}}})", "median"),
    ),
    series(
        "Series of an agent",
        "The highest agent, and the median.",
        COUNT,
        Query(f"max by (cluster) (gangwatch_exporter_series{{{CLUSTER}}})", "largest node"),
        Query(f"quantile by (cluster) (0.5, gangwatch_exporter_series{{{CLUSTER}}})", "median"),
    ),
    series(
        "Time to render /metrics",
        "The slowest agents.",
        SECONDS,
        Query(worst(5, f"gangwatch_exporter_render_seconds{{{CLUSTER}}}"), "{{node}}"),
    ),
    series(
        "Cycle duration",
        "Duration of the newest scheduling cycle.",
        SECONDS,
        Query(f"gangwatch_cycle_duration_seconds{{{CLUSTER}}}", "cycle"),
    ),
    series(
        "Push failures",
        "Dropped messages and failed attempts per second, by sink.",
        "cps",
        Query(
            f"sum by (cluster, sink) (rate(gangwatch_push_dropped_total{{{CLUSTER}}}[$__rate_interval]))",
            "{{sink}} dropped",
        ),
        Query(
            f"sum by (cluster, sink) (rate(gangwatch_push_failures_total{{{CLUSTER}}}[$__rate_interval]))",
            "{{sink}} failed",
        ),
    ),
)
