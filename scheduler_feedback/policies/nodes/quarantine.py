"""Quarantine: what a node may be used for, from the verdicts about it, the operator's word and the clock.

::

    healthy --verdict--> suspect --second job's verdict, migration, or confirmed--> quarantine --time--> probe
       ^                  |  ^                                                      |  ^                  |  |
       |<-seen well again-+  +<------------ its slots are wanted -------------------+  +-----failed-------+  |
       |                  +-- nobody saw it well: a probe where none wait, else --+                         |
       +<----------------------------- time without a verdict -- probation <-------+-------passed------------+

A verdict during probation leads back to quarantine; each quarantine since the last full recovery is twice as long as
the one before. maintenance is the operator's alone.

What a quarantine costs is all of the node's work, and what a node that is merely slow costs is a part of it: 1 - 1/s of
what runs there. So such a node is in quarantine, where it can be measured, only while nobody who could make use of it
waits for slots; else it is suspect: used last, and only by gangs that gain by it (``placement.pays_beside``). Slower
than ``quarantine_slowdown``, or accused of more than slowness, it is out of use whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.cycle_context import Turn, nanoseconds, span
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, StopReason
from scheduler_feedback.core.state import Case, Mode, Policy, State
from scheduler_feedback.core.verdict import Kind, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.index.scheduling_index import Ledger, ledger_of
from scheduler_feedback.policies.intake import external_jobs
from scheduler_feedback.policies.queue.placement import pays_beside

# Kinds that speak against the node. Interference speaks against another job, workload against the job itself.
ACCUSING = frozenset({Kind.STRAGGLER, Kind.HANG, Kind.HEALTH})


# --- verdicts --------------------------------------------------------------------------------------------------------


def mark_accused_nodes(turn: Turn) -> None:
    """Every standing verdict marks its node once: suspect, or quarantine where that is due."""
    for verdict_id, verdict in turn.state.verdicts.items():
        case = turn.state.cases.setdefault(verdict_id, Case())
        node = turn.state.nodes.get(verdict.node)
        if case.marked or verdict.kind not in ACCUSING or node is None:
            continue
        case.marked = True
        _mark(turn, node, verdict)


def _mark(turn: Turn, node: Node, verdict: Verdict) -> None:
    words = sentence(verdict)
    if turn.state.policy.mode is Mode.OBSERVE:
        turn.decide(f"node:{node.name}", "suspect", f"would be suspect: {words}", outcome="observed")
        return
    if verdict.gang and verdict.gang not in node.accusers:
        node.accusers = (*node.accusers, verdict.gang)
    if node.state is NodeState.MAINTENANCE:
        return
    _doubt(turn, node, verdict)
    if node.state is NodeState.QUARANTINE:
        return
    if turn.state.judged.get(verdict.verdict_id) is True:
        quarantine(turn, node, f"an operator confirmed: {words}", verdict.verdict_id, capped=False)
    elif node.state is NodeState.PROBATION:
        hold_against(turn, node, verdict, f"on probation, and again {words}")
    elif len(node.accusers) >= 2:
        hold_against(turn, node, verdict, f"verdicts of {' and '.join(node.accusers)}; the newest: {words}")
    else:
        _suspect(turn, node, words, verdict.verdict_id)


def hold_against(turn: Turn, node: Node, verdict: Verdict, reason: str) -> None:
    """There is evidence enough for quarantine; it is what follows unless the node is worth more in use."""
    _doubt(turn, node, verdict)
    if _merely_slow(turn.state, node, verdict.verdict_id) and others_want(turn.state, node):
        _suspect(turn, node, f"others wait for its slots; {reason}", verdict.verdict_id)
    else:
        quarantine(turn, node, reason, verdict.verdict_id)


def _doubt(turn: Turn, node: Node, verdict: Verdict) -> None:
    """Keep how slow the node is held to be, and since when."""
    if node.doubted_ns is None:
        node.doubted_ns = min(verdict.first_wall_ns, turn.now_ns)
    standing = [
        other.slowdown
        for other in (verdict, *turn.state.verdicts.values())
        if other.node == node.name and other.kind is Kind.STRAGGLER
    ]
    slowdown = max(standing, default=1.0)
    if slowdown != node.slowdown:
        node.slowdown = slowdown
        ledger_of(turn.state).node_changed(node)


def _merely_slow(state: State, node: Node, verdict_id: str) -> bool:
    """Whether it is slowness alone that is held against the node, not too much of it, and no operator's word."""
    mild = 1 < node.slowdown < state.policy.quarantine_slowdown
    return mild and verdict_id != "" and state.judged.get(verdict_id) is not True


