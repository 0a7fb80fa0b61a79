"""A job's ranks on the hosts that it shares with other jobs, and the longest compute time on each host in a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.stats.validity_mask import BoolArray

LEAST_ELSEWHERE = 0.25
"""The compute time of a job's ranks on a shared host is compared with that of its ranks on hosts without other jobs.
This requires that the latter are at least this share of all its ranks; otherwise the whole compute time is used."""


class HostRanks:
    """Ranks of one job on shared hosts.

    shape: ranks of the job. hosts: names of the shared hosts. Hosts without ranks of the job are left out.
    """

    def __init__(self, shape: Shape, hosts: Collection[str]) -> None:
        self.shape = shape
        on: dict[str, list[int]] = {host: [] for host in hosts}
        for index, name in enumerate(shape.sharing.get("host", ())):
            if name in on:
                on[name].append(index)
        self.hosts = tuple(host for host, ranks in on.items() if ranks)
        counts = np.array([len(on[host]) for host in self.hosts], np.intp)
        self._order = np.array([rank for host in self.hosts for rank in on[host]], np.intp)
        self._starts = np.cumsum(counts) - counts
        self._elsewhere = np.ones(len(shape), np.bool_)
        self._elsewhere[self._order] = False
        self._apart = bool(self._elsewhere.mean() >= LEAST_ELSEWHERE)

    def excess(self, own: FloatArray, fine: BoolArray) -> Iterator[tuple[str, float]]:
        """Yield each host with the longest compute time of its ranks in one step, less that of the median rank
        elsewhere.

        own: compute seconds of each rank, NaN if unknown: [n]. fine: whether each is known. Hosts whose ranks are all
        unknown are left out.
        """
        if not self.hosts:
            return
        usual = 0.0
        if self._apart:
            reference = own[self._elsewhere & fine]
            usual = float(np.median(reference)) if len(reference) else 0.0
        longest = np.fmax.reduceat(own[self._order], self._starts)
        for host, seconds in zip(self.hosts, longest.tolist(), strict=True):
            if seconds == seconds:  # not NaN
                yield host, seconds - usual
