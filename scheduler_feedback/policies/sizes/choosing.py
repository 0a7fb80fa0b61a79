"""Choice of one option for each job, so that the slots of each GPU type suffice and the sum of the values is large.

This is a multiple-choice knapsack with one capacity for each GPU type. It is solved by prices (Lagrangian relaxation;
Everett, 1963): each slot of a type has a price, each job takes the option with the largest value minus price, and
prices rise where demand exceeds the slots. The last few slots are given by gain per slot. The result is a good choice,
not the best one. It depends on the input alone: no solver, no random numbers (decision 99).
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_feedback.policies.sizes.options import Option

ROUNDS = 40
"""Number of corrections of the prices."""

Options = Sequence[Option]


def choose(jobs: Sequence[Options], slots: Sequence[int]) -> list[Option | None]:
    """Return the chosen option of each job; None if no option fits in what the jobs before it leave.

    jobs: options of each job, in order of precedence. slots: number of slots by number of the GPU type. The smallest
    options of all jobs go before larger ones: no job gets more than its least ranks while a later one gets none.
    """
    prices = _prices(jobs, slots)
    left = list(slots)
    chosen: list[Option | None] = []
    for options in jobs:  # everyone's least size first, on the type where it is worth most for its price
        least = min((one.ranks for one in options), default=0)
        fitting = [one for one in options if one.ranks == least and one.ranks <= left[one.type_number]]
        one = max(fitting, key=lambda one: _net(one, prices), default=None)
        if one is not None:
            left[one.type_number] -= one.ranks
        chosen.append(one)
    wanted = [max(options, key=lambda one: _net(one, prices), default=None) for options in jobs]
    gains = [
        (-(_net(want, prices) - _net(have, prices)) / want.ranks, number)
        for number, (want, have) in enumerate(zip(wanted, chosen, strict=True))
        if want is not None and have is not None and want != have
    ]
    for _, number in sorted(gains):
        have, want = chosen[number], wanted[number]
        assert have is not None and want is not None
        _swap(chosen, number, have, want, left)
    _use_the_rest(jobs, chosen, left)
    return chosen


def _net(option: Option, prices: Sequence[float]) -> float:
    return option.value - prices[option.type_number] * option.ranks


def _swap(chosen: list[Option | None], number: int, have: Option, want: Option, left: list[int]) -> bool:
    """Give the job another option if the slots suffice. Return whether they did."""
    left[have.type_number] += have.ranks
    fits = want.ranks <= left[want.type_number]
    one = want if fits else have
    left[one.type_number] -= one.ranks
    chosen[number] = one
    return fits


def _use_the_rest(jobs: Sequence[Options], chosen: list[Option | None], left: list[int]) -> None:
    """Give slots that are left to the jobs that gain most for each slot, until no job gains."""
    while any(left):
        best: tuple[float, int, Option | None] = (0.0, -1, None)
        for number, (options, have) in enumerate(zip(jobs, chosen, strict=True)):
            if have is None:
                continue
            for one in options:
                gain = one.value - have.value
                room = left[one.type_number] + (have.ranks if have.type_number == one.type_number else 0)
                if gain <= LEAST_GAIN * abs(have.value) or one.ranks > room:
                    continue
                each = gain / max(one.ranks - have.ranks, 1)
                if each > best[0]:
                    best = (each, number, one)
        if best[2] is None:
            return
        have = chosen[best[1]]
        assert have is not None
        _swap(chosen, best[1], have, best[2], left)


LEAST_GAIN = 1e-9
"""Least relative gain that counts, so that rounding errors cause no change."""


def _prices(jobs: Sequence[Options], slots: Sequence[int]) -> list[float]:
    """Return a price of a slot of each GPU type at which the jobs together want about as many as there are."""
    highest = 0.0
    for options in jobs:
        low = min((one.value for one in options), default=0.0)
        for one in options:
            highest = max(highest, (one.value - low) / one.ranks)
    prices = [0.0] * len(slots)
    step = highest / 2
    for _ in range(ROUNDS):
        used = [0] * len(slots)
        for options in jobs:
            if options:
                one = max(options, key=lambda one: _net(one, prices))
                used[one.type_number] += one.ranks
        prices = [
            max(price + (step if wants > has else -step), 0.0) if wants != has else price
            for price, wants, has in zip(prices, used, slots, strict=True)
        ]
        step *= SHRINKS
    return prices


SHRINKS = 0.85
"""Factor of the step of the prices from one round to the next; 40 rounds end at a thousandth of the first step."""
