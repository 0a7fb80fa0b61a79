"""RDMA devices that were given to containers, where the subsystem's namespace mode is exclusive.

There /sys shows the host no more of such a device, and its netlink answers in the container's namespace only: each
question is asked from inside, through a socket that is closed again, since an open one would keep the namespace alive,
and the device in it, when the container has ended. What is had so are the hardware counters. In the shared mode, the
default, every device is the host's and nothing here does anything.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from agent.collectors.block import Block
from agent.collectors.rdma.rdma_netlink import NetlinkCounters
from agent.collectors.rdma.rdma_series import Naming
from agent.schema.errors import SourceError
from agent.sources.rdma import network_namespaces
from agent.sources.rdma.infiniband import Port, RdmaDevice
from agent.sources.rdma.netlink import RdmaNetlink, ToldDevice, connect

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""Each question makes a thread, 0.1 ms: seldomer than the host's own counters."""

MOST_NAMESPACES = 64
"""Pods with a NIC of their own on one node: as many as it has virtual functions for."""

Enter = Callable[[str, int, Callable[[], socket.socket]], socket.socket]


class ForeignCounters(NetlinkCounters):
    """Hardware counters of one device in another namespace."""

    def __init__(self, device: RdmaDevice, index: int, netlink: RdmaNetlink) -> None:
        """Raises SourceError where it does not answer."""
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
    """The devices of other namespaces, and their collectors.

    find: a way into each namespace (``net_namespaces``). enter, connector: for tests without namespaces.
    """

    def __init__(
        self,
        find: Callable[[], dict[int, str]] = network_namespaces.net_namespaces,
        enter: Enter = network_namespaces.inside,
        connector: Callable[[], socket.socket] = connect,
    ) -> None:
        self._find, self._enter, self._connector = find, enter, connector
        self._ways: dict[int, str] = {}
        self._known: dict[tuple[int, ToldDevice], ForeignCounters] = {}
        self.exclusive = False
        self.unreadable = 0

    def look(self, host: RdmaNetlink) -> None:
        """Find out again what there is. host: our own namespace's end."""
        try:
            self.exclusive = host.exclusive()
        except SourceError:
            self.exclusive = False  # a kernel from before there were two modes
        before, self._known, self.unreadable = self._known, {}, 0
        self._ways = self._find() if self.exclusive else {}
        for inode in list(self._ways)[:MOST_NAMESPACES]:
            try:
                self._look_into(inode, before)
            except SourceError as error:
                self.unreadable += 1
                log.info("RDMA devices of a container: %s", error)

    def _look_into(self, inode: int, before: dict[tuple[int, ToldDevice], ForeignCounters]) -> None:
        netlink = RdmaNetlink(lambda: self._enter(self._ways[inode], inode, self._connector))
        try:
            told = netlink.list_devices()
        finally:
            netlink.close()
        for one in told:
            known = before.get((inode, one))
            if known is None or known.failures >= NetlinkCounters.FAILURES:
                asked = RdmaNetlink(lambda: self._enter(self._ways[inode], inode, self._connector))
                known = ForeignCounters(_device(one), one.number, asked)
            self._known[inode, one] = known

    def members(self) -> tuple[ForeignCounters, ...]:
        """The same objects as long as a device is where it was."""
        return tuple(self._known.values())

    def names(self) -> tuple[str, ...]:
        return tuple(one.name for _, one in self._known)


def _device(told: ToldDevice) -> RdmaDevice:
    """What netlink tells of a device; the rest is in a /sys that is not the host's."""
    ports = tuple(Port(str(number), "", "", (), ()) for number in range(1, told.ports + 1))
    driver = told.name.partition("_")[0]
    return RdmaDevice(told.name, "", driver, "", "", "", told.firmware_version, "", "", (), ports)
