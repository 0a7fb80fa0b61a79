"""``python -m benchmarks.ingest.controller``: process with a controller's feed and detectors, to be measured."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.schema.clock import SystemClock
from agent.schema.frame import AnyLayout, Frame
from agent.schema.sample import expanded
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.detectors import make_all
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed.credentials import Credentials

CONNECTED_SECONDS = 600.0
"""Maximum seconds until all agents are connected: ten thousand handshakes on a busy machine."""


class Observer:
    """Recorder of the ages of frames: from their creation to the end of the detector tick that used them.

    The agents run on this machine and have the same monotonic clock.
    """

    def __init__(self, watch: DetectionThread, ignored: frozenset[str]) -> None:
        self._watch = watch
        self._run_tick = watch.run_tick
        self._ignored = ignored
        self._made_ns: list[int] = []
        self._received_ns: list[int] = []
        self.measuring = False
        self.ages: list[npt.NDArray[np.float64]] = []
        self.waits: list[npt.NDArray[np.float64]] = []
        self.look_seconds: list[float] = []
        self.events = 0
        watch.run_tick = self.run_tick  # type: ignore[method-assign]

    def offer(self, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        self._watch.offer(layout, frame, received_ns)
        if frame.node not in self._ignored:
            self._made_ns.append(frame.monotonic_ns)
            self._received_ns.append(received_ns)

    def run_tick(self) -> None:
        count = min(len(self._made_ns), len(self._received_ns))
        begun = time.thread_time()
        self._run_tick()
        now_ns = time.monotonic_ns()
        if self.measuring:
            self.look_seconds.append(time.thread_time() - begun)
            self.ages.append((now_ns - np.array(self._made_ns[:count], np.int64)) / 1e9)
            self.waits.append((now_ns - np.array(self._received_ns[:count], np.int64)) / 1e9)
        del self._made_ns[:count], self._received_ns[:count]

    def on_events(self, events: Sequence[Event]) -> None:
        self.events += len(events)


def resident_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(folder: Path, ca_file: Path, expected: int, warm_seconds: float, seconds: float) -> dict[str, object]:
    """Read the frames of the agents in the state folder. Return the cost, measured after `expected` agents are
    connected."""
    ignored = frozenset(json.loads((folder / "misbehaving").read_text()))
    clock = SystemClock()
    empty_mib = resident_mib("VmRSS")
    watch = DetectionThread(make_all(), lambda events: observer.on_events(events), clock)
    observer = Observer(watch, ignored)
    feed = Feed(
        folder / "agents", observer.offer, WANTED, clock, Credentials(ca_file=ca_file, verify="host"), watch.between
    )
    watch.start()
    running = asyncio.ensure_future(feed.run())
    begun, begun_cpu = time.monotonic(), cpu_seconds()

    def good() -> int:
        return sum(stream.connected for stream in list(feed.streams.values()) if stream.node not in ignored)

    while good() < expected and not running.done():
        if time.monotonic() - begun > CONNECTED_SECONDS:
            raise TimeoutError(f"{good()} of {expected} streams after {CONNECTED_SECONDS:.0f} s")
        await asyncio.sleep(0.5)
    connected = {"seconds": time.monotonic() - begun, "cpu_seconds": cpu_seconds() - begun_cpu}
    await asyncio.sleep(warm_seconds)
    observer.measuring = True
    frames = {stream.node: stream.frames for stream in feed.streams.values()}
    begun, begun_cpu = time.monotonic(), cpu_seconds()
    await asyncio.sleep(seconds)
    wall, cpu = time.monotonic() - begun, cpu_seconds() - begun_cpu
    observer.measuring = False
    mib, peak_mib = resident_mib("VmRSS"), resident_mib("VmHWM")
    received = sum(s.frames - frames.get(s.node, 0) for s in feed.streams.values() if s.node not in ignored)
    samples = {(name, labels): value for name, labels, value in expanded(watch.measures())}
    lost = sum(not stream.connected for stream in feed.streams.values() if stream.node not in ignored)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    watch.stop()
    ages, waits = np.concatenate(observer.ages), np.concatenate(observer.waits)
    return {
        "cpu_cores": round(cpu / wall, 3),
        "frame_age_seconds_p99": round(float(np.quantile(ages, 0.99)), 3),
        "rss_mib": round(peak_mib, 1),
        "frame_age_seconds_p50": round(float(np.quantile(ages, 0.5)), 3),
        "frame_age_seconds_max": round(float(ages.max()), 3),
        "since_receipt_seconds_p99": round(float(np.quantile(waits, 0.99)), 3),
        "rss_after_mib": round(mib, 1),
        "kb_a_stream": round((peak_mib - empty_mib) * 1024 * 1.024 / expected, 1),
        "frames_a_second": round(received / wall, 1),
        "cpu_us_a_frame": round(cpu / max(received, 1) * 1e6, 1),
        "look_cpu_ms_median": round(float(np.median(observer.look_seconds)) * 1e3, 1),
        "look_cpu_share": round(sum(observer.look_seconds) / wall, 3),
        "streams": expected,
        "streams_lost": lost,
        "frames_dropped": samples["gangwatch_watch_frames_dropped_total", ()],
        "broken": watch.broken(),
        "connecting": {name: round(value, 2) for name, value in connected.items()},
        "wall_seconds": round(wall, 1),
    }


def main() -> None:
    """Run the controller. Arguments: folder, CA file, expected streams, seconds to warm up, seconds to measure."""
    folder, ca_file, expected, warm, seconds = sys.argv[1:6]
    figures = asyncio.run(measure(Path(folder), Path(ca_file), int(expected), float(warm), float(seconds)))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
