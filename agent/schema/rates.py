"""Counter -> difference: wraps undone, resets and gaps recognised. Pure.

A counter says how much there has been; what a reader wants is how much there was between two samples. Four things can
lie between them: nothing of note, one turn of a narrow counter, a new beginning, or too long a silence to know.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from agent.schema.frame import CounterArray, TimeArray, ValidArray

NARROW_BITS = 32
"""Width below which a counter is expected to turn; 64 bits turn after 1,300 years at 450 GB/s."""

HALF_TURN = 1 << (NARROW_BITS - 1)
"""A narrow counter that fell is taken to have turned where that makes it advance by less than half its range: more
would be as likely a reset to a small value (the rule of serial number arithmetic, RFC 1982)."""


class Change(IntEnum):
    """What lies between two samples of one counter; the difference is exact for STEADY and WRAPPED alone."""

    STEADY = 0
    WRAPPED = 1  # a narrow counter turned once
    UNCHANGED = 2  # no new sample: the tier's time did not move
    ABSENT = 3  # one of the two samples is missing
    RESET = 4  # the counter began anew: it fell, or its keeper restarted
    GAP = 5  # a narrow counter unseen for so long that its turns cannot be counted


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
    """How much each counter advanced between two samples, and what lies between them.

    All arrays have one shape. `widths` are bits; `elapsed_ns` is each counter's time between the samples (of its
    tier, not of the frame). `same_source` is False where boot_id or agent_id changed: nothing is differenced then,
    since an agent's own counts restart with it and the kernel's with the boot. `gap_ns` is the longest silence over
    which a narrow counter is trusted to have turned at most once.

    Returns (uint64 advance, zero where not exact; a Change for each).
    """
    change = np.full(before.shape, Change.STEADY, np.uint8)
    narrow = widths <= NARROW_BITS
    fell = after < before
    advance = after - before  # modulo 2**64; put right or zeroed below wherever it fell
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
    """Where a difference may be used."""
    return change <= Change.WRAPPED


def rates(
    advance: CounterArray, change: ChangeArray, elapsed_ns: TimeArray, scale: float = 1.0
) -> npt.NDArray[np.float64]:
    """Advance per second in the base unit (`scale` from the catalogue); NaN where the difference is not exact."""
    usable = exact(change) & (elapsed_ns > 0)
    seconds = np.where(usable, elapsed_ns, 1) * 1e-9
    return np.where(usable, advance * scale / seconds, np.nan)
