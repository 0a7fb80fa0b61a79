"""Collector of PCI Express links of GPUs and NICs: current and maximum generation and width, and AER error counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import KeptFile, read_file
from agent.sources.sysfs.pci import AER_FILES, Function, FunctionFinder, parse_aer, parse_generation, parse_width
from agent.sources.sysfs.sysfs import read_text

INTERVAL_SECONDS = 10.0

_LINK = (
    ("gangwatch_pcie_link_generation", "current_link_speed", parse_generation),
    ("gangwatch_pcie_link_generation_maximum", "max_link_speed", parse_generation),
    ("gangwatch_pcie_link_lanes", "current_link_width", parse_width),
    ("gangwatch_pcie_link_lanes_maximum", "max_link_width", parse_width),
)
_PER_DEVICE = 1 + len(_LINK)


class _Aer(NamedTuple):
    """One file with a device's counts of PCIe errors (AER), and the counters that publish them.

    at: index of the first of these counters in the block. errors: names of the errors, in the order of the counters.
    """

    file: KeptFile
    at: int
    errors: tuple[str, ...]


class PcieCollector:
    """Collector of the PCIe links of GPUs and NICs.

    Virtual functions are skipped: they share the physical function's link.

    An AER file (PCIe error counts) is parsed only if its text has changed.
    """

    name = "pcie"
    worker = "sysfs"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, sys_root: str = "/sys") -> None:
        self._finder = FunctionFinder(sys_root)
        self._functions: list[Function] = []
        self._aer: list[_Aer] = []
        self._texts: list[bytes] = []
        self._maxima: dict[int, float] = {}  # maxima of the hardware by index in the block, read once
        self._block = Block()

    def collect(self) -> Block:
        functions = [one for one in self._finder.find() if not one.virtual]
        if functions != self._functions:
            self._follow(functions)
        block = self._block
        block.gauges.fill(float("nan"))
        for position, function in enumerate(functions):
            at = position * _PER_DEVICE
            block.set_gauge(at, 1.0)
            for index, (_, file, parse) in enumerate(_LINK, at + 1):
                value = self._maxima.get(index)
                if value is None:
                    try:
                        value = parse(read_text(f"{function.folder}/{file}"))
                    except ValueError:
                        continue
                    if value is None:
                        continue
                    if file.startswith("max_"):
                        self._maxima[index] = value
                block.set_gauge(index, value)
        for position, aer in enumerate(self._aer):
            self._read_aer(position, aer)
        return block

    def close(self) -> None:
        for aer in self._aer:
            aer.file.close()

    def _read_aer(self, position: int, aer: _Aer) -> None:
        block = self._block
        end = aer.at + len(aer.errors)
        try:
            text = aer.file.read()
            if text == self._texts[position]:
                return
            counts = parse_aer(text)
            values = [counts[error] for error in aer.errors]
        except (SourceError, KeyError):
            self._texts[position] = b""
            block.counters_valid[aer.at : end] = False
            return
        self._texts[position] = text
        for index, value in enumerate(values, aer.at):
            block.set_counter(index, value)

    def _follow(self, functions: Sequence[Function]) -> None:
        """Make a new block of series for the devices in `functions`.

        AER files are read to find the errors that the kernel counts.
        """
        self.close()
        self._functions = list(functions)
        self._maxima = {}
        self._aer = []
        gauges: list[Column] = []
        counters: list[Column] = []
        for function in functions:
            address = ("pci_address", function.device.address)
            node = "" if function.device.numa_node is None else str(function.device.numa_node)
            gauges.append(
                Column(
                    "gangwatch_pcie_device_info",
                    (("driver", function.driver), ("kind", function.kind), ("numa_node", node), address),
                )
            )
            gauges.extend(Column(metric, (address,)) for metric, _, _ in _LINK)
            for severity, file in AER_FILES.items():
                path = f"{function.folder}/{file}"
                try:
                    errors = tuple(parse_aer(read_file(path)))
                except (OSError, SourceError):
                    continue
                self._aer.append(_Aer(KeptFile(path), len(counters), errors))
                counters.extend(
                    Column("gangwatch_pcie_errors_total", (("error", error), address, ("severity", severity)))
                    for error in errors
                )
        self._texts = [b""] * len(self._aer)
        self._block = Block(gauges, counters)
