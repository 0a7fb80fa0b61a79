"""Parser of kernel messages that matter to training: GPUs, NICs, PCIe, memory, hung tasks, stalled storage.

The patterns match Linux 5.4 to 6.18 (mm/oom_kill.c, kernel/hung_task.c, drivers/pci/pcie/aer.c and dpc.c, mlx5, bnxt
and ice, fs/nfs, net/sunrpc) and NVIDIA's driver 470 to 580. Other messages are ignored.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PCI = r"(?P<pci_address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_NETWORK_DRIVER = r"(?P<driver>mlx5_core|mlx4_en|bnxt_en|ice|efa|ionic|i40e)"


class Event(NamedTuple):
    """Event that a kernel message reports. entity: a PCI address, device, process or server; detail: other values."""

    kind: str
    entity: str
    detail: dict[str, str]


class _Pattern(NamedTuple):
    kind: str
    expression: re.Pattern[str]
    entity: str


def _pattern(kind: str, expression: str, entity: str = "pci_address") -> _Pattern:
    return _Pattern(kind, re.compile(expression, re.ASCII), entity)


_PATTERNS: tuple[_Pattern, ...] = (
    # NVIDIA
    _pattern("xid", rf"^NVRM: Xid \(PCI:{_PCI}\): (?P<code>\d{{1,5}})(?:, ?(?P<rest>.*))?"),
    _pattern(
        "nvswitch_error",
        rf"^nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \(PCI:{_PCI}\): (?P<code>\d{{1,6}})"
        r"(?:, (?P<severity>Fatal|Non-fatal))?(?:, (?P<rest>.*))?",
    ),
    _pattern("gpu_lost", rf"^NVRM: GPU (?:at )?(?:PCI:)?{_PCI}: .*fallen off the bus"),
    # NICs
    _pattern(
        "nic_link",
        rf"^{_NETWORK_DRIVER} {_PCI} (?P<netdev>[^:\s]+): (?:NIC )?Link (?:is )?(?P<state>[Uu]p|[Dd]own)\b",
    ),
    _pattern(
        "nic_health",
        rf"^mlx5_core {_PCI}(?: [^:\s]+)?: .*?(?P<what>health compromised|Health issue observed|health recovery|"
        r"[Ff]atal error|firmware (?:fatal|internal) error|device is in internal state|timeout\. Will cause a leak|"
        r"High temperature|Port module event(?:\[error\])?: module \d+, Cable error|handling bad device)",
    ),
    _pattern(
        "nic_command_error",
        rf"^mlx5_core {_PCI}(?: [^:\s]+)?: mlx5_cmd_(?:out_err|check):\d+:\(pid \d+\): (?P<what>\w+\(0x\w+\))",
    ),
    # PCI Express
    _pattern(
        "pcie_error",
        rf"^(?P<driver>\S+) {_PCI}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>\w+(?: \([\w-]+\))?), "
        r"(?:type=)?(?P<type>[\w ]+)",
    ),
    _pattern("pcie_containment", rf"^pcieport {_PCI}: DPC: containment event"),
    _pattern(
        "pcie_hotplug", rf"^pcieport {_PCI}: pciehp: Slot\((?P<slot>[^)]*)\): (?P<what>Link Down|Card not present)"
    ),
    # Processors and memory
    _pattern("machine_check", r"^mce: \[Hardware Error\]: (?P<what>Machine check events logged|CPU \d+: .*)", ""),
    _pattern(
        "memory_error",
        r"^EDAC (?P<controller>\w+): (?P<count>\d{1,9}) (?P<severity>CE|UE) (?P<what>.*)",
        "controller",
    ),
    _pattern("cpu_throttled", r"(?:^|: )CPU(?P<cpu>\d{1,5}): (?:Core|Package) temperature.* above threshold", "cpu"),
    # Processes
    _pattern(
        "out_of_memory",
        r"^(?P<what>Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d{1,10}),? "
        r"\((?P<process>.{0,64}?)\)(?: total-vm| score|,)",
        "process",
    ),
    _pattern(
        "hung_task",
        r"^INFO: task (?P<process>.{1,64}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,9}) seconds",
        "process",
    ),
    _pattern(
        "lockup",
        r"^watchdog: BUG: (?P<what>soft|hard) lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})s!",
        "cpu",
    ),
    # Storage
    _pattern("nfs_server", r"^nfs: server (?P<server>\S{1,255}) (?P<state>not responding|OK)\b", "server"),
    _pattern(
        "disk_error",
        r"(?:^|: )(?:blk_update_request: )?(?P<what>critical \w+|I/O) error, dev (?P<device>\S{1,64}), sector \d+",
        "device",
    ),
)

KINDS = tuple(dict.fromkeys(pattern.kind for pattern in _PATTERNS))

MOST_READ = 1024
"""Maximum number of characters of a message that are parsed. The kernel has the same limit (PRINTKRB_RECORD_MAX)."""

MOST_TEXT = 512
"""Maximum number of characters of a kernel message that are copied to a record."""


def parse_message(text: str) -> Event | None:
    """Return the event that a kernel message reports; None if the message matches no pattern."""
    text = text[:MOST_READ]
    for pattern in _PATTERNS:
        match = pattern.expression.search(text)
        if match is None:
            continue
        detail = {name: value[:MOST_TEXT] for name, value in match.groupdict().items() if value is not None}
        if "pci_address" in detail:
            detail["pci_address"] = pci_address(detail["pci_address"])
        detail["message"] = text[:MOST_TEXT]
        return Event(pattern.kind, detail.get(pattern.entity, "kernel") if pattern.entity else "kernel", detail)
    return None


def pci_address(text: str) -> str:
    """Convert a PCI address to the form of sysfs: lower case, a domain of four digits, and a function.

    The driver writes the domain with eight digits.
    """
    domain, _, rest = text.lower().partition(":")
    address = f"{int(domain, 16):04x}:{rest}"
    return address if "." in rest else f"{address}.0"
