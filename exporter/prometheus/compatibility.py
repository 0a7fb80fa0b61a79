"""Metric names of other exporters for existing dashboards: those of DCGM, node_exporter and rdma_exporter.

They are derived from gangwatch's own series. The catalogue maps the names (``Metric.compatibility``); this module has
the units and labels of each exporter.

Sources: dcgm-exporter d5e5f51 (etc/*.csv, its templates), node_exporter a7dcc3a (collector/infiniband_linux.go,
pressure_linux.go), rdma_exporter 461f67e (internal/collector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from agent.schema.catalog import BY_NAME, Metric
from exporter.prometheus.derived_values import WINDOW_NS, Memory, Newest, Rises, Sums, Times
from exporter.prometheus.series import Family, Labels, Render, Row, Series, View, render_of


class Wanted(Protocol):
    """The settings that compatibility names depend on."""

    @property
    def hostname_label(self) -> str: ...


Make = Callable[[View, Wanted, Memory], Iterator[Family]]

# --- DCGM ------------------------------------------------------------------------------------------------------------


def _whole(per: float) -> Render:
    """Return a renderer of gauges in units of `per`, as integers like DCGM's 64-bit fields."""
    return lambda value: str(round(value / per))


def _six(value: float) -> str:
    """Return the value with six decimals, like DCGM's floating-point fields."""
    return f"{value:.6f}"


def _raw(value: float) -> str:
    """Return a counter's integer as the driver reported it."""
    return str(int(value))


_SPLIT: dict[str, tuple[str, dict[str, str]]] = {
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
}
"""Metrics that correspond to several metrics of DCGM: the label that distinguishes them, and DCGM's name for each value
of this label."""


def _dcgm_name(metric: Metric, labels: Mapping[str, str]) -> str:
    """Return DCGM's name of one series; '' if there is none. MIG instances have the same names as whole GPUs."""
    if (split := _SPLIT.get(metric.name)) is not None:
        return split[1].get(labels.get(split[0], ""), "")
    whole = BY_NAME.get(metric.name.replace("gangwatch_gpu_mig_", "gangwatch_gpu_"), metric)
    return whole.compatibility if whole.compatibility.startswith("DCGM_") else ""


def _dcgm_render(name: str, metric: Metric) -> Render:
    """Return the renderer that converts to the unit of DCGM's metric `name`.

    DCGM's units are MiB, MHz, percent, mJ and microseconds. Ratios of DCGM_FI_PROF_* are not converted.
    """
    if metric.kind == "counter":
        # Otherwise the raw integer is in DCGM's unit: mJ, or a count.
        return _microseconds if name.endswith("_VIOLATION") else _raw
    if metric.unit == "ratio":
        return _six if name.startswith("DCGM_FI_PROF_") else _whole(0.01)
    if metric.unit == "bytes":
        return _whole(1024 * 1024) if name.startswith("DCGM_FI_DEV_FB_") else _whole(1)
    if metric.unit == "hertz":
        return _whole(1e6)
    return _six if metric.unit == "watts" else _whole(1)


