"""Distances of each machine to all others over several minutes: Minder (NSDI 2025), without its autoencoder.

For each metric, the newest samples of every machine form a vector. A machine's dissimilarity is the sum of its
distances to all other machines, normalised over the machines. If one machine's dissimilarity is the largest and over
a threshold in every window for four minutes, it is faulty. Metrics are tried in the paper's order. Minder first
denoises each metric with an LSTM-VAE; here the samples are used directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule
from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world.arrays import FloatArray

METRICS = (
    "nic_pause_sent",
    "nic_pause_received",
    "cpu_waiting",
    "tensor_active",
    "power",
    "sm_active",
    "nvlink_bytes",
    "nic_transmit_bytes",
    "sm_clock",
    "temperature",
)
"""Metrics in the order of the paper's figure 7: PFC, CPU, GPU duty cycle, power, graphics engine, NVLink, network."""

SAMPLES = 8
CONTINUITY_SECONDS = 240.0
THRESHOLD = 3.0
"""Threshold of a machine's normalised dissimilarity; the paper does not print its own. In a job of n machines the
dissimilarity cannot exceed (n - 1)/sqrt(n), so small jobs use nine tenths of that limit."""

MOST_PAIRED = 256


def dissimilarity(vectors: FloatArray) -> FloatArray:
    """Return the normalised sum of each machine's distances to all others: [machines]. vectors: [machines, samples]."""
    others = vectors if len(vectors) <= MOST_PAIRED else vectors[:: max(1, len(vectors) // MOST_PAIRED)]
    # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b: one matrix product instead of all differences.
    squares = (vectors**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None] - 2.0 * vectors @ others.T
    sums = np.sqrt(np.maximum(squares, 0.0)).sum(axis=1)
    spread = float(sums.std())
    return np.asarray((sums - sums.mean()) / spread) if spread > 1e-12 else np.zeros(len(vectors))


class PairwiseDistance(Rule):
    name: ClassVar[str] = "pairwise_distance"
    every_seconds: ClassVar[float] = 30.0

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[str, float]] = {}

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        if len(history.windows) < SAMPLES:
            return []
        now = history.now
        names, node_of = np.unique(np.asarray(history.shape.nodes), return_inverse=True)
        if len(names) < 3:
            return []
        bar = min(THRESHOLD, 0.9 * (len(names) - 1) / np.sqrt(len(names)))
        newest = list(history.windows)[-SAMPLES:]
        size = np.bincount(node_of)
        found: list[int | str] = []
        for metric in METRICS:
            values = np.array([window[FEATURE[metric]] for window in newest])
            known = np.isfinite(values)
            if not known.any():
                continue
            filled = np.where(known, values, np.nanmedian(values))
            machines = np.stack([np.bincount(node_of, row) / size for row in filled], axis=1)
            spread = machines.std()
            score = dissimilarity((machines - machines.mean()) / (spread if spread > 0 else 1.0))
            worst = int(np.argmax(score))
            key = history.shape.job, metric
            if score[worst] <= bar:
                self._since.pop(key, None)
                continue
            accused, since = self._since.get(key, (names[worst], now))
            if accused != names[worst]:
                since = now
            self._since[key] = str(names[worst]), since
            if now - since >= CONTINUITY_SECONDS and str(names[worst]) not in found:
                found.append(str(names[worst]))
        return found

    def forget(self, job: str) -> None:
        for key in [key for key in self._since if key[0] == job]:
            del self._since[key]
