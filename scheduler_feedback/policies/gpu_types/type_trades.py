"""Trades of GPU types: queues exchange parts of their quotas on two GPU types where both gain.

The rule of Gandiva_fair (Chaudhary et al., EuroSys'20, section 3.3). A queue's gain of a faster type over a slower one
is the ratio of the speeds of its jobs there. The queue with the least gain sells slots of the faster type to the queue
with the largest gain, for slots of the slower type. The price of a slot is the gain of the second-highest bidder, so
both sides gain. If no other bidder gains more than the seller, the price is the geometric mean of both gains.

Only whole slots are traded, at the rounded price at which neither side loses. A queue trades only what its jobs use: it
ends with at most as many slots as they have ranks, of which at most as many are of the bought type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scheduler_feedback.core.state import TypeTrade
from scheduler_feedback.policies.speeds.learnt_speeds import WORTH

MOST_GAIN = 64.0
"""Largest gain of a faster type that counts: some jobs do not run on the slower one at all."""

TINY = 1e-9


@dataclass(slots=True)
class Owner:
    """A queue that owns slots of each GPU type."""

    name: str
    """Name of the queue."""
    speeds: dict[str, float]
    """Mean speed of its jobs on each GPU type, in any unit; 0 if they do not run there."""
    owned: dict[str, int]
    """Its slots of each GPU type."""
    demand: int
    """Ranks of its running and pending jobs."""

    def total(self) -> int:
        """Return its slots of all types."""
        return sum(self.owned.values())

    def work(self) -> float:
        """Return the work per second with all its slots in use."""
        return sum(count * self.speeds.get(name, 0.0) for name, count in self.owned.items())

    def gain(self, fast: str, slow: str) -> float:
        """Return the speed on one type relative to another, within 1 / MOST_GAIN to MOST_GAIN."""
        above, below = self.speeds.get(fast, 0.0), self.speeds.get(slow, 0.0)
        return MOST_GAIN if not below else min(max(above / below, 1 / MOST_GAIN), MOST_GAIN)


def own_slots(quotas: dict[str, int], slots: dict[str, int]) -> dict[str, dict[str, int]]:
    """Return the slots of each GPU type that each queue owns: a part of every type, in proportion to its quota.

    quotas: slots by queue. slots: slots by GPU type. A queue owns as many slots as its quota, or fewer if the quotas
    exceed the cluster. Whole slots are assigned by the largest remainder.
    """
    all_slots, promised = sum(slots.values()), sum(quotas.values())
    rows = {name: quota * min(all_slots, promised) // max(promised, 1) for name, quota in quotas.items()}
    found = {
        name: {kind: row * count // max(all_slots, 1) for kind, count in slots.items()} for name, row in rows.items()
    }
    left = {kind: count - sum(one[kind] for one in found.values()) for kind, count in slots.items()}
    by_remainder = sorted(
        ((name, kind) for name in rows for kind in slots),
        key=lambda pair: (-(rows[pair[0]] * slots[pair[1]] % max(all_slots, 1)), pair),
    )
    for _ in range(2):  # a queue whose remainders are of types that are all assigned gets slots of other types
        for name, kind in by_remainder:
            if left[kind] > 0 and sum(found[name].values()) < rows[name]:
                found[name][kind] += 1
                left[kind] -= 1
    return found


def trade(owners: Sequence[Owner]) -> list[TypeTrade]:
    """Trade in place until no two queues gain, for each pair of types, and return the trades."""
    speeds: dict[str, float] = {}
    for owner in owners:
        for name, speed in owner.speeds.items():
            speeds[name] = speeds.get(name, 0.0) + speed
    kinds = sorted(speeds, key=lambda name: (speeds[name], name))
    trades: list[TypeTrade] = []
    for slow, fast in combinations(kinds, 2):
        while (found := _next(owners, fast, slow)) is not None:
            seller, buyer, given, paid = found
            for owner, sign in ((seller, -1), (buyer, 1)):
                owner.owned[fast] += sign * given
                owner.owned[slow] -= sign * paid
            trades.append(TypeTrade(seller.name, buyer.name, fast, slow, given, paid))
    return trades


def _next(owners: Iterable[Owner], fast: str, slow: str) -> tuple[Owner, Owner, int, int] | None:
    """Return (seller, buyer, slots of the faster type, slots of the slower type) of the next trade; None: no more."""
    by_gain = sorted((one for one in owners if one.demand), key=lambda one: (one.gain(fast, slow), one.name))
    sellers = [one for one in by_gain if one.owned.get(fast) and one.speeds.get(slow)]
    bidders = [one for one in reversed(by_gain) if one.owned.get(slow) and one.speeds.get(fast)]
    for seller in sellers:
        for buyer in bidders:
            least, most = seller.gain(fast, slow), buyer.gain(fast, slow)
            if buyer is seller or most <= least * WORTH * WORTH:  # two predictions, neither of which is better
                break
            second = max((one.gain(fast, slow) for one in bidders if one not in (seller, buyer)), default=0.0)
            price = min(second, most) if second > least else math.sqrt(least * most)
            if (amounts := _amounts(seller, buyer, fast, slow, price)) is not None:
                return seller, buyer, *amounts
    return None


def _amounts(seller: Owner, buyer: Owner, fast: str, slow: str, price: float) -> tuple[int, int] | None:
    """Return the most (slots of the faster type, slots of the slower type) that both trade; None if it is none."""
    most = min(seller.owned[fast], buyer.demand - buyer.owned.get(fast, 0))
    room = seller.demand - seller.total()  # without what the seller gives
    for given in range(most, 0, -1):
        least = max(math.ceil(given * seller.gain(fast, slow) - TINY), 1, buyer.total() + given - buyer.demand)
        limit = min(math.floor(given * buyer.gain(fast, slow) + TINY), room + given, buyer.owned[slow])
        if least <= limit:
            return given, min(max(round(given * price), least), limit)
    return None


def keeps(owners: Iterable[Owner], shares: Mapping[str, Mapping[str, int]]) -> float | None:
    """Return the work per second of all queues with these slots, after earlier trades.

    None if a queue would do less with them than with its own slots, or would own slots that its jobs do not use.
    """
    total = 0.0
    for owner in owners:
        mine = shares.get(owner.name, {})
        work = sum(count * owner.speeds.get(name, 0.0) for name, count in mine.items())
        if work < owner.work() - TINY or (mine != owner.owned and sum(mine.values()) > owner.demand):
            return None
        total += work
    return total
