"""Plan: what is to be changed in Slurm so that it is as the cycle wishes, from one look at it. Pure, and level-held:

it compares what is with what should be, so whatever was lost (a weight that `scontrol reconfigure` forgot, a command
that failed, a controller that died between two) is found missing at the next look and done again, and nothing twice.

============ ====================================== ====================================================================
cycle        Slurm                                  put back when
============ ====================================== ====================================================================
quarantine   drain, reason 'gangwatch: ...'         the cycle lets the node go; never where the reason is another's
probed       resumed inside of a reservation        the probe has ended (probing.py)
suspect      Weight + what it costs; feature        the node is healthy
probation    Weight + what it costs; feature        the node is healthy
any of them  node comment (the only one in advise)  the node is healthy
============ ====================================== ====================================================================

An operator's word goes first: a node that somebody else drained is left alone, and one that somebody resumed though we
hold it in quarantine is released (``Plan.released``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from scheduler_feedback.backends.slurm.changed_objects import Touched
from scheduler_feedback.backends.slurm.desired_state import NodeWish, Wishes
from scheduler_feedback.backends.slurm.parsing.hostlist import join
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.slurm_names import OURS, is_ours, usable
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.policies.queue.placement import NEVER, slow_slots_pay

FEATURE = "gangwatch_"
MOST_WEIGHT = 0xFFFFFFF0
"""Slurm takes weights below INFINITE, 0xffffffff (slurm.h); some room is left."""

WEIGHT_A_SLOWDOWN = 1000
"""Added to a node's weight for each 100 % that it is slower; Slurm takes the lightest nodes first (slurm.conf(5))."""

MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do. action: a word for the audit; target: node or job. command: argument list.

    weighs: for a change of weight, the node's own weight and the new one. nodes: for an exclusion, those added.
    """

    action: str
    target: str
    command: tuple[str, ...]
    why: str
    episode: str = ""
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    weighs: tuple[int, int] | None = None
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """changes: in order. withheld: what is not done, with why not. advised: what `advise` would do.

    released: nodes in quarantine that an operator has resumed.
    """

    changes: list[Change] = field(default_factory=list)
    withheld: list[tuple[Change, str]] = field(default_factory=list)
    advised: list[Change] = field(default_factory=list)
    released: list[str] = field(default_factory=list)


def plan(
    wishes: Wishes, snapshot: Snapshot, touched: Touched, share: float, comments: bool, now_seconds: float = 0.0
) -> Plan:
    """What is to be done. share: of each partition's nodes, the most that may be drained by us at once.

    comments: whether nodes' comments are written. now_seconds: since the epoch.
    """
    found = Plan()
    if wishes.frozen:
        return found
    drains = _Drains(snapshot, touched, share)
    for name, node in sorted(snapshot.nodes.items()):
        if name not in wishes.known:
            continue
        wish = wishes.nodes.get(name)
        if wishes.acts:
            _drain_or_resume(found, node, wish, touched, drains)
            _weigh(found, node, wish, touched)
        else:
            _advise(found, node, wishes.advice.get(name), drains)
        if comments:
            _comment(found, node, wish or wishes.advice.get(name), wishes.acts)
    if wishes.acts:
        _exclusions(found, wishes, snapshot, touched, now_seconds)
    return found


# --- drain and resume ------------------------------------------------------------------------------------------------


class _Drains:
    """How many more nodes of each partition may be drained."""

    def __init__(self, snapshot: Snapshot, touched: Touched, share: float) -> None:
        self._room: dict[str, int] = {}
        self.most: dict[str, int] = {}
        for node in snapshot.nodes.values():
            for partition in node.partitions:
                self.most[partition] = self.most.get(partition, 0) + 1
        self.most = {name: max(1, int(count * share)) for name, count in self.most.items()}
        self._room = dict(self.most)
        for node in snapshot.nodes.values():
            if node.drained and (node.name in touched.drained or is_ours(node.reason)):
                self.take(node)

    def full(self, node: SlurmNode) -> str:
        """The partition in which no more may be drained; '' where there is room in all of the node's."""
        return next((name for name in node.partitions if self._room.get(name, 0) < 1), "")

    def take(self, node: SlurmNode) -> None:
        for partition in node.partitions:
            self._room[partition] = self._room.get(partition, 0) - 1


