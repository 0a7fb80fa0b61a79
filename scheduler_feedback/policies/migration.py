"""Migration: what is best for a gang with a slow member, by what each would gain and cost.

s = step time now over step time without the suspect; p = probability that the slowness is the node's and lasts;
R = run time that is left at healthy speed; D = how long the fault is expected to last if nothing is done.

    benefit = p (s - 1) min(R, D/s)        cost = save + restart + queue        act if benefit > (1 + h) cost

Where others wait for slots, they get the slow ones that the gang leaves: of g ranks k move away, so (1 - k/g) of the
benefit is what the cluster gains; a gang on one node alone would only change places with another.

D is divided by s because a fault of D seconds of wall time slows only the work that gets done in it: its whole cost is
D (1 - 1/s). What can be done instead of staying, the cheapest of those that can be had:

    migrate   to free slots on healthy nodes; a swap, where only the slots on the accused nodes are exchanged
    shrink    an elastic gang goes on with its healthy members; costs R (n / healthy members - 1) more
    requeue   stop and wait for a healthy place; costs the time until one is expected to be free more
    separate  for interference: the one of the two jobs that moves at the lower cost goes where the other is not
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.plan import Plan
from scheduler_feedback.core.state import Case, Decision, Mode, Policy, State
from scheduler_feedback.core.turn import Turn, nanoseconds, span
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.policies.backfill import reserve
from scheduler_feedback.policies.estimate import healthy_end_ns, lasts_yet_seconds, loss_seconds
from scheduler_feedback.policies.ledger import Ledger, ledger_of
from scheduler_feedback.policies.placement import place, where
from scheduler_feedback.policies.quarantine import ACCUSING, hold_against, in_words, others_want


@dataclass(frozen=True, slots=True)
class CostTest:
    """The terms of the decision, in seconds where they are times.

    save_seconds: the grace, an upper bound. restart_seconds: the user's estimate. measured_seconds: what the gang's
    last move really took, from the decision to its first step; it stands for save and restart where it is known.
    share: of the gain that is left when those that wait get the slow slots.
    """

    probability: float
    slowdown: float
    remaining_seconds: float
    persistence_seconds: float
    save_seconds: float
    restart_seconds: float
    queue_seconds: float
    margin: float
    measured_seconds: float | None = None
    share: float = 1.0

    @property
    def benefit_seconds(self) -> float:
        lost = loss_seconds(self.slowdown, self.remaining_seconds, self.persistence_seconds)
        return self.probability * self.share * lost

    @property
    def cost_seconds(self) -> float:
        if self.measured_seconds is not None:
            return self.measured_seconds + self.queue_seconds
        return self.save_seconds + self.restart_seconds + self.queue_seconds

    @property
    def pays(self) -> bool:
        return self.benefit_seconds > (1 + self.margin) * self.cost_seconds

    def detail(self) -> tuple[tuple[str, str], ...]:
        """Every term, for the entry."""
        return (
            ("probability", f"{self.probability:.3f}"),
            ("slowdown", f"{self.slowdown:.3f}"),
            ("remaining_seconds", f"{self.remaining_seconds:.1f}"),
            ("persistence_seconds", f"{self.persistence_seconds:.1f}"),
            ("share", f"{self.share:.3f}"),
            ("benefit_seconds", f"{self.benefit_seconds:.1f}"),
            ("save_seconds", f"{self.save_seconds:.1f}"),
            ("restart_seconds", f"{self.restart_seconds:.1f}"),
            ("queue_seconds", f"{self.queue_seconds:.1f}"),
            ("measured_seconds", "none" if self.measured_seconds is None else f"{self.measured_seconds:.1f}"),
            ("cost_seconds", f"{self.cost_seconds:.1f}"),
            ("margin", f"{self.margin:.2f}"),
        )


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is best for the gang. code: one of ACTIONS, or why it stays, in one word. target: the new slots, by rank.

    swap: all that nobody accuses stay where they are.
    """

    code: str
    reason: str
    test: CostTest
    target: tuple[Slot, ...] = ()
    swap: bool = False

    def detail(self, verdict: Verdict) -> tuple[tuple[str, str], ...]:
        """The terms, and the alternatives that were weighed with what each is expected to cost."""
        move = f"{self.test.cost_seconds:.1f} s" + (f", to {where(self.target)}" if self.target else ", nowhere to go")
        return (
            ("verdict", verdict.verdict_id),
            *self.test.detail(),
            ("alternative stay", f"{self.test.benefit_seconds:.1f} s"),
            ("alternative migrate", move),
            *((("action", "swap" if self.swap else self.code),) if self.code in ACTIONS else ()),
        )


