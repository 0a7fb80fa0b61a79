"""Dashboard of the scheduler: pending jobs and the reasons, decisions, and the gain of moves."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, worst
from dashboards.panels import COUNT, RATIO, SECONDS, ZERO_IS_GOOD, Query, number, rows, series

dashboard = Board(
    "gangwatch-scheduler",
    "Scheduler",
    "Pending jobs and the reasons, reservations and backfill, preemptions, gain of moves, fairness and latency.",
    since="now-6h",
)

dashboard.row(
    "Pending jobs",
    series(
        "Pending jobs by reason",
        "As `gangwatch explain` reports it: slots (too few are free), reservation (free slots are reserved for another "
        "job), limit (of the queue), capacity (too large for the empty cluster), level (no topology domain is large "
        "enough), dependency, pause, frozen.",
        COUNT,
        Query(f"gangwatch_gangs_waiting{{{CLUSTER}}}", "{{reason}}"),
        stacked=True,
    ),
    series(
        "Pending jobs by queue",
        "The ten queues with the most pending jobs.",
        COUNT,
        Query(worst(10, f"gangwatch_queue_gangs_waiting{{{CLUSTER}}}"), "{{queue}}"),
        stacked=True,
    ),
    rows(
        "Next to start",
        "Jobs with an expected start, the earliest first.",
        SECONDS,
        Query(
            f"bottomk(10, gangwatch_gang_wait_seconds_ahead{{{CLUSTER}}}"
            f" * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name{{{CLUSTER}}})",
            instant=True,
            table=True,
        ),
        hidden=("cluster", "instance", "job"),
        names={"Value": "starts in"},
    ),
    number(
        "Slots reserved for the first job in the queue",
        "Jobs that end before the reservation starts are backfilled into these slots.",
        COUNT,
        Query(f"sum(gangwatch_reserved_slots{{{CLUSTER}}}) or vector(0)"),
        width=6,
    ).height(8),
    number(
        "First job starts in",
        "Expected time until the first job in the queue starts.",
        SECONDS,
        Query(
            f"gangwatch_gang_wait_seconds_ahead{{{CLUSTER}}}"
            f" and on (cluster, gang) gangwatch_reserved_slots{{{CLUSTER}}}"
        ),
        width=6,
    )
    .height(8)
    .no_value("nothing is reserved"),
)
dashboard.row(
    "Decisions",
    series(
        "Job starts since the controller's start",
        "Started: in queue order, or after a move. Backfilled: ahead of the first job, without delaying it.",
        COUNT,
        Query(
            f'sum by (cluster, kind) (gangwatch_decisions_total{{{CLUSTER}, kind=~"started|backfilled"}})',
            "{{kind}}",
        ),
    ),
    series(
        "Preemptions, moves and other decisions",
        "Since the controller's start. `observed`: decisions that were logged but not applied.",
        COUNT,
        Query(
            worst(
                20,
                f'sum by (cluster, kind, outcome) (gangwatch_decisions_total{{{CLUSTER}, kind!~"started|backfilled"}})',
            ),
            "{{kind}} {{outcome}}",
        ),
    ),
    series(
        "Gain of moves",
        "Expected time saved by the newest decisions, less their cost.",
        SECONDS,
        Query(f"gangwatch_migration_expected_gain_seconds{{{CLUSTER}}}", "expected gain, {{outcome}}"),
    ),
    series(
        "Cost of moves",
        "Applied: time from the decision to the first step after the move. Observed: what not moving has cost.",
        SECONDS,
        Query(f"gangwatch_migration_outcome_seconds{{{CLUSTER}}}", "{{outcome}}"),
    ),
)
dashboard.row(
    "Fairness",
    series(
        "Slots held over quota",
        "1 is the quota; a queue above 1 borrows slots. Queues without a quota have no line.",
        RATIO,
        Query(
            worst(
                20,
                f"gangwatch_queue_slots{{{CLUSTER}}}"
                f" / on (cluster, queue) (gangwatch_queue_quota_slots{{{CLUSTER}}} > 0)",
            ),
            "{{queue}}",
        ),
        thresholds=((None, "green"), (1, "yellow")),
    ),
    series(
        "Share of usage",
        "Share of each queue in the usage that fair ordering counts. Older usage counts less.",
        RATIO,
        Query(
            worst(
                20,
                f"gangwatch_queue_used_slot_seconds{{{CLUSTER}}}"
                " / on (cluster) group_left ()"
                f" (sum by (cluster) (gangwatch_queue_used_slot_seconds{{{CLUSTER}}}) > 0)",
            ),
            "{{queue}}",
        ),
    ).max(1),
)
dashboard.row(
    "The cycle",
    series(
        "Decision latency",
        "Duration of the newest cycle.",
        SECONDS,
        Query(f"gangwatch_cycle_duration_seconds{{{CLUSTER}}}", "cycle"),
    ),
    series(
        "Cycles a second",
        "0 while the journal cannot be written.",
        "cps",
        Query(f"rate(gangwatch_cycles_total{{{CLUSTER}}}[$__rate_interval])", "cycles"),
    ),
    number(
        "Failed journal writes",
        "In this time range. The controller takes no action while writes fail.",
        COUNT,
        Query(f"sum by (cluster) (increase(gangwatch_store_failures_total{{{CLUSTER}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ).decimals(0),
    number(
        "Backend failures",
        "Failed requests to the backend in this time range. The controller retries each.",
        COUNT,
        Query(f"sum by (cluster) (increase(gangwatch_backend_failures_total{{{CLUSTER}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ).decimals(0),
    number(
        "Replay mismatches",
        "Cycles that decided differently when the journal was replayed at the newest start. The record is used.",
        COUNT,
        Query(f"gangwatch_replay_mismatches_total{{{CLUSTER}}}"),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ).decimals(0),
)
