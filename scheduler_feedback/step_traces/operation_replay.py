"""Replay of steps from their operations, with changed durations of some operations.

A rank runs its operations one after the other; operations that it launched at the same time run in parallel. A
computation takes its recorded time. A transfer or collective starts when its last participant has launched it, and then
takes its transfer time. The time that an operation waited for other ranks is removed before the replay. This is the
analysis of ByteDance's straggler study (OSDI'25). In the *ideal step*, all operations of a kind take the same time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray

SENDS = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
"""For each kind of send, the matching kind of receive, and the number of stages from the sender to the receiver."""

OF_REPLICAS = ("grads-reduce-scatter", "params-all-gather", "grads-all-reduce")  # among the data ranks of a stage
OF_PIPELINE = ("embedding-grads-all-reduce",)  # among the stages of a data rank that have it
OF_ALL = ("optimizer-clip-main-grad",)  # the norm of all gradients

OWN = ("forward-compute", "backward-compute", "optimizer", "gc")
"""Kinds of operations that a rank runs alone. All other operations wait for other ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Table of m operations of n ranks, one row per operation."""

    kinds: tuple[str, ...]
    """Names of the kinds of operations, for example forward-compute."""
    step: IntArray
    """Step number of each operation: [m]."""
    rank: IntArray
    """Index of each operation's rank: [m]."""
    kind: IntArray
    """Index in `kinds` of each operation's kind: [m]."""
    start: FloatArray
    """Start of each operation, in seconds since the start of its step: float64 [m]."""
    seconds: FloatArray
    """Duration of each operation, in seconds: float64 [m]."""
    data: IntArray
    """Data-parallel coordinate of each rank: [n]."""
    stage: IntArray
    """Pipeline stage of each rank: [n]."""


@dataclass(slots=True)
class _Operation:
    """One operation of a rank in one step, prepared for replay."""

    kind: int
    """Index of the operation's kind in `Operations.kinds`."""
    place: tuple[int, int]
    """Pair that identifies the operation: its kind, and its number among the operations of this kind that the rank runs
    in the step. Corresponding operations of other steps and ranks have the same pair."""
    row: int
    """Row of the operation in the table `Operations`."""
    own: float
    """Duration of the operation without waiting, in seconds."""
    meets: tuple[object, ...] | None
    """Key of the transfer or collective that the operation takes part in; None if the rank runs the operation alone."""


Program = list[list[list[_Operation]]]
"""Operations of one step: for each rank its launches, and for each launch the operations that started at the same
time."""


