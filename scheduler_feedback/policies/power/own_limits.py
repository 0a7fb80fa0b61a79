"""Gangs that the scheduler's own power limit harms: verdicts that show nothing else, and reported speeds.

A verdict whose cause is power, about a GPU with a limit of the scheduler, does not accuse its node. The gang gets the
next higher limit as its lowest one. That is repeated while such verdicts or too slow reports continue.
"""

from __future__ import annotations

from agent.schema.verdicts.causes import Cause
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.power import power_speeds
from scheduler_feedback.policies.power.account import Unit, account_of, unit_of
from scheduler_feedback.policies.power.allocation import steps_of
from scheduler_feedback.policies.power.gpus import TINY, in_force

HARM_SECONDS = 30.0
"""Least time between two rises of a gang's lowest limit. A detector needs about this time to see the effect of one."""

SLOWER = 0.95
"""A gang is harmed by its limit if its reported speed is below this share of the expected one. Reported speeds vary by
about 2 %."""


def explained_by_limit(context: CycleContext, verdict: Verdict) -> str:
    """Return why the verdict only shows the scheduler's own power limit, in words; '' if it shows more.

    It raises the limit of the gang, if it is not the highest one.
    """
    state = context.state
    if verdict.cause is not Cause.POWER or not in_force(state):
        return ""
    job = state.jobs.get(verdict.gang) or _holder(context, verdict)
    found = _limited(context, job)
    if job is None or found is None or not _confirmed(context, job, verdict):
        return ""
    _raise_floor(context, job, found, "a detector reports that power slows it")
    return f"its GPU is slowed by our own power limit of {job.power_limit_watts:.0f} W, which is no fault of its node"


def at_full_power(context: CycleContext, job: Job, per_second: float, seconds: float) -> float | None:
    """Learn from a reported speed of a running gang. Return the work per second that it would do at the highest limit.

    None if its limit has changed while it was measured. seconds: time of the measurement.
    """
    state = context.state
    if not in_force(state) or not job.power_limit_watts:
        return per_second
    unit = unit_of(account_of(state, context.index), job)
    if unit is None or not unit.gpus.most_watts:
        return per_second
    if job.power_set_ns and context.now_ns - job.power_set_ns < nanoseconds(seconds):
        return None
    share = job.power_limit_watts / unit.gpus.most_watts
    lag = power_speeds.lag(state, job, share, per_second)
    if lag is not None and lag < SLOWER:
        _raise_floor(context, job, unit, f"it runs at {lag:.2f} of the speed that is expected with it")
    power_speeds.record(state, job, share, per_second, seconds)
    a = power_speeds.sensitivity(state, job.job_id, job.spec)
    return per_second / power_speeds.speed_at(share, 1.0, a)


def _holder(context: CycleContext, verdict: Verdict) -> Job | None:
    """Return the gang with a limit that uses the accused GPU, for a verdict about a node; None if there is none."""
    state = context.state
    devices = state.nodes[verdict.node].devices if verdict.node in state.nodes else ()
    for job_id in sorted(context.index.power_limited):
        for slot in context.index.held.get(job_id, ()):
            if slot.node == verdict.node and slot.slot < len(devices) and devices[slot.slot] == verdict.device:
                return state.jobs[job_id]
    return None


def _limited(context: CycleContext, job: Job | None) -> Unit | None:
    """Return the unit of a gang with a limit below the highest one; None for other gangs."""
    if job is None or not job.power_limit_watts:
        return None
    unit = unit_of(account_of(context.state, context.index), job)
    return unit if unit is not None and job.power_limit_watts < unit.gpus.most_watts - TINY else None


def _confirmed(context: CycleContext, job: Job, verdict: Verdict) -> bool:
    """Return whether the accused GPU, or one of the gang on the accused node, reports our limit, below its highest."""
    state = context.state
    node = state.nodes.get(verdict.node)
    slots = [slot for slot in context.index.held.get(job.job_id, ()) if slot.node == verdict.node]
    if node is not None and verdict.device in node.devices:
        number = node.devices.index(verdict.device)
        slots = [slot for slot in slots if slot.slot == number]
    elif verdict.rank >= 0:
        slots = [rank.slot for rank in job.ranks if rank.rank == verdict.rank] or slots
    reported = state.power.get(verdict.node, ())
    mine = [reported[slot.slot] for slot in slots if slot.slot < len(reported)]
    return bool(mine) and all(one.settable and one.limit_watts < one.most_watts - TINY for one in mine)


def _raise_floor(context: CycleContext, job: Job, unit: Unit, why: str) -> None:
    """Let the gang have at least the next higher limit than now, unless that has been tried within HARM_SECONDS."""
    at_ns = max(job.power_set_ns, job.attempt_started_ns or 0)
    higher = [
        one for one in steps_of(unit.gpus.least_watts, unit.gpus.most_watts) if one > job.power_limit_watts + TINY
    ]
    if not higher or job.power_floor_watts >= higher[0]:
        return
    if context.now_ns - at_ns < nanoseconds(HARM_SECONDS):
        return
    context.index.set_power_floor(job, higher[0])
    text = f"its power limit of {job.power_limit_watts:.0f} W harms it: {why}; it gets {higher[0]:.0f} W if that fits"
    context.decide(job.job_id, "power-floor", text)
