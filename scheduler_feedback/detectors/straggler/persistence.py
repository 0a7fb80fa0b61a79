"""Persistence: tests whether a slow rank without a known cause has been slow for long enough to accuse its hardware.

Healthy ranks have work of their own: a recompilation, a stall of the data loader, an asynchronous checkpoint, a popular
expert. In the step times such work looks like a new fault, but it ends and comes back. A fault lasts.
"""

from __future__ import annotations

import itertools

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.steps.shared_sequences import mates
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Case, slow_windows, times_its_usual
from scheduler_feedback.detectors.straggler.alarm_checks import OWN_PERIOD_HITS, OWN_PERIOD_STEPS
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, GangState, Spell
from scheduler_feedback.detectors.straggler.popular_experts import (
    POPULAR_WINDOWS,
    has_experts,
    has_slow_node,
    is_no_expert,
    longest_of_others,
    may_be_popular,
    same_expert_is_slow,
)
from scheduler_feedback.detectors.straggler.rotating_slowness import LEAST_SHARE, LEAST_WINDOWS, NODE_WINDOWS
from scheduler_feedback.detectors.straggler.slow_again import is_slow_again
from scheduler_feedback.detectors.straggler.slow_drift import DRIFT_SIGMAS, sigmas_of_drift

RETURNING_WINDOWS = 2 * INTERVAL_WINDOWS
"""A rank that is slow again and again, with short pauses, is accused only after at least this many windows."""

TIMES_THE_EARLIER = 2
"""If several ranks of a node are slow again, they are accused only after this many times the windows of their longest
earlier spell: stalls of a data loader come back."""

LEAST_FAULT_WINDOWS = 9
"""A rank that has just become slow, without a known cause, is *unknown* until it was slow in this many windows; twice
as many if the whole node is slow. Fitted by ``python -m benchmarks.traces.fit`` on seeds 33000 to 33479 and 35000 to
35299: this threshold has 2 errors on 53 slowdowns that ended, of which 6 were faults. On seeds 290000 to 290799, 50 of
70 reports after three slow windows were right, and all of 58 ranks that were slow in nine were at fault."""

ONE_STEP = 0.5
"""A single step explains the slowness of a rank if it contains at least this share of its excess. A fault that was
slow in nine of ten of a dozen windows has at most about a tenth of it in each."""

KEPT_SPELLS = 8
"""Number of newest spells that are kept for each rank."""


def doubt(watched: GangState, case: Case, shape: Shape, counters: bool = False) -> str:
    """Record the spell of an alarm that passed all checks, and return why the rank may still be healthy; '' if
    it has been slow for long enough.

    Call it only for an alarm without a known cause. counters: whether process counters are known, which would show a
    stall of the data loader.
    """
    spell = record(watched, case)
    period = spell_period(watched.spells[case.rank])
    if period and spell.windows * spell.window_steps < period:  # a longer spell is not periodic
        return f"it becomes slow about every {period} steps: periodic work of this rank, such as checkpoints"
    longer = has_slow_node(case) or _is_first(case)
    least = NODE_WINDOWS if longer and not counters else LEAST_WINDOWS
    slow = len(slow_windows(case.interval[-least:], case.rank))
    again = is_slow_again(watched, case)
    if slow < LEAST_SHARE * least and not again and not _keeps_returning(spell, case):
        return (
            f"it was slow in {slow} of the newest {least} windows: work of its own, such as a recompilation, a "
            "stall of its data loader or a checkpoint, looks the same until it ends"
        )
    if _is_one_step(case):
        return (
            "one step contains most of its lost time: work of its own, such as a recompilation, looks the same on a "
            "rank that drifts slightly"
        )
    if (drift := sigmas_of_drift(case)) < DRIFT_SIGMAS:
        return (
            f"since then it has deviated {drift:.2g} times as far as other ranks usually do: their times drift up and "
            "down slowly, too"
        )
    before, now = _spells_of_node(watched, case)
    if not _is_alone(case) and now < TIMES_THE_EARLIER * before:
        return (
            f"ranks of its node were slow for {before} windows before, and recovered: their data loader may stall, and "
            f"they have been slow for {now} windows now"
        )
    earlier = watched.spells[case.rank][:-1]
    before = max((one.lasted for one in earlier), default=0)
    if spell.windows <= before < NODE_WINDOWS and len(earlier) < OWN_PERIOD_HITS - 1 and not again and not counters:
        return (
            f"it was slow for {before} windows before, and recovered: periodic work of this rank looks the same, and "
            f"it has been slow for {spell.windows} windows now"
        )
    longest = longest_of_others(watched, case)
    if spell.windows <= longest:
        return (
            f"it has been slow for {spell.windows} windows, and another rank was slow for {longest} windows and "
            "recovered: the job's own work may slow one rank after the other"
        )
    return _doubt_of_expert(watched, case, shape)


def doubt_of_work(watched: GangState, case: Case, shape: Shape) -> str:
    """Record the spell of an alarm about a rank that only computes more, or only sleeps more (`Attribution.asleep`),
    and return why it may still be healthy; '' if nothing explains it.

    The rank of a popular expert needs more processor time, or sleeps while a device computes for it. If the agent has
    no counters of the device, it looks like a suspended process.
    """
    record(watched, case)
    return _doubt_of_expert(watched, case, shape)


def _doubt_of_expert(watched: GangState, case: Case, shape: Shape) -> str:
    """Return why the rank may compute a popular expert; '' if it does not."""
    if same_expert_is_slow(case, shape):
        return "the ranks that compute the same expert on other nodes are slower too: the expert is popular"
    if may_be_popular(watched, case, shape):
        return (
            "the job routes tokens to experts and does not report tokens: a popular expert looks the same for up to "
            f"{POPULAR_WINDOWS} windows"
        )
    return ""


