"""Mutants of scheduler_feedback.detectors."""

from benchmarks.mutants.mutant import Mutant

_D = "tests/detectors/test_detectors.py::test_"
_S = "tests/detectors/test_straggler.py::test_"
_P = "tests/detectors/test_straggler_parts.py::test_"

_ATTRIBUTION = (
    _P + "a_cause_explains_most_of_the_excess",
    _P + "a_process_that_waits_for_a_slow_gpu_is_not_called_suspended",
    _P + "growth_shared_with_peers_is_not_excess",
    _P + "missing_counters_give_no_cause",
    _P + "a_missing_disk_counter_alone_does_not_hide_the_rest",
    "tests/detectors/test_log_odds.py",
)
_WINDOWS = (
    _P + "windows_last_a_second_and_hold_five_steps",
    _P + "the_gain_is_the_step_time_saved_without_the_rank",
    _P + "missing_times_are_filled_from_peers_and_the_usual_difference",
    _P + "excess_time_of_a_collective_is_attributed_to_the_stopped_rank",
    _P + "a_collective_is_attributed_only_to_a_single_stopped_node",
    _P + "the_spread_of_others_includes_their_bursts_only",
)
_PLACES = (
    "tests/detectors/test_medians.py",
    "tests/detectors/test_straggler_parts.py",
    "tests/detectors/test_baseline.py",
)

