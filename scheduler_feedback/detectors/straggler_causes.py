"""What a slow rank is slow for, where its processes do not tell: by the devices' counters and their past."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from scheduler_feedback.core.telemetry import FEATURE, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors import weighing
from scheduler_feedback.detectors.baseline import Baseline
from scheduler_feedback.detectors.gates import HIT_SIGMAS, Judgement
from scheduler_feedback.detectors.panel import Panel
from scheduler_feedback.detectors.signatures import MARGIN, Priors, evidence, weigh
from scheduler_feedback.detectors.switches import Switches

MISSING = "process_counters"

OF_PARTS = frozenset(
    {Cause.THERMAL, Cause.POWER, Cause.GPU, Cause.MEMORY, Cause.NVLINK, Cause.PCIE, Cause.NIC, Cause.LINK}
)
"""What a part is remembered for: not what was done to its processes."""


class Causes:
    """The cause of an alarm by the panel's counters, and the past of the part that is blamed.

    Hosts that several jobs stand on are known: what a rank waits for there may be the other's doing.
    """

    def __init__(self, panel: Panel, switches: Switches) -> None:
        self._panel = panel
        self._switches = switches
        self._priors = Priors()
        self._crowded: set[str] = set()

    def at(self, telemetry: Telemetry) -> None:
        """Fold in what is new, before the alarms of this look are judged."""
        self._panel.at(telemetry)
        hosts = Counter(host for job in telemetry.jobs for host in set(job.shape.sharing.get("host", ())) if host)
        self._crowded = {host for host, jobs in hosts.items() if jobs > 1}

    def judged_by(self, judgement: Judgement, job: JobTelemetry, baseline: Baseline, mates: bool) -> Judgement:
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
        if (
            hosts
            and hosts[judgement.rank] in self._crowded
            and (self._contended(column, cause) or (mates and cause is Cause.UNKNOWN))
        ):
            refusal = "its host is another job's as well, and it waits there for processors or disks"
            return replace(judgement, cause=cause, evidence=told, refusal=refusal)
        if cause is not Cause.UNKNOWN:
            margin = weighing.bounded(float(weighed.margin[0]), 0.0, 1.0)
            told = (*told, Evidence("log_odds_of_cause", float(weighed.margin[0]), MARGIN, "", str(cause), margin))
        return replace(judgement, cause=cause, evidence=told, confidence=weighing.confidence(told), counters=True)

    def with_past(self, judgement: Judgement, shape: Shape) -> Judgement:
        """With what earlier verdicts said of the part and its node; which makes no verdict, but one surer."""
        rank = judgement.rank
        past = self._panel.lemons.weight(shape.gpus[rank] if shape.gpus else "", shape.nodes[rank])
        if judgement.cause not in OF_PARTS or not past:
            return judgement
        told = (*judgement.evidence, *past)
        return replace(judgement, evidence=told, confidence=weighing.confidence(told))

    def _contended(self, column: int, cause: Cause) -> bool:
        """Whether what the rank waits for is something that another job on its host takes."""
        if cause in (Cause.CPU_CONTENTION, Cause.STORAGE):
            return True
        rows = [FEATURE[name] for name in ("cpu_waiting", "runqueue_wait", "io_waiting")]
        sigmas = self._panel.level[rows, column] / self._panel.scale[rows, column]
        return cause is Cause.UNKNOWN and bool((np.nan_to_num(sigmas) >= HIT_SIGMAS).any())
