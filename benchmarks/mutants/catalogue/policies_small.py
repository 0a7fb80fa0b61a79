"""Mutants of the small policies: freeing slots, stops, starts, scores and reports."""

from benchmarks.mutants.mutant import Mutant

_SPARES = ("tests/policies/test_spares.py",)
_HANGS = ("tests/policies/test_hang_restart.py",)
_FIT = ("tests/policies/test_preemption_fit.py",)
_ROOM = ("tests/policies/test_pass_room.py",)
_PARTS = ("tests/policies/test_policy_parts.py",)
_BACKFILL = ("tests/policies/test_backfill.py",)
_CONSTRAINTS = ("tests/policies/test_constraints.py",)
_COSTS = ("tests/policies/test_move_cost.py",)
_DATA = ("tests/policies/test_dataset_cache.py",)
_TYPES = ("tests/policies/test_type_quotas.py",)
_TIMEOUTS = ("tests/policies/test_timeouts.py", "tests/policies/test_policy_parts.py")

MUTANTS = (
    Mutant("policies.data.dataset_cache:note_use", "spec.dataset_gib > room", "False", _DATA),
    Mutant("policies.data.dataset_cache:note_use", "-one[1].used_ns", "one[1].used_ns", _DATA),
    Mutant("policies.data.dataset_cache:in_words", "node not in warm", "node in warm", _DATA),
    Mutant("policies.data.near_data:_as_good", "_nodes(found) <= _nodes(slots)", "True", _DATA),
    Mutant("policies.data.near_data:_as_good", "len(crossed(plan, found)) <= len(crossed(plan, slots))", "True", _DATA),
    Mutant("policies.data.near_data:nearer_to_data", "if name not in warm", "if name in warm", _DATA),
    Mutant(
        "policies.queue.reserved_room:ReservedRoom.__init__",
        "1.0 - count * share_of_slot(topology, head, number)",
        "1.0",
        _CONSTRAINTS,
    ),
    Mutant("policies.queue.reserved_room:lasting", "end.at_ns > from_ns", "False", _CONSTRAINTS),
    Mutant("policies.queue.reserved_room:share_of_slot", "limit.share / slots_a_pod", "limit.share", _CONSTRAINTS),
    Mutant(
        "policies.remediation.hang_restart:why_not_restarted",
        "max(CONFIDENCE, policy.minimum_confidence)",
        "CONFIDENCE",
        _PARTS,
    ),
    Mutant(
        "policies.remediation.hang_restart:why_not_restarted",
        "verdict.confidence < least",
        "verdict.confidence <= least",
        _PARTS,
    ),
    Mutant("policies.remediation.hang_restart:why_not_restarted", "now_ns < due_ns:", "now_ns <= due_ns:", _PARTS),
    Mutant("policies.remediation.hang_restart:why_not_restarted", "if not confirmed:", "if True:", _PARTS),
    Mutant("policies.remediation.hang_restart:why_not_restarted", "now_ns + left_ns\n", "now_ns - left_ns\n", _PARTS),
    Mutant(
        "policies.remediation.hang_restart:in_words",
        '"restart_on_hang", "confidence", "pause"',
        '"restart_on_hang", "confidence"',
        _PARTS,
    ),
    Mutant("policies.queue.queue_forecast:queue_metrics", "worst.get(job.job_id)", "None", _PARTS),
    Mutant("policies.queue.queue_forecast:queue_metrics", ") - state.now_ns", ")", _PARTS),
    Mutant("policies.queue.queue_forecast:queue_metrics", "job.state.holds_slots and", "", _PARTS),
    Mutant(
        "policies.queue.preemption:may_be_stopped",
        "(spec.preemptible and spec.restartable)",
        "spec.restartable",
        _PARTS,
    ),
    Mutant("policies.queue.preemption:may_be_stopped", "now_ns - since_ns >=", "now_ns - since_ns >", _PARTS),
    Mutant(
        "policies.queue.preemption:lost_gpu_seconds", "interval and not spec.checkpoint_command", "interval", _PARTS
    ),
    Mutant(
        "policies.remediation.mitigation_options:_of_hang",
        "if index_of(state).freed_by(job, own) == own else ()",
        "if not index_of(state).partners(job.job_id) else ()",
        _HANGS,
    ),
    Mutant(
        "policies.remediation.mitigation_options:_of_hang",
        "if index_of(state).freed_by(job, own) == own else ()",
        "",
        _HANGS,
    ),
    Mutant(
        "policies.queue.preemption:choose",
        "        barred.add(fitted)",
        "        return Chosen([], [], [], selection.rooms)",
        _FIT,
    ),
    Mutant(
        "policies.queue.preemption:choose", "selection.stopped if fitted.waiting else []", "selection.stopped", _FIT
    ),
    Mutant("policies.queue.preemption:_fit", "        plan.hold(free)", "        pass", _FIT),
    Mutant(
        "policies.queue.preemption:_fit",
        "slots = place(plan, job, policy=policy, most=least) if leaving",
        "slots = () if leaving",
        _FIT,
    ),
    Mutant("policies.queue.starting:_start_chosen", "index.plan.hold(found.kept)", "found.kept.clear()", _FIT),
    Mutant("policies.queue.starting:replan", "not blocked and index.capacity.spares", "False", _FIT),
    Mutant(
        "policies.cells.guarantees:_may_start",
        "shares.room(job.spec.queue, len(job.cell_slots)) is not None",
        "False",
        ("tests/policies/test_cells.py",),
    ),
    Mutant("policies.queue.pass_room:_by_type", "pool != NOWHERE and", "", _PARTS),
    Mutant("policies.queue.pass_room:_by_type", "+= pool % TIERS == Tier.SPARE", "+= 0", _SPARES),
    Mutant("policies.queue.pass_room:rooms_of", "held[number] += slots - spares", "held[number] += slots", _SPARES),
    Mutant(
        "policies.queue.pass_room:Room.take",
        "min(max(slots - max(self._idle, 0), 0), max(self._all_spares, 0))",
        "0",
        _ROOM,
    ),
    Mutant("policies.queue.pass_room:Room.has", "spares <= max(self._all_spares, 0)", "True", _ROOM),
    Mutant(
        "policies.queue.preemption:timeouts", "policy.order is Order.THEMIS", "policy.order is not Order.THEMIS", _PARTS
    ),
    Mutant(
        "policies.queue.preemption:swap",
        "if job.not_before_ns > now_ns or ranks <= free:",
        "if ranks <= free:",
        _PARTS,
    ),
    Mutant("policies.queue.preemption:due", "and not state.frozen", "", _PARTS),
    Mutant("policies.queue.reclaim:_rests", "[rest] if rest.slots >= ranks else []", "[rest]", _PARTS),
    Mutant("policies.queue.reclaim:_rests", "for rest in found if rest.slots >= ranks", "for rest in found", _TYPES),
    Mutant("policies.queue.reclaim:reclaim", "asked.add(owner)", "pass", _PARTS),
    Mutant(
        "policies.queue.reclaim:reclaim",
        "job.not_before_ns > context.now_ns",
        "job.not_before_ns >= context.now_ns",
        _PARTS,
    ),
    Mutant("policies.queue.reclaim:_victims", "(after < 0) is not straddling", "(after < 0) is straddling", _PARTS),
    Mutant("policies.queue.reclaim:_first_victims", "if any(", "if False and any(", _PARTS),
    Mutant("policies.queue.reclaim:_victims", "_fewest(index, job, rest, chosen, slots)", "(slots, chosen)", _PARTS),
    Mutant("policies.queue.resizing:timeouts", "len(job.ranks) < (job", "len(job.ranks) <= (job", _PARTS),
    Mutant("policies.queue.resizing:timeouts", "_surplus(job) > 0 and", "", _PARTS),
    Mutant("policies.queue.resizing:timeouts", "(guessed or job.spec.checkpoint_interval_seconds)", "guessed", _PARTS),
    Mutant(
        "policies.queue.resizing:grow",
        "(1 - _speed(state, index, job, job.ranks) / _speed(state, index, job, slots))",
        "(len(slots) / len(job.ranks) - 1)",
        ("tests/policies/test_room.py",),
    ),
    Mutant(
        "policies.remediation.decision_scores:score_observed", "- lost_seconds(verdict, decision.wall_ns)", "", _PARTS
    ),
    Mutant("policies.remediation.decision_scores:score_observed", "and not decision.applied", "", _PARTS),
    Mutant("policies.remediation.decision_scores:score_applied", "and decision.attempt < job.attempt", "", _PARTS),
    Mutant(
        "policies.remediation.decision_scores:score_applied",
        "first_step_ns - decision.wall_ns",
        "first_step_ns - ended_ns",
        _PARTS,
    ),
    Mutant("policies.nodes.spares:appoint", "len(members) - 1)", "len(members))", _PARTS),
    Mutant("policies.nodes.spares:appoint", "count(policy, len(members)) - out", "count(policy, len(members))", _PARTS),
    Mutant("policies.nodes.spares:count", "mean > 0 and beyond >", "mean > 0 and beyond >= 2 *", _PARTS),
    Mutant("policies.nodes.spares:count", "max(policy.spare_nodes, spares)", "spares", _PARTS),
    Mutant("policies.index.queue_shares:Shares.rank_queues", "* fading +", "/ fading +", _PARTS),
    Mutant("policies.index.queue_shares:Shares._rank_key", ">= self.quota", "> self.quota", _PARTS),
    Mutant("policies.index.queue_shares:Shares.left", "return min(left", "return max(left", _PARTS),
    Mutant(
        "policies.index.queue_shares:most_slots",
        "if queue.borrow or queue.quota is None:",
        "if queue.quota is None:",
        _PARTS,
    ),
    Mutant(
        "policies.index.scheduling_index:SchedulingIndex.start",
        "job.started_ns = self.state.now_ns if job.started_ns is None else job.started_ns",
        "job.started_ns = self.state.now_ns",
        _PARTS,
    ),
    Mutant("policies.queue.starting:start", "context.now_ns - job.submitted_ns", "context.now_ns", _PARTS),
    Mutant(
        "policies.queue.starting:place_or_reserve",
        "if at_limit(index, job):",
        "if False:",
        ("tests/policies/test_waiting_reasons.py",),
    ),
    Mutant(
        "policies.remediation.stopping:ask_for_stops",
        "context.now_ns < job.not_before_ns",
        "context.now_ns <= job.not_before_ns",
        _PARTS,
    ),
    Mutant(
        "policies.index.scheduling_index:SchedulingIndex.request_stop",
        "self.state.now_ns if job.stopping_ns is None else job.stopping_ns",
        "self.state.now_ns",
        _PARTS,
    ),
    Mutant("policies.remediation.stopping:ask_for_stops", "and job.state is not JobState.STARTING", "", _PARTS),
    Mutant("policies.remediation.stopping:ask_for_stops", "and job.stop_reason is not StopReason.CANCEL", "", _PARTS),
    Mutant("policies.index.timeouts:expired", "timeout.at_ns <= now_ns", "timeout.at_ns < now_ns", _TIMEOUTS),
    Mutant(
        "policies.index.timeouts:next_ns",
        "timeout.at_ns > after_ns",
        "timeout.at_ns >= after_ns",
        _TIMEOUTS,
        hangs=True,
    ),
    Mutant("policies.index.timeouts:_refused_stops", "or job.stop_reason is StopReason.CANCEL", "", _TIMEOUTS),
    Mutant("policies.index.uplink_loss:crossed", "if domain not in common", "", _PARTS),
    Mutant(
        "policies.index.uplink_loss:congested",
        "max(found.get(domain, 0.0), verdict.slowdown - 1)",
        "verdict.slowdown - 1",
        _PARTS,
    ),
    Mutant("policies.index.uplink_loss:congested", "and job.state.holds_slots", "", _PARTS),
    Mutant("policies.index.uplink_loss:least_burdened", ">= ranks", "> ranks", _PARTS),
    Mutant("policies.queue.waiting_reasons:_explain_array", "first = min(", "first = max(", _PARTS),
    Mutant(
        "policies.queue.waiting_reasons:_explain_waiting",
        "release.at_ns > until_ns",
        "release.at_ns >= until_ns",
        _PARTS,
    ),
    Mutant(
        "policies.queue.waiting_reasons:_blockers",
        "found.append(Blocker(node.name, node.state.value, free, reason))",
        "pass",
        _PARTS,
    ),
    Mutant("policies.queue.placement:least_slots", "min(shape[0], shape[1] or shape[0])", "shape[0]", _PARTS),
    Mutant("policies.queue.pending_line:WaitingLine.needs_level", "return any(", "return all(", _PARTS),
    Mutant(
        "policies.queue.pending_line:WaitingLine.remove",
        "bisect_left(bucket.keys, place.key)",
        "0",
        _PARTS,
    ),
    Mutant("policies.intake.user_requests:submitted", "if event.job_id in context.state.jobs:", "if False:", _PARTS),
    Mutant("policies.intake.user_requests:cancel_requested", "or job.stop_reason is StopReason.CANCEL", "", _PARTS),
    Mutant("policies.intake.user_requests:_is_so", "if command is NodeCommand.REMOVE:", "if False:", _PARTS),
    Mutant("policies.intake.user_requests:_is_so", "and not node.backoff", "", _PARTS),
    Mutant("policies.intake.user_requests:verdict_judged", "verdict or next(past, None)", "verdict", _PARTS),
    Mutant("policies.queue.backfill:candidates", "long=kind.ranks <= unreserved", "long=True", _BACKFILL),
    Mutant("policies.queue.backfill:candidates", "if bucket.keys[index] != key:", "if False:", _BACKFILL, hangs=True),
    Mutant("policies.queue.backfill:Backfill.place_unreserved", "self._plan.hold(slots)", "pass", _BACKFILL),
    Mutant("policies.queue.backfill:only", "place_.kind.ranks <= free", "place_.kind.ranks < free", _BACKFILL),
    Mutant(
        "policies.queue.placement:_needs_slow",
        "spec.required_level is not None or bool(spec.groups) or",
        "spec.required_level is not None and bool(spec.groups) or",
        _BACKFILL,
    ),
    Mutant("policies.nodes.quarantine:others_want", "and any(_has_waited", "and all(_has_waited", _BACKFILL),
    Mutant(
        "policies.nodes.quarantine:quarantine",
        "context.index.set_node_state(node, NodeState.SUSPECT, None, reason, verdict_id)",
        "pass",
        _BACKFILL,
    ),
    Mutant(
        "policies.intake.observations:_leave_attempt", "min(max(ended_wall_ns,", "max(max(ended_wall_ns,", _BACKFILL
    ),
    Mutant("policies.intake.observations:_leave_attempt", "max(ended_wall_ns, begun_ns)", "ended_wall_ns", _BACKFILL),
    Mutant("policies.remediation.move_cost:CostTest.cost_seconds", "self.unsaved_seconds + moving", "moving", _COSTS),
    Mutant("policies.remediation.move_cost:CostTest.gains", "(1 + self.margin)", "(1 - self.margin)", _COSTS),
    Mutant(
        "policies.remediation.move_cost:save_seconds",
        "min(spec.checkpoint_cost_seconds, spec.stop_seconds)",
        "spec.stop_seconds",
        _COSTS,
    ),
    Mutant("policies.remediation.move_cost:measured_seconds", "measured[-1] if", "measured[0] if", _COSTS),
    Mutant("policies.remediation.move_cost:unsaved_seconds", "% job.spec.checkpoint_interval_seconds", "", _COSTS),
    Mutant("policies.remediation.gang_moves:may_be_moved", "job.state is not JobState.RUNNING or", "", _COSTS),
    Mutant("policies.remediation.gang_moves:may_be_moved", "if job.claim or", "if", _COSTS),
    Mutant("policies.remediation.gang_moves:wait_seconds", "min(most, (now_ns", "max(most, (now_ns", _COSTS),
    Mutant(
        "policies.remediation.gang_moves:first_in_line",
        "job.not_before_ns <= now_ns",
        "job.not_before_ns < now_ns",
        _COSTS,
    ),
    Mutant(
        "policies.remediation.mitigation_options:lacks",
        "verdict.confidence < policy.minimum_confidence",
        "verdict.confidence <= policy.minimum_confidence",
        _COSTS,
    ),
    Mutant(
        "policies.remediation.mitigation_options:around",
        "(node.spine, node.rack) for name in own",
        "(node.rack, node.rack) for name in own",
        _COSTS,
    ),
    Mutant("policies.nodes.draining:drain", "or job.stop_reason is not None", "", _PARTS),
    Mutant("policies.intake.dependencies:_became", "is JobState.CANCELLED", "is not JobState.CANCELLED", _PARTS),
    Mutant("policies.gpu_types.type_trades:_next", "if second > least", "if True", _TYPES),
    Mutant("policies.gpu_types.type_trades:_amounts", "seller.demand - seller.total()", "99", _TYPES),
    Mutant("policies.gpu_types.type_trades:keeps", "work < owner.work() - TINY or", "", _TYPES),
    Mutant("policies.gpu_types.type_quotas:divide", "due = happened and", "due =", _TYPES),
    Mutant("policies.gpu_types.type_quotas:divide", "if index.shares.queues[one.name].borrow", "", _TYPES),
    Mutant("policies.index.type_holdings:TypeHoldings.own_first", "+ ranks > 0", "+ ranks < 0", _TYPES),
    Mutant("policies.index.type_holdings:TypeHoldings.release", "held[name] -= count", "pass", _TYPES),
)
