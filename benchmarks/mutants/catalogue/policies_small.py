"""Breaks of the small policies: what makes room, stops, starts, scores and tells."""

from benchmarks.mutants.mutant import Mutant

_F = "tests/feedback/test_"
_PARTS = (_F + "policies_parts.py",)
_BACKFILL = (_F + "backfill.py",)
_TIMEOUTS = (_F + "timeouts.py", _F + "policies_parts.py")

MUTANTS = (
    Mutant("policies.hangs:keeps", "max(CONFIDENCE, policy.minimum_confidence)", "CONFIDENCE", _PARTS),
    Mutant("policies.hangs:keeps", "verdict.confidence < least", "verdict.confidence <= least", _PARTS),
    Mutant("policies.hangs:keeps", "now_ns < due_ns", "now_ns <= due_ns", _PARTS),
    Mutant("policies.hangs:keeps", "if not confirmed:", "if True:", _PARTS),
    Mutant("policies.hangs:keeps", "now_ns + left_ns\n", "now_ns - left_ns\n", _PARTS),
    Mutant(
        "policies.hangs:in_words", '"restart_on_hang", "confidence", "pause"', '"restart_on_hang", "confidence"', _PARTS
    ),
    Mutant("policies.outlook:outlook", "worst.get(job.job_id)", "None", _PARTS),
    Mutant("policies.outlook:outlook", ") - state.now_ns", ")", _PARTS),
    Mutant("policies.outlook:outlook", "job.state.holds_slots and", "", _PARTS),
    Mutant("policies.preemption:may_be_stopped", "(spec.preemptible and spec.restartable)", "spec.restartable", _PARTS),
    Mutant("policies.preemption:may_be_stopped", "now_ns - since_ns >=", "now_ns - since_ns >", _PARTS),
    Mutant("policies.preemption:lost_gpu_seconds", "interval and not spec.checkpoint_command", "interval", _PARTS),
    Mutant("policies.preemption:_counted", "pool != NOWHERE", "pool == NOWHERE", _PARTS),
    Mutant("policies.preemption:timeouts", "policy.order is Order.THEMIS", "policy.order is not Order.THEMIS", _PARTS),
    Mutant(
        "policies.preemption:swap",
        "if job.not_before_ns > now_ns or job.spec.ranks <= free:",
        "if job.spec.ranks <= free:",
        _PARTS,
    ),
    Mutant("policies.preemption:due", "and not state.frozen", "", _PARTS),
    Mutant(
        "policies.reclaim:reclaim",
        "if ledger.shares.held[owner] + ranks > (queues[owner].quota or 0):",
        "if False:",
        _PARTS,
    ),
    Mutant("policies.reclaim:reclaim", "asked.add(owner)", "pass", _PARTS),
    Mutant("policies.reclaim:reclaim", "job.not_before_ns > turn.now_ns", "job.not_before_ns >= turn.now_ns", _PARTS),
    Mutant("policies.reclaim:_victims", "(after < quota) is not straddling", "(after < quota) is straddling", _PARTS),
    Mutant("policies.reclaim:_victims", "if _within_quota(ledger, job, owner, []) is not None:", "if False:", _PARTS),
    Mutant("policies.reclaim:_victims", "_fewest(ledger, job, owner, chosen, slots)", "(slots, chosen)", _PARTS),
    Mutant("policies.resizing:timeouts", "len(job.ranks) < (job", "len(job.ranks) <= (job", _PARTS),
    Mutant("policies.resizing:timeouts", "_surplus(job) > 0 and", "", _PARTS),
    Mutant("policies.resizing:timeouts", "(guessed or job.spec.checkpoint_interval_seconds)", "guessed", _PARTS),
    Mutant(
        "policies.resizing:grow",
        "(1 - len(job.ranks) / len(slots))",
        "(len(slots) / len(job.ranks) - 1)",
        (_F + "policies_room.py",),
    ),
    Mutant("policies.scores:score_observed", "- lost_seconds(verdict, decision.wall_ns)", "", _PARTS),
    Mutant("policies.scores:score_observed", "and not decision.applied", "", _PARTS),
    Mutant("policies.scores:score_applied", "and decision.attempt < job.attempt", "", _PARTS),
    Mutant("policies.scores:score_applied", "first_step_ns - decision.wall_ns", "first_step_ns - ended_ns", _PARTS),
    Mutant("policies.spares:appoint", "len(members) - 1)", "len(members))", _PARTS),
    Mutant("policies.spares:appoint", "count(policy, len(members)) - out", "count(policy, len(members))", _PARTS),
    Mutant("policies.spares:count", "mean > 0 and beyond >", "mean > 0 and beyond >= 2 *", _PARTS),
    Mutant("policies.spares:count", "max(policy.spare_nodes, spares)", "spares", _PARTS),
    Mutant("policies.shares:Shares.rank_queues", "* fading +", "/ fading +", _PARTS),
    Mutant("policies.shares:Shares._standing", ">= (self.queues", "> (self.queues", _PARTS),
    Mutant("policies.shares:Shares.left", "return min(left", "return max(left", _PARTS),
    Mutant("policies.shares:most_slots", "if queue.borrow or queue.quota is None:", "if queue.quota is None:", _PARTS),
    Mutant(
        "policies.starting:start",
        "job.started_ns = turn.now_ns if job.started_ns is None else job.started_ns",
        "job.started_ns = turn.now_ns",
        _PARTS,
    ),
    Mutant("policies.starting:start", "turn.now_ns - job.submitted_ns", "turn.now_ns", _PARTS),
    Mutant(
        "policies.starting:place_or_reserve",
        "if at_limit(ledger, job):",
        "if False:",
        (_F + "policies_waiting.py",),
    ),
    Mutant(
        "policies.stopping:ask_for_stops", "turn.now_ns < job.not_before_ns", "turn.now_ns <= job.not_before_ns", _PARTS
    ),
    Mutant(
        "policies.stopping:ask_for_stops",
        "turn.now_ns if job.stopping_ns is None else job.stopping_ns",
        "turn.now_ns",
        _PARTS,
    ),
    Mutant("policies.stopping:ask_for_stops", "and job.state is not JobState.STARTING", "", _PARTS),
    Mutant("policies.stopping:ask_for_stops", "and job.stop_reason is not StopReason.CANCEL", "", _PARTS),
    Mutant("policies.timeouts:expired", "timeout.at_ns <= now_ns", "timeout.at_ns < now_ns", _TIMEOUTS),
    Mutant("policies.timeouts:next_ns", "timeout.at_ns > after_ns", "timeout.at_ns >= after_ns", _TIMEOUTS, hangs=True),
    Mutant("policies.timeouts:_refused_stops", "or job.stop_reason is StopReason.CANCEL", "", _TIMEOUTS),
    Mutant("policies.uplinks:crossed", "if domain not in common", "", _PARTS),
    Mutant(
        "policies.uplinks:congested",
        "max(found.get(domain, 0.0), verdict.slowdown - 1)",
        "verdict.slowdown - 1",
        _PARTS,
    ),
    Mutant("policies.uplinks:congested", "and job.state.holds_slots", "", _PARTS),
    Mutant("policies.uplinks:least_burdened", ">= ranks", "> ranks", _PARTS),
    Mutant("policies.waiting:_explain_array", "first = min(", "first = max(", _PARTS),
    Mutant("policies.waiting:_explain_waiting", "release.at_ns > until_ns", "release.at_ns >= until_ns", _PARTS),
    Mutant(
        "policies.waiting:_blockers", "found.append(Blocker(node.name, node.state.value, free, reason))", "pass", _PARTS
    ),
    Mutant("policies.waiting_line:WaitingLine.add", "min(shape[0], shape[1] or shape[0])", "shape[0]", _PARTS),
    Mutant("policies.waiting_line:WaitingLine.needs_level", "return any(", "return all(", _PARTS),
    Mutant(
        "policies.waiting_line:WaitingLine.remove",
        "bisect_left(bucket.keys, place.key)",
        "0",
        _PARTS,
    ),
    Mutant("policies.wishes:submitted", "if event.job_id in turn.state.jobs:", "if False:", _PARTS),
    Mutant("policies.wishes:cancel_requested", "or job.stop_reason is StopReason.CANCEL", "", _PARTS),
    Mutant("policies.wishes:_is_so", "if command is NodeCommand.REMOVE:", "if False:", _PARTS),
    Mutant("policies.wishes:_is_so", "and not node.backoff", "", _PARTS),
    Mutant("policies.wishes:verdict_judged", "verdict or next(past, None)", "verdict", _PARTS),
    Mutant("policies.backfill:candidates", "long=kind.ranks <= beside", "long=True", _BACKFILL),
    Mutant("policies.backfill:candidates", "if bucket.keys[index] != key:", "if False:", _BACKFILL, hangs=True),
    Mutant("policies.backfill:Backfill.place_beside", "self._plan.hold(slots)", "pass", _BACKFILL),
    Mutant("policies.backfill:only", "place_.kind.ranks <= free", "place_.kind.ranks < free", _BACKFILL),
    Mutant(
        "policies.placement:_needs_slow",
        "spec.required_level is not None or bool(spec.groups) or",
        "spec.required_level is not None and bool(spec.groups) or",
        _BACKFILL,
    ),
    Mutant("policies.quarantine:others_want", "and any(_has_waited", "and all(_has_waited", _BACKFILL),
    Mutant(
        "policies.quarantine:quarantine",
        "_become(turn, node, NodeState.SUSPECT, None, reason, verdict_id)",
        "pass",
        _BACKFILL,
    ),
    Mutant("policies.observations:_leave_attempt", "min(max(ended_wall_ns,", "max(max(ended_wall_ns,", _BACKFILL),
    Mutant("policies.observations:_leave_attempt", "max(ended_wall_ns, begun_ns)", "ended_wall_ns", _BACKFILL),
)
