"""Cost of being watched: ``python -m benchmarks.agent.watched --json``.

One agent runs on the fake node (eight H100, eight NICs). Periods without and with a subscriber alternate. The
subscriber requests the same series as a controller, over a connection without TLS. The agent's CPU time is read from
the scheduler in nanoseconds. ``cpu_percent_more`` is the median over all pairs of periods, in percent of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agent.schema.wire import MessageSplitter
from benchmarks.agent.__main__ import agent
from benchmarks.agent.hardware import HardwareProcess
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED

PAIRS, SECONDS, WARM_UP_SECONDS = 5, 20.0, 35.0
SETTLE_SECONDS = 2.0
"""Time between the start of a subscription and the measured period, in which the layout is sent."""

READ_BYTES = 65_536


class Subscriber(threading.Thread):
    """A reader of an agent's frames. received: bytes of messages, with their length prefixes. frames: number of
    messages, including the layout."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._connection.request("GET", f"/frames?metrics={quote(','.join(WANTED), safe=',*')}")
        self._response = self._connection.getresponse()
        if self._response.status != 200:
            raise RuntimeError(f"/frames responded {self._response.status}: {self._response.read(200)!r}")
        self._splitter = MessageSplitter()
        self._ended = threading.Event()
        self.received = 0
        self.frames = 0

    def run(self) -> None:
        while not self._ended.is_set() and (part := self._response.read1(READ_BYTES)):
            self.received += len(part)
            self.frames += len(self._splitter.feed(part))

    def stop(self) -> None:
        self._ended.set()  # it ends after the next frame, a second later at most
        self.join()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Period:
    """CPU of the agent in one period, in cores; bytes and messages that a subscriber received, per second."""

    cores: float
    bytes_a_second: float = 0.0
    frames_a_second: float = 0.0


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process: the first field of schedstat (proc_pid_schedstat(5))."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def period(pid: int, port: int, seconds: float, subscribed: bool) -> Period:
    """Measure one period, with or without a subscriber."""
    subscriber = Subscriber(port) if subscribed else None
    if subscriber is not None:
        subscriber.start()
    time.sleep(SETTLE_SECONDS)
    received, frames = (0, 0) if subscriber is None else (subscriber.received, subscriber.frames)
    begun, before = time.monotonic(), cpu_ns(pid)
    time.sleep(seconds)
    used, elapsed = cpu_ns(pid) - before, time.monotonic() - begun
    cores = used / 1e9 / elapsed
    if subscriber is None:
        return Period(cores)
    found = Period(cores, (subscriber.received - received) / elapsed, (subscriber.frames - frames) / elapsed)
    subscriber.stop()
    return found


def summary(pairs: list[tuple[Period, Period]]) -> dict[str, float]:
    """Return the figures of pairs of periods (without, with a subscriber)."""
    more = [100 * (subscribed.cores - alone.cores) for alone, subscribed in pairs]
    return {
        "cpu_percent_alone": round(100 * statistics.median(alone.cores for alone, _ in pairs), 3),
        "cpu_percent_subscribed": round(100 * statistics.median(subscribed.cores for _, subscribed in pairs), 3),
        "cpu_percent_more": round(statistics.median(more), 3),
        "cpu_percent_more_least": round(min(more), 3),
        "cpu_percent_more_most": round(max(more), 3),
        "bytes_a_second": round(statistics.median(subscribed.bytes_a_second for _, subscribed in pairs), 1),
        "frames_a_second": round(statistics.median(subscribed.frames_a_second for _, subscribed in pairs), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent.watched", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"length of a period (default {SECONDS:.0f})")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of periods (default {PAIRS})")
    parser.add_argument(
        "--warm", type=float, default=WARM_UP_SECONDS, help=f"seconds before (default {WARM_UP_SECONDS:.0f})"
    )
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangwatch-watched-")))
        hardware = stack.enter_context(HardwareProcess(folder))
        program = stack.enter_context(agent(folder, "watched", "", hardware))
        time.sleep(arguments.warm)
        pairs = []
        for _ in range(arguments.pairs):
            alone = period(program.pid, program.port, arguments.seconds, subscribed=False)
            pairs.append((alone, period(program.pid, program.port, arguments.seconds, subscribed=True)))
            print(f"{pairs[-1]}", file=sys.stderr)
    found: dict[str, object] = {
        **summary(pairs), "pairs": arguments.pairs, "seconds": arguments.seconds,
        "machine": {
            "processors": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()[0],
        },
    }  # fmt: skip
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
