"""Orders of power limits, as lines for the streams of agents (``leased_orders``)."""

from __future__ import annotations

from collections.abc import Mapping

WORD = b"power-limits"


def order_line(limits: Mapping[str, float]) -> bytes:
    """Return the order for one agent. limits: watts by UUID of the GPU; empty to end all leases."""
    pairs = (f" {gpu}={watts:.0f}" for gpu, watts in sorted(limits.items()))
    return WORD + "".join(pairs).encode("ascii", "replace") + b"\n"


NONE = order_line({})
