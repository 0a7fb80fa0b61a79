"""Power limits of running gangs within the budget: chosen in each cycle in which something happened.

Limits are lowered at once, and raised only by watts that are free now, as confirmed by agents. A limit is
raised again only after HOLD_SECONDS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import PowerSeen
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.power.account import Account, Unit, account_of, unit_of
from scheduler_feedback.policies.power.admission import in_watts
from scheduler_feedback.policies.power.allocation import Choice, choose, steps_of
from scheduler_feedback.policies.power.gpus import TINY, Gpus, gpus_of, in_force, never_fits
from scheduler_feedback.policies.power.power_speeds import sensitivity, speed_at
from scheduler_feedback.policies.queue import order

HOLD_SECONDS = 30.0
"""Least time between a change of a gang's limit and its next rise, so that limits do not go to and fro."""


def power_seen(context: CycleContext, event: PowerSeen) -> None:
    """Apply an agent's report of the power limits of its GPUs."""
    state = context.state
    before = state.power.get(event.node, ())
    changed = _bounds(before) != _bounds(event.slots)
    context.index.report_power(event.node, event.slots, changed and in_force(state))
    if not in_force(state):
        return
    lost = any(one.settable for one in before) and not any(one.settable for one in event.slots)
    if lost:
        text = "its agent sets no power limits any more: its GPUs count with the limits that it reported last"
        context.record(f"node:{event.node}", "power", text)


def _bounds(slots: tuple[SlotPower, ...]) -> list[tuple[float, float, bool, float]]:
    """Return what decides whether a gang could ever start on these slots."""
    return [(one.least_watts, one.idle_watts, one.settable, 0.0 if one.settable else one.limit_watts) for one in slots]


def set_limits(context: CycleContext) -> None:
    """Choose the power limits of all running gangs, and record what has changed."""
    state, index = context.state, context.index
    if not in_force(state):
        if index.power_limited:
            for job_id in sorted(index.power_limited):
                index.set_power_limit(state.jobs[job_id], 0.0, 1.0)
                context.record(job_id, "power", "its GPUs have no power limit any more: no power budget is in force")
            state.power_rise_ns = 0
        return
    if state.frozen:
        return
    account = account_of(state, index)
    choices = {unit.name: _choice(state, unit) for unit in account.units}
    for job_id in sorted(index.claimants):
        if never_fits(state, state.jobs[job_id].claim):
            index.reserve(state.jobs[job_id], ())
            context.record(job_id, "claim-lost", "its reserved slots exceed the power budget")
    left = state.policy.power_budget_watts - account.idle_watts + TINY
    left += _add_waiting(state, index, choices, left)
    chosen = choose(choices, left)
    targets = {unit.name: choices[unit.name].limits[chosen[unit.name]] for unit in account.units}
    lowered = [_lower(context, unit, targets[unit.name]) for unit in account.units]
    account = account_of(state, index) if any(lowered) else account
    room = account.room_watts
    for unit in account.units:
        target = targets[unit.name]
        more = max(unit.gpus.watts(target, confirmed=True) - unit.watts(confirmed=True), 0.0)
        if more <= room + TINY:
            room -= more
            _raise(context, unit, target)
        else:
            _raise(context, unit, unit.gpus.least_watts)  # gangs without a limit get the lowest one
    state.power_rise_ns = _next_rise_ns(state, account, choices, chosen, left)


def _add_waiting(state: State, index: SchedulingIndex, choices: dict[str, Choice], left_watts: float) -> float:
    """Add pending gangs with free reserved slots to the choices, in the order of the queue, while all fit with their
    lowest limits. Return the idle power of their GPUs, which is part of their limits.

    The limits of running gangs are then lowered once, and not again when these gangs start.
    """
    least, idle = sum(choice.watts[0] for choice in choices.values()), 0.0
    for job_id in sorted(index.claimants, key=lambda one: order.key_of(state, state.jobs[one])):
        job = state.jobs[job_id]
        if not index.is_clear(job.claim):
            continue
        gpus = gpus_of(state, job.claim)
        limits, watts, speeds = _possible(gpus, sensitivity(state, job_id, job.spec))
        if least + watts[0] > left_watts + idle + gpus.idle_watts:
            break
        least, idle = least + watts[0], idle + gpus.idle_watts
        choices[f"{job_id} waits"] = Choice(len(job.claim), limits, watts, speeds)
    return idle


def _next_rise_ns(
    state: State, account: Account, choices: Mapping[str, Choice], chosen: Mapping[str, int], watts: float
) -> int:
    """Return when the first limit may rise that is kept only because of HOLD_SECONDS; 0 if there is none."""
    held = [unit for unit in account.units if not choices[unit.name].may_rise]
    if not held or choose({name: replace(one, may_rise=True) for name, one in choices.items()}, watts) == chosen:
        return 0
    return min(_rises_ns(state, unit) for unit in held)


