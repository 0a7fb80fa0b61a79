"""Shared resources: which jobs share a host, a PCIe switch, a NIC or an uplink, and how much each job loads it."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape, Telemetry
from scheduler_feedback.detectors.resource_users import Resource, ResourceUsers

SENDING = ("uplink", "nic", "pcie_switch")
"""Kinds of resources that jobs load by sending data through them. The other kind is a host, whose CPUs jobs share."""

Resources = dict[Resource, dict[str, IntArray]]
"""For each shared resource, the jobs that use it, and the indices of each job's ranks there."""

NO_RANKS = np.zeros(0, np.int64)


class Sharing:
    """Resources that monitored jobs share, such as a disk or a network path. Owned by one thread."""

    def __init__(self) -> None:
        self._shapes: tuple[Shape, ...] = ()
        self._known: Resources = {}
        self._of_job: dict[str, list[tuple[Resource, dict[str, IntArray]]]] = {}
        self._users = ResourceUsers()
        # Indices of ranks by resource, of jobs that share one; by the identity of the job's shape.
        self._ranks: dict[int, tuple[Shape, dict[Resource, IntArray]]] = {}
        self.senders: set[str] = set()
        """Names of the jobs that share a network path with another job."""
        self._rows = self._places = self._counts = NO_RANKS

    def of(self, telemetry: Telemetry) -> Resources:
        """Return the shared resources. They are computed again only when the jobs change."""
        shapes = tuple(job.shape for job in telemetry.jobs)
        if self._users.take(shapes):
            self._shapes = shapes
            self._known = self._find()
            self._of_job = {}
            for one in self._known.items():
                for name in one[1]:
                    self._of_job.setdefault(name, []).append(one)
            self.senders = {name for (kind, _), jobs in self._known.items() if kind in SENDING for name in jobs}
            first = dict(zip((shape.job for shape in shapes), (one.start for one in telemetry.columns()), strict=True))
            parts = [
                (FEATURE["nic_transmit_bytes" if kind in SENDING else "processor"], ranks + first[name])
                for (kind, _), members in self._known.items()
                for name, ranks in members.items()
            ]
            self._rows = np.concatenate([np.full(len(ranks), row) for row, ranks in parts]) if parts else NO_RANKS
            self._places = np.concatenate([ranks for _, ranks in parts]) if parts else NO_RANKS
            self._counts = np.array([len(ranks) for _, ranks in parts], np.int64)
        return self._known

    def _find(self) -> Resources:
        """Return the shared resources, with the indices of each job's ranks there."""
        found: Resources = {}
        shared = self._users.shared
        before, self._ranks = self._ranks, {}
        for shape in self._shapes:
            if shared.isdisjoint(shape.resources):
                continue
            ranks = before.get(id(shape)) or (shape, _places(shape))
            self._ranks[id(shape)] = ranks
            for resource, places in ranks[1].items():
                if resource in shared:
                    found.setdefault(resource, {})[shape.job] = places
        return found

    def of_job(self, job: str) -> list[tuple[Resource, dict[str, IntArray]]]:
        """Return the shared resources that the job uses, with the indices of each job's ranks there."""
        return self._of_job.get(job, [])

    def sums(self, values: Float32Array) -> FloatArray:
        """Return float64 [pairs]: the load of each job on each shared resource in one window, in the order of the
        resources; NaN if unknown.

        values: counters, [features, ranks of all jobs].
        """
        if not len(self._counts):
            return np.zeros(0)
        samples = values[self._rows, self._places].astype(np.float64)
        # Traffic over Ethernet counts where a rank has no RDMA device.
        ethernet = np.isnan(samples) & (self._rows == FEATURE["nic_transmit_bytes"])
        samples[ethernet] = values[FEATURE["tcp_bytes"], self._places[ethernet]]
        known = ~np.isnan(samples)
        starts = np.cumsum(self._counts) - self._counts
        sums = np.add.reduceat(np.where(known, samples, 0.0), starts)
        counts = np.add.reduceat(known.astype(np.float64), starts)
        with np.errstate(invalid="ignore"):
            found: FloatArray = sums / counts * self._counts
        return found


def _places(shape: Shape) -> dict[Resource, IntArray]:
    """Return the indices of the job's ranks on each resource."""
    found: dict[Resource, list[int]] = {}
    for kind, names in shape.sharing.items():
        for index, place in enumerate(names):
            if place:
                found.setdefault((kind, place), []).append(index)
    return {resource: np.array(ranks, np.int64) for resource, ranks in found.items()}


def ranks_of(shape: Shape, kind: str, place: str) -> IntArray:
    """Return the indices of the job's ranks on this resource.

    kind: kind of the resource. place: its name.
    """
    return np.array([index for index, name in enumerate(shape.sharing.get(kind, ())) if name == place], np.int64)
