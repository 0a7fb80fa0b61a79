"""Mutants of the rules that distinguish the job's own work from faults: start-up, recurring work, experts, offsets."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

_BASELINE = ("tests/detectors/test_baseline.py",)
_STRAGGLER = ("tests/detectors/test_straggler.py",)
_PERSISTENCE = ("tests/detectors/test_persistence.py",)
_RANKS = ("tests/detect/test_several_ranks.py",)
_PAUSES = ("tests/detect/test_pauses.py",)

_AGAIN = ("tests/detectors/test_slow_again.py",)
_LEVEL = ("tests/detectors/test_own_level.py",)
_DRIFT = ("tests/detectors/test_slow_drift.py",)
_SETS = ("tests/detectors/test_lasting_set.py",)
_HANDMADE = ("tests/handmade_benchmark",)
_WAITS = ("tests/detectors/test_reported_waits.py",)
_COUNTERS = ("tests/detect/test_counters.py",)
_BLOCKED = ("tests/detectors/test_hang_blocked.py",)
_FIT = ("tests/traces_benchmark/test_fit.py",)

_APART = "detectors.health.apart_ranks"
_BLOCKS = "detectors.counters.step_blocks"

_GROUP = "detectors.workload.throttled_group"
_SHOWN = "detectors.straggler.shown_from_start"
_FIRST = "detectors.health.failing_from_start"
_THROTTLED = ("tests/detectors/test_throttled_group.py",)
_FROM_START = ("tests/detectors/test_from_start.py",)

MUTANTS = (
    Mutant(_GROUP + ":throttled_group", "< NEARLY_ALL", "< 0.0", _THROTTLED),
    Mutant(_GROUP + ":throttled_group", " & (clocks * LEAST_SLOWDOWN <= free)", "", _THROTTLED),
    Mutant(_SHOWN + ":learn_shown", "new |= members", "pass", _FROM_START),
    Mutant(_SHOWN + ":cause_shown", "(away >= least) if least > 0", "(away >= 9.0) if least > 0", _FROM_START),
    Mutant(_FIRST + ":_suspects", "(first.lowest[row] > 0) & (mean >= least)", "(mean >= least)", _FROM_START),
    Mutant(_FIRST + ":_suspects", "failing &= others > PCIE_LEAST", "pass", _FROM_START),
    Mutant(_APART + ":_suspects", "if found.steps >= STEPS:", "if True:", _COUNTERS),
    Mutant(_APART + ":_least_steps", "HOST_STEPS if cause in OF_HOST else STEPS", "STEPS", _COUNTERS),
    Mutant(_APART + ":_has_more_work", "if not found.busy[rank]:", "if True:", _COUNTERS),
    Mutant(_APART + ":_errors", "_congested(found, ~here)", "False", _COUNTERS),
    Mutant(_APART + ":_suspects", " or found.slower < LEAST_SLOWDOWN", "", _COUNTERS),
    Mutant(_APART + ":_failing_memory", "max(least, ALONE * others)", "1.0", _COUNTERS),
    Mutant(_APART + ":_steady_clock", "STEADY *", "9 *", _COUNTERS),
    Mutant("detectors.hang.unreported_hang:Traffic.stuck", ", RUNS_ON)", ", 0.0)", _COUNTERS),
    Mutant(_APART + ":_errors", " & (before <= EACH * found.own[row])", "", _COUNTERS),
    Mutant(
        _BLOCKS + ":StepBlocks._place", "if block.step_seconds >= SLOWER * self.usual_seconds:", "if True:", _COUNTERS
    ),
    Mutant(_BLOCKS + ":shifts", "away[:levels] /= blocks.usual[:levels]", "pass", _COUNTERS),
    Mutant("detectors.hang.certain_hangs:blocked_before_peers", "(inside & ~ended).any()", "True", _BLOCKED),
    Mutant("detectors.hang.certain_hangs:blocked_before_peers", "waiting.any()", "True", _BLOCKED),
    Mutant("detectors.hang.certain_hangs:blocked_before_peers", ">= STOPPED_SECONDS * 1e9", ">= 0", _BLOCKED),
    Mutant("detectors.hang.certain_hangs:stopped_since", "before.get(rank, now_ns)", "now_ns", _BLOCKED),
    Mutant("detectors.hang.blocked_evidence:in_another_operation", "2 * count > len(called)", "True", _BLOCKED),
    Mutant("detectors.hang.blocked_evidence:all_wait", "and one.reports >= SAME_REPORTS", "", _BLOCKED),
    Mutant(
        "detectors.hang.unreported_hang:Traffic.stuck", "if by_power and not len(apart):", "if by_power:", _COUNTERS
    ),
    Mutant("detectors.steps.reported_waits:_compare", ">= LEAST_REPORTED", ">= 1.0", _WAITS),
    Mutant("detectors.steps.reported_waits:_compare", ">= LEAST_REPORTED", ">= 0.5", _WAITS),
    Mutant("detectors.straggler.cusum:mates_of", "alarmed[0] == 0", "False", _PERSISTENCE),
    Mutant("detectors.straggler.cusum:mates_of", " and slow[r] >= AS_OFTEN * slow[rank]", "", _PERSISTENCE),
    Mutant("detectors.straggler.persistence:is_own_work", " or _is_short(case)", "", _PERSISTENCE),
    Mutant("detectors.straggler.popular_experts:_takes_no_tokens", "lost <= MOST_GIVEN * gained", "True", _PERSISTENCE),
    Mutant(
        "detectors.straggler.popular_experts:_takes_no_tokens", "-MOST_GAINED * gained <= lost", "True", _PERSISTENCE
    ),
    Mutant("detectors.straggler.slow_again:is_slow_again", "case.rank == 0", "False", _AGAIN),
    Mutant(
        "detectors.straggler.slow_again:is_slow_again", "not is_periodic([begin for begin, _ in found])", "True", _AGAIN
    ),
    Mutant(
        "detectors.straggler.slow_again:is_slow_again",
        "not _others_have_runs(history, case.rank, usual)",
        "True",
        _AGAIN,
    ),
    Mutant("detectors.straggler.slow_again:runs", "index - last <= 1 + SHORT_GAP", "False", _AGAIN),
    Mutant("detectors.straggler.persistence:doubt", "and not again and not _keeps", "and not _keeps", _AGAIN),
    Mutant(
        "detectors.straggler.popular_experts:has_slow_node",
        "slow >= SLOW_SHARE * int(node.sum())",
        "is_whole_node(case)",
        _HANDMADE,
    ),
    Mutant("detectors.straggler.own_level:note_refusal", " and refused", "", _LEVEL),
    Mutant("detectors.straggler.own_level:learn_levels", ">= INTERVAL_WINDOWS]", ">= 3]", _LEVEL),
    Mutant("detectors.straggler.own_level:learn_levels", "if steady[rank]", "if True", _LEVEL),
    Mutant("detectors.straggler.own_level:learn_levels", "not in watched.accused", "not in ()", _LEVEL),
    Mutant("detectors.straggler.own_level:learn_levels", "not baseline.final", "False", _LEVEL),
    Mutant(
        "detectors.straggler.slow_drift:sigmas_of_drift", "sorted(case.alarmed | {case.rank})", "[case.rank]", _DRIFT
    ),
    Mutant("detectors.straggler.slow_drift:sigmas_of_drift", "< LEAST_PEERS", "< 0", _DRIFT),
    Mutant("detectors.straggler.persistence:doubt", "< DRIFT_SIGMAS", "< -DRIFT_SIGMAS", _DRIFT),
    Mutant("detectors.straggler.lasting_set:lasting_set", ">= NODE_WINDOWS", ">= 3", _SETS),
    Mutant("detectors.straggler.lasting_set:lasting_set", "2 * len(lasting) >= count", "False", _SETS),
    Mutant("detectors.straggler.lasting_set:lasting_set", "not watched.where.layout_known", "False", _SETS),
    Mutant("detectors.straggler.lasting_set:shares_work", ">= SLOW_SHARE * size[mine]", ">= 0", _SETS),
    Mutant("detectors.straggler.alarm_case:measure", "or rank in case.lasting", "", _SETS),
    Mutant("detectors.steps.baseline:_slow_from_start", "len(where.names) // NODE_SHARE", "99", _BASELINE),
    Mutant("detectors.stats.log_odds:without_counters", "total >= LEAST_FITTED", "True", _FIT),
    Mutant("detectors.steps.baseline:learn", "windows = after_start_up(windows)", "pass", _BASELINE),
    Mutant("detectors.steps.baseline:after_start_up", "int(long[-1]) + 1", "int(long[-1])", _BASELINE),
    Mutant("detectors.steps.baseline:after_start_up", "middle[:START_UP_WINDOWS]", "middle", _BASELINE),
    Mutant("detectors.straggler.persistence:doubt", "or _is_first(case)", "", _PERSISTENCE),
    Mutant("detectors.straggler.persistence:doubt", "spell.windows <= before < NODE_WINDOWS", "False", _PERSISTENCE),
    Mutant("detectors.straggler.persistence:doubt", "if _is_one_step(case):", "if False:", _PERSISTENCE),
    Mutant(
        "detectors.straggler.persistence:_doubt_of_expert",
        "if same_expert_is_slow(case, shape):",
        "if False:",
        _PERSISTENCE,
    ),
    Mutant("detectors.straggler.persistence:doubt_of_work", "_doubt_of_expert(watched, case, shape)", '""', _STRAGGLER),
    Mutant("detectors.counters.cause_attribution:Attribution.asleep", "and not self.stopped_again", "", _STRAGGLER),
    Mutant("detectors.straggler.persistence:_keeps_returning", "and not _is_first(case)", "", _PERSISTENCE),
    Mutant("detectors.straggler.persistence:is_own_work", "or saves", "", _PERSISTENCE),
    Mutant("detectors.straggler.persistence:is_own_work", "and not is_no_expert(case, shape)", "", _PERSISTENCE),
    Mutant("detectors.straggler.popular_experts:may_be_popular", "or is_no_expert(case, shape)", "", _PERSISTENCE),
    Mutant("detectors.straggler.popular_experts:routes_alike", ">= LEAST_GROUPS", ">= 0", _PERSISTENCE),
    Mutant(
        "detectors.straggler.popular_experts:routes_alike",
        "and not same_expert_is_slow(case, shape)",
        "",
        _PERSISTENCE,
    ),
    Mutant("detectors.straggler.popular_experts:longest_of_others", "if rank and rank", "if rank", _PERSISTENCE),
    Mutant("detectors.steps.baseline:_without_stalls", "steady < usual / STEADIER", "False", _BASELINE),
    Mutant("detectors.steps.baseline:_without_stalls", "steady < usual / STEADIER", "True", _BASELINE),
    Mutant("detectors.steps.baseline:_outlier", "len(usual_log) < MANY_RANKS", "False", _BASELINE),
    Mutant("detectors.steps.baseline:_outlier", "len(usual_log) < MANY_RANKS", "True", _BASELINE),
    Mutant(
        "detectors.steps.baseline:_outlier",
        "(middle_of_equals(usual_log, where), on_node)",
        "(middle_of_equals(usual_log, where),)",
        _BASELINE,
    ),
    Mutant("detectors.steps.baseline:_alone_above", "if len(residual) >= MANY_RANKS", "if True", _BASELINE),
    Mutant("detectors.steps.baseline:_alone_above", "if len(residual) >= MANY_RANKS", "if False", _BASELINE),
    Mutant(
        "detectors.steps.baseline:_slow_from_start",
        "expected = np.where(slow, usual, expected)",
        "pass",
        _BASELINE,
    ),
    Mutant(
        "detectors.straggler.alarm_case:measure",
        "np.minimum(slowed, _own_excess(case, compute))",
        "slowed",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:measure",
        'slowed = case.kept("gain without one stall", lambda: _without_one_stall(case, gain))',
        "slowed = gain",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:measure",
        "case.explained.union(",
        "frozenset[int]().union(",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant("detectors.straggler.cusum:_compared_with", "2 * int(certain.sum()) < len(high)", "False", _PERSISTENCE),
    Mutant("detectors.straggler.cusum:mates_of", "if excess[r] >= FAR_LESS * excess[rank]", "", _PERSISTENCE),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_larger_part",
        "if case.baseline.from_start[rank]",
        "",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant("detectors.straggler.persistence:extend", ">= HIT_SIGMAS", "< -99.0", _PERSISTENCE),
    Mutant("detectors.workload.workload_rules:_offsets", "always &= began <", "always &= 0 * began <", _RANKS),
    Mutant(
        "detectors.workload.workload_rules:_offset_claim",
        "if len(found) > 1 and seconds >= LEAST_SLOWDOWN * (seconds - cost + cost_of_rest):",
        "if False:",
        _RANKS,
    ),
    Mutant(
        "detectors.workload.change_rules:_grown",
        "len(course.where.names) == 1",
        "False",
        ("tests/detectors/test_change_rules.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_grown",
        "> MOST_UNCHANGED",
        "> 1.0",
        ("tests/detectors/test_change_rules.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_pressed",
        "median(of_roles) + THROTTLED",
        "9.0",
        ("tests/detectors/test_workload.py",),
    ),
    Mutant("detectors.hang.long_step:_hang", "known.mean() < LEAST_KNOWN", "not known.all()", _PAUSES),
    Mutant("detectors.hang.long_step:_hang", "known.mean() < LEAST_KNOWN", "False", _PAUSES),
    Mutant(
        "detectors.hang.long_step:LongSteps.take", "self.longest_wait = max(self.longest_wait, waited)", "pass", _PAUSES
    ),
    Mutant("detectors.hang.long_step:LongSteps.take", " or self._is_pause(waited, self.longest_wait)", "", _PAUSES),
    Mutant("detectors.hang.long_step:LongSteps._is_pause", "LEAST_TIMES * usual", "np.inf", _PAUSES),
)
