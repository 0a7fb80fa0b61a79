"""Parent collector of the GPUs: it opens NVML, finds the GPUs and makes the collectors of each.

Every second it checks whether the GPUs, their MIG instances or the driver have changed. New or changed GPUs get new
collectors, since old handles are invalid. Lost GPUs keep their collectors, which report the loss. If the driver was
unloaded, the parent closes NVML and reopens it once the driver is back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.collectors.block import Block, Collector
from agent.collectors.gpu import gpu_processes, gpu_slow
from agent.collectors.gpu.device import WORKER, series
from agent.collectors.gpu.gpu import fast_collector
from agent.collectors.gpu.gpu_burst import burst_collector
from agent.collectors.gpu.gpu_power_limits import PowerLimitSetter
from agent.collectors.gpu.gpu_processes import GpuProcessCollector
from agent.collectors.gpu.gpu_slow import slow_collector
from agent.collectors.gpu.gpu_topology import GpuTopologyCollector
from agent.collectors.gpu.mig import mig_collector
from agent.collectors.gpu.xid import XidHistory
from agent.gpu_inventory import GpuDevice, GpuProcess, Inventory, MigDevice
from agent.power_leases import PowerLeases
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_enumeration import describe_device, find_devices
from agent.sources.nvml.nvml_events import EventWatcher, GpuEvent

INTERVAL_SECONDS = 10.0

INSTANTS: tuple[float, ...] = (0.25, 0.75)
"""Times within the interval, 0 (start) to 1 (end), at which GPUs are read: half of the GPUs at each time. Frames are
made at the start. If all GPUs were read at once, other users of the driver would be blocked longest. If each GPU had
its own time, the thread would wake up once per GPU, and a wake-up costs more than a read (``python -m benchmarks.nvml
--live 10``, with and without ``--spread``)."""

BURST_INSTANT = 0.5
"""Time within its interval, 0 (start) to 1 (end), at which burst sampling reads all GPUs. They are read together, since
a burst read of a GPU is only one or two calls."""


class NvmlCollector:
    """Collector that owns the NVML library and makes the collectors of its GPUs.

    library: path of an NVML library to load instead of the system's. The first run loads it in the worker's thread.
    A driver that hangs in its initialisation therefore blocks no other thread. devices: UUIDs of the node's GPUs if
    several nodes share the machine; () for all. interval_seconds: interval of the most frequent reads. burst:
    whether each GPU is also read at 10 Hz. leases: power limits that the controller asks for; None: it may set none.
    xids: history to which XIDs and other driver events are added. inventory: inventory in which the GPUs are listed.
    load: function that opens the library.
    """

    name = "nvml"
    worker = WORKER
    phase = 0.0

    def __init__(
        self,
        library: str | None = None,
        interval_seconds: float = 1.0,
        devices: tuple[str, ...] = (),
        *,
        burst: bool = False,
        leases: PowerLeases | None = None,
        xids: XidHistory | None = None,
        inventory: Inventory | None = None,
        clock: Clock | None = None,
        load: Callable[[str | None], Library] = Library,
    ) -> None:
        self.interval_seconds = INTERVAL_SECONDS
        self._load = load
        self._path = library
        self._fast_seconds = interval_seconds
        self._wanted = devices
        self._burst, self._leases = burst, leases
        self._xids = xids or XidHistory()
        self._inventory = inventory or Inventory()
        self._clock = clock or SystemClock()
        self._library: Library | None = None
        self._watcher: EventWatcher | None = None
        self._devices: dict[str, Device] = {}
        self._present: set[str] = set()
        self._members: dict[str, tuple[Collector, ...]] = {}
        self._topology: tuple[Collector, ...] = ()
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._driver = ""
        self._block = Block()
        self._laid_out: object = None
        self._found = False

    # --- called by the node ------------------------------------------------------------------------------------------

    def collect(self) -> Block:
        if self._library is not None and self._library.dead:
            # The driver is being reloaded or has failed: reopen the library.
            self.close()
        if self._library is None:
            self._open()
        assert self._library is not None
        with self._library.using():
            self._find_changes(self._library)
        self._watch(self._library)
        return self._publish()

    def members(self) -> tuple[Collector, ...]:
        return (*(one for members in self._members.values() for one in members), *self._topology)

    def release(self) -> None:
        self.close()

    def acquire(self) -> None:
        """Do nothing: the next run opens the library again."""

    def close(self) -> None:
        """Close the library, all member collectors and the watcher of driver events."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if self._library is not None:
            if not self._library.busy:
                # Members free buffers of the library, so close them first. If a call has not returned, it may still
                # write into the buffers.
                for member in self.members():
                    member.close()
            self._library.close()
            self._library = None
        self._devices.clear()
        self._present.clear()
        self._members.clear()
        self._topology = ()
        self._processes.clear()
        self._inventory.processes = ()

    # --- inventory ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            library = self._load(self._path)
        except UnsupportedError as error:
            if self._found:
                # There were GPUs before: the driver is being reloaded or has failed. Retry.
                raise SourceError(str(error)) from None
            raise
        self._library = library
        self._driver = library.text("nvmlSystemGetDriverVersion")

    def _find_changes(self, library: Library) -> None:
        """Find new and changed GPUs. Raise LibraryDeadError, or UnsupportedError if there is no GPU."""
        found = [
            device
            for device in find_devices(library, self._clock, self._devices.values())
            if not self._wanted or device.uuid in self._wanted
        ]
        if not found and not self._found:
            self.close()
            raise UnsupportedError("NVML: no GPU responds")
        self._found = True
        before = set(self._devices)
        changed = False
        for device in found:
            known = self._devices.get(device.uuid)
            if known is not None and device.uuid in self._present and _same(known, device):
                continue
            describe_device(device)
            self._devices[device.uuid] = device
            self._members[device.uuid] = self._make_members(device)
            self._xids.name_gpu(device.pci_address, device.uuid)
            changed = True
        self._present = {device.uuid for device in found}
        if changed:
            self._topology = (GpuTopologyCollector(tuple(self._devices.values())),)
            self._update_inventory()
            if self._watcher is not None and before != set(self._devices):
                self._watcher.stop()
                self._watcher = None

    def _make_members(self, device: Device) -> tuple[Collector, ...]:
        """Make the collectors of a GPU and set the time in its interval at which each runs."""
        place = list(self._devices).index(device.uuid)

        def phase(interval_seconds: float) -> float:
            """Return the time at which a collector of this GPU runs in its interval, from 0 (start) to 1 (end).

            It coincides with a run of the GPU's most frequent collector, to save wake-ups of the thread.
            """
            turn, group = divmod(place, len(INSTANTS))
            return (turn + INSTANTS[group]) * self._fast_seconds / interval_seconds % 1

        fast = phase(self._fast_seconds)
        members: list[Collector] = [
            fast_collector(device, self._fast_seconds, fast),
            slow_collector(device, phase(gpu_slow.INTERVAL_SECONDS)),
            GpuProcessCollector(device, self._update_processes, phase(gpu_processes.INTERVAL_SECONDS)),
        ]
        if device.instances:
            members.append(mig_collector(device, self._fast_seconds, fast))
        if self._burst:
            members.append(burst_collector(device, self._fast_seconds, BURST_INSTANT))
        if self._leases is not None:
            members.append(PowerLimitSetter(device, self._leases, fast, self._fast_seconds))
        return tuple(members)

    def _watch(self, library: Library) -> None:
        """Start a watcher of driver events for the current GPU handles, if none is running."""
        if self._watcher is not None and not self._watcher.alive:
            self._watcher = None
        if self._watcher is None:
            self._watcher = EventWatcher(library, list(self._devices.values()), self._take_event, self._clock)
            self._watcher.start()

    def _take_event(self, event: GpuEvent) -> None:
        """Add a driver event to the XID history. Called in the watcher's thread."""
        if event.kind == "xid":
            self._xids.add(event.device.pci_address, event.code, event.time_ns, "nvml")
        else:
            self._xids.note(event.device.pci_address, event.kind, event.time_ns)

    # --- output ------------------------------------------------------------------------------------------------------

    def _update_processes(self, gpu: str, processes: tuple[GpuProcess, ...]) -> None:
        self._processes[gpu] = processes
        self._inventory.processes = tuple(one for each in list(self._processes.values()) for one in each)

    def _update_inventory(self) -> None:
        self._inventory.gpus = tuple(
            GpuDevice(
                device.uuid,
                device.index,
                device.minor,
                device.pci_address,
                tuple(
                    MigDevice(one.uuid, one.gpu_instance, one.compute_instance, one.profile_id, one.placement)
                    for one in device.instances
                ),
            )
            for device in self._devices.values()
        )

    def _publish(self) -> Block:
        devices = list(self._devices.values())
        identity = (self._driver, [(id(device), device.index) for device in devices])
        if identity != self._laid_out:
            self._laid_out = identity
            self._block = Block(self._columns(devices))
            self._block.gauges.fill(1.0)
        for index, device in enumerate(devices):
            up = device.uuid in self._present and device.lost_until_ns is None
            self._block.gauges[index] = float(up)
        return self._block

    def _columns(self, devices: Sequence[Device]) -> list[Column]:
        """Return the series gangwatch_gpu_up of each GPU, then the info series of each GPU and of its MIG instances."""
        columns = [series("gangwatch_gpu_up", device) for device in devices]
        for device in devices:
            columns.append(
                series(
                    "gangwatch_gpu_info",
                    device,
                    driver=self._driver,
                    index=str(device.index),
                    mig_mode={None: "", True: "enabled", False: "disabled"}[device.mig],
                    minor="" if device.minor is None else str(device.minor),
                    model=device.model,
                    pci_address=device.pci_address,
                    serial=device.serial,
                    vbios=device.vbios,
                )
            )
            columns.extend(
                series(
                    "gangwatch_gpu_mig_info",
                    device,
                    compute_instance=str(one.compute_instance),
                    gpu_instance=str(one.gpu_instance),
                    mig=one.uuid,
                    profile=one.profile,
                )
                for one in device.instances
            )
        return columns


def _same(known: Device, found: Device) -> bool:
    """Return whether GPU `found` has the handles and MIG instances of GPU `known`, so that its collectors are still
    valid."""

    def identity(device: Device) -> object:
        return (device.handle.value, device.pci_address, device.index, device.mig,
                [(one.uuid, one.handle.value) for one in device.instances])  # fmt: skip

    return identity(known) == identity(found)
