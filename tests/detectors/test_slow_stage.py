"""Slow pipeline stages and slow nodes, in jobs where each stage has its own nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.workload.workload import WorkloadDetector
from tests.detectors.alone import accuse, alone
from tests.detectors.test_detectors import Job, course

RANKS, STAGES, NODES = 16, 4, 2
BEGINS, ENDS = 80.0, 140.0


def job_of_stages(node_waits: dict[str, float], ranks: int = 8) -> Job:
    """Return sixteen ranks in four stages on two nodes.

    For a minute the first `ranks` take half as long again. node_waits: share of that time that tasks of a node wait.
    """
    job = Job(ranks=RANKS, nodes=NODES)
    job.shape = replace(job.shape, stage=np.arange(RANKS) * STAGES // RANKS, data=np.arange(RANKS) % 4)
    slow = np.arange(RANKS) < ranks

    def fault_present(second: float) -> bool:
        return BEGINS < second < ENDS

    job.work = lambda second: np.where(slow & fault_present(second), 1.05, 0.7)
    for name in ("io_waiting", "cpu_waiting"):
        more = node_waits.get(name, 0.0)
        job.feature[name] = lambda second, more=more: np.where(  # type: ignore[misc]
            (np.arange(RANKS) < RANKS // NODES) & fault_present(second), more, 0.001
        )
    return job


def reported(job: Job) -> list[tuple[int, Finding]]:
    return course(alone(WorkloadDetector()), [job], 190)


@pytest.mark.parametrize(("waits", "cause"), [("io_waiting", Cause.STORAGE), ("cpu_waiting", Cause.CPU_CONTENTION)])
def test_a_node_with_waiting_tasks_is_reported_and_not_its_stages(waits: str, cause: Cause) -> None:
    job = job_of_stages({waits: 0.3})
    found = reported(job)
    (at, verdict) = next((second, one) for second, one in found if isinstance(one, Verdict))
    assert (verdict.kind, verdict.cause, verdict.node, verdict.level) == (Kind.STRAGGLER, cause, "j-n0", "node")
    assert verdict.ranks == tuple(range(8))
    assert verdict.confidence >= Policy().minimum_confidence
    assert BEGINS < at < BEGINS + 30
    assert [type(one) for _, one in found] == [Verdict, Cleared]
    assert ENDS < found[1][0] < ENDS + 30, "a verdict that moves jobs is cleared soon after its end"


def test_a_node_that_alone_reads_input_is_reported_with_lower_confidence() -> None:
    """A slow disk and the reading of input both make the tasks of the node wait."""
    job = job_of_stages({"io_waiting": 0.3})
    job.shape = replace(job.shape, stage=np.arange(RANKS) * 2 // RANKS, data=np.arange(RANKS) % 8)
    (verdict,) = [one for _, one in reported(job) if isinstance(one, Verdict) and one.node]
    assert 0.5 <= verdict.confidence < Policy().minimum_confidence


def test_stages_with_more_work_accuse_no_node() -> None:
    for ranks in (4, 8):
        found = [one for _, one in reported(job_of_stages({}, ranks)) if isinstance(one, Verdict)]
        assert not [one for one in found if one.node]


def test_waiting_tasks_without_a_slowdown_accuse_no_node() -> None:
    assert not reported(job_of_stages({"io_waiting": 0.3}, ranks=0))


def test_a_node_accused_by_another_detector_is_not_reported_again() -> None:
    job, accusing = job_of_stages({"io_waiting": 0.3}), alone(WorkloadDetector())
    accuse(accusing.shared.arbiter, "j", 6)
    assert not [one for _, one in course(accusing, [job], 190) if isinstance(one, Verdict)]
    free = alone(WorkloadDetector())
    course(free, [job_of_stages({"io_waiting": 0.3})], 130)
    assert free.shared.arbiter.published.accused == {("j", 1, rank) for rank in range(8)}
