"""Fault history: earlier verdicts on a part or a node.

Some parts fail repeatedly, with different symptoms. The history is recorded for the part (GPU UUID or NIC) and for its
node. So the history of a part follows it to another node, and the history of a node remains if its parts change. If a
part is replaced, its history is cleared.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduler_feedback.core.verdict import Cause, Evidence

REMEMBERED_NS = 28 * 86_400_000_000_000
"""Time in ns for which an earlier verdict counts: four weeks, as in a study of Meta (Revisiting Reliability in
Large-Scale ML Research Clusters, 2024)."""

MOST = 65_536
"""Maximum number of parts and nodes whose history is kept."""

EACH = 0.5
"""Weight (log-likelihood ratio) of each earlier verdict on the same part. A verdict on its node counts half."""

MOST_WEIGHT = 1.5
"""Maximum weight of all earlier verdicts on a part or node: that of three verdicts."""


@dataclass(slots=True)
class _Past:
    """Number of earlier verdicts on one part or node, and the time and cause of the newest."""

    count: int
    newest_ns: int
    cause: str


class FaultHistory:
    """Earlier verdicts, by part and by node."""

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
        """Return earlier verdicts on the part and its node as evidence; empty if there are none."""
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
