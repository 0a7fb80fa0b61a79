"""Estimates of run times, of the ends of running jobs, and of the cost of a slow rank. An estimate never ends a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.core.verdict import Verdict

# A job past its estimate gets a tenth of its limit more, at least half a minute, and so on until it ends.
# (Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions", 2007, correct expired predictions
# upward by growing steps; a step in proportion to the limit keeps the number of corrections small for long jobs.)
_OVERRUN_SHARE = 0.1
_OVERRUN_LEAST_SECONDS = 30.0


# An expired prediction from history is doubled: run times vary so much that a job past the usual time of its kind
# mostly runs as long again.
_PREDICTION_SHARE = 1.0


class Release(NamedTuple):
    """Slots of one job, and the instant at which they are expected to become free."""

    at_ns: int
    job_id: str
    slots: tuple[Slot, ...]


def limit_seconds(policy: Policy, job: Job) -> float:
    return policy.default_time_limit_seconds if job.spec.time_limit_seconds is None else job.spec.time_limit_seconds


def expected_seconds(policy: Policy, job: Job) -> float | None:
    """Return the job's expected total run time in seconds, without slowdown; None if only its time limit is known."""
    if policy.estimates is Estimates.EXACT:
        return job.spec.exact_seconds
    if policy.estimates is Estimates.HISTORY:
        return job.estimate_seconds
    return None


def done_seconds(job: Job) -> float:
    """Return the saved work in seconds, which the next attempt does not repeat; 0 for a job that is not restartable."""
    if not job.spec.restartable:
        return 0.0
    return job.done_seconds or 0.0


def work_done(job: Job, now_ns: int) -> float:
    """Return the job's work so far, with that of its running attempt, in seconds at full speed."""
    if not job.state.holds_slots or job.attempt_started_ns is None:
        return done_seconds(job)
    if job.progress_ns is not None:
        return (job.done_seconds or 0.0) + max(now_ns - job.progress_ns, 0) / 1e9 * job.speed
    restart = job.spec.restart_cost_seconds if job.attempt > 1 else 0.0
    return done_seconds(job) + max((now_ns - job.attempt_started_ns) / 1e9 - restart, 0.0) * job.speed


def remaining_ns(policy: Policy, job: Job) -> int:
    """Return the expected remaining run time of the job, in ns.

    The time counts from the last progress report of a running attempt, else from the start of the attempt. The saved
    work of a restartable job is subtracted. If the job has already run longer than estimated, the estimate is
    increased.
    """
    expected = expected_seconds(policy, job)
    if expected is None:
        limit, speed = nanoseconds(limit_seconds(policy, job)), type_speed(policy, job)
        used = (job.limit_used_ns or job.run_ns) if job.spec.restartable else 0  # older journals have run_ns only
        return round((max(limit - used, 0) or _overrun_ns(limit)) / speed)
    done = done_seconds(job)
    if not job.attempt:
        return nanoseconds(expected)
    if done >= expected:
        expected = _outlived(expected, done)
    began = job.attempt - (job.state in _HOLDING)
    restart = job.spec.restart_cost_seconds if began and job.progress_ns is None else 0.0
    left = expected - done
    return nanoseconds(restart + (left / job.speed if job.speed != 1.0 and job.state in _HOLDING else left))


def type_speed(policy: Policy, job: Job) -> float:
    """Return the given speed of the active attempt's GPU type, for which the time limit is scaled; 1 if none is given.

    A time limit does not depend on the number of ranks of an elastic gang.
    """
    if not (policy.throughput or job.spec.throughput) or job.state not in _HOLDING or not job.ranks:
        return 1.0
    return job.speed * job.spec.ranks / len(job.ranks)


def left_ns(policy: Policy, job: Job, now_ns: int) -> int:
    """Return the job's expected remaining run time in ns, as if it ran without interruption from now on."""
    if job.state in _HOLDING and job.attempt_started_ns is not None:
        return max(healthy_end_ns(policy, job, now_ns) - now_ns, 0)
    return remaining_ns(policy, job)


def left_at_full_speed_ns(policy: Policy, job: Job, now_ns: int) -> int:
    """Return the job's expected remaining run time in ns at speed 1, for which run times are estimated.

    Unlike `left_ns`, it does not depend on the number of ranks and the GPU type of the present attempt. So a gang does
    not change its place in the queue, and cause preemptions, only because it runs with fewer ranks.
    """
    left = left_ns(policy, job, now_ns)
    if job.state not in _HOLDING or job.speed == 1.0:
        return left
    expected = expected_seconds(policy, job)
    if expected is None:
        return round(left * type_speed(policy, job))
    attempt = nanoseconds(job.spec.restart_cost_seconds + max(expected - done_seconds(job), 0.0))
    return min(round(left * job.speed), attempt)  # a restart takes as long with more ranks


_HOLDING = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def _outlived(expected: float, done: float) -> float:
    """Return the predicted run time `expected`, doubled until it exceeds `done`, the work done. Both are in seconds."""
    expected = max(expected, _OVERRUN_LEAST_SECONDS)
    while expected <= done:
        expected *= 1 + _PREDICTION_SHARE
    return expected


