"""Mutants of scheduler_feedback.core."""

from benchmarks.mutants.mutant import Mutant

_FRAMES = ("tests/security/test_frames.py",)

_TABLE = tuple(
    f"tests/security/test_secrets.py::test_{name}"
    for name in ("a_field_without_a_row_is_withheld", "a_withheld_value_keeps_its_type_and_is_listed")
)

_COPIES = tuple(
    f"tests/security/test_readers.py::test_{name}"
    for name in ("a_frozen_copy_shares_nothing_that_a_cycle_changes", "two_copies_share_what_has_not_changed")
)

_OCCURRENCES = tuple(
    f"tests/core/test_occurrences.py::test_{name}"
    for name in (
        "a_port_going_down_and_up_is_reported_once_each_with_its_rdma_name",
        "ports_always_down_or_unknown_are_no_events",
        "a_port_in_transition_is_not_down_and_an_unknown_one_keeps_its_state",
        "losses_are_counted_between_samples_and_implausible_increases_are_ignored",
        "interfaces_without_rdma_devices_count_on_nodes_that_have_none",
        "a_recovery_action_and_a_lost_gpu_are_reported_to_a_new_reader_too",
        "a_gpu_that_is_lost_in_the_first_frame_is_reported",
        "records_get_names_of_the_shape_and_old_records_are_left_out",
        "a_different_gpu_in_a_slot_is_a_replaced_part",
        "the_number_of_events_is_limited",
        "frames_together_give_the_events_of_frames_alone_in_the_same_order",
    )
)
"""Tests of occurrences, except the test that starts an agent."""

_START_LIMIT = ("tests/policies/test_cycle.py",)