def judge_running_gangs(turn: Turn, ledger: Ledger) -> None:
    """Rule on every verdict that stands against a member of a running gang; act on it, or say why not, once."""
    plan = ledger.plan if turn.state.verdicts else None
    for verdict in list(turn.state.verdicts.values()):
        job = turn.state.jobs.get(verdict.gang)
        case = turn.state.cases.setdefault(verdict.verdict_id, Case())
        if (
            plan is None
            or job is None
            or job.state is not JobState.RUNNING
            or job.stop_reason is not None
            or (verdict.kind not in ACCUSING and not verdict.aggressor)
            or case.ruling in ACTIONS
            or case.ruling == "released"
        ):
            continue
        ruling = rule(turn.state, job, verdict, plan, turn.now_ns)
        if ruling.code == "separate":
            job, ruling = _cheaper_to_move(turn.state, job, verdict, ruling, plan, turn.now_ns)
        if ruling.code in ACTIONS:
            _migrate(turn, job, verdict, case, ruling)
        elif ruling.code != case.ruling:
            turn.decide(job.job_id, "stay", f"stays where it is: {ruling.reason}", ruling.detail(verdict))
            case.ruling, case.reason = ruling.code, ruling.reason


def rule(state: State, job: Job, verdict: Verdict, plan: Plan, now_ns: int) -> Ruling:
    """What is best for the gang. The plan is left as it was."""
    policy = state.policy
    confirmed = state.judged.get(verdict.verdict_id) is True
    test = cost_test(state, job, verdict, now_ns)
    apart = verdict.kind is Kind.INTERFERENCE and verdict.aggressor in state.jobs
    target = _target(state, job, plan, verdict if apart else None) or ()
    for code, stays, reason in (
        (
            "kind",
            verdict.kind is not Kind.STRAGGLER and not apart,
            f"a verdict of {verdict.kind.value} is no reason to move",
        ),
        (
            "cause",
            verdict.cause is Cause.UNKNOWN and not confirmed,
            "the cause is unknown, so it may not be the node's",
        ),
        (
            "confidence",
            verdict.confidence < policy.minimum_confidence and not confirmed,
            f"confidence {verdict.confidence:.2f} is below {policy.minimum_confidence:.2f}",
        ),
        ("restartable", not job.spec.restartable, "it did not declare that it can be restarted"),
        ("cooldown", _cooling_ns(policy, job, now_ns) > 0, _cooling(policy)),
        (
            "cost",
            not test.pays,
            f"staying is expected to cost {span(test.benefit_seconds)}, moving {span(test.cost_seconds)}",
        ),
    ):
        if stays:
            return Ruling(code, reason, test, target)
    if target:
        action = "separate" if apart else "migrate"
        return Ruling(action, _weighed(verdict, test), test, target, _kept(state, job, target))
    # What was started on a slow node was better off there than waiting; it is not stopped to wait again.
    knowingly = job.attempt_started_ns is not None and verdict.first_wall_ns <= job.attempt_started_ns
    for other in (_shrunk(state, job, test), None if knowingly else _requeued(state, job, test, now_ns)):
        if other is not None and other.test.pays and not apart:
            return replace(other, reason=_weighed(verdict, other.test))
    away = f"{verdict.node}" if not apart else f"those of {verdict.aggressor}"
    return Ruling("target", f"{job.spec.ranks} slots on healthy nodes other than {away} are not free", test)


ACTIONS = frozenset({"migrate", "separate", "shrink", "requeue"})


def _weighed(verdict: Verdict, test: CostTest) -> str:
    return (
        f"{in_words(verdict)} on {verdict.node}: staying is expected to cost {span(test.benefit_seconds)}, "
        f"moving {span(test.cost_seconds)}"
    )


def _kept(state: State, job: Job, target: tuple[Slot, ...]) -> bool:
    """Whether all healthy members stay where they are: only what is accused is exchanged."""
    accused, there = accused_nodes(state, job), set(target)
    return all(rank.slot in there for rank in job.ranks if rank.slot.node not in accused)


def _shrunk(state: State, job: Job, test: CostTest) -> Ruling | None:
    """The gang goes on with the members that nobody accuses; None where it may not be so small."""
    accused = accused_nodes(state, job)
    healthy = tuple(rank.slot for rank in job.ranks if rank.slot.node not in accused)
    if job.spec.min_ranks is None or job.spec.groups or not job.spec.min_ranks <= len(healthy) < len(job.ranks):
        return None
    longer = test.remaining_seconds * (len(job.ranks) / len(healthy) - 1)
    return Ruling("shrink", "", replace(test, queue_seconds=test.queue_seconds + longer), healthy)


