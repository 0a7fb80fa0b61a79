"""Map from gangwatch's metrics to OpenTelemetry's hardware and Kubernetes conventions, with attributes.

Semantic conventions 1.44 (development): hardware/common.md, gpu.md, network.md, temperature.md. They have no names for
NVLink, clocks, occupancy, XIDs or throttling; those metrics keep gangwatch's names, with UCUM units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.schema.catalog import Metric

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

_UCUM = {
    "bytes": "By",
    "bytes_per_second": "By/s",
    "celsius": "Cel",
    "hertz": "Hz",
    "joules": "J",
    "ratio": "1",
    "seconds": "s",
    "watts": "W",
}

PORT_ACTIVE = 4.0
"""Value of gangwatch_rdma_port_state for an active port (PortState in IBA 1.4)."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Convention:
    """OpenTelemetry's name and type for one of gangwatch's metrics.

    is_sum: True for a Counter or, if not `monotonic`, an UpDownCounter; False for a Gauge.
    """

    name: str
    unit: str
    description: str
    attributes: Callable[[Labels, Labels], dict[str, str]]
    is_sum: bool = False
    monotonic: bool = True
    value: Callable[[float | int], float | int] = lambda value: value


def _gpu(**more: str) -> Callable[[Labels, Labels], dict[str, str]]:
    """Return a function that makes OpenTelemetry's attributes of a GPU or MIG instance.

    more: additional attributes; '__' in a name is replaced by '.'.
    """
    own = {name.replace("__", "."): value for name, value in more.items()}

    def attributes(labels: Labels, info: Labels) -> dict[str, str]:
        gpu, mig = labels.get("gpu", ""), labels.get("mig", "")
        pairs = {"hw.id": mig or gpu, "hw.type": "gpu", "hw.vendor": "NVIDIA", **own}
        if mig:
            pairs["hw.parent"] = gpu
        if info.get("model"):
            pairs["hw.model"] = info["model"]
        if info.get("driver"):
            pairs["hw.driver_version"] = info["driver"]
        return pairs

    return attributes


def _sensor(labels: Labels, info: Labels) -> dict[str, str]:  # noqa: ARG001 - one signature
    gpu = labels.get("gpu", "")
    return {"hw.id": f"{gpu}/die", "hw.parent": gpu, "hw.type": "temperature", "hw.sensor_location": "die"}


def _nic(**more: str) -> Callable[[Labels, Labels], dict[str, str]]:
    own = {name.replace("__", "."): value for name, value in more.items()}

    def attributes(labels: Labels, info: Labels) -> dict[str, str]:  # noqa: ARG001 - one signature
        device, port = labels["device"], labels.get("port", "")
        return {"hw.id": f"{device}/{port}" if port else device, "hw.name": device, "hw.type": "network", **own}

    return attributes


def _utilization(task: str) -> Convention:
    about = "Fraction of time spent in a specific task."
    return Convention("hw.gpu.utilization", "1", about, _gpu(hw__gpu__task=task))


def _gpu_io(direction: str) -> Convention:
    about = "Received and transmitted bytes by the GPU."
    return Convention("hw.gpu.io", "By", about, _gpu(network__io__direction=direction), is_sum=True)


def _nic_io(name: str, unit: str, about: str, direction: str) -> Convention:
    return Convention(name, unit, about, _nic(network__io__direction=direction), is_sum=True)


def _nic_errors(kind: str, direction: str) -> Convention:
    about = "Number of errors encountered by the component."
    pairs = _nic(error__type=kind, network__io__direction=direction)
    return Convention("hw.errors", "{error}", about, pairs, is_sum=True)


_BYTES = ("hw.network.io", "By", "Received and transmitted network traffic in bytes.")
_PACKETS = ("hw.network.packets", "{packet}", "Received and transmitted network traffic in packets (or frames).")

CONVENTIONS: dict[str, Convention] = {
    "gangwatch_gpu_utilization_ratio": _utilization("general"),
    "gangwatch_gpu_encoder_utilization_ratio": _utilization("encoder"),
    "gangwatch_gpu_decoder_utilization_ratio": _utilization("decoder"),
    "gangwatch_gpu_memory_total_bytes": Convention(
        *("hw.gpu.memory.limit", "By", "Size of the GPU memory.", _gpu()), is_sum=True, monotonic=False
    ),
    "gangwatch_gpu_memory_used_bytes": Convention(
        *("hw.gpu.memory.usage", "By", "GPU memory used.", _gpu()), is_sum=True, monotonic=False
    ),
    "gangwatch_gpu_energy_joules_total": Convention(
        *("hw.energy", "J", "Energy consumed by the component.", _gpu()), is_sum=True
    ),
    "gangwatch_gpu_power_watts": Convention("hw.power", "W", "Instantaneous power consumed by the component.", _gpu()),
    "gangwatch_gpu_temperature_celsius": Convention(
        "hw.temperature", "Cel", "Temperature in degrees Celsius.", _sensor
    ),
    "gangwatch_gpu_pcie_receive_bytes_total": _gpu_io("receive"),
    "gangwatch_gpu_pcie_transmit_bytes_total": _gpu_io("transmit"),
    "gangwatch_rdma_port_receive_bytes_total": _nic_io(*_BYTES, "receive"),
    "gangwatch_rdma_port_transmit_bytes_total": _nic_io(*_BYTES, "transmit"),
    "gangwatch_rdma_port_receive_packets_total": _nic_io(*_PACKETS, "receive"),
    "gangwatch_rdma_port_transmit_packets_total": _nic_io(*_PACKETS, "transmit"),
    "gangwatch_rdma_port_receive_errors_total": _nic_errors("port_receive_error", "receive"),
    "gangwatch_rdma_port_transmit_discards_total": _nic_errors("port_transmit_discard", "transmit"),
    "gangwatch_rdma_port_rate_bytes_per_second": Convention(
        *("hw.network.bandwidth.limit", "By/s", "Link speed.", _nic()), is_sum=True, monotonic=False
    ),
    "gangwatch_rdma_port_state": Convention(
        *("hw.network.up", "1", "Link status: `1` (up) or `0` (down).", _nic()),
        is_sum=True,
        monotonic=False,
        value=lambda state: int(state == PORT_ACTIVE),
    ),
}
"""OpenTelemetry's name, unit and attributes of a metric, by gangwatch's name of the metric. A test checks that all
names are in the catalogue."""


_KUBERNETES = {"namespace": "k8s.namespace.name", "pod": "k8s.pod.name", "container": "k8s.container.name"}
"""Names of OpenTelemetry's Kubernetes conventions, by label."""


def attribute_names(labels: Labels) -> dict[str, str]:
    """Return the labels of one of gangwatch's metrics as attributes. An empty label of a pod is left out."""
    if "pod" not in labels:
        return dict(labels)
    return {_KUBERNETES.get(name, name): value for name, value in labels.items() if value or name not in _KUBERNETES}


def convention_of(metric: Metric) -> Convention | None:
    return CONVENTIONS.get(metric.name)


def unit_of(metric: Metric) -> str:
    """Return the unit of one of gangwatch's metrics, in the notation of UCUM; '' for none.

    Prometheus would append "_ratio" to the name of a gauge with the unit "1".
    """
    return _UCUM.get(metric.unit, metric.unit)
