"""Orders to agents on lease, as lines for their streams: sent when they change, and repeated before they end."""

from __future__ import annotations

from collections.abc import Mapping

RENEW_SECONDS = 15.0
"""Time between two orders to one agent: a quarter of its lease, so that lost connections do not end it."""

OLD_SECONDS = 30.0
"""Orders that the scheduler has not confirmed for this long are not repeated: its thread may be stuck."""

NEVER_SENT = b"", 0
"""Last order and its time, if none was sent."""


def word_of(line: bytes) -> bytes:
    """Return the first word of an order, which is its kind."""
    return line.split(maxsplit=1)[0]


class LeasedOrders:
    """Newest order of each agent, of one kind. One thread replaces them, another one sends them.

    word: first word of the orders. A line of this word alone ends all leases of an agent.
    """

    def __init__(self, word: bytes) -> None:
        self.word = word
        self._none = word + b"\n"
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
