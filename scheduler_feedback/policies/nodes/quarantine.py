"""Node states: how verdicts, operators and time change what a node may be used for.

Each line is one transition, and what causes it::

    healthy    -> suspect     a verdict accuses the node
    suspect    -> healthy     it runs at normal speed again, and no new verdict accuses it
    suspect    -> quarantine  a second job accuses the node, a job was moved away, or an operator confirms the verdict
    suspect    -> probe       no recovery was observed, and no pending job needs its slots
    suspect    -> probation   no recovery was observed, and no probe can run
    quarantine -> suspect     pending jobs need the node's slots
    quarantine -> probe       the time of the quarantine is over
    probe      -> quarantine  the probe failed
    probe      -> probation   the probe passed
    probation  -> quarantine  a verdict accuses the node again
    probation  -> healthy     time without a verdict

Each quarantine since the last full recovery is twice as long as the one before. Only operators set maintenance.

A quarantined node loses all of its work; a node with slowdown s loses the share 1 - 1/s. So a slow node is in
quarantine, where a probe can measure it, only while no pending job would gain from its slots. Else it is suspect: used
last, and only by gangs that gain from it (``placement.slow_slots_pay``). A node slower than ``quarantine_slowdown``, or
accused of more than slowness, stays in quarantine whatever jobs are pending.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, StopReason
from scheduler_feedback.core.state import Mode, OpenDecision, Policy, State
from scheduler_feedback.core.verdict import Kind, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of
from scheduler_feedback.policies.intake import external_jobs
from scheduler_feedback.policies.queue.placement import slow_slots_pay

# --- verdicts --------------------------------------------------------------------------------------------------------


def mark_accused_nodes(context: CycleContext) -> None:
    """Make the node of every new verdict suspect. Quarantine it if a second job accuses it, or an operator confirms."""
    for verdict_id, verdict in context.state.verdicts.items():
        opened = context.state.open_decisions.setdefault(verdict_id, OpenDecision())
        node = context.state.nodes.get(verdict.node)
        if opened.marked or verdict.kind not in ACCUSING or node is None:
            continue
        opened.marked = True
        _mark(context, node, verdict)


def _mark(context: CycleContext, node: Node, verdict: Verdict) -> None:
    words = sentence(verdict)
    if context.state.policy.mode is Mode.OBSERVE:
        context.decide(f"node:{node.name}", "suspect", f"would be suspect: {words}", outcome="observed")
        return
    if verdict.gang and verdict.gang not in node.accusers:
        node.accusers = (*node.accusers, verdict.gang)
    if node.state is NodeState.MAINTENANCE:
        return
    _doubt(context, node, verdict)
    if node.state is NodeState.QUARANTINE:
        return
    if context.state.judged.get(verdict.verdict_id) is True:
        quarantine(context, node, f"an operator confirmed: {words}", verdict.verdict_id, capped=False)
    elif node.state is NodeState.PROBATION:
        quarantine_or_suspect(context, node, verdict, f"new verdict during probation: {words}")
    elif len(node.accusers) >= 2:
        quarantine_or_suspect(
            context, node, verdict, f"verdicts about {' and '.join(node.accusers)}; the newest: {words}"
        )
    else:
        _suspect(context, node, words, verdict.verdict_id)


def quarantine_or_suspect(context: CycleContext, node: Node, verdict: Verdict, reason: str) -> None:
    """Quarantine the node, or make it suspect if it is only slow and pending jobs need its slots."""
    _doubt(context, node, verdict)
    if _merely_slow(context.state, node, verdict.verdict_id) and others_want(context.state, node):
        _suspect(context, node, f"pending jobs need its slots; {reason}", verdict.verdict_id)
    else:
        quarantine(context, node, reason, verdict.verdict_id)


def _doubt(context: CycleContext, node: Node, verdict: Verdict) -> None:
    """Record the slowdown of the node, and the time since which it has been slow."""
    if node.doubted_ns is None:
        node.doubted_ns = min(verdict.first_wall_ns, context.now_ns)
    slowdowns = [
        other.slowdown
        for other in (verdict, *context.state.verdicts.values())
        if other.node == node.name and other.kind is Kind.STRAGGLER
    ]
    slowdown = max(slowdowns, default=1.0)
    context.index.set_slowdown(node, slowdown)


def _merely_slow(state: State, node: Node, verdict_id: str) -> bool:
    """Return whether the node is only a little slow: below ``quarantine_slowdown``, without a confirmed verdict."""
    mild = 1 < node.slowdown < state.policy.quarantine_slowdown
    return mild and verdict_id != "" and state.judged.get(verdict_id) is not True


def others_want(state: State, node: Node) -> bool:
    """Return whether a gang that is pending here or with another scheduler would gain from the node.

    A gang that became pending in this cycle does not count yet, because it may start at once.
    """
    index = index_of(state)
    return external_jobs.want(state, index, node) or any(
        slow_slots_pay(min(node.slots, kind.ranks), kind.ranks, node.slowdown)
        and any(_has_waited(state, bucket.keys[0][-1]) for bucket in kind.buckets.values() if bucket.keys)
        for kind in index.line.kinds.values()
    )


def _has_waited(state: State, job_id: str) -> bool:
    """Return whether the job was already pending before this cycle.

    It uses the state only, not the index, so that a state restored from a snapshot gives the same result.
    """
    job = state.jobs[job_id]
    return max(job.submitted_ns, job.attempt_ended_ns or 0) < state.now_ns


def may_be_reinstated(state: State, node: Node) -> bool:
    """Return whether the node is in quarantine only because it is slow, and no probe runs on it."""
    probe = state.jobs.get(node.probe_job) if node.probe_job is not None else None
    measured = probe is not None and probe.state is not JobState.PENDING
    return node.state is NodeState.QUARANTINE and not measured and _merely_slow(state, node, node.verdict_id)


def reinstate(context: CycleContext, node: Node) -> None:
    """Change the node from quarantine to suspect, so that jobs may use its slots."""
    drop_probe(context, node)
    _suspect(context, node, f"pending jobs need its slots; {node.reason}", node.verdict_id)


def _suspect(context: CycleContext, node: Node, reason: str, verdict_id: str) -> None:
    if node.state is NodeState.SUSPECT and node.until_ns is None:
        return
    context.index.set_node_state(node, NodeState.SUSPECT, None, reason, verdict_id)
    context.decide(f"node:{node.name}", "suspect", f"suspect, used last: {reason}")


# --- quarantine ------------------------------------------------------------------------------------------------------


def quarantine(context: CycleContext, node: Node, reason: str, verdict_id: str, capped: bool = True) -> bool:
    """Quarantine the node for a time that doubles with each repetition; return False if the cap prevents it.

    The cap is the maximum number of nodes in quarantine, because a fault of many nodes at once is seldom a fault of the
    nodes. Above the cap the node becomes suspect, which is logged.
    """
    state = context.state
    if capped and node.state is not NodeState.QUARANTINE and not _below_cap(state, node):
        context.decide(
            f"node:{node.name}",
            "quarantine",
            f"suspect instead of quarantine: {reason}; "
            f"{_in_quarantine(state)} of {len(state.nodes)} nodes are in quarantine, the most allowed",
            outcome="capped",
        )
        context.index.set_node_state(node, NodeState.SUSPECT, None, reason, verdict_id)
        return False
    node.backoff += 1
    seconds = quarantine_seconds(state.policy, node.backoff)
    context.index.set_node_state(node, NodeState.QUARANTINE, context.after(seconds), reason, verdict_id)
    context.decide(f"node:{node.name}", "quarantine", f"quarantine for {span(seconds)}: {reason}")
    return True


def quarantine_seconds(policy: Policy, backoff: int) -> float:
    """Return the length of a quarantine in seconds. It doubles with each earlier one (`backoff`), up to a maximum."""
    return min(policy.quarantine_seconds * 2.0 ** min(backoff - 1, 64), policy.quarantine_max_seconds)


def _in_quarantine(state: State, rack: tuple[str, str] | None = None) -> int:
    """Count the nodes in quarantine: of one rack, given as (spine, rack), or of the cluster if None."""
    doubtful = (state.nodes[name] for name in index_of(state).doubtful)
    return sum(n.state is NodeState.QUARANTINE and rack in (None, (n.spine, n.rack)) for n in doubtful)


def _below_cap(state: State, node: Node) -> bool:
    """Return whether one more node may be quarantined under the caps of the cluster and of the node's rack."""
    policy = state.policy
    if _in_quarantine(state) >= max(1, int(policy.quarantine_max_fraction * len(state.nodes))):
        return False
    if not node.rack:
        return True
    rack = (node.spine, node.rack)
    nodes = sum((other.spine, other.rack) == rack for other in state.nodes.values())
    return _in_quarantine(state, rack) < max(1, int(policy.quarantine_max_rack_fraction * nodes))


