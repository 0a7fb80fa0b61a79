"""Rate at which the controller asks agents for messages while the feed's thread has too little time. Pure.

A controller that cannot keep up would otherwise use older and older frames. At `every` N, an agent sends one message
for N frames. It has the values of every second frame, or only of the newest one if the agent is of an earlier release,
and the records of all of them, so none is left out (exporter/server.py). docs/adr/0133 and 0162 have the measurements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MOST_EVERY = 8
"""Maximum number of frames for which an agent sends one message."""

MOST_APART = 2
"""Maximum number of frames for which an agent sends one sample. With each fourth frame, 3 of 12 jobs whose rank 0 saves
were accused with .98, because the counters of four seconds do not show which step waited for the disk. With each second
one, none was (``benchmarks.straggler --every 4``), nor with four samples in one message (``--every 8 --samples 4``)."""

LEAST_SECONDS, CALM_SECONDS = 5.0, 30.0
"""Time in seconds over which the thread's time is measured: before frames are requested less often, and before
they are requested more often again."""

BUSY_MOST, BUSY_LEAST = 0.9, 0.4
"""Shares of the time between ticks of detection in which the feed's thread reads frames. Above the first, frames are
requested half as often; below the second, twice as often. Twice the second is below the first, so that the rate does
not change to and fro. A thread that reads for nine tenths of the time is not late yet: with .7 and .8, agents were
asked for one message for 8 frames while a quarter of the processor was idle (docs/adr/0166)."""

BUSY_LATE_LEAST = 0.56
"""BUSY_LEAST while agents send one message for more than two frames. Twice as many messages then take 1.5 to 1.6 times
the time, not twice: 131 us for 8 frames instead of 87, and 105 us for 4 frames instead of 66
(``python -m benchmarks.ingest.messages``)."""

TRIES_SECONDS, MOST_PATIENCE = 60.0, 4
"""If frames must be requested less often again within TRIES_SECONDS after they were requested more often, the next try
comes after twice the time, up to MOST_PATIENCE times the usual one."""

CALM_LATE_SECONDS = 10.0
"""CALM_SECONDS while agents send more than one sample at a time, which are then up to eight seconds old."""

LONGEST_SECONDS = 8.0
"""Longest time in seconds between two messages that the controller asks for."""


COMPARED_NODES = 16
"""Number of nodes of a gang with a suspected straggler that send every frame, besides those of the suspects: with eight
GPUs each, 128 ranks to compare with."""


class FrameRate:
    """Decides how many frames agents leave out. every: 1 for all frames, N for each N-th frame."""

    __slots__ = ("_before", "_calm", "_patience", "_tried_ns", "every")

    def __init__(self) -> None:
        self.every = 1
        self._before: tuple[int, int, int] | None = None
        self._calm = 0
        self._patience, self._tried_ns = 1, 0

    def take(self, now_ns: int, idle_ns: int, ticks_ns: int) -> int:
        """Return `every` as of this time.

        now_ns: monotonic time. idle_ns, ticks_ns: total time in nanoseconds in which the thread waited, and ran ticks.
        """
        if self._before is None:
            self._before = now_ns, idle_ns, ticks_ns
        passed_ns, idle, ticks = (
            now - before for now, before in zip((now_ns, idle_ns, ticks_ns), self._before, strict=True)
        )
        if passed_ns < LEAST_SECONDS * 1e9:
            return self.every
        share = 1.0 - idle / max(1, passed_ns - ticks)
        self._before = now_ns, idle_ns, ticks_ns
        late = self.every > MOST_APART
        if self._tried_ns and now_ns - self._tried_ns > TRIES_SECONDS * 1e9:
            self._patience, self._tried_ns = 1, 0
        if share > BUSY_MOST:
            if self._tried_ns:
                self._patience, self._tried_ns = min(MOST_PATIENCE, 2 * self._patience), 0
            self.every, self._calm = min(MOST_EVERY, 2 * self.every), 0
        elif share >= (BUSY_LATE_LEAST if late else BUSY_LEAST) or self.every == 1:
            self._calm = 0
        else:
            self._calm += 1
            calm_seconds = (CALM_LATE_SECONDS if late else CALM_SECONDS) * self._patience
            if self._calm * LEAST_SECONDS >= calm_seconds:
                self.every, self._calm, self._tried_ns = self.every // 2, 0, now_ns
        return self.every


def every_of(every: int, interval_seconds: float, most_samples: int = 1) -> int:
    """Return `every` for one agent. It is lowered for long intervals, and for agents that cannot send so many samples.

    interval_seconds: interval of the agent's frames. most_samples: the largest number of samples in its messages.
    """
    every = min(every, MOST_APART * most_samples)
    while every > 1 and every * interval_seconds > LONGEST_SECONDS:
        every //= 2
    return every


def samples_of(every: int) -> int:
    """Return the number of samples in a message for `every` frames."""
    return max(1, every // MOST_APART)


def of_suspects(nodes: Iterable[str], suspects: Collection[str]) -> dict[str, int]:
    """Return the largest number of frames in one message, by node, of a gang that may have a straggler.

    nodes: the gang's nodes in the order of its ranks, which may repeat. suspects: those of the ranks that may be
    stragglers. They and the COMPARED_NODES nearest ones send every frame: their ranks are mostly of the same stage. The
    rest sends every second one, because a verdict waits for the step times of all ranks.
    """
    place = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    known = [place[node] for node in suspects if node in place]
    others = [node for node in place if node not in suspects]
    if len(others) > COMPARED_NODES:
        others.sort(key=lambda node: min((abs(place[node] - one) for one in known), default=0))
    return (
        dict.fromkeys(suspects, 1)
        | dict.fromkeys(others[:COMPARED_NODES], 1)
        | dict.fromkeys(others[COMPARED_NODES:], MOST_APART)
    )
