"""Mutants of cells of queues."""

from benchmarks.mutants.mutant import Mutant

_CELLS = ("tests/policies/test_cells.py",)

MUTANTS = (
    Mutant("policies.cells.virtual_cluster:nodes_of_parts", "reverse=True", "reverse=False", _CELLS),
    Mutant("policies.cells.virtual_cluster:virtual_clusters", "{Cell.NODE: max(left, 0)}", "{}", _CELLS),
    Mutant("policies.cells.ground:Ground._block", "self._undivided(node, first, size),", "0,", _CELLS),
    Mutant("policies.cells.ground:Ground._block", "int(self.splits_racks and", "int(False and", _CELLS),
    Mutant("policies.cells.guarantees:fill", "_in_place(state.bound_cells, cluster, members, ground, job, slots) or slots",
           "slots", _CELLS),
    Mutant("policies.cells.guarantees:fill", "Backfill(plan, reservation, context.now_ns), True", "None, True", _CELLS),
    Mutant("policies.cells.assignment:_start_at_home", "if not leaving:", "if True:", _CELLS),
    Mutant("policies.cells.assignment:_start_elsewhere", "if not may_leave(job) or", "if", _CELLS),
    Mutant("policies.cells.cell_text:waits_for_cells", "if may_leave(job):", "if False:", _CELLS),
    Mutant("policies.cells.cell_text:present", "if at_home(state.bound_cells, job):", "if job.cell_slots:", _CELLS),
)  # fmt: skip
