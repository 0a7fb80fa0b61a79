"""Mutants of cells of queues, and of gangs with layouts for some numbers of ranks only."""

from benchmarks.mutants.mutant import Mutant

_CELLS = ("tests/policies/test_cells.py",)
_LAYOUTS = ("tests/policies/test_layout_sizes.py",)

MUTANTS = (
    Mutant("policies.cells.virtual_cluster:_grant", "count = min(count, free[whole])", "pass", _CELLS),
    Mutant("policies.cells.virtual_cluster:virtual_clusters", "racks -= count if kind is Cell.RACK else 0", "pass", _CELLS),
    Mutant("policies.cells.slot_use:SlotUse._block", "self._undivided(node, first, size),", "0,", _CELLS),
    Mutant("policies.cells.slot_use:SlotUse._block", "int(self.splits_racks and", "int(False and", _CELLS),
    Mutant("policies.cells.slot_use:slot_use_of", "slot_use.losses[job_id] = recall_slot_seconds(state, job)", "pass", _CELLS),
    Mutant("policies.remediation.move_cost:recall_slot_seconds", "lost * len(job.ranks)", "lost", _CELLS),
    Mutant("policies.cells.guarantees:_may_be_guaranteed", " or job.spec.opportunistic", "", _CELLS),
    Mutant("policies.cells.guarantees:fill", "slots_now or slots", "slots", _CELLS),
    Mutant("policies.cells.guarantees:fill", "one.hold(slots_now)", "pass", _CELLS),
    Mutant("policies.cells.guarantees:fill", "Backfill(plan, reservation, context.now_ns), True", "None, True", _CELLS),
    Mutant("policies.cells.assignment:_start_guaranteed", "if not leaving:", "if True:", _CELLS),
    Mutant("policies.cells.assignment:_start_others", "if not may_leave(job) or", "if", _CELLS),
    Mutant("policies.cells.cell_text:waits_for_cells", "if may_leave(job):", "if False:", _CELLS),
    Mutant("policies.cells.cell_text:present", "if in_own_cells(state.bound_cells, job):", "if job.cell_slots:", _CELLS),
    Mutant("core.job:JobSpec.size_at_most", "if size <= ranks", "if size < ranks", _LAYOUTS),
    Mutant("core.job:JobSpec.sizes_between", "least <= size < below", "least <= size", _LAYOUTS),
    Mutant("policies.queue.resizing:_with_spare", "len(least) < allowed and", "", _LAYOUTS),
    Mutant("policies.remediation.move_cost:resizing_seconds", "+ job.spec.reshard_seconds", "", _LAYOUTS),
    Mutant("policies.sizes.options:sizes_of", "if spec.sizes:", "if False:", _LAYOUTS),
    Mutant("sim.truth:Machines.start", "course.ranks != len(action.placement)", "False", _LAYOUTS),
)  # fmt: skip
