"""Breaks of scheduler_feedback.policies."""

from benchmarks.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "policies.admission:_unspeakable",
        "and not spec.checkpoint_command",
        "or not spec.checkpoint_command",
        ("tests/feedback/test_policies_placement.py",),
    ),
    Mutant(
        "policies.admission:malformed",
        "if not math.isfinite(seconds) or seconds < 0:",
        "if math.isfinite(seconds) or seconds < 0:",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.admission:over_limit", "if found is None:", "if False:", ("tests/feedback/test_policies_room.py",)
    ),
    Mutant(
        "policies.answers:_shrunk",
        "longer = test.remaining_seconds * (len(job.ranks) / len(healthy) - 1)",
        "longer = test.remaining_seconds * (len(job.ranks) * len(healthy) - 1)",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.answers:around",
        "own = {rank.slot.node for rank in job.ranks if rank.slot.node in state.nodes}",
        "own = {rank.slot.node for rank in job.ranks if rank.slot.node not in state.nodes}",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.answers:rule",
        'found.append(Ruling(code, "", test, target, _kept(state, job, target), stopped))',
        "pass",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.backfill:Backfill.place_short",
        "if self._beside is not None:",
        "if self._beside is None:",
        ("tests/feedback/test_policies_placement.py",),
    ),
    Mutant(
        "policies.backfill:reserve",
        "least = min(job.spec.ranks, job.spec.min_ranks or job.spec.ranks)",
        "least = min(job.spec.ranks, job.spec.min_ranks and job.spec.ranks)",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.beside:_slow",
        "if node.slowdown <= 1 or not node.present or not ledger.plan.free_on(node.name):",
        "if node.slowdown <= 1 or node.present or not ledger.plan.free_on(node.name):",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.beside:_wait",
        'return f"a healthy place is expected in {span(patience * ledger.line.places[job.job_id].length_ns / 1e9)}"',
        'return f"a healthy place is expected in {span(patience * ledger.line.places[job.job_id].length_ns * 1e9)}"',
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.beside:start_beside",
        "if node.state is NodeState.QUARANTINE:",
        "if node.state is not NodeState.QUARANTINE:",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.clocks:_is_late_probe",
        "return job.spec.kind is JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)",
        "return job.spec.kind is not JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)",
        ("tests/feedback/test_policies_reclaim.py",),
    ),
    Mutant(
        "policies.clocks:_is_late_start",
        "return job.state is JobState.STARTING and timeout_seconds > 0 and age_ns >= nanoseconds(timeout_seconds)",
        "return job.state is not JobState.STARTING and timeout_seconds > 0 and age_ns >= nanoseconds(timeout_seconds)",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.conservative:Profile.__init__",
        "self._times.append(end.at_ns)",
        "pass",
        ("tests/feedback/test_waiting_with_room.py",),
    ),
    Mutant(
        "policies.conservative:Profile._cut",
        "step = bisect_right(self._times, at_ns) - 1",
        "step = bisect_right(self._times, at_ns) + 1",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.conservative:Profile.earliest",
        "elif step + 1 == len(times) or times[step + 1] >= start_ns + length_ns:",
        "elif step + 1 == len(times) and times[step + 1] >= start_ns + length_ns:",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.cost:CostTest.benefit_seconds",
        "return self.probability * self.share * max(self.slowdown - 1, 0.0) * self.exposed_seconds",
        "return self.probability * self.share * max(self.slowdown + 1, 0.0) * self.exposed_seconds",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.cost:_exposed_seconds",
        "return max(min(remaining_seconds, most_seconds), 0.0)",
        "return min(min(remaining_seconds, most_seconds), 0.0)",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.cost:accused_nodes",
        "return tuple(sorted({v.node for v in state.verdicts.values() if v.gang == job.job_id and v.kind in ACCUSING}))",
        "return tuple(sorted({v.node for v in state.verdicts.values() if v.gang != job.job_id and v.kind in ACCUSING}))",
        ("tests/feedback/test_policies_hosted.py",),
    ),
    Mutant(
        "policies.defragmentation:_without",
        "if slots is None:",
        "if slots is not None:",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.defragmentation:timeouts",
        "if first is not None and first.spec.required_level is not None:",
        "if first is not None and first.spec.required_level is None:",
        ("tests/feedback/test_timeouts.py",),
    ),
    Mutant(
        "policies.dependencies:Dependencies._take_place",
        "elif not waits and job.state is JobState.PENDING:",
        "elif not waits or job.state is JobState.PENDING:",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.dependencies:Dependencies.add",
        "array.members.add(job.job_id)",
        "pass",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.draining:jobs_on",
        "return [job for job in state.jobs.values() if job.state.holds_slots and any(r.slot.node == node for r in job.ranks)]",
        "return [job for job in state.jobs.values() if job.state.holds_slots and any(r.slot.node != node for r in job.ranks)]",
        ("tests/feedback/test_draining.py",),
    ),
    Mutant(
        "policies.draining:may_leave",
        "return job.spec.restartable and job.spec.kind is JobKind.TRAINING",
        "return job.spec.restartable and job.spec.kind is not JobKind.TRAINING",
        ("tests/feedback/test_draining.py",),
    ),
    Mutant(
        "policies.draining:remove",
        'drop_verdict(turn, verdict, "its node was removed")',
        "pass",
        ("tests/feedback/test_draining.py",),
    ),
    Mutant(
        "policies.estimate:remaining_ns",
        "if not job.spec.restartable or not job.run_ns:",
        "if job.spec.restartable or not job.run_ns:",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.evaluations:next_evaluation_ns",
        "while step > 0 and since_ns + _age_ns(step - 1) > now_ns:  # the logarithm is rounded",
        "while step > 0 and since_ns + _age_ns(step - 1) >= now_ns:  # the logarithm is rounded",
        ("tests/feedback/test_timeouts.py",),
    ),
    Mutant(
        "policies.findings:abstained",
        'turn.count("abstentions", abstention.detector)',
        "pass",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.findings:drop_verdict",
        "score_observed(turn, verdict, why)",
        "pass",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.findings:drop_verdicts_of",
        "drop_verdict(turn, verdict, why)",
        "pass",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.history:quantile", "if ended >= wanted:", "if False:", ("tests/feedback/test_policies_waiting.py",)
    ),
    Mutant(
        "policies.history:take_in",
        "foretold = (counts[number] + _WEIGHT * likely) / (_total(counts) + _WEIGHT)",
        "foretold = (counts[number] + _WEIGHT * likely) / (_total(counts) - _WEIGHT)",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.history:yet_within", "if alive <= 0:", "if alive < 0:", ("tests/feedback/test_policies_waiting.py",)
    ),
    Mutant(
        "policies.holdings:Holdings._take",
        "self.plan_or_none.hold(slots)",
        "pass",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.holdings:Holdings.expect_anew", "self._expect(job)", "pass", ("tests/feedback/test_policies_room.py",)
    ),
    Mutant(
        "policies.holdings:Holdings.expect_restarts_anew",
        "self._drop_ends(job_id)",
        "pass",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.hosted:_patience",
        "return NEVER if found is None else (found.from_ns - state.now_ns) / max(remaining_ns(state.policy, job), 1)",
        "return NEVER if found is not None else (found.from_ns - state.now_ns) / max(remaining_ns(state.policy, job), 1)",
        ("tests/feedback/test_policies_hosted.py",),
    ),
    Mutant(
        "policies.hosted:want",
        "and (not node.queues or one.queue in node.queues)",
        "or (not node.queues or one.queue in node.queues)",
        ("tests/feedback/test_policies_hosted.py",),
    ),
    Mutant(
        "policies.hosted:will_be_taken",
        "return job.spec.kind is JobKind.HOSTED and any(one.ranks <= free for one in state.host_waits)",
        "return job.spec.kind is JobKind.HOSTED and all(one.ranks <= free for one in state.host_waits)",
        ("tests/feedback/test_policies_hosted.py",),
    ),
    Mutant(
        "policies.laying:_domains",
        "if free >= ranks and (not barred or free - barred_free(plan, pools, barred, domain) >= ranks):",
        "if free > ranks and (not barred or free - barred_free(plan, pools, barred, domain) >= ranks):",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.laying:_fill_groups", "plan.rollback(mark)", "pass", ("tests/feedback/test_policies_topology.py",)
    ),
    Mutant(
        "policies.laying:_one_node",
        "if number == NOWHERE or not (plan.topology.islands[number] or whole_island):",
        "if number != NOWHERE or not (plan.topology.islands[number] or whole_island):",
        ("tests/feedback/test_policies_topology.py",),
    ),
    Mutant("policies.ledger:Ledger._add", "self._expect(job)", "pass", ("tests/feedback/test_policies_room.py",)),
    Mutant(
        "policies.ledger:Ledger._file",
        "self._cross(held, -1)",
        "self._cross(held, 1)",
        ("tests/feedback/test_policies_uplinks.py",),
    ),
    Mutant(
        "policies.ledger:Ledger.due",
        "while clocks and clocks[0][0] <= now_ns:",
        "while clocks or clocks[0][0] <= now_ns:",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.migration:_about",
        'return found if found is not None and found.kind is Kind.STRAGGLER and found.level == "node" else None',
        'return found if found is not None or found.kind is Kind.STRAGGLER and found.level == "node" else None',
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.migration:_is_open",
        'and case.ruling != "released"',
        'and case.ruling == "released"',
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.migration:judge_running_gangs",
        "if ruling.code in ACTIONS and job.proposed != verdict.verdict_id:",
        "if ruling.code not in ACTIONS and job.proposed != verdict.verdict_id:",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.moves:first_in_line",
        "if not at_limit(ledger, job):",
        "if at_limit(ledger, job):",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.moves:may_be_moved",
        "if now_ns - job.attempt_started_ns < nanoseconds(least):",
        "if False:",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.moves:proposed",
        'turn.decide(job.job_id, kind, text, tuple(detail), "observed")',
        "pass",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.observations:_held",
        "return job if attempt == job.attempt and job.state.holds_slots else None",
        "return job if attempt != job.attempt and job.state.holds_slots else None",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.observations:attempt_ended",
        "_leave_attempt(turn, job, event.ended_wall_ns, event.started, event.done_seconds)",
        "pass",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.observations:node_seen",
        'ledger_of(turn.state).nodes_came()\n            turn.tell(f"node:{event.node}", "seen", f"a node with {event.slots} slots")',
        'pass\n            turn.tell(f"node:{event.node}", "seen", f"a node with {event.slots} slots")',
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.order.fair:appraise",
        "if policy.estimates is Estimates.HISTORY:",
        "if policy.estimates is not Estimates.HISTORY:",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.order.fair:work_done",
        "return done_seconds(job) + max((now_ns - job.attempt_started_ns) / 1e9 - restart, 0.0) * job.speed",
        "return done_seconds(job) + min((now_ns - job.attempt_started_ns) / 1e9 - restart, 0.0) * job.speed",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.overtaking:_first_key",
        "if not ledger.shares.limited:",
        "if ledger.shares.limited:",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.overtaking:backfill_conservatively",
        "job, place_ = state.jobs[key[-1]], ledger.line.places[key[-1]]",
        "job, place_ = state.jobs[key[-1]], ledger.line.places[key[1]]",
        ("tests/feedback/test_policies_waiting.py",),
    ),
    Mutant(
        "policies.patience:_outlasts",
        "return math.erfc((math.log(seconds) - middle) / (LIFE_SIGMA * math.sqrt(2))) / 2 if seconds > 0 else 1.0",
        "return math.erfc((math.log(seconds) - middle) * (LIFE_SIGMA * math.sqrt(2))) / 2 if seconds > 0 else 1.0",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.patience:best_wait",
        "((lost_in_a_second * hurt + alive * cost_seconds, seconds) for seconds, hurt, alive in expected),",
        "((lost_in_a_second * hurt - alive * cost_seconds, seconds) for seconds, hurt, alive in expected),",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.patience:course",
        "seconds = min(horizon, whole_seconds)",
        "seconds = max(horizon, whole_seconds)",
        ("tests/feedback/test_patience.py",),
    ),
    Mutant(
        "policies.placement:_needs_slow",
        "return spec.required_level is not None or bool(spec.groups) or healthy < ranks",
        "return spec.required_level is not None or bool(spec.groups) and healthy < ranks",
        ("tests/feedback/test_policies_feedback.py",),
    ),
    Mutant(
        "policies.placement:_place",
        "on_probation = plan.tightest(number * TIERS + Tier.PROBATION, ranks, barred)",
        "on_probation = plan.tightest(number / TIERS + Tier.PROBATION, ranks, barred)",
        ("tests/feedback/test_policies_room.py",),
    ),
    Mutant(
        "policies.placement:waits_for_healthy",
        "return any(not _needs_slow(plan, pool, spec, ranks, barred) for pool in healthy)",
        "return any(_needs_slow(plan, pool, spec, ranks, barred) for pool in healthy)",
        ("tests/feedback/test_policies_feedback.py",),
    ),
)
