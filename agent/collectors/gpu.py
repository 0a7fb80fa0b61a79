"""The GPUs, as the driver's library tells of them."""

from __future__ import annotations

from agent.collectors.block import Block
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.nvml import THROTTLE_REASONS, Gpu, GpuReading, Nvml

_GAUGES = (
    "gangwatch_gpu_utilization_ratio",
    "gangwatch_gpu_memory_utilization_ratio",
    "gangwatch_gpu_memory_total_bytes",
    "gangwatch_gpu_memory_used_bytes",
    "gangwatch_gpu_power_watts",
    "gangwatch_gpu_temperature_celsius",
    "gangwatch_gpu_sm_clock_hertz",
    "gangwatch_gpu_memory_clock_hertz",
)


class GpuCollector:
    """Reads the node's GPUs once a run. What a GPU does not tell is absent, and so is all of a GPU that is lost.

    library: path of an NVML to load instead of the system's. It is loaded by the first run, in the collector's own
    thread: a driver that hangs in its initialisation hangs nobody else. devices: UUIDs of the node's GPUs where
    several nodes share the machine; () for all.
    """

    name = "gpu"

    def __init__(
        self, library: str | None = None, interval_seconds: float = 1.0, devices: tuple[str, ...] = ()
    ) -> None:
        self.interval_seconds = interval_seconds
        self._library = library
        self._devices = devices
        self._gpus: list[Gpu] = []
        self._nvml: Nvml | None = None
        self._block = Block()
        self._found = False

    def collect(self) -> Block:
        if self._nvml is None:
            self._nvml = self._open()
            self._gpus = [gpu for gpu in self._nvml.gpus if not self._devices or gpu.uuid in self._devices]
            self._block = self._make_block(self._nvml.driver, self._gpus)
            self._found = True
        block = self._block
        block.clear()
        try:
            for position, gpu in enumerate(self._gpus):
                reading = self._nvml.read(gpu)
                if reading is not None:
                    self._fill(position, reading)
        except SourceError:
            # The library is dead as it is loaded: begin anew at the next run, which succeeds once the driver is back.
            self.close()
            raise
        return block

    def _open(self) -> Nvml:
        try:
            return Nvml(self._library)
        except UnsupportedError as error:
            if self._found:
                # There were GPUs: the driver is being reloaded or has failed, which is no reason to stop asking.
                raise SourceError(str(error)) from None
            raise

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    @staticmethod
    def _make_block(driver: str, gpus: list[Gpu]) -> Block:
        """Gauges a GPU: info, _GAUGES, one a throttle reason. Counters a GPU: energy."""
        gauges: list[Column] = []
        counters: list[Column] = []
        for gpu in gpus:
            label = ("gpu", gpu.uuid)
            gauges.append(
                Column(
                    "gangwatch_gpu_info",
                    (("driver", driver), label, ("model", gpu.model), ("pci_address", gpu.pci_address)),
                )
            )
            gauges.extend(Column(metric, (label,)) for metric in _GAUGES)
            gauges.extend(
                Column("gangwatch_gpu_throttle_state", (label, ("reason", reason))) for reason, _ in THROTTLE_REASONS
            )
            counters.append(Column("gangwatch_gpu_energy_joules_total", (label,)))
        return Block(gauges, counters)

    def _fill(self, position: int, reading: GpuReading) -> None:
        """Set the values of the GPU at `position`, in base units."""
        block = self._block
        at = position * (1 + len(_GAUGES) + len(THROTTLE_REASONS))
        block.set_gauge(at, 1.0)
        for offset, value, times, per in (
            (1, reading.utilization_percent, 1, 100),
            (2, reading.memory_utilization_percent, 1, 100),
            (3, reading.memory_total_bytes, 1, 1),
            (4, reading.memory_used_bytes, 1, 1),
            (5, reading.power_milliwatts, 1, 1000),
            (6, reading.temperature_celsius, 1, 1),
            (7, reading.sm_clock_megahertz, 1_000_000, 1),
            (8, reading.memory_clock_megahertz, 1_000_000, 1),
        ):
            if value is not None:
                block.set_gauge(at + offset, value * times / per)
        if reading.throttle_reasons is not None:
            for offset, (_, bit) in enumerate(THROTTLE_REASONS, 1 + len(_GAUGES)):
                block.set_gauge(at + offset, float(reading.throttle_reasons & bit != 0))
        if reading.energy_millijoules is not None:
            block.set_counter(position, reading.energy_millijoules)
