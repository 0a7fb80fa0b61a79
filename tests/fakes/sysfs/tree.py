"""Builder of a fake node: PCI topology with rails, GPUs, RDMA NICs with all counter files, and /proc.

It follows the kernel's documented formats and a DGX H100: one PCIe switch for each GPU and its NIC, four switches per
socket. ``build`` writes the node, ``Tree.advance`` advances its counters. The agent runs on it with ``--sysfs-root ROOT
--proc-root ROOT``. Tests that need more than files (EINVAL, hangs) must add that themselves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.sources.rdma.ethtool import RECORDED
from tests.fakes.sysfs.names import EFA_DEVICE, HARDWARE, PORT_COUNTERS, PREFIX, mlx5_statistics
from tests.fakes.sysfs.proc import ProcTree
from tests.fakes.sysfs.traffic import Traffic

GPU_ADDRESSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
"""PCI buses of the GPUs in a DGX H100; the boards of the fake NVML have the same."""

_NUMBER_WIDTH = 21

AER_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
AER_UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC",
    "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr",
    "PoisonTLPBlocked",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Nic:
    """RDMA device of the tree."""

    name: str
    address: str
    netdev: str
    device: Path
    traffic: Traffic

    @property
    def port(self) -> Path:
        return self.device / "infiniband" / self.name / "ports" / "1"


@dataclass(frozen=True, slots=True)
class Tree:
    """Fake node that ``build`` wrote. root contains both /sys and /proc, whose names do not collide."""

    root: Path
    gpus: tuple[str, ...]
    nics: tuple[Nic, ...]
    proc: ProcTree
    kernel_log: Path

    def advance(self, seconds: float, congestion: Mapping[str, float] | None = None) -> None:
        """Advance every counter. congestion: share of marked packets from now on, by NIC."""
        for nic in self.nics:
            if congestion is not None:
                nic.traffic.congestion = congestion.get(nic.name, 0.0)
            if not nic.device.exists():
                continue
            moved = nic.traffic.advance(seconds)
            for folder in ("counters", "hw_counters"):
                for name, value in moved.items():
                    path = nic.port / folder / name
                    if path.exists():
                        write_number(path, value)
            statistics = self.root / "class" / "net" / nic.netdev / RECORDED
            if statistics.exists():
                self._write_statistics(statistics, moved)
        self.proc.advance(seconds)

    @staticmethod
    def _write_statistics(path: Path, moved: Mapping[str, int]) -> None:
        lines = []
        for line in path.read_text().splitlines():
            name = line.partition(":")[0].strip()
            lines.append(f"     {name}: {moved[name]}" if name in moved else line)
        replacement = path.with_suffix(".new")
        replacement.write_text("\n".join(lines) + "\n")
        replacement.replace(path)

    def nic(self, name: str) -> Nic:
        return next(nic for nic in self.nics if nic.name == name)

    def remove_nic(self, name: str) -> None:
        """Remove a NIC with its folder and the links to it.

        Open files of the NIC read as empty; a kernel would return ENODEV.
        """
        nic = self.nic(name)
        shutil.copytree(nic.device, self.root / f"removed-{nic.name}", symlinks=True)
        for path in nic.device.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)
        shutil.rmtree(nic.device)
        for link in (f"class/infiniband/{name}", f"class/net/{nic.netdev}", f"bus/pci/devices/{nic.address}"):
            (self.root / link).unlink(missing_ok=True)

    def return_nic(self, name: str) -> None:
        nic = self.nic(name)
        shutil.move(self.root / f"removed-{nic.name}", nic.device)
        _link_nic(self.root, nic)

    def log(self, message: str, seconds_since_boot: float, level: int = 4) -> None:
        """Append a record to the kernel log, in the format of /dev/kmsg."""
        sequence = self.kernel_log.read_text().count("\n")
        with self.kernel_log.open("a") as log:
            log.write(f"{level},{sequence},{round(seconds_since_boot * 1e6)},-;{message}\n")


def write_number(path: Path, value: int) -> None:
    """Write a counter file in place, with one write of fixed length, so that a reader never sees half a number."""
    text = str(value % (1 << 64)).ljust(_NUMBER_WIDTH) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)


def build(
    root: Path,
    nics: int = 8,
    driver: str = "mlx5_core",
    gpus: int = 8,
    *,
    gpu_buses: Sequence[str] = GPU_ADDRESSES,
    management_nics: int = 0,
    link_layer: str = "Ethernet",
    rate: str = "400 Gb/sec (4X NDR)",
) -> Tree:
    """Write a node. gpu_buses: PCI bus of each GPU, two hexadecimal digits, at least 06; NICs get adjacent buses.

    management_nics: number of NVSwitch management functions, as on HGX B200, which the agent must not read.
    """
    root.mkdir(parents=True, exist_ok=True)
    places = max(gpus, nics)
    buses = [*gpu_buses][:places]
    buses += [f"{bus:02x}" for bus in range(0x07, 0xFF, 7) if f"{bus:02x}" not in buses][: places - len(buses)]
    gpu_addresses = []
    for index in range(gpus):
        gpu_addresses.append(_gpu(root, buses[index], _numa(index, places)))
    made = [_nic(root, index, buses[index], _numa(index, places), driver, link_layer, rate) for index in range(nics)]
    for index in range(management_nics):
        _management_nic(root, nics + index)
    for folder in ("class/infiniband", "class/net", "block", "bus/pci/devices"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "block" / "nvme0n1").mkdir(exist_ok=True)
    log = root / "dev" / "kmsg"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    proc = ProcTree(root)
    proc.write([nic.netdev for nic in made])
    return Tree(root, tuple(gpu_addresses), tuple(made), proc, log)


def _numa(index: int, places: int) -> int:
    return 0 if index < (places + 1) // 2 else 1


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _switch(root: Path, bus: str) -> Path:
    """Return the folder of a switch's upstream port below a root port; callers add downstream ports."""
    number = int(bus, 16)
    return (
        root / "devices" / f"pci0000:{number - 6:02x}" / f"0000:{number - 6:02x}:01.0" / f"0000:{number - 5:02x}:00.0"
    )


