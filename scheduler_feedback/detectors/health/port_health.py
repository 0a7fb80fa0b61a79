"""Ports that stay down or go down repeatedly. Each is reported once, and then ignored for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_feedback.core.telemetry.telemetry import NodeEvent
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.health.suspicion import Suspicion

LINK_DOWN_SECONDS = 5.0
"""A port that is down for at least this time in seconds is reported as down; a shorter time is a flap. Retraining the
link takes one to three seconds."""

FLAPS = 3
"""Number of flaps within FLAP_SECONDS that are a fault. A port flaps when it goes down and soon comes up again."""

FLAP_SECONDS = 600.0
DAMPED_SECONDS = 1800.0
"""Time in seconds for which a port is ignored after its flaps were reported, as BGP damps routes."""


@dataclass(slots=True)
class Port:
    """State of a port that has gone down at least once."""

    down_ns: int = 0
    """Time in ns since which the port is down; 0 while it is up."""
    flaps: dict[str, deque[int]] = field(default_factory=dict)
    """Times of flaps in ns, by source. The kernel log, the port state and each counter report the same flaps."""
    damped_until_ns: int = 0
    """Time in ns until which the port is not reported again."""

    def flapped(self, source: str, times: int, now_ns: int) -> None:
        """Count flaps: the port was down and is up again."""
        self.flaps.setdefault(source, deque(maxlen=2 * FLAPS)).extend([now_ns] * times)

    def recent(self, now_ns: int) -> int:
        """Return the number of flaps within FLAP_SECONDS, as counted by the source with the most."""
        since_ns = now_ns - round(FLAP_SECONDS * 1e9)
        return max((sum(at_ns >= since_ns for at_ns in ring) for ring in self.flaps.values()), default=0)


class Ports:
    """State of all ports that have gone down at least once."""

    def __init__(self) -> None:
        self._ports: dict[str, Port] = {}

    def take(self, node_event: NodeEvent, now_ns: int) -> None:
        """Update the state of a port with a link event."""
        port = self._ports.setdefault(_name(node_event), Port())
        detail = node_event.event.detail
        state, source = detail.get("state"), detail.get("source", "")
        if state == "down":
            port.down_ns = port.down_ns or now_ns
        elif state == "lost":  # a counter reports how many times, not the state
            times = detail.get("times", "1")
            port.flapped(source, int(times) if times.isdecimal() else 1, now_ns)
        elif port.down_ns:
            port.flapped(source, 1, now_ns)
            port.down_ns = 0

    def failing(self, now_ns: int) -> Iterator[Suspicion]:
        """Yield suspicions for ports that stay down, and for ports that keep flapping."""
        for name, port in self._ports.items():
            if now_ns < port.damped_until_ns:
                continue
            node, _, device = name.partition("/")
            down = (now_ns - port.down_ns) * 1e-9 if port.down_ns else 0.0
            recent = port.recent(now_ns)
            if down >= LINK_DOWN_SECONDS:
                words, value = f"the link has been down for {down:.0f} s", down
            elif recent >= FLAPS:
                words, value = f"the link went down {recent} times in {FLAP_SECONDS / 60:.0f} minutes", recent
            else:
                continue
            port.damped_until_ns = now_ns + round(DAMPED_SECONDS * 1e9)
            level = "link" if device.startswith("GPU-") else "nic"
            yield Suspicion(node, level, name, Cause.LINK, words, float(value))


def _name(node_event: NodeEvent) -> str:
    entity = node_event.event.entity
    return entity if entity.startswith(f"{node_event.node}/") else f"{node_event.node}/{entity}"
