"""Which optimizer steps end a training step: several optimizers, phases, and DeepSpeed's engine."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest

from gangwatch.reporting.training_steps import MAX_OTHER_STEPS, CountedSteps


class Optimizer:
    """Optimizer without parameters. Its steps are what CountedSteps sees."""


@pytest.fixture
def counted() -> CountedSteps:
    return CountedSteps(lambda: None)


def test_the_optimizer_that_steps_first_counts(counted: CountedSteps) -> None:
    critic, generator = Optimizer(), Optimizer()
    assert [counted.counts(one) for one in (critic, critic, generator, critic, generator)] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_deleted_optimizer_is_replaced_at_once(counted: CountedSteps) -> None:
    """A second phase with an optimizer of its own must not look like a job without steps."""
    first = Optimizer()
    assert counted.counts(first)
    del first
    gc.collect()
    second = Optimizer()
    assert [counted.counts(second) for _ in range(3)] == [True] * 3


def test_another_optimizer_counts_after_many_steps_of_its_own(counted: CountedSteps) -> None:
    first, second, third = Optimizer(), Optimizer(), Optimizer()
    assert counted.counts(first)
    for _ in range(MAX_OTHER_STEPS - 1):
        assert not counted.counts(second)
        assert not counted.counts(third), "each has its own count"
    assert counted.counts(second)
    assert not counted.counts(first)


def test_rare_steps_of_the_counted_optimizer_restart_the_count(counted: CountedSteps) -> None:
    generator, critic = Optimizer(), Optimizer()
    for _ in range(10):
        assert counted.counts(generator)
        assert not any(counted.counts(critic) for _ in range(5))


def test_an_optimizer_that_the_program_named_stays(counted: CountedSteps) -> None:
    named, other = Optimizer(), Optimizer()
    counted.choose(named)
    assert not any(counted.counts(other) for _ in range(2 * MAX_OTHER_STEPS))
    assert counted.counts(named)


def engine_class() -> type[Any]:
    """Return a class like DeepSpeed's engine, whose step calls ``step`` of one optimizer for each parameter group."""
    module = types.ModuleType("deepspeed.runtime.engine")
    exec(
        "class DeepSpeedEngine:\n"
        "    def __init__(self, stepped):\n"
        "        self.stepped = stepped\n"
        "    def step(self):\n"
        "        self._take_model_step()\n"
        "    def _take_model_step(self):\n"
        "        for group in range(3):\n"
        "            self.stepped(group)\n",
        module.__dict__,
    )
    kind: type[Any] = type("PipelineEngine", (module.DeepSpeedEngine,), {})
    return kind


def test_a_step_of_deepspeed_counts_once() -> None:
    events: list[str] = []
    counted = CountedSteps(lambda: events.append("engine"))
    optimizer = Optimizer()

    def stepped(_group: int) -> None:
        events.append("counted" if counted.counts(optimizer) else "-")

    engine = engine_class()(stepped)
    for _ in range(3):
        engine.step()
    # The first step ends with its first group: the engine's step was in progress when it was found.
    assert events == ["counted", "-", "-", *["-", "-", "-", "engine"] * 2]
    assert counted.engine is engine


def test_a_second_engine_does_not_count_and_follows_a_deleted_one() -> None:
    events: list[str] = []
    counted = CountedSteps(lambda: events.append("engine"))
    optimizers = {"actor": Optimizer(), "critic": Optimizer()}
    kind = engine_class()
    actor, critic = (kind(lambda _, name=name: counted.counts(optimizers[name])) for name in optimizers)
    actor.step()
    critic.step()
    actor.step()
    assert events == ["engine"]
    del actor, optimizers["actor"]
    gc.collect()
    for _ in range(3):
        critic.step()
    assert events == ["engine"] * 3
    assert counted.engine is critic


def test_a_caller_of_the_same_name_is_no_engine(counted: CountedSteps) -> None:
    def _take_model_step(self: object) -> bool:
        return counted.counts(self)

    assert _take_model_step(Optimizer())
    assert counted.engine is None
    assert "deepspeed" not in sys.modules
