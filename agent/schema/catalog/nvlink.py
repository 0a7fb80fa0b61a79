"""Metrics of each NVLink, of the NVLink fabric, and of the C2C links to a CPU on the same module."""

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
    Metric("gangwatch_nvlink_info", "info", "Version and remote end of the link.", "",
           ("gpu", "link", "remote", "remote_kind", "remote_link", "version"), "nvmlDeviceGetNvLinkRemotePciInfo_v2"),
    _gauge("nvlink_links", "Number of NVLinks of the GPU.", "", f"{_FIELDS} 91", _GPU),
    _gauge("nvlink_state", "State of the link: 0 inactive, 1 active, 2 sleep, 3 active without traffic allowed.", "",
           f"{_FIELDS} 165"),
    _gauge("nvlink_speed_bytes_per_second", "Speed of the link in one direction.", "bytes_per_second",
           f"{_FIELDS} 164"),
    bytes_counter("gangwatch_nvlink_transmit_bytes_total", "Payload bytes sent over the link.", _LINK,
                  f"{_FIELDS} 138"),
    bytes_counter("gangwatch_nvlink_receive_bytes_total", "Payload bytes received over the link.", _LINK,
                  f"{_FIELDS} 139"),
    bytes_counter("gangwatch_nvlink_transmit_raw_bytes_total", "Bytes sent over the link, including protocol overhead.",
                  _LINK,
                  f"{_FIELDS} 140, or 202"),
    bytes_counter("gangwatch_nvlink_receive_raw_bytes_total",
                  "Bytes received over the link, including protocol overhead.", _LINK,
                  f"{_FIELDS} 141, or 204"),
    _counter("nvlink_transmit_packets_total", "Packets sent (NVLink 5).", f"{_FIELDS} 201"),
    _counter("nvlink_receive_packets_total", "Packets received (NVLink 5).", f"{_FIELDS} 203"),
    _counter("nvlink_errors_total", "Errors of this kind on the link.", f"{_FIELDS} 32-59, 96-119, 148-163, 206-219",
             ("gpu", "kind", "link")),
    _counter("gpu_nvlink_errors_total", "Errors of this kind summed over all links of the GPU.",
             f"{_FIELDS} 32-59, 96-119, 148-163, 206-219", ("gpu", "kind")),
    _counter("nvlink_recoveries_total", "Recoveries of the link by outcome (NVLink 5).",
             f"{_FIELDS} 213, 214", ("gpu", "link", "outcome")),
    _counter("nvlink_recovery_attempts_total", "Times the link entered recovery (NVLink 5).",
             f"{_FIELDS} 215"),
    _counter("nvlink_symbol_errors_total", "Symbols received with an error (NVLink 5).", f"{_FIELDS} 221"),
    _counter("nvlink_fec_codewords_total",
             "Codewords by number of symbols corrected by forward error correction (NVLink 5).",
             f"{_FIELDS} 235-250", ("corrected_symbols", "gpu", "link")),
    _gauge("nvlink_bit_error_ratio", "Bit error rate before correction, after correction, and in symbols (NVLink 5).",
           "ratio", f"{_FIELDS} 220, 222, 293", ("gpu", "link", "stage")),
    _gauge("nvlink_lane_bit_error_ratio", "Bit error rate of one lane before correction (NVLink 5).",
           "ratio", f"{_FIELDS} 291, 292", ("gpu", "lane", "link")),
    _counter("nvlink_retransmission_blocks_total", "Blocks sent that can be retransmitted (NVLink 5).",
             f"{_FIELDS} 294"),
    _counter("nvlink_retransmitted_blocks_total", "Blocks retransmitted (NVLink 5).", f"{_FIELDS} 295"),
    _counter("nvlink_lane_errors_total", "Bit errors of one lane before correction (NVLink 5).",
             f"{_FIELDS} 289, 290", ("gpu", "lane", "link")),
    Metric("gangwatch_fabric_info", "info", "Cluster and clique of GPUs to which the fabric assigned this GPU.", "",
           ("clique", "cluster", "gpu"), _FABRIC),
    _gauge("fabric_state", "1 for the current state of the GPU's registration with the fabric.", "", _FABRIC,
           ("gpu", "state")),
    _gauge("fabric_status", "Error code of the GPU's registration with the fabric; 0 means no error.", "", _FABRIC,
           _GPU),
    _gauge("fabric_fault", "1 if the fabric reports this fault for the GPU.", "", _FABRIC, ("aspect", "gpu")),
    _gauge("fabric_misconfiguration",
           "Cause of a wrong fabric configuration, a value of NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*; "
           "0 means that it is correct.", "", _FABRIC, _GPU),
    _gauge("fabric_health", "1 for the GPU's health as summarised by the fabric.", "", _FABRIC, ("gpu", "health")),
    _gauge("c2c_links", "Number of links from the GPU to the CPU on its module (C2C).", "", f"{_FIELDS} 170", _GPU),
    _gauge("c2c_link_state", "1 if the C2C link is active.", "", f"{_FIELDS} 171"),
    _gauge("c2c_link_speed_bytes_per_second", "Speed of the C2C link while it is active.", "bytes_per_second",
           f"{_FIELDS} 172"),
    _gauge("c2c_link_low_power", "1 if the C2C link is in its low-power state.", "", f"{_FIELDS} 234"),
    _counter("c2c_errors_total", "Errors of this kind on the C2C link.", f"{_FIELDS} 231-233",
             ("gpu", "kind", "link")),
    *(
        _gauge(f"c2c_{direction}_{raw}bytes_per_second",
               f"Traffic {'sent' if direction == 'transmit' else 'received'} on all C2C links{overhead}, over the "
               "last interval.", "bytes_per_second", "GPM (nvmlGpmMetricsGet)", _GPU)
        for direction in ("transmit", "receive")
        for raw, overhead in (("", ""), ("raw_", " including protocol overhead"))
    ),
)  # fmt: skip
