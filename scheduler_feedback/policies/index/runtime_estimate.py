"""Estimates: how long a job will run, when a running one ends, what a slow member costs. Never a promise to kill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler_feedback.core.cycle_context import nanoseconds
from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.core.verdict import Verdict

# A job that runs over its estimate is given a tenth of its limit more, at least half a minute, and so on until it ends.
# (Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions", 2007, correct expired predictions
# upward by growing steps; a step in proportion to the limit keeps the number of corrections small for long jobs.)
_OVERRUN_SHARE = 0.1
_OVERRUN_LEAST_SECONDS = 30.0


# Where no one has promised anything, the first correction of an expired prediction is of the prediction's own size:
# run times are so widely spread that a job which has outlived its kind's usual time mostly runs as long again.
_PREDICTION_SHARE = 1.0


class Release(NamedTuple):
    """Slots that are expected to become free at an instant, and whose they are."""

    at_ns: int
    job_id: str
    slots: tuple[Slot, ...]


def limit_seconds(policy: Policy, job: Job) -> float:
    return policy.default_time_limit_seconds if job.spec.time_limit_seconds is None else job.spec.time_limit_seconds


def expected_seconds(policy: Policy, job: Job) -> float | None:
    """How long the job is expected to work in all, alone and at full speed; None where only its limit is known."""
    if policy.estimates is Estimates.EXACT:
        return job.spec.exact_seconds
    if policy.estimates is Estimates.HISTORY:
        return job.estimate_seconds
    return None


def done_seconds(job: Job) -> float:
    """Work that the next attempt need not do again."""
    if not job.spec.restartable:
        return 0.0
    return job.done_seconds or 0.0


def remaining_ns(policy: Policy, job: Job) -> int:
    """How long the job's next (or present) attempt is expected to run from its start (or last word) on.

    A restartable job resumes, so what it did before counts; where that is all that was expected, a correction is left.
    """
    expected = expected_seconds(policy, job)
    if expected is None:
        limit = nanoseconds(limit_seconds(policy, job))
        if not job.spec.restartable or not job.run_ns:
            return limit
        return max(limit - job.run_ns, 0) or _overrun_ns(limit)
    done = done_seconds(job)
    if not job.attempt:
        return nanoseconds(expected)
    if done >= expected:
        expected = _outlived(expected, done)
    began = job.attempt - (job.state in _HOLDING)
    restart = job.spec.restart_cost_seconds if began and job.progress_ns is None else 0.0
    left = expected - done
    return nanoseconds(restart + (left / job.speed if job.speed != 1.0 and job.state in _HOLDING else left))


def left_ns(policy: Policy, job: Job, now_ns: int) -> int:
    """How long the job is expected to run from now on, were it to run from now on."""
    if job.state in _HOLDING and job.attempt_started_ns is not None:
        return max(healthy_end_ns(policy, job, now_ns) - now_ns, 0)
    return remaining_ns(policy, job)


_HOLDING = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def _outlived(expected: float, done: float) -> float:
    """The prediction's first correction that is still to come."""
    expected = max(expected, _OVERRUN_LEAST_SECONDS)
    while expected <= done:
        expected *= 1 + _PREDICTION_SHARE
    return expected


def _overrun_ns(limit_ns: int) -> int:
    return max(round(limit_ns * _OVERRUN_SHARE), nanoseconds(_OVERRUN_LEAST_SECONDS))


def loss_seconds(slowdown: float, remaining_seconds: float, persistence_seconds: float) -> float:
    """Time that a gang loses if it stays with its slow member.

    slowdown s: step time over step time without the member. The work that is left takes (s - 1) R longer; but in a
    fault that lasts D seconds no more than D (1 - 1/s) are lost. The smaller of the two is (s - 1) min(R, D/s).
    """
    if slowdown <= 1 or remaining_seconds <= 0:
        return 0.0
    return min((slowdown - 1) * remaining_seconds, persistence_seconds * (1 - 1 / slowdown))


def persistence_seconds(policy: Policy, verdict: Verdict) -> float:
    """How long the fault is expected to last from its beginning on."""
    return policy.expected_persistence_seconds if verdict.lasts_seconds is None else verdict.lasts_seconds


def lasts_yet_seconds(policy: Policy, verdict: Verdict, doubted_ns: int | None, now_ns: int) -> float:
    """How long the fault is expected to last from now on.

    doubted_ns: since when its node has been slow without having been seen well again. Where nobody can tell, what has
    lasted is expected to last as long again: lives of faults are spread over minutes to weeks, and to wait until as
    much is lost as a move costs never loses more than twice what the best decision would (the rule of ski rental).
    """
    if verdict.lasts_seconds is not None:
        return max(verdict.lasts_seconds - max(now_ns - verdict.first_wall_ns, 0) / 1e9, 0.0)
    return max(policy.expected_persistence_seconds, (now_ns - slow_since_ns(verdict, doubted_ns)) / 1e9)


