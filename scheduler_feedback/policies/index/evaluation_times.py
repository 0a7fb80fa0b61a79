"""Times at which decisions that depend on a duration are evaluated again.

Whether it pays to move, shrink, grow or defragment depends on the duration of a wait, a fault, or an idle period. The
decision is evaluated every second for the first eight seconds, and then each time the duration has grown by an eighth.
So a decision comes at most an eighth too late, and a wait of a day costs about eighty evaluations. The instants follow
from the start of the duration alone, so a restarted controller evaluates at the same instants.
"""

from __future__ import annotations

import math

_SECOND = 1_000_000_000
_EVENLY = 8
_GROWTH = 1 + 1 / _EVENLY


def next_evaluation_ns(since_ns: int, now_ns: int) -> int:
    """Return the next time at which to evaluate a decision that depends on the time since since_ns; both in ns."""
    age_ns = max(now_ns - since_ns, 0)
    if age_ns < _EVENLY * _SECOND:
        return since_ns + (age_ns // _SECOND + 1) * _SECOND
    step = int(math.log(age_ns / (_EVENLY * _SECOND), _GROWTH))
    while since_ns + _age_ns(step) <= now_ns:
        step += 1
    while step > 0 and since_ns + _age_ns(step - 1) > now_ns:  # the logarithm is rounded
        step -= 1
    return since_ns + _age_ns(step)


def _age_ns(step: int) -> int:
    return round(_EVENLY * _SECOND * _GROWTH**step)
