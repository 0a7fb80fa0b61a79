"""Orders of power limits, as lines for the streams of agents: sent when they change, and repeated before they end."""

from __future__ import annotations

from collections.abc import Mapping

RENEW_SECONDS = 15.0
"""Time between two orders to one agent: a quarter of its lease, so that lost connections do not end it."""

OLD_SECONDS = 30.0
"""Orders that the scheduler has not confirmed for this long are not repeated: its thread may be stuck."""


def order_line(limits: Mapping[str, float]) -> bytes:
    """Return the order for one agent. limits: watts by UUID of the GPU; empty to end all leases."""
    pairs = (f" {gpu}={watts:.0f}" for gpu, watts in sorted(limits.items()))
    return f"power-limits{''.join(pairs)}\n".encode("ascii", "replace")


NONE = order_line({})


class PowerOrders:
    """Newest order of each agent. One thread replaces them, another one sends them.

    none: the order that ends all leases of an agent.
    """

    def __init__(self, none: bytes = NONE) -> None:
        self._none = none
        self._newest: tuple[int, Mapping[str, bytes]] = (0, {})

    def replace(self, orders: Mapping[str, bytes], now_ns: int) -> None:
        """Replace the orders of all agents, by the name under which they are announced. now_ns: monotonic time."""
        self._newest = now_ns, orders

    def due(self, node: str, sent: bytes, sent_ns: int, now_ns: int) -> bytes:
        """Return the order to send to an agent now; b'' for none.

        sent, sent_ns: the last order on its stream, and when it was sent.
        """
        made_ns, orders = self._newest
        if now_ns - made_ns > OLD_SECONDS * 1e9:
            return b""
        order = orders.get(node, self._none)
        if order == (sent or self._none) and (order == self._none or now_ns - sent_ns < RENEW_SECONDS * 1e9):
            return b""
        return order