def slow_since_ns(verdict: Verdict, doubted_ns: int | None) -> int:
    """Since when what the verdict is about has been slow, without its node having been seen well in between."""
    return verdict.first_wall_ns if doubted_ns is None else min(doubted_ns, verdict.first_wall_ns)


def slowest(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    """Of each gang, the standing verdict with the largest slowdown."""
    worst: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.gang not in worst or verdict.slowdown > worst[verdict.gang].slowdown:
            worst[verdict.gang] = verdict
    return worst


def healthy_end_ns(policy: Policy, job: Job, now_ns: int) -> int:
    """When the running attempt would end if nothing slowed it: by its limit, moved on in steps where it has overrun."""
    assert job.attempt_started_ns is not None
    return _moved_on(policy, job, _reckoned_ns(policy, job), now_ns)


def _reckoned_ns(policy: Policy, job: Job) -> int:
    """When the attempt ends if it runs as expected from its start, or from when it last told how far it is."""
    assert job.attempt_started_ns is not None
    if job.progress_ns is None or policy.estimates is Estimates.LIMIT:
        return job.attempt_started_ns + remaining_ns(policy, job)
    return job.progress_ns + remaining_ns(policy, job)


def _moved_on(policy: Policy, job: Job, end_ns: int, now_ns: int) -> int:
    """The estimate, or the first of its corrections that is still to come."""
    if end_ns > now_ns:
        return end_ns
    if policy.estimates is Estimates.HISTORY and job.state is not JobState.STOPPING:
        begun_ns = job.attempt_started_ns or 0
        length = max(end_ns - begun_ns, nanoseconds(_OVERRUN_LEAST_SECONDS))
        while begun_ns + length <= now_ns:
            length *= 2
        return begun_ns + length
    step = _overrun_ns(nanoseconds(limit_seconds(policy, job)))
    return end_ns + step * ((now_ns - end_ns) // step + 1)


def end_ns(policy: Policy, job: Job, verdict: Verdict | None, now_ns: int) -> int:
    """When the attempt that holds slots is expected to free them.

    A standing verdict stretches what was left when the fault began.
    """
    assert job.attempt_started_ns is not None
    if job.state is JobState.STOPPING and job.stopping_ns is not None:
        return _moved_on(policy, job, job.stopping_ns + nanoseconds(job.spec.stop_seconds), now_ns)
    end = _reckoned_ns(policy, job)
    if verdict is not None:
        left_seconds = max(end - max(verdict.first_wall_ns, job.attempt_started_ns), 0) / 1e9
        end += nanoseconds(loss_seconds(verdict.slowdown, left_seconds, persistence_seconds(policy, verdict)))
    return _moved_on(policy, job, end, now_ns)


def job_releases(state: State, job: Job, now_ns: int, clear_ns: int = 0) -> list[Release]:
    """What the job, if it holds or claims slots, is expected to free and when.

    clear_ns: when the other gangs that still hold slots of its claim are expected to have gone.
    """
    found: list[Release] = []
    holding = job.state in _HOLDING
    if job.claim:
        pending = job.state is JobState.PENDING
        restart = max(now_ns, job.not_before_ns, clear_ns) if pending else end_ns(state.policy, job, None, now_ns)
        length = nanoseconds(job.spec.restart_cost_seconds) + _left_after_restart(state.policy, job)
        found.append(Release(restart + length, job.job_id, tuple(job.claim)))
    if holding and job.attempt_started_ns is not None:
        worst = None
        if state.verdicts:
            worst = slowest(v for v in state.verdicts.values() if v.gang == job.job_id).get(job.job_id)
        slots = tuple([rank.slot for rank in job.ranks])
        if job.claim:  # what it will go on holding is not freed
            claimed = set(job.claim)
            slots = tuple(slot for slot in slots if slot not in claimed)
        found.append(Release(end_ns(state.policy, job, worst, now_ns), job.job_id, slots))
    return found


def _left_after_restart(policy: Policy, job: Job) -> int:
    """What a gang on the move will still have to run once it has been restarted."""
    if job.state is JobState.PENDING or job.attempt_started_ns is None or job.stopping_ns is None:
        return remaining_ns(policy, job)
    return max(healthy_end_ns(policy, job, job.stopping_ns) - job.stopping_ns, 0)
