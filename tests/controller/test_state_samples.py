"""The metrics of the state are computed for a limited share of a core, and stay new on a busy machine."""

from __future__ import annotations

from agent.schema.clock import ManualClock
from agent.schema.sample import Sample
from scheduler_feedback.controller.state_samples import LONGEST_PAUSE_SECONDS, PAUSE, StateSamples
from scheduler_feedback.core.state import State


class Computation:
    """Computation of one sample that takes `elapsed_seconds`, of which `cpu_seconds` are CPU time of its thread."""

    def __init__(self, cpu_seconds: float, elapsed_seconds: float) -> None:
        self.clock = ManualClock(monotonic_ns=0, wall_ns=0)
        self.cpu_ns = 0
        self.made = 0
        self.fails = False
        self.failures: list[str] = []
        self._cpu_seconds, self._elapsed_seconds = cpu_seconds, elapsed_seconds
        self.samples = StateSamples(
            self.compute, lambda part, _: self.failures.append(part), self.clock, lambda: self.cpu_ns
        )

    def compute(self, state: State) -> list[Sample]:
        self.cpu_ns += round(self._cpu_seconds * 1e9)
        self.clock.advance(self._elapsed_seconds)
        self.made += 1
        if self.fails:
            raise ValueError("a bug")
        return [("made", (), float(self.made))]

    def seconds_to_next(self) -> int:
        """Update once, then each second until the samples are computed again. Return the number of seconds."""
        self.samples.update(State())
        before = self.made
        for seconds in range(1, 1000):
            self.clock.advance(1.0)
            self.samples.update(State())
            if self.made > before:
                return seconds
        raise AssertionError("never computed again")


def test_one_slow_computation_on_a_busy_machine_does_not_keep_old_values() -> None:
    assert Computation(cpu_seconds=0.01, elapsed_seconds=5.0).seconds_to_next() == 1


def test_the_pause_follows_the_cpu_time() -> None:
    assert Computation(cpu_seconds=0.1, elapsed_seconds=0.1).seconds_to_next() == 0.1 * PAUSE


def test_the_pause_is_at_most_a_scrape_interval() -> None:
    assert Computation(cpu_seconds=30.0, elapsed_seconds=30.0).seconds_to_next() == LONGEST_PAUSE_SECONDS


def test_a_failed_computation_leaves_no_old_values() -> None:
    computation = Computation(cpu_seconds=0.01, elapsed_seconds=0.01)
    computation.samples.update(State())
    assert computation.samples.newest == (("made", (), 1.0),)
    computation.fails = True
    computation.clock.advance(1.0)
    computation.samples.update(State())
    assert (computation.samples.newest, computation.failures) == ((), ["metrics"])