def _overrun_ns(limit_ns: int) -> int:
    return max(round(limit_ns * _OVERRUN_SHARE), nanoseconds(_OVERRUN_LEAST_SECONDS))


def loss_seconds(slowdown: float, remaining_seconds: float, persistence_seconds: float) -> float:
    """Return the seconds that a gang loses if it continues with its slow rank.

    slowdown s: step time divided by the step time without the slow rank. The remaining work of R seconds takes (s - 1)
    R longer, but a fault that persists for D seconds costs at most D (1 - 1/s). The smaller of the two is (s - 1)
    min(R, D/s).
    """
    if slowdown <= 1 or remaining_seconds <= 0:
        return 0.0
    return min((slowdown - 1) * remaining_seconds, persistence_seconds * (1 - 1 / slowdown))


def persistence_seconds(policy: Policy, verdict: Verdict) -> float:
    """Return the expected total duration of the fault, in seconds."""
    return policy.expected_persistence_seconds if verdict.lasts_seconds is None else verdict.lasts_seconds


def lasts_yet_seconds(policy: Policy, verdict: Verdict, doubted_ns: int | None, now_ns: int) -> float:
    """Return the expected remaining duration of the fault, in seconds.

    doubted_ns: time since which the node has been slow without an observed recovery. A fault of unknown duration is
    expected to last as long again as it has lasted, because durations vary from minutes to weeks.
    """
    if verdict.lasts_seconds is not None:
        return max(verdict.lasts_seconds - max(now_ns - verdict.first_wall_ns, 0) / 1e9, 0.0)
    return max(policy.expected_persistence_seconds, (now_ns - slow_since_ns(verdict, doubted_ns)) / 1e9)


def slow_since_ns(verdict: Verdict, doubted_ns: int | None) -> int:
    """Return the time since which the accused node has been slow, without an observed recovery in between."""
    return verdict.first_wall_ns if doubted_ns is None else min(doubted_ns, verdict.first_wall_ns)


def slowest(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    """Return for each gang, by its id, the verdict with the largest slowdown."""
    worst: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.gang not in worst or verdict.slowdown > worst[verdict.gang].slowdown:
            worst[verdict.gang] = verdict
    return worst


def healthy_end_ns(policy: Policy, job: Job, now_ns: int) -> int:
    """Return when the attempt would end without a slowdown, in ns. The result is always after now_ns, even if the job
    has run longer than estimated."""
    assert job.attempt_started_ns is not None
    return _corrected_end_ns(policy, job, _estimated_end_ns(policy, job), now_ns)


def _estimated_end_ns(policy: Policy, job: Job) -> int:
    """Return the estimated end of the attempt: its start or last progress report plus the remaining run time."""
    assert job.attempt_started_ns is not None
    if job.progress_ns is None or policy.estimates is Estimates.LIMIT:
        return job.attempt_started_ns + remaining_ns(policy, job)
    return job.progress_ns + remaining_ns(policy, job)


def _corrected_end_ns(policy: Policy, job: Job, end_ns: int, now_ns: int) -> int:
    """Return the estimated end. An end that is already past is moved to a later time after now_ns."""
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
    """Return when the active attempt is expected to free its slots.

    If a verdict is active, the time that the fault costs the gang is added.
    """
    assert job.attempt_started_ns is not None
    if job.state is JobState.STOPPING and job.stopping_ns is not None:
        return _corrected_end_ns(policy, job, job.stopping_ns + nanoseconds(job.spec.stop_seconds), now_ns)
    end = _estimated_end_ns(policy, job)
    if verdict is not None:
        left_seconds = max(end - max(verdict.first_wall_ns, job.attempt_started_ns), 0) / 1e9
        end += nanoseconds(loss_seconds(verdict.slowdown, left_seconds, persistence_seconds(policy, verdict)))
    return _corrected_end_ns(policy, job, end, now_ns)


def job_releases(state: State, job: Job, now_ns: int, clear_ns: int = 0) -> list[Release]:
    """Return the slots that the job holds or has reserved, with the times at which they are expected to become free.

    clear_ns: for a pending job with a reservation, the time at which other gangs are expected to leave the reserved
    slots.
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
        if job.claim:  # slots that the job keeps for its restart are not released
            claimed = set(job.claim)
            slots = tuple(slot for slot in slots if slot not in claimed)
        found.append(Release(end_ns(state.policy, job, worst, now_ns), job.job_id, slots))
    return found


def _left_after_restart(policy: Policy, job: Job) -> int:
    """Return the job's expected run time after its restart, in ns, without the time that the restart itself takes."""
    if job.state is JobState.PENDING or job.attempt_started_ns is None or job.stopping_ns is None:
        return remaining_ns(policy, job)
    return max(healthy_end_ns(policy, job, job.stopping_ns) - job.stopping_ns, 0)