def _microseconds(nanoseconds: float) -> str:
    return str(int(nanoseconds) // 1000)


class _DcgmLabels:
    """DCGM's labels of a GPU or of a MIG instance."""

    def __init__(self, view: View, hostname_label: str) -> None:
        self._view = view
        self._hostname = (hostname_label, view.node)
        self._instances = {
            (labels["gpu"], labels["mig"]): labels
            for labels in (series.labels for series in view.of("gangwatch_gpu_mig_info"))
        }

    def of(self, labels: Mapping[str, str], *more: tuple[str, str]) -> Labels | None:
        """Return DCGM's labels; None if the GPU has no gangwatch_gpu_info, from which they are derived."""
        gpu = labels.get("gpu", "")
        info = self._view.gpus.get(gpu)
        if info is None:
            return None
        pairs = {
            "gpu": info.get("index", ""),
            "UUID": gpu,
            "pci_bus_id": dcgm_address(info.get("pci_address", "")),
            "device": f"nvidia{info.get('minor', info.get('index', ''))}",
            "modelName": info.get("model", ""),
            self._hostname[0]: self._hostname[1],
            **dict(more),
        }
        mig = labels.get("mig", "")
        if mig:
            instance = self._instances.get((gpu, mig), {})
            pairs["GPU_I_PROFILE"] = instance.get("profile", "")
            pairs["GPU_I_ID"] = instance.get("gpu_instance", "")
        owner = self._view.owner(labels)
        pairs.update({key: owner[key] for key in ("container", "namespace", "pod") if owner.get(key)})
        return tuple(sorted(pairs.items()))


def dcgm_address(pci_address: str) -> str:
    """Return a PCI address in DCGM's format: domain of eight digits, upper case. '' stays ''."""
    domain, colon, rest = pci_address.partition(":")
    return f"{domain.rjust(8, '0')}:{rest}".upper() if colon else pci_address.upper()


CLOCK_EVENTS = (
    *("gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal"),
    *("hw_power_brake", "display_clocks"),
)
"""Throttle reasons of gangwatch that are also values of the label of DCGM_EXP_CLOCK_EVENTS_COUNT."""


def dcgm(view: View, wanted: Wanted, memory: Memory) -> Iterator[Family]:
    """Yield dcgm-exporter's series: those in the catalogue, and two series that dcgm-exporter counts itself."""
    labels = _DcgmLabels(view, wanted.hostname_label)
    families: dict[str, Family] = {}
    for metric, series in view.metrics():
        if not metric.name.startswith("gangwatch_gpu_"):
            continue
        for one in series:
            own = one.labels
            name = _dcgm_name(metric, own)
            named = labels.of(own) if name else None
            if named is not None:
                family = families.setdefault(name, Family(name, metric.kind, f"{metric.help} As DCGM prints it."))
                family.rows.append(Row(named, one.source, _dcgm_render(name, metric)))
    yield from families.values()
    yield _nvlink_bandwidth(view, labels)
    yield _xid_errors(view, labels)
    yield _xid_counts(view, labels, memory)
    yield _clock_events(view, labels, memory)


def _nvlink_bandwidth(view: View, labels: _DcgmLabels) -> Family:
    """Return DCGM's field 449, the traffic of both directions in KiB/s, divided by 1000.

    DCGM computes it in DcgmCacheManager, ReadAndCacheNvLinkBandwidth. dcgm-exporter declares it a counter, but it is a
    gauge.
    """
    family = Family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gauge", "NVLink traffic of all links, as DCGM prints it.")
    sent = {one.labels["gpu"]: one.source for one in view.of("gangwatch_gpu_nvlink_transmit_bytes_per_second")}
    received = {one.labels["gpu"]: one.source for one in view.of("gangwatch_gpu_nvlink_receive_bytes_per_second")}
    both = sorted(sent.keys() & received.keys())
    source = view.derive(Sums([(sent[gpu], received[gpu]) for gpu in both]))
    for offset, gpu in enumerate(both):
        named = labels.of({"gpu": gpu})
        if named is not None:
            family.rows.append(Row(named, source + offset, _whole(1024 * 1000)))
    return family


def _xid_errors(view: View, labels: _DcgmLabels) -> Family:
    """Return the latest XID of each GPU, which DCGM never resets; 0 if the GPU had no XID."""
    family = Family("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the newest XID, 0 where there was none.")
    groups: dict[str, list[tuple[int, int]]] = {gpu: [] for gpu in view.gpus}
    for one in view.of("gangwatch_gpu_xid_newest_timestamp_seconds"):
        code = one.labels["code"]
        if code.isdigit():
            groups.setdefault(one.labels["gpu"], []).append((one.source, int(code)))
    if view.of("gangwatch_gpu_xid_events_total") or view.of("gangwatch_gpu_xid_newest_timestamp_seconds"):
        source = view.derive(Newest(list(groups.values())))
        for offset, gpu in enumerate(groups):
            named = labels.of({"gpu": gpu})
            if named is not None:
                family.rows.append(Row(named, source + offset, _raw))
    return family


_WINDOW = ("window_size_in_ms", str(WINDOW_NS // 1_000_000))


def _xid_counts(view: View, labels: _DcgmLabels, memory: Memory) -> Family:
    family = Family("DCGM_EXP_XID_ERRORS_COUNT", "gauge", "XIDs of this code within the window.")
    series = view.of("gangwatch_gpu_xid_total")
    keys = [("xid", one.column.labels) for one in series]
    source = view.derive(Rises(memory, keys, [one.source - len(view.layout.gauges) for one in series]))
    for offset, one in enumerate(series):
        named = labels.of(one.labels, ("xid", one.labels["code"]), _WINDOW)
        if named is not None:
            family.rows.append(Row(named, source + offset, _raw))
    return family


def _clock_events(view: View, labels: _DcgmLabels, memory: Memory) -> Family:
    family = Family(
        "DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge", "Scrapes within the window that found the clock held down for it."
    )
    series = [one for one in view.of("gangwatch_gpu_throttle_state") if one.labels["reason"] in CLOCK_EVENTS]
    source = view.derive(Times(memory, [("clock", one.column.labels) for one in series], [s.source for s in series]))
    for offset, one in enumerate(series):
        named = labels.of(one.labels, ("clock_event", one.labels["reason"]), _WINDOW)
        if named is not None:
            family.rows.append(Row(named, source + offset, _raw))
    return family


# --- node_exporter ---------------------------------------------------------------------------------------------------

_NODE_LABELS = {"node_infiniband_info": ("board_id", "device", "firmware_version", "hca_type")}
"""Series of node_exporter that have fewer labels than gangwatch's series, and their labels."""


def node_exporter(view: View, wanted: Wanted, memory: Memory) -> Iterator[Family]:  # noqa: ARG001 - one signature
    """Yield node_exporter's series. A ``*`` in a name is replaced by the value of the series' only label."""
    for metric, series in view.metrics():
        name = metric.compatibility
        if not name.startswith("node_"):
            continue
        families: dict[str, Family] = {}
        for one in series:
            labels = one.labels
            spelled = name
            if "*" in name:
                ((_, value),) = labels.items()
                spelled, labels = name.replace("*", value), {}
            kept = _NODE_LABELS.get(name, tuple(labels))
            kind = "gauge" if metric.kind == "info" else metric.kind
            family = families.setdefault(spelled, Family(spelled, kind, metric.help))
            family.rows.append(_row(one, {key: labels[key] for key in kept if key in labels}, render_of(metric)))
        yield from families.values()


# --- rdma_exporter ---------------------------------------------------------------------------------------------------

_DIRECTIONS = {"receive": "rx", "transmit": "tx"}


def rdma_exporter(view: View, wanted: Wanted, memory: Memory) -> Iterator[Family]:  # noqa: ARG001 - one signature
    """Yield rdma_exporter's series of priority flow control, with durations in microseconds.

    Link-level pause is left out.
    """
    netdevs = {
        (labels["device"], labels["port"]): labels["netdev"]
        for labels in (series.labels for series in view.of("gangwatch_rdma_port_info"))
    }
    for metric, series in view.metrics():
        if not metric.compatibility.startswith("rdma_"):
            continue
        family = Family(metric.compatibility, metric.kind, metric.help)
        for one in series:
            labels = one.labels
            if not labels["priority"].isdigit():
                continue
            labels["direction"] = _DIRECTIONS.get(labels["direction"], labels["direction"])
            labels["netdev"] = netdevs.get((labels["device"], labels["port"]), "")
            family.rows.append(_row(one, labels, _raw))
        yield family


def _row(series: Series, labels: Mapping[str, str], render: Render) -> Row:
    return Row(tuple(sorted(labels.items())), series.source, render)


COMPATIBILITY: dict[str, Make] = {"dcgm": dcgm, "node_exporter": node_exporter, "rdma_exporter": rdma_exporter}
"""Sets of names by the value of the `compatibility` setting."""