def _requeued(state: State, job: Job, test: CostTest, now_ns: int) -> Ruling | None:
    """The gang waits for a healthy place; None where none can be foreseen."""
    ledger = ledger_of(state)
    avoided = (*accused_nodes(state, job), *(n for n in ledger.doubtful if state.nodes[n].state is NodeState.SUSPECT))
    mark = ledger.plan.checkpoint()
    ledger.plan.give(rank.slot for rank in job.ranks)
    ends = [end for end in ledger.ends if end.job_id != job.job_id]
    found = reserve(ledger.plan, ends, replace(job, excluded_nodes=avoided), now_ns, state.policy)
    ledger.plan.rollback(mark)
    if found is None:
        return None
    # Those that wait already come first: it is not counted on before they have been served.
    waits = (found.from_ns - now_ns) / 1e9 + sum(p.length_ns for p in ledger.line.places.values()) / 1e9
    return Ruling("requeue", "", replace(test, queue_seconds=test.queue_seconds + waits))


def cost_test(state: State, job: Job, verdict: Verdict, now_ns: int) -> CostTest:
    """The terms for this gang and verdict. p is the verdict's confidence, or 1 where an operator confirmed it."""
    behind = nanoseconds(lost_seconds(verdict, now_ns))
    node = state.nodes.get(verdict.node)
    measured = [
        decision.outcome_seconds
        for decision in state.decisions
        if decision.job_id == job.job_id and decision.applied and decision.outcome_seconds is not None
    ]
    return CostTest(
        probability=1.0 if state.judged.get(verdict.verdict_id) is True else verdict.confidence,
        slowdown=verdict.slowdown,
        remaining_seconds=(healthy_end_ns(state.policy, job, now_ns - behind) + behind - now_ns) / 1e9,
        persistence_seconds=lasts_yet_seconds(state.policy, verdict, node.doubted_ns if node else None, now_ns),
        save_seconds=job.spec.grace_seconds,
        restart_seconds=job.spec.restart_cost_seconds,
        queue_seconds=0.0,
        margin=state.policy.migration_margin,
        measured_seconds=measured[-1] if measured else None,
        share=_share(state, job, node) if node is not None and verdict.kind is Kind.STRAGGLER else 1.0,
    )


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


def _cooling_ns(policy: Policy, job: Job, now_ns: int) -> int:
    if job.last_migration_ns is None:
        return 0
    return max(job.last_migration_ns + nanoseconds(policy.migration_cooldown_seconds) - now_ns, 0)


def _cooling(policy: Policy) -> str:
    return f"it was moved less than {span(policy.migration_cooldown_seconds)} ago"


def _target(state: State, job: Job, plan: Plan, disturbed: Verdict | None) -> tuple[Slot, ...] | None:
    """Where the gang could go now: free slots and those of its own that no verdict accuses, on no suspect node.

    disturbed: of interference: it must share no rack (no node, where racks are not known) with the other job.
    """
    avoided = accused_nodes(state, job)
    if disturbed is not None:
        avoided = (*avoided, *_around(state, state.jobs[disturbed.aggressor]))
    mark = plan.checkpoint()
    try:
        plan.give(rank.slot for rank in job.ranks)
        return place(plan, job, excluded=avoided, suspects=False, policy=state.policy)
    finally:
        plan.rollback(mark)


def _around(state: State, job: Job) -> tuple[str, ...]:
    """The nodes that share a rack with a job, or are its own."""
    own = {rank.slot.node for rank in job.ranks if rank.slot.node in state.nodes}
    racks = {(node.spine, node.rack) for name in own if (node := state.nodes[name]).rack}
    inside = (n.name for n in state.nodes.values() if n.name in own or (n.rack and (n.spine, n.rack) in racks))
    return tuple(sorted(inside))


def _cheaper_to_move(
    state: State, job: Job, verdict: Verdict, ruling: Ruling, plan: Plan, now_ns: int
) -> tuple[Job, Ruling]:
    """Of two that disturb each other, the one that moves at the lower cost in GPU-seconds, with its place."""
    other = state.jobs[verdict.aggressor]
    movable = other.state is JobState.RUNNING and other.stop_reason is None and other.spec.restartable
    if not movable or _cooling_ns(state.policy, other, now_ns) > 0:
        return job, ruling
    test = replace(
        ruling.test,
        save_seconds=other.spec.grace_seconds,
        restart_seconds=other.spec.restart_cost_seconds,
        measured_seconds=None,
    )
    target = _target(state, other, plan, replace(verdict, aggressor=job.job_id))
    if not target or test.cost_seconds * len(other.ranks) >= ruling.test.cost_seconds * len(job.ranks):
        return job, ruling
    return other, replace(ruling, test=test, target=target, swap=False)


