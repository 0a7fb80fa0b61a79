"""Dashboard of a cluster: health, allocation, queue, fragmentation, and lost GPU-hours."""

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
    "A whole cluster: health, used slots, pending jobs, and lost GPU-hours.",
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
        "Share of all slots that are held by gangs.",
        RATIO,
        Query(f'sum by (cluster) (gangwatch_slots{{{CLUSTER}, use="used"}}) / {_SLOTS}'),
    ).decimals(1),
    number(
        "Free slots",
        "Slots that a gang can use now.",
        COUNT,
        Query(f'gangwatch_slots{{{CLUSTER}, use="free"}}'),
    ),
    number(
        "Pending jobs",
        "Submitted jobs that hold no slots.",
        COUNT,
        Query(f'gangwatch_gangs{{{CLUSTER}, state="pending"}}'),
    ),
    number(
        "Nodes out of use",
        "In quarantine, in maintenance, or absent.",
        COUNT,
        Query(f'sum by (cluster) (gangwatch_nodes{{{CLUSTER}, state=~"quarantine|maintenance|absent"}})'),
        thresholds=((None, "green"), (1, "yellow"), (5, "red")),
    ),
    number(
        "Agents reporting",
        "Share of agents that Prometheus can scrape.",
        RATIO,
        Query(f'avg by (cluster) (up{{{CLUSTER}, job="gangwatch-agent"}})'),
        thresholds=((None, "red"), (0.9, "yellow"), (1, "green")),
    ).decimals(1),
    number(
        "Verdicts",
        "Active verdicts of all kinds.",
        COUNT,
        Query(f"count(gangwatch_verdict_active{{{CLUSTER}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
)
dashboard.row(
    "Waste",
    series(
        "Slots without useful work",
        "Idle: free. Unavailable: on nodes out of use. Restart: held by gangs that start, stop or have made no step "
        "since their start. Accused: lost by gangs to the causes in their verdicts.",
        COUNT,
        Query(f"gangwatch_lost_slots{{{CLUSTER}}}", "{{reason}}"),
        stacked=True,
    ),
    rows(
        "GPU-hours lost in this time range",
        "Slots without useful work, summed over time.",
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
        "Most expensive verdicts",
        "Active verdicts by lost slots. The dashboard of the job has the details.",
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
        "Share of the free slots on partly used nodes. A gang that needs whole nodes cannot use them.",
        RATIO,
        Query(
            f'gangwatch_slots_fragmented{{{CLUSTER}}} / on (cluster) (gangwatch_slots{{{CLUSTER}, use="free"}} > 0)',
            "fragmented",
        ),
    ).max(1),
    series(
        "Slots by queue",
        "The ten queues that hold most slots.",
        COUNT,
        Query(worst(10, f"gangwatch_queue_slots{{{CLUSTER}}}"), "{{queue}}"),
        stacked=True,
    ),
    series(
        "Jobs by state",
        "Jobs that have not ended.",
        COUNT,
        Query(f'gangwatch_gangs{{{CLUSTER}, state=~"pending|starting|running|stopping"}}', "{{state}}"),
        stacked=True,
    ),
)
dashboard.row(
    "Health",
    series(
        "Nodes by state",
        "Suspect: accused by an active verdict. Quarantine: accepts no jobs. Probation: accepts single-node jobs only.",
        COUNT,
        Query(f"gangwatch_nodes{{{CLUSTER}}}", "{{state}}"),
        stacked=True,
    ),
    timeline(
        "Nodes with unhealthy GPUs",
        "Worst condition of a node's GPUs. 1: throttled. 2: needs inspection. 3: lost or broken. Twenty nodes at most.",
        Query(f"({worst(20, f'node:gangwatch_gpu_health:worst{{{CLUSTER}}}')}) > 0", "{{node}}"),
        HEALTH,
        width=12,
    ),
    series(
        "Power of all GPUs",
        "Average of the drivers.",
        WATTS,
        Query(f"sum by (cluster) (gangwatch_gpu_power_watts{{{CLUSTER}}})", "power"),
    ),
    series(
        "Hottest nodes",
        "Hottest GPU of each of the ten hottest nodes.",
        CELSIUS,
        Query(worst(10, f"node:gangwatch_gpu_temperature_celsius:max{{{CLUSTER}}}"), "{{node}}"),
        thresholds=((None, "green"), (85, "red")),
    ),
    number(
        "Actions allowed",
        "1: allowed. 0: frozen.",
        COUNT,
        Query(f"1 - gangwatch_frozen{{{CLUSTER}}}"),
        thresholds=ONE_IS_GOOD,
        width=6,
    ),
)