# --- time ------------------------------------------------------------------------------------------------------------


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether jobs that became pending in this cycle need the slots of a slow node."""
    if state.frozen or not any(may_be_reinstated(state, state.nodes[name]) for name in index.doubtful):
        return
    for kind in index.line.kinds.values():
        if any(not _has_waited(state, bucket.keys[0][-1]) for bucket in kind.buckets.values()):
            yield state.now_ns + 1


def expire_node_states(context: CycleContext) -> None:
    """Change nodes whose suspicion, quarantine or probation has expired, and apply the results of probes."""
    accused = {verdict.node for verdict in context.state.verdicts.values() if verdict.kind in ACCUSING}
    for name in sorted(context.index.doubtful):
        node = context.state.nodes[name]
        if node.state is NodeState.SUSPECT:
            _expire_suspicion(context, node, node.name in accused)
        elif node.state is NodeState.QUARANTINE:
            if may_be_reinstated(context.state, node) and others_want(context.state, node):
                reinstate(context, node)
            elif node.probe_job is not None:
                _take_probe_result(context, node, context.state.jobs.get(node.probe_job))
            elif node.until_ns is not None and context.now_ns >= node.until_ns and node.present and node.slots:
                _end_quarantine(context, node)
        elif node.state is NodeState.PROBATION and node.until_ns is not None and context.now_ns >= node.until_ns:
            recover(context, node, "recovered", "healthy: it passed its probation without a verdict")


def note_recovery(context: CycleContext, node: Node) -> None:
    """Record that the node runs at normal speed again, unless another active verdict accuses it.

    A suspect node then becomes healthy after ``suspect_seconds``. A quarantine does not end earlier.
    """
    if any(v.node == node.name and v.kind in ACCUSING for v in context.state.verdicts.values()):
        return
    node.doubted_ns = None
    begins = node.state is NodeState.SUSPECT and node.until_ns is None
    context.index.set_until(node, context.after(context.state.policy.suspect_seconds) if begins else node.until_ns)


def _expire_suspicion(context: CycleContext, node: Node, accused: bool) -> None:
    if accused:
        return
    if node.until_ns is None:
        # No recovery was observed: the node is expected to stay slow for as long as it has been slow.
        doubted = (context.now_ns - node.doubted_ns) / 1e9 if node.doubted_ns is not None and node.slowdown > 1 else 0.0
        context.index.set_until(node, context.after(max(context.state.policy.suspect_seconds, doubted)))
        context.evaluated = True  # the journal records the cycle
    elif context.now_ns < node.until_ns:
        return
    elif node.doubted_ns is None or not node.present:
        backoff = node.backoff
        recover(context, node, "recovered", "healthy: it ran at normal speed again, without a new verdict")
        node.backoff = backoff
    elif not _may_be_measured(context.state, node):
        _begin_probation(context, node, "no recovery was observed, and no probe can run now")
    else:
        context.index.set_node_state(node, NodeState.QUARANTINE, None, "no recovery was observed", node.verdict_id)
        _measure(context, node, "no recovery was observed, and no pending job needs its slots")


def _may_be_measured(state: State, node: Node) -> bool:
    """Return whether a probe may use the node. Pending jobs that need the node, and the quarantine cap, prevent it."""
    wanted = others_want(state, node) or not _below_cap(state, node)
    return bool(state.policy.probe_command) and node.slots > 0 and not wanted


def _end_quarantine(context: CycleContext, node: Node) -> None:
    policy = context.state.policy
    if not policy.probe_command:
        _begin_probation(context, node, "its quarantine has ended; no probe is configured")
        return
    _measure(context, node, "its quarantine has ended")


def _measure(context: CycleContext, node: Node, why: str) -> None:
    """Submit a probe of the node. The result of the probe decides the node's next state."""
    policy = context.state.policy
    node.probes += 1
    job_id = f"probe-{node.name}-{node.probes}"
    spec = JobSpec(
        name=job_id,
        command=policy.probe_command,
        ranks=node.slots,
        user="gangwatch",
        queue="probe",
        kind=JobKind.PROBE,
        time_limit_seconds=policy.probe_timeout_seconds,
        grace_seconds=5.0,
        pinned_node=node.name,
    )
    context.index.add_probe(node, Job(job_id, spec, JobState.PENDING, context.now_ns))
    context.arrived.append(job_id)
    context.decide(f"node:{node.name}", "probe", f"{why}; {job_id} tests it")


