"""Power limits of GPUs on lease: what the controller has asked for, until when, and what to restore afterwards.

A lease lasts LEASE_SECONDS unless it is renewed. What to restore is in a file before a limit is set, so that an agent
that was killed restores it at its next start, once the lease has ended. After a reboot, the driver has restored it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ConfigError

LEASE_SECONDS = 60.0
"""Time after the newest order after which a limit ends. The controller repeats its orders every 15 s."""

MOST_GPUS = 64
"""Maximum number of GPUs in one order."""

_RANGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\.\.([0-9]+(?:\.[0-9]+)?)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Range of power limits, in watts, that the node's operator allows."""

    least_watts: float
    most_watts: float


def parse_allowed(text: str, key: str = "agent.power_limits") -> Allowed | None:
    """Return the range in 'MIN..MAX' (watts); None for ''. Raises ConfigError that names the key."""
    if not text:
        return None
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{key}: expected MIN..MAX in watts, such as 300..700, not {text!r}")
    least, most = float(found[1]), float(found[2])
    if not 0 < least <= most:
        raise ConfigError(f"{key}: the lowest limit must be above 0 and at most the highest one, not {text!r}")
    return Allowed(least, most)


@dataclass(frozen=True, slots=True)
class _Lease:
    watts: float
    ends_ns: int


class PowerLeases:
    """Orders of the controller, by UUID of the GPU, and what to restore. Thread-safe.

    file: where to remember what to restore. boot_id: of this machine.
    """

    def __init__(self, allowed: Allowed, file: Path, boot_id: str, clock: Clock | None = None) -> None:
        """Read what an earlier agent has not restored. A damaged file is logged, and counts as empty."""
        self.allowed = allowed
        self._file, self._boot_id, self._clock = file, boot_id, clock or SystemClock()
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._restore: dict[str, int] = {}
        self._logged: set[str] = set()
        self._read()

    def order(self, limits: Mapping[str, float]) -> None:
        """Take an order of the controller: the limit of each GPU in watts. The leases of other GPUs end now.

        A limit outside of the allowed range is refused and logged; an earlier lease of that GPU is not renewed.
        """
        ends_ns = self._clock.monotonic_ns() + round(LEASE_SECONDS * 1e9)
        with self._lock:
            leases = {}
            for gpu, watts in list(limits.items())[:MOST_GPUS]:
                if self.allowed.least_watts - 0.5 <= watts <= self.allowed.most_watts + 0.5:
                    leases[gpu] = _Lease(watts, ends_ns)
                elif gpu in self._leases:
                    leases[gpu] = self._leases[gpu]
                if not self.allowed.least_watts - 0.5 <= watts <= self.allowed.most_watts + 0.5:
                    self._log_once(
                        f"gpu={gpu} reason=not-allowed: the controller asked for a power limit of {watts:g} W; "
                        f"agent.power_limits allows {self.allowed.least_watts:g} to {self.allowed.most_watts:g} W"
                    )
            self._leases = leases
            self._write()

    def wanted(self, gpu: str) -> float | None:
        """Return the limit of the GPU's lease in watts; None if it has none, or if it has ended."""
        with self._lock:
            lease = self._leases.get(gpu)
            return lease.watts if lease is not None and lease.ends_ns > self._clock.monotonic_ns() else None

    def to_restore(self, gpu: str) -> int | None:
        """Return the limit in milliwatts that the GPU had before its lease; None if none was set."""
        with self._lock:
            return self._restore.get(gpu)

    def remember(self, gpu: str, milliwatts: int) -> None:
        """Remember what to restore, before a limit is set. Raises OSError if that cannot be written."""
        with self._lock:
            before = dict(self._restore)
            self._restore.setdefault(gpu, milliwatts)
            try:
                self._write(strict=True)
            except OSError:
                self._restore = before
                raise

    def restored(self, gpu: str) -> None:
        """Forget what to restore, after it was restored."""
        with self._lock:
            self._restore.pop(gpu, None)
            self._write()

    def end_all(self) -> None:
        """End all leases, because the agent stops."""
        with self._lock:
            self._leases = {}

    def _log_once(self, text: str) -> None:
        if text not in self._logged and len(self._logged) < 100:
            self._logged.add(text)
            _log.error("%s", text)

    # --- the file ----------------------------------------------------------------------------------------------------

    def _write(self, strict: bool = False) -> None:
        """Write leases and what to restore. strict: raise OSError; else an error is logged."""
        leases = {gpu: [one.watts, one.ends_ns] for gpu, one in self._leases.items() if gpu in self._restore}
        document = {"boot_id": self._boot_id, "restore": self._restore, "leases": leases}
        try:
            if not self._restore:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._file.with_suffix(".part")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._file)
        except OSError as error:
            if strict:
                raise
            self._log_once(f"{self._file}: the leases of power limits are not saved: {error.strerror}")

    def _read(self) -> None:
        try:
            document = json.loads(self._file.read_bytes())
            if document["boot_id"] != self._boot_id:
                self._file.unlink(missing_ok=True)
                return
            restore = {str(gpu): int(milliwatts) for gpu, milliwatts in document["restore"].items()}
            leases = {str(gpu): _Lease(float(one[0]), int(one[1])) for gpu, one in document["leases"].items()}
            if min(restore.values(), default=1) <= 0 or not all(math.isfinite(one.watts) for one in leases.values()):
                raise ValueError("a limit is no number above 0")
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            _log.error("%s: not readable, power limits that an earlier agent has set stay: %s", self._file, error)
            return
        most_ns = self._clock.monotonic_ns() + round(LEASE_SECONDS * 1e9)
        self._restore = restore
        self._leases = {gpu: _Lease(one.watts, min(one.ends_ns, most_ns)) for gpu, one in leases.items()}
