"""Metrics of training steps, reported by the ranks."""

from __future__ import annotations

from agent.schema.catalog.metric import MEMBER, Metric, seconds_counter

STEP: tuple[Metric, ...] = (
    Metric("gangwatch_rank_steps_total", "counter", "Finished training steps.", "", MEMBER, "step ring"),
    seconds_counter("gangwatch_rank_step_seconds_total", "Total time of finished steps.", MEMBER, "step ring"),
    seconds_counter(
        "gangwatch_rank_wait_seconds_total",
        "Time spent waiting in collectives during finished steps; absent if it cannot be measured.",
        MEMBER,
        "step ring",
    ),
    Metric(
        "gangwatch_rank_tokens_total", "counter", "Tokens or samples reported by the rank.", "", MEMBER, "step ring"
    ),
    Metric("gangwatch_rank_collectives_entered_total", "counter", "Collectives entered.", "", MEMBER, "step ring"),
    Metric("gangwatch_rank_collectives_left_total", "counter", "Collectives left.", "", MEMBER, "step ring"),
    seconds_counter(
        "gangwatch_rank_time_shift_seconds_total",
        "Time for which finished steps were delayed by a time shift; it is part of their waits. Absent if the rank's "
        "reporter cannot delay steps.",
        MEMBER,
        "step ring",
    ),
    Metric("gangwatch_rank_step", "gauge", "Number of the last step that the rank started.", "", MEMBER, "step ring"),
    Metric(
        "gangwatch_rank_place_info",
        "info",
        "Position of the rank in the job's parallel layout, as it reports it: data, tensor and expert index and "
        "pipeline stage. Unknown labels are empty.",
        "",
        ("attempt", "data", "expert", "gang", "rank", "stage", "tensor"),
        "registration of the step reporter",
    ),
)
