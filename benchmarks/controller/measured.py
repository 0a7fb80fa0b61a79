"""``python -m benchmarks.controller.measured FILE ARGUMENT...``: runs `gangwatch ARGUMENT...` and records times.

The command runs in this process. FILE gets the times when frames were created and used by the detectors, and the
durations of slices of ticks, of whole ticks and of cycles. Recording costs less than a microsecond per frame.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agent.schema.frame import AnyLayout, Frame
from gangwatch.cli import run
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.cycle_thread import CycleThread
from scheduler_feedback.controller.detection_thread import SLICE_SECONDS, DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.journal.store import NumberedEntry


class Observers:
    """Recorded times of frames, ticks and cycles. All are monotonic, in nanoseconds."""

    def __init__(self) -> None:
        self._waiting: list[int] = []  # when the frames were made that no tick has judged yet
        self._last: list[bool] = []  # of each: whether it was the newest in its message
        self._judged: list[tuple[int, np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]]]] = []
        self._slices: list[tuple[int, int, int, int]] = []  # start, end, CPU time of the thread, the thread
        self._ticks: list[tuple[int, int]] = []  # start of the first slice, end of the last one
        self._cycles: list[tuple[int, int]] = []
        self._verdicts: list[tuple[int, str]] = []
        self._detection: DetectionThread | None = None

    def install(self) -> None:
        """Wrap those methods of the product's classes whose times are recorded."""
        offer, run_slice, run_tick, cycle, written = (
            DetectionThread.offer, DetectionThread.run_slice, DetectionThread.run_tick, CycleThread._cycle,
            Controller._written,
        )  # fmt: skip

        def observed_offer(of: DetectionThread, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
            offer(of, layout, frame, received_ns)
            if frame.earlier:
                self._last += [False] * len(frame.earlier)
                self._waiting += [one.monotonic_ns for one in frame.earlier]
            self._last.append(True)
            self._waiting.append(frame.monotonic_ns)

        def observed_slice(of: DetectionThread, seconds: float = SLICE_SECONDS) -> bool:
            begun_ns = time.monotonic_ns()
            ended = run_slice(of, seconds)
            self._slices.append((begun_ns, time.monotonic_ns(), time.thread_time_ns(), threading.get_ident()))
            return ended

        def observed_tick(of: DetectionThread) -> None:
            self._detection = of
            count, begun_ns = len(self._waiting), time.monotonic_ns()
            run_tick(of)
            now_ns = time.monotonic_ns()
            self._ticks.append((begun_ns, now_ns))
            made, last = np.array(self._waiting[:count], np.int64), np.array(self._last[:count], np.bool_)
            self._judged.append((now_ns, made, last))
            del self._waiting[:count], self._last[:count]

        def observed_cycle(of: CycleThread, requests: Any) -> None:
            begun_ns = time.monotonic_ns()
            cycle(of, requests)
            self._cycles.append((begun_ns, time.monotonic_ns()))

        # Where a verdict is in the journal: a backend may hold it until its next snapshot.
        def observed_written(of: Controller, events: Sequence[Event], entries: Sequence[NumberedEntry]) -> None:
            written(of, events, entries)
            now_ns = time.monotonic_ns()
            self._verdicts += [(now_ns, event.gang) for event in events if isinstance(event, Verdict)]

        wrapped: tuple[tuple[type, str, Callable[..., Any]], ...] = (
            (DetectionThread, "offer", observed_offer),
            (DetectionThread, "run_slice", observed_slice),
            (DetectionThread, "run_tick", observed_tick),
            (CycleThread, "_cycle", observed_cycle),
            (Controller, "_written", observed_written),
        )
        for owner, name, observed in wrapped:
            setattr(owner, name, observed)

    def save(self, file: str) -> None:
        """Write the recorded times to the file, and the numbers of frames that agents left out and of records that
        were not received."""
        fleet = None if self._detection is None else self._detection._fleet
        nodes = [] if fleet is None else list(fleet.nodes.values())
        np.savez(
            file,
            slices=np.array(self._slices, np.int64).reshape(-1, 4),
            ticks=np.array(self._ticks, np.int64).reshape(-1, 2),
            cycles=np.array(self._cycles, np.int64).reshape(-1, 2),
            judged_ns=np.repeat([at for at, _, _ in self._judged], [len(made) for _, made, _ in self._judged]),
            made_ns=np.concatenate([np.zeros(0, np.int64), *(made for _, made, _ in self._judged)]),
            is_newest=np.concatenate([np.zeros(0, np.bool_), *(last for _, _, last in self._judged)]),
            verdict_ns=np.array([at for at, _ in self._verdicts], np.int64),
            verdict_gang=np.array([gang for _, gang in self._verdicts], np.str_),
            left_out=np.array(sum(node.frames_missed for node in nodes)),
            records_missed=np.array(sum(node.records_missed for node in nodes)),
        )


def main() -> int:
    observers = Observers()
    observers.install()
    try:
        return run(sys.argv[2:])
    finally:
        observers.save(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
