"""Move cost: the cost of a fault to a gang that stays, compared with the cost of stopping and restarting it elsewhere.

s = step time now / step time without the suspect node; p = probability that the node causes the slowdown and that it
lasts; R = remaining run time at healthy speed; D = expected duration of the fault if nothing is done; h = margin;
E = expected value.

    benefit = p (s - 1) E min(R, D/s)     cost = save + unsaved + restart + queue     act if benefit > (1 + h) cost

If other jobs are pending, they get the slow slots that the gang leaves. If k of g ranks move, the cluster gains
(1 - k/g) of the benefit. A gang on a single node would only change places with another job.

If R is known from similar jobs (history), the mean is taken over the distribution of their run times. With their usual
run time alone, a gang near its end would be moved for work that few jobs of its kind still have left.

D is divided by s because a fault of D seconds of wall time slows only the work done in it: its whole cost is
D (1 - 1/s).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.durations import nanoseconds, span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.core.verdict import Kind, Verdict
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import (
    healthy_end_ns,
    lasts_yet_seconds,
    slow_since_ns,
    work_done,
)
from scheduler_feedback.policies.nodes.quarantine import others_want
from scheduler_feedback.policies.remediation.patience import (
    Course,
    best_wait,
    course,
    fault_goes_on,
    gang_goes_on,
    known_to_go_on,
)


@dataclass(frozen=True, slots=True)
class CostTest:
    """Values from which the cost and the benefit of a move of the gang are computed.

    save_seconds: duration of a save as declared by the user, else the time allowed for it. unsaved_seconds: work since
    the last checkpoint, for a gang that does not save on request. restart_seconds: the user's estimate.
    measured_seconds: duration of the gang's last move, from the decision to its first step; replaces save and restart
    if known. share: share of the benefit that remains if pending jobs get the slow slots. exposed_seconds: work, at
    healthy speed, that is expected during the rest of the fault: E min(R, D/s). course: probabilities that the fault
    and the gang end soon (``patience``); empty if the gang must move without waiting for that.
    """

    probability: float
    slowdown: float
    remaining_seconds: float
    persistence_seconds: float
    exposed_seconds: float
    save_seconds: float
    restart_seconds: float
    queue_seconds: float
    margin: float
    measured_seconds: float | None = None
    share: float = 1.0
    unsaved_seconds: float = 0.0
    course: Course = ()

    @property
    def benefit_seconds(self) -> float:
        return self.probability * self.share * max(self.slowdown - 1, 0.0) * self.exposed_seconds

    @property
    def cost_seconds(self) -> float:
        moving = self.save_seconds + self.restart_seconds if self.measured_seconds is None else self.measured_seconds
        return self.unsaved_seconds + moving + self.queue_seconds

    @property
    def net_seconds(self) -> float:
        """Return the expected benefit of a move minus its cost, in seconds."""
        return self.benefit_seconds - self.cost_seconds

    @property
    def gains(self) -> bool:
        """Return whether the expected benefit of a move now exceeds its cost by the policy's margin."""
        return self.benefit_seconds > (1 + self.margin) * self.cost_seconds

    @property
    def wait(self) -> tuple[float, float] | None:
        """Return (best wait before a move, expected cost with that wait), in seconds; None if no wait is better."""
        lost_in_a_second = self.probability * self.share * (1 - 1 / self.slowdown) if self.slowdown > 1 else 0.0
        return best_wait(self.course, lost_in_a_second, self.cost_seconds)

    @property
    def pays(self) -> bool:
        return self.gains and self.wait is None

    def detail(self) -> tuple[tuple[str, str], ...]:
        """Return all values as (name, text), for the log entry."""
        return (
            ("probability", f"{self.probability:.3f}"),
            ("slowdown", f"{self.slowdown:.3f}"),
            ("remaining_seconds", f"{self.remaining_seconds:.1f}"),
            ("persistence_seconds", f"{self.persistence_seconds:.1f}"),
            ("exposed_seconds", f"{self.exposed_seconds:.1f}"),
            ("share", f"{self.share:.3f}"),
            ("benefit_seconds", f"{self.benefit_seconds:.1f}"),
            ("save_seconds", f"{self.save_seconds:.1f}"),
            ("unsaved_seconds", f"{self.unsaved_seconds:.1f}"),
            ("restart_seconds", f"{self.restart_seconds:.1f}"),
            ("queue_seconds", f"{self.queue_seconds:.1f}"),
            ("measured_seconds", "none" if self.measured_seconds is None else f"{self.measured_seconds:.1f}"),
            ("cost_seconds", f"{self.cost_seconds:.1f}"),
            ("margin", f"{self.margin:.2f}"),
        )


def cost_test(state: State, job: Job, verdict: Verdict, now_ns: int) -> CostTest:
    """Return the cost and benefit of a move for this gang and verdict. A confirmed verdict has probability 1."""
    behind = nanoseconds(lost_seconds(verdict, now_ns))
    node = state.nodes.get(verdict.node)
    remaining = (healthy_end_ns(state.policy, job, now_ns - behind) + behind - now_ns) / 1e9
    persistence = lasts_yet_seconds(state.policy, verdict, node.doubted_ns if node else None, now_ns)
    return CostTest(
        probability=1.0 if state.judged.get(verdict.verdict_id) is True else verdict.confidence,
        slowdown=verdict.slowdown,
        remaining_seconds=remaining,
        persistence_seconds=persistence,
        exposed_seconds=_exposed_seconds(
            state, job, remaining, persistence / max(verdict.slowdown, 1.0), now_ns - behind
        ),
        save_seconds=save_seconds(job),
        restart_seconds=job.spec.restart_cost_seconds,
        queue_seconds=0.0,
        margin=state.policy.migration_margin,
        measured_seconds=measured_seconds(state, job),
        unsaved_seconds=unsaved_seconds(job, now_ns),
        share=_share(state, job, node) if node is not None and verdict.kind is Kind.STRAGGLER else 1.0,
    )


