"""Collectors of RDMA devices in containers, if the RDMA subsystem's namespace mode is exclusive.

In that mode, /sys of the host does not show devices of containers, and netlink returns them only in the container's
namespace. Each query therefore uses a socket that is opened in that namespace and then closed: an open socket would
keep the namespace and its device alive after the end of the container. Only hardware counters are available this way.
In the shared mode, which is the default, all devices belong to the host, and this module does nothing.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from agent.collectors.block import Block
from agent.collectors.rdma.rdma_netlink import NetlinkCounters
from agent.collectors.rdma.rdma_series import Naming
from agent.schema.errors import SourceError
from agent.sources.network import namespaces
from agent.sources.rdma.infiniband import Port, RdmaDevice
from agent.sources.rdma.netlink import NetlinkDevice, RdmaNetlink, connect

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""Interval of queries in seconds. Counters of the host's own devices are read more often, because a query in a
container's namespace starts a thread (0.1 ms)."""

MOST_NAMESPACES = 64
"""Maximum number of network namespaces that are read. They belong to pods with their own NIC; a node has at most one of
these pods per virtual function of its NICs."""

Enter = Callable[[str, int, Callable[[], socket.socket]], socket.socket]


class ForeignCounters(NetlinkCounters):
    """Collector of the hardware counters of one RDMA device in a container's network namespace."""

    def __init__(self, device: RdmaDevice, index: int, netlink: RdmaNetlink) -> None:
        """Raise SourceError if the device does not respond."""
        try:
            super().__init__(device, index, (), Naming(device), netlink, INTERVAL_SECONDS)
        finally:
            netlink.close()

    def collect(self) -> Block:
        try:
            return super().collect()
        finally:
            self._netlink.close()


class ForeignDevices:
    """RDMA devices in containers' network namespaces, and their collectors.

    find: returns a path to each namespace by inode (``net_namespaces``). enter: calls a function in a namespace.
    connector: opens the netlink socket.
    """

    def __init__(
        self,
        find: Callable[[], dict[int, str]] = namespaces.net_namespaces,
        enter: Enter = namespaces.inside,
        connector: Callable[[], socket.socket] = connect,
    ) -> None:
        self._find, self._enter, self._connector = find, enter, connector
        self._ways: dict[int, str] = {}
        self._known: dict[tuple[int, NetlinkDevice], ForeignCounters] = {}
        self.exclusive = False
        self.unreadable = 0

    def look(self, host: RdmaNetlink) -> None:
        """Update the list of devices in containers. host: netlink connection in the agent's own namespace."""
        try:
            self.exclusive = host.exclusive()
        except SourceError:
            self.exclusive = False  # an old kernel without the exclusive mode
        before, self._known, self.unreadable = self._known, {}, 0
        self._ways = self._find() if self.exclusive else {}
        for inode in list(self._ways)[:MOST_NAMESPACES]:
            try:
                self._add_devices(inode, before)
            except SourceError as error:
                self.unreadable += 1
                log.info("cannot read the RDMA devices of a container's network namespace: %s", error)

    def _add_devices(self, inode: int, before: dict[tuple[int, NetlinkDevice], ForeignCounters]) -> None:
        netlink = RdmaNetlink(lambda: self._enter(self._ways[inode], inode, self._connector))
        try:
            devices = netlink.list_devices()
        finally:
            netlink.close()
        for one in devices:
            known = before.get((inode, one))
            if known is None or known.failures >= NetlinkCounters.FAILURES:
                asked = RdmaNetlink(lambda: self._enter(self._ways[inode], inode, self._connector))
                known = ForeignCounters(_device(one), one.number, asked)
            self._known[inode, one] = known

    def members(self) -> tuple[ForeignCounters, ...]:
        """Return the collectors of the devices in containers.

        They are the same objects as long as a device stays in its namespace.
        """
        return tuple(self._known.values())

    def names(self) -> tuple[str, ...]:
        return tuple(one.name for _, one in self._known)


def _device(found: NetlinkDevice) -> RdmaDevice:
    """Convert a device reported by netlink to an RdmaDevice.

    Attributes that only the container's /sys contains are empty.
    """
    ports = tuple(Port(str(number), "", "", (), ()) for number in range(1, found.ports + 1))
    driver = found.name.partition("_")[0]
    return RdmaDevice(found.name, "", driver, "", "", "", found.firmware_version, "", "", (), ports)