def _rises_ns(state: State, unit: Unit) -> int:
    """Return from when the unit's limit may be raised."""
    changed_ns = max(state.jobs[one].power_set_ns for one in unit.jobs)
    return changed_ns + nanoseconds(HOLD_SECONDS) if changed_ns else 0


def _choice(state: State, unit: Unit) -> Choice:
    """Return what the unit can do."""
    jobs = [state.jobs[one] for one in unit.jobs]
    # Jobs that share slots have one limit: the most sensitive one counts.
    a = max([sensitivity(state, job.job_id, job.spec) for job in jobs])
    limits, watts, speeds = _possible(unit.gpus, a)
    present, floor = unit.limit_watts, max([job.power_floor_watts for job in jobs])
    return Choice(
        sum([len(job.ranks) for job in jobs]), limits, watts, speeds,
        now=None if present is None else _number(limits, present),
        floor=_number(limits, floor) if floor else 0,
        may_rise=_rises_ns(state, unit) <= state.now_ns,
    )  # fmt: skip


@lru_cache(4096)
def _possible(gpus: Gpus, sensitivity: float) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the possible limits of these GPUs, what they add up to, and the speed with each."""
    most = gpus.most_watts
    limits = steps_of(gpus.least_watts, most)
    speeds = tuple(speed_at(limit, most, sensitivity) for limit in limits)
    return limits, tuple(gpus.watts(limit) for limit in limits), speeds


def _number(limits: tuple[float, ...], watts: float) -> int:
    """Return the number of the highest of these limits that is at most this one; 0 if all are higher."""
    return max((number for number, limit in enumerate(limits) if limit <= watts + TINY), default=0)


def _lower(context: CycleContext, unit: Unit, limit_watts: float) -> bool:
    """Lower the limits of the unit's gangs to this one; return whether any was higher."""
    higher = [one for one in unit.jobs if context.state.jobs[one].power_limit_watts > limit_watts]
    for job_id in higher:
        _set(context, unit, job_id, limit_watts)
    return bool(higher)


def _raise(context: CycleContext, unit: Unit, limit_watts: float) -> None:
    """Raise the limits of the unit's gangs to this one."""
    for job_id in unit.jobs:
        if context.state.jobs[job_id].power_limit_watts < limit_watts:
            _set(context, unit, job_id, limit_watts)


def _set(context: CycleContext, unit: Unit, job_id: str, limit_watts: float) -> None:
    state = context.state
    job = state.jobs[job_id]
    speed = speed_at(limit_watts, unit.gpus.most_watts, sensitivity(state, job_id, job.spec))
    context.index.set_power_limit(job, limit_watts, speed)
    context.decide(job_id, "power", in_words(state, job))
    context.evaluated = True


def in_words(state: State, job: Job) -> str:
    """Describe the gang's power limit: what it is, why, and the expected speed."""
    return (
        f"its GPUs are limited to {job.power_limit_watts:.0f} W each, because the cluster's power budget is "
        f"{in_watts(state.policy.power_budget_watts)}; it is expected to run at {_short(job.power_speed)} of its speed"
    )


def present(state: State, index: SchedulingIndex, job: Job) -> str:
    """Return the end of the sentence that explains a running gang; '' if its GPUs have no limit."""
    if not in_force(state) or not job.power_limit_watts:
        return ""
    unit = unit_of(account_of(state, index), job)
    if unit is None or not unit.gpus.most_watts:
        return ""
    text = f"; {in_words(state, job)}"
    late = any(kind[2] > job.power_limit_watts + TINY for kind, _ in unit.gpus.kinds if kind[3])
    return f"{text}; its agents have not confirmed the limit yet" if late else text


def _short(share: float) -> str:
    return f"{share:.2f}".removeprefix("0") if share < 1 else "1.00"


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield the time at which a limit may be raised again."""
    del index
    if state.power_rise_ns and in_force(state) and not state.frozen:
        yield state.power_rise_ns


def wanted_limits(
    state: State, account: Account, index: SchedulingIndex, nodes: Iterable[str] | None = None
) -> dict[str, tuple[float, ...]]:
    """Return the limit that the agent of each node is to set for the GPU of each slot; 0 for none.

    nodes: only these; None: all. An idle GPU gets its lowest limit, with which the next gang starts.
    """
    limits: dict[tuple[str, int], float] = {}
    for unit in account.units:
        for job_id in unit.jobs:
            for slot in index.held[job_id]:
                place, limit = (slot.node, slot.slot), state.jobs[job_id].power_limit_watts
                limits[place] = max(limits.get(place, 0.0), limit)
    found = {}
    for node in state.power if nodes is None else nodes:
        reported = state.power.get(node, ())
        wanted = [limits.get((node, number), 0.0) for number in range(len(reported))]
        if reported and reported[0].together:
            wanted = [max(wanted)] * len(wanted)
        found[node] = tuple(
            min(max(watts, one.least_watts), one.most_watts) if one.settable and in_force(state) else 0.0
            for watts, one in zip(wanted, reported, strict=True)
        )
    return found
