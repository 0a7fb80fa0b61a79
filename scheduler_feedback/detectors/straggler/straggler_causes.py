"""What a slow rank is slow for, where its processes do not tell: by the devices' counters and their past."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURES, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_signatures import MARGIN, Priors, evidence, weigh
from scheduler_feedback.detectors.counters.counter_statistics import Panel
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.baseline import Baseline
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement

MISSING = "process_counters"

GPU_ROWS = np.array([row for row, feature in enumerate(FEATURES) if feature.of == "gpu"], np.intp)

OF_PARTS = frozenset(
    {Cause.THERMAL, Cause.POWER, Cause.GPU, Cause.MEMORY, Cause.NVLINK, Cause.PCIE, Cause.NIC, Cause.LINK}
)
"""What a part is remembered for: not what was done to its processes."""

CONTENDED = frozenset({Cause.CPU_CONTENTION, Cause.STORAGE, Cause.UNKNOWN})
"""What a rank on a host of several jobs may be slow for because of the others there: no cause is none of its own."""


class Causes:
    """The cause of an alarm by the panel's counters, and the past of the part that is blamed.

    Hosts that several jobs stand on are known: what a rank waits for there may be the other's doing.
    """

    def __init__(self, panel: Panel, switches: Switches) -> None:
        self._panel = panel
        self._switches = switches
        self._priors = Priors()
        self._shapes: tuple[Shape, ...] = ()
        self._crowded: set[str] = set()

    def at(self, telemetry: Telemetry) -> None:
        """Fold in what is new, before the alarms of this look are judged."""
        self._panel.at(telemetry)
        shapes = tuple(job.shape for job in telemetry.jobs)
        if shapes != self._shapes:
            self._shapes = shapes
            hosts = Counter(host for shape in shapes for host in set(shape.sharing.get("host", ())) if host)
            self._crowded = {host for host, jobs in hosts.items() if jobs > 1}

    def on_device(self, job: JobTelemetry, rank: int) -> bool:
        """Whether the rank computes on a GPU that is read: then not its processes tell how it fares, but the GPU."""
        if job.shape.job not in self._panel.columns:
            return False
        return bool(np.isfinite(self._panel.newest[GPU_ROWS, self._panel.of(job.shape.job).start + rank]).any())

    def judged_by(self, judgement: Judgement, job: JobTelemetry, baseline: Baseline) -> Judgement:
        """The cause as the devices' counters tell it, where the processes' own do not."""
        if judgement.refusal or judgement.cause is not Cause.UNKNOWN or job.shape.job not in self._panel.columns:
            return judgement
        column = self._panel.of(job.shape.job).start + judgement.rank
        if np.isnan(self._panel.newest[:, column]).all():
            return judgement
        from_start = bool(baseline.from_start[judgement.rank])
        weighed = weigh(self._panel, np.array([column], np.intp), self._priors, self._switches, from_start)
        told = (*(item for item in judgement.evidence if item.measure != MISSING), *evidence(self._panel, column))
        cause = weighed.name(0)
        hosts = job.shape.sharing.get("host", ())
        if hosts and hosts[judgement.rank] in self._crowded and cause in CONTENDED:
            refusal = "another job uses the same host, and no counter excludes contention between the two jobs"
            return replace(judgement, cause=cause, evidence=told, refusal=refusal)
        if cause is not Cause.UNKNOWN:
            margin = log_odds.bounded(float(weighed.margin[0]), 0.0, 1.0)
            told = (*told, Evidence("log_odds_of_cause", float(weighed.margin[0]), MARGIN, "", str(cause), margin))
        return replace(judgement, cause=cause, evidence=told, confidence=log_odds.confidence(told), counters=True)

    def with_past(self, judgement: Judgement, shape: Shape) -> Judgement:
        """With what earlier verdicts said of the part and its node; which makes no verdict, but one surer."""
        rank = judgement.rank
        past = self._panel.lemons.weight(shape.gpus[rank] if shape.gpus else "", shape.nodes[rank])
        if judgement.cause not in OF_PARTS or not past:
            return judgement
        told = (*judgement.evidence, *past)
        return replace(judgement, evidence=told, confidence=log_odds.confidence(told))
