"""Collector of physical network interfaces and bonds: state, speed, carrier and drops."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.collectors.block import Block
from agent.schema.errors import UnsupportedError
from agent.schema.frame import Column
from agent.sources.counter_files import CounterFiles
from agent.sources.sysfs.sysfs import is_number, names_in, pci_address_of, read_text

INTERVAL_SECONDS = 10.0

_RETRY_RUNS = 60
"""Number of runs (10 minutes) before a file is read again if the driver does not support it (EINVAL, EOPNOTSUPP)."""


class Interface(NamedTuple):
    """A network interface and the attributes in its info series; '' if the kernel does not report an attribute."""

    name: str
    identity: int
    address: str
    driver: str
    pci_address: str


def parse_up(text: str) -> float:
    """Return 1 if the text of operstate is "up", else 0. Raise ValueError if the text is empty."""
    if not text:
        raise ValueError("no state")
    return float(text == "up")


def parse_flag(text: str) -> float:
    """Parse the text of a carrier flag, 0 or 1. Raise ValueError for anything else."""
    if text not in ("0", "1"):
        raise ValueError(f"{text[:40]!r} is not 0 or 1")
    return float(text)


def parse_speed(text: str) -> float:
    """Convert a speed in megabits to bytes per second. Raise ValueError if the speed is unknown (-1 or empty)."""
    if not is_number(text) or int(text) in (0, 0xFFFFFFFF):
        raise ValueError(f"{text[:40]!r} is not a speed")
    return int(text) * 1e6 / 8


def parse_bytes(text: str) -> float:
    """Parse the text of an MTU in bytes. Raise ValueError if it is not a number."""
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)


_GAUGES: tuple[tuple[str, str, Callable[[str], float]], ...] = (
    ("gangwatch_network_up", "operstate", parse_up),
    ("gangwatch_network_carrier", "carrier", parse_flag),
    ("gangwatch_network_speed_bytes_per_second", "speed", parse_speed),
    ("gangwatch_network_mtu_bytes", "mtu", parse_bytes),
)
_COUNTERS = (
    ("gangwatch_network_carrier_changes_total", "carrier_changes"),
    ("gangwatch_network_carrier_down_total", "carrier_down_count"),
    ("gangwatch_network_receive_packets_total", "statistics/rx_packets"),
    ("gangwatch_network_transmit_packets_total", "statistics/tx_packets"),
    ("gangwatch_network_receive_drops_total", "statistics/rx_dropped"),
    ("gangwatch_network_transmit_drops_total", "statistics/tx_dropped"),
)


class NetworkCollector:
    """Collector of physical interfaces and bonds. It skips interfaces of containers, since they change often."""

    name = "network"
    worker = "sysfs"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, sys_root: str = "/sys") -> None:
        """Raise UnsupportedError if there is no class/net folder."""
        self._folder = f"{sys_root}/class/net"
        if not os.path.isdir(self._folder):
            raise UnsupportedError(f"{self._folder}: no such folder")
        self._interfaces: list[Interface] = []
        self._files = CounterFiles((), keep=False, retry_runs=_RETRY_RUNS)
        self._follow(())

    def collect(self) -> Block:
        known = {interface.name: interface for interface in self._interfaces}
        interfaces = [
            interface for name in names_in(self._folder) if (interface := self._read(name, known.get(name))) is not None
        ]
        if interfaces != self._interfaces:
            self._follow(interfaces)
        block = self._block
        block.clear()
        self._files.read_into(block.counters.data, block.counters_valid.data)
        for position, interface in enumerate(interfaces):
            at = position * (1 + len(_GAUGES))
            block.set_gauge(at, 1.0)
            for index, (_, file, parse) in enumerate(_GAUGES, at + 1):
                try:
                    block.set_gauge(index, parse(read_text(f"{self._folder}/{interface.name}/{file}")))
                except ValueError:
                    continue
        return block

    def close(self) -> None:
        self._files.close()

    def _read(self, name: str, known: Interface | None) -> Interface | None:
        folder = f"{self._folder}/{name}"
        try:
            identity = os.stat(folder).st_ino
        except OSError:
            return None
        if known is not None and known.identity == identity:
            return known
        device = f"{folder}/device"
        if not os.path.exists(device):
            return Interface(name, identity, "", "", "") if os.path.isdir(f"{folder}/bonding") else None
        if os.path.lexists(f"{device}/physfn"):
            return None  # a virtual function belongs to a pod or VM, which counts its traffic
        driver = f"{device}/driver"
        return Interface(
            name,
            identity,
            read_text(f"{folder}/address"),
            os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else "",
            pci_address_of(os.path.realpath(device)),
        )

    def _follow(self, interfaces: Sequence[Interface]) -> None:
        self._files.close()
        self._interfaces = list(interfaces)
        self._files = CounterFiles(
            [f"{self._folder}/{one.name}/{file}" for one in interfaces for _, file in _COUNTERS],
            keep=False,
            retry_runs=_RETRY_RUNS,
        )
        gauges: list[Column] = []
        counters: list[Column] = []
        for one in interfaces:
            device = ("device", one.name)
            gauges.append(
                Column(
                    "gangwatch_network_info",
                    (("address", one.address), device, ("driver", one.driver), ("pci_address", one.pci_address)),
                )
            )
            gauges.extend(Column(metric, (device,)) for metric, _, _ in _GAUGES)
            counters.extend(Column(metric, (device,)) for metric, _ in _COUNTERS)
        self._block = Block(gauges, counters)