def accused_nodes(state: State, job: Job) -> tuple[str, ...]:
    """The nodes that the gang's own standing verdicts name, by name."""
    return tuple(sorted({v.node for v in state.verdicts.values() if v.gang == job.job_id and v.kind in ACCUSING}))


_WORDS = {
    "migrate": "move",
    "separate": "move away from the other",
    "shrink": "go on with fewer ranks",
    "requeue": "wait for another place",
}


def _migrate(turn: Turn, job: Job, verdict: Verdict, case: Case, ruling: Ruling) -> None:
    state = turn.state
    case.reason, words = ruling.reason, _WORDS[ruling.code]
    if state.frozen:
        if case.ruling != "frozen":
            case.ruling = "frozen"
            turn.decide(
                job.job_id,
                ruling.code,
                f"would move, but actions are frozen: {ruling.reason}",
                ruling.detail(verdict),
                "frozen",
            )
        return
    case.ruling = ruling.code
    applied = state.policy.mode is Mode.ACT
    state.decision_count += 1
    state.decisions.append(
        Decision(
            decision_id=f"d-{state.decision_count:06d}",
            job_id=job.job_id,
            verdict_id=verdict.verdict_id,
            wall_ns=turn.now_ns,
            applied=applied,
            predicted_gain_seconds=ruling.test.benefit_seconds - ruling.test.cost_seconds,
            slowdown=verdict.slowdown,
            cost_seconds=ruling.test.cost_seconds,
            attempt=job.attempt,
            fault_cost_seconds=lost_seconds(verdict, turn.now_ns),
        )
    )
    if not applied:
        turn.decide(job.job_id, ruling.code, f"would {words}: {ruling.reason}", ruling.detail(verdict), "observed")
        return
    turn.decide(job.job_id, ruling.code, f"is to {words}: {ruling.reason}", ruling.detail(verdict))
    job.stop_reason = StopReason.MIGRATE
    job.last_migration_ns = turn.now_ns
    job.migrations += 1
    job.excluded_nodes = accused_nodes(state, job)
    job.claim = list(ruling.target)
    ledger_of(state).file(job)
    node = state.nodes.get(verdict.node)
    if (
        verdict.kind in ACCUSING
        and node is not None
        and node.state in (NodeState.HEALTHY, NodeState.SUSPECT, NodeState.PROBATION)
    ):
        hold_against(turn, node, verdict, f"{job.job_id} moves away: {in_words(verdict)}")


# --- scoring ---------------------------------------------------------------------------------------------------------


def score_observed(turn: Turn, verdict: Verdict, why: str) -> None:
    """A verdict stands no more: what the fault really cost a gang that observe mode left where it was."""
    for decision in turn.state.decisions:
        if decision.verdict_id == verdict.verdict_id and not decision.applied and decision.outcome_seconds is None:
            decision.outcome_seconds = max(
                lost_seconds(verdict, turn.now_ns) - lost_seconds(verdict, decision.wall_ns), 0.0
            )
            turn.tell(
                decision.job_id,
                "scored",
                f"it was not moved, and staying has cost {span(decision.outcome_seconds)} ({why}); "
                f"moving would have cost {span(decision.cost_seconds)}",
                _score_detail(decision),
            )


def score_applied(turn: Turn, job: Job, first_step_ns: int) -> None:
    """The gang made its first step after a move: what the move really took, from the decision on."""
    for decision in turn.state.decisions:
        if (
            decision.job_id == job.job_id
            and decision.applied
            and decision.outcome_seconds is None
            and decision.attempt < job.attempt
        ):
            decision.outcome_seconds = max(first_step_ns - decision.wall_ns, 0) / 1e9
            ended_ns = job.attempt_ended_ns if job.attempt_ended_ns is not None else decision.wall_ns
            turn.tell(
                job.job_id,
                "scored",
                f"moving took {span(decision.outcome_seconds)}, {span(decision.cost_seconds)} were expected",
                (
                    *_score_detail(decision),
                    ("save_seconds", f"{max(ended_ns - decision.wall_ns, 0) / 1e9:.1f}"),
                    ("restart_seconds", f"{max(first_step_ns - ended_ns, 0) / 1e9:.1f}"),
                ),
            )


def _score_detail(decision: Decision) -> tuple[tuple[str, str], ...]:
    return (
        ("decision", decision.decision_id),
        ("verdict", decision.verdict_id),
        ("expected_cost_seconds", f"{decision.cost_seconds:.1f}"),
        ("expected_gain_seconds", f"{decision.predicted_gain_seconds:.1f}"),
        ("outcome_seconds", f"{decision.outcome_seconds:.1f}"),
        ("fault_cost_before_seconds", f"{decision.fault_cost_seconds:.1f}"),
    )
