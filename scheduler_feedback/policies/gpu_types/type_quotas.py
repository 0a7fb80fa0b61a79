"""Quotas by GPU type: each queue with a quota is entitled to slots of every type, and may trade them.

With `Policy.type_quotas` a queue owns a part of each GPU type, in proportion to its quota (``type_trades.own_slots``);
as `traded`, queues then trade these parts (``type_trades.trade``) by the mean speeds of their running and pending jobs.
A job uses types of which its queue has slots left first (``placement.usable_types``), starts there before all jobs of
other queues, and gets back what others hold of them (``queue/reclaim``). Slots that no owner claims are free for all.

The types are divided again if the nodes change, and otherwise with events, at most every `Policy.trade_seconds`. A
queue that may not borrow does not trade, because its limit counts slots of all types.
"""

from __future__ import annotations

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State, TypeQuotas, TypeTrade
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.gpu_types.type_trades import Owner, keeps, own_slots, trade
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import TIERS
from scheduler_feedback.policies.queue.placement import attempt_speed, types_for

MORE = 1.02
"""The division changes only if all queues together are then expected to do 2 % more, because gangs are stopped for a
change. An assumption."""

MOST_NAMED = 3
"""Maximum number of trades that one sentence names."""


def divide(context: CycleContext, happened: bool) -> None:
    """Divide the slots of each GPU type among the queues with a quota, if it is time.

    happened: whether an event other than a tick occurred. Time alone changes no division.
    """
    index, state = context.index, context.state
    types = index.shares.types
    if types is None:
        if state.type_shares or state.type_trades:
            state.type_slots, state.type_shares, state.type_trades = {}, {}, []
            context.evaluated = True
        return
    slots = _slots_by_type(index)
    due_ns = state.traded_ns + round(state.policy.trade_seconds * 1e9)
    due = happened and state.policy.type_quotas is TypeQuotas.TRADED and context.now_ns >= due_ns
    if slots == state.type_slots and not due:
        return
    owners = _owners(index, slots)
    trades: list[TypeTrade] = []
    if state.policy.type_quotas is TypeQuotas.TRADED and len(slots) > 1:
        before = keeps(owners, state.type_shares) if slots == state.type_slots else None
        trades = trade([one for one in owners if index.shares.queues[one.name].borrow])
        if before is not None and sum(one.work() for one in owners) <= before * MORE:
            state.traded_ns, context.evaluated = context.now_ns, True
            return
    shares = {one.name: {kind: count for kind, count in one.owned.items() if count} for one in owners}
    if shares != state.type_shares:
        index.evaluate_all()
    for one in trades:
        if one not in state.type_trades:
            context.decide(f"queue:{one.seller}", "trade", sentence(one))
    state.type_slots, state.type_shares, state.type_trades = slots, shares, trades
    state.traded_ns = context.now_ns
    types.entitled = shares
    context.evaluated = True


def _slots_by_type(index: SchedulingIndex) -> dict[str, int]:
    """Return the number of slots of each GPU type on nodes that take jobs, without spare nodes."""
    plan = index.plan
    found = {}
    for number, name in enumerate(plan.topology.type_names):
        count = sum(plan.slots_in[number * TIERS + tier] for tier in Tier if tier is not Tier.SPARE)
        if count:
            found[name] = count
    return found


def _owners(index: SchedulingIndex, slots: dict[str, int]) -> list[Owner]:
    """Return the queues with a quota, sorted by name, with the slots that they own before any trade."""
    shares, state = index.shares, index.state
    quotas = {name: queue.quota for name, queue in sorted(shares.queues.items()) if queue.quota is not None}
    jobs: dict[str, list[Job]] = {}
    for job_id in sorted({*index.held, *(key[-1] for key in index.line.order)}):  # the sums must not depend on history
        job = state.jobs[job_id]
        if (owner := shares.owner(job.spec.queue)) is not None:
            jobs.setdefault(owner, []).append(job)
    found = []
    for name, own in own_slots(quotas, slots).items():
        speeds, demand = dict.fromkeys(slots, 0.0), 0
        for job in jobs.get(name, ()):
            ranks = len(job.ranks) or job.spec.ranks
            demand += ranks
            for kind, speed in _relative_speeds(index, job).items():
                speeds[kind] = speeds.get(kind, 0.0) + ranks * speed
        found.append(Owner(name, {kind: speed / max(demand, 1) for kind, speed in speeds.items()}, own, demand))
    return found


def _relative_speeds(index: SchedulingIndex, job: Job) -> dict[str, float]:
    """Return the job's speed on each GPU type that it may use, relative to the slowest of them."""
    plan, policy = index.plan, index.state.policy
    names = [plan.topology.type_names[number] for number in types_for(plan, job, policy)]
    found = {name: attempt_speed(policy, job, name, job.spec.ranks, plan.learnt) for name in names}
    least = min((speed for speed in found.values() if speed > 0), default=1.0)
    return {name: speed / least for name, speed in found.items()}


# --- words -----------------------------------------------------------------------------------------------------------


def sentence(one: TypeTrade) -> str:
    """Return the trade as a sentence."""
    sold = f"{one.fast_slots} {one.fast} slot{'' if one.fast_slots == 1 else 's'}"
    paid = f"{one.slow_slots} {one.slow} slot{'' if one.slow_slots == 1 else 's'}"
    return f"queue {one.seller} sold {sold} to queue {one.buyer} for {paid}"


def in_words(state: State, index: SchedulingIndex, job: Job) -> str:
    """Return which trades decide the types that the job gets, as the end of a sentence; '' if none does.

    They are those in which its queue sold the fastest type that the job may use, or bought it.
    """
    owner = index.shares.owner(job.spec.queue)
    types = types_for(index.plan, job, state.policy)
    if owner is None or not types or not state.type_trades:
        return ""
    fastest = index.plan.topology.type_names[types[0]]
    found = [one for one in state.type_trades if one.fast == fastest and owner in (one.seller, one.buyer)]
    return "".join(f"; {sentence(one)}" for one in found[:MOST_NAMED])
