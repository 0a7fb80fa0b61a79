"""One-forward-one-backward schedule: end of each step on each pipeline stage (Narayanan et al., PipeDream 2019).

A stage runs its operations in a fixed order: some forwards to fill the pipeline, then one backward after each forward,
then the remaining backwards. A forward waits for the stage before, a backward for the stage after. These waits are the
pipeline's bubbles.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray

Operation = tuple[bool, int, int]
"""An operation of a stage: (is forward, stage, microbatch)."""


def stage_order(stages: int, microbatches: int, stage: int) -> list[Operation]:
    """Return the operations of one stage in execution order."""
    filling = min(stages - 1 - stage, microbatches)
    order: list[Operation] = [(True, stage, m) for m in range(filling)]
    for m in range(filling, microbatches):
        order += [(True, stage, m), (False, stage, m - filling)]
    return order + [(False, stage, m) for m in range(microbatches - filling, microbatches)]


@lru_cache(maxsize=64)
def schedule(stages: int, microbatches: int) -> tuple[Operation, ...]:
    """Return the operations of all stages, each after the operations that it needs."""
    waiting = [stage_order(stages, microbatches, stage) for stage in range(stages)]
    done: set[Operation] = set()
    found: list[Operation] = []
    while any(waiting):
        before = len(found)
        for stage, order in enumerate(waiting):
            while order:
                forward, _, m = order[0]
                needs = (True, stage - 1, m) if forward else (False, stage + 1, m)
                if 0 <= needs[1] < stages and needs not in done:
                    break
                done.add(order[0])
                found.append(order.pop(0))
        if len(found) == before:
            raise ValueError(f"no order for {stages} stages and {microbatches} microbatches")
    return tuple(found)


def finish(
    forward: FloatArray, backward: FloatArray, weight: FloatArray, transfer: FloatArray, begin: FloatArray
) -> FloatArray:
    """Return the end of each stage's last backward, in seconds from the start of the step: float64 [..., stages].

    forward, backward: [..., stages], time of a microbatch of weight 1. weight: [..., microbatches]. transfer: [...,
    stages - 1], time between neighbouring stages. begin: [..., stages], earliest start of each stage.
    """
    stages, microbatches = forward.shape[-1], weight.shape[-1]
    if stages == 1:
        found: FloatArray = begin + (forward + backward) * weight.sum(axis=-1, keepdims=True)
        return found
    free = [begin[..., stage] for stage in range(stages)]
    sent: list[list[FloatArray]] = [[] for _ in range(stages)]
    returned: list[list[FloatArray]] = [[] for _ in range(stages)]
    weights = [weight[..., m] for m in range(microbatches)]
    transfers = [transfer[..., stage] for stage in range(stages - 1)]
    forwards = [forward[..., stage] for stage in range(stages)]
    backwards = [backward[..., stage] for stage in range(stages)]
    for is_forward, stage, m in schedule(stages, microbatches):
        start = free[stage]
        if is_forward:
            if stage:
                start = np.maximum(start, sent[stage - 1][m] + transfers[stage - 1])
            free[stage] = start + forwards[stage] * weights[m]
            sent[stage].append(free[stage])
        else:
            if stage < stages - 1:
                start = np.maximum(start, returned[stage + 1][m] + transfers[stage])
            free[stage] = start + backwards[stage] * weights[m]
            returned[stage].append(free[stage])
    return np.stack(np.broadcast_arrays(*free), axis=-1)
