"""Connections of the GPUs of a machine: NVLinks and their remote ends, PCIe, NUMA."""

from __future__ import annotations

from ctypes import byref, c_uint
from dataclasses import dataclass

from agent.sources.nvml.nvml import Device, pci_address
from agent.sources.nvml.nvml_interface import SUCCESS, FieldValue, Pci

ANCESTORS = {0: "internal", 10: "single_switch", 20: "switches", 30: "host_bridge", 40: "numa_node", 50: "system"}
"""Nearest common ancestor of two GPUs in the PCIe tree, by code (nvmlGpuTopologyLevel_t)."""

REMOTE_KINDS = {0: "gpu", 1: "npu", 2: "switch"}
"""Kind of device at the remote end of an NVLink, by code (nvmlIntNvLinkDeviceType_t); 0xFF is unknown."""

LINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVLink versions by code (nvmlNvlinkVersion_t)."""

_P2P_NVLINK, _P2P_OK = 2, 0
"""Query for NVLink between two GPUs, and its positive result (NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK)."""

_VERSION, _REMOTE_LINK = 166, 146
"""Field numbers of NVML_FI_DEV_NVLINK_GET_VERSION and NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID."""


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
    """Connection to another GPU. ancestor: a value of ANCESTORS. nvlink: whether NVLink connects the two GPUs, directly
    or through switches.
    """

    device: Device
    ancestor: str
    nvlink: bool | None


def _ask(device: Device, symbol: str, *arguments: object) -> bool:
    """Make a call and return whether it succeeded. Raise GpuLostError or LibraryDeadError."""
    code = device.library.call(symbol, device.handle, *arguments)
    if code != SUCCESS:
        device.judge(code, symbol)
    return code == SUCCESS


def links(device: Device, count: int) -> tuple[Link, ...]:
    """Return the NVLinks of the GPU. Raise GpuLostError or LibraryDeadError."""
    if not count:
        return ()
    array = (FieldValue * (2 * count))()
    for link in range(count):
        for offset, field in enumerate((_VERSION, _REMOTE_LINK)):
            array[2 * link + offset].field, array[2 * link + offset].scope = field, link
    if not _ask(device, "nvmlDeviceGetFieldValues", len(array), array):
        return ()
    found: list[Link] = []
    for link in range(count):
        version, remote = array[2 * link], array[2 * link + 1]
        number = int(version.value) & 0xFFFF_FFFF
        kind, pci = c_uint(), Pci()
        known = _ask(device, "nvmlDeviceGetNvLinkRemoteDeviceType", c_uint(link), byref(kind))
        placed = _ask(device, "nvmlDeviceGetNvLinkRemotePciInfo_v2", c_uint(link), byref(pci))
        bus_id = pci.bus_id.decode("ascii", "replace")
        found.append(
            Link(
                link,
                LINK_VERSIONS.get(number, str(number)) if version.code == SUCCESS else "",
                REMOTE_KINDS.get(kind.value, "") if known else "",
                pci_address(bus_id) if placed and ":" in bus_id else "",
                str(int(remote.value) & 0xFFFF_FFFF) if remote.code == SUCCESS else "",
            )
        )
    return tuple(found)


def peers(device: Device, others: tuple[Device, ...]) -> tuple[Peer, ...]:
    """Return the connections to the other GPUs. Raise GpuLostError or LibraryDeadError."""
    found: list[Peer] = []
    for other in others:
        if other.uuid == device.uuid:
            continue
        level, status = c_uint(), c_uint()
        near = _ask(device, "nvmlDeviceGetTopologyCommonAncestor", other.handle, byref(level))
        linked = _ask(device, "nvmlDeviceGetP2PStatus", other.handle, c_uint(_P2P_NVLINK), byref(status))
        found.append(
            Peer(other, ANCESTORS.get(level.value, "") if near else "", status.value == _P2P_OK if linked else None)
        )
    return tuple(found)


def numa_node(device: Device) -> int | None:
    """Return the GPU's NUMA node; None if the driver does not report it. Raise GpuLostError or LibraryDeadError."""
    node = c_uint()
    if not _ask(device, "nvmlDeviceGetNumaNodeId", byref(node)) or node.value == 0xFFFF_FFFF:
        return None
    return node.value
