"""Cluster: health, allocation, queue, fragmentation, and where GPU-hours go that do no work."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, worst
from dashboards.panels import (
    CELSIUS,
    COUNT,
    HEALTH,
    HOURS,
    ONE_IS_GOOD,
    RATIO,
    WATTS,
    ZERO_IS_GOOD,
    Query,
    number,
    rows,
    series,
    timeline,
)

dashboard = Board(
    "gangwatch-cluster",
    "Cluster",
    "All of a cluster: what is healthy, what is used, who waits, and what is lost.",
    since="now-6h",
)
dashboard.annotation(
    "Quarantines",
    f'gangwatch_node_state{{{CLUSTER}, state="quarantine"}} == 1',
    "orange",
    "quarantine",
    "{{node}}",
    shown=False,
)

_SLOTS = f"sum by (cluster) (gangwatch_slots{{{CLUSTER}}})"

dashboard.row(
    "Now",
    number(
        "Slots in use",
        "Share of all slots that gangs hold.",
        RATIO,
        Query(f'sum by (cluster) (gangwatch_slots{{{CLUSTER}, use="used"}}) / {_SLOTS}'),
        decimals=1,
    ),
    number(
        "Free slots",
        "That a gang could have now.",
        COUNT,
        Query(f'gangwatch_slots{{{CLUSTER}, use="free"}}'),
    ),
    number(
        "Jobs waiting",
        "All that are submitted and hold no slots.",
        COUNT,
        Query(f'gangwatch_gangs{{{CLUSTER}, state="pending"}}'),
    ),
    number(
        "Nodes out of use",
        "In quarantine, in maintenance, or gone.",
        COUNT,
        Query(f'sum by (cluster) (gangwatch_nodes{{{CLUSTER}, state=~"quarantine|maintenance|absent"}})'),
        thresholds=((None, "green"), (1, "yellow"), (5, "red")),
    ),
    number(
        "Agents heard",
        "Share of agents that answer Prometheus.",
        RATIO,
        Query(f'avg by (cluster) (up{{{CLUSTER}, job="gangwatch-agent"}})'),
        thresholds=((None, "red"), (0.9, "yellow"), (1, "green")),
        decimals=1,
    ),
    number(
        "Verdicts",
        "That stand now, of all kinds.",
        COUNT,
        Query(f"count(gangwatch_verdict_active{{{CLUSTER}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
)
dashboard.row(
    "Waste",
    series(
        "Slots that do no work",
        "Idle: free. Unavailable: out of use. Restart: held by gangs that start, stop or have made no step since. "
        "Accused: what gangs lose to what verdicts accuse.",
        COUNT,
        Query(f"gangwatch_lost_slots{{{CLUSTER}}}", "{{reason}}"),
        stacked=True,
    ),
    rows(
        "GPU-hours lost in this time range",
        "The same, added up over time.",
        HOURS,
        Query(
            f"sum by (cluster, reason) (avg_over_time(gangwatch_lost_slots{{{CLUSTER}}}[$__range]))"
            " * $__range_s / 3600",
            instant=True,
            table=True,
        ),
        names={"Value": "GPU-hours"},
        width=6,
    ),
    rows(
        "What costs most now",
        "Verdicts by slots' worth of work lost; the job's page has the rest.",
        COUNT,
        Query(f"topk(10, verdict:gangwatch_verdict_lost_slots:join{{{CLUSTER}}})", instant=True, table=True),
        hidden=("cluster", "verdict"),
        names={"Value": "slots lost"},
        width=6,
    ),
)
dashboard.row(
    "Allocation",
    series(
        "Slots by use",
        "Used by gangs, free, or on nodes out of use.",
        COUNT,
        Query(f"gangwatch_slots{{{CLUSTER}}}", "{{use}}"),
        stacked=True,
    ),
    series(
        "Fragmentation",
        "Of the free slots, the share on nodes that are partly used: a gang that wants whole nodes cannot have them.",
        RATIO,
        Query(
            f'gangwatch_slots_fragmented{{{CLUSTER}}} / on (cluster) (gangwatch_slots{{{CLUSTER}, use="free"}} > 0)',
            "fragmented",
        ),
        maximum=1,
    ),
    series(
        "Slots by queue",
        "The ten that hold most.",
        COUNT,
        Query(worst(10, f"gangwatch_queue_slots{{{CLUSTER}}}"), "{{queue}}"),
        stacked=True,
    ),
    series(
        "Jobs by state",
        "Those that have ended are forgotten after a while.",
        COUNT,
        Query(f'gangwatch_gangs{{{CLUSTER}, state=~"pending|starting|running|stopping"}}', "{{state}}"),
        stacked=True,
    ),
)
dashboard.row(
    "Health",
    series(
        "Nodes by state",
        "Suspect: a verdict stands against it. Quarantine: takes nothing. Probation: single-node jobs only.",
        COUNT,
        Query(f"gangwatch_nodes{{{CLUSTER}}}", "{{state}}"),
        stacked=True,
    ),
    timeline(
        "Nodes whose GPUs are not well",
        "The worst of a node's GPUs: 1 held back, 2 to be looked at, 3 lost or broken. The twenty worst nodes.",
        Query(f"({worst(20, f'node:gangwatch_gpu_health:worst{{{CLUSTER}}}')}) > 0", "{{node}}"),
        HEALTH,
        width=12,
    ),
    series(
        "Power of all GPUs",
        "As their drivers average it.",
        WATTS,
        Query(f"sum by (cluster) (gangwatch_gpu_power_watts{{{CLUSTER}}})", "power"),
    ),
    series(
        "Hottest nodes",
        "The hottest GPU of each, of ten nodes.",
        CELSIUS,
        Query(worst(10, f"node:gangwatch_gpu_temperature_celsius:max{{{CLUSTER}}}"), "{{node}}"),
        thresholds=((None, "green"), (85, "red")),
    ),
    number(
        "Actions allowed",
        "1 while an operator has not frozen them.",
        COUNT,
        Query(f"1 - gangwatch_frozen{{{CLUSTER}}}"),
        thresholds=ONE_IS_GOOD,
        width=6,
    ),
)