def _pci(root: Path, device: Path, numa: int, pci_class: str, vendor: str, product: str, speed: str) -> None:
    """Write the files of a PCI function, and its link on the bus."""
    for name, text in (
        ("class", pci_class), ("vendor", vendor), ("device", product), ("numa_node", str(numa)),
        ("current_link_speed", speed), ("max_link_speed", speed), ("current_link_width", "16"),
        ("max_link_width", "16"),
    ):  # fmt: skip
        _write(device / name, text)
    _write(device / "aer_dev_correctable", _aer(AER_CORRECTABLE, "TOTAL_ERR_COR"))
    _write(device / "aer_dev_fatal", _aer(AER_UNCORRECTABLE, "TOTAL_ERR_FATAL"))
    _write(device / "aer_dev_nonfatal", _aer(AER_UNCORRECTABLE, "TOTAL_ERR_NONFATAL"))
    _link(root / "bus" / "pci" / "devices" / device.name, device)


def _aer(names: Sequence[str], total: str) -> str:
    return "\n".join(f"{name} 0" for name in (*names, total))


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def _gpu(root: Path, bus: str, numa: int) -> str:
    number = int(bus, 16)
    device = _switch(root, bus) / f"0000:{number - 4:02x}:02.0" / f"0000:{bus}:00.0"
    _pci(root, device, numa, "0x030200", "0x10de", "0x2330", "32.0 GT/s PCIe")
    _link(device / "driver", root / "bus" / "pci" / "drivers" / "nvidia")
    (root / "bus" / "pci" / "drivers" / "nvidia").mkdir(parents=True, exist_ok=True)
    return f"0000:{bus}:00.0"


