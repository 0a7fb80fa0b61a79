"""Metrics of the processes of a rank."""

from __future__ import annotations

from agent.schema.catalog.metric import MEMBER, Metric, bytes_counter, seconds_counter

PROCESS: tuple[Metric, ...] = (
    seconds_counter(
        "gangwatch_rank_cpu_seconds_total",
        "CPU time of the rank's processes and threads.",
        MEMBER,
        "/proc/PID/task/*/schedstat",
    ),
    seconds_counter(
        "gangwatch_rank_runqueue_wait_seconds_total",
        "Time in which the rank's threads were runnable and waited for a CPU.",
        MEMBER,
        "/proc/PID/task/*/schedstat",
    ),
    seconds_counter(
        "gangwatch_rank_block_io_seconds_total",
        "Time in which the main threads of the rank's processes waited for block I/O.",
        MEMBER,
        "/proc/PID/stat delayacct_blkio_ticks",
    ),
    Metric(
        "gangwatch_rank_stopped_samples_total",
        "counter",
        "Samples in which a process of the rank was stopped by a signal or a tracer (state T or t).",
        "",
        MEMBER,
        "/proc/PID/stat",
    ),
    Metric(
        "gangwatch_rank_samples_total", "counter", "Samples taken of the rank's processes.", "", MEMBER, "the agent"
    ),
    Metric(
        "gangwatch_rank_memory_resident_bytes",
        "gauge",
        "Resident memory of the rank's processes.",
        "bytes",
        MEMBER,
        "/proc/PID/statm",
    ),
    Metric("gangwatch_rank_threads", "gauge", "Threads of the rank's processes.", "", MEMBER, "/proc/PID/stat"),
    Metric(
        "gangwatch_rank_process_state",
        "gauge",
        "State of the rank's processes: 0 gone, 1 running or sleeping, 2 uninterruptible (D), 3 stopped (T), "
        "4 traced (t), 5 zombie. If the states differ, a stopped or waiting process takes precedence.",
        "",
        MEMBER,
        "/proc/PID/stat",
    ),
    bytes_counter(
        "gangwatch_rank_read_bytes_total", "Bytes that the rank read from storage.", MEMBER, "/proc/PID/io read_bytes"
    ),
    bytes_counter(
        "gangwatch_rank_written_bytes_total",
        "Bytes that the rank wrote to storage.",
        MEMBER,
        "/proc/PID/io write_bytes",
    ),
    Metric(
        "gangwatch_rank_major_page_faults_total",
        "counter",
        "Page faults of the rank's processes for which a page was read from storage: a file or swap.",
        "",
        MEMBER,
        "/proc/PID/stat majflt",
    ),
    bytes_counter(
        "gangwatch_rank_tcp_sent_bytes_total",
        "Bytes that the rank's processes sent over TCP to other hosts, including bytes sent again.",
        MEMBER,
        "sock_diag tcpi_bytes_sent",
    ),
    bytes_counter(
        "gangwatch_rank_tcp_retransmitted_bytes_total",
        "Bytes that the rank's processes sent again over TCP to other hosts.",
        MEMBER,
        "sock_diag tcpi_bytes_retrans",
    ),
    seconds_counter(
        "gangwatch_rank_tcp_busy_seconds_total",
        "Time in which sent data was unacknowledged, without that of a full receive window; sum over TCP connections.",
        MEMBER,
        "sock_diag tcpi_busy_time, tcpi_rwnd_limited",
    ),
    seconds_counter(
        "gangwatch_rank_transmit_queue_seconds_total",
        "Time in which packets waited in a transmit queue of the rank's interfaces; sampled while it sends over TCP.",
        MEMBER,
        "rtnetlink RTM_GETQDISC",
    ),
)
