"""Cost: what a fault costs a gang that stays, against what it costs to stop it and start it elsewhere.

s = step time now over step time without the suspect; p = probability that the slowness is the node's and lasts;
R = run time that is left at healthy speed; D = how long the fault is expected to last if nothing is done.

    benefit = p (s - 1) E min(R, D/s)     cost = save + unsaved + restart + queue     act if benefit > (1 + h) cost

Where others wait for slots, they get the slow ones that the gang leaves: of g ranks k move away, so (1 - k/g) of the
benefit is what the cluster gains; a gang on one node alone would only change places with another.

Where R is known from jobs alike (history), the mean is taken over how long they ran: with their usual length alone a
gang that is near its end as a rule would be moved for work that few of its kind have left.

D is divided by s because a fault of D seconds of wall time slows only the work that gets done in it: its whole cost is
D (1 - 1/s).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.cycle_context import nanoseconds, span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.core.verdict import Kind, Verdict
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import healthy_end_ns, lasts_yet_seconds, slow_since_ns
from scheduler_feedback.policies.nodes.quarantine import ACCUSING, others_want
from scheduler_feedback.policies.queue.order.fair import work_done
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
    """The terms of the decision, in seconds where they are times.

    save_seconds: what a save takes by the user's word, else the grace, an upper bound. unsaved_seconds: work since the
    last checkpoint of a gang that does not save when it is told. restart_seconds: the user's estimate.
    measured_seconds: what the gang's last move really took, from the decision to its first step; it stands for save and
    restart where it is known. share: of the gain that is left when those that wait get the slow slots.
    exposed_seconds: work, at healthy speed, that is expected to fall into what is left of the fault: E min(R, D/s).
    course: what may end by itself, and when (``patience``); empty where that is not to be waited for.
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
        """What is expected to be gained in all."""
        return self.benefit_seconds - self.cost_seconds

    @property
    def gains(self) -> bool:
        """Whether to move is better than to stay for good."""
        return self.benefit_seconds > (1 + self.margin) * self.cost_seconds

    @property
    def wait(self) -> tuple[float, float] | None:
        """How long it had better wait and see, and what that is expected to cost; None: not at all."""
        lost_in_a_second = self.probability * self.share * (1 - 1 / self.slowdown) if self.slowdown > 1 else 0.0
        return best_wait(self.course, lost_in_a_second, self.cost_seconds)

    @property
    def pays(self) -> bool:
        return self.gains and self.wait is None

    def detail(self) -> tuple[tuple[str, str], ...]:
        """Every term, for the entry."""
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
    """The terms for this gang and verdict. p is the verdict's confidence, or 1 where an operator confirmed it."""
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
    """The terms with what may end by itself. What an operator confirmed is not waited for."""
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
    """Of the work that is left, what is expected to be done in the next so many seconds of healthy work.

    then_ns: when it would have been as far as it is, had nothing slowed it.
    """
    if state.policy.estimates is not Estimates.HISTORY:
        return max(min(remaining_seconds, most_seconds), 0.0)
    done = work_done(job, then_ns)
    limit = job.spec.time_limit_seconds
    if limit is not None and done < limit:  # nobody is killed by it: beyond it it says nothing
        most_seconds = min(most_seconds, limit - done)
    return runtime_history.answers_of(state).yet_within(job.spec, done, most_seconds)


def _share(state: State, job: Job, node: Node) -> float:
    """Of what the gang would gain, the part that those that wait would not lose on the slots that it leaves."""
    if not others_want(state, node):
        return 1.0
    accused = accused_nodes(state, job)
    return 1 - sum(rank.slot.node in accused for rank in job.ranks) / len(job.ranks)


def lost_seconds(verdict: Verdict, now_ns: int) -> float:
    """What the fault has cost the gang since it began."""
    if verdict.slowdown <= 1:
        return 0.0
    return max(now_ns - verdict.first_wall_ns, 0) / 1e9 * (1 - 1 / verdict.slowdown)


def save_seconds(job: Job) -> float:
    """What a save takes: by its user's word, or at most the time that it has for it."""
    spec = job.spec
    return min(spec.checkpoint_cost_seconds, spec.stop_seconds) if spec.checkpoint_cost_seconds else spec.stop_seconds


def unsaved_seconds(job: Job, now_ns: int) -> float:
    """What came since its last checkpoint, where it saves on its own alone; 0 where it saves when it is told."""
    if not job.spec.checkpoint_interval_seconds or job.spec.checkpoint_command or job.attempt_started_ns is None:
        return 0.0
    return (now_ns - job.attempt_started_ns) / 1e9 % job.spec.checkpoint_interval_seconds


def moving_seconds(state: State, job: Job, now_ns: int) -> float:
    """What it takes the gang to be stopped and started again: as its last move was measured, else as it declared."""
    measured = measured_seconds(state, job)
    moving = save_seconds(job) + job.spec.restart_cost_seconds if measured is None else measured
    return unsaved_seconds(job, now_ns) + moving


def measured_seconds(state: State, job: Job) -> float | None:
    """What the gang's last move really took, from the decision to its first step; None: it was never moved so."""
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
    """The nodes that the gang's own standing verdicts name, by name."""
    return tuple(sorted({v.node for v in state.verdicts.values() if v.gang == job.job_id and v.kind in ACCUSING}))
