"""The state that a job's devices are in while some of its steps run. Faults, weather and neighbours change it.

Every array broadcasts to [steps, stages, data, tensor]; a part that is the same for all steps keeps 1 there. Arrays are
shared between conditions and never changed in place: who changes one puts another in its stead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray


@dataclass(slots=True)
class Conditions:
    """What the devices give.

    clock: share of the boost clock. memory: share of the device memory's bandwidth. nvlink: share of NVLink's. nic:
    share of the NIC's line rate. host: factor on the time to launch kernels. noise: factor on the GPU's time, from
    everything that varies by itself. stall: seconds that the rank's process is kept before the step's first kernel.
    weight: [steps, data, microbatches], work of a microbatch. load: factor on experts' work. network: [steps], factor
    on collectives' time. pause: [steps], seconds in which the whole job does something else after the step.
    extent: [steps], share of the usual work that the job does in it (an evaluation runs forwards only).
    """

    clock: FloatArray
    memory: FloatArray
    nvlink: FloatArray
    nic: FloatArray
    host: FloatArray
    noise: FloatArray
    stall: FloatArray
    weight: FloatArray
    load: FloatArray
    network: FloatArray
    pause: FloatArray
    extent: FloatArray


def calm(shape: tuple[int, int, int], microbatches: int, steps: int = 1) -> Conditions:
    """Nothing varies: everything at its best."""
    one = np.ones((1, *shape))
    return Conditions(
        clock=one,
        memory=one.copy(),
        nvlink=one.copy(),
        nic=one.copy(),
        host=one.copy(),
        noise=one.copy(),
        stall=np.zeros((1, *shape)),
        weight=np.ones((1, shape[1], microbatches)),
        load=one.copy(),
        network=np.ones(steps),
        pause=np.zeros(steps),
        extent=np.ones(steps),
    )