def _drain_or_resume(found: Plan, node: SlurmNode, wish: NodeWish | None, touched: Touched, drains: _Drains) -> None:
    if wish is not None and wish.probed:
        return  # whoever runs the probe resumes and drains
    if wish is not None and wish.state is NodeState.QUARANTINE:
        if node.drained:
            return
        if touched.drained.get(node.name) == wish.episode:
            found.released.append(node.name)
            return
        change = _change(
            "drain", node, wish, "scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={_reason(wish)}"
        )
        if full := drains.full(node):
            most = f"{drains.most[full]} node{'s' if drains.most[full] != 1 else ''}"
            found.withheld.append((change, f"{most} of partition {full} are drained, which is the most allowed"))
            return
        drains.take(node)
        found.changes.append(change)
    elif node.drained and node.name in touched.drained and is_ours(node.reason):
        if wish is not None and wish.state is NodeState.MAINTENANCE:
            return
        command = ("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
        found.changes.append(Change("resume", node.name, command, _left(wish), partitions=node.partitions))


def _left(wish: NodeWish | None) -> str:
    return "healthy again" if wish is None else f"{wish.state.value}: {wish.why}"


def _reason(wish: NodeWish) -> str:
    return f"{OURS}{' '.join(wish.why.split())}"[:MOST_REASON]


def _change(action: str, node: SlurmNode, wish: NodeWish, *command: str) -> Change:
    return Change(
        action, node.name, command, wish.why, wish.episode, wish.verdict, wish.evidence, partitions=node.partitions
    )


def _advise(found: Plan, node: SlurmNode, wish: NodeWish | None, drains: _Drains) -> None:
    if wish is not None and not node.drained and not drains.full(node):
        drains.take(node)
        command = ("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={_reason(wish)}")
        found.advised.append(_change("drain", node, wish, *command))


# --- weights and features --------------------------------------------------------------------------------------------


def weight_for(own: int, slowdown: float) -> int:
    """The weight of a node that is so much slower: the slower, the later Slurm takes it."""
    return min(own + max(1, round(WEIGHT_A_SLOWDOWN * (slowdown - 1))), MOST_WEIGHT)


def features_for(wish: NodeWish) -> tuple[str, ...]:
    """What a job can ask for, or be kept off by: the state, and the slowdown in steps of 10 %."""
    step = int(round((wish.slowdown - 1) * 100, 6) // 10 * 10)
    return (f"{FEATURE}{wish.state.value}", *((f"{FEATURE}slow_{step}",) if step >= 10 else ()))


def _weigh(found: Plan, node: SlurmNode, wish: NodeWish | None, touched: Touched) -> None:
    wanted = wish if wish is not None and wish.state in (NodeState.SUSPECT, NodeState.PROBATION) else None
    before = touched.weighed.get(node.name)
    # What is neither ours nor what it was before us, an operator has set meanwhile.
    own = node.weight if before is None or node.weight not in (before.own, before.ours) else before.own
    weight = own if wanted is None else weight_for(own, wanted.slowdown)
    others = tuple(name for name in node.features if not name.startswith(FEATURE))
    features = (*others, *(features_for(wanted) if wanted is not None else ()))
    if wanted is None and before is None and features == node.features:
        return
    words = []
    if weight != node.weight:
        words.append(f"Weight={weight}")
    if set(features) != set(node.features):
        words += [f"Features={join(features)}", f"ActiveFeatures={join(features)}"]
    if not words and (before is None) == (wanted is None):
        return
    why = _left(None) if wanted is None else f"{wanted.state.value}: {wanted.why}"
    found.changes.append(
        Change(
            "weigh" if wanted is not None else "unweigh",
            node.name,
            ("scontrol", "update", f"NodeName={node.name}", *words) if words else (),
            why,
            "" if wanted is None else wanted.episode,
            "" if wanted is None else wanted.verdict,
            () if wanted is None else wanted.evidence,
            (own, weight),
            partitions=node.partitions,
        )
    )


def _comment(found: Plan, node: SlurmNode, wish: NodeWish | None, acts: bool) -> None:
    """A comment that an operator wrote is left alone."""
    if node.comment and not is_ours(node.comment):
        return
    if wish is None:
        wanted = ""
    elif acts:
        wanted = f"{OURS}{wish.state.value}: {' '.join(wish.why.split())}"[:MOST_REASON]
    else:
        wanted = f"{OURS}would drain: {' '.join(wish.why.split())}"[:MOST_REASON]
    if node.comment != wanted:
        command = ("scontrol", "update", f"NodeName={node.name}", f"Comment={wanted}")
        found.changes.append(Change("comment", node.name, command, wanted or "nothing is held against it"))


# --- exclusions of pending jobs --------------------------------------------------------------------------------------


def _exclusions(found: Plan, wishes: Wishes, snapshot: Snapshot, touched: Touched, now_seconds: float) -> None:
    """Gangs that wait and have opted in are kept off a node in doubt that would take more from them than it gives.

    One slow node slows all of a gang. But one that is kept off waits for others, and what is free meanwhile may lie
    idle: by the same rule as the cycle's own gangs (``slow_slots_pay``) a slow node is better than a long wait. Never
    where too few others would be left; and taken back once the node is healthy.
    """
    doubtful = sorted(
        name
        for name, wish in wishes.nodes.items()
        if wish.state in (NodeState.SUSPECT, NodeState.PROBATION) and name in snapshot.nodes
    )
    for number, job in sorted(snapshot.jobs.items()):
        ours = set(touched.excluded.get(str(number), ()))
        if not job.waits or str(number) in touched.moving or not (ours or doubtful):
            continue
        opted = of_comment(job.comment).restartable and job.least_nodes > 1
        wanted = {name for name in doubtful if job.partition in snapshot.nodes[name].partitions} if opted else set()
        if wanted:
            patience = patience_of(job, snapshot, {*doubtful, *job.excluded}, now_seconds)
            wanted = {name for name in wanted if _shuns(job, wishes.nodes[name], patience)}
        own = set(job.excluded) - ours
        if not enough_left(job, snapshot.nodes.values(), own | wanted):
            wanted = set()
        if own | wanted == set(job.excluded):
            continue
        command = ("scontrol", "update", f"JobId={number}", f"ExcNodeList={join(sorted(own | wanted))}")
        why = (
            f"kept off {join(sorted(wanted))}, which would slow all of it"
            if wanted
            else "its nodes are healthy again, or better than to wait"
        )
        found.changes.append(
            Change("exclude" if wanted else "include", str(number), command, why, nodes=tuple(sorted(wanted - own)))
        )


def _shuns(job: SlurmJob, wish: NodeWish, patience: float) -> bool:
    """Whether the gang is better off without the node; always where it is not slowness that is held against it."""
    return wish.slowdown <= 1 or not slow_slots_pay(1, job.least_nodes, wish.slowdown, patience)


def patience_of(job: SlurmJob, snapshot: Snapshot, barred: Collection[str], now_seconds: float) -> float:
    """How long the gang waits for its nodes without the barred ones, if it is the next, as a share of its limit.

    By the limits of what runs; a node on which something without a limit runs is never counted on.
    """
    if job.time_limit_seconds is None:
        return 0.0
    free_at = {
        name: now_seconds
        for name, node in snapshot.nodes.items()
        if job.partition in node.partitions and usable(node) and not node.drained and name not in barred
    }
    for other in snapshot.jobs.values():
        if other.runs or other.completing:
            limit = other.time_limit_seconds
            end = math.inf if limit is None else max(other.started_seconds + limit, now_seconds)
            for name in other.nodes:
                if name in free_at:
                    free_at[name] = max(free_at[name], end)
    if len(free_at) < job.least_nodes:
        return NEVER
    wait = sorted(free_at.values())[job.least_nodes - 1] - now_seconds
    return min(wait / max(job.time_limit_seconds, 1.0), NEVER)


def enough_left(job: SlurmJob, nodes: Iterable[SlurmNode], excluded: Iterable[str]) -> bool:
    """Whether the job's partition has as many usable nodes as it asks for beside those that are excluded."""
    barred = set(excluded)
    left = sum(
        job.partition in node.partitions and usable(node) and not node.drained and node.name not in barred
        for node in nodes
    )
    return left >= job.least_nodes
