"""Collector of the connections between the node's GPUs. It queries each GPU once, since connections do not change."""

from __future__ import annotations

from agent.collectors.block import Block
from agent.collectors.gpu import nvlink
from agent.collectors.gpu.device import WORKER, series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, GpuLostError
from agent.sources.nvml.nvml_topology import links, numa_node, peers

INTERVAL_SECONDS = 30.0


class GpuTopologyCollector:
    """Collector of each GPU's NVLinks with their remote ends, peer GPUs and NUMA node.

    It retries a lost GPU at the next run.
    """

    name = "gpu-topology"
    worker = WORKER
    phase = 0.5

    def __init__(self, devices: tuple[Device, ...], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self.interval_seconds = interval_seconds
        self._devices = devices
        self._found: dict[str, list[tuple[Column, float]]] = {}
        self._block = Block()

    def collect(self) -> Block:
        missing = [device for device in self._devices if device.uuid not in self._found]
        if not missing:
            return self._block
        missing[0].library.check_alive()
        for device in missing:
            try:
                with device.library.using():
                    device.check_present()
                    self._found[device.uuid] = self._query(device)
            except GpuLostError:
                continue
        columns = [pair for device in self._devices for pair in self._found.get(device.uuid, ())]
        self._block = Block(column for column, _ in columns)
        self._block.gauges[:] = [value for _, value in columns]
        return self._block

    def _query(self, device: Device) -> list[tuple[Column, float]]:
        """Return the series of one GPU and their values. Raise GpuLostError or LibraryDeadError."""
        uuids = {other.pci_address: other.uuid for other in self._devices}
        found: list[tuple[Column, float]] = []
        count = nvlink.link_count(device)
        if count:
            found.append((series("gangwatch_nvlink_links", device), count))
        node = numa_node(device)
        if node is not None:
            found.append((series("gangwatch_gpu_numa_node", device), node))
        for link in links(device, count):
            column = series(
                "gangwatch_nvlink_info",
                device,
                link=str(link.number),
                remote=uuids.get(link.remote_address, link.remote_address),
                remote_kind=link.remote_kind,
                remote_link=link.remote_link,
                version=link.version,
            )
            found.append((column, 1.0))
        for peer in peers(device, self._devices):
            connected = {None: "", True: "yes", False: "no"}[peer.nvlink]
            column = series(
                "gangwatch_gpu_peer_info", device, ancestor=peer.ancestor, nvlink=connected, peer=peer.device.uuid
            )
            found.append((column, 1.0))
        return found

    def release(self) -> None:
        """Do nothing: the collector holds no resources."""

    def acquire(self) -> None:
        """Do nothing: the parent collector makes new collectors."""

    def close(self) -> None:
        """Do nothing: the collector holds no resources."""
