"""gangwatch itself: whether what the others show can be trusted, and what it costs."""

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
    "How old samples are, which collectors fail, what agents and controller cost, and what was dropped.",
)

dashboard.row(
    "Now",
    number(
        "Controller",
        "Whether it answers Prometheus.",
        COUNT,
        Query(f'min by (cluster) (up{{{CLUSTER}, job="gangwatch-controller"}})'),
        thresholds=ONE_IS_GOOD,
    ),
    number(
        "Agents that do not answer",
        "Of those that Prometheus knows.",
        COUNT,
        Query(f'count(up{{{CLUSTER}, job="gangwatch-agent"}} == 0) or vector(0)'),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Streams that are down",
        "Agents whose frames the controller can't read.",
        COUNT,
        Query(f"count(gangwatch_feed_connected{{{CLUSTER}}} == 0) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Collectors that fail",
        "On all nodes.",
        COUNT,
        Query(f"count(gangwatch_collector_success{{{CLUSTER}}} == 0) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Parts out of service",
        "Detectors and other parts of the controller, after a bug. Jobs are still started and stopped.",
        COUNT,
        Query(
            f"count(gangwatch_detector_failures_total{{{CLUSTER}}} > 0 "
            f"or gangwatch_part_out_of_service{{{CLUSTER}}} > 0) or vector(0)"
        ),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Oldest frame",
        "Time since the newest frame of the agent that was heard last longest ago.",
        SECONDS,
        Query(f"max by (cluster) (gangwatch_feed_frame_age_seconds{{{CLUSTER}}})"),
        thresholds=((None, "green"), (5, "yellow"), (30, "red")),
        decimals=1,
    ),
)
dashboard.row(
    "Data",
    series(
        "Age of the newest frame",
        "By node, the oldest; median of all beside them.",
        SECONDS,
        Query(worst(10, f"gangwatch_feed_frame_age_seconds{{{CLUSTER}}}"), "{{node}}"),
        Query(f"quantile by (cluster) (0.5, gangwatch_feed_frame_age_seconds{{{CLUSTER}}})", "median"),
    ),
    series(
        "Frames the controller did not use",
        "Dropped because folding could not keep up, refused because they did not fit, malformed on the wire; a second.",
        "cps",
        Query(f"rate(gangwatch_watch_frames_dropped_total{{{CLUSTER}}}[$__rate_interval])", "dropped"),
        Query(f"rate(gangwatch_watch_frames_refused_total{{{CLUSTER}}}[$__rate_interval])", "refused"),
        Query(f"sum by (cluster) (rate(gangwatch_feed_malformed_total{{{CLUSTER}}}[$__rate_interval]))", "malformed"),
    ),
    timeline(
        "Which collectors fail",
        "By node and collector, twenty at most; what fails is absent, the others go on.",
        Query(least(20, f"gangwatch_collector_success{{{CLUSTER}}}", "== 0"), "{{node}} {{collector}}"),
        ((None, "red"),),
        width=12,
    ),
    series(
        "Age of collectors' samples",
        "The oldest (profile `full`).",
        SECONDS,
        Query(worst(10, f"gangwatch_collector_sample_age_seconds{{{CLUSTER}}}"), "{{node}} {{collector}}"),
    ),
    series(
        "Abstentions",
        "Times a detector saw slowness and could not tell whose, in five minutes.",
        COUNT,
        Query(f"increase(gangwatch_abstentions_total{{{CLUSTER}}}[5m])", "{{detector}}"),
    ),
    rows(
        "Series left out",
        "By reason: what the profile leaves out is meant, what the limit leaves out is not.",
        COUNT,
        Query(f"sum by (cluster, reason) (gangwatch_exporter_series_left_out{{{CLUSTER}}})", instant=True, table=True),
        names={"Value": "series"},
    ),
)
dashboard.row(
    "Cost",
    series(
        "Processor time of agents",
        "Share of one processor: the costliest, and the median.",
        RATIO,
        Query(worst(5, f"rate(gangwatch_agent_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])"), "{{node}}"),
        Query(
            f"quantile by (cluster) (0.5, rate(gangwatch_agent_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
            "median",
        ),
    ),
    series(
        "Memory of agents",
        "Resident: the largest, and the median.",
        BYTES,
        Query(worst(5, f"gangwatch_agent_memory_resident_bytes{{{CLUSTER}}}"), "{{node}}"),
        Query(f"quantile by (cluster) (0.5, gangwatch_agent_memory_resident_bytes{{{CLUSTER}}})", "median"),
    ),
    series(
        "Series of an agent",
        "The most, and all together.",
        COUNT,
        Query(f"max by (cluster) (gangwatch_exporter_series{{{CLUSTER}}})", "largest node"),
        Query(f"quantile by (cluster) (0.5, gangwatch_exporter_series{{{CLUSTER}}})", "median"),
    ),
    series(
        "Rendering an exposition",
        "The slowest agents.",
        SECONDS,
        Query(worst(5, f"gangwatch_exporter_render_seconds{{{CLUSTER}}}"), "{{node}}"),
    ),
    series(
        "A cycle of the controller",
        "How long the newest one took.",
        SECONDS,
        Query(f"gangwatch_cycle_duration_seconds{{{CLUSTER}}}", "cycle"),
    ),
    series(
        "Pushing",
        "Messages a second that were given up, and failed attempts, by sink.",
        "cps",
        Query(
            f"sum by (cluster, sink) (rate(gangwatch_push_dropped_total{{{CLUSTER}}}[$__rate_interval]))",
            "{{sink}} given up",
        ),
        Query(
            f"sum by (cluster, sink) (rate(gangwatch_push_failures_total{{{CLUSTER}}}[$__rate_interval]))",
            "{{sink}} failed",
        ),
    ),
)
