"""Differences and rates of counters, with detection of wraps, resets and gaps. Pure.

Between two samples a counter may have increased, wrapped once or several times (a counter of less than 64 bits), or
been reset.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from agent.schema.frame import CounterArray, TimeArray, ValidArray

NARROW_BITS = 32
"""Maximum width in bits of a narrow counter, which is expected to wrap. A counter of bytes with 64 bits wraps only
after 1,300 years at 450 GB/s."""

HALF_TURN = 1 << (NARROW_BITS - 1)
"""Half of the range of a narrow counter. If the counter decreased and a wrap would mean an increase of less than this
number, the decrease counts as a wrap. Otherwise it counts as a reset (serial number arithmetic, RFC 1982)."""


class Change(IntEnum):
    """Kind of change between two samples of one counter. The difference is exact only for STEADY and WRAPPED."""

    STEADY = 0
    WRAPPED = 1  # a narrow counter wrapped once
    UNCHANGED = 2  # no new sample: the tier's time did not change
    ABSENT = 3  # one of the two samples is missing
    RESET = 4  # the counter decreased, or its source restarted
    GAP = 5  # a narrow counter was unread for too long to count its wraps


ChangeArray = npt.NDArray[np.uint8]


def difference(
    before: CounterArray,
    before_valid: ValidArray,
    after: CounterArray,
    after_valid: ValidArray,
    widths: npt.NDArray[np.uint8],
    elapsed_ns: TimeArray,
    *,
    same_source: bool,
    gap_ns: int,
) -> tuple[CounterArray, ChangeArray]:
    """Return by how much each counter increased between two samples, and the kind of change.

    All arrays have one element per counter. `widths` are in bits; `elapsed_ns` is the time between the samples of each
    counter (not of the frame). `same_source` is False if boot_id or agent_id changed; all counters then count as reset.
    `gap_ns` is the longest interval in which a counter of less than 64 bits wraps at most once.

    The result is (increase as uint64, zero where it is not exact; a Change for each counter).
    """
    change = np.full(before.shape, Change.STEADY, np.uint8)
    narrow = widths <= NARROW_BITS
    fell = after < before
    advance = after - before  # modulo 2**64; corrected or zeroed below for decreases
    turned = (after + np.uint64(1 << NARROW_BITS)) - before
    wrapped = fell & narrow & (turned < np.uint64(HALF_TURN))
    advance = np.where(wrapped, turned, advance)
    change[wrapped] = Change.WRAPPED
    change[fell & ~wrapped] = Change.RESET
    change[narrow & (elapsed_ns > gap_ns)] = Change.GAP
    if not same_source:
        change[:] = Change.RESET
    change[elapsed_ns <= 0] = Change.UNCHANGED
    change[~(before_valid & after_valid)] = Change.ABSENT
    return np.where(exact(change), advance, np.uint64(0)), change


def exact(change: ChangeArray) -> npt.NDArray[np.bool_]:
    """Return for each change whether the counter's difference is exact, as a bool array."""
    return change <= Change.WRAPPED


def rates(
    advance: CounterArray, change: ChangeArray, elapsed_ns: TimeArray, scale: float = 1.0
) -> npt.NDArray[np.float64]:
    """Return the increase of each counter per second, in the metric's base unit; NaN where the increase is not exact.

    advance: increase of each counter in its own unit. scale: factor from this unit to the base unit, from the
    catalogue.
    """
    usable = exact(change) & (elapsed_ns > 0)
    seconds = np.where(usable, elapsed_ns, 1) * 1e-9
    return np.where(usable, advance * scale / seconds, np.nan)
