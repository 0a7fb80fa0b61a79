"""Start of the head and of the jobs behind it, for random jobs on a simulated cluster.

The state machine (``tests/cluster/state_machine.py``) checks the other invariants.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.core.job import JobKind, JobState
from tests.cluster.cycle_world import SECOND, World

_NODES = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(
    lambda n: {f"n{i}": slots for i, slots in enumerate(n)}
)
_JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(5, 120), st.floats(0.1, 1.0), st.one_of(st.just(0), st.integers(0, 30))),
    min_size=2,
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(_NODES, _JOBS)
def test_the_head_starts_no_later_than_its_earliest_reservation(
    nodes: dict[str, int], jobs: list[tuple[int, int, float, int]]
) -> None:
    """Jobs run at most as long as their limits. No backfilled job moves the head's reservation to a later time."""
    world = World(nodes, round_trips=False)
    promised: dict[str, int] = {}

    def note() -> None:
        if (head := world.state.reserved_for) is not None:
            assert world.state.reserved_from_ns is not None
            assert world.state.reserved_from_ns <= promised.get(head, world.state.reserved_from_ns)
            promised[head] = world.state.reserved_from_ns

    together: list[tuple[int, float, float]] = []
    for ranks, limit, share, gap in jobs:
        together.append((ranks, float(limit), limit * share))
        if not gap:  # it is submitted in one cycle with the next
            continue
        world.submit_all(*together)
        together = []
        world.running()
        note()
        for _ in range(gap):
            world.advance(1.0)
            note()
    world.submit_all(*together)
    for _ in range(400):
        world.advance(5.0)
        note()
        if all(job.state.ended or job.spec.ranks > sum(nodes.values()) for job in world.state.jobs.values()):
            break
    for job_id, at_ns in promised.items():
        assert world.started[job_id] <= at_ns


@settings(max_examples=80, deadline=None)
@given(_NODES, _JOBS)
def test_the_head_would_not_start_earlier_without_later_jobs(
    nodes: dict[str, int], jobs: list[tuple[int, int, float, int]]
) -> None:
    """Jobs run exactly as long as their limits. The first job that must wait starts as it would without the later
    jobs."""

    def head_and_start(only: int | None) -> tuple[int | None, int | None, int]:
        world = World(nodes, round_trips=False)
        head: int | None = None
        for number, (ranks, limit, _, _) in enumerate(jobs[:only]):
            job_id = world.submit(ranks, float(limit), time_limit_seconds=float(limit))
            if head is None and world.state.reserved_for == job_id:
                head = number
        world.running()
        world.advance(2000.0)
        start = None if head is None else world.started[f"j-{head + 1:06d}"]
        backfilled = sum(entry.kind == "backfilled" for entry in world.entries)
        return head, start, backfilled

    head, start, _ = head_and_start(None)
    if head is not None:
        assert head_and_start(head + 1)[:2] == (head, start)


def test_backfill_does_happen_in_these_worlds() -> None:
    world = World({"n0": 2, "n1": 2})
    world.submit(3, time_limit_seconds=100.0)
    head = world.submit(4, time_limit_seconds=100.0)
    small = world.submit(1, time_limit_seconds=90.0)
    assert world.job_state(head) is JobState.PENDING
    assert world.entry_kinds(small) == ["submitted", "backfilled"]
    assert world.state.jobs[small].spec.kind is JobKind.TRAINING
    assert world.state.reserved_from_ns == world.started["j-000001"] + 100 * SECOND
