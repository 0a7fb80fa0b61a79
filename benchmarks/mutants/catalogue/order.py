"""Mutants of the orders of pending jobs, and of the run-time estimates that the orders use."""

from benchmarks.mutants.mutant import Mutant

_ORDER = ("tests/policies/test_order.py",)
_TURNS = ("tests/policies/test_round_robin.py",)
_FIT = ("tests/policies/test_preemption_fit.py",)
_MIG = ("tests/policies/test_mig.py",)
_CYCLES = ("tests/policies/test_cycle_policies.py",)
_ELASTIC = ("tests/sim/test_elastic_preemption.py",)
_RECLAIM = ("tests/policies/test_reclaim.py",)
_CHAINS = ("tests/policies/test_policy_parts.py",)
_EMPTY = ("tests/sim/test_engine.py",)
_ESTIMATES = ("tests/policies/test_estimates.py",)

MUTANTS = (
    Mutant("policies.order.__init__:key_of", "(-job.spec.priority, 0,", "(job.spec.priority, 0,", _ORDER),
    Mutant("policies.order.__init__:key_of", "if has_starved(state, job) and", "if False and", _ORDER),
    Mutant("policies.order.__init__:starves_ns", "job.submitted_ns + job.run_ns", "job.submitted_ns", _ORDER),
    Mutant("policies.order.__init__:has_starved", "at_ns <= since_ns", "at_ns < since_ns", _ORDER),
    Mutant(
        "policies.order.__init__:has_starved",
        "state.now_ns if job.state is JobState.PENDING else job.attempt_started_ns or state.now_ns",
        "state.now_ns",
        _ORDER,
    ),
    Mutant("policies.order.__init__:queue", "(not job.claim, key_of", "(bool(job.claim), key_of", _ORDER),
    Mutant("policies.order.fifo:FirstComeFirstServed.key", "return ()", "return (job.spec.ranks,)", _ORDER),
    Mutant(
        "policies.order.fifo:FirstComeFirstServed.name",
        "Order.FIFO",
        "Order.SJF",
        ("tests/policies/test_cycle_policies.py::test_every_order_that_the_policy_can_name_has_a_rule",),
    ),
    Mutant(
        "policies.order.sjf:ShortestJobFirst.key",
        "limit_seconds(state.policy, job) if expected is None else expected",
        "limit_seconds(state.policy, job)",
        _ORDER,
    ),
    Mutant("policies.order.sjf:ShortestJobFirst.key", "else expected,)", "else -expected,)", _ORDER),
    Mutant("policies.order.srsf:ShortestRemainingServiceFirst.key", " * job.spec.ranks", "", _ORDER),
    Mutant(
        "policies.order.srsf:ShortestRemainingServiceFirst.key",
        "left_at_full_speed_ns(state.policy, job, now_ns)",
        "left_at_full_speed_ns(state.policy, job, job.submitted_ns)",
        _ORDER,
    ),
    Mutant("policies.order.srtf:ShortestRemainingTimeFirst.key", "(left_at", "(-left_at", _ORDER),
    Mutant(
        "policies.order.srtf:ShortestRemainingTimeFirst.key",
        "left_at_full_speed_ns(state.policy, job, now_ns)",
        "left_at_full_speed_ns(state.policy, job, job.submitted_ns)",
        _ORDER,
    ),
    Mutant(
        "policies.index.runtime_estimate:left_at_full_speed_ns",
        "return min(round(left * job.speed), attempt)",
        "return left",
        _ELASTIC,
    ),
    Mutant(
        "policies.queue.starting:_start_chosen", "least + rooms[number].most(may_borrow(job.spec))", "10**9", _ELASTIC
    ),
    Mutant("policies.queue.starting:_start_chosen", "slot in index.sharers or", "", _MIG),
    Mutant("policies.queue.starting:_start_chosen", "or index.plan.on_probation(slot.node)", "", _FIT),
    Mutant("policies.mig.instances:place_instances", "if single else", "if False else", _MIG),
    Mutant("policies.queue.starting:_part_within", "if idle > room.idle(borrows):", "if idle:", _MIG),
    Mutant("policies.queue.starting:_start_on_probation", "plan.hold(others)", "pass", _FIT),
    Mutant("policies.queue.starting:replan", "(blocked and context", "(False and context", _CYCLES),
    Mutant(
        "policies.queue.starting:replan",
        "index.changed, index.grown = saved or bool(index.fresh), saved",
        "pass",
        _CYCLES,
    ),
    Mutant(
        "policies.queue.reclaim:start_within_quota", "if first is not None and key[:2] != first:", "if False:", _RECLAIM
    ),
    Mutant(
        "policies.queue.reclaim:_rests",
        "(shares.queues[owner].quota or 0) - shares.held[owner]",
        "ranks",
        _RECLAIM,
    ),
    Mutant("policies.intake.expired_timeouts:expire_timeouts", "while index.hopeless:", "if index.hopeless:", _CHAINS),
    Mutant("policies.queue.conservative_backfill:Profile.free_for", "max(length_ns, 1)", "length_ns", _EMPTY),
    Mutant("policies.order.round_robin:is_past_slice", "ends_ns <= now_ns", "ends_ns < now_ns", _TURNS),
    Mutant(
        "policies.order.round_robin:waits_for_turn", "job.spec.preemptible and job.spec.restartable", "True", _TURNS
    ),
    Mutant("policies.order.round_robin:slice_ends_ns", "job.attempt_started_ns + ", "", _TURNS),
    Mutant("policies.order.las:LeastAttainedService.key", "(job.level, job.turn)", "(job.turn, job.level)", _ORDER),
    Mutant("policies.order.las:falls_ns", " - job.run_ns", "", _ORDER),
    Mutant("policies.order.las:falls_ns", " / job.spec.ranks", "", _ORDER),
    Mutant("policies.order.las:demote", "at_ns <= now_ns", "at_ns < now_ns", _ORDER),
    Mutant("policies.order.las:demote", "enter(state, job)", "pass", _ORDER),
    Mutant("policies.order.las:take_turns", "in reversed(stopped)", "in stopped", _ORDER),
    Mutant("policies.order.las:take_turns", "state.first_turn -= 1", "state.first_turn += 1", _ORDER),
    Mutant(
        "policies.order.themis:FinishTimeFairness.key",
        "-rho(state, job, now_ns) if",
        "rho(state, job, now_ns) if",
        _ORDER,
    ),
    Mutant("policies.order.themis:rho", "left + done_seconds(job)", "left", _ORDER),
    Mutant("policies.order.themis:rho", " / 1e9 + left) / alone", " / 1e9) / alone", _ORDER),
    Mutant("policies.order.fair:Fair.key", "job.urgency)", "-job.urgency)", _ORDER),
    Mutant("policies.order.fair:appraise", "spent * job.spec.ranks", "spent", _ORDER),
    Mutant("policies.order.fair:appraise", "max(left, 1.0) + _restart(job)", "max(left, 1.0)", _ORDER),
    Mutant("policies.order.fair:appraise", "max(limit, done + 1.0)", "limit", _ORDER),
    Mutant("policies.index.runtime_estimate:work_done", "job.attempt > 1", "job.attempt > 0", _ORDER),
    Mutant("policies.order.fair:_restart", "job.attempt and not job.state.holds_slots", "job.attempt", _ORDER),
    Mutant("policies.index.runtime_estimate:remaining_ns", "if done >= expected:", "if done > expected:", _ESTIMATES),
    Mutant("policies.index.runtime_estimate:remaining_ns", "began and job.progress_ns is None", "began", _ESTIMATES),
    Mutant("policies.index.runtime_estimate:loss_seconds", "min((slowdown - 1)", "max((slowdown - 1)", _ESTIMATES),
    Mutant(
        "policies.index.runtime_estimate:lasts_yet_seconds",
        "max(policy.expected_persistence_seconds, (now_ns",
        "min(policy.expected_persistence_seconds, (now_ns",
        _ESTIMATES,
    ),
    Mutant("policies.index.runtime_estimate:slow_since_ns", "min(doubted_ns,", "max(doubted_ns,", _ESTIMATES),
    Mutant("policies.index.runtime_estimate:_corrected_end_ns", "// step + 1)", "// step)", _ESTIMATES),
    Mutant(
        "policies.index.runtime_estimate:end_ns",
        "max(verdict.first_wall_ns, job.attempt_started_ns)",
        "verdict.first_wall_ns",
        _ESTIMATES,
    ),
    Mutant(
        "policies.index.runtime_estimate:job_releases",
        "slots = tuple(slot for slot in slots if slot not in claimed)",
        "pass",
        _ESTIMATES,
    ),
    Mutant(
        "policies.index.runtime_estimate:job_releases",
        "max(now_ns, job.not_before_ns, clear_ns)",
        "max(now_ns, job.not_before_ns)",
        _ESTIMATES,
    ),
    Mutant(
        "policies.index.evaluation_times:next_evaluation_ns",
        "(age_ns // _SECOND + 1)",
        "(age_ns // _SECOND)",
        _ESTIMATES,
        hangs=True,
    ),
    Mutant("policies.index.evaluation_times:_age_ns", "_GROWTH**step", "_GROWTH * step", _ESTIMATES, hangs=True),
)
