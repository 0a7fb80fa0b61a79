"""Job: is it healthy, how fast against yesterday, who holds it up, and what was done about it."""

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
    "One job: is it healthy, how fast against yesterday, who holds it up and what was done about it.",
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
    "stopped for another",
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
        "What the scheduler says of the job; nothing where it has ended.",
        COUNT,
        Query(f"gang:gangwatch_gang_info:name{{{GANG}}}", "{{name}}: {{state}}"),
        text=True,
        width=6,
        nothing="ended, or never seen",
    ),
    number(
        "Step time",
        "Mean over ranks and the last two minutes.",
        SECONDS,
        Query(f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}} or gangwatch_gang_inferred_step_seconds{{{GANG}}}"),
        decimals=3,
        nothing="reports no steps",
    ),
    number(
        "Against yesterday",
        "Step time over that of a day ago: 1 is as fast, 1.1 takes a tenth longer.",
        COUNT,
        Query(
            f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}"
            f" / gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}} offset 1d"
        ),
        thresholds=GOOD_IS_LOW,
        decimals=2,
        nothing="did not run yesterday",
    ),
    number(
        "Worst rank",
        "The rank whose own part of a step takes longest against the others, and how many times as long.",
        COUNT,
        Query(f"topk(1, rank:gangwatch_rank_slowdown:ratio{{{GANG}}})", "rank {{rank}}", instant=True),
        thresholds=GOOD_IS_LOW,
        decimals=2,
    ),
    number(
        "Verdicts",
        "Verdicts that stand against a member, a neighbour or the job itself.",
        COUNT,
        Query(f"count(gangwatch_verdict_active{{{GANG}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
        width=3,
    ),
    number(
        "Expected end in",
        "By the time limit or what jobs alike have taken, with what verdicts add to it.",
        SECONDS,
        Query(f"gangwatch_gang_seconds_left{{{GANG}}}"),
        width=3,
        nothing="holds no slots",
    ),
)
dashboard.row(
    "Steps",
    series(
        "Step time and its spread by rank",
        "All ranks of a gang end a step together; what differs is how long each takes for its own part. "
        "A single rank above the band is a straggler, a band that rises as a whole is the job or its network.",
        SECONDS,
        Query(f"gang:gangwatch_rank_step_seconds:mean2m{{{GANG}}}", "step"),
        Query(f"max by (gang) (rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, slowest rank"),
        Query(f"quantile by (gang) (0.9, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, 90 %"),
        Query(f"quantile by (gang) (0.5, rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, median"),
        Query(f"min by (gang) (rank:gangwatch_rank_own_seconds:mean2m{{{GANG}}})", "own part, fastest rank"),
    ),
    series(
        "Straggler score, the worst ranks",
        "Step time over step time without this rank, as the detector says it; before it has said anything, the rank's "
        "own part over the median rank's. 1 is harmless.",
        COUNT,
        Query(worst(5, f"rank:gangwatch_rank_slowdown:ratio{{{GANG}}}"), "rank {{rank}}"),
        thresholds=GOOD_IS_LOW,
    ),
    grid(
        "Own part of a step by rank and time, the worst 20 ranks",
        "Each rank's own part over the median rank's. The live page shows all ranks.",
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
        "Share of step time spent waiting in collectives: it rises with an imbalance, a straggler or a slow network.",
        RATIO,
        Query(f"gang:gangwatch_rank_wait:ratio2m{{{GANG}}}", "waiting"),
        maximum=1,
    ),
    series(
        "Tokens or samples a second",
        "What the ranks report, added up; empty where they report none.",
        A_SECOND,
        Query(f"gang:gangwatch_rank_tokens:rate2m{{{GANG}}}", "all ranks"),
    ),
    number(
        "Scaling efficiency",
        "Throughput a rank now over the best a rank that any attempt reached in this time range: what more ranks cost.",
        RATIO,
        Query(
            f"(gang:gangwatch_rank_tokens:rate2m{{{GANG}}} / on (cluster, gang) gangwatch_gang_ranks{{{GANG}}})"
            f" / max_over_time((gang:gangwatch_rank_tokens:rate2m{{{GANG}}}"
            f" / on (cluster, gang) gangwatch_gang_ranks{{{GANG}}})[$__range:$__interval] @ end())"
        ),
        thresholds=((None, "red"), (0.7, "yellow"), (0.9, "green")),
        width=6,
        nothing="reports no tokens",
    ),
    number(
        "Ranks",
        "Ranks of the gang.",
        COUNT,
        Query(f"gangwatch_gang_ranks{{{GANG}}}"),
        width=6,
    ),
    number(
        "Attempts",
        "Times that it was started: more than one are moves, preemptions or failures.",
        COUNT,
        Query(f"gangwatch_gang_attempts_total{{{GANG}}}"),
        width=6,
    ),
    number(
        "Lost to what verdicts accuse",
        "Slots' worth of work that the gang loses now.",
        COUNT,
        Query(f"max(gangwatch_verdict_lost_slots{{{GANG}}}) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
        decimals=1,
        width=6,
    ),
)
dashboard.row(
    "Efficiency",
    series(
        "GPU efficiency",
        "Share of time with a tensor pipe in use (GPM, H100 and newer). Where a GPU has no GPM, the share of time with "
        "any kernel running stands in its place, under its own name: it says much less.",
        RATIO,
        Query(f"gang:gangwatch_gpu_tensor_active_ratio:mean{{{GANG}}}", "tensor active"),
        Query(
            f"gang:gangwatch_gpu_utilization_ratio:mean{{{GANG}}}"
            f" unless on (cluster, gang) gang:gangwatch_gpu_tensor_active_ratio:mean{{{GANG}}}",
            "GPU busy (no GPM: tensor activity is not available here)",
        ),
        maximum=1,
    ),
    series(
        "SM clock, the slowest ranks",
        "A rank that is held down by heat or power computes more slowly than its peers.",
        HERTZ,
        Query(least(5, f"rank:gangwatch_gpu_sm_clock_hertz:max{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Device memory in use",
        "The fullest ranks.",
        BYTES,
        Query(worst(5, f"rank:gangwatch_gpu_memory_used_bytes:max{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Power",
        "All GPUs of the gang; energy is the area below.",
        WATTS,
        Query(f"gang:gangwatch_gpu_power_watts:sum{{{GANG}}}", "power"),
    ),
    number(
        "Energy in this time range",
        "Mean power, times the length of the range.",
        "watth",
        Query(
            f"avg_over_time(gang:gangwatch_gpu_power_watts:sum{{{GANG}}}[$__range]) * $__range_s / 3600", instant=True
        ),
        width=6,
    ),
    number(
        "Power of a GPU",
        "Mean over the gang: a stalled job draws little, whatever utilisation says.",
        WATTS,
        Query(
            f"gang:gangwatch_gpu_power_watts:sum{{{GANG}}}"
            f" / count by (cluster, gang) (gpu:gangwatch_gpu_owner:topk1{{{GANG}}})"
        ),
        width=6,
    ),
    number(
        "Agents heard",
        "Share of the gang's nodes whose agents answer.",
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
        "Most resident memory that a rank's processes have on their host.",
        BYTES,
        Query(f"max by (cluster, gang) (gangwatch_rank_memory_resident_bytes{{{GANG}}})"),
        width=6,
    ),
)
dashboard.row(
    "Network",
    series(
        "NVLink by rank, the least and the most",
        "Bytes sent a second. Ranks of one tensor-parallel group should lie on one line.",
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
        "RoCE by rank, the least and the most",
        "Bytes sent a second by the NIC beside the rank's GPU.",
        BYTES_A_SECOND,
        Query(worst(5, f"rank:gangwatch_rdma_port_transmit_bytes:rate2m{{{GANG}}}"), "rank {{rank}}"),
        Query(least(5, f"rank:gangwatch_rdma_port_transmit_bytes:rate2m{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Congestion by rank, the worst",
        "Congestion notifications obeyed a second: the rank's sender was slowed down for a full link on its way.",
        A_SECOND,
        Query(worst(10, f"rank:gangwatch_rdma_cnp_handled:rate2m{{{GANG}}}"), "rank {{rank}}"),
    ),
    series(
        "Collectives entered, the rank behind and the rank ahead",
        "A rank that never enters what its peers are in holds all of them: it is the one that hangs.",
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
        "Verdicts that stand",
        "Whom they accuse, of what, and what it costs, in slots' worth of work.",
        COUNT,
        Query(f"verdict:gangwatch_verdict_lost_slots:join{{{GANG}}}", instant=True, table=True),
        hidden=("cluster", "gang", "name"),
        names={"Value": "slots lost"},
    ),
    rows(
        "Where its ranks are",
        "Node, GPU and rank, of twenty; `gangwatch jobs` and the live page list all of them.",
        COUNT,
        Query(f"topk(20, gpu:gangwatch_gpu_owner:topk1{{{GANG}}})", instant=True, table=True),
        hidden=("cluster", "gang", "Value"),
    ),
)
