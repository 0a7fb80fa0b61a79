"""Power of GPUs: what agents report about each slot's GPU, and what was learnt about speeds at power limits."""

from __future__ import annotations

import msgspec


class SlotPower(msgspec.Struct, frozen=True, gc=False):
    """Power limits and idle power of the GPU of one slot, in watts."""

    least_watts: float
    """Lowest limit that the node's agent may set."""
    most_watts: float
    """Highest limit that the node's agent may set."""
    limit_watts: float
    """Limit that is in force, as last reported."""
    idle_watts: float = 0.0
    """Power that the GPU draws without a job, as measured; 0: not measured yet."""
    settable: bool = True
    """Whether the node's agent sets limits now. If not, the GPU counts with `limit_watts`."""
    together: bool = False
    """Whether it is unknown which GPU of the node belongs to which slot. All GPUs of the node then have one limit."""


class PowerRates(msgspec.Struct):
    """Measured speeds of one configuration of a job class at several power limits.

    x is the logarithm of the default relative speed at the limit, y that of the measured work per second. The older
    measurements are discounted.
    """

    gpu_type: str
    """GPU type of the gangs."""
    ranks: int
    """Number of ranks of the gangs."""
    level: int
    """Placement level of the gangs; see `MeasuredSpeed.level`."""
    weight: float = 0.0
    """Number of measurements."""
    x: float = 0.0
    """Sum of x."""
    y: float = 0.0
    """Sum of y."""
    xx: float = 0.0
    """Sum of the squares of x."""
    xy: float = 0.0
    """Sum of x y."""
