"""Mutants of scheduler_feedback.policies.gpu_types, and of the patience with preferred levels."""

from benchmarks.mutants.mutant import Mutant

_TYPES = ("tests/policies/test_gpu_types.py",)
_LEVELS = ("tests/policies/test_level_patience.py",)

MUTANTS = (
    Mutant("policies.gpu_types.type_backlog:TypeBacklog.take", "bisect_right(free_ns, from_ns)", "ranks", _TYPES),
    Mutant("policies.gpu_types.type_backlog:TypeBacklog.start_ns", "free_ns[wanted - 1]", "free_ns[0]", _TYPES),
    Mutant("policies.gpu_types.type_backlog:TypeBacklog.start_ns", "wanted = free + missing", "return None", _TYPES),
    Mutant(
        "policies.gpu_types.type_backlog:TypeBacklog.start_ns", "borrows and self.spare_ns", "self.spare_ns", _TYPES
    ),
    Mutant(
        "policies.queue.backfill_scheduling:backfill_conservatively",
        "if fits:  # by",
        "if False:  # by",
        ("tests/policies/test_backfill.py",),
    ),
    Mutant(
        "policies.shares.part_placement:place_now", "avoided += slots", "break", ("tests/policies/test_slot_parts.py",)
    ),
    Mutant(
        "policies.cells.assignment:_start_guaranteed",
        "if not never_fits(state, slots):",
        "if True:",
        ("tests/policies/test_power_budget.py",),
    ),
    Mutant(
        "policies.cells.assignment:assign_cells",
        "if unusable(index, cluster, job, {slot.node for slot in job.cell_slots}):",
        "if False:",
        ("tests/policies/test_cells.py",),
    ),
    Mutant(
        "policies.cells.guarantees:_key_of",
        "job.attempt_started_ns if falls else None",
        "None",
        ("tests/policies/test_cells.py",),
    ),
    Mutant("policies.index.runtime_estimate:left_at_full_speed_ns", "left * type_speed(policy, job)", "left", _TYPES),
    Mutant("policies.index.scheduling_index:SchedulingIndex.leave_attempt", "ran_ns * speed", "ran_ns", _TYPES),
    Mutant("policies.gpu_types.faster_types:choose_types", "first if position == 0 else None", "None", _TYPES),
    Mutant("policies.gpu_types.faster_types:choice", "min(ends, key=lambda one: one[0])", "ends[0]", _TYPES),
    Mutant("policies.gpu_types.faster_types:_requests", "job.awaited_until_ns <= now_ns", "False", _TYPES),
    Mutant(
        "policies.gpu_types.faster_types:choose_types",
        "plan, index.ends, state.types_ns",
        "plan, index.ends, context.now_ns",
        _TYPES,
    ),
    Mutant("policies.gpu_types.faster_types:choice", "patience * (takes_ns - best_ns)", "takes_ns - best_ns", _TYPES),
    Mutant(
        "policies.gpu_types.faster_types:_could_hold", "return index.capacity", "return True or index.capacity", _TYPES
    ),
    Mutant("policies.gpu_types.faster_types:choose_types", "if position < DEPTH", "if position < 1", _TYPES),
    Mutant("policies.gpu_types.type_moves:_possible", " or index.line.order or index.claimants", "", _TYPES),
    Mutant("policies.gpu_types.type_moves:_gain_seconds", "1 - present /", "1 - 0.5 * present /", _TYPES),
    Mutant(
        "policies.queue.level_patience:relax_levels", "at_ns is not None and at_ns <= context.now_ns", "False", _LEVELS
    ),
    Mutant("policies.queue.level_patience:relax_levels", "elif not index.capacity", "elif index.capacity", _LEVELS),
    Mutant("policies.queue.placement:prefers_now", "or job.relaxed ", "", _LEVELS),
)
