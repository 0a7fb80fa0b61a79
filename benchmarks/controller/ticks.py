"""CPU time of each part of a tick, as in a busy controller: ``python -m benchmarks.controller.ticks --json``.

The jobs, agents and disturbances are those of `benchmarks.controller`. All frames pass through the decoder and the
product's detection thread, in one thread without sockets and on a simulated clock. As in a busy controller, agents send
each second frame, and a tick covers several seconds. The CPU time of a tick's parts is measured after ranks are
disturbed. With --slice, ticks run in slices; the results must be the same. `events` is a
digest of everything that the detectors reported: two versions that decide the same have the same digest.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from agent.schema.clock import ManualClock
from agent.schema.frame import Frame, Layout, PackedLayout, pack
from agent.schema.wire import Decoder
from benchmarks.ingest.decisions import ACCEPTED
from benchmarks.ingest.fingerprint import BEGUN_NS, WALL_NS, Hashed
from benchmarks.ingest.frames import Agents
from benchmarks.ingest.timeline import Plan, Timeline
from gangwatch.daemons.process_limits import ShortCollections
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.steps.pace import Paces
from scheduler_feedback.core.telemetry.steps.speed_reports import SpeedReports
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors import make_all
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.detection import GangByGang, SharedState
from scheduler_feedback.feed.feed import COLLECT_AFTER

SECOND = 1_000_000_000
SLOTS = 10
"""Phases of a second in which agents send their frames."""

WARM_SECONDS, TICKS, TICK_SECONDS = 100.0, 60, 2.5
"""A controller of 12,500 nodes runs a tick every two to three seconds."""

EVERY_SECONDS = 2
"""Seconds between two frames of an agent: a busy controller asks for each second one."""

ENDED_SECONDS = 5.0
"""Time from the end of a job until its data is deleted, because the scheduler knows of its end."""

LIFETIME_SECONDS = 1_800.0


class Parts:
    """CPU time of the parts of each tick in seconds, by name. Times of inner parts count twice, for both."""

    def __init__(self) -> None:
        self.ticks: list[dict[str, float]] = []
        self.slices: list[float] = []  # of the measured ticks
        self.pauses: list[float] = []  # times from one place where a tick may pause to the next
        self._now: dict[str, float] = {}

    def timed(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its CPU time added to this part."""

        def measured(*arguments: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return made(*arguments, **named)
            finally:
                self._now[name] = self._now.get(name, 0.0) + time.thread_time() - begun

        return measured

    def timed_parts(self, name: str, made: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return the generator function with its CPU time added to this part."""

        def measured(*arguments: Any) -> Iterator[Any]:
            following, end = self.timed(name, next), object()
            parts = iter(made(*arguments))
            while (found := following(parts, end)) is not end:
                yield found

        return measured

    def end(self) -> None:
        """End the current tick."""
        self.ticks.append(self._now)
        self._now = {}

    def figures(self, ticks: int) -> dict[str, list[float]]:
        """Return the mean and the 95 % quantile over the newest ticks in milliseconds, by part, largest first."""
        newest = self.ticks[-ticks:]
        found: dict[str, list[float]] = {}
        for name in sorted({name for tick in newest for name in tick}):
            values = np.array([tick.get(name, 0.0) for tick in newest]) * 1e3
            found[name] = [round(float(values.mean()), 2), round(float(np.quantile(values, 0.95)), 2)]
        return dict(sorted(found.items(), key=lambda one: -one[1][0]))


def quantiles_ms(seconds: list[float]) -> list[float]:
    """Return the median, the 99 % quantile and the maximum in milliseconds."""
    return [round(float(value) * 1e3, 2) for value in np.quantile(seconds, (0.5, 0.99, 1.0))]


@contextmanager
def measured_parts(parts: Parts, watch: DetectionThread) -> Iterator[None]:
    """Measure the parts of the thread's ticks, with the garbage collections of a controller."""
    for name, detector in watch._detectors.items():
        if isinstance(detector, GangByGang):
            detector.tick_in_parts = parts.timed_parts(name, detector.tick_in_parts)  # type: ignore[method-assign]
        else:
            detector.tick = parts.timed(name, detector.tick)  # type: ignore[method-assign]
    watch._go_on = parts.timed("tick", watch._go_on)  # type: ignore[method-assign]
    owners: tuple[tuple[str, type, str], ...] = (
        ("telemetry", Look, "next_in_parts"), ("counters", CounterStatistics, "take_in_parts"),
        ("pace", Paces, "take"), ("speeds for the scheduler", SpeedReports, "take"),
        ("other shared inputs", SharedState, "context"), ("arbiter", SharedState, "conclude"),
    )  # fmt: skip
    before = [getattr(owner, method) for _, owner, method in owners]
    thresholds, collections = gc.get_threshold(), ShortCollections()
    for (name, owner, method), made in zip(owners, before, strict=True):
        setattr(owner, method, (parts.timed_parts if method.endswith("_in_parts") else parts.timed)(name, made))
    gc.set_threshold(COLLECT_AFTER, *thresholds[1:])
    collections.start()
    try:
        yield
    finally:
        collections.stop()
        gc.set_threshold(*thresholds)
        for (_, owner, method), made in zip(owners, before, strict=True):
            setattr(owner, method, made)


class Simulated:
    """The agents and the detection thread of a controller, on a simulated clock."""

    def __init__(self, plan: Plan, tick_seconds: float, ended_seconds: float) -> None:
        self._nodes, self._disturbed_ns = plan.nodes, plan.disturbed_ns
        self._timeline = Timeline(plan)
        self._clock = ManualClock(BEGUN_NS, WALL_NS)
        jobs = [run.job_on(run.first_node + n) for run in self._timeline.running for n in range(run.nodes)]
        self._agents = Agents(0, jobs, WANTED)
        self._decoders = [Decoder() for _ in jobs]
        self._layouts: list[PackedLayout] = [self._layout(node) for node in range(plan.nodes)]
        placements = Placements(lambda _node, _gang, _at_ns: Placed(1, None), lambda _node: ACCEPTED)
        self.watch = DetectionThread(make_all(), self._found, self._clock, tick_seconds, placements=placements)
        self._ended: list[tuple[int, str]] = []
        self._ended_ns = int(ended_seconds * SECOND)
        self._running = {run.gang for run in self._timeline.running}
        self._slot = 0
        self.digest = Hashed()
        self.events = 0
        self._judged_ns: dict[str, int] = {}  # of each job's first verdict after the disturbance
        disturbed = [run for run in self._timeline.running if run.slow and run.disturbed_ns < run.ends_ns]
        self._disturbed = {run.gang for run in disturbed if run.disturbed_ns == plan.disturbed_ns}

    def _layout(self, node: int) -> PackedLayout:
        layout = self._decoders[node].decode(self._agents.layout_message(node)[4:])
        assert isinstance(layout, Layout)
        return pack(layout)

    def _found(self, events: Sequence[Event]) -> None:
        self.events += len(events)
        self.digest.add(events)
        now_ns = self._clock.monotonic_ns()
        for event in events:
            if isinstance(event, Verdict) and now_ns >= self._disturbed_ns:
                self._judged_ns.setdefault(event.gang, now_ns)

    def verdicts(self) -> dict[str, float | int | None]:
        """Return the number of disturbed jobs, of those with a verdict, and the median delay in seconds."""
        delays = [
            (at_ns - self._disturbed_ns) / SECOND for gang, at_ns in self._judged_ns.items() if gang in self._disturbed
        ]
        median = float(np.median(delays)) if delays else None
        return {"disturbed_jobs": len(self._disturbed), "verdicts": len(delays), "verdict_seconds_p50": median}

    def advance(self, every: int) -> None:
        """Advance by one slot: send the frames that are due, and let the thread read them and tick."""
        now_ns = BEGUN_NS + self._slot * SECOND // SLOTS
        self._change_jobs(now_ns)
        second, slot = divmod(self._slot, SLOTS)
        nodes = range(slot * self._nodes // SLOTS, (slot + 1) * self._nodes // SLOTS)
        held = {node for node in nodes if second % every != node % every}
        self._agents.advance(slice(nodes.start, nodes.stop), WALL_NS + now_ns - BEGUN_NS, now_ns, held)
        for node in nodes:
            if node not in held:
                frame = self._decoders[node].decode(self._agents.frame_message(node)[4:])
                assert isinstance(frame, Frame)
                self.watch.offer(self._layouts[node], frame, now_ns)
        self.watch.between()
        self._slot += 1
        self._clock.advance(1 / SLOTS)

    def _change_jobs(self, now_ns: int) -> None:
        started = self._timeline.advance(now_ns)
        for run in started:
            for node in range(run.first_node, run.first_node + run.nodes):
                self._agents.change_job(node, run.job_on(node))
                self._layouts[node] = self._layout(node)
        if started:
            running = {run.gang for run in self._timeline.running}
            self._ended += [(now_ns, gang) for gang in sorted(self._running - running)]
            self._running = running
        while self._ended and now_ns - self._ended[0][0] >= self._ended_ns:
            self.watch.forget(self._ended.pop(0)[1])


def measure(
    nodes: int,
    warm_seconds: float,
    ticks: int,
    tick_seconds: float,
    every: int,
    ended_seconds: float,
    seed: int,
    profile: str = "",
    lifetime_seconds: float = LIFETIME_SECONDS,
    slice_seconds: float = 0.0,
) -> dict[str, Any]:
    """Measure the ticks of one controller. warm_seconds: simulated time until ranks are disturbed. every: seconds
    between two frames of an agent. profile: file for a profile of the measured ticks by cProfile; '' for none.
    slice_seconds: CPU time of a slice of a tick; 0 for whole ticks."""
    plan = Plan(nodes, seed, BEGUN_NS, BEGUN_NS + int(warm_seconds * SECOND), lifetime_seconds)
    simulated, parts = Simulated(plan, tick_seconds, ended_seconds), Parts()
    watch = simulated.watch
    warm = int(warm_seconds / tick_seconds)
    profiler = cProfile.Profile() if profile else None
    begun = time.thread_time()
    with measured_parts(parts, watch):
        go_on = watch.run_slice

        def run_slice(_: float = 0.0) -> bool:
            """Run the parts of a tick, up to the next place where it may pause, until the CPU time of a slice is
            used."""
            if profiler is not None and len(parts.ticks) >= warm:
                profiler.enable()
            ended, slice_begun = False, time.thread_time()
            while not ended and (not slice_seconds or time.thread_time() - slice_begun < slice_seconds):
                part_begun = time.thread_time()
                ended = go_on(0.0)
                parts.pauses.append(time.thread_time() - part_begun)
            if profiler is not None:
                profiler.disable()
            parts.slices.append(time.thread_time() - slice_begun)
            if ended:
                parts.end()
                if len(parts.ticks) == warm:
                    parts.slices.clear()
                    parts.pauses.clear()
            return ended

        watch.run_slice = run_slice  # type: ignore[method-assign, assignment]
        while len(parts.ticks) < warm + ticks:
            before = len(parts.ticks)
            simulated.advance(every)
            if len(parts.ticks) > before and len(parts.ticks) % 10 == 0:
                used = 1e3 * parts.ticks[-1]["tick"]
                print(f"{len(parts.ticks)} ticks, the last one {used:.0f} ms of CPU time", file=sys.stderr)
    if profiler is not None:
        profiler.dump_stats(profile)
    if broken := watch.broken():
        raise RuntimeError(f"out of service: {broken}")
    return {
        "nodes": nodes,
        "jobs": len(simulated._running),
        "known_gangs": len(watch._fleet.gangs),
        "ticks": ticks,
        "cpu_ms_mean_and_p95": parts.figures(ticks),
        "slices": len(parts.slices),
        "slice_cpu_ms_p50_p99_and_longest": quantiles_ms(parts.slices),
        "cpu_ms_between_pauses_p50_p99_and_longest": quantiles_ms(parts.pauses),
        **simulated.verdicts(),
        "events": simulated.events,
        "events_digest": simulated.digest.hexdigest(),
        "cpu_seconds": round(time.thread_time() - begun, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.controller.ticks", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--nodes", type=int, default=3_000)
    parser.add_argument("--warm", type=float, default=WARM_SECONDS, help="simulated seconds until ranks are disturbed")
    parser.add_argument("--ticks", type=int, default=TICKS, help=f"measured ticks (default {TICKS})")
    parser.add_argument("--tick-seconds", type=float, default=TICK_SECONDS, help="simulated seconds from tick to tick")
    parser.add_argument("--every", type=int, default=EVERY_SECONDS, help="seconds between two frames of an agent")
    parser.add_argument(
        "--ended", type=float, default=ENDED_SECONDS,
        help=f"seconds from the end of a job until its data is deleted (default {ENDED_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--lifetime", type=float, default=LIFETIME_SECONDS,
        help=f"mean seconds from a job's start to its end (default {LIFETIME_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--slice", type=float, default=0.0, metavar="MS",
        help="CPU time in ms after which a slice of a tick ends (default 0: whole ticks)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", default="", metavar="FILE", help="write a cProfile of the measured ticks")
    arguments = parser.parse_args()
    if (
        min(arguments.nodes, arguments.ticks, arguments.every) < 1
        or min(arguments.warm, arguments.tick_seconds, arguments.lifetime) <= 0
        or arguments.slice < 0
    ):
        parser.error(
            "--nodes, --ticks and --every must be at least 1, --warm, --tick-seconds and --lifetime above 0, "
            "--slice not below 0"
        )
    found = measure(
        arguments.nodes, arguments.warm, arguments.ticks, arguments.tick_seconds, arguments.every,
        arguments.ended, arguments.seed, arguments.profile, arguments.lifetime,
        arguments.slice / 1e3,
    )  # fmt: skip
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
