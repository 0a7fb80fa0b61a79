"""One-forward-one-backward schedule: end of each step on each pipeline stage (Narayanan et al., PipeDream 2019).

A stage runs its operations in a fixed order: some forwards to fill the pipeline, then one backward after each forward,
then the remaining backwards. A forward waits for the stage before, a backward for the stage after. These waits are the
pipeline's bubbles.

In an interleaved pipeline, each rank has several parts of the model (chunks), so that the bubbles are shorter
(Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, section 2.2). Its virtual
stages are numbered along the model: virtual stage v is on stage v modulo the number of stages.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray

Operation = tuple[bool, int, int]
"""An operation of a stage: (is forward, virtual stage, microbatch)."""


def stage_order(stages: int, microbatches: int, stage: int) -> list[Operation]:
    """Return the operations of one stage in execution order."""
    filling = min(stages - 1 - stage, microbatches)
    order: list[Operation] = [(True, stage, m) for m in range(filling)]
    for m in range(filling, microbatches):
        order += [(True, stage, m), (False, stage, m - filling)]
    return order + [(False, stage, m) for m in range(microbatches - filling, microbatches)]


def interleaved_order(stages: int, microbatches: int, stage: int, chunks: int) -> list[Operation]:
    """Return the operations of one stage with several chunks in execution order.

    The number of microbatches must be a multiple of the number of stages. Chunks change after every `stages`
    microbatches.
    """
    total = microbatches * chunks

    def at(number: int, forward: bool) -> Operation:
        chunk = number % (stages * chunks) // stages
        microbatch = number // (stages * chunks) * stages + number % stages
        return forward, stage + stages * (chunk if forward else chunks - 1 - chunk), microbatch

    filling = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
    order = [at(number, True) for number in range(filling)]
    for number in range(filling, total):
        order += [at(number, True), at(number - filling, False)]
    return order + [at(number, False) for number in range(total - filling, total)]


@lru_cache(maxsize=64)
def schedule(stages: int, microbatches: int, chunks: int = 1) -> tuple[Operation, ...]:
    """Return the operations of all stages, each after the operations that it needs.

    Raises ValueError if there is no such order.
    """
    if chunks > 1:
        waiting = [interleaved_order(stages, microbatches, stage, chunks) for stage in range(stages)]
    else:
        waiting = [stage_order(stages, microbatches, stage) for stage in range(stages)]
    done: set[Operation] = set()
    found: list[Operation] = []
    while any(waiting):
        before = len(found)
        for order in waiting:
            while order:
                forward, part, m = order[0]
                needs = (True, part - 1, m) if forward else (False, part + 1, m)
                if 0 <= needs[1] < stages * chunks and needs not in done:
                    break
                done.add(order[0])
                found.append(order.pop(0))
        if len(found) == before:
            raise ValueError(f"no order for {stages} stages and {microbatches} microbatches")
    return tuple(found)


def finish(
    forward: FloatArray,
    backward: FloatArray,
    weight: FloatArray,
    transfer: FloatArray,
    begin: FloatArray,
    chunks: int = 1,
) -> FloatArray:
    """Return the end of each stage's last backward, in seconds from the start of the step: float64 [..., stages].

    forward, backward: [..., stages], time of a microbatch of weight 1. weight: [..., microbatches]. transfer: [...,
    stages - 1], time between neighbouring stages; with several chunks [..., stages], the last one between the last and
    the first stage. begin: [..., stages], earliest start of each stage.
    """
    stages, microbatches = forward.shape[-1], weight.shape[-1]
    if stages == 1:
        found: FloatArray = begin + (forward + backward) * weight.sum(axis=-1, keepdims=True)
        return found
    free = [begin[..., stage] for stage in range(stages)]
    parts = stages * chunks
    sent: list[list[FloatArray]] = [[] for _ in range(parts)]
    returned: list[list[FloatArray]] = [[] for _ in range(parts)]
    weights = [weight[..., m] for m in range(microbatches)]
    transfers = [transfer[..., stage] for stage in range(transfer.shape[-1])]
    forwards = [forward[..., stage] / chunks for stage in range(stages)]
    backwards = [backward[..., stage] / chunks for stage in range(stages)]
    for is_forward, part, m in schedule(stages, microbatches, chunks):
        stage = part % stages
        start = free[stage]
        if is_forward:
            if part:
                start = np.maximum(start, sent[part - 1][m] + transfers[(part - 1) % stages])
            free[stage] = start + forwards[stage] * weights[m]
            sent[part].append(free[stage])
        else:
            if part < parts - 1:
                start = np.maximum(start, returned[part + 1][m] + transfers[stage])
            free[stage] = start + backwards[stage] * weights[m]
            returned[part].append(free[stage])
    return np.stack(np.broadcast_arrays(*free), axis=-1)
