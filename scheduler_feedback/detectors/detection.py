"""Detection for one stream of telemetry: the detectors, the inputs that they share, and the arbiter of their
verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from agent.schema.sample import AnySample
from scheduler_feedback.core.telemetry.telemetry import PART_REPLACED, Telemetry
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.arbiter import Arbiter
from scheduler_feedback.detectors.context import DetectionContext, Proposal
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.health.job_speed import Bests, Speeds
from scheduler_feedback.detectors.steps.reported_waits import ReportedWaits

SNAPSHOT_VERSION = 2
"""Version of the snapshot of the state that all detectors share. Release 0.1.0 stored this state, without active
verdicts, in the health detector's snapshot."""

SHARED = "shared"
"""Key of the shared state among the snapshots."""


class Detector(Protocol):
    """A detector of a stream of telemetry. Its results depend only on the contexts that it has received."""

    name: str

    def tick(self, context: DetectionContext) -> Sequence[Proposal]:
        """Return the results that are new since the last tick. A verdict with a known id replaces the earlier
        verdict."""
        ...

    def measures(self) -> Iterable[AnySample]:
        """Return the metric samples of the newest tick. If they are made one by one, ticks may run between them."""
        ...

    def snapshot(self) -> bytes:
        """Encode the state that must survive a restart of the controller."""
        ...

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        ...


@runtime_checkable
class GangByGang(Protocol):
    """A detector whose tick can pause between two gangs."""

    def tick_in_parts(self, context: DetectionContext) -> Iterator[Sequence[Proposal]]:
        """Run a tick, and yield its results in parts: one or more for each gang with new data. All parts together
        are the result of ``tick``. They must be read to the end, with the same context."""
        ...


def in_parts(detector: Detector, context: DetectionContext) -> Iterator[Sequence[Proposal]]:
    """Run a tick of the detector, and yield its results in parts. Between two parts the tick may pause."""
    if isinstance(detector, GangByGang):
        yield from detector.tick_in_parts(context)
    else:
        yield detector.tick(context)


class SharedState:
    """Inputs that the detectors of one stream share, and the arbiter. Owned by one thread."""

    def __init__(self, timed: bool = True, switches: Switches | None = None) -> None:
        self.switches = Switches() if switches is None else switches
        self.counters = CounterStatistics(self.switches)
        self.speeds = Speeds()
        self.arbiter = Arbiter()
        self._timed = timed
        self._waits = ReportedWaits()

    def begin(self, telemetry: Telemetry) -> DetectionContext:
        """Process new telemetry, and return the detectors' inputs for this tick."""
        for _ in self.take_in_parts(telemetry):
            pass
        return self.context(telemetry)

    def take_in_parts(self, telemetry: Telemetry) -> Iterator[None]:
        """Process the counters of new telemetry, and yield where the tick may pause."""
        return self.counters.take_in_parts(telemetry)

    def context(self, telemetry: Telemetry) -> DetectionContext:
        """Process the rest of new telemetry, and return the detectors' inputs for this tick."""
        telemetry, by_counters = self._waits.take(telemetry)
        if self._timed:
            self.speeds.take(telemetry, by_counters)
        for one in telemetry.events:
            if one.event.kind == PART_REPLACED:
                self.arbiter.fault_history.forget(one.event.entity, one.node)
        arbiter = self.arbiter
        return DetectionContext(
            telemetry, self.counters, self.speeds, arbiter.fault_history, self.switches, arbiter.published, by_counters
        )

    def conclude(self, context: DetectionContext, results: Mapping[str, Sequence[Proposal]]) -> list[Finding]:
        """Return the detector results that the arbiter publishes.

        results: proposals by name of the detector.
        """
        attempts = {job.shape.job: job.shape.attempt for job in context.telemetry.jobs}
        return self.arbiter.resolve(results, attempts, context.telemetry.now_ns)

    def measures(self) -> Iterator[AnySample]:
        """Yield metric samples: inferred iteration times of jobs without step reports."""
        for name, seconds in self.speeds.periods().items():
            yield "gangwatch_gang_inferred_step_seconds", (("gang", name),), seconds

    def snapshot(self) -> bytes:
        """Encode the fault history, the baselines of counters, the best speed of each job, and the active verdicts."""
        arbiter = self.arbiter
        return msgspec.msgpack.encode(
            (SNAPSHOT_VERSION, arbiter.fault_history.dump(), self.counters.dump(), self.speeds.dump(), arbiter.dump())
        )

    def restore(self, data: bytes) -> None:
        """Restore a snapshot of the shared state, or a snapshot of the health detector of release 0.1.0.

        Raises ValueError if the bytes are neither.
        """
        try:
            version, *kept = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
            if msgspec.msgpack.decode(version, type=int) != SNAPSHOT_VERSION or len(kept) not in (3, 4):
                raise ValueError("of another version")
            self.arbiter.fault_history.load(msgspec.msgpack.decode(kept[0], type=bytes))
            self.counters.load(msgspec.msgpack.decode(kept[1], type=bytes))
            self.speeds.load(msgspec.msgpack.decode(kept[2], type=dict[str, Bests]))
            if len(kept) == 4:
                self.arbiter.load(msgspec.msgpack.decode(kept[3], type=bytes))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"shared snapshot of {len(data)} bytes: {error}") from None


class Detection:
    """Detectors of one stream with their shared state. Unlike in the controller, an error in one detector ends the
    tick."""

    def __init__(self, detectors: Iterable[Detector], timed: bool = True, switches: Switches | None = None) -> None:
        self.detectors = tuple(detectors)
        self.shared = SharedState(timed, switches)

    def tick(self, telemetry: Telemetry) -> list[Finding]:
        """Run all detectors, and return the results that the arbiter publishes."""
        context = self.shared.begin(telemetry)
        return self.shared.conclude(context, {one.name: one.tick(context) for one in self.detectors})

    def measures(self) -> Iterator[AnySample]:
        """Yield the metric samples of the newest tick."""
        yield from self.shared.measures()
        for detector in self.detectors:
            yield from detector.measures()

    def snapshots(self) -> dict[str, bytes]:
        """Return the snapshot of each detector and of the shared state, by name."""
        return {SHARED: self.shared.snapshot()} | {one.name: one.snapshot() for one in self.detectors}

    def restore(self, snapshots: Mapping[str, bytes]) -> None:
        """Restore snapshots. Raises ValueError if one of them is not readable."""
        if (shared := shared_of(snapshots)) is not None:
            self.shared.restore(shared)
        for detector in self.detectors:
            if detector.name in snapshots:
                detector.restore(snapshots[detector.name])


def shared_of(snapshots: Mapping[str, bytes]) -> bytes | None:
    """Return the snapshot of the state that all detectors share, or None if there is none.

    snapshots: by name of the detector. Release 0.1.0 stored this state in the health detector's snapshot, which is then
    returned.
    """
    return snapshots.get(SHARED, snapshots.get("health"))
