"""Training steps, as ranks report them."""

from __future__ import annotations

from agent.schema.catalog.metric import MEMBER, Metric, seconds_counter

STEP: tuple[Metric, ...] = (
    Metric("gangwatch_rank_steps_total", "counter", "Training steps finished.", "", MEMBER, "step ring"),
    seconds_counter("gangwatch_rank_step_seconds_total", "Time in finished steps.", MEMBER, "step ring"),
    seconds_counter(
        "gangwatch_rank_wait_seconds_total",
        "Time in finished steps spent waiting in collectives; absent where it cannot be measured.",
        MEMBER,
        "step ring",
    ),
    Metric(
        "gangwatch_rank_tokens_total", "counter", "Tokens or samples that the rank reported.", "", MEMBER, "step ring"
    ),
    Metric("gangwatch_rank_collectives_entered_total", "counter", "Collectives entered.", "", MEMBER, "step ring"),
    Metric("gangwatch_rank_collectives_left_total", "counter", "Collectives left.", "", MEMBER, "step ring"),
    Metric("gangwatch_rank_step", "gauge", "Number of the newest step begun.", "", MEMBER, "step ring"),
    Metric(
        "gangwatch_rank_place_info",
        "info",
        "Where the rank says that it stands in the job's parallel layout: its indices among data-parallel, tensor and "
        "expert ranks and its pipeline stage; empty where not known.",
        "",
        ("attempt", "data", "expert", "gang", "rank", "stage", "tensor"),
        "registration of the step reporter",
    ),
)
