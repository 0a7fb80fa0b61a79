"""Signatures of causes: which counters indicate which cause, and how often each cause occurs.

The counters and the frequency of each cause in the fleet give each cause its log odds. A cause is reported if it is
three times as likely as the next cause; otherwise the cause is unknown. All suspects are processed at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Float32Array, IndexArray
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics

MARGIN = math.log(3.0)
"""A cause is reported only if its log odds exceed those of the next cause by at least this: it must be three times as
likely."""

SIGNATURES: dict[Cause, dict[str, float]] = {
    Cause.THERMAL: {"thermal_throttle": 1.0, "temperature": 0.5, "sm_clock": -0.5},
    Cause.POWER: {"power_throttle": 1.0, "sm_clock": -0.5},
    Cause.GPU: {"sm_clock": -0.7, "tensor_active": 0.3},
    Cause.MEMORY: {"memory_errors": 1.0},
    Cause.NVLINK: {"nvlink_errors": 1.0},
    Cause.PCIE: {"pcie_link": -1.0, "pcie_errors": 0.8, "nic_pause_sent": 0.5},
    Cause.NIC: {"nic_physical_errors": 1.0, "nic_sequence_errors": 0.6, "nic_pause_sent": 0.8},
    Cause.CPU_CONTENTION: {"cpu_waiting": 1.0, "runqueue_wait": 0.8},
    Cause.STORAGE: {"io_waiting": 1.0},
    Cause.CONGESTION: {"nic_congestion": 0.8, "nic_pause_received": 0.5},
}
"""Weight of each counter as evidence for each cause. A negative weight means that a low counter value indicates the
cause. Sources: operators' reports and published systems (Minder, Guard, C4D), and vendors' manuals for throttle reasons
and error counters."""

PRIORS: dict[Cause, float] = {
    Cause.MEMORY: 0.25,
    Cause.GPU: 0.22,
    Cause.THERMAL: 0.10,
    Cause.POWER: 0.08,
    Cause.PCIE: 0.07,
    Cause.NIC: 0.09,
    Cause.NVLINK: 0.04,
    Cause.CPU_CONTENTION: 0.08,
    Cause.STORAGE: 0.05,
    Cause.CONGESTION: 0.02,
}
"""Frequency of each cause among faults of one rank or device, from Minder's table (NSDI'25) with some classes merged.
Fleets differ: confirmed verdicts change these values (``Priors.learn``)."""

CAUSES = tuple(SIGNATURES)
WEIGHTS = np.zeros((len(FEATURES), len(CAUSES)), np.float32)
for _column, _cause in enumerate(CAUSES):
    for _feature, _weight in SIGNATURES[_cause].items():
        WEIGHTS[FEATURE[_feature], _column] = _weight

OF_NIC = frozenset({Cause.NIC, Cause.LINK, Cause.CONGESTION})
OF_GPU = frozenset({Cause.THERMAL, Cause.POWER, Cause.GPU, Cause.MEMORY, Cause.NVLINK, Cause.XID})
OF_HOST = frozenset({Cause.CPU_CONTENTION, Cause.STORAGE, Cause.SUSPENDED, Cause.PCIE, Cause.MEMORY_PRESSURE})

EVIDENT = np.float32(2.0)
"""A counter is evidence for a cause only if it deviates from its usual value by more than this number of standard
deviations."""

MOST_EVIDENCE = np.float32(6.0)
"""Maximum evidence that one counter can give, in standard deviations beyond EVIDENT."""

UNKNOWN_EVIDENCE = 2.0
"""Evidence that is assumed for an unknown cause. A cause is reported only if it has more evidence."""


class Priors:
    """Frequency of each cause in this fleet. The published frequencies count as ten verdicts; confirmed verdicts are
    added."""

    WORTH = 10.0

    def __init__(self) -> None:
        self._counts = {cause: self.WORTH * share for cause, share in PRIORS.items()}

    def learn(self, cause: Cause) -> None:
        """Count a confirmed verdict with this cause."""
        if cause in self._counts:
            self._counts[cause] += 1.0

    def logs(self) -> Float32Array:
        """Return the logarithm of each cause's frequency: float32 [causes]."""
        counts = np.array([self._counts[cause] for cause in CAUSES])
        result: Float32Array = np.log(counts / counts.sum()).astype(np.float32)
        return result


@dataclass(frozen=True, slots=True)
class Weighed:
    """Most likely cause of each suspect, and the log odds of all causes.

    cause: index of the cause, -1 if unknown. margin: its log odds against the next cause. odds: log odds of each cause,
    [suspects, causes].
    """

    cause: IndexArray
    margin: Float32Array
    odds: Float32Array

    def name(self, suspect: int) -> Cause:
        """Return the cause of the suspect with this index."""
        index = int(self.cause[suspect])
        return Cause.UNKNOWN if index < 0 else CAUSES[index]


def weigh(
    counters: CounterStatistics,
    suspects: IndexArray,
    priors: Priors,
    switches: Switches | None = None,
    from_start: bool = False,
) -> Weighed:
    """Compute the log odds of all causes for all suspects at once.

    suspects: their columns in `counters`. from_start: whether the suspects have no healthy history, and are compared
    with their peers only.
    """
    level = (counters.peers if from_start else counters.level)[:, suspects] / counters.scale[:, suspects]
    size = np.clip(np.abs(np.nan_to_num(level)) - EVIDENT, 0.0, MOST_EVIDENCE)
    toward = np.sign(np.nan_to_num(level)) * size
    odds = np.clip(toward.T @ WEIGHTS, -4.0, 12.0).astype(np.float32)
    # Errors and throttling are zero in healthy state: an alarmed CUSUM alone is evidence.
    alarmed = np.where(counters.score[:, suspects] >= 8.0, np.float32(1.0), np.float32(0.0))
    odds += (alarmed.T @ np.abs(WEIGHTS)) * np.float32(1.0)
    if switches is None or switches.priors:
        odds = odds + priors.logs()
    best = odds.argmax(axis=1)
    rows = np.arange(len(suspects))
    top = odds[rows, best]
    rest = odds.copy()
    rest[rows, best] = -np.inf
    unknown = np.float32(UNKNOWN_EVIDENCE + math.log(1.0 / len(CAUSES)))
    margin = top - np.maximum(rest.max(axis=1), unknown)
    return Weighed(np.where(margin >= MARGIN, best, -1).astype(np.intp), margin.astype(np.float32), odds)


def evidence(counters: CounterStatistics, column: int, most: int = 4) -> tuple[Evidence, ...]:
    """Return the counters that differ most from the peers, as evidence that a person can verify."""
    sigmas = np.nan_to_num(counters.level[:, column] / counters.scale[:, column])
    group = int(counters.peers_of.of[column])
    peers = counters.peers_of.order[counters.peers_of.starts[group] :][: counters.peers_of.sizes[group]]
    found = []
    for feature in np.argsort(-np.abs(sigmas))[:most].tolist():
        if abs(float(sigmas[feature])) < EVIDENT:
            break
        values: npt.NDArray[np.float32] = counters.newest[feature, peers]
        known = values[np.isfinite(values)]
        reference = float(np.median(known)) if len(known) else float("nan")
        what = FEATURES[feature]
        against = f"median of {len(peers)} peers; {float(sigmas[feature]):+.1f} sigma from its usual offset, on average"
        found.append(Evidence(what.name, float(counters.newest[feature, column]), reference, what.unit, against))
    return tuple(found)
