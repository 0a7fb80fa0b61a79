"""Mitigation options for a gang with a slow or hanging rank, compared by expected gain and cost.

    stay      costs only the fault's own cost; permanent, or a wait before a later move (``patience``)
    migrate   to free slots on healthy nodes, else to free spares, else to lent spares (the loss of their borrowers is
              added to the cost); a swap if it replaces only the accused slots
    separate  for interference: away from the other job, so that the two share no node and no rack
    shrink    an elastic gang continues with m of its n ranks, on healthy nodes; its remaining time R grows by R (n/m -
    1)
    requeue   stop and wait for healthy slots; the expected wait is added to the cost
    restart   for a hanging gang (``hang_restart``): away from the culprit's node, else on its own slots

The policy selects the option with the largest gain, among the options that are possible and pay
(``move_cost.CostTest``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from agent.schema.verdicts.kinds import MOVING, RESTARTING, SEPARATING
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.verdict import Cause, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.intake import external_jobs
from scheduler_feedback.policies.nodes.spares import borrowers
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.placement import place, still_usable, where
from scheduler_feedback.policies.remediation import hang_restart
from scheduler_feedback.policies.remediation.move_cost import (
    CostTest,
    accused_nodes,
    cooling,
    cooling_ns,
    cost_test,
    moving_seconds,
    save_seconds,
    unsaved_seconds,
    with_course,
)

ACTIONS = frozenset({"migrate", "separate", "shrink", "requeue", "restart"})


@dataclass(frozen=True, slots=True)
class Option:
    """Chosen option for a gang with an active verdict: an action, or the reason why the gang is not moved."""

    code: str
    """One of ACTIONS, or one word for the reason why the gang is not moved."""
    reason: str
    """Reason for the choice, in one sentence."""
    test: CostTest
    target: tuple[Slot, ...] = ()
    """New slots of the gang, one per rank; empty if it gets none."""
    swap: bool = False
    """Whether the move replaces only slots on accused nodes."""
    stopped: tuple[str, ...] = ()
    """Ids of the gangs that are stopped because the move needs slots of spare nodes that they use."""
    others: tuple[tuple[str, float], ...] = ()
    """Options that were compared and not chosen: (code, expected cost in seconds)."""
    in_place: bool = False
    """Whether the target is the gang's own slots, although one of their nodes is accused."""

    def detail(self, verdict: Verdict) -> tuple[tuple[str, str], ...]:
        """Return the compared values as (name, text), with the expected cost of each alternative, for the log entry."""
        move = f"{self.test.cost_seconds:.1f} s" + (f", to {where(self.target)}" if self.target else ", no free target")
        taken = self.code if self.code in ACTIONS else "migrate"
        return (
            ("verdict", verdict.verdict_id),
            *self.test.detail(),
            ("alternative stay", f"{self.test.benefit_seconds:.1f} s"),
            (f"alternative {taken}", move),
            *((f"alternative {code}", f"{cost:.1f} s") for code, cost in self.others),
            *((("give back spares", " ".join(self.stopped)),) if self.stopped else ()),
            *((("action", "swap" if self.swap else self.code),) if self.code in ACTIONS else ()),
        )