MUTANTS = (
    # --- state ---
    Mutant("core.state:Policy.start_seconds", "START_SECONDS if", "0.0 if", _START_LIMIT),
    Mutant(
        "core.state:Policy.start_seconds",
        "self.start_timeout_seconds is None else",
        "not self.start_timeout_seconds else",
        _START_LIMIT,
    ),
    # --- disclosure ---
    Mutant("core.disclosure:rule_of", "WITHHELD)", "NAME)", _TABLE),
    Mutant("core.disclosure:hide", "**empty, ", "", _TABLE),
    Mutant("core.disclosure:shared", "and rule.bundle is Share.KEYS", "and False", _TABLE),
    # --- frozen ---
    Mutant("core.state_copy:_job", "ranks=job.ranks[:], ", "", _COPIES),
    Mutant("core.state_copy:_node", "Node(*_OF_NODE(node))", "node", _COPIES),
    Mutant("core.state_copy:_shared", "kept is not None and kept == value", "kept is not None", _COPIES),
    # --- codec ---
    Mutant(
        "core.codec:decode_state",
        "if version != STATE_VERSION:",
        "if version < STATE_VERSION:",
        ("tests/core/test_codec.py::test_snapshot_of_another_version_is_refused",),
    ),
    Mutant(
        "core.codec:_Union.decode",
        "if name not in self._decoders:",
        "if False:",
        ("tests/core/test_codec.py::test_invalid_event_bytes_are_refused",),
    ),
    Mutant(
        "core.codec:printable",
        "in _NAMED else",
        "not in _NAMED else",
        ("tests/core/test_codec.py::test_printable_events_contain_their_type",),
    ),
    # --- blocked ranks ---
    Mutant(
        "core.telemetry.steps.blocked_ranks:BlockedRanks.add",
        "reports=before.reports + 1",
        "reports=before.reports",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "core.telemetry.steps.blocked_ranks:BlockedRanks.forget",
        "self._reports -= len(gone)",
        "pass",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    Mutant(
        "core.telemetry.steps.blocked_ranks:read",
        "[:MOST_STACKS_CHARACTERS]",
        "",
        ("tests/detectors/test_hang_blocked.py",),
    ),
    # --- consumption ---
    Mutant(
        "core.telemetry.series.consumption:Consumption.group",
        "tier, sizes)).encode()",
        "tier)).encode()",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Consumption.drop",
        "if group.places.empty:",
        "if False:",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "np.repeat(at_ns, slots.shape[1])",
        "np.tile(at_ns, slots.shape[1])",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "self._trails.forget(flat[begun])",
        "pass",
        ("tests/core/test_consumption.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "advance[~valid] = np.nan",
        "pass",
        ("tests/core/test_consumption.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "plain = known & continues &",
        "plain = known &",
        ("tests/core/test_consumption.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "& ~(known & continues & (elapsed_ns == 0))",
        "",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.series_queue:SeriesQueue.settle",
        "fold_apart(cohort.kind._fold, some, self._counting.failed)",
        "pass",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.series_queue:SeriesQueue.settle",
        "for place in reversed(left)}",
        "for place in left}",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places.add",
        "if row_of is not None and np.array_equal(row_of.places.index >= 0, self.index >= 0):",
        "if False:",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places.drop",
        "self._free.append(row)",
        "pass",
        ("tests/core/test_consumption.py",),
    ),
    # --- counting ---
    Mutant(
        "core.telemetry.series.counter_features:Kind._fold_counters",
        "goes_on = batch.continues & self._known[rows]",
        "goes_on = self._known[rows]",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_Counted.rates",
        "known &= before_valid",
        "pass",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:Kind._fold_counters",
        "new = ~goes_on |",
        "new =",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_Counted.rates",
        "advance *= wired.scale",
        "pass",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.frame_batch:rows_of",
        "if len(lengths := set(map(len, arrays))) != 1:",
        "if len(lengths := set(map(len, arrays))) < 1:",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_wire",
        "if labels.get(label) not in allowed:",
        "if False:",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_who",
        "found.get(member) or uuid",
        "uuid",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_pcie_columns",
        " if len(known) == len(metrics)",
        " if known",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:_coordinates",
        "if index.isdecimal() and len(index) < 9 else -1",
        "if index.isdecimal() else -1",
        ("tests/core/test_reported_places.py",),
    ),
    Mutant(
        "core.telemetry.series.counter_features:Counting._drop",
        "if old.kind.empty:",
        "if False:",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.series.frame_batch:fold_apart",
        "failed.append((batch.frames[0].node, error))",
        "pass",
        ("tests/controller/test_part_failures.py::test_a_node_whose_frames_break_folding_is_set_aside_and_retried",),
    ),
    # --- events ---
    Mutant(
        "core.events:as_seen",
        "node.rack,\n        node.rail,",
        "node.rail,\n        node.rack,",
        ("tests/core/test_core_values.py",),
    ),
    Mutant("core.events:as_seen", "node.present,", "True,", ("tests/core/test_core_values.py",)),
    # --- fabric ---
    Mutant(
        "core.fabric:Fabric.uplink",
        'self._of.get((node, rail)) or self._of.get((node, ALL_RAILS), "")',
        'self._of.get((node, rail), "")',
        ("tests/core/test_fabric.py",),
    ),
    Mutant("core.fabric:Fabric.__init__", "if other != leaf.name:", "if False:", ("tests/core/test_fabric.py",)),
    # --- fleet ---
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "(continues and seq <= node.seq)",
        "(continues and seq < node.seq)",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "(same_machine and monotonic_ns < node.monotonic_ns) or ",
        "",
        ("tests/core/test_fleet.py",),
    ),
    Mutant("core.telemetry.fleet:Fleet.observe", "seq - node.seq - 1", "seq - node.seq", ("tests/core/test_fleet.py",)),
    Mutant(
        "core.telemetry.node_clock:NodeClock.take",
        "if abs(offset_ns - self.offset_ns) > SAME_CLOCK_NS:",
        "if offset_ns - self.offset_ns > SAME_CLOCK_NS:",
        ("tests/core/test_node_clock.py",),
    ),
    Mutant(
        "core.telemetry.node_clock:NodeClock.take",
        "min(self._least_ns, self._least_before_ns)",
        "delay_ns",
        ("tests/core/test_node_clock.py",),
    ),
    Mutant(
        "core.telemetry.node_clock:NodeClock.take",
        "if abs(skew_ns) <= MOST_SKEW_NS:",
        "if skew_ns <= MOST_SKEW_NS:",
        ("tests/core/test_node_clock.py",),
    ),
    Mutant("core.telemetry.node_clock:NodeClock.to_wall_ns", " - self.skew_ns", "", ("tests/core/test_node_clock.py",)),
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "not (superseded and continues)",
        "not superseded",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "or frame.node != layout.node",
        "",
        ("tests/core/test_fleet.py",),
    ),
    Mutant("core.telemetry.fleet:Fleet.shares_machine", "- {node}", "", ("tests/core/test_fleet.py",)),
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "node._here, node._records, node._opened = here, (), ()",
        "node._here = here",
        _FRAMES,
    ),
    Mutant("core.telemetry.fleet:Fleet._move", "left.discard(node.name)", "pass", ("tests/core/test_fleet.py",)),
    Mutant(
        "core.telemetry.fleet:Fleet._read_layout",
        "self._series.settle_of(node)",
        "pass",
        ("tests/core/test_consumption.py",),
    ),
    Mutant("core.telemetry.fleet:Fleet.readmit", " and known.attempt == attempt", "", ("tests/core/test_fleet.py",)),
    Mutant(
        "core.telemetry.fleet:Fleet.set_aside",
        "fresh.received_ns = node.received_ns",
        "pass",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.fleet:Fleet.note_receipt",
        "node.received_ns = received_ns",
        "pass",
        ("tests/core/test_fleet.py",),
    ),
    # --- fleet_nodes ---
    Mutant(
        "core.telemetry.fleet_nodes:NodeView.wall_of",
        "self.wall_ns - self.monotonic_ns",
        "self.wall_ns",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.fleet_nodes:NodeView.wall_of",
        "self.wall_ns - self.monotonic_ns",
        "self.clock.offset_ns",
        ("tests/core/test_fleet.py",),
    ),
    # --- fleet_records ---
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts._take_table",
        "wait_ns > duration_ns or ",
        "",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts._take_table",
        "if not 0 <= place < places:",
        "if place >= places:",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.take",
        "table if not known else table.after(known)",
        "table",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.series.consumption:Places._fold",
        "if not kept.all():",
        "if False:",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing.sequence",
        "if self._queued_steps + self._most_filled >= self._ranks:",
        "if self._queued_steps >= self._ranks:",
        ("tests/core/test_step_ring.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.take",
        "max(0, expected - frame.record_seq - left_out)",
        "0",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.take",
        "node.records_missed += max(0, frame.record_seq - expected)",
        "node.records_missed += frame.record_seq > expected",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.take",
        "node._record_seq = frame.record_seq + count + left_out",
        "node._record_seq = frame.record_seq + count",
        ("tests/feed/test_batch_streams.py",),
    ),
    Mutant(
        "core.telemetry.fleet:Fleet.observe",
        "- 1 - len(earlier)",
        "- 1",
        ("tests/feed/test_batch_streams.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.of",
        "elif gang.attempt > attempt:",
        "elif False:",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.forget_silent",
        "> FORGET_NS",
        "> 2 * FORGET_NS",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts._take",
        "if not gang.stepped:",
        "if True:",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_checks:row_of",
        "0 <= wait_ns <= duration_ns",
        "0 <= wait_ns",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_checks:row_of", "now_ns - OLDEST_RECORD_NS <= ", "", ("tests/core/test_fleet.py",)
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.take",
        "if gang.left:",
        "if False:",
        ("tests/core/test_fleet.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts._queued",
        "node.records_missed += frame.record_seq - expected",
        "pass",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_queue:RecordQueue._fold",
        "if finished:",
        "if False:",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_queue:RecordQueue._write_open",
        "rows.kind[chosen] - OPEN_STEP",
        "0",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_queue:_Rows.wrong",
        "(self.end_ns > now_ns + CLOCK_SLACK_NS) | ",
        "",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.record_queue:_Rows.wrong",
        "| (self._place >= self.sizes[self.frame])",
        "",
        ("tests/core/test_record_tables.py",),
    ),
    Mutant(
        "core.telemetry.steps.fleet_records:Attempts.of",
        "if gang is None and len(self.gangs) >= (MOST_GANGS if placed else MOST_GANGS // 2):",
        "if False:",
        ("tests/core/test_fleet.py",),
    ),
    # --- formats ---
    Mutant(
        "core.formats:version_key",
        "while numbers and not numbers[-1]:\n        numbers.pop()",
        "",
        ("tests/core/test_core_values.py",),
    ),
    Mutant("core.formats:Formats.used_by", "if feature.used_by(value)", "if True", ("tests/core/test_core_values.py",)),
    Mutant(
        "core.formats:Formats.__init__",
        "max(self.names.values(), key=version_key",
        "max(self.names.values(), key=str",
        ("tests/core/test_core_values.py",),
    ),
    # --- gangs ---
    Mutant(
        "core.telemetry.steps.step_ring:StepRing.add_rank",
        "self._done[:] = 0",
        "pass",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._finish_together",
        "if in_use.any() or _repeats(column if is_one_step else cell):",
        "if False:",
        ("tests/core/test_step_ring.py",),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._finish_together",
        "complete[np.argsort(last[complete])]",
        "complete",
        ("tests/core/test_step_ring.py",),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._finish_together",
        "(before > numbers).any() or ",
        "",
        ("tests/core/test_step_ring.py",),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing.completed",
        "(self._number[previous] == number - 1) & (self._done[previous] > 0)",
        "self._done[previous] > 0",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing.completed",
        "(number - 1) % len(self._number)",
        "(number - 1) % FIRST_ROWS",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._finish",
        " and not fell_back",
        "",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._finish",
        "if int(self._end[row, column]) == end_ns:\n                return",
        "pass",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.series.consumption_trail:Trails.consume",
        "(newest < 0) | (one_before < 0) | (spacing >= TRAIL_SPACING_NS)",
        "(newest < 0) | (one_before < 0)",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.series.consumption_trail:Trails.consumed",
        "np.minimum(np.maximum(at_ns, low_ns), high_ns)",
        "at_ns",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.gang_attempts:Gang.open_collectives",
        "self._open_cells(1)",
        "self._open_cells(0)",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.open_table:OpenTable.reset",
        "self.cells[cells_of(slots, kind)] = -1",
        "pass",
        ("tests/core/test_gang_attempts.py",),
    ),
    Mutant(
        "core.telemetry.steps.open_table:cells_of",
        "2 * slots + kinds",
        "2 * slots",
        ("tests/core/test_gang_attempts.py",),
    ),
    Mutant(
        "core.telemetry.steps.step_ring:StepRing._lengthen",
        "self._number[kept] % (2 * rows)",
        "self._number[kept] % rows",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    Mutant(
        "core.telemetry.steps.gang_attempts:Gang.step_seconds",
        "max(0, sequence - newest)",
        "0",
        ("tests/core/test_gang_attempts.py", "tests/core/test_fleet.py"),
    ),
    # --- job ---
    Mutant(
        "core.job:JobSpec.stop_seconds",
        "(self.checkpoint_timeout_seconds if self.checkpoint_command else 0.0)",
        "0.0",
        ("tests/core/test_core_values.py",),
    ),
    Mutant("core.job:_HOLDING", ", JobState.STOPPING)", ")", ("tests/core/test_core_values.py",)),
    Mutant("core.job:_ENDED", ", JobState.CANCELLED)", ")", ("tests/core/test_core_values.py",)),
    # --- look ---
    Mutant(
        "core.telemetry.telemetry_update:_walled",
        "found[opened[:, 0] < 0, 1:] = -1",
        "pass",
        ("tests/core/test_telemetry_update.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:_column",
        " or found[0].attempt != member.attempt",
        "",
        ("tests/core/test_counter_features.py", "tests/core/test_telemetry_update.py"),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._job",
        "steps.end_ns + offset_ns",
        "steps.end_ns",
        ("tests/core/test_telemetry_update.py",),
    ),
    Mutant(
        "core.telemetry.steps.gang_attempts:GangConsumed.__call__",
        "gang.consumed(at_ns - self.offset_ns)",
        "gang.consumed(at_ns)",
        ("tests/core/test_telemetry_update.py", "tests/core/test_consumption.py"),
    ),
    Mutant(
        "core.telemetry.steps.gang_attempts:consumed_together",
        "and not of.gang.left",
        "",
        ("tests/core/test_consumption.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._counters",
        "kind.fresh[rows] = False",
        "pass",
        ("tests/core/test_telemetry_update.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._counters",
        "np.where(sampled > 0, lag, np.nan)",
        "lag",
        ("tests/core/test_counter_features.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._jobs",
        "if (name, gang.attempt) in incomplete:",
        "if False:",
        ("tests/controller/test_part_failures.py::test_a_node_whose_frames_break_folding_is_set_aside_and_retried",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._coordinates",
        "if any(rank not in found for rank in gang.ranks):\n            return {}",
        "",
        ("tests/core/test_reported_places.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look.next_in_parts",
        "now_ns - (here_ns - node.received_ns)",
        "now_ns",
        ("tests/core/test_telemetry_update.py",),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._place",
        "if was is not None and was is shape:",
        "if was is not None:",
        ("tests/core/test_counter_features.py", "tests/core/test_telemetry_update.py"),
    ),
    Mutant(
        "core.telemetry.telemetry_update:Look._shape",
        'one.switch if host else ""',
        "one.switch",
        ("tests/core/test_telemetry_update.py",),
    ),
    # --- measures ---
    Mutant(
        "core.state_metrics:_lost_slots",
        "(1.0 - 1.0 / verdict.slowdown)",
        "(verdict.slowdown - 1.0)",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_lost_slots",
        " or job.state is not JobState.RUNNING",
        "",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_lost",
        "max(worst.get(verdict.gang, 0.0), _lost_slots(state, verdict))",
        "worst.get(verdict.gang, 0.0) + _lost_slots(state, verdict)",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_is_restarting",
        "job.attempt > 1 and",
        "job.attempt >= 1 and",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_nodes",
        "if used and tier_of(node) is not None:",
        "if tier_of(node) is not None:",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_nodes",
        "busy.update(job.claim)",
        "pass",
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant(
        "core.state_metrics:_nodes",
        '"unavailable" if tier_of(node) is None else "free"',
        '"free"',
        ("tests/core/test_state_metrics.py",),
    ),
    Mutant("core.state_metrics:_queues", " if job.state.holds_slots else 0", "", ("tests/core/test_state_metrics.py",)),
    Mutant(
        "core.state_metrics:_migrations", "if decision.applied is applied]", "]", ("tests/core/test_state_metrics.py",)
    ),
    Mutant(
        "core.state_metrics:_gangs",
        "max(job.expected_start_ns - state.now_ns, 0)",
        "job.expected_start_ns - state.now_ns",
        ("tests/core/test_state_metrics.py",),
    ),
    # --- membership ---
    Mutant("core.telemetry.membership:Membership.counted", " and claim.ranks is not None:", " and False:", _FRAMES),
    Mutant("core.telemetry.membership:Membership._outside", "!= node:", "is None:", _FRAMES),
    Mutant("core.telemetry.membership:Membership._names", "member.rank not in found.ranks", "False", _FRAMES),
    # --- parts ---
    Mutant("core.telemetry.device_locations:Parts.list", "elif owner != node:", "elif False:", _FRAMES),
    Mutant("core.telemetry.device_locations:Parts.list", "if self._owner.get(part) == node:", "if False:", _FRAMES),
    # --- placements ---
    Mutant("core.telemetry.placements:Placements._place", "if known.nodes == nodes:", "if False:", _FRAMES),
    Mutant(
        "core.telemetry.placements:Placements.claim",
        "Refusal.ENDED if was_here else Refusal.NOT_PLACED",
        "Refusal.ENDED",
        _FRAMES,
    ),
    Mutant("core.telemetry.placements:Placements.follow", "self._remove(gang, known, touched)", "pass", _FRAMES),
    # --- watched columns ---
    Mutant("core.telemetry.series.watched_columns:WatchedColumns.add", "self._fresh[row] = True", "pass", _OCCURRENCES),
    Mutant(
        "core.telemetry.series.watched_columns:WatchedColumns.take",
        "self._gauges[at], self._counters[at], self._fresh[at] = gauges, counters, False",
        "self._fresh[at] = False",
        _OCCURRENCES,
    ),
    # --- occurrences ---
    Mutant(
        "core.telemetry.series.occurrences:Occurrences.take",
        "key=itemgetter(0)",
        "key=lambda one: one[1].node",
        _OCCURRENCES,
    ),
    Mutant("core.telemetry.series.occurrences:Occurrences.fold", "counters |= ~batch.continues", "pass", _OCCURRENCES),
    Mutant("core.telemetry.series.occurrences:Occurrences._record", ' or "before_start" in detail', "", _OCCURRENCES),
    Mutant(
        "core.telemetry.series.occurrences:Occurrences._record",
        "frame.wall_ns - record.time_ns > STALE_NS or ",
        "",
        _OCCURRENCES,
    ),
    Mutant("core.telemetry.series.occurrences:Occurrences._gauges", "elif before is not None:", "else:", _OCCURRENCES),
    Mutant("core.telemetry.series.occurrences:Occurrences._gauges", "if value != value:", "if False:", _OCCURRENCES),
    Mutant(
        "core.telemetry.series.occurrences:Occurrences._counters",
        "0 < value - before <= MOST_LOSSES",
        "0 < value - before",
        _OCCURRENCES,
    ),
    Mutant("core.telemetry.series.occurrences:Occurrences._counters", " and continues", "", _OCCURRENCES),
    Mutant("core.telemetry.series.occurrences:_DOWN", "PORT_STATE: 1.0", "PORT_STATE: 3.0", _OCCURRENCES),
    Mutant(
        "core.telemetry.series.occurrences:_watched",
        'nics.get(name, "") if nics else name',
        "nics.get(name, name)",
        _OCCURRENCES,
    ),
    Mutant(
        "core.telemetry.series.occurrences:Occurrences._read",
        "if gpus.get(address, uuid) != uuid:",
        "if False:",
        _OCCURRENCES,
    ),
    # --- pace ---
    Mutant(
        "core.telemetry.steps.pace:_slow_seconds", "SLOW_SPREADS * (usual - low)", "0.0", ("tests/core/test_pace.py",)
    ),
    Mutant(
        "core.telemetry.steps.pace:_slow_seconds",
        "min(max(SLOW * usual, usual + SLOW_SPREADS * (usual - low)), SURELY_SLOW * usual)",
        "max(SLOW * usual, usual + SLOW_SPREADS * (usual - low))",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:Speed.gap_seconds",
        "max(GAP_SECONDS, GAP_STEPS * usual)",
        "GAP_SECONDS",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:Pace.ratios",
        "np.flatnonzero(self.roles == role)",
        "np.arange(len(self.roles))",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:_Ring.add",
        "self.steps[row] += last - first",
        "self.steps[row] = last - first",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:_Ring.add",
        "table.seconds - table.wait_seconds, table.seconds)",
        "table.seconds, table.seconds)",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:_Ring.shorten",
        "newest % len(self.at_ns), newest % rows",
        "newest % rows, newest % rows",
        ("tests/core/test_pace.py",),
    ),
    Mutant(
        "core.telemetry.steps.pace:Paces._ring_of",
        " or ring.shape.attempt != shape.attempt",
        "",
        ("tests/core/test_pace.py",),
    ),
    Mutant("core.telemetry.steps.pace:Paces.take", "if gang not in self._present]", "]", ("tests/core/test_pace.py",)),
    # --- plain_text ---
    Mutant("core.plain_text:_harm", '("Cc", "Zl", "Zp")', '("Cc",)', ("tests/core/test_plain_text.py",)),
    Mutant("core.plain_text:misleading", "{position + 1}", "{position}", ("tests/core/test_plain_text.py",)),
    Mutant("core.plain_text:_REORDERING", "\\u202e", "", ("tests/core/test_plain_text.py",)),
    # --- plan ---
    Mutant(
        "core.cluster:tier_of",
        "node.spare and node.present and",
        "node.spare and",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant("core.cluster:tier_of", " if node.present else None", "", ("tests/policies/test_slot_plan.py",)),
    Mutant(
        "policies.index.slot_plan:Plan.give",
        "(bits := bits & (1 << sizes[number]) - 1)",
        "bits",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.rollback",
        "while len(journal) > mark:",
        "while len(journal) > mark + 1:",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan._put",
        "inside[domain] += after",
        "inside[domain] -= after",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.island",
        "part.bit_count() < found.bit_count()",
        "part.bit_count() > found.bit_count()",
        ("tests/policies/test_domains.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.tightest",
        "free[child] < free[fullest]",
        "free[child] > free[fullest]",
        ("tests/policies/test_domains.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.free",
        "if number is not None and self.pool[number] in pools:",
        "if number is not None:",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.change",
        "self.slots_in[before] -= self.topology.sizes[number]",
        "pass",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan._note_slowdown",
        "self.slowdown.pop(number, None)",
        "pass",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant(
        "policies.index.slot_plan:Plan.tight_holes",
        "key=lambda pool: pool % TIERS",
        "key=lambda pool: -pool",
        ("tests/policies/test_slot_plan.py",),
    ),
    Mutant("policies.index.slot_plan:Plan.copy", "self.count[:]", "self.count", ("tests/policies/test_slot_plan.py",)),
    # --- process_states ---
    Mutant(
        "core.telemetry.process_states:NodeStates.__init__",
        " and (one.gang, one.attempt) in newest}",
        "}",
        ("tests/core/test_process_states.py",),
    ),
    Mutant(
        "core.telemetry.process_states:NodeStates.__init__",
        "{*old.members, *old.gone}",
        "{*old.members}",
        ("tests/core/test_process_states.py",),
    ),
    Mutant(
        "core.telemetry.process_states:NodeStates.of",
        "int(ProcessState.GONE) if member in self.gone else UNKNOWN_STATE",
        "UNKNOWN_STATE",
        ("tests/core/test_process_states.py",),
    ),
    Mutant(
        "core.telemetry.process_states:NodeStates.of",
        " and 0 <= value < len(ProcessState)",
        "",
        ("tests/core/test_process_states.py",),
    ),
    # --- subscription ---
    Mutant(
        "core.telemetry.series.column_subscription:",
        'metric.kind != "counter" or set(metric.labels) <= kept',
        'metric.kind != "counter" or True',
        ("tests/core/test_column_subscription.py",),
    ),
    Mutant(
        "core.telemetry.series.column_subscription:",
        ", (label for label, _ in feature.labels)",
        "",
        ("tests/core/test_column_subscription.py",),
    ),
    Mutant(
        "core.telemetry.series.column_subscription:", "*RELATIONS, ", "", ("tests/core/test_column_subscription.py",)
    ),
    # --- telemetry ---
    Mutant(
        "core.telemetry.telemetry:Shape.groups",
        "_number(stage, tensor)",
        "_number(tensor)",
        ("tests/core/test_shapes.py",),
    ),
    Mutant(
        "core.telemetry.telemetry:Shape.groups", "_number(data, stage)", "_number(data)", ("tests/core/test_shapes.py",)
    ),
    Mutant(
        "core.telemetry.telemetry:_number",
        "then.max(initial=0) + 1",
        "then.max(initial=0)",
        ("tests/core/test_shapes.py",),
    ),
    Mutant(
        "core.telemetry.telemetry:_ranked",
        "np.cumsum(np.bincount(whole) > 0) - 1",
        "np.arange(int(whole.max()) + 1)",
        ("tests/core/test_shapes.py",),
    ),
    Mutant("core.telemetry.telemetry:Shape.resources", " if name)", ")", ("tests/core/test_shapes.py",)),
    Mutant(
        "core.telemetry.telemetry:Shape.__post_init__",
        "if kind not in RESOURCES or len(names) != count:",
        "if False:",
        ("tests/core/test_shapes.py",),
    ),
    Mutant(
        "core.telemetry.telemetry:Telemetry.columns",
        "zip((0, *ends), ends, strict=False)",
        "zip(ends, (*ends[1:], 0), strict=False)",
        ("tests/core/test_shapes.py",),
    ),
    Mutant(
        "core.telemetry.telemetry:Grouping._buckets",
        "middle - (counts - 1) // 2",
        "middle - counts // 2",
        (
            "tests/core/test_shapes.py",
            "tests/detectors/test_detectors.py::test_medians_and_means_of_groups_are_correct",
        ),
    ),
    Mutant(
        "core.telemetry.telemetry:Grouping._in_order",
        "self.of[1:] >= self.of[:-1]",
        "self.of[1:] <= self.of[:-1]",
        ("tests/core/test_shapes.py",),
    ),
    # --- topology ---
    Mutant(
        "policies.index.domains:Topology.narrow",
        "if not domain.nodes & covered:",
        "if True:",
        ("tests/policies/test_domains.py",),
    ),
    Mutant(
        "policies.index.domains:Topology._grow",
        "path = (*path, name)",
        "path = (level, name)",
        ("tests/policies/test_domains.py",),
    ),
    Mutant("policies.index.domains:lowest", "bits & -bits", "bits", ("tests/policies/test_domains.py",)),
    Mutant(
        "policies.index.domains:Topology.__init__",
        "self.refused.get(constraint, 0) | self.bits[number]",
        "self.bits[number]",
        ("tests/policies/test_domains.py",),
    ),
    # --- turn ---
    Mutant(
        "policies.cycle_context:CycleContext.decide",
        'outcome == "applied"',
        "True",
        ("tests/core/test_core_values.py",),
    ),
    Mutant(
        "policies.cycle_context:CycleContext.count",
        "self.state.counts.get(key, 0) + 1",
        "1",
        ("tests/core/test_core_values.py",),
    ),
    Mutant(
        "policies.cycle_context:CycleContext.action_id",
        "self.state.action_count += 1",
        "pass",
        ("tests/core/test_core_values.py",),
    ),
    Mutant(
        "policies.cycle_context:CycleContext.after",
        "self.now_ns + nanoseconds(seconds)",
        "nanoseconds(seconds)",
        ("tests/core/test_core_values.py",),
    ),
    Mutant("core.durations:span", "if seconds < 7200", "if seconds < 72000", ("tests/core/test_core_values.py",)),
    Mutant("core.durations:span", "if seconds < 10:", "if seconds < 100:", ("tests/core/test_core_values.py",)),
    # --- verdict ---
    Mutant(
        "agent.schema.verdicts.kinds:ACCUSING",
        "Accused.HARDWARE",
        "Accused.NOTHING",
        ("tests/core/test_verdict_kinds.py",),
    ),
    # --- verdict_text ---
    Mutant(
        "core.verdict_text:_amount",
        "if slowdown < 2 else",
        "if slowdown < 20 else",
        ("tests/core/test_verdict_text.py",),
    ),
    Mutant(
        "core.verdict_text:_amount",
        "if not 1.005 <= slowdown < inf:",
        "if not slowdown < inf:",
        ("tests/core/test_verdict_text.py",),
    ),
    Mutant("core.verdict_text:spans_of", "== number - 1", "<= number - 1", ("tests/core/test_verdict_text.py",)),
    Mutant("core.verdict_text:_ranks", "if number >= 0})", "})", ("tests/core/test_verdict_text.py",)),
    Mutant("core.verdict_text:_others", " - {verdict.rank})", ")", ("tests/core/test_verdict_text.py",)),
    Mutant(
        "core.verdict_text:_hangs",
        "1 <= verdict.step_seconds_now < inf",
        "verdict.step_seconds_now < inf",
        ("tests/core/test_verdict_text.py",),
    ),
    Mutant(
        "core.verdict_text:cause_of",
        " if verdict.aggressor else words",
        " if not verdict.aggressor else words",
        ("tests/core/test_verdict_text.py",),
    ),
)