def with_course(state: State, job: Job, verdict: Verdict, test: CostTest, now_ns: int) -> CostTest:
    """Add the probabilities that fault and gang end soon. A confirmed verdict gets none, so the gang does not wait."""
    if state.judged.get(verdict.verdict_id) is True or test.slowdown <= 1:
        return test
    behind_ns = now_ns - nanoseconds(lost_seconds(verdict, now_ns))
    runs_on = gang_goes_on(state, job, test.remaining_seconds, behind_ns)
    whole: float = test.persistence_seconds
    lasts_on: Callable[[float], float] = known_to_go_on
    if verdict.lasts_seconds is None:
        node = state.nodes.get(verdict.node)
        since_ns = slow_since_ns(verdict, node.doubted_ns if node is not None else None)
        age = max(now_ns - since_ns, 0) / 1e9
        whole, lasts_on = math.inf, fault_goes_on(age, state.policy.expected_persistence_seconds)
    return replace(test, course=course(lasts_on, runs_on, test.slowdown, whole))


def _exposed_seconds(state: State, job: Job, remaining_seconds: float, most_seconds: float, then_ns: int) -> float:
    """Return how many more seconds the gang is expected to run, where more than most_seconds counts as most_seconds.

    then_ns: time at which the gang would have reached its present progress if it had not been slowed down.
    """
    if state.policy.estimates is not Estimates.HISTORY:
        return max(min(remaining_seconds, most_seconds), 0.0)
    done = work_done(job, then_ns)
    limit = job.spec.time_limit_seconds
    if limit is not None and done < limit:  # a job past its limit is not killed: the limit then predicts nothing
        most_seconds = min(most_seconds, limit - done)
    return runtime_history.answers_of(state).yet_within(job.spec, done, most_seconds)


def _share(state: State, job: Job, node: Node) -> float:
    """Return the share of a move's benefit that is a gain for the whole cluster.

    If another job wants the slow node, that job then runs slowly on those slots. So only the share of the gang's ranks
    on healthy nodes is a gain. If no job wants the slow node, the share is 1.
    """
    if not others_want(state, node):
        return 1.0
    accused = accused_nodes(state, job)
    return 1 - sum(rank.slot.node in accused for rank in job.ranks) / len(job.ranks)


def lost_seconds(verdict: Verdict, now_ns: int) -> float:
    """Return the seconds that the fault has cost the gang so far."""
    if verdict.slowdown <= 1:
        return 0.0
    return max(now_ns - verdict.first_wall_ns, 0) / 1e9 * (1 - 1 / verdict.slowdown)


def save_seconds(job: Job) -> float:
    """Return the seconds that a checkpoint takes: as declared by the user, else the time allowed for it."""
    spec = job.spec
    return min(spec.checkpoint_cost_seconds, spec.stop_seconds) if spec.checkpoint_cost_seconds else spec.stop_seconds


def unsaved_seconds(job: Job, now_ns: int) -> float:
    """Return the seconds of work since the gang's last periodic checkpoint; 0 for a gang that saves on request."""
    if not job.spec.checkpoint_interval_seconds or job.spec.checkpoint_command or job.attempt_started_ns is None:
        return 0.0
    return (now_ns - job.attempt_started_ns) / 1e9 % job.spec.checkpoint_interval_seconds


def moving_seconds(state: State, job: Job, now_ns: int) -> float:
    """Return the seconds that a stop and a restart cost the gang, including its unsaved work."""
    measured = measured_seconds(state, job)
    moving = save_seconds(job) + job.spec.restart_cost_seconds if measured is None else measured
    return unsaved_seconds(job, now_ns) + moving


def resizing_seconds(state: State, job: Job, now_ns: int) -> float:
    """Return the seconds that a stop and a restart with another number of ranks cost the gang."""
    return moving_seconds(state, job, now_ns) + job.spec.reshard_seconds


def recall_slot_seconds(state: State, job: Job) -> float:
    """Return the slot time in seconds that the gang is expected to lose if it is stopped at any time and starts again.

    It does not depend on the present time: half of a checkpoint interval counts as lost work.
    """
    measured = measured_seconds(state, job)
    lost = save_seconds(job) + job.spec.restart_cost_seconds if measured is None else measured
    if job.spec.checkpoint_interval_seconds and not job.spec.checkpoint_command:
        lost += job.spec.checkpoint_interval_seconds / 2
    return lost * len(job.ranks)


def measured_seconds(state: State, job: Job) -> float | None:
    """Return the seconds of the gang's last move, from the decision to the first step; None if it was never moved."""
    measured = [
        decision.outcome_seconds
        for decision in state.decisions
        if decision.job_id == job.job_id and decision.applied and decision.outcome_seconds is not None
    ]
    return measured[-1] if measured else None


def cooling_ns(policy: Policy, job: Job, now_ns: int) -> int:
    if job.last_migration_ns is None:
        return 0
    return max(job.last_migration_ns + nanoseconds(policy.migration_cooldown_seconds) - now_ns, 0)


def cooling(policy: Policy) -> str:
    return f"it was moved less than {span(policy.migration_cooldown_seconds)} ago"


def accused_nodes(state: State, job: Job) -> tuple[str, ...]:
    """Return the names of the nodes that the gang's active verdicts accuse."""
    return tuple(sorted({v.node for v in state.verdicts.values() if v.gang == job.job_id and v.kind in ACCUSING}))
