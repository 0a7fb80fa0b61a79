"""Scheduler: who waits and why, what was decided, and what it was worth."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, worst
from dashboards.panels import COUNT, RATIO, SECONDS, ZERO_IS_GOOD, Query, number, rows, series

dashboard = Board(
    "gangwatch-scheduler",
    "Scheduler",
    "Who waits and why, reservations and backfill, preemptions, moves and what they gained, fairness, and how fast.",
    since="now-6h",
)

dashboard.row(
    "Waiting",
    series(
        "Waiting jobs by what binds them",
        "As `gangwatch explain` says it: slots (not enough are free), reservation (there is room, but for another), "
        "limit (of the queue), capacity (not even the empty cluster could), level, dependency, pause, frozen.",
        COUNT,
        Query(f"gangwatch_gangs_waiting{{{CLUSTER}}}", "{{reason}}"),
        stacked=True,
    ),
    series(
        "Waiting jobs by queue",
        "The ten queues in which most wait.",
        COUNT,
        Query(worst(10, f"gangwatch_queue_gangs_waiting{{{CLUSTER}}}"), "{{queue}}"),
        stacked=True,
    ),
    rows(
        "Next to start",
        "Jobs whose start can be told, the soonest first.",
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
        "Slots reserved for the first in the queue",
        "Jobs that run short enough are backfilled beside them.",
        COUNT,
        Query(f"sum(gangwatch_reserved_slots{{{CLUSTER}}}) or vector(0)"),
        width=6,
        height=8,
    ),
    number(
        "It starts in",
        "Expected time until the first in the queue starts.",
        SECONDS,
        Query(
            f"gangwatch_gang_wait_seconds_ahead{{{CLUSTER}}}"
            f" and on (cluster, gang) gangwatch_reserved_slots{{{CLUSTER}}}"
        ),
        width=6,
        height=8,
        nothing="nothing is reserved",
    ),
)
dashboard.row(
    "Decisions",
    series(
        "Starts since the controller's",
        "Started: from the front of the queue, or after a move. Backfilled: ahead of the first, without delaying it.",
        COUNT,
        Query(
            f'sum by (cluster, kind) (gangwatch_decisions_total{{{CLUSTER}, kind=~"started|backfilled"}})',
            "{{kind}}",
        ),
    ),
    series(
        "Preemptions, moves and what else was decided",
        "Since the controller's start; `observed` is what would have been done.",
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
        "What moves gain",
        "Of the newest decisions: the time they were expected to save over what they cost.",
        SECONDS,
        Query(f"gangwatch_migration_expected_gain_seconds{{{CLUSTER}}}", "expected gain, {{outcome}}"),
    ),
    series(
        "What moves cost",
        "Applied: from the decision to the first step after the move. Observed: what staying has cost instead.",
        SECONDS,
        Query(f"gangwatch_migration_outcome_seconds{{{CLUSTER}}}", "{{outcome}}"),
    ),
)
dashboard.row(
    "Fairness",
    series(
        "Slots held over quota",
        "1 is a queue's quota: above it borrows. Queues without a quota have no line.",
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
        "Share of what was used",
        "Of each queue by the fair order's account, in which older use counts less.",
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
        maximum=1,
    ),
)
dashboard.row(
    "The cycle",
    series(
        "Decision latency",
        "How long the newest cycle took.",
        SECONDS,
        Query(f"gangwatch_cycle_duration_seconds{{{CLUSTER}}}", "cycle"),
    ),
    series(
        "Cycles a second",
        "None while the journal can't be written.",
        "cps",
        Query(f"rate(gangwatch_cycles_total{{{CLUSTER}}}[$__rate_interval])", "cycles"),
    ),
    number(
        "Journal writes that failed",
        "In this time range: nothing was acted on meanwhile.",
        COUNT,
        Query(f"sum by (cluster) (increase(gangwatch_store_failures_total{{{CLUSTER}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
        width=6,
        decimals=0,
    ),
    number(
        "Refusals of the backend",
        "In this time range; each is tried again.",
        COUNT,
        Query(f"sum by (cluster) (increase(gangwatch_backend_failures_total{{{CLUSTER}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
        width=6,
        decimals=0,
    ),
    number(
        "Replays that decided otherwise",
        "Cycles, at the newest start; the record was followed.",
        COUNT,
        Query(f"gangwatch_replay_mismatches_total{{{CLUSTER}}}"),
        thresholds=ZERO_IS_GOOD,
        width=6,
        decimals=0,
    ),
)