def is_own_work(watched: GangState, case: Case, shape: Shape) -> bool:
    """Return whether the job's own work explains a rank in doubt as well as a fault does.

    Ranks that have just become slow, several ranks, ranks that were slow before and recovered, the first rank, and
    ranks of a job with experts that does not report tokens often have no fault. The ranks of one replica on one node
    count as one: they share their work and their hardware.
    """
    node = case.where.index[case.rank]
    replica = [rank for rank in mates(shape, case.rank).tolist() if case.where.index[rank] == node]
    returns = len(watched.spells[case.rank]) > 1 or longest_of_others(watched, case) > 0
    saves = _is_first(case) and case.where.layout_known  # else its number shows less about its work
    returns = returns or saves or _is_one_step(case)
    routed = not case.for_work and has_experts(shape) and not is_no_expert(case, shape)
    return returns or not case.alarmed <= {case.rank, *replica} or routed or _is_short(case)


def _is_short(case: Case) -> bool:
    """Return whether the rank became slow only a few windows ago. A recompilation or a stall of its data loader lasts
    as long. A rank that was slow from the start has neither."""
    if case.baseline.from_start[case.rank]:
        return False
    times = NODE_WINDOWS // LEAST_WINDOWS if has_slow_node(case) else 1
    return len(slow_windows(case.interval, case.rank)) < times * LEAST_FAULT_WINDOWS


def _is_first(case: Case) -> bool:
    """Return whether the rank is the first one, which often logs and saves for all, and was not slow from the start."""
    return case.rank == 0 and not case.baseline.from_start[0]


def record(watched: GangState, case: Case) -> Spell:
    """Add the alarm to the spells of its rank, or extend the spell that it continues. Return the spell."""
    rank = case.rank
    spells = watched.spells.setdefault(rank, [])
    since = int(watched.since[rank])
    if not spells or spells[-1].since != since:
        first = case.interval[0].window
        spells.append(Spell(since, watched.counted - len(case.interval), first.first_step, first.steps))
        for dropped in spells[:-KEPT_SPELLS]:
            watched.longest_dropped[rank] = max(dropped.windows, watched.longest_dropped.get(rank, 0))
        del spells[:-KEPT_SPELLS]
    spell = spells[-1]
    ago = next((n for n, judged in enumerate(reversed(case.interval)) if judged.sigmas[rank] >= HIT_SIGMAS), 0)
    spell.windows = spell.lasted = max(spell.lasted, watched.counted - ago - spell.first_window)
    return spell


def extend(watched: GangState, rank: int) -> None:
    """Extend the spell of a rank that is still slow, and whose verdict is certain."""
    spells = watched.spells.get(rank)
    if spells and spells[-1].since == int(watched.since[rank]) and watched.history[-1].sigmas[rank] >= HIT_SIGMAS:
        spells[-1].lasted = watched.counted - spells[-1].first_window


def spell_period(spells: list[Spell]) -> int:
    """Return the period, in steps, at which the spells begin; 0 if there are too few, or if they begin irregularly.

    A spell may be missing: then two spells are several periods apart. A window shows the step at which a spell begins
    with the precision of the window's length, and the distance of two spells with twice that.
    """
    if len(spells) < OWN_PERIOD_HITS:
        return 0
    begins = [spell.first_step for spell in spells]
    apart = [later - earlier for earlier, later in itertools.pairwise(begins)]
    period, slack = min(apart), 2 * max(spell.window_steps for spell in spells)
    if period < max(OWN_PERIOD_STEPS, 4 * slack):
        return 0  # too short to distinguish from chance
    off = (min(gap % period, -gap % period) for gap in apart)
    return period if all(one <= slack for one in off) else 0


def _keeps_returning(spell: Spell, case: Case) -> bool:
    """Return whether the rank, and no other rank of its node, has been slow in half of the windows for a long time.

    If all ranks of a node are slow again and again, their data loader may stall. The first rank may save in the
    background.
    """
    half = len(slow_windows(case.interval, case.rank)) >= INTERVAL_WINDOWS / 2
    return half and not _is_first(case) and _is_alone(case) and spell.windows >= RETURNING_WINDOWS


def _is_alone(case: Case) -> bool:
    """Return whether no other rank of the node is alarmed."""
    node = case.where.index == case.where.index[case.rank]
    return not any(node[rank] for rank in case.alarmed if rank != case.rank)


def _spells_of_node(watched: GangState, case: Case) -> tuple[int, int]:
    """Return the windows of the longest earlier spell of the node's alarmed ranks, however long ago, and those of their
    shortest present spell.

    A rank whose CUSUM does not fall to zero between two spells has one long spell. The other ranks show the pause.
    """
    now = watched.spells[case.rank][-1].windows
    ranks = [rank for rank in case.alarmed if case.where.index[rank] == case.where.index[case.rank]]
    # In a day, a loader has hundreds of stalls, and the longest is several times as long as most.
    before = min((watched.longest_dropped.get(rank, 0) for rank in ranks), default=0)
    for rank in ranks:
        since = int(watched.since[rank])
        for spell in watched.spells.get(rank, []):
            if spell.since == since:
                now = min(now, spell.windows)
            else:
                before = max(before, spell.windows)
    return before, now


def _is_one_step(case: Case) -> bool:
    """Return whether one step contains at least the share ONE_STEP of the rank's excess since the alarm began."""
    rank, windows = case.rank, [judged.window for judged in case.interval]
    usual = float(case.mean("compute")[rank]) / times_its_usual(case)
    excess = sum((window.compute[rank] - usual) * window.steps for window in windows)
    longest = max(window.peak[rank] for window in windows) - usual
    return len(windows) > 1 and bool(longest >= ONE_STEP * excess)
