"""True caches of datasets on simulated nodes: a node whose cache lacks a job's dataset loads it before the first step.

Each node drops the datasets that were used least recently. A gang starts when its slowest node has loaded.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_feedback.core.job import JobSpec


@dataclass(slots=True)
class DatasetLoads:
    """Caches of all nodes."""

    cache_gib: float
    """Size of each node's cache, in GiB."""
    gib_per_second: float
    """Rate at which a node loads a dataset that is not in its cache."""
    loaded_seconds: float = 0.0
    """Time that gangs have waited for their data, summed over gangs."""
    _caches: dict[str, OrderedDict[str, float]] = field(default_factory=dict)

    def empty(self) -> DatasetLoads:
        """Return empty caches of the same size and rate, for another simulation."""
        return DatasetLoads(self.cache_gib, self.gib_per_second)

    def read(self, spec: JobSpec, nodes: Iterable[str]) -> float:
        """Return the seconds until all nodes have the dataset of a job that starts on them, and keep it there."""
        if not spec.dataset:
            return 0.0
        absent = [not self._use(node, spec) for node in nodes]
        seconds = spec.dataset_gib / self.gib_per_second if any(absent) else 0.0
        self.loaded_seconds += seconds
        return seconds

    def left(self, spec: JobSpec, nodes: Iterable[str]) -> None:
        """Note that a job has used its dataset until now."""
        for node in nodes if spec.dataset else ():
            self._use(node, spec)

    def forget(self, node: str) -> None:
        """Empty the cache of a node that failed."""
        self._caches.pop(node, None)

    def _use(self, node: str, spec: JobSpec) -> bool:
        """Put the dataset at the newest end of the node's cache. Return whether it was there."""
        cache = self._caches.setdefault(node, OrderedDict())
        there = cache.pop(spec.dataset, None) is not None
        if spec.dataset_gib <= self.cache_gib:
            cache[spec.dataset] = spec.dataset_gib
            while math.fsum(cache.values()) > self.cache_gib:
                cache.popitem(last=False)
        return there
