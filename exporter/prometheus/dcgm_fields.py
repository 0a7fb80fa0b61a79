"""Names of DCGM's fields: the series that they are derived from, and the fields that are left out.

docs/reference/dcgm.md is generated from these tables. Sources: dcgm-exporter d5e5f51 (etc/*.csv), DCGM (dcgm_fields.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.schema.catalog import BY_NAME, METRICS, Metric

SPLIT: dict[str, tuple[str, dict[str, str]]] = {
    "gangwatch_gpu_ecc_errors_total": (
        "severity",
        {"corrected": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "uncorrected": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"},
    ),
    "gangwatch_gpu_ecc_lifetime_errors_total": (
        "severity",
        {"corrected": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "uncorrected": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"},
    ),
    "gangwatch_gpu_retired_pages_total": (
        "cause",
        {"corrected": "DCGM_FI_DEV_RETIRED_SBE", "uncorrected": "DCGM_FI_DEV_RETIRED_DBE"},
    ),
    "gangwatch_gpu_remapped_rows_total": (
        "cause",
        {
            "corrected": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
            "uncorrected": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        },
    ),
    "gangwatch_gpu_throttle_seconds_total": (
        "reason",
        {
            "power_cap": "DCGM_FI_DEV_POWER_VIOLATION",
            "thermal_policy": "DCGM_FI_DEV_THERMAL_VIOLATION",
            "sync_boost": "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
            "board_limit": "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
            "low_utilization": "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
            "reliability": "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        },
    ),
    "gangwatch_gpu_power_limit_watts": (
        "limit",
        {
            "requested": "DCGM_FI_DEV_POWER_MGMT_LIMIT",
            "min": "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
            "max": "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
            "default": "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
            "current": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        },
    ),
    # From Hopper on, NVML has one count of CRC errors for a link, that of the data link layer.
    "gangwatch_gpu_nvlink_errors_total": (
        "kind",
        {
            "crc_flit": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
            "crc": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
            "crc_data": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
            "replay": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
            "recovery": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        },
    ),
    "gangwatch_gpu_pipe_active_ratio": (
        "pipe",
        {
            "fp64": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
            "fp32": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
            "fp16": "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        },
    ),
}
"""Metrics that correspond to several fields of DCGM: the label that distinguishes them, and DCGM's name for each value
of this label."""

SECOND_NAMES = {
    "gangwatch_gpu_pcie_transmit_bytes_per_second": "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
    "gangwatch_gpu_pcie_receive_bytes_per_second": "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
}
"""Metrics that correspond to a second field of DCGM, in another unit than that of ``Metric.compatibility``."""

CLOCK_EVENTS = {
    "gpu_idle": 0x1,
    "clocks_setting": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Throttle reasons of gangwatch that are also values of the label of DCGM_EXP_CLOCK_EVENTS_COUNT, with their bits in
DCGM_FI_DEV_CLOCKS_EVENT_REASONS (DCGM_CLOCKS_EVENT_REASON_*)."""

MASKS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
"""The bit mask of throttle reasons: DCGM's present name, and its former name."""

COMPUTED = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "`gangwatch_gpu_nvlink_*_bytes_per_second`, both directions",
    "DCGM_FI_DEV_XID_ERRORS": "`gangwatch_gpu_xid_newest_timestamp_seconds`",
    "DCGM_EXP_XID_ERRORS_COUNT": "`gangwatch_gpu_xid_total`, last five minutes",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "`gangwatch_gpu_throttle_state`, last five minutes",
    **dict.fromkeys(MASKS, "`gangwatch_gpu_throttle_state`, one bit a reason"),
}
"""Names whose values are computed from several series, and these series."""

_IN_INFO = "join with `gangwatch_gpu_info`, which has it as a label"
_NOT_READ = "not read: it does not change and no alert or detector needs it"

