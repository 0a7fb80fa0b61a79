"""Collector of the distances between GPUs and NICs, and of rails (NICs of equal number below one leaf switch)."""

from __future__ import annotations

from collections.abc import Sequence

from agent.collectors.block import Block
from agent.schema.frame import Column
from agent.schema.gpu_nic_distance import PciDevice, distance, rails, switch_of
from agent.sources.rdma.infiniband import DeviceFinder
from agent.sources.sysfs.pci import FunctionFinder

INTERVAL_SECONDS = 60.0
"""Interval in seconds at which the devices' positions are read. They change only when a device is moved to another
slot."""


class TopologyCollector:
    """Collector that computes distances when the set of GPUs or NICs changes.

    The NICs are the RDMA devices, or if there are none, the network controllers on the PCI bus.
    """

    name = "topology"
    worker = "sysfs"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, sys_root: str = "/sys", excluded: Sequence[str] = ()) -> None:
        self._functions = FunctionFinder(sys_root)
        self._finder = DeviceFinder(sys_root, excluded)
        self._known: object = None
        self._block = Block()

    def collect(self) -> Block:
        functions = [one for one in self._functions.find() if not one.virtual]
        gpus = [one.device for one in functions if one.kind == "gpu"]
        places = {one.device.address: one.device for one in functions if one.kind == "nic"}
        named = [
            (device.name, places[device.pci_address])
            for device in self._finder.find()[0]
            if device.pci_address in places and not device.physical_function
        ]
        nics = named or list(places.items())
        known = (gpus, nics)
        if known != self._known:
            self._known = known
            self._block = self._lay_out(gpus, nics)
        return self._block

    def close(self) -> None:
        """Do nothing: the collector holds no resources."""

    @staticmethod
    def _lay_out(gpus: Sequence[PciDevice], nics: Sequence[tuple[str, PciDevice]]) -> Block:
        gauges: list[Column] = []
        values: list[float] = []
        for gpu in gpus:
            for name, nic in nics:
                gauges.append(
                    Column("gangwatch_topology_gpu_nic_distance", (("nic", name), ("pci_address", gpu.address)))
                )
                values.append(float(distance(gpu, nic)))
        names = {nic.address: name for name, nic in nics}
        for rail in rails(gpus, [nic for _, nic in nics]):
            gauges.append(
                Column(
                    "gangwatch_topology_rail_info",
                    (
                        ("distance", rail.distance.name),
                        ("nic", names[rail.nic.address]),
                        ("nic_pci_address", rail.nic.address),
                        ("numa_node", "" if rail.gpu.numa_node is None else str(rail.gpu.numa_node)),
                        ("pci_address", rail.gpu.address),
                        ("rail", str(rail.number)),
                        ("switch", switch_of(rail.gpu)),
                    ),
                )
            )
            values.append(1.0)
        block = Block(gauges)
        block.gauges[:] = values
        return block
