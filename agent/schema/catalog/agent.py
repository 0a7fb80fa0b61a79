"""The agent itself: its collectors and its step socket."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric, seconds_counter

AGENT: tuple[Metric, ...] = (
    Metric("gangwatch_agent_info", "info", "Version and boot of the agent.", "", ("boot_id", "version"), "itself"),
    Metric("gangwatch_agent_frames_total", "counter", "Frames put together since the agent's start.", "", (), "itself"),
    seconds_counter(
        "gangwatch_agent_cpu_seconds_total", "Processor time of the agent's process.", (), "CLOCK_PROCESS_CPUTIME_ID"
    ),
    Metric(
        "gangwatch_agent_memory_resident_bytes",
        "gauge",
        "Resident memory of the agent's process.",
        "bytes",
        (),
        "/proc/self/statm",
    ),
    Metric(
        "gangwatch_agent_open_descriptors", "gauge", "Descriptors that the agent has open.", "", (), "/proc/self/fd"
    ),
    Metric("gangwatch_agent_threads", "gauge", "Threads of the agent that run Python.", "", (), "itself"),
    Metric(
        "gangwatch_agent_threads_abandoned",
        "gauge",
        "Threads of the agent that are stuck in a call while others do their work.",
        "",
        (),
        "itself",
    ),
    Metric(
        "gangwatch_agent_released",
        "gauge",
        "Whether the agent has given its devices back, as it was asked to: they can be reset.",
        "",
        (),
        "itself",
    ),
    Metric(
        "gangwatch_collector_success",
        "gauge",
        "Whether the collector's newest run succeeded and is fresh.",
        "",
        ("collector",),
        "itself",
    ),
    Metric(
        "gangwatch_collector_stuck",
        "gauge",
        "Whether the collector is in a call that does not return.",
        "",
        ("collector",),
        "itself",
    ),
    Metric(
        "gangwatch_collector_interval_seconds",
        "gauge",
        "How often the collector is run: longer than configured while it costs too much.",
        "seconds",
        ("collector",),
        "itself",
    ),
    seconds_counter(
        "gangwatch_collector_cpu_seconds_total",
        "Processor time of the collector's runs.",
        ("collector",),
        "CLOCK_THREAD_CPUTIME_ID",
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
        "Registrations refused, by reason: malformed, ring (no sealed ring of a permitted size), descriptors, timeout, "
        "identity (not whom it claims to be), name, quota (of the tenant), rate, full (the node has no slot left).",
        "",
        ("reason",),
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