class Replay:
    """Steps of a trace, prepared for replay."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._numbers = np.unique(operations.step)
        order = np.lexsort((operations.kind, operations.start, operations.rank, operations.step))
        bounds = np.searchsorted(operations.step[order], [*self._numbers, np.iinfo(np.int64).max])
        self._programs: list[Program] = []
        for first, last in itertools.pairwise(bounds.tolist()):
            self._programs.append(self._program(order[first:last]))
        self._usual = self._usual_times()

    def ideal_seconds(self) -> float:
        """Return the mean length in seconds of the ideal step, in which all operations of a kind take the same time.

        That time is the mean for a computation and the median for a transfer.
        """
        return self._mean(lambda _step, _rank, operation: self._usual[operation.kind])

    def without_seconds(self, suspects: Mapping[int, Sequence[tuple[int, int]]]) -> float:
        """Return the mean length of the steps, in seconds, if the suspects compute as fast as the median of their
        peers.

        suspects: rank index -> first and last step of each interval in which its times are replaced. Peers of a suspect
        are the other ranks of its stage; without peers, the usual time of the kind of operation is used.
        """
        operations = self._operations
        peers: dict[tuple[int, tuple[int, int], int], list[float]] = defaultdict(list)
        stages = {int(operations.stage[rank]) for rank in suspects}
        for index, program in enumerate(self._programs):
            for rank, launches in enumerate(program):
                if rank in suspects or int(operations.stage[rank]) not in stages:
                    continue
                for operation in (one for launch in launches for one in launch if one.meets is None):
                    peers[index, operation.place, int(operations.stage[rank])].append(operation.own)

        def time_of(index: int, rank: int, operation: _Operation) -> float:
            accused = suspects.get(rank, ()) if operation.meets is None else ()
            if any(first <= self._numbers[index] <= last for first, last in accused):
                known = peers.get((index, operation.place, int(operations.stage[rank])))
                return min(operation.own, float(np.median(known)) if known else self._usual[operation.kind])
            return operation.own

        return self._mean(time_of)

    def slowdown_by_stage(self, stage: int) -> float:
        """Return the mean length of the steps, divided by their mean length if the computations of this pipeline stage
        take the usual time of their kind. Both lengths are replayed."""
        in_stage = (self._operations.stage == stage).tolist()
        equal = self._mean(
            lambda _step, rank, operation: (
                self._usual[operation.kind] if in_stage[rank] and operation.meets is None else operation.own
            )
        )
        return self._mean(lambda _step, _rank, operation: operation.own) / equal

    def _mean(self, time_of) -> float:  # type: ignore[no-untyped-def]
        return float(np.mean([_length(program, index, time_of) for index, program in enumerate(self._programs)]))

    def _usual_times(self) -> list[float]:
        own: dict[int, list[float]] = defaultdict(list)
        meeting: dict[int, list[float]] = defaultdict(list)
        for program in self._programs:
            for launches in program:
                for operation in (one for launch in launches for one in launch):
                    (own if operation.meets is None else meeting)[operation.kind].append(operation.own)
        usual = [0.0] * len(self._operations.kinds)
        for kind, times in own.items():
            usual[kind] = float(np.mean(times))
        for kind, times in meeting.items():
            usual[kind] = float(np.median(times))
        return usual

    def _program(self, rows: npt.NDArray[np.intp]) -> Program:
        """Return the operations of one step, by rank and launch, each with its participants and its time without
        waits."""
        operations = self._operations
        program: Program = [[] for _ in operations.data]
        occurrence: dict[tuple[int, int], int] = defaultdict(int)
        meetings: dict[tuple[object, ...], list[_Operation]] = defaultdict(list)
        for row in rows.tolist():
            rank, kind = int(operations.rank[row]), int(operations.kind[row])
            number = occurrence[rank, kind]
            occurrence[rank, kind] += 1
            meets = self._meeting(operations.kinds[kind], rank, number)
            one = _Operation(kind, (kind, number), row, float(operations.seconds[row]), meets)
            launches = program[rank]
            if launches and operations.start[launches[-1][0].row] == operations.start[row]:
                launches[-1].append(one)
            else:
                launches.append([one])
            if meets is not None:
                meetings[meets].append(one)
        for members in meetings.values():
            if len(members) == 1:
                members[0].meets = None  # the trace does not contain its peers
                continue
            starts = [operations.start[one.row] for one in members]
            ends = [operations.start[one.row] + operations.seconds[one.row] for one in members]
            own = max(0.0, float(min(ends) - max(starts)))
            for one in members:
                one.own = own
        return program

    def _meeting(self, kind: str, rank: int, number: int) -> tuple[object, ...] | None:
        """Return the key of the transfer or collective that this operation takes part in; None if the rank runs it
        alone."""
        data, stage = int(self._operations.data[rank]), int(self._operations.stage[rank])
        stages = int(self._operations.stage.max()) + 1
        if kind in SENDS:
            received, further = SENDS[kind]
            return (received, data, (stage + further) % stages, number)
        if kind in ("forward-recv", "backward-recv"):
            return (kind, data, stage, number)
        if kind in OF_REPLICAS:
            return (kind, "stage", stage, number)
        if kind in OF_PIPELINE:
            return (kind, "data", data, number)
        if kind in OF_ALL:
            return (kind, "all", number)
        return None


def _length(program: Program, index: int, time_of) -> float:  # type: ignore[no-untyped-def]
    """Replay one step, and return the time in seconds at which its last operation ends."""
    expected: dict[tuple[object, ...], int] = defaultdict(int)
    for launches in program:
        for one in (one for launch in launches for one in launch if one.meets is not None):
            expected[one.meets] += 1  # type: ignore[index]
    now, at = [0.0] * len(program), [0] * len(program)
    arrived: dict[tuple[object, ...], int] = defaultdict(int)
    ready: dict[tuple[object, ...], float] = defaultdict(float)
    taken: dict[tuple[object, ...], float] = defaultdict(float)
    waiting: dict[tuple[object, ...], list[int]] = defaultdict(list)
    launched = [False] * len(program)
    runnable = list(range(len(program)))
    while True:
        while runnable:
            rank = runnable.pop()
            launches = program[rank]
            while at[rank] < len(launches):
                launch = launches[at[rank]]
                if not launched[rank]:
                    launched[rank] = True
                    for one in launch:
                        if (meets := one.meets) is not None:
                            arrived[meets] += 1
                            ready[meets] = max(ready[meets], now[rank])
                            taken[meets] = max(taken[meets], time_of(index, rank, one))
                            if arrived[meets] == expected[meets]:
                                runnable += waiting.pop(meets, [])
                missing = next(
                    (one.meets for one in launch if one.meets is not None and arrived[one.meets] < expected[one.meets]),
                    None,
                )
                if missing is not None:
                    waiting[missing].append(rank)
                    break
                ends = (
                    now[rank] + time_of(index, rank, one) if one.meets is None else ready[one.meets] + taken[one.meets]
                    for one in launch
                )
                now[rank] = max(now[rank], *ends)
                at[rank] += 1
                launched[rank] = False
        if not waiting:
            return max(now)
        # The trace is incomplete: the collective with the fewest missing participants runs without them.
        meets = min(waiting, key=lambda key: expected[key] - arrived[key])
        expected[meets] = arrived[meets]
        runnable += waiting.pop(meets)