def _take_probe_result(context: CycleContext, node: Node, probe: Job | None) -> None:
    if probe is not None and not probe.state.ended:
        return
    node.probe_job = None
    if probe is not None and probe.state is JobState.COMPLETED:
        _begin_probation(context, node, f"{probe.job_id} passed")
    else:
        why = f"{probe.job_id} did not pass: {probe.end_reason}" if probe is not None else "its probe was lost"
        quarantine(context, node, why, node.verdict_id)


def _begin_probation(context: CycleContext, node: Node, why: str) -> None:
    seconds = context.state.policy.probation_seconds
    context.index.set_node_state(node, NodeState.PROBATION, context.after(seconds), why, node.verdict_id)
    context.decide(f"node:{node.name}", "probation", f"probation for {span(seconds)}, single-node gangs only: {why}")


def recover(context: CycleContext, node: Node, kind: str, text: str) -> None:
    """Make the node healthy, and reset what earlier verdicts recorded about it."""
    node.backoff, node.accusers = 0, ()
    node.doubted_ns, node.draining = None, False
    drop_probe(context, node)
    context.index.recover_node(node)
    context.decide(f"node:{node.name}", kind, text)


def drop_probe(context: CycleContext, node: Node) -> None:
    """Cancel the node's probe, if any."""
    probe = context.state.jobs.get(node.probe_job) if node.probe_job is not None else None
    node.probe_job = None
    if probe is None or probe.state.ended:
        return
    if probe.state is JobState.PENDING:
        context.index.end(probe, JobState.CANCELLED, "the node no longer needs a probe")
    else:
        context.index.stop(probe, StopReason.CANCEL)


