"""Choice of the optimizer steps that end a training step. Standard library only.

``gangwatch.torch`` observes ``step`` of every optimizer of torch. Not each of these calls ends a training step:

- With several optimizers, the one that steps first counts. If the program deletes it, or if another one has stepped
  MAX_OTHER_STEPS times since, that one counts from then on: a program may train in phases with one optimizer each.
- DeepSpeed's ZeRO calls ``step`` of the same optimizer once for each parameter group or sub-group. The end of the
  engine's step counts instead.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, Dict, Optional  # noqa: UP035 (Python 3.8)

MAX_OTHER_STEPS = 16
"""Number of steps of another optimizer, without one of the optimizer that counts, after which the other one counts.
Trainings with two optimizers (GAN) use at most about ten steps of one for each step of the other."""

MAX_CALLERS = 32
"""Number of callers of the first optimizer step that are searched for DeepSpeed's engine. DeepSpeed 0.19.8 has 8."""

_ENGINE_MODULE, _ENGINE_STEP = "deepspeed.runtime.engine", "_take_model_step"
_REPLACED = "_gangwatch_times_it"


class CountedSteps:
    """Optimizer, or DeepSpeed engine, whose steps end the training steps of this process.

    engine_stepped: called at the end of each step of the engine.
    """

    def __init__(self, engine_stepped: Callable[[], None]) -> None:
        self._engine_stepped = engine_stepped
        self._optimizer: Optional[Callable[[], Any]] = None  # noqa: UP045
        self._engine: Optional[Callable[[], Any]] = None  # noqa: UP045
        self._chosen = False
        self._others: Dict[int, int] = {}  # noqa: UP006

    @property
    def engine(self) -> Any:
        """DeepSpeed's engine whose steps count; None if there is none."""
        return None if self._engine is None else self._engine()

    def choose(self, optimizer: Any) -> None:
        """Count the steps of this optimizer only. The program named it."""
        self._optimizer, self._chosen = _reference(optimizer), True

    def counts(self, optimizer: Any) -> bool:
        """Return whether the step of `optimizer` that just ended ends a training step."""
        if self.engine is not None:
            return False  # the end of the engine's step counts
        if self._optimizer is None:
            self._optimizer = _reference(optimizer)
            self._find_engine()
            return True
        followed = self._optimizer()
        if followed is optimizer:
            self._others.clear()
            return True
        if self._chosen:
            return False
        steps = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
        if followed is not None and steps < MAX_OTHER_STEPS:
            return False
        self._others.clear()
        self._optimizer, self._engine = _reference(optimizer), None
        self._find_engine()
        return True

    def _find_engine(self) -> None:
        """Count the steps of DeepSpeed's engine if it is the caller of the present optimizer step."""
        frame = sys._getframe(1)
        for _ in range(MAX_CALLERS):
            if frame.f_code.co_name == _ENGINE_STEP and frame.f_globals.get("__name__") == _ENGINE_MODULE:
                engine = frame.f_locals.get("self")
                if engine is not None:
                    self._follow(engine)
                return
            if frame.f_back is None:
                return
            frame = frame.f_back

    def _follow(self, engine: Any) -> None:
        owner = next(one for one in type(engine).__mro__ if _ENGINE_STEP in vars(one))
        original = getattr(owner, _ENGINE_STEP)
        self._engine = weakref.ref(engine)
        if hasattr(original, _REPLACED):
            return  # for an earlier engine

        @functools.wraps(original)
        def step(stepping: Any, *arguments: Any, **options: Any) -> Any:
            followed = self.engine is stepping  # an engine that is found during its step has ended this one already
            result = original(stepping, *arguments, **options)
            if followed:
                self._engine_stepped()
            return result

        setattr(step, _REPLACED, True)
        setattr(owner, _ENGINE_STEP, step)


def _reference(optimizer: Any) -> Callable[[], Any]:
    """Return a function that returns the optimizer, or None if it was deleted. An object without weak references is
    kept."""
    try:
        return weakref.ref(optimizer)
    except TypeError:
        return lambda: optimizer
