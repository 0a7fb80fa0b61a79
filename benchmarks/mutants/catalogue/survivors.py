"""Mutants that no test noticed in the past. Those of backends and of the support bundle are in other modules."""

from benchmarks.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "policies.queue.backfill:Backfill.note",
        "if self._unreserved is not None:\n            self._unreserved.hold(slots)",
        "pass",
        ("tests/policies/test_placement.py",),
    ),
    Mutant(
        "policies.index.queue_shares:Shares.room", "self.held[name] + ranks > most", "self.held[name] >= most",
        ("tests/policies/test_waiting_reasons.py",),
    ),
    Mutant(
        "policies.nodes.quarantine:_mark", "elif node.state is NodeState.PROBATION:", "elif False:",
        ("tests/policies/test_feedback.py",),
    ),
    Mutant(
        "policies.index.scheduling_index:SchedulingIndex._allow", "if node.name in job.excluded_nodes:", "if False:",
        ("tests/policies/test_feedback.py",),
    ),
    Mutant(
        "policies.queue.preemption:_fewest", "(-lost_gpu_seconds(job, now_ns), job.job_id)",
        "(lost_gpu_seconds(job, now_ns), job.job_id)", ("tests/policies/test_waiting_reasons.py",),
    ),
    Mutant(
        "policies.queue.waiting_reasons:paused", "if job.not_before_ns > now_ns:", "if False:", ("tests/policies/test_cycle.py",),
    ),
    Mutant(
        "detectors.interference.interference:InterferenceDetector", "max(sure, key=lambda one: one[0].correlation)", "min(sure, key=lambda one: one[0].correlation)",
        ("tests/detectors/test_detectors.py",),
    ),
    Mutant(
        "detectors.hang.hang:HangDetector._evaluate", ", TIMES_THE_LONGEST * watched.longest)", ")",
        ("tests/detectors/test_hang.py", "tests/detectors/test_detectors.py"),
    ),
)  # fmt: skip
