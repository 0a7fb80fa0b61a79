"""Batch of frames whose arrays have equal lengths, stacked once for everything that is computed from their series.

Most nodes of a cluster have the same columns in the same places. A few array operations for 256 frames replace dozens
of operations for each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Frame

if TYPE_CHECKING:
    from scheduler_feedback.core.telemetry.fleet_nodes import NodeView

T = TypeVar("T", bound=np.generic)

Failed = tuple[str, Exception]
"""A node whose frame could not be processed, and the exception."""


def rows_of(arrays: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    """Stack k arrays [n] into one array [k, n], faster than np.array. Raises ValueError if their lengths differ."""
    if len(lengths := set(map(len, arrays))) != 1:
        raise ValueError(f"rows of different lengths {sorted(lengths)}: frames of different layouts are in one batch")
    first = arrays[0]
    if len(set(map(id, arrays))) == 1:
        return np.repeat(first[None], len(arrays), axis=0)
    bases: list[Any] = [array.base for array in arrays]
    if set(map(type, bases)) == {bytes} and set(map(len, bases)) == {first.nbytes}:  # decoded frames: joined faster
        return np.frombuffer(b"".join(bases), first.dtype).reshape(len(arrays), -1)
    return np.concatenate(arrays).reshape(len(arrays), -1)


class Batch:
    """k frames of k different nodes with equal numbers of tiers, gauges and counters.

    continues: for each frame, whether the node's last frame is of the same boot and agent process. numbers: place of
    each frame in the order of all processed frames. lasts: for each frame, whether it is the newest of several samples
    in one message.
    """

    __slots__ = (
        "_continues", "_counters", "_gauges", "_tier_ns", "_valid", "continues", "frames", "lasts", "nodes",
        "numbers",
    )  # fmt: skip

    def __init__(
        self, nodes: Sequence[NodeView], frames: Sequence[Frame], continues: Sequence[bool], numbers: Sequence[int]
    ) -> None:
        self.nodes, self.frames, self.numbers = nodes, frames, numbers
        self.continues = np.array(continues, np.bool_)
        self.lasts = np.zeros(len(frames), np.bool_)
        self._gauges: npt.NDArray[np.float64] | None = None
        self._counters: npt.NDArray[np.uint64] | None = None
        self._valid: npt.NDArray[np.bool_] | None = None
        self._tier_ns: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def gauges(self) -> npt.NDArray[np.float64]:
        """float64 [k, gauges]."""
        if self._gauges is None:
            self._gauges = rows_of([frame.gauges for frame in self.frames])
        return self._gauges

    @property
    def counters(self) -> npt.NDArray[np.uint64]:
        """uint64 [k, counters]."""
        if self._counters is None:
            self._counters = rows_of([frame.counters for frame in self.frames])
        return self._counters

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """bool [k, counters]: whether each counter has a value."""
        if self._valid is None:
            self._valid = rows_of([frame.counters_valid for frame in self.frames])
        return self._valid

    @property
    def tier_ns(self) -> npt.NDArray[np.int64]:
        """int64 [k, tiers]: time of each tier's newest sample."""
        if self._tier_ns is None:
            self._tier_ns = rows_of([frame.tier_ns for frame in self.frames])
        return self._tier_ns

    def only(self, places: Sequence[int]) -> Batch:
        """Return the batch of the frames at these places."""
        if len(places) == len(self):
            return self
        some = Batch(
            [self.nodes[place] for place in places],
            [self.frames[place] for place in places],
            [bool(self.continues[place]) for place in places],
            [self.numbers[place] for place in places],
        )
        some.lasts = self.lasts[list(places)]
        return some


def fold_apart(fold: Callable[[Batch], None], batch: Batch, failed: list[Failed]) -> None:
    """Process a batch. If it raises an exception, process each of its frames alone.

    A bug then affects only the nodes whose frames trigger it.
    failed: receives (node, error) of each frame that could not be processed. Frames that were processed before the
    exception are processed again without effect, because they are not newer than their rows.
    """
    try:
        fold(batch)
    except Exception as error:
        if len(batch) == 1:
            failed.append((batch.frames[0].node, error))
            return
        for place in range(len(batch)):
            fold_apart(fold, batch.only([place]), failed)
