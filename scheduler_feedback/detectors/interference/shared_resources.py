"""Sharing: what jobs share (a host, a PCIe switch, a NIC, an uplink), who has ranks there, and what each does there."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, JobTelemetry, Shape, Telemetry

SENDING = ("uplink", "nic", "pcie_switch")
"""What is shared by sending through it; on a host jobs share its processors."""

Resource = tuple[str, str]
"""(kind, name) of something shared."""

Resources = dict[Resource, dict[str, IntArray]]
"""What is shared -> job -> indices of its ranks there."""

NOBODY = np.zeros(0, np.int64)


class Sharing:
    """What the jobs of a stream share. Owned by one thread. senders: jobs that share a way to send."""

    def __init__(self) -> None:
        self._shapes: tuple[Shape, ...] = ()
        self._known: Resources = {}
        self.senders: set[str] = set()
        self._rows = self._places = self._counts = NOBODY

    def of(self, telemetry: Telemetry) -> Resources:
        """What is shared by whom; it changes with the jobs only."""
        shapes = tuple(job.shape for job in telemetry.jobs)
        if len(shapes) != len(self._shapes) or any(a is not b for a, b in zip(shapes, self._shapes, strict=True)):
            self._shapes, self._known = shapes, _shared(telemetry.jobs)
            self.senders = {name for (kind, _), jobs in self._known.items() if kind in SENDING for name in jobs}
            first = dict(zip((shape.job for shape in shapes), (one.start for one in telemetry.columns()), strict=True))
            parts = [
                (FEATURE["nic_transmit_bytes" if kind in SENDING else "processor"], ranks + first[name])
                for (kind, _), members in self._known.items()
                for name, ranks in members.items()
            ]
            self._rows = np.concatenate([np.full(len(ranks), row) for row, ranks in parts]) if parts else NOBODY
            self._places = np.concatenate([ranks for _, ranks in parts]) if parts else NOBODY
            self._counts = np.array([len(ranks) for _, ranks in parts], np.int64)
        return self._known

    def sums(self, values: Float32Array) -> list[float]:
        """What each job does on each shared resource in one window, in the order of the resources; NaN for unknown."""
        if not len(self._counts):
            return []
        samples = values[self._rows, self._places].astype(np.float64)
        known = ~np.isnan(samples)
        starts = np.cumsum(self._counts) - self._counts
        sums = np.add.reduceat(np.where(known, samples, 0.0), starts)
        counts = np.add.reduceat(known.astype(np.float64), starts)
        with np.errstate(invalid="ignore"):
            found: list[float] = (sums / counts * self._counts).tolist()
        return found


def _shared(jobs: tuple[JobTelemetry, ...]) -> Resources:
    """Resources on which two jobs or more stand: (kind, name) -> job -> indices of its ranks there."""
    once: set[tuple[str, str]] = set()
    shared: set[tuple[str, str]] = set()
    for job in jobs:
        shared |= once & job.shape.resources
        once |= job.shape.resources
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for job in jobs:
        if shared.isdisjoint(job.shape.resources):
            continue
        for kind, names in job.shape.sharing.items():
            for index, place in enumerate(names):
                if (kind, place) in shared:
                    found.setdefault((kind, place), {}).setdefault(job.shape.job, []).append(index)
    return {key: {name: np.array(ranks, np.int64) for name, ranks in members.items()} for key, members in found.items()}


def ranks_of(shape: Shape, kind: str, place: str) -> IntArray:
    """Indices of the job's ranks there."""
    return np.array([index for index, name in enumerate(shape.sharing.get(kind, ())) if name == place], np.int64)