# --- operators -------------------------------------------------------------------------------------------------------


def release(context: CycleContext, node: Node, by: str, reason: str) -> None:
    """Make the node healthy at an operator's request. Its active verdicts have no further effect on it."""
    for verdict in context.state.verdicts.values():
        if verdict.node == node.name:
            why = f"{by or 'an operator'} released the node"
            context.state.open_decisions[verdict.verdict_id] = OpenDecision(True, "released", why)
    recover(context, node, "released", f"healthy: released by {by or 'an operator'}{_because(reason)}")


def quarantine_by_operator(context: CycleContext, node: Node, by: str, reason: str) -> None:
    """Quarantine the node until an operator releases it. Gangs on it continue to run."""
    drop_probe(context, node)
    node.draining = False
    context.index.set_node_state(node, NodeState.QUARANTINE, None, f"by {by or 'an operator'}{_because(reason)}")
    context.decide(f"node:{node.name}", "quarantine", f"quarantine until it is released: {node.reason}")


def maintain(context: CycleContext, node: Node, by: str, reason: str, drain: bool = False) -> None:
    """Put the node into maintenance: it gets no new jobs. drain: also move its restartable gangs (``draining``)."""
    drop_probe(context, node)
    context.index.set_node_state(node, NodeState.MAINTENANCE, None, f"by {by or 'an operator'}{_because(reason)}")
    node.draining = node.draining or drain
    words = ", restartable jobs are moved away" if node.draining else ""
    context.decide(f"node:{node.name}", "maintenance", f"maintenance until it is released{words}: {node.reason}")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def accused_by(state: State, verdict_id: str) -> list[Node]:
    """Return the nodes that the verdict accuses, and the nodes whose present state it has caused."""
    verdict = state.verdicts.get(verdict_id)
    return [
        node
        for node in state.nodes.values()
        if node.verdict_id == verdict_id or (verdict is not None and verdict.node == node.name)
    ]


def confirm(context: CycleContext, verdict_id: str, by: str) -> None:
    """Apply an operator's confirmation of the verdict: quarantine its node at once."""
    verdict = context.state.verdicts.get(verdict_id)
    for node in accused_by(context.state, verdict_id):
        if node.state in (NodeState.SUSPECT, NodeState.HEALTHY, NodeState.PROBATION) and (
            verdict is None or verdict.kind in ACCUSING
        ):
            quarantine(
                context, node, f"verdict {verdict_id} confirmed by {by or 'an operator'}", verdict_id, capped=False
            )


def reject(context: CycleContext, verdict_id: str, by: str) -> None:
    """Apply an operator's rejection of the verdict: release its node, and reset the length of the next quarantine.

    Other active verdicts about the node are applied again.
    """
    for node in accused_by(context.state, verdict_id):
        by_operator = node.state is NodeState.MAINTENANCE or (
            node.state is NodeState.QUARANTINE and not node.verdict_id
        )
        if by_operator or node.state is NodeState.HEALTHY:
            continue
        recover(context, node, "released", f"healthy: verdict {verdict_id} was rejected by {by or 'an operator'}")
        for other in context.state.verdicts.values():
            if other.node == node.name and other.verdict_id in context.state.open_decisions:
                context.state.open_decisions[other.verdict_id].marked = False
