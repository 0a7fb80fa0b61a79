"""Timing of jobs whose replicas exchange their parameters only every few steps (local SGD).

Between two exchanges, each replica takes its steps without waiting for the others (Stich, "Local SGD converges fast and
communicates little", ICLR 2019; DiLoCo, Douillard et al. 2023). A slow replica therefore only delays the others at the
end of a round, and its steps end later than theirs.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray


def finish(alone: FloatArray, exchange: FloatArray, sync_steps: int) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of each step of the job, [b], and of each replica, [b, data].

    A step of the job ends when the last replica has taken it. alone: seconds of each replica's step without the
    exchange, [b, data]. exchange: seconds of the exchange after the last step of each round, which can be broadcast to
    [b]. The steps must be whole rounds of `sync_steps` steps: raises ValueError if they are not.
    """
    steps, replicas = alone.shape
    if steps % sync_steps:
        raise ValueError(f"{steps} steps are not whole rounds of {sync_steps}")
    own = alone.astype(np.float64).reshape(-1, sync_steps, replicas)
    ends = own.cumsum(axis=1)
    over = ends.max(axis=-1)  # [rounds, sync_steps]
    lengths = np.diff(over, axis=1, prepend=0.0)
    exchanged = np.broadcast_to(exchange, steps).reshape(-1, sync_steps)[:, -1]
    lengths[:, -1] += exchanged
    own[:, -1] = (over[:, -1] + exchanged)[:, None] - (ends[:, -2] if sync_steps > 1 else 0.0)
    return lengths.reshape(steps), own.reshape(steps, replicas)