MUTANTS = (
    Mutant(
        "detectors.__init__:make_all",
        "make(timed)",
        "make()",
        ("tests/detectors/test_detection_order.py::test_a_recorded_trace_has_no_clock_for_any_detector",),
    ),
    Mutant(
        "detectors.__init__:make_detection",
        "timed, switches)",
        "timed)",
        ("tests/detectors/test_counter_statistics.py::test_detectors_of_a_stream_share_statistics_and_switches",),
    ),
    # --- arbiter ---
    Mutant(
        "detectors.arbiter:Active.overlaps",
        "self.of_all_ranks or other.of_all_ranks or ",
        "",
        ("tests/detectors/test_arbiter.py",),
    ),
    Mutant(
        "detectors.arbiter:_accepted",
        "verdict.kind in OF_OWN_JOB,",
        "verdict.kind not in OF_OWN_JOB,",
        ("tests/detectors/test_arbiter.py",),
    ),
    Mutant(
        "detectors.arbiter:Arbiter.resolve",
        "sorted(results) for one",
        "results for one",
        ("tests/detectors/test_arbiter.py",),
    ),
    Mutant(
        "detectors.detection:SharedState.begin",
        "fault_history, self.switches, arbiter",
        "fault_history, Switches(), arbiter",
        ("tests/detectors/test_counter_statistics.py::test_detectors_of_a_stream_share_statistics_and_switches",),
    ),
    Mutant(
        "detectors.detection:SharedState.__init__",
        "CounterStatistics(self.switches)",
        "CounterStatistics()",
        ("tests/detectors/test_counter_statistics.py::test_detectors_of_a_stream_share_statistics_and_switches",),
    ),
    # --- apart ---
    Mutant(
        "detectors.counters.peer_outlier:works_longer",
        " and not many(alike, shape)",
        "",
        ("tests/detectors/test_peer_outlier.py",),
    ),
    Mutant(
        "detectors.counters.peer_outlier:works_longer",
        "bool(clear) and rank in alike",
        "rank in alike",
        ("tests/detectors/test_peer_outlier.py",),
    ),
    Mutant(
        "detectors.counters.peer_outlier:works_longer",
        'longer = -counters.level[FEATURE["sm_clock"], columns]',
        'longer = counters.level[FEATURE["sm_clock"], columns]',
        ("tests/detectors/test_peer_outlier.py",),
    ),
    Mutant(
        "detectors.counters.peer_outlier:kept_from_working",
        "level[known & ~here]) - level[known & here].mean()",
        "level[known]) - level[known & here].mean()",
        ("tests/detectors/test_peer_outlier.py",),
    ),
    Mutant(
        "detectors.counters.peer_outlier:many",
        " and len({shape.nodes[rank] for rank in ranks.tolist()}) > 1",
        "",
        ("tests/detectors/test_peer_outlier.py",),
    ),
    # --- attribution ---
    Mutant(
        "detectors.counters.cause_attribution:attribute",
        "shift[rank] - median_of_the_others(shift, rank)",
        "shift[rank]",
        _ATTRIBUTION,
    ),
    Mutant(
        "detectors.counters.cause_attribution:attribute",
        "excess - processor - queue - storage",
        "excess - processor - queue",
        _ATTRIBUTION,
    ),
    Mutant("detectors.counters.cause_attribution:attribute", "elif on_device:\n        pass\n    ", "", _ATTRIBUTION),
    Mutant(
        "detectors.counters.cause_attribution:attribute",
        "np.isfinite(grown[:, :2]).all()",
        "np.isfinite(grown).all()",
        _ATTRIBUTION,
    ),
    Mutant(
        "detectors.counters.cause_attribution:Attribution.may_be_chance_load",
        "if not self.known:\n            return True",
        "",
        _ATTRIBUTION,
    ),
    Mutant(
        "detectors.counters.cause_attribution:Attribution.contested_share",
        " + max(self.processor, 0.0)",
        "",
        _ATTRIBUTION,
    ),
    # --- baseline ---
    Mutant(
        "detectors.steps.baseline:learn",
        "compute.sum(axis=0) - compute.max(axis=0)",
        "compute.sum(axis=0) - compute.min(axis=0)",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:learn",
        "[: max(1, len(windows) - 1)]\n    wait,",
        "\n    wait,",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:learn_early",
        "sure = found.from_start & (place >= EARLY_RATIO).all(axis=0)",
        "sure = found.from_start",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:learn_early",
        "len(windows) < EARLY_WINDOWS or ",
        "",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:_slow_from_start",
        "usual_log if role is None else usual_log - role",
        "usual_log",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:_slow_from_start",
        "> max(1, len(usual_log) // LEAST_SHARE)",
        "> len(usual_log)",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant(
        "detectors.steps.baseline:_slow_from_start",
        "expected if role is None else expected + role, usual_log",
        "expected, usual_log",
        ("tests/detectors/test_baseline.py",),
    ),
    Mutant("detectors.steps.baseline:per_step", "rate * step_seconds", "rate", ("tests/detectors/test_baseline.py",)),
    # --- chorus ---
    Mutant(
        "detectors.iteration.multi_node_period:strongest",
        "np.exp(-2j * math.pi * frequency * phase[voice])",
        "np.exp(2j * math.pi * frequency * phase[voice])",
        ("tests/detectors/test_multi_node_period.py",),
    ),
    Mutant(
        "detectors.iteration.multi_node_period:strongest",
        "height < ALIKE * float(voices[place])",
        "False",
        ("tests/detectors/test_multi_node_period.py",),
    ),
    Mutant(
        "detectors.iteration.multi_node_period:strongest",
        "height < CLEAR * float(np.median(background))",
        "False",
        ("tests/detectors/test_multi_node_period.py",),
    ),
    Mutant(
        "detectors.iteration.multi_node_period:strongest",
        "> SUBHARMONIC * height",
        "> height",
        ("tests/detectors/test_multi_node_period.py",),
    ),
    Mutant(
        "detectors.iteration.multi_node_period:NodeSignals.period",
        "usable = steady & ",
        "usable = ",
        ("tests/detectors/test_multi_node_period.py",),
    ),
    # --- gate ---
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.slower",
        "usual / max(float(recent.mean()), 1e-3 * usual)",
        "float(recent.mean()) / usual",
        (_D + "a_job_without_steps_is_slower_if_its_traffic_falls", "tests/detectors/test_job_slowdown.py"),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.slower",
        "float(less.mean()) > LESS_SIGMAS * sigma and ",
        "",
        (
            "tests/detectors/test_job_slowdown.py",
            "tests/detectors/test_unreported_victim.py::test_a_healthy_job_with_uneven_iterations_is_never_slower_and_a_slower_one_is",
        ),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.slower",
        "if usual < STANDING * self.best.get(name, 0.0):\n                usual = self.best[name]",
        "",
        ("tests/detectors/test_job_slowdown.py",),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.evaluate",
        "> AGREE:",
        "> 1.0 + AGREE:",
        ("tests/detectors/test_job_slowdown.py",),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.take",
        "if len(known) < max(1, len(row) // 2):",
        "if not len(known):",
        ("tests/detectors/test_job_slowdown.py",),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.take",
        "ring.clear()",
        "pass",
        ("tests/detectors/test_job_slowdown.py",),
    ),
    Mutant(
        "detectors.iteration.job_slowdown:SlowdownTest.due",
        "self.taken - self.evaluated - max",
        "self.taken - max",
        ("tests/detectors/test_job_slowdown.py",),
    ),
    # --- alarm checks ---
    Mutant(
        "detectors.straggler.alarm_checks:_slows_the_job",
        "if not from_start and slower < LEAST_SLOWDOWN:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_slows_the_job",
        "if len(case.alarmed) > max(1, len(case.ranks) // 2):",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_peers_wait",
        "if measured.extra_wait < EXTRA_WAIT_SHARE * measured.excess:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_other_reason",
        "if measured.gain < ALONE * measured.next_gain and not measured.split.stopped_again:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_other_reason",
        "if case.shared_machine and measured.split.may_be_chance_load:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_more_tokens",
        "if case.for_work:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_slows_the_job",
        "if not case.baseline.final and not from_start and slowdown < FIRST_SLOWDOWN:",
        "if False:",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:Measured.excess",
        "self.compute - self.expected",
        "self.compute - self.usual",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:slow_windows",
        "max(HIT_SIGMAS, second / 4)",
        "HIT_SIGMAS",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:stopped_again",
        " and found[-1] - found[0] > 1",
        "",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_period",
        "and not (apart % period).any()",
        "",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:_extra_wait",
        "now - (middle_of_others_of(usual, where, rank) - float(usual[rank]))",
        "now",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_evidence:_of_steps",
        "measured.others_wait,",
        "measured.extra_wait,",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_evidence:_left_out",
        "if measured.of_node else",
        "if not measured.of_node else",
        ("tests/detectors/test_alarm_checks.py",),
    ),
    # --- groups ---
    Mutant(
        "detectors.stats.group_medians:known_median",
        "result[:, known.sizes == 0] = np.nan",
        "pass",
        (_D + "medians_and_means_of_groups_are_correct",),
    ),
    Mutant(
        "detectors.stats.group_medians:known_median",
        "known.fill(padded[place, :columns])",
        "pass",
        (_D + "medians_and_means_of_groups_are_correct",),
    ),
    Mutant(
        "detectors.stats.group_medians:_network",
        "for i in range(size - d) if i & p == r]",
        "for i in range(size - d - 1) if i & p == r]",
        (_D + "medians_and_means_of_groups_are_correct",),
    ),
    Mutant(
        "detectors.stats.group_medians:usual_value",
        "(2 * counts < np.maximum(known.sizes, 1))",
        "(counts < np.maximum(known.sizes, 1))",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    # --- hang ---
    Mutant(
        "detectors.hang.hang:HangDetector._evaluate",
        "if proven or stalled_seconds <",
        "if stalled_seconds <",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:_AttemptState.steps",
        "own[int(own.argmax())] -= min(self.stopped_ns * 1e-9, float(own.max()))",
        "pass",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:_AttemptState.steps",
        "if self.active is None or self.active.confidence < CONFIDENT:",
        "if True:",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._judge",
        "if len(stopped) == len(job.shape):",
        "if False:",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._judge",
        "absent = np.flatnonzero(_behind(opened[:, 0], job.shape))",
        "pass",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._watch",
        "usual if attempt == shape.attempt else None",
        "usual",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._of_ranks",
        "len(nodes) > 1 and len(absent) > max(1, len(job.shape) // FEW)",
        "False",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._judge",
        "absent = by_group",
        "pass",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "detectors.hang.blocked_evidence:confirms",
        "report is None or report.reports < SAME_REPORTS",
        "report is None",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "detectors.hang.blocked_evidence:confirms",
        " and not is_idle(job, who, now_ns)",
        " and False",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "detectors.hang.blocked_evidence:current",
        " if report.at_ns > finished_ns",
        "",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "core.telemetry.fleet_records:Attempts._take_blocked",
        "ranks is not None and member.rank not in ranks",
        "False",
        ("tests/controller/test_hang_files.py",),
    ),
    Mutant(
        "agent.sources.steps.step_connection:Connection.take_updates",
        "elif self.owes_report:",
        "elif True:",
        ("tests/agent/test_blocked_ranks.py",),
    ),
    Mutant(
        "agent.sources.steps.step_connection:Connection.ask",
        "if self.owes_report:",
        "if False:",
        ("tests/agent/test_blocked_ranks.py",),
    ),
    Mutant(
        "detectors.hang.hang:at_fault",
        " & ~np.isin(replicas[absent], replicas[stale])",
        "",
        (_D + "a_reporting_absent_rank_is_at_fault_and_not_a_stale_one",),
    ),
    Mutant(
        "detectors.hang.hang:is_inside",
        " & (seen_ns - opened[:, 2] <= FRESH_SECONDS * 1e9)",
        "",
        ("tests/detectors/test_hang.py",),
    ),
    # --- hang_processes ---
    Mutant(
        "detectors.hang.process_evidence:is_idle",
        "used < IDLE_SHARE * seconds",
        "used <= seconds",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.process_evidence:is_idle",
        "or (job.shape.gpus and job.shape.gpus[who])",
        "",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.process_evidence:evidence",
        "0.0 if stalled_seconds >= LONG_SECONDS else WORKING",
        "0.0",
        ("tests/detectors/test_hang.py",),
    ),
    Mutant(
        "detectors.hang.process_evidence:NEVER_GO_ON", ", ProcessState.GONE)", ")", ("tests/detectors/test_hang.py",)
    ),
    # --- long steps of recordings ---
    Mutant(
        "detectors.hang.long_step:LongSteps._is_pause",
        ", TIMES_THE_LONGEST * self.longest)",
        ")",
        ("tests/detect/test_pauses.py",),
    ),
    Mutant(
        "detectors.hang.long_step:_late",
        "waits < lost / 2",
        "waits >= lost / 2",
        ("tests/detect/test_pauses.py",),
    ),
    # --- hang_unreported ---
    Mutant(
        "detectors.hang.unreported_hang:Traffic.stuck",
        ", TIMES_THE_LONGEST * self.longest)",
        ")",
        ("tests/detectors/test_unreported_hang.py",),
    ),
    Mutant(
        "detectors.hang.unreported_hang:Traffic.stuck",
        "if polling < POLLS:",
        "if False:",
        ("tests/detectors/test_unreported_hang.py",),
    ),
    Mutant(
        "detectors.hang.unreported_hang:Traffic.stuck",
        "if len(apart) and float(self.waits[apart].max()) > LEAST_IO_WAIT * self.idle_windows:",
        "if False:",
        ("tests/detectors/test_unreported_hang.py",),
    ),
    Mutant(
        "detectors.hang.unreported_hang:Traffic.stuck",
        "np.abs(busy - polling) > APART",
        "polling - busy > APART",
        ("tests/detectors/test_unreported_hang.py",),
    ),
    Mutant(
        "detectors.hang.unreported_hang:Traffic.take",
        "if 2 * reporting <= len(self.shape):",
        "if not reporting:",
        ("tests/detectors/test_unreported_hang.py",),
    ),
    # --- health ---
    Mutant(
        "detectors.health.health:ACTING_BUCKETS",
        '"RESTART_BM"',
        '"RESTART_APP"',
        (_D + "an_xid_accuses_only_if_nvidia_asks_for_a_reset",),
    ),
    Mutant(
        "detectors.health.health:HealthDetector._event",
        "if action not in ACTING_RECOVERIES:",
        "if not action:",
        (_D + "recovery_actions_and_lost_devices_accuse_and_a_new_part_clears",),
    ),
    Mutant(
        "detectors.health.health:HealthDetector._accuse",
        "if key in self._active:\n                continue",
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.health:HealthDetector._replaced",
        "key[1] in (node_event.event.entity, node_event.node)",
        "key[1] == node_event.node",
        (_D + "recovery_actions_and_lost_devices_accuse_and_a_new_part_clears",),
    ),
    Mutant(
        "detectors.health.health:_members_on",
        'yield job, job.shape.nodes.index(node) if level == "node" else -1',
        "yield job, job.shape.nodes.index(node)",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.health:HealthDetector.tick",
        "if one.gang and one.gang not in jobs]",
        "if one.gang not in jobs]",
        ("tests/detectors/test_health_parts.py",),
    ),
    # --- health_counters ---
    Mutant(
        "detectors.health.device_outliers:_suspect",
        ' or (FEATURES[FEATURE[name]].unit == "1/s" and not counters.newest[FEATURE[name], column] > 0)',
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.device_outliers:_suspect",
        "if many(np.flatnonzero(counters.score[FEATURE[name], columns] >= least), shape):",
        "if False:",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.device_outliers:_suspect",
        "if of_slow and not stands_apart(counters, shape, rank, slower):",
        "if False:",
        ("tests/detectors/test_unreported_victim.py::test_a_hot_rank_that_works_no_longer_is_not_accused",),
    ),
    Mutant(
        "detectors.health.device_outliers:_candidates",
        "if unreported and not disturbed:",
        "if unreported:",
        (
            "tests/detectors/test_unreported_victim.py::test_a_hot_rank_is_accused_unless_a_neighbour_explains_the_slowdown",
        ),
    ),
    Mutant(
        "detectors.health.device_outliers:_degraded",
        "(counters.newest[row, columns] <= PCIE_LEAST) & ",
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.device_outliers:DifferingCounters.failing",
        " and key not in published.accused",
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    # --- health_ports ---
    Mutant(
        "detectors.health.port_health:Port.recent",
        "at_ns >= since_ns for at_ns in ring",
        "True for at_ns in ring",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.port_health:Port.recent", "max((sum(", "sum((sum(", ("tests/detectors/test_health_parts.py",)
    ),
    Mutant(
        "detectors.health.port_health:Ports.take",
        "port.down_ns = port.down_ns or now_ns",
        "port.down_ns = now_ns",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.port_health:Ports.failing",
        "port.damped_until_ns = now_ns + round(DAMPED_SECONDS * 1e9)",
        "pass",
        ("tests/detectors/test_health_parts.py",),
    ),
    # --- health_silence ---
    Mutant(
        "detectors.health.stale_agents:StaleAgents.mass",
        "max(received_ns, self._awake_ns)",
        "received_ns",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.stale_agents:StaleAgents.mass",
        "(now_ns - at) * 1e-9 <= MASS_SECONDS]",
        "True]",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.stale_agents:StaleAgents.mass",
        "len(recent) < MASS_LEAST or ",
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.stale_agents:StaleAgents.lost",
        "if now_ns < self._mass_until_ns or not self._lost:",
        "if not self._lost:",
        (_D + "many_agents_lost_at_once_freeze_and_page_once", "tests/detectors/test_health_parts.py"),
    ),
    Mutant(
        "detectors.health.stale_agents:StaleAgents.lost",
        "if reported_after > STOOD_STEPS * speed.usual + STOOD_SECONDS:",
        "if False:",
        (_D + "an_agent_stale_during_a_hang_does_not_mean_a_lost_node",),
    ),
    Mutant(
        "detectors.health.stale_agents:_waited_for",
        "np.median(telemetry.now_ns - opened[inside, 1])) * 1e-9 < seconds",
        "np.median(telemetry.now_ns - opened[inside, 1])) * 1e-9 < 0",
        (_D + "a_stale_agent_with_late_records_is_no_lost_node_while_collectives_go_on",),
    ),
    # --- health_speed ---
    Mutant(
        "detectors.health.job_speed:Speed.slower",
        "min(newest) if count == LEAST_NEWEST else middle(newest)",
        "max(newest)",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.job_speed:Speeds._steps",
        "if len(speed.newest) == BEST_STEPS:",
        "if True:",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.job_speed:Speeds._counters",
        "self.slowdown_tests.pop(name, None)",
        "pass",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.health.job_speed:Speeds.dump",
        "{**self._bests, **bests}",
        "bests",
        ("tests/detectors/test_health_parts.py",),
    ),
    # --- interference ---
    Mutant(
        "detectors.interference.rivals:equal_rivals",
        "if not explains_better",
        "if explains_better",
        ("tests/detectors/test_rivals.py",),
    ),
    Mutant(
        "detectors.interference.rivals:equal_rivals",
        "sorted(set(equal))",
        "sorted(equal)",
        ("tests/detectors/test_rivals.py",),
    ),
    Mutant(
        "detectors.interference.interference:InterferenceDetector._at_ease",
        "max(LEAST_WAIT, cost / (1.0 + cost))",
        "0.0",
        (_D + "without_long_cpu_waits_there_is_no_host_interference",),
    ),
    Mutant(
        "detectors.interference.interference:InterferenceDetector._ended",
        "idle > max(hold, HOLD_PAUSES * longest)",
        "idle > hold",
        (_D + "a_neighbour_with_long_pauses_keeps_its_verdict",),
    ),
    Mutant(
        "detectors.interference.interference:InterferenceDetector._report",
        "if key in self._active or key in self._idle:\n            return []",
        "",
        (
            _D + "an_interfering_neighbour_is_reported_and_no_rank_is_accused",
            _D + "interference_is_cleared_when_the_neighbour_is_idle_and_reported_again",
        ),
    ),
    Mutant(
        "detectors.interference.interference:_sure",
        "found[1] >= CHANCE or ",
        "",
        ("tests/detectors/test_correlation.py",),
    ),
    # --- intersection ---
    Mutant(
        "detectors.stats.group_intersection:intersected",
        'if way == "node":\n            continue',
        "",
        ("tests/detectors/test_correlation.py", _D + "the_rank_in_most_slow_groups_explains_the_others"),
    ),
    Mutant(
        "detectors.stats.group_intersection:intersected",
        "share[group] >= SLOW_SHARE",
        "share[group] > 0",
        (_D + "the_rank_in_most_slow_groups_explains_the_others",),
    ),
    Mutant(
        "detectors.stats.group_intersection:intersected",
        "len(of_rank[other]) > len(of_rank[rank])",
        "len(of_rank[other]) >= len(of_rank[rank])",
        (_D + "the_rank_in_most_slow_groups_explains_the_others",),
    ),
    # --- known ---
    Mutant(
        "detectors.stats.validity_mask:ValidityMask._instead",
        "place < below[group]",
        "place <= below[group]",
        (_D + "medians_and_means_of_groups_are_correct",),
    ),
    Mutant(
        "detectors.stats.validity_mask:ValidityMask.put",
        " & self._bits",
        "",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.stats.validity_mask:ValidityMask.clear",
        "np.bitwise_and(bits, self._bits, out=bits)",
        "pass",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.stats.validity_mask:ValidityMasks.of",
        "if np.array_equal(one.of, known):",
        "if one.of.sum() == known.sum():",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    # --- fault_history ---
    Mutant(
        "detectors.counters.fault_history:FaultHistory.weight",
        "(node, 0.5)",
        "(node, 1.0)",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.counters.fault_history:FaultHistory.remember",
        "or now_ns - known.newest_ns > REMEMBERED_NS",
        "",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.counters.fault_history:FaultHistory.weight",
        "min(share * EACH * known.count, MOST_WEIGHT)",
        "share * EACH * known.count",
        ("tests/detectors/test_health_parts.py",),
    ),
    Mutant(
        "detectors.counters.fault_history:FaultHistory.forget",
        "self._past.pop(node, None)",
        "pass",
        (_D + "fault_history_follows_a_part_until_it_is_replaced",),
    ),
    # --- medians ---
    Mutant(
        "detectors.stats.medians:median_of_others",
        "np.where(values <= low, here, low)",
        "np.where(values < low, here, low)",
        ("tests/detectors/test_medians.py",),
    ),
    Mutant(
        "detectors.stats.medians:_middle",
        "if unknown.any():\n        result[unknown] = np.nan",
        "",
        ("tests/detectors/test_medians.py",),
    ),
    Mutant(
        "detectors.stats.medians:middle",
        "(rising[half - 1] + rising[half]) / 2",
        "rising[half]",
        ("tests/detectors/test_medians.py",),
    ),
    Mutant(
        "detectors.stats.medians:median_of_the_others",
        "(others[:half].max() + others[half]) / 2",
        "others[half]",
        ("tests/detectors/test_medians.py",),
    ),
    # --- panel ---
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics._fold",
        "if BAD[feature] < 0:",
        "if BAD[feature] > 0:",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics._fold",
        "residual -= ALLOWANCE",
        "pass",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics._fold",
        "difference *= self._decay",
        "pass",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics._learn",
        "unlearned = taken < self._enough",
        "unlearned = taken <= self._enough",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics._move",
        "if before is shape:",
        "if before is not None:",
        (_D + "baselines_are_restored_rank_by_rank_within_an_attempt",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:_peers",
        "if len(roles) and np.bincount(roles).min() >= LEAST_PEERS",
        "if len(roles)",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.counter_statistics:CounterStatistics.dump",
        "if known is None or len(known.ranks) < len(norm.ranks):",
        "if known is None:",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    # --- periodicity ---
    Mutant(
        "detectors.stats.periodicity:tail",
        "range(hits, min(beats, long) + 1)",
        "range(hits + 1, min(beats, long) + 1)",
        ("tests/detectors/test_periodicity.py::test_the_terms_equal_their_definitions",),
    ),
    Mutant(
        "detectors.stats.periodicity:share_of",
        "(math.pi * test) ** 2",
        "math.pi**2 * test",
        ("tests/detectors/test_periodicity.py::test_the_terms_equal_their_definitions",),
    ),
    Mutant(
        "detectors.stats.periodicity:LongSteps._found",
        "chance = tried * tail",
        "chance = tail",
        ("tests/detectors/test_periodicity.py::test_a_period_is_reported_once_chance_is_excluded",),
    ),
    Mutant(
        "detectors.stats.periodicity:LongSteps.take",
        "> 2 * period.steps",
        "> 200 * period.steps",
        ("tests/detectors/test_periodicity.py::test_a_period_is_cleared_after_two_missing_saves_and_reported_again",),
    ),
    Mutant(
        "detectors.stats.periodicity:LongSteps.take",
        "if number <= self._newest:",
        "if False:",
        ("tests/detectors/test_periodicity.py::test_a_return_to_a_checkpoint_resets_the_test",),
    ),
    Mutant(
        "detectors.stats.periodicity:Period.lost_seconds_a_step",
        "(self.beats + self.missed) * self.steps",
        "self.beats * self.steps",
        ("tests/detectors/test_periodicity.py::test_the_terms_equal_their_definitions",),
    ),
    # --- period estimation ---
    Mutant(
        "detectors.iteration.period_estimation:estimate_period",
        "MIXED[0] < one.cycle < MIXED[1] or ",
        "",
        ("tests/detectors/test_period_estimation.py",),
    ),
    Mutant(
        "detectors.iteration.period_estimation:estimate_period",
        "or (one.strength <= _mirrored(one.cycle) and variation < LEAST_VARIATION)",
        "",
        ("tests/detectors/test_period_estimation.py",),
    ),
    Mutant(
        "detectors.iteration.period_estimation:_follow",
        "float(np.quantile(force, 0.05)) < FADED * float(np.median(force))",
        "False",
        ("tests/detectors/test_period_estimation.py",),
    ),
    Mutant(
        "detectors.iteration.period_estimation:_whole_orders",
        "comb < LEAST_COMB * total",
        "False",
        ("tests/detectors/test_period_estimation.py",),
    ),
    Mutant(
        "detectors.iteration.period_estimation:_whole_orders",
        "if above >= CLEAR and line >= BETWEEN * comb and (part == 2 or not mirrored):",
        "if False:",
        ("tests/detectors/test_period_estimation.py",),
    ),
    # --- samples ---
    Mutant(
        "detectors.steps.shared_sequences:judged_by_sequences",
        "or found.node_wide\n",
        "",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    Mutant(
        "detectors.steps.shared_sequences:judged_by_sequences",
        "or case.baseline.own_spread[case.rank] < UNEVEN\n",
        "",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    Mutant(
        "detectors.steps.shared_sequences:judged_by_sequences",
        "or windows >= LASTING_EPISODES * max(longest, LEAST_EPISODE)\n",
        "",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    Mutant(
        "detectors.steps.shared_sequences:alike",
        "present[its_mates] >= PRESENT_SHARE * present[case.rank]",
        "present[its_mates] >= 0",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    Mutant(
        "detectors.steps.shared_sequences:Alike.slow",
        "self.theirs >= ALIKE_SHARE * self.own",
        "self.theirs >= self.own",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    # --- scales ---
    Mutant(
        "detectors.counters.feature_scales:on_scale",
        "if LOGS[feature]:",
        "if False:",
        ("tests/detectors/test_counter_statistics.py",),
    ),
    Mutant(
        "detectors.counters.feature_scales:on_scale",
        "np.log1p(out[some])",
        "out[some]",
        ("tests/detectors/test_feature_scales.py",),
    ),
    Mutant(
        "detectors.counters.feature_scales:_SCALES",
        '"sm_clock": _Scale("log", -1,',
        '"sm_clock": _Scale("log", 1,',
        ("tests/detectors/test_feature_scales.py",),
    ),
    # --- sharing ---
    Mutant(
        "detectors.interference.shared_resources:_shared",
        "shared |= once & job.shape.resources",
        "shared |= job.shape.resources",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.shared_resources:Sharing.sums",
        "(sums / counts * self._counts)",
        "sums",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.shared_resources:Sharing.of",
        "ranks + first[name]",
        "ranks",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.shared_resources:Sharing.of",
        'FEATURE["nic_transmit_bytes" if kind in SENDING else "processor"]',
        'FEATURE["processor" if kind in SENDING else "nic_transmit_bytes"]',
        ("tests/detectors/test_correlation.py",),
    ),
    # --- signatures ---
    Mutant(
        "detectors.counters.cause_signatures:weigh",
        "(counters.peers if from_start else counters.level)",
        "counters.level",
        ("tests/detectors/test_cause_signatures.py",),
    ),
    Mutant(
        "detectors.counters.cause_signatures:weigh",
        "np.where(margin >= MARGIN, best, -1)",
        "np.where(margin >= 0, best, -1)",
        ("tests/detectors/test_cause_signatures.py",),
    ),
    Mutant(
        "detectors.counters.cause_signatures:weigh",
        "odds += (alarmed.T @ np.abs(WEIGHTS))",
        "odds -= (alarmed.T @ np.abs(WEIGHTS))",
        ("tests/detectors/test_cause_signatures.py",),
    ),
    Mutant(
        "detectors.counters.cause_signatures:Priors.learn",
        "self._counts[cause] += 1.0",
        "pass",
        ("tests/detectors/test_cause_signatures.py",),
    ),
    Mutant(
        "detectors.counters.cause_signatures:evidence",
        "if abs(float(sigmas[feature])) < EVIDENT:",
        "if False:",
        ("tests/detectors/test_cause_signatures.py",),
    ),
    # --- step_clock ---
    Mutant(
        "detectors.interference.victim_steps:Steps.during",
        "(since >= 0) & ",
        "",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.victim_steps:Steps.during",
        "first = int(ends_ns[0]) - long_ns",
        "first = int(ends_ns[0])",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.victim_steps:Steps.add",
        "self.lost[key].append(np.nan)",
        "pass",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.victim_steps:Marks.more",
        ">= LEAST_MARKS",
        ">= -LEAST_MARKS",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.victim_steps:Blocks.take",
        "self._sums[:], self._counts[:] = 0.0, 0.0",
        "pass",
        ("tests/detectors/test_correlation.py",),
    ),
    # --- straggler ---
    Mutant(
        "detectors.straggler.straggler:StragglerDetector._watch",
        "if set(ranks) < set(watched.ranks):\n                return None",
        "",
        (
            _S + "a_restart_of_the_controller_neither_learns_the_fault_nor_forgets_the_verdict",
            "tests/detectors/test_verdict_building.py",
        ),
    ),
    Mutant(
        "detectors.straggler.straggler:StragglerDetector._warm_up",
        "if before is not None and uneasy:",
        "if False:",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.straggler:StragglerDetector._warm_up",
        "if watched.warm_up and watched.warm_up[-1].known != window.known:",
        "if False:",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.straggler:StragglerDetector.tick",
        "telemetry.now_ns - w.seen_ns > ABSENT_NS",
        "telemetry.now_ns - w.seen_ns > 0",
        (_S + "memory_is_bounded_and_ended_jobs_are_dropped", "tests/detectors/test_verdict_building.py"),
    ),
    Mutant(
        "detectors.straggler.straggler:StragglerDetector._conclude",
        "if not judgement.refusal and log_odds.confidence(judgement.evidence) < LEAST_CONFIDENCE:",
        "if False:",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.straggler:_slowdowns",
        "step_seconds - gain",
        "step_seconds + gain",
        ("tests/detectors/test_verdict_building.py",),
    ),
    # --- straggler_causes ---
    Mutant(
        "detectors.straggler.straggler_causes:Causes.judged_by",
        "or judgement.cause is not Cause.UNKNOWN ",
        "",
        ("tests/detectors/test_causes_from_frames.py", "tests/detectors/test_causes.py"),
    ),
    Mutant(
        "detectors.straggler.straggler_causes:Causes.judged_by",
        "if hosts and hosts[judgement.rank] in self._crowded and cause in CONTENDED:",
        "if False:",
        ("tests/detectors/test_causes.py",),
    ),
    Mutant(
        "detectors.straggler.straggler_causes:Causes.on_device",
        ".start + rank]",
        ".start]",
        ("tests/detectors/test_causes.py",),
    ),
    Mutant(
        "detectors.straggler.straggler_causes:Causes.with_past",
        "judgement.cause not in OF_PARTS or ",
        "",
        ("tests/detectors/test_causes.py",),
    ),
    # --- straggler_sums ---
    Mutant(
        "detectors.straggler.cusum:judge_window",
        "np.minimum(np.maximum(sigmas, -CLIP_SIGMAS), CLIP_SIGMAS)",
        "np.maximum(sigmas, -CLIP_SIGMAS)",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.cusum:judge_window",
        "watched.since[score <= 0] = -1",
        "pass",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.cusum:_sigmas",
        "np.fmin(residual, peers)",
        "residual",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.cusum:_sigmas",
        "residual[~window.present] = 0.0",
        "pass",
        ("tests/detectors/test_silent_node.py", "tests/detectors/test_verdict_building.py"),
    ),
    Mutant(
        "detectors.straggler.cusum:persistent",
        "if timed and interval[-1].window.first_ns - interval[0].window.first_ns < ATTRIBUTION_NS:\n        return False",
        "",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.cusum:_less_work",
        "return 1.0 if window.last_ns - watched.light_since_ns >= LIGHT_NS else work",
        "return work",
        ("tests/detectors/test_other_work.py",),
    ),
    # --- verdict_building ---
    Mutant(
        "detectors.straggler.verdict_building:says_more",
        "active.reported_confidence < ACTING_CONFIDENCE <= judgement.confidence",
        "active.reported_confidence < judgement.confidence",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:is_settled",
        "active.reported_confidence >= ACTING_CONFIDENCE and ",
        "",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:cleared",
        "paced[[rank, *active.others]].all()",
        "paced[rank]",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:_place",
        "elif mates or cause in OF_HOST:",
        "elif mates:",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:_onset",
        "min(judged.sigmas[rank], CLIP_SIGMAS)",
        "judged.sigmas[rank]",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:not_yet_sure",
        "if judgement.counters or not own_work",
        "if not own_work",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:doubt",
        "slow < LEAST_SHARE * least",
        "slow < LEAST_SHARE",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:doubt",
        "if spell.windows <= longest:",
        "if spell.windows < 0:",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:doubt",
        "not case.for_work and ",
        "",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:doubt",
        "if not _is_alone(case) and now < TIMES_THE_EARLIER * before:",
        "if False:",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:doubt",
        "if period and spell.windows * spell.window_steps < period:",
        "if period:",
        ("tests/detectors/test_persistence.py", "tests/detect/test_several_ranks.py"),
    ),
    Mutant(
        "detectors.straggler.cusum:_compared_with",
        "not high[node].all()",
        "True",
        ("tests/detect/test_several_ranks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:most_alarmed",
        "max(FEW_RANKS, ranks // FEW)",
        "max(1, ranks // FEW)",
        ("tests/detect/test_several_ranks.py",),
    ),
    Mutant(
        "detectors.steps.reported_waits:_drift_apart",
        " and float(apart.sum(axis=0).var()) >= LEAST_GROWTH * in_one**2",
        "",
        ("tests/detectors/test_reported_waits.py",),
    ),
    Mutant(
        "detectors.steps.reported_waits:_with_waits",
        "lengths - steps.seconds",
        "0.0 * lengths",
        ("tests/detectors/test_reported_waits.py",),
    ),
    Mutant(
        "detectors.hang.long_step:_hang",
        "len(nodes) > 1 or (others < WAITED_SHARE * lost).any()",
        "len(nodes) > 1",
        ("tests/detect/test_pauses.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_slow_stages_of_node",
        "not where.layout_known or _has_pressure(course) or",
        "not where.layout_known or",
        ("tests/detectors/test_slow_stage.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:is_own_work",
        "len(watched.spells[case.rank]) > 1 or _longest_of_others(watched, case) > 0",
        "False",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:_spells_of_node",
        "now = min(now, spell.windows)",
        "pass",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:is_own_work",
        "{case.rank, *replica}",
        "{case.rank}",
        ("tests/detectors/test_shared_sequences.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_slow_stages_of_node",
        "ALIKE_STAGES * max(of_stage)",
        "0.0",
        ("tests/detect/test_several_ranks.py",),
    ),
    Mutant(
        "detectors.straggler.alarm_case:measure",
        "if of_node and where.on_one_node(rank):",
        "if False:",
        ("tests/detect/test_several_ranks.py",),
    ),
    Mutant(
        "detectors.workload.workload_rules:_offsets",
        "< FROM_START_SELF",
        "< 9.0",
        ("tests/detect/test_several_ranks.py",),
    ),
    Mutant(
        "detectors.straggler.persistence:_keeps_returning",
        "half and _is_alone(case) and",
        "half and",
        ("tests/detectors/test_persistence.py",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:whole_gang",
        "or -1 in watched.abstained\n",
        "",
        (_S + "a_gang_slow_as_a_whole_is_reported_once",),
    ),
    Mutant(
        "detectors.straggler.verdict_building:_last_slow",
        "reversed(watched.history)",
        "watched.history",
        ("tests/detectors/test_verdict_building.py",),
    ),
    # --- correlation ---
    Mutant(
        "detectors.stats.correlation:correlate",
        "null = shifted[guard : length - guard]",
        "null = shifted[guard : length // 4]",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:correlate",
        "np.median(victim[busy]) - np.median(victim[~busy])",
        "np.median(victim[~busy]) - np.median(victim[busy])",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:correlate",
        "np.arange(-finer * late // 2, finer * late + 1)",
        "np.arange(-finer * late, finer * late // 2 + 1)",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:pauses",
        "len(sent) - 1 - int(busy[-1])",
        "len(sent) - int(busy[-1])",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:grown",
        "values[len(values) // 5]",
        "values[0]",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:pad",
        "min(length, ring.maxlen or length) - len(ring)",
        "length",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.stats.correlation:least",
        ">= SLOW_SAMPLING_SECONDS",
        "> 10 * SLOW_SAMPLING_SECONDS",
        ("tests/detectors/test_correlation.py",),
    ),
    # --- turns ---
    Mutant(
        "detectors.straggler.rotating_slowness:judged_by_rotation",
        "windows >= LEAST_WINDOWS and ",
        "",
        (
            "tests/detectors/test_rotating_slowness.py::test_rotating_slowness_refuses_alarms_without_cause_or_persistence",
        ),
    ),
    Mutant(
        "detectors.straggler.rotating_slowness:judged_by_rotation",
        " or judgement.cause is not Cause.UNKNOWN",
        "",
        (
            "tests/detectors/test_rotating_slowness.py::test_rotating_slowness_refuses_alarms_without_cause_or_persistence",
        ),
    ),
    Mutant(
        "detectors.straggler.rotating_slowness:judged_by_rotation",
        "turns is Cause.SEQUENCE_LENGTH and case.for_work",
        "case.for_work",
        (
            "tests/detectors/test_rotating_slowness.py::test_rotating_slowness_refuses_alarms_without_cause_or_persistence",
        ),
    ),
    # --- unreported ---
    Mutant(
        "detectors.interference.unreported_victim:Unreported.witnessed",
        "return more >= (LEAST_WAIT",
        "return abs(more) >= (LEAST_WAIT",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.unreported_victim:Unreported.witnessed",
        "slow[busy].mean() < SLOW_OF_BUSY or ",
        "",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.unreported_victim:Unreported.witnessed",
        " or busy[slow].mean() < BUSY_OF_SLOW",
        "",
        ("tests/detectors/test_correlation.py",),
    ),
    Mutant(
        "detectors.interference.unreported_victim:Unreported.take",
        "pad(ring, self.taken, _mean(self.usual[which, ranks]))",
        "pass",
        ("tests/detectors/test_correlation.py",),
    ),
    # --- watched ---
    Mutant(
        "detectors.straggler.gang_state:GangState.interval",
        "return windows[next(slow, 0) :]",
        "return windows",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.gang_state:GangState.active_on",
        "if active.node == node]",
        "]",
        ("tests/detectors/test_slow_node.py",),
    ),
    Mutant(
        "detectors.straggler.gang_state:_unpack",
        'watched.score = arrays["score"]',
        "pass",
        (_S + "a_snapshot_restores_its_state", "tests/detectors/test_verdict_building.py"),
    ),
    Mutant(
        "detectors.straggler.gang_state:_unpack",
        "reported_cause=rank in kept.reported_causes",
        "reported_cause=False",
        (_D + "a_cause_found_late_is_added_to_the_active_verdict",),
    ),
    Mutant(
        "detectors.straggler.gang_state:_of",
        "0 <= rank < count",
        "rank < count",
        ("tests/detectors/test_verdict_building.py",),
    ),
    Mutant(
        "detectors.straggler.gang_state:GangState.take_in",
        "self.to_skip -= skipped",
        "pass",
        ("tests/detectors/test_verdict_building.py",),
    ),
    # --- weighing ---
    Mutant(
        "detectors.stats.log_odds:bounded",
        "0.0 if math.isnan(value) else min(max(value, low), high)",
        "min(max(value, low), high)",
        ("tests/detectors/test_log_odds.py",),
    ),
    Mutant(
        "detectors.stats.log_odds:of_waits",
        "2.0 * held / excess - 0.5",
        "2.0 * excess / held - 0.5",
        ("tests/detectors/test_log_odds.py",),
    ),
    Mutant(
        "detectors.stats.log_odds:of_margin",
        "if gain <= 0:\n        return -2.0",
        "",
        ("tests/detectors/test_log_odds.py",),
    ),
    Mutant(
        "detectors.stats.log_odds:of_cause",
        "3.0 * (contested - CONTESTED_HINT) if shared_machine and",
        "3.0 * (contested - CONTESTED_HINT) if",
        ("tests/detectors/test_log_odds.py",),
    ),
    Mutant(
        "detectors.stats.log_odds:of_cause",
        "if from_start and attribution.cause is Cause.COMPUTE:\n        return 0.0",
        "",
        ("tests/detectors/test_log_odds.py",),
    ),
    Mutant(
        "detectors.stats.log_odds:of_spread",
        "-0.75 * math.log",
        "0.75 * math.log",
        ("tests/detectors/test_log_odds.py",),
    ),
    # --- places and spread ---
    Mutant("detectors.steps.places:places", "sizes >= LEAST_PEERS", "sizes > LEAST_PEERS", _PLACES),
    Mutant(
        "detectors.steps.places:middle_of_others",
        "if len(where.roles) == 1 or not where.votes.all():",
        "if True:",
        _PLACES,
    ),
    Mutant("detectors.steps.places:middle_of_others_of", "np.searchsorted(members, rank)", "0", _PLACES),
    Mutant("detectors.stats.spread:spread", "values - median(values)", "values", _PLACES),
    Mutant(
        "detectors.stats.spread:spread_of_others",
        "np.delete(shifts, rank, axis=1)",
        "shifts",
        (_P + "the_spread_of_others_includes_their_bursts_only",),
    ),
    # --- windows ---
    Mutant("detectors.steps.windows:blame_stopped", "or len(set(where.index[stopped].tolist())) > 1", "", _WINDOWS),
    Mutant("detectors.steps.windows:blame_stopped", "wait[rank] -= excess", "wait[rank] += excess", _WINDOWS),
    Mutant("detectors.steps.windows:cut", "max(by_time, min(first + WINDOW_STEPS - 1, long))", "by_time", _WINDOWS),
    Mutant("detectors.steps.windows:_gain", "largest - flat.max(axis=1)", "largest", _WINDOWS),
    Mutant("detectors.steps.windows:_filled_by_peers", "by_step + apart", "by_step", _WINDOWS),
    Mutant(
        "detectors.steps.windows:join",
        "(weights / weights.sum())",
        "(np.ones_like(weights) / len(weights))",
        (*_WINDOWS, "tests/detectors/test_baseline.py"),
    ),
    # --- work ---
    Mutant("detectors.steps.expected_work:fit", "< LEAST_EXPLAINED", "< 0", ("tests/detectors/test_expected_work.py",)),
    Mutant(
        "detectors.steps.expected_work:fit",
        "return Work(1.0 - mean,",
        "return Work(1.0,",
        ("tests/detectors/test_expected_work.py",),
    ),
    Mutant(
        "detectors.steps.expected_work:fit",
        "negative = [name for name in names if weights[name] < 0]",
        "negative = []",
        ("tests/detectors/test_expected_work.py",),
    ),
    Mutant(
        "detectors.steps.expected_work:Work.factor",
        "np.where(np.isfinite(value), value, 1.0)",
        "value",
        ("tests/detectors/test_expected_work.py",),
    ),
    # --- work_rate ---
    Mutant(
        "detectors.iteration.work_rate:averaged",
        "(sums[last] - sums[first]) / (last - first)",
        "(sums[last] - sums[first]) / width",
        (
            "tests/detectors/test_unreported_victim.py::test_a_rate_is_averaged_over_whole_iterations",
            "tests/detectors/test_unreported_victim.py::test_the_loss_is_relative_to_the_usual_rate",
            "tests/detectors/test_expected_work.py",
        ),
    ),
    Mutant(
        "detectors.iteration.work_rate:steady_width",
        "<= STEADY * mean",
        "<= mean",
        (
            "tests/detectors/test_unreported_victim.py::test_a_rate_is_averaged_over_whole_iterations",
            "tests/detectors/test_expected_work.py",
        ),
    ),
    Mutant(
        "detectors.iteration.work_rate:WorkRate.lost",
        "usual / np.maximum(smooth, 1e-3 * usual) - 1.0",
        "np.maximum(smooth, 1e-3 * usual) / usual - 1.0",
        ("tests/detectors/test_unreported_victim.py::test_the_loss_is_relative_to_the_usual_rate",),
    ),
    Mutant(
        "detectors.iteration.work_rate:WorkRate.take",
        "if 2 * len(known) > len(row) else np.nan",
        "if len(known) else np.nan",
        ("tests/detectors/test_expected_work.py",),
    ),
    # --- workload ---
    Mutant(
        "detectors.workload.workload:WorkloadDetector._conclude",
        "if not members.isdisjoint(context.published.accused):\n                    continue",
        "",
        ("tests/detectors/test_slow_stage.py",),
    ),
    Mutant(
        "detectors.workload.workload:WorkloadDetector._conclude",
        "active.seen, active.seen_ns = course.taken, course.last_ns",
        "pass",
        ("tests/detectors/test_change_rules.py::test_a_verdict_lasts_while_detected_and_is_cleared_after_two_minutes",),
    ),
    Mutant(
        "detectors.workload.workload:WorkloadDetector._conclude",
        "if key == RHYTHM and course.long_steps.period is None:",
        "if False:",
        ("tests/detectors/test_periodicity.py::test_a_period_is_cleared_after_two_missing_saves_and_reported_again",),
    ),
    Mutant(
        "detectors.arbiter:Arbiter._publish",
        "and verdict.cause in IN_TURN",
        "and verdict.cause not in IN_TURN",
        ("tests/detectors/test_arbiter.py",),
    ),
    # --- workload_course ---
    Mutant(
        "detectors.workload.attempt_history:_of_all",
        "usual is not None and float(np.median(compute - usual.compute)) >= (seconds - usual.seconds) / 2",
        "True",
        (
            "tests/detectors/test_workload.py",
            "tests/detectors/test_periodicity.py::test_a_job_that_saves_is_found_after_a_few_saves",
            "tests/detectors/test_attempt_history.py",
        ),
    ),
    Mutant(
        "detectors.workload.attempt_history:_mark",
        "min(list(course.seconds)[-2:])",
        "max(list(course.seconds)[-2:])",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.attempt_history:busy_seconds",
        "one.at_ns - round(one.seconds * 1e9) >= since_ns",
        "one.at_ns >= since_ns",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.attempt_history:take_in",
        "np.where(fine[k], compute, before)",
        "np.where(fine[k], compute, np.nan)",
        ("tests/detectors/test_attempt_history.py",),
    ),
    # --- workload_node ---
    Mutant(
        "detectors.workload.slow_stage:slow_node",
        "or shifts[worst] < APART * others",
        "",
        ("tests/detectors/test_slow_stage.py", "tests/detectors/test_attempt_history.py"),
    ),
    Mutant(
        "detectors.workload.slow_stage:slow_node",
        "waits < max(LEAST_WAITING, (TIMES_USUAL - 1.0) * before) or ",
        "",
        ("tests/detectors/test_slow_stage.py", "tests/detectors/test_attempt_history.py"),
    ),
    Mutant(
        "detectors.workload.slow_stage:slow_node",
        "if CAUSES[kind] is Cause.STORAGE and first[members].all():",
        "if False:",
        ("tests/detectors/test_slow_stage.py",),
    ),
    Mutant(
        "detectors.workload.slow_stage:Pressure.take",
        "if calm or self.usual is None:",
        "if True:",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.slow_stage:alone",
        "len(where.names) > 1 and ",
        "",
        ("tests/detectors/test_attempt_history.py",),
    ),
    # --- workload_rules ---
    Mutant(
        "detectors.workload.workload_rules:_stages",
        "of_stage[worst] < STAGE_RATIO * others or ",
        "",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.workload_rules:_stages",
        " or (by_rank[members] < STAGE_OF_EACH * others).any()",
        "",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.workload_rules:_beats",
        "if long.min() < BEAT_RATIO * others.max():",
        "if False:",
        ("tests/detectors/test_workload.py", "tests/detectors/test_attempt_history.py"),
    ),
    Mutant(
        "detectors.workload.workload_rules:_sequences",
        "if high > ROTATING_SHARE and not few:",
        "if False:",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.workload_rules:_in_a_row",
        "!= 1), most)",
        "> 1), most)",
        ("tests/detectors/test_attempt_history.py",),
    ),
    # --- workload_since ---
    Mutant(
        "detectors.workload.change_rules:_grown",
        "middle < SHARE_OF_WORK * math.log(recent.seconds / usual.seconds)",
        "False",
        ("tests/detectors/test_change_rules.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_grown",
        "if kept > WORK_SHARE:",
        "if kept < WORK_SHARE:",
        ("tests/detectors/test_change_rules.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_pauses",
        "on_node > PAUSE_NODE_SHARE",
        "False",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_pauses",
        "slowest[above > least].tolist()",
        "slowest.tolist()",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_pauses",
        "often > ROTATING_SHARE or len(who_paused) < PAUSE_RANKS",
        "False",
        ("tests/detectors/test_attempt_history.py",),
    ),
    Mutant(
        "detectors.workload.change_rules:_newly_given",
        "float(np.var(left - left.mean(axis=0))) > (1.0 - LENGTHS_EXPLAIN) * varies",
        "False",
        ("tests/detectors/test_change_rules.py",),
    ),
    # --- workload_unreported ---
    Mutant(
        "detectors.workload.unreported_workload:RoleActivity.claims",
        "(clock < 1.0 - LESS_CLOCK * extra / slower).any() or ",
        "",
        ("tests/detectors/test_unreported_workload.py",),
    ),
    Mutant(
        "detectors.workload.unreported_workload:RoleActivity.claims",
        " and len({*self.shape.nodes}) > 1",
        "",
        ("tests/detectors/test_unreported_workload.py",),
    ),
    Mutant(
        "detectors.workload.unreported_workload:RoleActivity._of_stage",
        " or self.nodes[found[0]] < 2",
        "",
        ("tests/detectors/test_unreported_workload.py",),
    ),
    Mutant(
        "detectors.workload.unreported_workload:RoleActivity._idle",
        "(polling <= IDLE) & ",
        "",
        ("tests/detectors/test_unreported_workload.py",),
    ),
    Mutant(
        "detectors.workload.unreported_workload:_claims",
        "if test is None or accused or name in published.disturbed:",
        "if test is None:",
        ("tests/detectors/test_unreported_workload.py",),
    ),
    Mutant(
        "detectors.workload.unreported_workload:RoleActivity.stage_claims",
        "float(others.max()) <= STAGES_ALIKE * middle and ",
        "",
        ("tests/detectors/test_unreported_workload.py",),
    ),
)
