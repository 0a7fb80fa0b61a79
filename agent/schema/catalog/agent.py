"""Metrics of the agent, its collectors and its step socket."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric, seconds_counter

AGENT: tuple[Metric, ...] = (
    Metric("gangwatch_agent_info", "info", "Version and boot of the agent.", "", ("boot_id", "version"), "the agent"),
    Metric("gangwatch_agent_frames_total", "counter", "Frames assembled since the agent started.", "", (), "the agent"),
    seconds_counter(
        "gangwatch_agent_cpu_seconds_total", "CPU time used by the agent process.", (), "CLOCK_PROCESS_CPUTIME_ID"
    ),
    Metric(
        "gangwatch_agent_memory_resident_bytes",
        "gauge",
        "Resident memory of the agent process.",
        "bytes",
        (),
        "/proc/self/statm",
    ),
    Metric(
        "gangwatch_agent_open_descriptors",
        "gauge",
        "Open file descriptors of the agent process.",
        "",
        (),
        "/proc/self/fd",
    ),
    Metric("gangwatch_agent_threads", "gauge", "Python threads of the agent process.", "", (), "the agent"),
    Metric(
        "gangwatch_agent_threads_abandoned",
        "gauge",
        "Agent threads that are blocked in a call and have been replaced by another thread.",
        "",
        (),
        "the agent",
    ),
    Metric(
        "gangwatch_agent_released",
        "gauge",
        "1 while the agent has released its devices on request, so that they can be reset.",
        "",
        (),
        "the agent",
    ),
    Metric(
        "gangwatch_collector_success",
        "gauge",
        "1 if the collector's last run succeeded and its sample is fresh.",
        "",
        ("collector",),
        "the agent",
    ),
    Metric(
        "gangwatch_collector_stuck",
        "gauge",
        "1 if the collector is blocked in a call that does not return.",
        "",
        ("collector",),
        "the agent",
    ),
    Metric(
        "gangwatch_collector_interval_seconds",
        "gauge",
        "Interval between runs of the collector. The agent lengthens it while the collector uses too much CPU.",
        "seconds",
        ("collector",),
        "the agent",
    ),
    seconds_counter(
        "gangwatch_collector_cpu_seconds_total",
        "CPU time used by the collector.",
        ("collector",),
        "CLOCK_THREAD_CPUTIME_ID",
    ),
    Metric(
        "gangwatch_collector_duration_seconds",
        "gauge",
        "Duration of the collector's last run.",
        "seconds",
        ("collector",),
        "the agent",
    ),
    Metric(
        "gangwatch_collector_sample_age_seconds",
        "gauge",
        "Age of the collector's newest sample when the frame was assembled.",
        "seconds",
        ("collector",),
        "the agent",
    ),
    Metric(
        "gangwatch_collector_failures_total",
        "counter",
        "Failed runs of the collector.",
        "",
        ("collector",),
        "the agent",
    ),
    Metric(
        "gangwatch_step_reporters",
        "gauge",
        "Training processes registered on the step socket.",
        "",
        (),
        "step socket",
    ),
    Metric(
        "gangwatch_step_reporters_refused_total",
        "counter",
        "Refused registrations by reason: malformed, ring (no sealed ring of a permitted size), descriptors, timeout, "
        "identity (does not match the process), name, quota (of the tenant), rate, full (no free slot on the node).",
        "",
        ("reason",),
        "step socket",
    ),
    Metric(
        "gangwatch_step_records_malformed_total",
        "counter",
        "Ring records skipped because they were incomplete or contained an impossible value.",
        "",
        (),
        "step rings",
    ),
    Metric(
        "gangwatch_step_records_lost_total",
        "counter",
        "Ring records overwritten before the agent read them.",
        "",
        (),
        "step rings",
    ),
)
