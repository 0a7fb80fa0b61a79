"""The plan: changes that make Slurm's state equal to the desired state, from one snapshot. Level-triggered; no I/O.

It compares the actual with the desired state. So the next scan finds every lost change (a weight that `scontrol
reconfigure` dropped, a failed command, a controller that crashed between two commands) and plans it again; a change
that is in place is not planned twice.

============ ====================================== ====================================================================
cycle        Slurm                                  undone when
============ ====================================== ====================================================================
quarantine   drain, reason 'gangwatch: ...'         the cycle releases the node; never if someone else wrote the reason
probed       resumed inside a reservation           the probe has ended (probe_reservation.py)
suspect      Weight plus its slowdown; feature      the node is healthy
probation    Weight plus its slowdown; feature      the node is healthy
any of them  node comment (the only one in advise)  the node is healthy
============ ====================================== ====================================================================

Operators take precedence: a node that someone else drained is left alone, and a quarantined node that someone resumed
is released (``Plan.released``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from scheduler_feedback.backends.slurm.changed_objects import Touched
from scheduler_feedback.backends.slurm.desired_state import DesiredNode, DesiredState
from scheduler_feedback.backends.slurm.parsing.hostlist import join
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.slurm_names import OURS, is_ours, usable
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.policies.queue.placement import NEVER, slow_slots_pay

FEATURE = "gangwatch_"
MOST_WEIGHT = 0xFFFFFFF0
"""Largest weight that gangwatch sets. Slurm accepts weights below INFINITE, 0xffffffff (slurm.h)."""

WEIGHT_A_SLOWDOWN = 1000
"""Added to a node's weight for each 100 % of slowdown, so that Slurm uses slow nodes last: it starts jobs on the nodes
of lowest weight first (slurm.conf(5))."""

MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class Change:
    """One change to make in Slurm."""

    action: str
    """Name of the change in the audit log."""

    target: str
    """Node or job to change."""

    command: tuple[str, ...]
    """The command with its arguments; empty if only the record of our changes is updated."""

    why: str
    episode: str = ""
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    weighs: tuple[int, int] | None = None
    """The node's own weight and its new weight, if the change sets a weight; otherwise None."""

    nodes: tuple[str, ...] = ()
    """Nodes that the change adds to a job's --exclude; empty for other changes."""
    partitions: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """Result of comparing the snapshot with the desired state."""

    changes: list[Change] = field(default_factory=list)
    """Changes to make, in the order of execution."""

    withheld: list[tuple[Change, str]] = field(default_factory=list)
    """Changes that are not made, each with the reason."""

    advised: list[Change] = field(default_factory=list)
    """Changes that mode `act` would make. They are listed in mode `advise` only."""

    released: list[str] = field(default_factory=list)
    """Quarantined nodes that an operator has resumed."""


def plan(
    desired: DesiredState, snapshot: Snapshot, touched: Touched, share: float, comments: bool, now_seconds: float = 0.0
) -> Plan:
    """Return the changes to make.

    share: largest fraction of a partition's nodes that gangwatch may have drained at one time. comments: whether to
    write node comments. now_seconds: present time, in seconds since the epoch.
    """
    found = Plan()
    if desired.frozen:
        return found
    drains = _Drains(snapshot, touched, share)
    for name, node in sorted(snapshot.nodes.items()):
        if name not in desired.known:
            continue
        goal = desired.nodes.get(name)
        if desired.acts:
            _drain_or_resume(found, node, goal, touched, drains)
            _weigh(found, node, goal, touched)
        else:
            _advise(found, node, desired.advice.get(name), drains)
        if comments:
            _comment(found, node, goal or desired.advice.get(name), desired.acts)
    if desired.acts:
        _exclusions(found, desired, snapshot, touched, now_seconds)
    return found


# --- drain and resume ------------------------------------------------------------------------------------------------


class _Drains:
    """Number of nodes that may still be drained in each partition."""

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
        """Return the partition whose drain limit is reached; '' if none of the node's partitions has reached it."""
        return next((name for name in node.partitions if self._room.get(name, 0) < 1), "")

    def take(self, node: SlurmNode) -> None:
        for partition in node.partitions:
            self._room[partition] = self._room.get(partition, 0) - 1


