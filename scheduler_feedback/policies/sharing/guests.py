"""Guests: pending jobs that start on slots that other jobs hold, if the rule of ``Policy.sharing`` allows it.

A guest and its host are shareable, the guest may be preempted, the host is running, and the node allows another job on
the slot (`Node.jobs_per_slot`). Declared memory and declared shares of the slot must fit. A guest uses slots of one
host only, and does not delay the head of the queue: it stays off slots that are reserved for another job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import left_at_full_speed_ns, remaining_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import place, types_for, where
from scheduler_feedback.policies.queue.preemption import place_without, stop_for
from scheduler_feedback.policies.queue.starting import release_reservation, start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit
from scheduler_feedback.policies.sharing import antman, gandiva, iadeep, muri, muxflow, sjf_bsbf
from scheduler_feedback.policies.sharing.case import Case, Chance
from scheduler_feedback.policies.sharing.matching import matched
from scheduler_feedback.policies.sharing.openings import MOST_TRIED, Key, Kind, Openings, next_of
from scheduler_feedback.policies.sharing.pair_speeds import news_of, refresh
from scheduler_feedback.policies.sharing.room_on_slots import fitting

RULES: dict[Sharing, Callable[[Case], Chance | None]] = {
    Sharing.GANDIVA: gandiva.chance,
    Sharing.ANTMAN: antman.chance,
    Sharing.SJF_BSBF: sjf_bsbf.chance,
    Sharing.MURI: muri.chance,
    Sharing.IADEEP: iadeep.chance,
    Sharing.MUXFLOW: muxflow.chance,
}
"""Function of each rule."""

GROUPED = frozenset({Sharing.GANDIVA, Sharing.ANTMAN, Sharing.SJF_BSBF, Sharing.IADEEP})
"""Rules whose lasting part depends only on the workloads and sizes of a pair."""

MOST_MATCHED = 32
"""Maximum number of jobs that are matched with hosts at once, so that a cycle stays short."""

MOST_HOSTS = 16
"""Maximum number of hosts of one job that the matching considers: those with the largest gain."""

MOST_NEWS = 10_000
"""Maximum length of the list of changed speeds of pairs, so that it does not grow for ever."""


def openings_of(index: SchedulingIndex) -> Openings:
    """Return the openings of the index; build them if it has none."""
    found = index.openings
    if len(news := news_of(index.state)) > MOST_NEWS:
        news.clear()
        found = None  # it has read a part of the list
    if found is None:
        rule = index.state.policy.sharing
        timed = rule is Sharing.SJF_BSBF
        possible = sjf_bsbf.possible if timed else RULES[rule]
        found = index.openings = Openings(index, possible, rule in GROUPED, timed)
    return found


def start_guests(context: CycleContext) -> None:
    """Start pending shareable jobs beside running ones, in queue order, each beside the host that the rule prefers."""
    state, index = context.state, context.index
    if state.policy.sharing.divides:
        refresh(context)  # the jobs were placed in queue order (``shares/part_placement``)
        index.touched.clear()
        return
    if state.frozen or state.policy.sharing is Sharing.NONE:
        return
    start_opportunistic(context)
    openings = openings_of(index)
    openings.update()
    if not openings.hosts or not openings.order:
        return
    if state.policy.sharing is Sharing.SJF_BSBF:
        _start_by_time(context, openings)
    elif state.policy.sharing is Sharing.MUXFLOW:
        _start_by_matching(context, openings)
    else:
        _start_by_kind(context, openings)


def _start_by_kind(context: CycleContext, openings: Openings) -> None:
    """Start guests if the rule does not depend on time: all jobs of one kind may join the same hosts."""
    state = context.state
    if (mark := openings.mark()) == openings.settled:
        return
    known = [(key, openings.kinds[number]) for key, number in openings.order[: 2 * MOST_TRIED]]
    width = MOST_TRIED
    trying = [(key, kind) for key, kind in known[:width] if openings.chances(state.jobs[key[-1]], kind)]
    if not trying:
        openings.settled = mark
    heapify(trying)
    while trying:
        key, kind = heappop(trying)
        job = state.jobs[key[-1]]
        if openings.kind_of_pending(job.job_id) == kind and _may_start(context, job):
            found = _best(context, job, openings.chances(job, kind), 0)
            if found is None:
                continue  # no job of this kind finds a host
            _start(context, job, *found)
            openings.update()
            if kind not in openings.lines and width < len(known):  # all of them have started: the next kind is tried
                after, following_kind = known[width]
                width += 1
                if openings.chances(state.jobs[after[-1]], following_kind):
                    heappush(trying, (after, following_kind))
            if state.policy.sharing is Sharing.MURI:  # the larger group may suit another job
                trying = _after(openings, [one for _, one in known[:width]], key)
                heapify(trying)
                continue
        following = next_of(openings.lines.get(kind, []), key)
        if following is not None:
            heappush(trying, (following, kind))


def _after(openings: Openings, kinds: list[Kind], key: Key) -> list[tuple[Key, Kind]]:
    """Return the next job of each kind behind this key, if there are running jobs that it may join."""
    found: list[tuple[Key, Kind]] = []
    for kind in kinds:
        following = next_of(openings.lines.get(kind, []), key)
        if following is not None and openings.chances(openings.index.state.jobs[following[-1]], kind):
            found.append((following, kind))
    return found


def _start_by_time(context: CycleContext, openings: Openings) -> None:
    """Start guests if the rule compares expected ends. ahead: ranks of all jobs before one in the queue."""
    state, index = context.state, context.index
    if (mark := openings.mark()) == openings.settled:
        return
    kinds = [(openings.kinds[number], key) for key, number in openings.order[: 2 * MOST_TRIED]]
    live = {kind for kind, key in kinds if openings.chances(state.jobs[key[-1]], kind)}
    if not live:
        if len(kinds) == len(openings.order):
            openings.settled = mark
        return
    ahead = failures = 0
    for key in list(islice(index.line.order, 2 * MOST_TRIED)):
        job = state.jobs[key[-1]]
        kind = openings.kind_of_pending(job.job_id)
        if kind is not None and kind in live and _may_start(context, job):
            chances = openings.chances(job, kind)
            found = _best(context, job, chances, ahead) if chances else None
            if found is not None:
                _start(context, job, *found)
                openings.update()
                continue
        failures += kind is not None
        if failures >= MOST_TRIED:
            return
        ahead += job.spec.ranks


def _start_by_matching(context: CycleContext, openings: Openings) -> None:
    """Start guests on the hosts with which all of them together gain most. Repeat it while jobs start."""
    while (mark := openings.mark()) != openings.settled:
        keys = _with_chances(context, openings)
        if not keys:
            openings.settled = mark
            return
        jobs, options = _to_match(context, openings, keys)
        if not jobs:
            return
        best = [dict(sorted(one.items(), key=lambda item: (-item[1].gain, item[0]))[:MOST_HOSTS]) for one in options]
        pairs = matched([{name: chance.gain for name, chance in row.items()} for row in best])
        started = False
        for number, host_id in pairs.items():
            job, host = jobs[number], context.state.jobs[host_id]
            if (slots := fitting(context.index, job, host)) is not None and _may_start(context, job):
                _start(context, job, host, slots, best[number][host_id])
                started = True
        if not started:
            return
        openings.update()


def _with_chances(context: CycleContext, openings: Openings) -> list[tuple[Key, Kind]]:
    """Return the first pending jobs of the kinds that may join others, in queue order, each with its kind."""
    keys: list[tuple[Key, Kind]] = []
    for _, number in openings.order[:MOST_TRIED]:
        kind = openings.kinds[number]
        line = openings.lines[kind]
        if openings.chances(context.state.jobs[line[0][-1]], kind):
            keys += [(key, kind) for key in line[:MOST_MATCHED]]
    return sorted(keys)


def _to_match(
    context: CycleContext, openings: Openings, keys: list[tuple[Key, Kind]]
) -> tuple[list[Job], list[dict[str, Chance]]]:
    """Return those of the pending jobs that may start now, and the chances of each with its hosts."""
    jobs: list[Job] = []
    options: list[dict[str, Chance]] = []
    for key, kind in keys:
        job = context.state.jobs[key[-1]]
        if len(jobs) < MOST_MATCHED and _may_start(context, job):
            chances = _usable(context, job, openings.chances(job, kind))
            if chances:
                jobs.append(job)
                options.append(chances)
    return jobs, options


def _usable(context: CycleContext, job: Job, chances: Mapping[str, Chance | None]) -> dict[str, Chance]:
    """Return the chances with hosts of a GPU type that the job may use, without those on reserved slots."""
    state, index = context.state, context.index
    names = index.plan.topology.type_names
    allowed = {names[number] for number in types_for(index.plan, job, state.policy)}
    reserved = frozenset(state.reserved_slots if state.reserved_for != job.job_id else ())
    found = {}
    for host_id in sorted(chances):
        host, chance = state.jobs[host_id], chances[host_id]
        free = not reserved or reserved.isdisjoint([rank.slot for rank in host.ranks])
        if chance is not None and free and state.nodes[host.ranks[0].slot.node].gpu_type in allowed:
            found[host_id] = chance
    return found


def _may_start(context: CycleContext, job: Job) -> bool:
    return paused(context.state, job, context.now_ns) is None and not at_limit(context.index, job)


def _wait_seconds(index: SchedulingIndex, slots: int, now_ns: int) -> float:
    """Return the expected time until this many more slots have become free, in seconds."""
    for release in index.ends:
        slots -= len(release.slots)
        if slots <= 0:
            return max(release.at_ns - now_ns, 0) / 1e9
    return float("inf")


def _best(
    context: CycleContext, job: Job, chances: Mapping[str, Chance | None], ahead: int
) -> tuple[Job, tuple[Slot, ...], Chance] | None:
    """Return the host, its slots and the chance that the rule prefers; None if no host suits.

    chances: of the hosts that the job may join, by id; None if the chance depends on time. ahead: ranks of the jobs
    before it in the queue.
    """
    state, index, now_ns = context.state, context.index, context.now_ns
    rule, policy = RULES[state.policy.sharing], state.policy
    names = index.plan.topology.type_names
    allowed = {names[number] for number in types_for(index.plan, job, policy)}
    reserved = frozenset(state.reserved_slots if state.reserved_for != job.job_id else ())
    timed = policy.sharing is Sharing.SJF_BSBF
    mine = remaining_ns(policy, job) / 1e9 if timed else 0.0
    wait = _wait_seconds(index, ahead + job.spec.ranks, now_ns) if timed else 0.0
    best: tuple[Job, Chance] | None = None
    for host_id in sorted(chances):
        host, chance = state.jobs[host_id], chances[host_id]
        if chance is not None and best is not None and chance.gain <= best[1].gain:
            continue
        if state.nodes[host.ranks[0].slot.node].gpu_type not in allowed:
            continue
        if reserved and not reserved.isdisjoint([rank.slot for rank in host.ranks]):
            continue
        if chance is None:
            theirs = left_at_full_speed_ns(policy, host, now_ns) / 1e9
            chance = rule(Case(state, job, host, (), mine, theirs, wait))
        if chance is not None and (best is None or chance.gain > best[1].gain):
            best = (host, chance)
    if best is None:
        return None
    slots = fitting(index, job, best[0])
    return None if slots is None else (best[0], slots, best[1])


def _start(context: CycleContext, job: Job, host: Job, slots: tuple[Slot, ...], chance: Chance) -> None:
    state, index = context.state, context.index
    here = sorted({one for slot in slots for one in index.sharers.get(slot, ())})
    below = f"below {state.policy.separate_below:g}x"
    if state.policy.sharing is Sharing.MUXFLOW:
        below = f"{host.job_id} answers in more than {muxflow.milliseconds(muxflow.recall_seconds(host))}"
    elif job.spec.opportunistic:
        below = "its host becomes slower than 0.98"
    named = ", ".join((host.job_id, *(one for one in here if one != host.job_id)))
    why = f"shares {where(slots)} with {named}: {chance.why}; separated if {below}"
    head = state.reserved_for == job.job_id
    start(context, job, slots, "shares", why, tuple(here), chance.part)
    if head:
        release_reservation(context)
    for one in here:
        context.record(one, "shares", f"shares {where(slots)} with {job.job_id}: {chance.why}")
    refresh(context)


def _delays_nobody(context: CycleContext, job: Job, slots: set[Slot]) -> bool:
    """Return whether the job may start on these slots now without a delay of the head: as in EASY backfill."""
    state = context.state
    if state.reserved_for in (None, job.job_id) or state.reserved_from_ns is None:
        return state.reserved_for == job.job_id or context.index.line.order[0][-1] == job.job_id
    ends_ns = context.now_ns + remaining_ns(state.policy, job)
    return ends_ns <= state.reserved_from_ns or slots.isdisjoint(state.reserved_slots)


# --- opportunistic jobs ----------------------------------------------------------------------------------------------


def make_room(context: CycleContext) -> bool:
    """Stop opportunistic jobs that run alone on slots that the first pending job needs; return whether any is stopped.

    It comes before backfill, which would give the other slots to later jobs and so delay the first one.
    """
    state, index = context.state, context.index
    if not state.policy.sharing.opportunistic or state.frozen or state.reserved_for is None:
        return False
    head, alone = state.jobs[state.reserved_for], _alone(index)
    if not alone or paused(state, head, context.now_ns) is not None or at_limit(index, head):
        return False
    return bool(_displaced(context, head, alone))


def _alone(index: SchedulingIndex) -> list[Job]:
    """Return the opportunistic jobs that run on slots that no other job holds."""
    openings = openings_of(index)
    openings.update()
    return [index.state.jobs[one] for one in sorted(openings.alone)]


def _displaced(context: CycleContext, job: Job, alone: list[Job]) -> list[Job]:
    """Stop those of these opportunistic jobs with whose slots the pending job can start, and return them."""
    state, index = context.state, context.index
    slots = place_without(index, job, alone, state)
    if slots is None:
        return []
    used = set(slots)
    victims = [one for one in alone if not used.isdisjoint(rank.slot for rank in one.ranks)]
    if not victims or not _delays_nobody(context, job, used):
        return []
    for victim in victims:
        stop_for(context, victim, job)
    if any(victim.stop_reason is None for victim in victims):  # observe mode stops no job
        return []
    index.reserve(job, slots)
    if state.reserved_for == job.job_id:
        release_reservation(context)
    return victims


def start_opportunistic(context: CycleContext) -> None:
    """Start opportunistic jobs on idle slots, and stop those that run alone on slots that another job needs."""
    state, index = context.state, context.index
    if not state.policy.sharing.opportunistic:
        return
    alone = _alone(index)
    waiting = [state.jobs[key[-1]] for key in index.line.order]
    for job in waiting[:MOST_TRIED] if alone else ():
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        stopped = _displaced(context, job, alone)
        alone = [one for one in alone if one not in stopped]
    if any(not at_limit(index, job) for job in waiting):  # a job at its queue's limit needs no slots now
        return
    for job_id in sorted(index.opportunists, key=lambda one: (state.jobs[one].submitted_ns, one)):
        job = state.jobs[job_id]
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        if (found := place(index.plan, job, policy=state.policy)) is not None:
            start(context, job, found, "started", "opportunistic: no other job needs these slots")