def others_want(state: State, node: Node) -> bool:
    """Whether a gang that could make use of the node waits: with another scheduler, or here for some time."""
    ledger = ledger_of(state)
    return external_jobs.want(state, ledger, node) or any(
        pays_beside(min(node.slots, kind.ranks), kind.ranks, node.slowdown)
        and any(_has_waited(state, bucket.keys[0][-1]) for bucket in kind.buckets.values() if bucket.keys)
        for kind in ledger.line.kinds.values()
    )


def _has_waited(state: State, job_id: str) -> bool:
    """Whether time has passed since it came: who has only just come may start at once. By the state and not by what the
    ledger has looked at, which a snapshot does not hold."""
    job = state.jobs[job_id]
    return max(job.submitted_ns, job.attempt_ended_ns or 0) < state.now_ns


def may_be_called_back(state: State, node: Node) -> bool:
    """Whether the node is out of use for its slowness alone, and is not being measured."""
    probe = state.jobs.get(node.probe_job) if node.probe_job is not None else None
    measured = probe is not None and probe.state is not JobState.PENDING
    return node.state is NodeState.QUARANTINE and not measured and _merely_slow(state, node, node.verdict_id)


def call_back(turn: Turn, node: Node) -> None:
    """It is used again, last of all."""
    drop_probe(turn, node)
    _suspect(turn, node, f"others wait for its slots; {node.reason}", node.verdict_id)


def _suspect(turn: Turn, node: Node, reason: str, verdict_id: str) -> None:
    if node.state is NodeState.SUSPECT and node.until_ns is None:
        return
    _become(turn, node, NodeState.SUSPECT, None, reason, verdict_id)
    turn.decide(f"node:{node.name}", "suspect", f"suspect, used last: {reason}")


# --- quarantine ------------------------------------------------------------------------------------------------------


def quarantine(turn: Turn, node: Node, reason: str, verdict_id: str, capped: bool = True) -> bool:
    """Take the node out of use for a time that doubles with each repetition; False where the cap forbids it.

    Beyond the cap the node is suspect instead, and an entry says so: losing many nodes at once is seldom the nodes.
    """
    state = turn.state
    if capped and node.state is not NodeState.QUARANTINE and not _below_cap(state, node):
        turn.decide(
            f"node:{node.name}",
            "quarantine",
            f"stays in use as suspect, though quarantine is due: {reason}; "
            f"{_in_quarantine(state)} of {len(state.nodes)} nodes are in quarantine, which is the most allowed",
            outcome="capped",
        )
        _become(turn, node, NodeState.SUSPECT, None, reason, verdict_id)
        return False
    node.backoff += 1
    seconds = quarantine_seconds(state.policy, node.backoff)
    _become(turn, node, NodeState.QUARANTINE, turn.after(seconds), reason, verdict_id)
    turn.decide(f"node:{node.name}", "quarantine", f"quarantine for {span(seconds)}: {reason}")
    return True


def quarantine_seconds(policy: Policy, backoff: int) -> float:
    """Length of the backoff-th quarantine since the last full recovery: each twice the one before, up to the most."""
    return min(policy.quarantine_seconds * 2.0 ** min(backoff - 1, 64), policy.quarantine_max_seconds)


def _in_quarantine(state: State, rack: tuple[str, str] | None = None) -> int:
    """Nodes in quarantine; of one rack, or of all."""
    doubtful = (state.nodes[name] for name in ledger_of(state).doubtful)
    return sum(n.state is NodeState.QUARANTINE and rack in (None, (n.spine, n.rack)) for n in doubtful)


def _below_cap(state: State, node: Node) -> bool:
    """Whether one more may be taken out of use: of the whole cluster, and of the node's rack where it is known."""
    policy = state.policy
    if _in_quarantine(state) >= max(1, int(policy.quarantine_max_fraction * len(state.nodes))):
        return False
    if not node.rack:
        return True
    rack = (node.spine, node.rack)
    nodes = sum((other.spine, other.rack) == rack for other in state.nodes.values())
    return _in_quarantine(state, rack) < max(1, int(policy.quarantine_max_rack_fraction * nodes))


def _become(turn: Turn, node: Node, state: NodeState, until_ns: int | None, reason: str, verdict_id: str = "") -> None:
    node.state, node.since_ns, node.until_ns = state, turn.now_ns, until_ns
    node.reason, node.verdict_id = reason, verdict_id
    ledger_of(turn.state).node_changed(node)


# --- the clock -------------------------------------------------------------------------------------------------------


def timeouts(state: State, ledger: Ledger) -> Iterator[int]:
    """Yield when a job that has just come counts as one that waits for the slots of a slow node."""
    if state.frozen or not any(may_be_called_back(state, state.nodes[name]) for name in ledger.doubtful):
        return
    for kind in ledger.line.kinds.values():
        if any(not _has_waited(state, bucket.keys[0][-1]) for bucket in kind.buckets.values()):
            yield state.now_ns + 1


