"""The agent itself: its collectors and its step socket."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

AGENT: tuple[Metric, ...] = (
    Metric("gangwatch_agent_info", "info", "Version and boot of the agent.", "", ("boot_id", "version"), "itself"),
    Metric("gangwatch_agent_frames_total", "counter", "Frames put together since the agent's start.", "", (), "itself"),
    Metric(
        "gangwatch_collector_success",
        "gauge",
        "Whether the collector's newest run succeeded and is fresh.",
        "",
        ("collector",),
        "itself",
    ),
    Metric(
        "gangwatch_collector_duration_seconds",
        "gauge",
        "How long the collector's newest run took.",
        "seconds",
        ("collector",),
        "itself",
    ),
    Metric(
        "gangwatch_collector_sample_age_seconds",
        "gauge",
        "Age of the collector's newest sample when the frame was put together.",
        "seconds",
        ("collector",),
        "itself",
    ),
    Metric(
        "gangwatch_collector_failures_total", "counter", "Failed runs of the collector.", "", ("collector",), "itself"
    ),
    Metric(
        "gangwatch_step_reporters",
        "gauge",
        "Training processes that are registered on the step socket.",
        "",
        (),
        "step socket",
    ),
    Metric(
        "gangwatch_step_reporters_refused_total",
        "counter",
        "Registrations refused: malformed, not sealed, or naming a rank that the sender is not.",
        "",
        (),
        "step socket",
    ),
    Metric(
        "gangwatch_step_records_malformed_total",
        "counter",
        "Ring records skipped because they were torn or held no possible value.",
        "",
        (),
        "step rings",
    ),
    Metric(
        "gangwatch_step_records_lost_total",
        "counter",
        "Ring records overwritten before they were read.",
        "",
        (),
        "step rings",
    ),
)
