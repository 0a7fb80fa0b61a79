"""State of a job's devices during some of its steps. Faults, random variation and other jobs change it.

Every array can be broadcast to [steps, stages, data, tensor]. An array that is constant over the steps has length 1 on
that axis. Arrays are shared between conditions and never changed in place, only replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray


@dataclass(slots=True)
class Conditions:
    """State of a job's devices in some of its steps, as shares, factors and delays."""

    clock: FloatArray
    """Clock of each GPU as a share of the boost clock."""
    memory: FloatArray
    """Available share of the device memory's bandwidth."""
    nvlink: FloatArray
    """Available share of NVLink's bandwidth."""
    nic: FloatArray
    """Available share of the NIC's line rate."""
    host: FloatArray
    """Factor on the time that the host needs to launch kernels."""
    noise: FloatArray
    """Factor on each GPU's compute time, from random variation."""
    stall: FloatArray
    """Seconds for which each rank's process is delayed before the first kernel of the step."""
    weight: FloatArray
    """Work of each microbatch relative to a usual one: [steps, data, microbatches]."""
    load: FloatArray
    """Factor on the work of each rank's experts, in a mixture-of-experts model."""
    network: FloatArray
    """Factor on the duration of the gradient exchange in each step: [steps]."""
    pause: FloatArray
    """Seconds of other work of the whole job at the end of each step, for example saving: [steps]."""
    extent: FloatArray
    """Work of each step as a share of the usual work: [steps]. An evaluation, for example, only runs forward passes."""


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
