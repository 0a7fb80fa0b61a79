"""Setter of one GPU's power limit: it sets what the controller asks for while the lease lasts, and restores it then.

It exists only if the node's operator allows it (agent.power_limits). It is a collector, because it must use the same
thread and handles as all other calls of the driver, and publishes the limits that are possible and in force. Without
the series of the possible limits, the scheduler sets none.
"""

from __future__ import annotations

import logging
import math
from ctypes import byref, c_uint

import pynvml

from agent.collectors.block import Block
from agent.collectors.gpu.device import WORKER, series
from agent.power_leases import PowerLeases
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_codes import code_text

METRIC = "gangwatch_gpu_settable_power_limit_watts"

NEAR_MILLIWATTS = 1000
"""Difference in milliwatts up to which a limit counts as set, because drivers round limits."""

_log = logging.getLogger(__name__)


class PowerLimitSetter:
    """Power limit of one GPU. refusal: why limits cannot be set; '' if they can."""

    worker = WORKER

    def __init__(self, device: Device, leases: PowerLeases, phase: float = 0.0, interval_seconds: float = 1.0) -> None:
        self.name = f"gpu-power-limit/{device.pci_address}"
        self.interval_seconds = interval_seconds
        self.phase = phase
        self.refusal = ""
        self._device, self._leases = device, leases
        self._least = self._most = 0
        self._asked = False
        columns = [series(METRIC, device, limit=limit) for limit in ("least", "most", "current", "own")]
        self._block = Block([*columns, series("gangwatch_gpu_power_limit_lease_active", device)])

    def collect(self) -> Block:
        device = self._device
        device.library.check_alive()
        with device.library.using():
            device.check_present()
            if not self._asked:
                self._read_range()
                self._asked = True
            now = self._current()
            wanted = None if self.refusal else self._leases.wanted(device.uuid)
            if wanted is not None:
                now = self._apply(wanted, now)
            elif self._leases.to_restore(device.uuid) is not None:
                now = self._give_back(now)
        leased = wanted is not None and not self.refusal
        possible = (math.nan, math.nan) if self.refusal else (self._least / 1000, self._most / 1000)
        own = self._leases.to_restore(device.uuid) or now
        in_force = [math.nan if one is None else one / 1000 for one in (now, own)]
        self._block.gauges[:] = (*possible, *in_force, float(leased))
        return self._block

    def close(self) -> None:
        """Restore the GPU's limit, because the agent stops or releases the GPU."""
        device = self._device
        if self._leases.to_restore(device.uuid) is None or device.library.dead:
            return
        try:
            with device.library.using():
                self._give_back(None)
        except SourceError as error:
            _log.error("gpu=%s: its power limit is not restored: %s; restored at the next start", device.uuid, error)

    def _read_range(self) -> None:
        """Read the limits that the GPU and the operator allow."""
        least, most = c_uint(), c_uint()
        allowed = self._leases.allowed
        if self._device.mig:
            self._refuse("mig", "MIG is on, and a limit would slow all of its instances")
            return
        code = self._call("nvmlDeviceGetPowerManagementLimitConstraints", byref(least), byref(most))
        if code != pynvml.NVML_SUCCESS:
            self._refuse("unsupported", f"the GPU has no settable power limit: {code_text(code)}")
            return
        self._least = max(least.value, math.ceil(allowed.least_watts * 1000))
        self._most = min(most.value, math.floor(allowed.most_watts * 1000))
        if self._least > self._most:
            self._refuse(
                "outside",
                f"agent.power_limits allows {allowed.least_watts:g} to {allowed.most_watts:g} W, and the GPU "
                f"{least.value / 1000:g} to {most.value / 1000:g} W",
            )

    def _current(self) -> int | None:
        """Return the limit in force, in milliwatts; None if the GPU does not report it."""
        milliwatts = c_uint()
        code = self._call("nvmlDeviceGetPowerManagementLimit", byref(milliwatts))
        return milliwatts.value if code == pynvml.NVML_SUCCESS else None

    def _apply(self, watts: float, now: int | None) -> int | None:
        """Set the limit if it is not in force. Return the limit that is then in force."""
        wanted = min(max(round(watts * 1000), self._least), self._most)
        if now is None or abs(now - wanted) < NEAR_MILLIWATTS:
            return now
        try:
            self._leases.remember(self._device.uuid, now)
        except OSError as error:
            self._refuse("no-memory", f"what to restore cannot be saved: {error.strerror}")
            return now
        return self._set(wanted, now)

    def _give_back(self, now: int | None) -> int | None:
        """Restore the limit from before the lease. Return the limit that is then in force."""
        before = self._leases.to_restore(self._device.uuid)
        assert before is not None
        if now is None or abs(now - before) >= NEAR_MILLIWATTS:
            now = self._set(before, now)
        if now is not None and abs(now - before) < NEAR_MILLIWATTS:
            self._leases.restored(self._device.uuid)
            _log.info("gpu=%s: its power limit of %g W is restored", self._device.uuid, before / 1000)
        return now

    def _set(self, milliwatts: int, now: int | None) -> int | None:
        code = self._call("nvmlDeviceSetPowerManagementLimit", c_uint(milliwatts))
        if code == pynvml.NVML_SUCCESS:
            return self._current()
        reasons = {
            pynvml.NVML_ERROR_NO_PERMISSION: ("no-permission", "setting a power limit needs root (CAP_SYS_ADMIN)"),
            pynvml.NVML_ERROR_NOT_SUPPORTED: ("unsupported", "the GPU has no settable power limit"),
            pynvml.NVML_ERROR_INVALID_ARGUMENT: ("outside", f"the driver refuses {milliwatts / 1000:g} W"),
        }
        reason, text = reasons.get(code, ("failed", "the driver has failed"))
        self._refuse(reason, f"{text}: {code_text(code)}")
        return now

    def _call(self, symbol: str, *arguments: object) -> int:
        """Make an NVML call on the GPU, and return its code. Raise GpuLostError or LibraryDeadError."""
        code = self._device.library.call(symbol, self._device.handle, *arguments)
        if code != pynvml.NVML_SUCCESS:
            self._device.judge(code, symbol)
        return code

    def _refuse(self, reason: str, text: str) -> None:
        if not self.refusal:
            _log.error("gpu=%s reason=%s: power limits cannot be set: %s", self._device.uuid, reason, text)
        self.refusal = text