def choose_option(state: State, job: Job, verdict: Verdict, plan: Plan, now_ns: int) -> Option:
    """Return the best option for the gang with this verdict. The plan of free slots is unchanged afterwards."""
    confirmed = state.judged.get(verdict.verdict_id) is True
    test = cost_test(state, job, verdict, now_ns)
    apart = verdict.kind in SEPARATING and verdict.aggressor in state.jobs
    target, stopped = _target(state, _undiminished(job), plan, verdict if apart else None)
    if stopped:
        lost = sum(moving_seconds(state, state.jobs[one], now_ns) * len(state.jobs[one].ranks) for one in stopped)
        test = replace(test, queue_seconds=test.queue_seconds + lost / len(job.ranks))
    if verdict.kind in RESTARTING:
        return _of_hang(state, job, verdict, Option("restart", "", test, target, stopped=stopped), plan, now_ns)
    if (kept := _why_kept(state, job, verdict, test, confirmed, now_ns)) is not None:
        return Option(*kept, test, target)
    test = with_course(state, job, verdict, test, now_ns)
    found: list[Option] = []
    if target:
        code = "separate" if apart else "migrate"
        found.append(Option(code, "", test, target, _kept(state, job, target), stopped))
    if not apart:
        # A gang that was started on a known slow node is not requeued: starting there already was better than waiting.
        knowingly = job.attempt_started_ns is not None and verdict.first_wall_ns <= job.attempt_started_ns
        found += [one for one in (_shrunk(state, job, test, plan),) if one is not None]
        found += [one for one in (None if target or knowingly else _requeued(state, job, test, now_ns),) if one]
    gaining = [one for one in found if one.test.gains]
    paying = [one for one in gaining if one.test.pays]
    if gaining and not paying:
        return _waits(min(gaining, key=lambda one: one.test.cost_seconds))
    if not paying:
        away = f"{verdict.node}" if not apart else f"those of {verdict.aggressor}"
        return Option("target", _no_target(job, away), test)
    best = max(paying, key=lambda one: one.test.net_seconds)
    others = tuple((one.code, one.test.cost_seconds) for one in found if one is not best)
    return replace(best, reason=weighed(verdict, best.test), others=others)


def code_regardless_of_slots(state: State, job: Job, verdict: Verdict, now_ns: int) -> str:
    """Return the code of the option that ``choose_option`` would return, if no free slot could change it; else ''.

    The search for slots takes most of the time of ``choose_option``, and most gangs with a verdict stay where they are.
    """
    confirmed = state.judged.get(verdict.verdict_id) is True
    if verdict.kind in RESTARTING:
        found = hang_restart.why_not_restarted(state.policy, job, verdict, confirmed, now_ns)
        return "" if found is None else found[0]
    # Stopping other gangs for their slots would only add to the cost of a move.
    kept = _why_kept(state, job, verdict, cost_test(state, job, verdict, now_ns), confirmed, now_ns)
    return "" if kept is None else kept[0]


def _why_kept(
    state: State, job: Job, verdict: Verdict, test: CostTest, confirmed: bool, now_ns: int
) -> tuple[str, str] | None:
    """Return why the gang is not moved, whatever slots are free, as (code, text); None if there is no such reason.

    confirmed: an operator has confirmed the verdict.
    """
    stranger = verdict.kind in SEPARATING and verdict.aggressor not in state.jobs
    if (missing := _no_reason(verdict) if stranger else lacks(verdict, state.policy, confirmed)) is not None:
        return missing
    if not job.spec.restartable:
        return "restartable", "it is not declared restartable"
    if cooling_ns(state.policy, job, now_ns) > 0:
        return "cooldown", cooling(state.policy)
    if not test.gains:
        costs = f"{span(test.benefit_seconds)}, moving {span(test.cost_seconds)}"
        return "cost", f"staying is expected to cost {costs}"
    return None


def _of_hang(state: State, job: Job, verdict: Verdict, restart: Option, plan: Plan, now_ns: int) -> Option:
    """Return the first possible option for a hanging gang: restart elsewhere, shrink, requeue, or restart in place.

    restart: the option to restart on other slots; its target is empty if none are free.
    """
    test = restart.test
    confirmed = state.judged.get(verdict.verdict_id) is True
    if (kept := hang_restart.why_not_restarted(state.policy, job, verdict, confirmed, now_ns)) is not None:
        code, why, _ = kept
        words = hang_restart.in_words(verdict, code, why, test.cost_seconds, now_ns)
        return Option(code, words, test, restart.target)
    found: Option | None = restart if restart.target else None
    found = found or _shrunk(state, job, test, plan) or _requeued(state, job, test, now_ns)
    own = tuple(rank.slot for rank in job.ranks)
    if found is None and still_usable(plan, state.nodes, own):
        # Slots on which other jobs stay cannot be reserved: the gang then starts again from the queue.
        target = own if index_of(state).freed_by(job, own) == own else ()
        found = Option("restart", "", test, target, in_place=True)
    if found is None:
        words = hang_restart.in_words(verdict, "target", _no_target(job, verdict.node), test.cost_seconds, now_ns)
        return Option("target", words, test)
    where_to = " on the same slots, because no others are free," if found.in_place and found.target else ""
    reason = f"{sentence(verdict)}: a restart{where_to} is expected to cost {span(found.test.cost_seconds)}"
    return replace(found, reason=reason, swap=bool(restart.target) and _kept(state, job, restart.target))