def _drain_or_resume(found: Plan, node: SlurmNode, goal: DesiredNode | None, touched: Touched, drains: _Drains) -> None:
    if goal is not None and goal.probed:
        return  # the probe itself resumes and drains the node
    if goal is not None and goal.state is NodeState.QUARANTINE:
        if node.drained:
            return
        if touched.drained.get(node.name) == goal.episode:
            found.released.append(node.name)
            return
        change = _change(
            "drain", node, goal, "scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={_reason(goal)}"
        )
        if full := drains.full(node):
            most = f"{drains.most[full]} node{'s' if drains.most[full] != 1 else ''}"
            found.withheld.append((change, f"{most} of partition {full} are drained, which is the limit"))
            return
        drains.take(node)
        found.changes.append(change)
    elif node.drained and node.name in touched.drained and is_ours(node.reason):
        if goal is not None and goal.state is NodeState.MAINTENANCE:
            return
        command = ("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
        found.changes.append(Change("resume", node.name, command, _left(goal), partitions=node.partitions))


def _left(goal: DesiredNode | None) -> str:
    return "healthy again" if goal is None else f"{goal.state.value}: {goal.why}"


def _reason(goal: DesiredNode) -> str:
    return f"{OURS}{' '.join(goal.why.split())}"[:MOST_REASON]


def _change(action: str, node: SlurmNode, goal: DesiredNode, *command: str) -> Change:
    return Change(
        action, node.name, command, goal.why, goal.episode, goal.verdict, goal.evidence, partitions=node.partitions
    )


def _advise(found: Plan, node: SlurmNode, goal: DesiredNode | None, drains: _Drains) -> None:
    if goal is not None and not node.drained and not drains.full(node):
        drains.take(node)
        command = ("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={_reason(goal)}")
        found.advised.append(_change("drain", node, goal, *command))


# --- weights and features --------------------------------------------------------------------------------------------


def weight_for(own: int, slowdown: float) -> int:
    """Return the weight for a node with this slowdown. Slurm starts jobs on nodes of higher weight last.

    own: the node's weight before gangwatch changed it. slowdown: 1.2 means 20 % slower.
    """
    return min(own + max(1, round(WEIGHT_A_SLOWDOWN * (slowdown - 1))), MOST_WEIGHT)


def features_for(goal: DesiredNode) -> tuple[str, ...]:
    """Return the node features that job constraints can name: the state, and the slowdown rounded down to 10 %."""
    step = int(round((goal.slowdown - 1) * 100, 6) // 10 * 10)
    return (f"{FEATURE}{goal.state.value}", *((f"{FEATURE}slow_{step}",) if step >= 10 else ()))


def _weigh(found: Plan, node: SlurmNode, goal: DesiredNode | None, touched: Touched) -> None:
    wanted = goal if goal is not None and goal.state in (NodeState.SUSPECT, NodeState.PROBATION) else None
    before = touched.weighed.get(node.name)
    # A weight that is neither ours nor the one from before was set by an operator in the meantime.
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


def _comment(found: Plan, node: SlurmNode, goal: DesiredNode | None, acts: bool) -> None:
    """Plan the node's new comment, unless an operator has written the present one."""
    if node.comment and not is_ours(node.comment):
        return
    if goal is None:
        wanted = ""
    elif acts:
        wanted = f"{OURS}{goal.state.value}: {' '.join(goal.why.split())}"[:MOST_REASON]
    else:
        wanted = f"{OURS}would drain: {' '.join(goal.why.split())}"[:MOST_REASON]
    if node.comment != wanted:
        command = ("scontrol", "update", f"NodeName={node.name}", f"Comment={wanted}")
        found.changes.append(Change("comment", node.name, command, wanted or "no active verdict accuses it"))


# --- exclusions of pending jobs --------------------------------------------------------------------------------------


def _exclusions(found: Plan, desired: DesiredState, snapshot: Snapshot, touched: Touched, now_seconds: float) -> None:
    """Exclude suspect and probation nodes from pending gangs that have opted in, if a node would cost the gang more
    time than it saves.

    One slow node slows the whole gang. But a gang that avoids it may wait longer, while other nodes stay idle. The
    cycle's rule for its own gangs (``slow_slots_pay``) decides: a slow node is better than a long wait. Nodes are never
    excluded if too few others are left. The exclusion ends once the node is healthy.
    """
    doubtful = sorted(
        name
        for name, goal in desired.nodes.items()
        if goal.state in (NodeState.SUSPECT, NodeState.PROBATION) and name in snapshot.nodes
    )
    for number, job in sorted(snapshot.jobs.items()):
        ours = set(touched.excluded.get(str(number), ()))
        if not job.waits or str(number) in touched.moving or not (ours or doubtful):
            continue
        opted = of_comment(job.comment).restartable and job.least_nodes > 1
        wanted = {name for name in doubtful if job.partition in snapshot.nodes[name].partitions} if opted else set()
        if wanted:
            patience = patience_of(job, snapshot, {*doubtful, *job.excluded}, now_seconds)
            wanted = {name for name in wanted if _shuns(job, desired.nodes[name], patience)}
        own = set(job.excluded) - ours
        if not enough_left(job, snapshot.nodes.values(), own | wanted):
            wanted = set()
        if own | wanted == set(job.excluded):
            continue
        command = ("scontrol", "update", f"JobId={number}", f"ExcNodeList={join(sorted(own | wanted))}")
        why = (
            f"excludes {join(sorted(wanted))}, which would slow the whole job"
            if wanted
            else "its nodes are healthy again, or waiting for others would cost more"
        )
        found.changes.append(
            Change("exclude" if wanted else "include", str(number), command, why, nodes=tuple(sorted(wanted - own)))
        )


def _shuns(job: SlurmJob, goal: DesiredNode, patience: float) -> bool:
    """Return whether the gang should avoid the node. A slow node is used if avoiding it would cost more time.

    patience: how long the gang would wait for other nodes, as a fraction of its time limit.
    """
    return goal.slowdown <= 1 or not slow_slots_pay(1, job.least_nodes, goal.slowdown, patience)


def patience_of(job: SlurmJob, snapshot: Snapshot, barred: Collection[str], now_seconds: float) -> float:
    """Return how long the gang would wait for nodes if it avoided the barred ones, as a fraction of its time limit.

    Assumes that the gang is the next to start, and that running jobs use their whole time limit. A node with a job
    without a time limit does not count.
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
    """Return whether the partition still has as many usable nodes as the job requests, without the excluded ones."""
    barred = set(excluded)
    left = sum(
        job.partition in node.partitions and usable(node) and not node.drained and node.name not in barred
        for node in nodes
    )
    return left >= job.least_nodes
