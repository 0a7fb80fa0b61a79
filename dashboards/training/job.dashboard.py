"""Dashboard of one job: health, step time, straggler, verdicts, and the actions that followed them."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, GANG, least, worst
from dashboards.panels import (
    A_SECOND,
    BYTES,
    BYTES_A_SECOND,
    COUNT,
    GOOD_IS_LOW,
    HERTZ,
    ONE_IS_GOOD,
    RATIO,
    SECONDS,
    WATTS,
    ZERO_IS_GOOD,
    Query,
    grid,
    number,
    rows,
    series,
)

dashboard = Board(
    "gangwatch-job",
    "Job",
    "One job: its health, its step time compared with yesterday, its straggler, and what was done about it.",
)
dashboard.variable("queue", "Queue", f"label_values(gangwatch_gang_info{{{CLUSTER}}}, queue)", many=True, every=True)
dashboard.variable("gang", "Job", f'label_values(gangwatch_gang_info{{{CLUSTER}, queue=~"$queue"}}, gang)')
dashboard.annotation(
    "Verdicts",
    f"verdict:gangwatch_verdict_lost_slots:join{{{GANG}}} >= 0",
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
dashboard.annotation(
    "Preemptions",
    f"increase(gangwatch_gang_preemptions_total{{{GANG}}}[$__rate_interval]) > 0",
    "purple",
    "preempted",
    "{{gang}}",
)
dashboard.annotation(
    "Starts",
    f"increase(gangwatch_gang_attempts_total{{{GANG}}}[$__rate_interval]) > 0",
    "green",
    "started",
    "{{gang}}",
)
dashboard.link("Straggler forensics", "/d/gangwatch-straggler-forensics")

dashboard.row(
    "Now",
    number(
        "State",
        "State of the job in the scheduler. Empty if the job has ended.",
        COUNT,
        Query(f"gang:gangwatch_gang_info:name{{{GANG}}}", "{{name}}: {{state}}"),
        text=True,
        width=6,
    ).no_value("ended, or unknown"),
    number(
        "Step time",
        "Mean over all ranks and the last two minutes.",
        SECONDS,
        Query(f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}} or gangwatch_gang_inferred_step_seconds{{{GANG}}}"),
    )
    .decimals(3)
    .no_value("reports no steps"),
    number(
        "Against yesterday",
        "Step time divided by the step time a day ago: 1 is equal, 1.1 is 10 % slower.",
        COUNT,
        Query(
            f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}"
            f" / gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}} offset 1d"
        ),
        thresholds=GOOD_IS_LOW,
    )
    .decimals(2)
    .no_value("did not run yesterday"),
    number(
        "Worst rank",
        "The highest slowdown of a rank: its own part of a step, compared with the other ranks.",
        COUNT,
        Query(f"topk(1, rank:gangwatch_rank_slowdown:ratio{{{GANG}}})", "rank {{rank}}", instant=True),
        thresholds=GOOD_IS_LOW,
    ).decimals(2),
    number(
        "Verdicts",
        "Active verdicts on a rank of the job, on a neighbouring job, or on the job itself.",
        COUNT,
        Query(f"count(gangwatch_verdict_active{{{GANG}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
        width=3,
    ),
    number(
        "Expected end in",
        "From the time limit or the run times of similar jobs, plus the delay that verdicts report.",
        SECONDS,
        Query(f"gangwatch_gang_seconds_left{{{GANG}}}"),
        width=3,
    ).no_value("holds no slots"),
)
dashboard.row(
    "Steps",
    series(
        "Step time and its spread by rank",
        "All ranks of a gang end a step together. They differ in their own part of it, which excludes waiting. "
        "One rank above the band is a straggler; if the whole band rises, the cause is the job or its network.",
        SECONDS,
        Query(f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}", "step"),
        Query(f"max by (gang) (rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, slowest rank"),
        Query(f"quantile by (gang) (0.9, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, 90 %"),
        Query(f"quantile by (gang) (0.5, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, median"),
        Query(f"min by (gang) (rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, fastest rank"),
    ),
    series(
        "Straggler score, the worst ranks",
        "Step time divided by the step time without this rank, as the detector estimates it. Before that: "
        "the rank's own part divided by the median rank's. 1 means no delay.",
        COUNT,
        Query(worst(5, f"rank:gangwatch_rank_slowdown:ratio{{{GANG}}}"), "rank {{rank}}"),
        thresholds=GOOD_IS_LOW,
    ),
    grid(
        "Own part of a step by rank and time, the worst 20 ranks",
        "Each rank's own part divided by the median rank's. The live page shows all ranks.",
        COUNT,
        Query(
            f"({worst(20, f'rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}}')})"
            f" / on (cluster, gang) group_left () quantile by (cluster, gang) (0.5, "
            f"rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})",
            "rank {{rank}}",
        ),
        GOOD_IS_LOW,
    ),
    series(
        "Time in collectives",
        "Share of step time that ranks wait in collectives. An imbalance, a straggler or a slow network raises it.",
        RATIO,
        Query(f"gang:gangwatch_rank_wait:ratio2m{{{GANG}}}", "waiting"),
    ).max(1),
    series(
        "Tokens or samples a second",
        "Sum over all ranks. Empty if the ranks report no tokens.",
        A_SECOND,
        Query(f"gang:gangwatch_rank_tokens:rate2m{{{GANG}}}", "all ranks"),
    ),
    number(
        "Scaling efficiency",
        "Throughput per rank now, divided by the best throughput per rank of any attempt in this time range.",
        RATIO,
        Query(
            f"(gang:gangwatch_rank_tokens:rate2m{{{GANG}}} / on (cluster, gang) gangwatch_gang_ranks{{{GANG}}})"
            f" / max_over_time((gang:gangwatch_rank_tokens:rate2m{{{GANG}}}"
            f" / on (cluster, gang) gangwatch_gang_ranks{{{GANG}}})[$__range:$__interval] @ end())"
        ),
        thresholds=((None, "red"), (0.7, "yellow"), (0.9, "green")),
        width=6,
    ).no_value("reports no tokens"),
    number(
        "Ranks",
        "Number of ranks of the gang.",
        COUNT,
        Query(f"gangwatch_gang_ranks{{{GANG}}}"),
        width=6,
    ),
    number(
        "Attempts",
        "Number of starts. Every start after the first follows a move, a preemption or a failure.",
        COUNT,
        Query(f"gangwatch_gang_attempts_total{{{GANG}}}"),
        width=6,
    ),
    number(
        "Slots lost to reported faults",
        "Work that the gang loses now because of the causes in its verdicts, in slots.",
        COUNT,
        Query(f"max(gangwatch_verdict_lost_slots{{{GANG}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ).decimals(1),
)
dashboard.row(
    "Efficiency",
    series(
        "GPU efficiency",
        "Share of time with an active tensor pipe (GPM, H100 and newer). For GPUs without GPM: the share of time with "
        "any running kernel, under its own name, which is a much weaker measure.",
        RATIO,
        Query(f"gang:gangwatch_gpu_tensor_active_ratio:mean{{{GANG}}}", "tensor active"),
        Query(
            f"gang:gangwatch_gpu_utilization_ratio:mean{{{GANG}}}"
            f" unless on (cluster, gang) gang:gangwatch_gpu_tensor_active_ratio:mean{{{GANG}}}",
            "GPU busy (no GPM: tensor activity is not available here)",
        ),
    ).max(1),
    series(
        "SM clock, the slowest ranks",
        "A rank that is throttled by heat or power computes more slowly than its peers.",
        HERTZ,
        Query(least(5, f"rank:gangwatch_gpu_sm_clock_hertz:max{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Device memory in use",
        "The ranks that use most.",
        BYTES,
        Query(worst(5, f"rank:gangwatch_gpu_memory_used_bytes:max{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Power",
        "Sum over all GPUs of the gang. The area below the line is energy.",
        WATTS,
        Query(f"gang:gangwatch_gpu_power_watts:sum{{{GANG}}}", "power"),
    ),
    number(
        "Energy in this time range",
        "Mean power multiplied by the length of the range.",
        "watth",
        Query(
            f"avg_over_time(gang:gangwatch_gpu_power_watts:sum{{{GANG}}}[$__range]) * $__range_s / 3600", instant=True
        ),
        width=6,
    ),
    number(
        "Power of a GPU",
        "Mean over the gang. A stalled job draws little power even if its utilisation is high.",
        WATTS,
        Query(
            f"gang:gangwatch_gpu_power_watts:sum{{{GANG}}}"
            f" / count by (cluster, gang) (gpu:gangwatch_gpu_owner:topk1{{{GANG}}})"
        ),
        width=6,
    ),
    number(
        "Agents reporting",
        "Share of the gang's nodes whose agents Prometheus can scrape.",
        RATIO,
        Query(
            f'avg(up{{{CLUSTER}, job="gangwatch-agent"}}'
            f" and on (cluster, node) gpu:gangwatch_gpu_owner:topk1{{{GANG}}})"
        ),
        thresholds=ONE_IS_GOOD,
        width=6,
    ),
    number(
        "Host memory of a rank",
        "Highest resident memory of the processes of a rank.",
        BYTES,
        Query(f"max by (cluster, gang) (gangwatch_rank_memory_resident_bytes{{{GANG}}})"),
        width=6,
    ),
)
dashboard.row(
    "Network",
    series(
        "NVLink by rank, lowest and highest",
        "Bytes sent per second. Ranks of one tensor-parallel group should have equal values.",
        BYTES_A_SECOND,
        Query(
            worst(5, f"rank:gangwatch_nvlink_transmit_bytes:rate2m{{{GANG}}}"),
            "rank {{rank}}",
        ),
        Query(
            least(5, f"rank:gangwatch_nvlink_transmit_bytes:rate2m{{{GANG}}}"),
            "rank {{rank}}",
        ),
    ),
    series(
        "RoCE by rank, lowest and highest",
        "Bytes sent per second by the NIC of the rank's GPU.",
        BYTES_A_SECOND,
        Query(worst(5, f"rank:gangwatch_rdma_port_transmit_bytes:rate2m{{{GANG}}}"), "rank {{rank}}"),
        Query(least(5, f"rank:gangwatch_rdma_port_transmit_bytes:rate2m{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Congestion by rank, the worst",
        "Congestion notifications handled per second: the rank's NIC reduced its rate because of a full link.",
        A_SECOND,
        Query(worst(10, f"rank:gangwatch_rdma_cnp_handled:rate2m{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Collectives entered, difference between ranks",
        "Difference between the first and the last rank. A constant difference above 0 means that a rank has not "
        "entered the collective in which its peers wait: that rank hangs.",
        COUNT,
        Query(
            f"max by (gang) (gangwatch_rank_collectives_entered_total{{{GANG}}}) - min by (gang) "
            f"(gangwatch_rank_collectives_entered_total{{{GANG}}})",
            "difference",
        ),
    ),
)
dashboard.row(
    "Verdicts",
    rows(
        "Active verdicts",
        "The accused, the cause, and the cost in slots.",
        COUNT,
        Query(f"verdict:gangwatch_verdict_lost_slots:join{{{GANG}}}", instant=True, table=True),
        hidden=("cluster", "gang", "name"),
        names={"Value": "slots lost"},
    ),
    rows(
        "Placement",
        "Node and GPU of twenty ranks. `gangwatch jobs` and the live page list all ranks.",
        COUNT,
        Query(f"topk(20, gpu:gangwatch_gpu_owner:topk1{{{GANG}}})", instant=True, table=True),
        hidden=("cluster", "gang", "Value"),
    ),
)