def _no_target(job: Job, accused: str) -> str:
    return f"too few free slots on healthy nodes other than {accused}: it needs {job.spec.ranks}"


def lacks(verdict: Verdict, policy: Policy, confirmed: bool = False) -> tuple[str, str] | None:
    """Return why the verdict is not sufficient to stop a running gang, as (code, text); None if it is sufficient.

    It does not compare costs. confirmed: an operator has confirmed the verdict.
    """
    if verdict.kind not in MOVING:
        return _no_reason(verdict)
    if not verdict.node:
        return "node", "its ranks are on several nodes, which the verdict does not name"
    if verdict.cause is Cause.UNKNOWN and not confirmed:
        return "cause", "the cause is unknown, so another node may not help"
    if verdict.confidence < policy.minimum_confidence and not confirmed:
        return "confidence", f"confidence {verdict.confidence:.2f} is below {policy.minimum_confidence:.2f}"
    return None


def _no_reason(verdict: Verdict) -> tuple[str, str]:
    return "kind", f"jobs are not moved for verdicts of kind {verdict.kind.value}"


_DOING = {"migrate": "moving", "separate": "moving", "shrink": "shrinking", "requeue": "requeueing"}


def _waits(option: Option) -> Option:
    """Return an option to keep the gang in place for some time, because the fault may end soon, and then to take
    `option`."""
    test, doing = option.test, _DOING[option.code]
    seconds, cost = test.wait or (0.0, test.cost_seconds)
    reason = (
        f"the slowdown may end soon: waiting another {span(seconds)} before {doing} is expected to cost "
        f"{span(cost)}, {doing} now {span(test.cost_seconds)}"
    )
    return replace(option, code="wait", reason=reason, stopped=(), swap=False)


def weighed(verdict: Verdict, test: CostTest) -> str:
    return (
        f"{sentence(verdict)}: staying is expected to cost {span(test.benefit_seconds)}, "
        f"moving {span(test.cost_seconds)}"
    )


def _kept(state: State, job: Job, target: tuple[Slot, ...]) -> bool:
    """Return whether the target contains all of the gang's slots on nodes that no verdict accuses."""
    accused, there = accused_nodes(state, job), set(target)
    return all(rank.slot in there for rank in job.ranks if rank.slot.node not in accused)


def _undiminished(job: Job) -> Job:
    """Return a copy of the gang that must not get fewer ranks than now. (Fewer ranks are a separate option, shrink.)"""
    if job.spec.min_ranks is None or not job.ranks:
        return job
    return structs.replace(job, spec=structs.replace(job.spec, min_ranks=len(job.ranks)))


def _shrunk(state: State, job: Job, test: CostTest, plan: Plan) -> Option | None:
    """Return the option to continue with fewer ranks, all on healthy nodes; None if it is not possible.

    It keeps the ranks on nodes that no verdict accuses, or uses other healthy slots if there are more.
    """
    if job.spec.min_ranks is None:
        return None
    accused = accused_nodes(state, job)
    healthy = tuple(rank.slot for rank in job.ranks if rank.slot.node not in accused)
    elsewhere, _ = _target(state, job, plan, None)
    if len(elsewhere) > len(healthy):
        healthy = elsewhere
    if job.spec.sizes:
        healthy = healthy[: job.spec.size_at_most(len(healthy))]
    if not job.spec.min_ranks <= len(healthy) < len(job.ranks):
        return None
    longer = test.remaining_seconds * (len(job.ranks) / len(healthy) - 1)
    restart = test.restart_seconds + job.spec.reshard_seconds
    return Option(
        "shrink", "", replace(test, queue_seconds=test.queue_seconds + longer, restart_seconds=restart), healthy
    )


