"""Parser of the kubelet's pod-resources messages, which list the devices of each container.

Messages: ``k8s.io/kubelet/pkg/apis/podresources/v1/api.proto``. Only device names are read; CPUs and memory are
skipped. ``class_name`` (field 1 of DynamicResource) was removed in Kubernetes 1.31.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.schema.errors import SourceError
from agent.sources.kubelet.protobuf_reader import demand, fields, text

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Path of the socket of every kubelet since 1.15 (kubernetes.io, "Device Plugins": "Monitoring device plugin
resources")."""

MAX_DEVICES = 65536
"""Maximum number of devices in one response; a response with more is refused. A node has hundreds, or thousands with
replicas. Without the limit, a response could fill the memory: an empty id takes two bytes in the response and forty
bytes in memory."""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """Device that a pod got by a resource claim (dynamic resource allocation).

    cdi: names in the container device interface.
    """

    driver: str
    pool: str
    device: str
    claim: str
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """One container and its devices. devices: (resource name, device id) of the devices from device plugins."""

    name: str
    devices: tuple[tuple[str, str], ...] = ()
    claimed: tuple[ClaimedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod with its containers. Its uid is unknown: pod-resources messages do not contain it."""

    namespace: str
    name: str
    containers: tuple[Container, ...] = ()


class _Count:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_DEVICES

    def add(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise SourceError(f"pod-resources: over {MAX_DEVICES} devices")


def parse_list(data: bytes) -> tuple[Pod, ...]:
    """Return the pods of a ListPodResourcesResponse or GetPodResourcesResponse. Raise SourceError if malformed."""
    count = _Count()
    pods: list[Pod] = []
    for number, wire, start, end in fields(data):
        if number == 1:
            demand(number, wire)
            count.add()
            pods.append(_pod(data, start, end, count))
    return tuple(pods)


def parse_allocatable(data: bytes) -> tuple[tuple[str, str], ...]:
    """Return the (resource name, device id) of each device of an AllocatableResourcesResponse.

    Raise SourceError if the message is malformed.
    """
    count = _Count()
    devices: list[tuple[str, str]] = []
    for number, wire, start, end in fields(data):
        if number == 1:
            demand(number, wire)
            devices.extend(_devices(data, start, end, count))
    return tuple(devices)


def _pod(data: bytes, at: int, stop: int, count: _Count) -> Pod:
    name = namespace = ""
    containers: list[Container] = []
    for number, wire, start, end in fields(data, at, stop):
        if number == 1:
            name = text(data, number, wire, start, end)
        elif number == 2:
            namespace = text(data, number, wire, start, end)
        elif number == 3:
            demand(number, wire)
            count.add()
            containers.append(_container(data, start, end, count))
    return Pod(namespace, name, tuple(containers))


def _container(data: bytes, at: int, stop: int, count: _Count) -> Container:
    name = ""
    devices: list[tuple[str, str]] = []
    claimed: list[ClaimedDevice] = []
    for number, wire, start, end in fields(data, at, stop):
        if number == 1:
            name = text(data, number, wire, start, end)
        elif number == 2:
            demand(number, wire)
            devices.extend(_devices(data, start, end, count))
        elif number == 5:
            demand(number, wire)
            claimed.extend(_claim(data, start, end, count))
    return Container(name, tuple(devices), tuple(claimed))


def _devices(data: bytes, at: int, stop: int, count: _Count) -> list[tuple[str, str]]:
    """Parse a ContainerDevices message: one resource with several device ids."""
    resource = ""
    ids: list[str] = []
    for number, wire, start, end in fields(data, at, stop):
        if number == 1:
            resource = text(data, number, wire, start, end)
        elif number == 2:
            count.add()
            ids.append(text(data, number, wire, start, end))
    return [(resource, one) for one in ids]


def _claim(data: bytes, at: int, stop: int, count: _Count) -> list[ClaimedDevice]:
    """Parse a DynamicResource message: one claim with several devices."""
    claim = ""
    found: list[tuple[str, str, str, tuple[str, ...]]] = []
    for number, wire, start, end in fields(data, at, stop):
        if number == 2:
            claim = text(data, number, wire, start, end)
        elif number == 4:
            demand(number, wire)
            count.add()
            found.append(_claimed(data, start, end, count))
    return [ClaimedDevice(driver, pool, device, claim, cdi) for driver, pool, device, cdi in found]


def _claimed(data: bytes, at: int, stop: int, count: _Count) -> tuple[str, str, str, tuple[str, ...]]:
    """Parse a ClaimResource message: driver, pool, device, and names in the container device interface."""
    words = {2: "", 3: "", 4: ""}
    cdi: list[str] = []
    for number, wire, start, end in fields(data, at, stop):
        if number in words:
            words[number] = text(data, number, wire, start, end)
        elif number == 1:
            demand(number, wire)
            count.add()
            name = ""
            for inner, inner_wire, inner_start, inner_end in fields(data, start, end):
                if inner == 1:
                    name = text(data, inner, inner_wire, inner_start, inner_end)
            cdi.append(name)
    return words[2], words[3], words[4], tuple(cdi)
