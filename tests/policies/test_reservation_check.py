"""The check of head reservations in ``Ordeal``: what counts as a delay of the head, and what does not."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.events import Tick
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Order, Policy
from tests.cluster.random_cycles import SECOND, Ordeal

POLICY = Policy(order=Order.FIFO, estimates=Estimates.EXACT)


def _spec(name: str, ranks: int, seconds: float) -> tuple[JobSpec, float, int]:
    spec = JobSpec(name, ("train",), ranks, time_limit_seconds=seconds, exact_seconds=seconds)
    return spec, seconds, 0


def waiting(types: int) -> Ordeal:
    """Return a full cluster whose head waits for two slots, which are free after 50 s."""
    world = Ordeal((2, 2), POLICY, types=types)
    world.submit(_spec("first", 2, 50.0))
    world.submit(_spec("second", 2, 90.0))
    world.submit(_spec("head", 2, 20.0))
    assert world.promised is not None
    return world


@pytest.mark.parametrize("types", [1, 2])
def test_a_later_start_and_end_are_a_delay(types: int) -> None:
    world = waiting(types)
    assert world.promised is not None
    job_id, attempt, start_ns, end_ns = world.promised
    world.promised = (job_id, attempt, start_ns - SECOND, end_ns - SECOND)
    with pytest.raises(AssertionError, match=r"j3 is delayed by 1.0 s"):
        world.cycle(Tick())


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (1, -1), (0, 0)])
def test_an_earlier_start_or_end_on_another_type_is_no_delay(start: int, end: int) -> None:
    world = waiting(2)
    assert world.promised is not None
    job_id, attempt, start_ns, end_ns = world.promised
    world.promised = (job_id, attempt, start_ns + start * SECOND, end_ns + end * SECOND)
    world.cycle(Tick())
    assert world.promised == (job_id, attempt, start_ns, end_ns)
