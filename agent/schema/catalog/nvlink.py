"""NVLink, link by link, the fabric that its switches make, and the links to a processor on the same module."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric, bytes_counter

_GPU = ("gpu",)
_LINK = ("gpu", "link")
_FIELDS = "nvmlDeviceGetFieldValues"
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"


def _gauge(name: str, help: str, unit: str, source: str, labels: tuple[str, ...] = _LINK) -> Metric:
    return Metric(f"gangwatch_{name}", "gauge", help, unit, labels, source)


def _counter(name: str, help: str, source: str, labels: tuple[str, ...] = _LINK) -> Metric:
    return Metric(f"gangwatch_{name}", "counter", help, "", labels, source)


NVLINK: tuple[Metric, ...] = (
    Metric("gangwatch_nvlink_info", "info", "The link's version, and what is at its other end.", "",
           ("gpu", "link", "remote", "remote_kind", "remote_link", "version"), "nvmlDeviceGetNvLinkRemotePciInfo_v2"),
    _gauge("nvlink_links", "NVLinks of the GPU.", "", f"{_FIELDS} 91", _GPU),
    _gauge("nvlink_state", "0 inactive, 1 active, 2 asleep, 3 active but closed to traffic.", "", f"{_FIELDS} 165"),
    _gauge("nvlink_speed_bytes_per_second", "Speed of the link in one direction.", "bytes", f"{_FIELDS} 164"),
    bytes_counter("gangwatch_nvlink_transmit_bytes_total", "Bytes that programs sent over the link.", _LINK,
                  f"{_FIELDS} 138"),
    bytes_counter("gangwatch_nvlink_receive_bytes_total", "Bytes that programs received over the link.", _LINK,
                  f"{_FIELDS} 139"),
    bytes_counter("gangwatch_nvlink_transmit_raw_bytes_total", "Bytes sent, with the link's own overhead.", _LINK,
                  f"{_FIELDS} 140, or 202"),
    bytes_counter("gangwatch_nvlink_receive_raw_bytes_total", "Bytes received, with the link's own overhead.", _LINK,
                  f"{_FIELDS} 141, or 204"),
    _counter("nvlink_transmit_packets_total", "Packets sent (NVLink 5).", f"{_FIELDS} 201"),
    _counter("nvlink_receive_packets_total", "Packets received (NVLink 5).", f"{_FIELDS} 203"),
    _counter("nvlink_errors_total", "Errors of this kind.", f"{_FIELDS} 32-59, 96-119, 148-163, 206-219",
             ("gpu", "kind", "link")),
    _counter("gpu_nvlink_errors_total", "Errors of this kind on all of the GPU's links together.",
             f"{_FIELDS} 32-59, 96-119, 148-163, 206-219", ("gpu", "kind")),
    _counter("nvlink_recoveries_total", "Times that the link went into recovery, by how that ended (NVLink 5).",
             f"{_FIELDS} 213, 214", ("gpu", "link", "outcome")),
    _counter("nvlink_recovery_attempts_total", "Times that the link went into recovery (NVLink 5).",
             f"{_FIELDS} 215"),
    _counter("nvlink_symbol_errors_total", "Symbols received wrong (NVLink 5).", f"{_FIELDS} 221"),
    _counter("nvlink_fec_codewords_total",
             "Codewords by the number of symbols that forward error correction put right (NVLink 5).",
             f"{_FIELDS} 235-250", ("corrected_symbols", "gpu", "link")),
    _gauge("nvlink_bit_error_ratio", "Wrong bits over all bits: before correction, after it, in symbols (NVLink 5).",
           "ratio", f"{_FIELDS} 220, 222, 293", ("gpu", "link", "stage")),
    _gauge("nvlink_lane_bit_error_ratio", "Wrong bits over all bits of one lane before correction (NVLink 5).",
           "ratio", f"{_FIELDS} 291, 292", ("gpu", "lane", "link")),
    _counter("nvlink_retransmission_blocks_total", "Blocks sent that could be sent again (NVLink 5).",
             f"{_FIELDS} 294"),
    _counter("nvlink_retransmitted_blocks_total", "Blocks sent again (NVLink 5).", f"{_FIELDS} 295"),
    _counter("nvlink_lane_errors_total", "Bits received wrong on one lane, before correction (NVLink 5).",
             f"{_FIELDS} 289, 290", ("gpu", "lane", "link")),
    Metric("gangwatch_fabric_info", "info", "The cluster and clique of GPUs that the fabric put this one into.", "",
           ("clique", "cluster", "gpu"), _FABRIC),
    _gauge("fabric_state", "1 for how far the GPU's registration with the fabric is.", "", _FABRIC, ("gpu", "state")),
    _gauge("fabric_status", "Error that the registration ended with; 0 is none.", "", _FABRIC, _GPU),
    _gauge("fabric_fault", "Whether the fabric reports this of the GPU.", "", _FABRIC, ("aspect", "gpu")),
    _gauge("fabric_misconfiguration",
           "Why the configuration is wrong, as NVML numbers it (NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*);"
           " 0 is right.", "", _FABRIC, _GPU),
    _gauge("fabric_health", "1 for the fabric's summary of the GPU's health.", "", _FABRIC, ("gpu", "health")),
    _gauge("c2c_links", "Links from the GPU to the processor on its module (C2C).", "", f"{_FIELDS} 170", _GPU),
    _gauge("c2c_link_state", "Whether the C2C link is active.", "", f"{_FIELDS} 171"),
    _gauge("c2c_link_speed_bytes_per_second", "Speed of the C2C link while it is active.", "bytes", f"{_FIELDS} 172"),
    _gauge("c2c_link_low_power", "Whether the C2C link is in its low-power state.", "", f"{_FIELDS} 234"),
    _counter("c2c_errors_total", "Errors of this kind on the C2C link.", f"{_FIELDS} 231-233",
             ("gpu", "kind", "link")),
    *(
        _gauge(f"c2c_{direction}_{raw}bytes_per_second",
               f"Traffic {'sent' if direction == 'transmit' else 'received'} on all C2C links{overhead}, over the "
               "newest interval.", "bytes", "GPM (nvmlGpmMetricsGet)", _GPU)
        for direction in ("transmit", "receive")
        for raw, overhead in (("", ""), ("raw_", " with their own overhead"))
    ),
)  # fmt: skip