def let_time_pass(turn: Turn) -> None:
    """End what has lasted long enough: suspicion, quarantine, probation; and take the results of probes."""
    accused = {verdict.node for verdict in turn.state.verdicts.values() if verdict.kind in ACCUSING}
    for name in sorted(ledger_of(turn.state).doubtful):
        node = turn.state.nodes[name]
        if node.state is NodeState.SUSPECT:
            _let_suspicion_run_out(turn, node, node.name in accused)
        elif node.state is NodeState.QUARANTINE:
            if may_be_called_back(turn.state, node) and others_want(turn.state, node):
                call_back(turn, node)
            elif node.probe_job is not None:
                _take_probe_result(turn, node, turn.state.jobs.get(node.probe_job))
            elif node.until_ns is not None and turn.now_ns >= node.until_ns and node.present and node.slots:
                _end_quarantine(turn, node)
        elif node.state is NodeState.PROBATION and node.until_ns is not None and turn.now_ns >= node.until_ns:
            recover(turn, node, "recovered", "healthy: it passed its probation without a verdict")


def keeps_pace_again(turn: Turn, node: Node) -> None:
    """A verdict was taken back because its member kept pace; where no other stands, the node was seen well again.

    Suspicion soon ends then. A quarantine lasts as long as it was to last, but nobody has to leave the node any more.
    """
    if any(v.node == node.name and v.kind in ACCUSING for v in turn.state.verdicts.values()):
        return
    node.doubted_ns = None
    if node.state is NodeState.SUSPECT and node.until_ns is None:
        node.until_ns = turn.after(turn.state.policy.suspect_seconds)
    ledger_of(turn.state).node_changed(node)


def _let_suspicion_run_out(turn: Turn, node: Node, accused: bool) -> None:
    if accused:
        return
    if node.until_ns is None:
        # Nobody has seen it well again: what was slow for so long is expected to be so for as long again.
        doubted = (turn.now_ns - node.doubted_ns) / 1e9 if node.doubted_ns is not None and node.slowdown > 1 else 0.0
        node.until_ns = turn.after(max(turn.state.policy.suspect_seconds, doubted))
        ledger_of(turn.state).node_changed(node)
    elif turn.now_ns < node.until_ns:
        return
    elif node.doubted_ns is None or not node.present:
        backoff = node.backoff
        recover(turn, node, "recovered", "healthy: it was seen well again, and nothing was said against it since")
        node.backoff = backoff
    elif not _may_be_measured(turn.state, node):
        _begin_probation(turn, node, "nobody has seen it well again, and it can't be measured now")
    else:
        _become(turn, node, NodeState.QUARANTINE, None, "nobody has seen it well again", node.verdict_id)
        _measure(turn, node, "nobody has seen it well again, and nobody waits for its slots")


def _may_be_measured(state: State, node: Node) -> bool:
    """Whether it may be taken out of use for that, and is there: others may have taken all of its slots."""
    wanted = others_want(state, node) or not _below_cap(state, node)
    return bool(state.policy.probe_command) and node.slots > 0 and not wanted


def _end_quarantine(turn: Turn, node: Node) -> None:
    policy = turn.state.policy
    if not policy.probe_command:
        _begin_probation(turn, node, "its quarantine has ended; no probe is configured")
        return
    _measure(turn, node, "its quarantine has ended")


def _measure(turn: Turn, node: Node, why: str) -> None:
    """Put a probe of the node in the line; its result decides."""
    policy = turn.state.policy
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
    job = turn.state.jobs[job_id] = Job(job_id, spec, JobState.PENDING, turn.now_ns)
    ledger_of(turn.state).came(job)
    turn.arrived.append(job_id)
    node.probe_job, node.until_ns = job_id, None
    turn.decide(f"node:{node.name}", "probe", f"{why}; {job_id} measures it")


def _take_probe_result(turn: Turn, node: Node, probe: Job | None) -> None:
    if probe is not None and not probe.state.ended:
        return
    node.probe_job = None
    if probe is not None and probe.state is JobState.COMPLETED:
        _begin_probation(turn, node, f"{probe.job_id} passed")
    else:
        why = f"{probe.job_id} did not pass: {probe.end_reason}" if probe is not None else "its probe is lost"
        quarantine(turn, node, why, node.verdict_id)


def _begin_probation(turn: Turn, node: Node, why: str) -> None:
    seconds = turn.state.policy.probation_seconds
    _become(turn, node, NodeState.PROBATION, turn.after(seconds), why, node.verdict_id)
    turn.decide(f"node:{node.name}", "probation", f"single-node gangs only, for {span(seconds)}: {why}")