def _nic(root: Path, index: int, bus: str, numa: int, driver: str, link_layer: str, rate: str) -> Nic:
    number = int(bus, 16)
    device = _switch(root, bus) / f"0000:{number - 4:02x}:00.0" / f"0000:{number - 3:02x}:00.0"
    nic = Nic(f"{PREFIX[driver]}{index}", device.name, f"rail{index}", device, Traffic(_bytes_per_second(rate)))
    _pci(root, device, numa, "0x020000", "0x15b3", "0x1021", "32.0 GT/s PCIe")
    (root / "bus" / "pci" / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    _link(device / "driver", root / "bus" / "pci" / "drivers" / driver)

    own = device / "infiniband" / nic.name
    for name, text in (("board_id", "MT_0000000838"), ("fw_ver", "28.39.1002"), ("hca_type", "MT4129")):
        _write(own / name, text)
    _link(own / "device", device)
    for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", rate), ("link_layer", link_layer)):
        _write(nic.port / name, text)
    _write(nic.port / "gid_attrs" / "ndevs" / "0", nic.netdev)
    for file in PORT_COUNTERS:
        (nic.port / "counters").mkdir(exist_ok=True)
        write_number(nic.port / "counters" / file, 0)
    (nic.port / "hw_counters").mkdir(exist_ok=True)
    for file in HARDWARE[driver]:
        write_number(nic.port / "hw_counters" / file, 0)
    _write(nic.port / "hw_counters" / "lifespan", "10")
    if driver == "efa":
        for file in EFA_DEVICE:
            (own / "hw_counters").mkdir(exist_ok=True)
            write_number(own / "hw_counters" / file, 0)

    interface = device / "net" / nic.netdev
    for name, text in (
        ("operstate", "up"), ("carrier", "1"), ("carrier_changes", "2"), ("carrier_up_count", "1"),
        ("carrier_down_count", "1"), ("mtu", "4200"), ("speed", str(round(_bytes_per_second(rate) * 8 / 1e6))),
        ("address", f"00:00:5e:00:53:{index:02x}"), ("dev_port", "0"), ("duplex", "full"), ("flags", "0x1003"),
        ("type", "1"), ("ifindex", str(index + 2)),
    ):  # fmt: skip
        _write(interface / name, text)
    for name in ("rx_packets", "tx_packets", "rx_dropped", "tx_dropped"):
        _write(interface / "statistics" / name, "0")
    _link(interface / "device", device)
    if driver == "mlx5_core":
        lines = "\n".join(f"     {name}: 0" for name in mlx5_statistics())
        _write(interface / RECORDED, f"NIC statistics:\n{lines}")
    _link_nic(root, nic)
    return nic


def _link_nic(root: Path, nic: Nic) -> None:
    _link(root / "class" / "infiniband" / nic.name, nic.device / "infiniband" / nic.name)
    _link(root / "class" / "net" / nic.netdev, nic.device / "net" / nic.netdev)
    _link(root / "bus" / "pci" / "devices" / nic.address, nic.device)


def _management_nic(root: Path, index: int) -> None:
    """Write a ConnectX function that manages NVLink switches: an InfiniBand controller marked in its VPD."""
    device = root / "devices" / "pci0000:00" / "0000:00:02.0" / f"0000:02:00.{index % 8}"
    _pci(root, device, 0, "0x020700", "0x15b3", "0x1021", "32.0 GT/s PCIe")
    (device / "vpd").write_bytes(b"\x82\x10\x00NVLink switch\x90\x20\x00V3\x0bSMDL=SW_MNG\x78")
    (root / "bus" / "pci" / "drivers" / "mlx5_core").mkdir(parents=True, exist_ok=True)
    _link(device / "driver", root / "bus" / "pci" / "drivers" / "mlx5_core")
    own = device / "infiniband" / f"mlx5_{index}"
    for file in PORT_COUNTERS:
        _write(own / "ports" / "1" / "counters" / file, "0")
    _write(own / "ports" / "1" / "state", "4: ACTIVE")
    _link(own / "device", device)
    _link(root / "class" / "infiniband" / own.name, own)


def _bytes_per_second(rate: str) -> float:
    return float(rate.split()[0]) * 1e9 / 8
