"""Time shifts: when the steps of gangs on shared uplinks begin, so that one communicates while the others compute.

The policy takes the measured steps of running gangs (`SpeedMeasured`) that use the uplinks of several domains. Gangs
that share an uplink form a group. A group gets windows (``windows``) if its sum of speeds is expected to be larger with
them. Gangs that were never measured without other traffic get them as a trial, as if they had shared their uplinks all
the time. Afterwards the gain is measured. If the measured speeds are not larger, the shifts end, and the gangs get none
for AGAIN_SECONDS. Without shifts, learnt times of communication only become shorter: other traffic makes them longer.

Nothing here depends on the passing of time alone: a decision needs a new report, or the end of a gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean

from msgspec import structs

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import SpeedMeasured
from scheduler_feedback.core.job import Job, StepTimes, TimeShift
from scheduler_feedback.core.state import Mode, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.domains import numbers
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.index.uplink_loss import rails_of
from scheduler_feedback.policies.network.link_speeds import Flow, Profile, Window, distinct_links
from scheduler_feedback.policies.network.windows import SLACK, better_windows

MOST_GANGS = 16
"""Maximum number of gangs in a group that get windows: those with most traffic. Simulating 16 takes 50 ms."""

AGAIN_SECONDS = 3600.0
"""Time for which a gang gets no shift after one that has brought nothing."""

LEAST_GAIN = 0.01
"""Least measured gain, of the mean speed of the group, for which shifts stay."""

PERIOD_PARTS = 27720
"""The common period is a multiple of this in ns, so that it can be divided by every number up to 12."""

CHANGED = 0.05
"""A group keeps its windows while the length of each gang's step fits its period, and is at most this part of the
period shorter than expected."""


def in_force(state: State) -> bool:
    """Return whether steps may be delayed. Mode `observe` delays none."""
    return state.policy.time_shifts and state.policy.mode is Mode.ACT


def speed_measured(context: CycleContext, job: Job, event: SpeedMeasured) -> None:
    """Learn the step times of a running gang from a report of its speed."""
    if not in_force(context.state) or not event.interval_seconds > 0 or event.wait_share is None:
        return
    plan = context.index.plan
    uplinks = rails_of(plan, context.index.held.get(job.job_id, ()))
    if not uplinks or event.network_seconds is None:
        return
    wait = event.wait_share * event.interval_seconds
    names = tuple(name for domain, rails in uplinks.items() for name in _names(plan, domain, rails))
    undisturbed = event.delay_seconds > 0 or not any(
        one.rails & rails
        for domain, rails in uplinks.items()
        for name, one in plan.crossing.get(domain, {}).items()
        if name != job.job_id
    )
    network, before = event.network_seconds, job.step_times
    if event.delay_seconds > 0:
        network = wait - event.delay_seconds
    elif before is not None:
        network = min(network, before.network_seconds)
        undisturbed |= before.undisturbed
    since_ns = context.now_ns - nanoseconds(event.seconds)
    compute = max(event.interval_seconds - wait, 0.0)
    times = StepTimes(
        event.interval_seconds, compute, max(network, 0.0), since_ns, context.now_ns, names, undisturbed
    )  # fmt: skip
    context.index.report_steps(job, times)


def _names(plan: Plan, number: int, rails: int) -> list[str]:
    """Return the names of the uplinks of these rails (bit mask) of a domain."""
    domain = plan.topology.domains[number]
    name = domain.name if domain.level is None else f"{domain.level.value} {domain.name}"
    return [f"{name}, rail {rail}" for rail in numbers(rails)] if plan.rails > 1 else [name]


def groups_of(state: State, index: SchedulingIndex) -> list[list[Job]]:
    """Return groups of the gangs with measured steps. Gangs that share an uplink are in one group. Sorted."""
    on: dict[str, list[str]] = {}
    jobs = {one: state.jobs[one] for one in sorted(index.stepping)}
    for job_id, job in jobs.items():
        for uplink in _uplinks(job):
            on.setdefault(uplink, []).append(job_id)
    groups, seen = [], set[str]()
    for job_id in jobs:
        if job_id in seen:
            continue
        found, left = {job_id}, [job_id]
        while left:
            for uplink in _uplinks(jobs[left.pop()]):
                fresh = [one for one in on.pop(uplink, ()) if one not in found]
                found.update(fresh)
                left += fresh
        seen |= found
        groups.append([jobs[one] for one in sorted(found)])
    return groups


def _uplinks(job: Job) -> tuple[str, ...]:
    return () if job.step_times is None else job.step_times.uplinks


def circumstances(state: State, index: SchedulingIndex) -> dict[str, tuple[object, ...]]:
    """Return, by job, on what the speed of each measured gang depends. If it changes, the gang is to be measured
    again: the gangs on its uplinks, and the shifts of all of them.
    """
    found: dict[str, tuple[object, ...]] = {}
    for group in groups_of(state, index):
        present = tuple((one.job_id, one.attempt, one.time_shift and one.time_shift.since_ns) for one in group)
        found.update({job.job_id: present for job in group})
    return found


def choose_shifts(context: CycleContext) -> None:
    """Decide about the time shifts of all groups with a new report or without a former member."""
    state, index = context.state, context.index
    changed, index.steps_changed = index.steps_changed, set()
    if not in_force(state):
        for job_id in sorted(index.stepping):
            if state.jobs[job_id].time_shift is not None:
                _end(context, state.jobs[job_id], "policy.time_shifts is off, or the mode is observe")
            index.report_steps(state.jobs[job_id], None)
        return
    if not changed or state.frozen:
        return
    for group in groups_of(state, index):
        if any(not changed.isdisjoint(_uplinks(job)) for job in group):
            _decide(context, group)


def _decide(context: CycleContext, group: list[Job]) -> None:
    if len(group) == 1:
        if group[0].time_shift is not None:
            _end(context, group[0], "no other measured gang uses its uplinks any more")
        return
    if not _settled(group):
        return
    chosen = sorted(group, key=lambda job: -_flow(job).profile.share)[:MOST_GANGS]
    chosen = sorted([job for job in chosen if job.shift_again_ns <= context.now_ns], key=lambda job: job.job_id)
    ids = tuple(job.job_id for job in group)
    if len(chosen) < 2:
        return
    fit = _still_fit(chosen, ids)
    # If the newest steps would fit a shorter period, that is tried before the present one is judged.
    if (fit or _too_long(chosen)) and (_harmful(context, group) or fit):
        return
    windows = _better(chosen, dict.fromkeys(ids, 1), context.state.policy.uplink_gangs)
    if any(windows):
        _apply(context, chosen, windows, ids)
        return
    if any(job.time_shift and job.time_shift.judged and job.time_shift.group == ids for job in chosen):
        return  # a measured gain counts more than an expected one
    crowds = _crowds(group)
    if not all(job.step_times is None or job.step_times.undisturbed or crowds[job.job_id] == 1 for job in chosen):
        windows = _better(chosen, crowds, context.state.policy.uplink_gangs)
    _apply(context, chosen, windows, ids)


def _crowds(group: list[Job]) -> dict[str, int]:
    """Return by how many gangs the uplinks of each gang may have been shared while its communication was measured."""
    users: dict[str, int] = {}
    for job in group:
        for uplink in _uplinks(job):
            users[uplink] = users.get(uplink, 0) + 1
    return {
        job.job_id: 1
        if job.step_times is None or job.step_times.undisturbed
        else max(users[uplink] for uplink in _uplinks(job))
        for job in group
    }


def _better(jobs: list[Job], crowds: Mapping[str, int], capacity: float) -> list[Window | None]:
    """Return the window of each gang; none if their sum of speeds is not expected to be larger with windows.

    crowds: by how much the time of each gang's communication is divided. Gangs that always communicate at the same time
    never show how long they communicate alone, so windows for these shorter times are tried, and judged afterwards.
    """
    flows = distinct_links([_flow(job, crowds[job.job_id]) for job in jobs])
    order = sorted(range(len(jobs)), key=lambda number: flows[number])  # equal groups have equal windows
    found = better_windows(tuple(flows[number] for number in order), capacity)
    windows: list[Window | None] = [None] * len(jobs)
    for number, window in zip(order, found, strict=False):
        windows[number] = window
    return windows


def _settled(group: list[Job]) -> bool:
    """Return whether the newest report of each gang is about a time in which all of the group were there, with their
    present shifts."""
    began_ns = max(max(job.attempt_started_ns or 0, job.time_shift.since_ns if job.time_shift else 0) for job in group)
    return all(job.step_times is not None and job.step_times.since_ns >= began_ns for job in group)


def _flow(job: Job, crowd: int = 1) -> Flow:
    times = job.step_times
    assert times is not None
    loads = tuple((name, 1.0) for name in times.uplinks)
    return Flow(Profile(times.compute_seconds, times.network_seconds / crowd), loads, max(job.network_class, 0))


def _harmful(context: CycleContext, group: list[Job]) -> bool:
    """Judge shifts whose effect has been measured. Return whether they have ended, because they have brought
    nothing."""
    shifted = [job for job in group if job.time_shift is not None]
    ids = tuple(job.job_id for job in group)
    fresh = [one for one in shifted if one.time_shift and not one.time_shift.judged and one.time_shift.group == ids]
    if not fresh:
        return False
    gains = [
        job.time_shift.before_seconds / job.step_times.interval_seconds
        for job in shifted
        if job.time_shift is not None and job.step_times is not None
    ]
    gain = fmean(gains)
    if gain > 1 + LEAST_GAIN:
        for job in fresh:
            assert job.time_shift is not None
            shift = job.time_shift
            context.index.shift_steps(job, structs.replace(shift, judged=True))
            text = f"with time shifts, its group was measured to run {gain:.2f}x as fast as before"
            context.record(job.job_id, "time-shift", text)
        return False
    for job in shifted:
        job.shift_again_ns = context.after(AGAIN_SECONDS)
        _end(context, job, f"with them, its group was measured to run {gain:.2f}x as fast as before")
    return True


def _still_fit(jobs: list[Job], group: tuple[str, ...]) -> bool:
    """Return whether the gangs have windows of a decision about the present group that fit their present steps."""
    shifted = [(job, job.time_shift) for job in jobs if job.time_shift is not None]
    if not shifted or any(shift.group != group for _, shift in shifted):
        return False
    if _too_long(jobs):
        return False
    # The gang with the longest steps decides about the period.
    return any(sum(_flow(job).profile) * (1 + SLACK + CHANGED) >= shift.period_ns / 1e9 for job, shift in shifted)


def _too_long(jobs: list[Job]) -> bool:
    """Return whether the steps of a gang are longer than its period."""
    return any(job.time_shift and sum(_flow(job).profile) > job.time_shift.period_ns / 1e9 for job in jobs)


def _apply(context: CycleContext, jobs: list[Job], windows: list[Window | None], group: tuple[str, ...]) -> None:
    """Give the gangs these windows, and record why. group: ids of all gangs of the group."""
    shifts = dict(_grids(jobs, windows))
    if not shifts:
        for job in jobs:
            if job.time_shift is not None:
                _end(context, job, "its group is not expected to run faster with them any more")
        return
    # Without a measurement of the present group without shifts, there is nothing to compare with.
    incomparable = any(job.time_shift is not None and job.time_shift.group != group for job in jobs)
    for job in jobs:
        if (grid := shifts.get(job.job_id)) is None:
            if job.time_shift is not None:
                _end(context, job, "its steps fit no part of the period of its group")
            continue
        times, before = job.step_times, job.time_shift
        assert times is not None
        before_seconds = times.interval_seconds if before is None else before.before_seconds
        context.index.shift_steps(job, TimeShift(*grid, context.now_ns, before_seconds, incomparable, group))
    for job in jobs:
        if job.job_id in shifts:
            context.decide(job.job_id, "time-shift", in_words(job, jobs))


def _grids(jobs: list[Job], windows: list[Window | None]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the period and offset in ns of each gang with a window. All periods are exact parts of the common one."""
    longest = max((window.period_seconds for window in windows if window is not None), default=0.0)
    common_ns = -(-round(longest * 1e9) // PERIOD_PARTS) * PERIOD_PARTS
    for job, window in zip(jobs, windows, strict=True):
        if window is not None:
            period_ns = common_ns // round(longest / window.period_seconds)
            yield job.job_id, (period_ns, round(window.offset_seconds * 1e9) % period_ns)


def _end(context: CycleContext, job: Job, why: str) -> None:
    context.index.shift_steps(job, None)
    context.record(job.job_id, "time-shift", f"its steps begin at any time again: {why}")


def present(state: State, job: Job) -> str:
    """Return the time shift of a running gang, as a part of a sentence; '' if it has none."""
    if job.time_shift is None:
        return ""
    return f"; {in_words(job, [state.jobs[one] for one in job.time_shift.group if one in state.jobs])}"


def in_words(job: Job, jobs: Iterable[Job]) -> str:
    """Return the time shift of a gang in words. jobs: the gangs of its group."""
    shift, own = job.time_shift, set(_uplinks(job))
    assert shift is not None
    others: Mapping[str, Job] = {
        one.job_id: one
        for one in jobs
        if one is not job and one.time_shift is not None and not own.isdisjoint(_uplinks(one))
    }
    every = f"{shift.period_ns / 1e6:.0f} ms"
    if not others:
        return f"its steps begin every {every}"
    name, other = next(iter(others.items()))
    assert other.time_shift is not None
    uplink = min(own & set(_uplinks(other)))
    after_ns = (shift.offset_ns - other.time_shift.offset_ns) % min(shift.period_ns, other.time_shift.period_ns)
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"its steps begin {after_ns / 1e6:.0f} ms after those of {name}{more} (every {every}), because both use the "
        f"uplink of {uplink}: so one communicates while the other computes"
    )
