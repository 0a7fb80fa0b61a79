"""Dashboard of one verdict: the counters that support the verdict, before and after its detection."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, GANG, busiest, worst
from dashboards.panels import (
    A_SECOND,
    CELSIUS,
    COUNT,
    GOOD_IS_LOW,
    HERTZ,
    RATIO,
    SECONDS,
    WATTS,
    Query,
    number,
    rows,
    series,
    timeline,
)

dashboard = Board(
    "gangwatch-straggler-forensics",
    "Straggler forensics",
    "One verdict: the accused rank or node, and its counters compared with its peers', before and after.",
)
dashboard.variable("gang", "Job", f"label_values(gangwatch_verdict_info{{{CLUSTER}}}, gang)")
dashboard.variable("verdict", "Verdict", f"label_values(gangwatch_verdict_info{{{GANG}}}, verdict)")
dashboard.variable("node", "Accused node", f'label_values(gangwatch_verdict_info{{{GANG}, verdict=~"$verdict"}}, node)')
dashboard.variable(
    "rank", "Accused rank", f'label_values(gangwatch_verdict_active{{{GANG}, verdict=~"$verdict"}}, rank)'
)
dashboard.annotation(
    "Verdict",
    f'verdict:gangwatch_verdict_lost_slots:join{{{GANG}, verdict=~"$verdict"}} >= 0',
    "orange",
    "{{kind}}: {{cause}}",
    "rank {{rank}}, node {{node}} {{device}} {{aggressor}} {{resource}}",
)
dashboard.annotation(
    "Moves",
    f"increase(gangwatch_gang_migrations_total{{{GANG}}}[$__rate_interval]) > 0",
    "blue",
    "moved",
    "{{gang}}",
)
dashboard.link("Job", "/d/gangwatch-job")
dashboard.link("Node and GPU", "/d/gangwatch-node-and-gpu")

_NODE = f'{CLUSTER}, node=~"$node"'
_THIS = f'{GANG}, verdict=~"$verdict"'


def _accused_and_peers(metric: str) -> tuple[Query, Query]:
    """Return two queries for a GPU metric: the value of the accused rank, and the median of the other ranks."""
    return (
        Query(f'rank:{metric}:max{{{GANG}, rank=~"$rank"}}', "accused: rank {{rank}}"),
        Query(f"quantile by (gang) (0.5, rank:{metric}:max{{{GANG}}})", "its peers' median"),
    )


def _rate_of(metric: str, labels: str) -> tuple[Query, Query]:
    """Return two queries for the rate of a counter: the rate of the accused rank, and the median of the other ranks."""
    rate = f"sum by (gang, rank) (rate({metric}{{{labels}}}[$__rate_interval]))"
    accused = f'sum by (gang, rank) (rate({metric}{{{labels}, rank=~"$rank"}}[$__rate_interval]))'
    return (
        Query(accused, "accused: rank {{rank}}"),
        Query(f"quantile by (gang) (0.5, {rate})", "its peers' median"),
    )


dashboard.row(
    "Verdict",
    rows(
        "Verdict details",
        "Kind, cause, the accused, and the cost in slots. `gangwatch verdict` lists the evidence; `gangwatch verdict "
        "confirm` and `reject` record your decision.",
        COUNT,
        Query(f"verdict:gangwatch_verdict_lost_slots:join{{{_THIS}}}", instant=True, table=True),
        hidden=("cluster",),
        names={"Value": "slots lost"},
        width=18,
    ).height(5),
    number(
        "Confidence",
        "Confidence of the verdict. Feedback acts on a running job from 0.9.",
        RATIO,
        Query(f"max by (cluster, gang, verdict) (gangwatch_verdict_active{{{_THIS}}})"),
        thresholds=((None, "yellow"), (0.9, "green")),
        width=3,
    )
    .height(5)
    .no_value("not active"),
    number(
        "Slowdown",
        "Step time of the job divided by its step time without the accused.",
        COUNT,
        Query(f"max by (cluster, gang, verdict) (gangwatch_verdict_slowdown_ratio{{{_THIS}}})"),
        thresholds=GOOD_IS_LOW,
        width=3,
    )
    .height(5)
    .decimals(2)
    .no_value("not active"),
    timeline(
        "Active periods",
        "Every verdict on this job in the time range, while it was active.",
        Query(worst(20, f"verdict:gangwatch_verdict_lost_slots:join{{{GANG}}}"), "{{kind}}: {{cause}}, rank {{rank}}"),
        ((None, "orange"),),
        height=5,
    ),
)
dashboard.row(
    "Steps: before and after",
    series(
        "Own part of a step",
        "The accused compared with its peers. After a move or the end of the fault both are equal again.",
        SECONDS,
        Query(f'rank:gangwatch_rank_own_seconds:mean2m{{{GANG}, rank=~"$rank"}}', "accused: rank {{rank}}"),
        Query(f"quantile by (gang) (0.9, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "90 % of all ranks"),
        Query(f"quantile by (gang) (0.5, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "median of all ranks"),
    ),
    series(
        "Step time of the job",
        "The delay of the whole job.",
        SECONDS,
        Query(f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}", "step"),
        Query(
            f"min_over_time(gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}[$__range] @ end())",
            "fastest in this time range",
        ),
    ),
)
dashboard.row(
    "Counters of the GPU",
    series(
        "SM clock",
        "A clock below its peers' proves a thermal limit, a power limit or a locked clock.",
        HERTZ,
        *_accused_and_peers("gangwatch_gpu_sm_clock_hertz"),
    ),
    series(
        "Power",
        "Low power with a low clock: the GPU is throttled. Low power at full clock: it waits.",
        WATTS,
        *_accused_and_peers("gangwatch_gpu_power_watts"),
    ),
    series(
        "Temperature",
        "A GPU that is hotter than its peers at lower power has a cooling problem.",
        CELSIUS,
        *_accused_and_peers("gangwatch_gpu_temperature_celsius"),
    ),
    series(
        "Throttling",
        "Share of time, by reason, on the accused node (profile `full`).",
        RATIO,
        Query(
            busiest(10, f"gangwatch_gpu_throttle_seconds_total{{{_NODE}}}"),
            "{{gpu}} {{reason}}",
        ),
    ).max(1),
    series(
        "Memory errors",
        "Corrected errors per second on the accused node. A failing row costs time with every correction.",
        A_SECOND,
        Query(busiest(10, f"gangwatch_gpu_ecc_errors_total{{{_NODE}}}"), "{{gpu}} {{severity}}"),
    ),
    series(
        "PCIe replays and NVLink errors",
        "Packets retransmitted per second on the accused node.",
        A_SECOND,
        Query(busiest(8, f"gangwatch_gpu_pcie_replays_total{{{_NODE}}}"), "PCIe {{gpu}}"),
        Query(
            worst(
                8,
                f"sum by (gpu, kind) (rate(gangwatch_gpu_nvlink_errors_total{{{_NODE}}}[$__rate_interval])) > 0"
                f" or sum by (gpu, kind) (rate(gangwatch_nvlink_errors_total{{{_NODE}}}[$__rate_interval])) > 0",
            ),
            "NVLink {{gpu}} {{kind}}",
        ),
    ),
)
dashboard.row(
    "Counters of the processor and the network",
    series(
        "Waiting for a processor",
        "Seconds per second that the rank's threads were ready to run but had no processor: other processes use them.",
        RATIO,
        *_rate_of("gangwatch_rank_runqueue_wait_seconds_total", GANG),
    ),
    series(
        "Pressure on the host",
        "Share of time in which some task waited, by resource, on the accused node.",
        RATIO,
        Query(
            f"rate(gangwatch_host_pressure_waiting_seconds_total{{{_NODE}}}[$__rate_interval])", "{{node}} {{resource}}"
        ),
    ).max(1),
    series(
        "Congestion and loss of the accused's NICs",
        "Congestion notifications handled and packets out of order, per second.",
        A_SECOND,
        Query(busiest(8, f"gangwatch_rdma_cnp_handled_total{{{_NODE}}}"), "{{device}} notifications"),
        Query(
            busiest(8, f"gangwatch_rdma_out_of_sequence_total{{{_NODE}}}"),
            "{{device}} out of order",
        ),
    ),
    series(
        "Errors of the accused's NICs",
        "Symbol errors and link losses per second. The usual cause is a cable or transceiver.",
        A_SECOND,
        Query(
            busiest(8, f"gangwatch_rdma_physical_symbol_errors_total{{{_NODE}}}"),
            "{{device}} symbols",
        ),
        Query(
            busiest(8, f"gangwatch_rdma_physical_link_down_events_total{{{_NODE}}}"),
            "{{device}} link lost",
        ),
    ),
)
