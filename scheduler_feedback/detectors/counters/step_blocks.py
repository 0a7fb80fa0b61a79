"""Counters of a job in blocks of whole steps, compared with the job's blocks at its usual speed.

For jobs that report steps without waits. Their step times show exactly when the job is slower, but not for which rank
it waits. The counters of its ranks show that: while a rank works or has nothing to run, all others poll.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Counters, StepTable

LEVELS = ("sm_active", "tensor_active", "power", "sm_clock")
"""Counters that are compared as shares of their usual level. They come first in COMPARED."""

COMPARED = (
    *LEVELS, "thermal_throttle", "power_throttle", "memory_errors", "pcie_link", "cpu_waiting", "io_waiting",
    "runqueue_wait", "temperature", "nic_physical_errors", "nic_sequence_errors", "nic_pause_sent", "nvlink_errors",
    "pcie_errors", "nic_congestion",
)  # fmt: skip
"""Counters of a block, in the order of its rows."""

ROW = {name: row for row, name in enumerate(COMPARED)}
_FEATURES = np.array([FEATURE[name] for name in COMPARED])

BLOCK_STEPS, BLOCK_WINDOWS, LONG_BLOCK_WINDOWS, LONG_WINDOW_SECONDS = 4, 3, 2, 5.0
"""A block has at least this number of steps and windows of counters, so that a window that cuts a step changes its mean
little. Windows of at least LONG_WINDOW_SECONDS are long: fewer of them suffice."""

FIRST_STEPS = 2
"""The first steps of an attempt are left out: kernels are compiled and caches filled."""

BASE_BLOCKS = 4
"""Number of blocks from which the usual state of the job is learned."""

SLOWER = 1.04
"""A block is slower if its median step takes at least this multiple of the usual one. Other blocks are added to the
usual state."""

FORGET = 1 / 32
"""Least weight of a new block in the usual state, so that it follows slow changes, such as the room's temperature."""

KEPT = 16
"""Number of newest slow blocks that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Means of counters over consecutive steps of a job with n ranks."""

    step_seconds: float
    """Median length of a step."""
    steps: int
    first_step: int
    """Number of the first step."""
    means: FloatArray
    """float64 [COMPARED, n]; NaN if unknown."""


@dataclass(slots=True)
class StepBlocks:
    """Blocks of one attempt of a job with n ranks. Owned by one detector."""

    attempt: int
    ranks: int
    usual_seconds: float = float("nan")
    """Usual length of a step; NaN while it is not learned."""
    usual: FloatArray = field(init=False)
    """Usual means: float64 [COMPARED, n]."""
    varies: FloatArray = field(init=False)
    """Variance of the means from block to block: float64 [COMPARED, n]."""
    learned: int = 0
    """Number of blocks in the usual state."""
    slow: deque[Block] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Newest slow blocks that follow each other. Empty while the job has its usual speed."""
    run: int = 0
    """Number of slow blocks that follow each other, also of those that are no longer kept."""
    early: list[Block] = field(default_factory=list)
    """First blocks, until the usual state is learned."""
    before: deque[Block] = field(default_factory=lambda: deque(maxlen=2))
    """Newest two blocks at the usual speed. A fault may have begun within the last one."""
    _sums: FloatArray = field(init=False)
    _counts: FloatArray = field(init=False)
    _windows: int = 0
    _lengths: list[float] = field(default_factory=list)
    _first: int = -1
    _skip: int = FIRST_STEPS

    def __post_init__(self) -> None:
        shape = (len(COMPARED), self.ranks)
        self.usual, self.varies = np.full(shape, np.nan), np.full(shape, np.nan)
        self._begin()

    def _begin(self) -> None:
        self._sums, self._counts = np.zeros((2, len(COMPARED), self.ranks))
        self._windows, self._lengths, self._first = 0, [], -1

    def take(self, steps: StepTable | None, counters: Counters, columns: slice) -> bool:
        """Add new steps, and new windows of counters. Return whether a block ended.

        columns: the job's ranks in the counters. The windows of one call belong to the block that is open.
        """
        values, windows = counters.values[:, :, columns], len(counters.at_ns)
        if steps is not None and len(steps):
            lengths = np.where(np.isfinite(steps.seconds), steps.seconds, 0.0).max(axis=1)
            for number, length in zip(steps.number.tolist(), lengths.tolist(), strict=True):
                if self._skip:
                    self._skip -= 1
                    if not self._skip:
                        self._begin()
                    continue
                self._first = number if self._first < 0 else self._first
                self._lengths.append(length)
        for window in range(windows):
            found = values[_FEATURES, window].astype(np.float64)
            known = np.isfinite(found)
            self._sums += np.where(known, found, 0.0)
            self._counts += known
            self._windows += 1
        least = LONG_BLOCK_WINDOWS if counters.seconds >= LONG_WINDOW_SECONDS else BLOCK_WINDOWS
        if self._skip or len(self._lengths) < BLOCK_STEPS or self._windows < least or not windows:
            return False
        means = np.divide(
            self._sums, self._counts, out=np.full_like(self._sums, np.nan), where=2 * self._counts >= self._windows
        )
        block = Block(float(np.median(self._lengths)), len(self._lengths), self._first, means)
        self._begin()
        self._place(block)
        return True

    def _place(self, block: Block) -> None:
        if self.learned < BASE_BLOCKS:
            self.early.append(block)
            if len(self.early) >= BASE_BLOCKS:
                self._learn_first()
            return
        if block.step_seconds >= SLOWER * self.usual_seconds:
            self.slow.append(block)
            self.run += 1
            return
        self.slow.clear()
        self.run = 0
        self.before.append(block)
        self._learn(block)

    def _learn_first(self) -> None:
        """Learn the usual state from the first blocks. Slower ones, such as those after a start, are left out."""
        usual = float(np.median([one.step_seconds for one in self.early]))
        for one in self.early:
            if one.step_seconds < SLOWER * usual:
                self._learn(one)
                self.before.append(one)
        self.early = self.early[1:]
        if self.learned < BASE_BLOCKS - 1:
            self.learned = 0
            return
        self.learned = max(self.learned, BASE_BLOCKS)
        self.early = []

    def _learn(self, block: Block) -> None:
        self.learned += 1
        share = max(1.0 / self.learned, FORGET)
        if self.learned == 1:
            self.usual_seconds, self.usual = block.step_seconds, block.means.copy()
            self.varies = np.zeros_like(self.usual)
            return
        self.usual_seconds += share * (block.step_seconds - self.usual_seconds)
        known = np.isfinite(block.means)
        fresh = known & ~np.isfinite(self.usual)
        self.usual[fresh] = block.means[fresh]
        away = np.where(known, block.means - self.usual, 0.0)
        rows = known.any(axis=1)
        away[rows] -= np.nanmedian(np.where(known[rows], away[rows], np.nan), axis=1, keepdims=True)
        self.usual = np.where(known, self.usual + share * (block.means - self.usual), self.usual)
        self.varies = (1.0 - share) * (np.nan_to_num(self.varies) + share * away**2)


def shifts(blocks: StepBlocks, block: Block) -> FloatArray:
    """Return the difference of each counter from its usual mean: float64 [COMPARED, n].

    Counters of LEVELS are differences of their usual level, as a share of it; others are in their own unit.
    """
    away = block.means - blocks.usual
    levels = len(LEVELS)
    with np.errstate(invalid="ignore", divide="ignore"):
        away[:levels] /= blocks.usual[:levels]
    return away
