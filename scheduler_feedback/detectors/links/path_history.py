"""What the network of each node of one job did in the newest windows, and in the first ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape

USUAL_WINDOWS = 10
"""Number of windows with traffic from which the usual state of the job's network is learned. The first one, in which
connections open, does not count."""

RECENT_WINDOWS = 10
"""Number of newest windows that are compared with the usual ones. A queue is sampled a hundred times in these 10 s."""

LEAST_BYTES = 1e5
"""Least traffic of a node in bytes per second: with less, the times of its connections are those of small messages."""

BYTES, BUSY, QUEUE = (FEATURE[name] for name in ("tcp_bytes", "tcp_busy", "transmit_queue"))


@dataclass(slots=True)
class Paths:
    """Network of a job's m nodes. Owned by one thread."""

    shape: Shape
    names: tuple[str, ...] = ()
    """Names of the nodes."""
    of: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Index of each rank's node."""
    usual_busy: FloatArray | None = None
    """Usual busy seconds of each node's connections for each byte: [m]; None while it is learned."""
    usual_queue: FloatArray | None = None
    """Usual share of time in which packets waited in each node's queue: [m]."""
    usual_bytes: FloatArray | None = None
    """Usual traffic of each node, in bytes per second: [m]."""
    newest: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    """Traffic, busy time and queue of the nodes in the newest windows: each [3, m]."""
    ends_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    """Ends of these windows."""
    seen: int = 0
    """Number of windows with traffic on all nodes."""

    def __post_init__(self) -> None:
        self.names = tuple(dict.fromkeys(self.shape.nodes))
        index = {name: number for number, name in enumerate(self.names)}
        self.of = np.array([index[node] for node in self.shape.nodes], np.intp)

    def take(self, values: Float32Array, end_ns: int) -> None:
        """Add one window.

        values: features of the job's ranks, [features, n]. end_ns: end of the window. A window without values of all
        nodes is ignored.
        """
        rows = values[[BYTES, BUSY, QUEUE]].astype(np.float64)
        known = np.isfinite(rows)
        counts = np.bincount(self.of[known.all(axis=0)], minlength=len(self.names))
        if not counts.all():
            return
        rows = np.where(known, rows, 0.0)
        found = np.array([np.bincount(self.of, row, len(self.names)) for row in rows])
        found[2] /= np.maximum(counts, 1)  # ranks of a node share its queue
        if (found[0] < LEAST_BYTES).any():
            return
        self.seen += 1
        if self.seen == 1:
            return
        self.newest.append(found)
        self.ends_ns.append(end_ns)
        if self.usual_busy is None and len(self.newest) == USUAL_WINDOWS:
            usual = np.array(self.newest)
            self.usual_bytes, self.usual_queue = usual[:, 0].mean(axis=0), usual[:, 2].mean(axis=0)
            self.usual_busy = usual[:, 1].sum(axis=0) / usual[:, 0].sum(axis=0)
            self.newest.clear()
            self.ends_ns.clear()

    @property
    def ready(self) -> bool:
        """Whether the usual state is known, and enough windows have followed."""
        return self.usual_busy is not None and len(self.newest) == RECENT_WINDOWS
