"""The day's clock: wall time, and fair time, which excludes delays caused by the machine and the harness."""

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
    """Fair seconds as the metronome counts them, less the time in which the harness keeps a daemon down."""

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
        """Return this moment."""
        beats = self._beats()
        paused = 0.0 if self._paused_at is None else beats - self._paused_at
        return Instant(time.time(), beats - self._excused - paused)

    def machine(self) -> float:
        """Return the fair seconds of the machine alone, regardless of the harness's disturbances."""
        return self._beats()

    def pause(self) -> None:
        """Pause fair time, because the harness has taken a daemon down: no check may demand progress."""
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
        """Return the fair seconds a second, over the whole day."""
        return self._beats() / max(time.monotonic() - self._began, 1e-9)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
