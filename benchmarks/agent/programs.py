"""A program to measure: it is started, observed from outside, and stopped. All of its CPU time counts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.agent.scraping import get

START_SECONDS = 180.0
"""Time after which a program must serve /metrics. On a busy machine a Python program needs a minute to import."""


class Program:
    """One exporter as a process. Entering the context starts it and waits until its /metrics responds."""

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
        deadline = time.monotonic() + START_SECONDS
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
        """Return the CPU seconds that the process has used so far, including ended threads and ended children."""
        return float(sum(psutil.Process(self.pid).cpu_times()[:4]))

    def resident_mib(self) -> float:
        """Return the current resident memory of the process, in MiB."""
        return float(psutil.Process(self.pid).memory_info().rss / 2**20)
