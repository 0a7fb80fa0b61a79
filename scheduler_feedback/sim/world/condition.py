"""State of a job's devices during some of its steps. Faults, random variation and neighbours change it.

Every array broadcasts to [steps, stages, data, tensor]; an array that is constant over the steps has length 1 there.
Arrays are shared between conditions and never changed in place, only replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray


@dataclass(slots=True)
class Conditions:
    """State of the devices, as factors and delays."""

    clock: FloatArray
    """Clock of each GPU as a share of the boost clock."""
    memory: FloatArray
    """Available share of the device memory's bandwidth."""
    nvlink: FloatArray
    """Available share of NVLink's bandwidth."""
    nic: FloatArray
    """Available share of the NIC's line rate."""
    host: FloatArray
    """Factor on the time to launch kernels."""
    noise: FloatArray
    """Factor on the GPU's time, from random variation."""
    stall: FloatArray
    """Seconds for which the rank's process is delayed before the first kernel of the step."""
    weight: FloatArray
    """[steps, data, microbatches]: work of a microbatch."""
    load: FloatArray
    """Factor on the work of a mixture-of-experts model's experts."""
    network: FloatArray
    """[steps]: factor on the time of collectives."""
    pause: FloatArray
    """[steps]: seconds of other work of the whole job after the step."""
    extent: FloatArray
    """[steps]: work of each step as a share of the usual work (an evaluation only runs forward passes)."""


def calm(shape: tuple[int, int, int], microbatches: int, steps: int = 1) -> Conditions:
    """Return ideal conditions without any variation."""
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
