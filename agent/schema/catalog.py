"""THE table of metrics: every series that gangwatch publishes is declared here, and nowhere else.

Exposition, frames, dashboards, rules and the reference page take names, units and help from this table; a collector
that emits a name that is not here fails its test.

Units are Prometheus base units outside. Counters are kept as integers inside, in the unit that ``integer_unit`` names,
and ``scale`` takes them to the base unit once, on the way out: nanoseconds x 1e-9 are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    name: the full Prometheus name; kind: 'info' is a gauge of constant 1 whose labels are the message.
    unit: base unit outside ('' where it is a count or a state); labels: names beside ``node``, sorted.
    scale, integer_unit: from the integer inside to the unit outside; counters only.
    source: where the number is read. compatibility: name of the same number in dashboards that people already have.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    source: str = ""
    scale: float = 1.0
    integer_unit: str = ""
    compatibility: str = ""


_NS = 1e-9
_MEMBER = ("attempt", "gang", "rank")
_GPU = ("gpu",)


def _seconds(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    """A counter of seconds, kept in nanoseconds."""
    return Metric(name, "counter", help, "seconds", labels, source, _NS, "ns", compatibility)


def _bytes(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    return Metric(name, "counter", help, "bytes", labels, source, 1.0, "bytes", compatibility)


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

HOST: tuple[Metric, ...] = (
    _seconds(
        "gangwatch_host_cpu_seconds_total",
        "Time of all processors by mode.",
        ("mode",),
        "/proc/stat",
        "node_cpu_seconds_total",
    ),
    Metric("gangwatch_host_cpus", "gauge", "Processors online.", "", (), "/proc/stat"),
    Metric(
        "gangwatch_host_load1",
        "gauge",
        "Load average over one minute.",
        "",
        (),
        "/proc/loadavg",
        compatibility="node_load1",
    ),
    Metric(
        "gangwatch_host_memory_total_bytes",
        "gauge",
        "Memory of the machine.",
        "bytes",
        (),
        "/proc/meminfo MemTotal",
        compatibility="node_memory_MemTotal_bytes",
    ),
    Metric(
        "gangwatch_host_memory_available_bytes",
        "gauge",
        "Memory that can be had without swapping.",
        "bytes",
        (),
        "/proc/meminfo MemAvailable",
        compatibility="node_memory_MemAvailable_bytes",
    ),
    _seconds(
        "gangwatch_host_pressure_waiting_seconds_total",
        "Time in which some task waited for the resource (pressure-stall 'some').",
        ("resource",),
        "/proc/pressure/*",
        "node_pressure_*_waiting_seconds_total",
    ),
    _seconds(
        "gangwatch_host_pressure_stalled_seconds_total",
        "Time in which every runnable task waited for the resource (pressure-stall 'full').",
        ("resource",),
        "/proc/pressure/*",
        "node_pressure_*_stalled_seconds_total",
    ),
    _bytes(
        "gangwatch_host_disk_read_bytes_total",
        "Bytes read from the block device.",
        ("device",),
        "/proc/diskstats",
        "node_disk_read_bytes_total",
    ),
    _bytes(
        "gangwatch_host_disk_written_bytes_total",
        "Bytes written to the block device.",
        ("device",),
        "/proc/diskstats",
        "node_disk_written_bytes_total",
    ),
    _seconds(
        "gangwatch_host_disk_io_time_seconds_total",
        "Time in which the block device had work.",
        ("device",),
        "/proc/diskstats",
        "node_disk_io_time_seconds_total",
    ),
    _bytes(
        "gangwatch_host_network_receive_bytes_total",
        "Bytes received by the interface.",
        ("device",),
        "/proc/net/dev",
        "node_network_receive_bytes_total",
    ),
    _bytes(
        "gangwatch_host_network_transmit_bytes_total",
        "Bytes sent by the interface.",
        ("device",),
        "/proc/net/dev",
        "node_network_transmit_bytes_total",
    ),
    Metric(
        "gangwatch_host_network_receive_errors_total",
        "counter",
        "Receive errors of the interface.",
        "",
        ("device",),
        "/proc/net/dev",
        compatibility="node_network_receive_errs_total",
    ),
    Metric(
        "gangwatch_host_network_transmit_errors_total",
        "counter",
        "Transmit errors of the interface.",
        "",
        ("device",),
        "/proc/net/dev",
        compatibility="node_network_transmit_errs_total",
    ),
)

PROCESS: tuple[Metric, ...] = (
    _seconds(
        "gangwatch_rank_cpu_seconds_total",
        "Processor time of the rank's processes and threads.",
        _MEMBER,
        "/proc/PID/task/*/schedstat",
    ),
    _seconds(
        "gangwatch_rank_runqueue_wait_seconds_total",
        "Time the rank's threads were runnable and waited for a processor.",
        _MEMBER,
        "/proc/PID/task/*/schedstat",
    ),
    _seconds(
        "gangwatch_rank_block_io_seconds_total",
        "Time the main threads of the rank's processes waited for block I/O.",
        _MEMBER,
        "/proc/PID/stat delayacct_blkio_ticks",
    ),
    Metric(
        "gangwatch_rank_stopped_samples_total",
        "counter",
        "Samples in which a process of the rank was stopped by a signal or a tracer (state T or t).",
        "",
        _MEMBER,
        "/proc/PID/stat",
    ),
    Metric("gangwatch_rank_samples_total", "counter", "Samples taken of the rank's processes.", "", _MEMBER, "itself"),
    Metric(
        "gangwatch_rank_memory_resident_bytes",
        "gauge",
        "Resident memory of the rank's processes.",
        "bytes",
        _MEMBER,
        "/proc/PID/statm",
    ),
    Metric("gangwatch_rank_threads", "gauge", "Threads of the rank's processes.", "", _MEMBER, "/proc/PID/stat"),
    _bytes("gangwatch_rank_read_bytes_total", "Bytes read from storage.", _MEMBER, "/proc/PID/io read_bytes"),
    _bytes("gangwatch_rank_written_bytes_total", "Bytes sent to storage.", _MEMBER, "/proc/PID/io write_bytes"),
)

STEP: tuple[Metric, ...] = (
    Metric("gangwatch_rank_steps_total", "counter", "Training steps finished.", "", _MEMBER, "step ring"),
    _seconds("gangwatch_rank_step_seconds_total", "Time in finished steps.", _MEMBER, "step ring"),
    _seconds(
        "gangwatch_rank_wait_seconds_total",
        "Time in finished steps spent waiting in collectives; absent where it cannot be measured.",
        _MEMBER,
        "step ring",
    ),
    Metric(
        "gangwatch_rank_tokens_total", "counter", "Tokens or samples that the rank reported.", "", _MEMBER, "step ring"
    ),
    Metric("gangwatch_rank_collectives_entered_total", "counter", "Collectives entered.", "", _MEMBER, "step ring"),
    Metric("gangwatch_rank_collectives_left_total", "counter", "Collectives left.", "", _MEMBER, "step ring"),
    Metric("gangwatch_rank_step", "gauge", "Number of the newest step begun.", "", _MEMBER, "step ring"),
)

GPU: tuple[Metric, ...] = (
    Metric(
        "gangwatch_gpu_info",
        "info",
        "Model, address and driver of the GPU.",
        "",
        ("driver", "gpu", "model", "pci_address"),
        "NVML",
    ),
    Metric("gangwatch_gpu_utilization_ratio", "gauge", "Share of time with a kernel running.", "ratio", _GPU,
           "nvmlDeviceGetUtilizationRates", compatibility="DCGM_FI_DEV_GPU_UTIL"),
    Metric("gangwatch_gpu_memory_utilization_ratio", "gauge", "Share of time with device memory in use.", "ratio", _GPU,
           "nvmlDeviceGetUtilizationRates", compatibility="DCGM_FI_DEV_MEM_COPY_UTIL"),
    Metric("gangwatch_gpu_memory_total_bytes", "gauge", "Device memory.", "bytes", _GPU, "nvmlDeviceGetMemoryInfo"),
    Metric("gangwatch_gpu_memory_used_bytes", "gauge", "Device memory in use.", "bytes", _GPU,
           "nvmlDeviceGetMemoryInfo", compatibility="DCGM_FI_DEV_FB_USED"),
    Metric("gangwatch_gpu_power_watts", "gauge", "Power drawn, as the driver averages it.", "watts", _GPU,
           "nvmlDeviceGetPowerUsage", compatibility="DCGM_FI_DEV_POWER_USAGE"),
    Metric("gangwatch_gpu_energy_joules_total", "counter", "Energy since the driver was loaded.", "joules", _GPU,
           "nvmlDeviceGetTotalEnergyConsumption", 1e-3, "mJ", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    Metric("gangwatch_gpu_temperature_celsius", "gauge", "Temperature of the die.", "celsius", _GPU,
           "nvmlDeviceGetTemperature", compatibility="DCGM_FI_DEV_GPU_TEMP"),
    Metric("gangwatch_gpu_sm_clock_hertz", "gauge", "Clock of the streaming multiprocessors.", "hertz", _GPU,
           "nvmlDeviceGetClockInfo", compatibility="DCGM_FI_DEV_SM_CLOCK"),
    Metric("gangwatch_gpu_memory_clock_hertz", "gauge", "Clock of the device memory.", "hertz", _GPU,
           "nvmlDeviceGetClockInfo", compatibility="DCGM_FI_DEV_MEM_CLOCK"),
    Metric("gangwatch_gpu_throttle_state", "gauge", "Whether the clock is held down for this reason.", "",
           ("gpu", "reason"), "nvmlDeviceGetCurrentClocksEventReasons"),
)  # fmt: skip

FEEDBACK: tuple[Metric, ...] = (
    Metric("gangwatch_nodes", "gauge", "Nodes by state.", "", ("state",), "the cycle"),
    Metric("gangwatch_node_state", "gauge", "1 for the state that the node is in.", "", ("state",), "the cycle"),
    Metric("gangwatch_slots", "gauge", "Slots by use.", "", ("use",), "the cycle"),
    Metric("gangwatch_gangs", "gauge", "Gangs by state.", "", ("state",), "the cycle"),
    Metric("gangwatch_gang_info", "info", "Name and place of a gang that has not ended.", "",
           ("gang", "name", "queue", "state"), "the cycle"),
    Metric("gangwatch_gang_ranks", "gauge", "Ranks of the gang.", "", ("gang",), "the cycle"),
    Metric("gangwatch_gang_attempts_total", "counter", "Times the gang was started.", "", ("gang",), "the cycle"),
    Metric("gangwatch_gang_step_seconds", "gauge", "Mean step time over the newest window.", "seconds", ("gang",),
           "step records"),
    Metric("gangwatch_gang_wait_seconds_ahead", "gauge", "Expected time until a waiting gang starts.", "seconds",
           ("gang",), "the cycle"),
    Metric("gangwatch_rank_slowdown_ratio", "gauge", "Step time over step time without this rank: 1 is harmless.",
           "ratio", ("gang", "rank"), "the straggler detector"),
    Metric("gangwatch_verdicts_total", "counter", "Verdicts by kind and cause.", "", ("cause", "kind"),
           "the detectors"),
    Metric("gangwatch_verdict_active", "gauge", "A verdict that stands, with its confidence as value.", "",
           ("cause", "gang", "kind", "rank", "verdict"), "the detectors"),
    Metric("gangwatch_abstentions_total", "counter", "Times a detector saw slowness and could not tell whose.", "",
           ("detector",), "the detectors"),
    Metric("gangwatch_decisions_total", "counter", "Decisions by kind and what became of them.", "",
           ("kind", "outcome"), "the cycle"),
    Metric("gangwatch_cycles_total", "counter", "Scheduling cycles run.", "", (), "the controller"),
    Metric("gangwatch_cycle_duration_seconds", "gauge", "How long the newest cycle took.", "seconds", (),
           "the controller"),
    Metric("gangwatch_frozen", "gauge", "1 while an operator has frozen all actions.", "", (), "the controller"),
    Metric("gangwatch_store_failures_total", "counter", "Journal writes that failed; nothing was acted on.", "", (),
           "the controller"),
    Metric("gangwatch_backend_failures_total", "counter", "Times the backend could not do or tell something.", "", (),
           "the controller"),
    Metric("gangwatch_replay_mismatches_total", "counter",
           "Cycles that decided otherwise in a replay than was recorded; the record was followed.", "", (),
           "the controller"),
    Metric("gangwatch_detector_failures_total", "counter", "Bugs of a detector; it is out of service after one.", "",
           ("detector",), "the watch"),
    Metric("gangwatch_watch_frames_dropped_total", "counter", "Frames dropped because folding could not keep up.", "",
           (), "the watch"),
    Metric("gangwatch_watch_frames_refused_total", "counter", "Frames that did not fit their layout or node.", "", (),
           "the watch"),
    Metric("gangwatch_feed_connected", "gauge", "Whether the agent's frame stream is connected.", "", (), "the feed"),
    Metric("gangwatch_feed_frames_total", "counter", "Frames received from the agent.", "", (), "the feed"),
    Metric("gangwatch_feed_malformed_total", "counter", "Messages from the agent that were refused.", "", (),
           "the feed"),
    Metric("gangwatch_feed_frame_age_seconds", "gauge", "Time since the newest frame was received.", "seconds", (),
           "the feed"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = AGENT + HOST + PROCESS + STEP + GPU + FEEDBACK


def index(metrics: Iterable[Metric] = METRICS) -> dict[str, Metric]:
    """The table by name. Raises ValueError where a name stands twice."""
    table: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name in table:
            raise ValueError(f"{metric.name} stands twice in the catalogue")
        table[metric.name] = metric
    return table


BY_NAME: dict[str, Metric] = index()