def _requeued(state: State, job: Job, test: CostTest, now_ns: int) -> Option | None:
    """Return the option to wait for healthy slots; None if no start can be predicted.

    None also for an external job whose scheduler has pending jobs, because their order is not known.
    """
    if job.spec.kind is JobKind.EXTERNAL and state.host_waits:
        return None
    index = index_of(state)
    avoided = (*accused_nodes(state, job), *(n for n in index.doubtful if state.nodes[n].state is NodeState.SUSPECT))
    mark = index.plan.checkpoint()
    index.vacate(job)
    ends = [end for end in index.ends if end.job_id != job.job_id]
    wanted = structs.replace(_undiminished(job), excluded_nodes=avoided)
    found = reserve(index.plan, ends, wanted, now_ns, state.policy)
    index.plan.rollback(mark)
    if found is None:
        return None
    # Pending jobs start before a requeued one: their expected run times are added to its wait.
    waits = (found.from_ns - now_ns) / 1e9 + sum(p.length_ns for p in index.line.places.values()) / 1e9
    return Option("requeue", "", replace(test, queue_seconds=test.queue_seconds + waits))


def _target(state: State, job: Job, plan: Plan, disturbed: Verdict | None) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """Return (slots to which the gang could move now, ids of the gangs to stop because they use spare nodes).

    It tries healthy free slots with the gang's own slots on nodes that no verdict accuses, then spare nodes, then spare
    nodes in use by other gangs. There are no slots if another scheduler is about to use them. disturbed: a verdict of
    interference; the new slots then share no rack with the other job, or no node if racks are not known.
    """
    if external_jobs.will_be_taken(state, index_of(state), job):
        return (), ()
    avoided = accused_nodes(state, job)
    if disturbed is not None:
        avoided = (*avoided, *around(state, state.jobs[disturbed.aggressor]))
    mark = plan.checkpoint()
    try:
        index = index_of(state)
        index.vacate(job)
        most = index.most_ranks_instead(job)
        found = place(plan, job, avoided, suspects=False, policy=state.policy, most=most)
        if found is not None or not plan.has_spares() or disturbed is not None:
            return found or (), ()
        found = place(plan, job, avoided, suspects=False, policy=state.policy, most=most, spares=True)
        if found is not None:
            return found, ()
        lent = [one for one in borrowers(state, index) if one != job.job_id]
        plan.give(
            slot
            for one in lent
            for slot in index.freed_by(state.jobs[one], index.held[one])
            if state.nodes[slot.node].spare
        )
        found = place(plan, job, avoided, suspects=False, policy=state.policy, most=most, spares=True) or ()
        return found, tuple(one for one in lent if not set(found).isdisjoint(index.held[one]))
    finally:
        plan.rollback(mark)


def around(state: State, job: Job) -> tuple[str, ...]:
    """Return the nodes of the job and all nodes in their racks."""
    own = {rank.slot.node for rank in job.ranks if rank.slot.node in state.nodes}
    racks = {(node.spine, node.rack) for name in own if (node := state.nodes[name]).rack}
    inside = (n.name for n in state.nodes.values() if n.name in own or (n.rack and (n.spine, n.rack) in racks))
    return tuple(sorted(inside))


def cheaper_to_move(
    state: State, job: Job, verdict: Verdict, option: Option, plan: Plan, now_ns: int
) -> tuple[Job, Option]:
    """Return the one of two interfering jobs whose move costs fewer GPU-seconds, with the option to move it."""
    other = state.jobs[verdict.aggressor]
    movable = other.state is JobState.RUNNING and other.stop_reason is None and other.spec.restartable
    if not movable or cooling_ns(state.policy, other, now_ns) > 0:
        return job, option
    test = replace(
        option.test,
        save_seconds=save_seconds(other),
        unsaved_seconds=unsaved_seconds(other, now_ns),
        restart_seconds=other.spec.restart_cost_seconds,
        measured_seconds=None,
    )
    target, _ = _target(state, other, plan, replace(verdict, aggressor=job.job_id))
    if not target or test.cost_seconds * len(other.ranks) >= option.test.cost_seconds * len(job.ranks):
        return job, option
    return other, replace(option, test=test, target=target, swap=False)
