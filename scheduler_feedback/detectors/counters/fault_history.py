"""Lemons: what past verdicts said of a part or a node. Some come back again and again, with another symptom each time.

Kept per GPU UUID (or NIC) and per node, so that a part is remembered where it goes, and a node whatever parts it has.
Cleared for a part that was replaced. Meta's lemon nodes were found by seven signals over 28 days.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduler_feedback.core.verdict import Cause, Evidence

REMEMBERED_NS = 28 * 86_400_000_000_000
"""Four weeks, as in Meta's study (Revisiting Reliability in Large-Scale ML Research Clusters, 2024)."""

MOST = 65_536
EACH = 0.5
MOST_WEIGHT = 1.5
"""A past verdict on the same part makes the next one likelier; three settle it. A node's count for half."""


@dataclass(slots=True)
class _Past:
    """Verdicts on one part or node: how many, the newest's time and cause."""

    count: int
    newest_ns: int
    cause: str


class Lemons:
    """Past verdicts by part and by node."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def remember(self, device: str, node: str, cause: Cause, now_ns: int) -> None:
        """A verdict was told about this part, on this node."""
        for name in {device, node} - {""}:
            known = self._past.get(name)
            if known is None or now_ns - known.newest_ns > REMEMBERED_NS:
                known = self._past[name] = _Past(0, now_ns, cause.value)
            known.count, known.newest_ns, known.cause = known.count + 1, now_ns, cause.value
        while len(self._past) > MOST:
            del self._past[min(self._past, key=lambda name: self._past[name].newest_ns)]

    def forget(self, device: str, node: str) -> None:
        """The part was replaced: neither the old one's past nor its node's counts any more."""
        self._past.pop(device, None)
        self._past.pop(node, None)

    def weight(self, device: str, node: str) -> tuple[Evidence, ...]:
        """What the past says of it, as evidence; none where it says nothing."""
        found = []
        for name, share in ((device, 1.0), (node, 0.5)):
            known = self._past.get(name) if name else None
            if known is not None:
                weight = min(share * EACH * known.count, MOST_WEIGHT)
                words = f"earlier verdicts on {name}, the newest for {known.cause}"
                found.append(Evidence("past_verdicts", float(known.count), 0.0, "verdicts", words, weight))
        return tuple(found)

    def dump(self) -> bytes:
        """As bytes, for a snapshot."""
        return msgspec.msgpack.encode({name: (one.count, one.newest_ns, one.cause) for name, one in self._past.items()})

    def load(self, data: bytes) -> None:
        """Take a snapshot's place. Raises ValueError where it is not one of ours."""
        try:
            kept = msgspec.msgpack.decode(data, type=dict[str, tuple[int, int, str]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"past verdicts: {error}") from None
        self._past = {name: _Past(*one) for name, one in kept.items()}
