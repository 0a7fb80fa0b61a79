"""Connections between the GPUs of a machine: NVLinks with their remote ends, PCIe and NUMA nodes."""

from __future__ import annotations

from ctypes import byref, c_uint
from dataclasses import dataclass

import pynvml

from agent.sources.nvml.nvml import Device, kernel_address
from agent.sources.nvml.nvml_fields import FieldArray

ANCESTORS: dict[int, str] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "internal",
    pynvml.NVML_TOPOLOGY_SINGLE: "single_switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "host_bridge",
    pynvml.NVML_TOPOLOGY_NODE: "numa_node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "system",
}
"""Kind of the nearest common ancestor of two GPUs in the PCIe tree."""

REMOTE_KINDS: dict[int, str] = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "npu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
}
"""Kind of device at the remote end of an NVLink; a number that is not listed is unknown."""

LINK_VERSIONS: dict[int, str] = {
    pynvml.NVML_NVLINK_VERSION_1_0: "1.0",
    pynvml.NVML_NVLINK_VERSION_2_0: "2.0",
    pynvml.NVML_NVLINK_VERSION_2_2: "2.2",
    pynvml.NVML_NVLINK_VERSION_3_0: "3.0",
    pynvml.NVML_NVLINK_VERSION_3_1: "3.1",
    pynvml.NVML_NVLINK_VERSION_4_0: "4.0",
    pynvml.NVML_NVLINK_VERSION_5_0: "5.0",
    8: "6.0",
}
"""NVLink versions. The oldest pynvml that gangwatch supports has no name for the last one."""

_VERSION: int = pynvml.NVML_FI_DEV_NVLINK_GET_VERSION
_REMOTE_LINK: int = pynvml.NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink and its remote end. A string is '' if the driver does not report the value."""

    number: int
    version: str
    remote_kind: str
    remote_address: str
    remote_link: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Connection of a GPU to another GPU. ancestor: a value of ANCESTORS.

    nvlink: whether NVLink connects the two GPUs, directly or through switches; None if the driver does not report it.
    """

    device: Device
    ancestor: str
    nvlink: bool | None


def _ask(device: Device, symbol: str, *arguments: object) -> bool:
    """Make a call and return whether it succeeded. Raise GpuLostError or LibraryDeadError."""
    code = device.library.call(symbol, device.handle, *arguments)
    if code != pynvml.NVML_SUCCESS:
        device.judge(code, symbol)
    return bool(code == pynvml.NVML_SUCCESS)


def links(device: Device, count: int) -> tuple[Link, ...]:
    """Return the NVLinks of the GPU. Raise GpuLostError or LibraryDeadError."""
    if not count:
        return ()
    array = FieldArray(device, [(field, link) for field in (_VERSION, _REMOTE_LINK) for link in range(count)])
    if not array.read():
        return ()
    codes, numbers = array.view["code"].tolist(), (array.view["value"] & 0xFFFF_FFFF).tolist()
    found: list[Link] = []
    for link in range(count):
        version, remote = link, count + link  # positions in the array
        kind, pci = c_uint(), pynvml.nvmlPciInfo_t()
        known = _ask(device, "nvmlDeviceGetNvLinkRemoteDeviceType", c_uint(link), byref(kind))
        placed = _ask(device, "nvmlDeviceGetNvLinkRemotePciInfo_v2", c_uint(link), byref(pci))
        found.append(
            Link(
                link,
                LINK_VERSIONS.get(numbers[version], str(numbers[version])) if not codes[version] else "",
                REMOTE_KINDS.get(kind.value, "") if known else "",
                kernel_address(pci) if placed else "",
                str(numbers[remote]) if not codes[remote] else "",
            )
        )
    return tuple(found)


def peers(device: Device, others: tuple[Device, ...]) -> tuple[Peer, ...]:
    """Return the connections from the GPU to the other GPUs. Raise GpuLostError or LibraryDeadError."""
    found: list[Peer] = []
    for other in others:
        if other.uuid == device.uuid:
            continue
        level, status = c_uint(), c_uint()
        near = _ask(device, "nvmlDeviceGetTopologyCommonAncestor", other.handle, byref(level))
        linked = _ask(
            device, "nvmlDeviceGetP2PStatus", other.handle, c_uint(pynvml.NVML_P2P_CAPS_INDEX_NVLINK), byref(status)
        )
        found.append(
            Peer(
                other,
                ANCESTORS.get(level.value, "") if near else "",
                status.value == pynvml.NVML_P2P_STATUS_OK if linked else None,
            )
        )
    return tuple(found)


def numa_node(device: Device) -> int | None:
    """Return the GPU's NUMA node; None if the driver does not report it. Raise GpuLostError or LibraryDeadError."""
    node = c_uint()
    if not _ask(device, "nvmlDeviceGetNumaNodeId", byref(node)) or node.value == 0xFFFF_FFFF:
        return None
    return node.value