LEFT_OUT = {
    "DCGM_EXP_GPU_HEALTH_STATUS": "DCGM's own health checks; use the alerts and `gangwatch_verdict_active`",
    "DCGM_EXP_P2P_STATUS": "`gangwatch_gpu_peer_info` has the connection of each pair of GPUs",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "by link: `gangwatch_nvlink_transmit_bytes_total` and `..._receive_...`",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "the agent reads GPUs of the host, not virtual GPUs",
    "DCGM_FI_DEV_FB_USED_PERCENT": "`DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL`",
    "DCGM_FI_DRIVER_VERSION": _IN_INFO,
    "DCGM_FI_DEV_SERIAL": _IN_INFO,
    "DCGM_FI_DEV_VBIOS_VERSION": _IN_INFO,
    "DCGM_FI_NVML_VERSION": _NOT_READ,
    "DCGM_FI_DEV_BRAND": _NOT_READ,
    "DCGM_FI_DEV_OEM_INFOROM_VER": _NOT_READ,
    "DCGM_FI_DEV_ECC_INFOROM_VER": _NOT_READ,
    "DCGM_FI_DEV_POWER_INFOROM_VER": _NOT_READ,
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _NOT_READ,
}
"""Fields that are not published, and why or what to use. All others of dcgm-exporter's lists (etc/*.csv) are."""

LEFT_OUT_GROUPS = {
    "`DCGM_FI_DEV_NVSWITCH_*`, `DCGM_FI_DEV_CPU_*`": "NVSwitches and processors: the agent reads GPUs only",
    "`dcgm_*` (names of dcgm-exporter 1.x)": "replaced by DCGM_FI_* in dcgm-exporter 2.0",
    "labels of pods (`--kubernetes-enable-pod-labels`)": (
        "off by default: `agent.pod_label_names` lists the keys; as in kube-state-metrics, labels are named `label_KEY`"
    ),
    "`pod_uid` (`--kubernetes-enable-pod-uid`)": (
        "join with `kube_pod_info` of kube-state-metrics on `namespace` and `pod`"
    ),
    "label `hpc_job` (`--hpc-job-mapping-dir`)": "`slurm_job` of `gangwatch_gpu_owner_info`",
    "labels `err_code` and `err_msg` of `DCGM_FI_DEV_XID_ERRORS`": "the runbook GangwatchGpuXid lists the codes",
}
"""Groups of fields and labels that are left out, and why or what to use."""


def names_of(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return DCGM's names of one series, normally one or none. MIG instances have the same names as whole GPUs."""
    whole = BY_NAME.get(metric.name.replace("gangwatch_gpu_mig_", "gangwatch_gpu_"), metric)
    if (split := SPLIT.get(whole.name)) is not None:
        name = split[1].get(labels.get(split[0], ""), "")
        return (name,) if name else ()
    first = (whole.compatibility,) if whole.compatibility.startswith("DCGM_") else ()
    second = (SECOND_NAMES[whole.name],) if whole.name in SECOND_NAMES else ()
    return (*first, *second)


def published() -> Iterator[tuple[str, str]]:
    """Yield (DCGM's name, gangwatch's series as Markdown) of every field that is published."""
    for metric in METRICS:
        if metric.name in SPLIT:
            label, names = SPLIT[metric.name]
            for value, name in names.items():
                yield name, f'`{metric.name}{{{label}="{value}"}}`'
        elif not metric.name.startswith("gangwatch_gpu_mig_"):
            for name in names_of(metric, {}):
                yield name, f"`{metric.name}`"
    yield from COMPUTED.items()


def unit_of(name: str) -> str:
    """Return the unit of a published field, as a word or symbol; '' for a count or a state."""
    if name.endswith("_VIOLATION"):
        return "ns"
    for part, unit in _UNITS:
        if part in name:
            return unit
    return ""


_UNITS = (
    ("_PROF_PCIE_", "bytes/s"),
    ("_PROF_NVLINK_", "bytes/s"),
    ("_PROF_", "ratio"),
    ("_THROUGHPUT", "kB/s"),
    ("_BANDWIDTH_TOTAL", "1000 KiB/s"),
    ("_FB_", "MiB"),
    ("_CLOCK_THROTTLE_REASONS", ""),
    ("_CLOCKS_EVENT_REASONS", ""),
    ("_CLOCK_EVENTS_", ""),
    ("_CLOCK", "MHz"),
    ("_ENERGY_", "mJ"),
    ("_POWER_", "W"),
    ("_TEMP", "°C"),
    ("_UTIL", "%"),
    ("_FAN_SPEED", "%"),
)
