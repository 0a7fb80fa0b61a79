"""Fault history: earlier verdicts on a part or a node.

Some parts fail repeatedly, with different symptoms. The history is kept per GPU UUID or NIC, and per node. So it
follows a part to another node, and stays with a node whose parts change. It is cleared for a replaced part. Meta found
its faulty nodes by seven signals over 28 days.
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
"""Log-likelihood ratio of each earlier verdict on the same part, up to three verdicts. A verdict on the node counts
half."""


@dataclass(slots=True)
class _Past:
    """Earlier verdicts on one part or node: their number, and time and cause of the newest."""

    count: int
    newest_ns: int
    cause: str


class FaultHistory:
    """Fault history by part and by node."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def remember(self, device: str, node: str, cause: Cause, now_ns: int) -> None:
        """Record a verdict on this part and its node."""
        for name in {device, node} - {""}:
            known = self._past.get(name)
            if known is None or now_ns - known.newest_ns > REMEMBERED_NS:
                known = self._past[name] = _Past(0, now_ns, cause.value)
            known.count, known.newest_ns, known.cause = known.count + 1, now_ns, cause.value
        while len(self._past) > MOST:
            del self._past[min(self._past, key=lambda name: self._past[name].newest_ns)]

    def forget(self, device: str, node: str) -> None:
        """Clear the history of a replaced part and its node."""
        self._past.pop(device, None)
        self._past.pop(node, None)

    def weight(self, device: str, node: str) -> tuple[Evidence, ...]:
        """Return the fault history of the part and its node as evidence; empty without any."""
        found = []
        for name, share in ((device, 1.0), (node, 0.5)):
            known = self._past.get(name) if name else None
            if known is not None:
                weight = min(share * EACH * known.count, MOST_WEIGHT)
                words = f"earlier verdicts on {name}, the newest for {known.cause}"
                found.append(Evidence("past_verdicts", float(known.count), 0.0, "verdicts", words, weight))
        return tuple(found)

    def dump(self) -> bytes:
        """Encode the history for a snapshot."""
        return msgspec.msgpack.encode({name: (one.count, one.newest_ns, one.cause) for name, one in self._past.items()})

    def load(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot."""
        try:
            kept = msgspec.msgpack.decode(data, type=dict[str, tuple[int, int, str]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"past verdicts: {error}") from None
        self._past = {name: _Past(*one) for name, one in kept.items()}
