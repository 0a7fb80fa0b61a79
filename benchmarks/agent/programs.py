"""A measured program: started, observed from outside, and stopped. Nothing is subtracted from what it used."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.agent.scraping import get

_TICKS = os.sysconf("SC_CLK_TCK")


class Program:
    """One exporter as a process. Enter it to start it; it is ready once its /metrics responds."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._log = log

    def __enter__(self) -> Program:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                get(self.port)
                return self
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._end()
                    log_tail = self._log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} does not serve /metrics: {error}\n{log_tail}") from None
                time.sleep(0.2)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return user and system time of the whole process so far, including ended threads and ended children."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICKS

    def resident_mib(self) -> float:
        """Return the resident memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"{self.name}: no VmRSS")
