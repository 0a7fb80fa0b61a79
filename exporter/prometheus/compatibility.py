"""Metric names of other exporters for existing dashboards: those of DCGM, node_exporter and rdma_exporter.

The values come from gangwatch's own series. The catalogue has the other exporter's name of each metric
(``Metric.compatibility``). For metrics with several names in DCGM, see ``dcgm_fields``. Units and labels are converted
to those of the other exporter.

Sources: dcgm-exporter d5e5f51 (etc/*.csv, its templates), node_exporter a7dcc3a (collector/infiniband_linux.go,
pressure_linux.go), rdma_exporter 461f67e (internal/collector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from agent.schema.catalog import Metric
from agent.schema.sample import Labels
from exporter.prometheus.dcgm_fields import CLOCK_EVENTS, MASKS, names_of
from exporter.prometheus.derived_values import WINDOW_NS, Masks, Memory, Newest, Rises, Sums, Times
from exporter.prometheus.series import Family, Render, Row, Series, View, render_of


class Wanted(Protocol):
    """Settings of the compatibility families."""

    @property
    def hostname_label(self) -> str: ...

    @property
    def pod_labels(self) -> bool: ...


Make = Callable[[View, Wanted, Memory], Iterator[Family]]

# --- DCGM ------------------------------------------------------------------------------------------------------------


def _whole(per: float) -> Render:
    """Return a function that renders a gauge, divided by `per`, as an integer, as DCGM does for 64-bit fields."""
    return lambda value: str(round(value / per))


def _six(value: float) -> str:
    """Return the value with six decimals, as DCGM renders floating-point fields."""
    return f"{value:.6f}"


def _raw(value: float) -> str:
    """Return the integer of a counter as text, in the unit in which the driver reported it."""
    return str(int(value))


def _dcgm_render(name: str, metric: Metric) -> Render:
    """Return the renderer that converts to the unit of DCGM's metric `name`.

    DCGM's units are MiB, kB/s, MHz, percent, mJ and nanoseconds. Ratios of DCGM_FI_PROF_* are not converted.
    """
    if metric.kind == "counter":
        return _raw  # the integer is in DCGM's unit: mJ, ns (since dcgm-exporter's #589), or a count
    if name.endswith("_THROUGHPUT"):
        return _whole(1000)
    if metric.unit == "ratio":
        return _six if name.startswith("DCGM_FI_PROF_") else _whole(0.01)
    if metric.unit == "bytes":
        return _whole(1024 * 1024) if name.startswith("DCGM_FI_DEV_FB_") else _whole(1)
    if metric.unit == "hertz":
        return _whole(1e6)
    return _six if metric.unit == "watts" else _whole(1)


class _DcgmLabels:
    """DCGM's labels of the GPUs and MIG instances of a layout."""

    def __init__(self, view: View, wanted: Wanted) -> None:
        self._view = view
        self._hostname = (wanted.hostname_label, view.node)
        self._pods = wanted.pod_labels
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
        owner = self._view.owner(labels) if self._pods else {}
        pairs.update({key: owner[key] for key in ("container", "namespace", "pod") if owner.get(key)})
        pairs.update(self._view.pod_labels(owner))
        return tuple(sorted(pairs.items()))


def dcgm_address(pci_address: str) -> str:
    """Return a PCI address in DCGM's format: domain of eight digits, upper case. '' stays ''."""
    domain, colon, rest = pci_address.partition(":")
    return f"{domain.rjust(8, '0')}:{rest}".upper() if colon else pci_address.upper()


def dcgm(view: View, wanted: Wanted, memory: Memory) -> Iterator[Family]:
    """Yield the families with dcgm-exporter's names: those in the catalogue, and two that dcgm-exporter computes."""
    labels = _DcgmLabels(view, wanted)
    taken: set[tuple[str, Labels]] = set()
    families: dict[str, Family] = {}
    for metric, series in view.metrics():
        if not metric.name.startswith("gangwatch_gpu_"):
            continue
        for one in series:
            own = one.labels
            for name in names_of(metric, own):
                named = labels.of(own)
                if named is None or (name, named) in taken:
                    continue
                taken.add((name, named))
                family = families.setdefault(name, Family(name, metric.kind, f"{metric.help} As DCGM prints it."))
                family.rows.append(Row(named, one.source, _dcgm_render(name, metric)))
    yield from families.values()
    yield _nvlink_bandwidth(view, labels)
    yield _xid_errors(view, labels)
    yield _xid_counts(view, labels, memory)
    yield _clock_events(view, labels, memory)
    yield from _clock_masks(view, labels)


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
    """Return the latest XID of each GPU; 0 if the GPU had none. DCGM does not reset it either."""
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


def _clock_masks(view: View, labels: _DcgmLabels) -> Iterator[Family]:
    """Yield the bit mask of the active throttle reasons of each GPU, under DCGM's current and former name."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for one in view.of("gangwatch_gpu_throttle_state"):
        if (bit := CLOCK_EVENTS.get(one.labels["reason"])) is not None:
            groups.setdefault(one.labels["gpu"], []).append((one.source, bit))
    source = view.derive(Masks(list(groups.values())))
    for name in MASKS:
        family = Family(name, "gauge", "Bit mask of the reasons that hold the clock down, as DCGM prints it.")
        for offset, gpu in enumerate(groups):
            named = labels.of({"gpu": gpu})
            if named is not None:
                family.rows.append(Row(named, source + offset, _raw))
        yield family


# --- node_exporter ---------------------------------------------------------------------------------------------------

_NODE_LABELS = {"node_infiniband_info": ("board_id", "device", "firmware_version", "hca_type")}
"""Labels of a series of node_exporter, by the name of the series. gangwatch's own series has more labels, which are
left out. A series that is not listed here keeps all labels."""


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
    """Yield rdma_exporter's series of priority flow control (PFC pause frames), with durations in microseconds.

    Pause frames of the whole link are left out.
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
"""For each value of the `compatibility` setting: the function that yields the families with that exporter's names."""