def recover(turn: Turn, node: Node, kind: str, text: str) -> None:
    """The node is healthy, and everything that was held against it is forgotten."""
    _become(turn, node, NodeState.HEALTHY, None, "")
    node.backoff, node.accusers = 0, ()
    node.slowdown, node.doubted_ns, node.draining = 1.0, None, False
    drop_probe(turn, node)
    ledger = ledger_of(turn.state)
    for job_id in sorted(ledger.excluders):
        job = turn.state.jobs[job_id]
        if node.name in job.excluded_nodes:
            job.excluded_nodes = tuple(name for name in job.excluded_nodes if name != node.name)
            ledger.file(job)
    turn.decide(f"node:{node.name}", kind, text)


def drop_probe(turn: Turn, node: Node) -> None:
    """A probe that nobody waits for any more is given up."""
    probe = turn.state.jobs.get(node.probe_job) if node.probe_job is not None else None
    node.probe_job = None
    if probe is None or probe.state.ended:
        return
    if probe.state is JobState.PENDING:
        probe.state, probe.ended_ns, probe.end_reason = JobState.CANCELLED, turn.now_ns, "the node needs no probe"
        ledger_of(turn.state).file(probe)
    else:
        probe.stop_reason = StopReason.CANCEL
        ledger_of(turn.state).stops(probe)


# --- operators -------------------------------------------------------------------------------------------------------


def release(turn: Turn, node: Node, by: str, reason: str) -> None:
    """An operator trusts the node again. The verdicts that stand against it lead to nothing more."""
    for verdict in turn.state.verdicts.values():
        if verdict.node == node.name:
            turn.state.cases[verdict.verdict_id] = Case(True, "released", f"{by or 'an operator'} released the node")
    recover(turn, node, "released", f"healthy: released by {by or 'an operator'}{_because(reason)}")


def quarantine_by_operator(turn: Turn, node: Node, by: str, reason: str) -> None:
    """Out of use until an operator releases it. Running gangs stay."""
    drop_probe(turn, node)
    node.draining = False
    _become(turn, node, NodeState.QUARANTINE, None, f"by {by or 'an operator'}{_because(reason)}")
    turn.decide(f"node:{node.name}", "quarantine", f"quarantine until it is released: {node.reason}")


def maintain(turn: Turn, node: Node, by: str, reason: str, drain: bool = False) -> None:
    """Give the node no new jobs until it is released. drain: gangs that may be restarted leave it (``draining``)."""
    drop_probe(turn, node)
    _become(turn, node, NodeState.MAINTENANCE, None, f"by {by or 'an operator'}{_because(reason)}")
    node.draining = node.draining or drain
    words = ", restartable jobs are moved away" if node.draining else ""
    turn.decide(f"node:{node.name}", "maintenance", f"maintenance until it is released{words}: {node.reason}")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def accused_by(state: State, verdict_id: str) -> list[Node]:
    """The nodes that are in their state because of the verdict, whether or not it still stands."""
    verdict = state.verdicts.get(verdict_id)
    return [
        node
        for node in state.nodes.values()
        if node.verdict_id == verdict_id or (verdict is not None and verdict.node == node.name)
    ]


def confirm(turn: Turn, verdict_id: str, by: str) -> None:
    """An operator says that the verdict is right: its node goes to quarantine at once."""
    verdict = turn.state.verdicts.get(verdict_id)
    for node in accused_by(turn.state, verdict_id):
        if node.state in (NodeState.SUSPECT, NodeState.HEALTHY, NodeState.PROBATION) and (
            verdict is None or verdict.kind in ACCUSING
        ):
            quarantine(turn, node, f"verdict {verdict_id} confirmed by {by or 'an operator'}", verdict_id, capped=False)


def reject(turn: Turn, verdict_id: str, by: str) -> None:
    """An operator says that the verdict is wrong: its node is released and its backoff forgotten.

    Other verdicts that stand against the node mark it anew.
    """
    for node in accused_by(turn.state, verdict_id):
        by_operator = node.state is NodeState.MAINTENANCE or (
            node.state is NodeState.QUARANTINE and not node.verdict_id
        )
        if by_operator or node.state is NodeState.HEALTHY:
            continue
        recover(turn, node, "released", f"healthy: verdict {verdict_id} was rejected by {by or 'an operator'}")
        for other in turn.state.verdicts.values():
            if other.node == node.name and other.verdict_id in turn.state.cases:
                turn.state.cases[other.verdict_id].marked = False


def longest_unavailable_ns(policy: Policy, node: Node) -> int | None:
    """When the node may be healthy again if all goes well; None where only an event can tell."""
    if node.until_ns is None:
        return None
    if node.state is NodeState.QUARANTINE:
        probe = policy.probe_timeout_seconds if policy.probe_command else 0.0
        return node.until_ns + nanoseconds(probe + policy.probation_seconds)
    return node.until_ns
