"""Clock of a test day: wall time, and fair time, which excludes delays by the machine and by the test itself."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.ordinary.oracle.facts import Instant

METRONOME = Path(__file__).with_name("programs") / "metronome.py"
STALE_SECONDS = 30.0


class FairClock:
    """Counter of fair seconds: those of the metronome program, without times in which the test keeps a daemon down."""

    def __init__(self, folder: Path) -> None:
        file = folder / "beats"
        file.write_bytes(b"\0" * 16)
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 16)
        self._process = subprocess.Popen([sys.executable, "-I", "-S", str(METRONOME), str(file)])
        self._excused = 0.0
        self._paused_at: float | None = None
        self._began = time.monotonic()

    def _beats(self) -> float:
        _, fair = struct.unpack("<dd", self._memory[:16])
        return float(fair)

    def now(self) -> Instant:
        """Return the current time as wall time and fair time."""
        beats = self._beats()
        paused = 0.0 if self._paused_at is None else beats - self._paused_at
        return Instant(time.time(), beats - self._excused - paused)

    def machine(self) -> float:
        """Return the fair seconds since the start, including times in which the test keeps a daemon down."""
        return self._beats()

    def pause(self) -> None:
        """Pause fair time while the test keeps a daemon down. No check requires progress in this time."""
        if self._paused_at is None:
            self._paused_at = self._beats()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._excused += self._beats() - self._paused_at
            self._paused_at = None

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def share(self) -> float:
        """Return the share of the day's seconds that were fair."""
        return self._beats() / max(time.monotonic() - self._began, 1e-9)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
