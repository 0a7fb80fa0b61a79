"""Causes of slow ranks found by device counters and fault history, where process counters do not show the cause."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.cause_signatures import EVIDENT, MARGIN, Priors, evidence, weigh
from scheduler_feedback.detectors.counters.feature_scales import BAD
from scheduler_feedback.detectors.resource_users import ResourceUsers
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.baseline import Baseline
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement
from scheduler_feedback.detectors.straggler.shown_from_start import cause_shown

MISSING = "process_counters"

GPU_ROWS = np.array([row for row, feature in enumerate(FEATURES) if feature.of == "gpu"], np.intp)

BAD_ROWS = np.flatnonzero(BAD)
"""Rows of the counters whose deviation in one direction indicates a fault."""

OF_PARTS = frozenset(
    {Cause.THERMAL, Cause.POWER, Cause.GPU, Cause.MEMORY, Cause.NVLINK, Cause.PCIE, Cause.NIC, Cause.LINK}
)
"""Causes that the fault history records, because they are faults of a part. Causes that affect only processes are not
recorded."""

MORE_WORK = 0.5
"""A rank has more work if the cycles of its tensor cores grew by at least this share of its compute time (both as
logarithms). A fault does not change them: they follow from the work, at any clock and with any kernel."""

OF_LOAD = frozenset({Cause.UNKNOWN, Cause.POWER, Cause.THERMAL})
"""Causes that more work has too: a GPU with more work needs more power, gets hotter, and lowers its clock."""

CONTENDED = frozenset({Cause.CPU_CONTENTION, Cause.STORAGE, Cause.UNKNOWN})
"""Causes that another job on the same host can produce. A slow rank without a known cause is included."""


class Causes:
    """Finder of an alarm's cause by device counters, and of earlier faults of the accused part.

    It also keeps the set of hosts that several jobs share: on such a host, another job may be the cause of waits.
    """

    _context: DetectionContext

    def __init__(self) -> None:
        self._priors = Priors()
        self._users = ResourceUsers("host")
        self._crowded: set[str] = set()

    def begin(self, context: DetectionContext) -> None:
        """Set the context of the current tick for all further calls."""
        self._context = context
        if self._users.take([job.shape for job in context.telemetry.jobs]):
            self._crowded = self._users.names()

    def on_device(self, job: JobTelemetry, rank: int) -> bool:
        """Return whether the rank computes on a GPU with readable counters. GPU counters then show its state better
        than process counters."""
        counters = self._context.counters
        if job.shape.job not in counters.columns:
            return False
        return bool(np.isfinite(counters.newest[GPU_ROWS, counters.of(job.shape.job).start + rank]).any())

    def shown(self, job: JobTelemetry, rank: int) -> Cause:
        """Return the cause that the counters of a rank (index) without a healthy past show."""
        counters = self._context.counters
        if job.shape.job not in counters.columns:
            return Cause.UNKNOWN
        return cause_shown(counters, counters.of(job.shape.job).start + rank)

    def judged_by(
        self, judgement: Judgement, job: JobTelemetry, baseline: Baseline, longer: float = 1.0, seconds: float = 0.0
    ) -> Judgement:
        """Return the judgement with the cause that device counters show, if process counters show none.

        longer: compute time of the rank, divided by that of a healthy rank. If its tensor cores did as much more work,
        the alarm is refused. seconds: time since the alarm began. If counters learned their usual values in it, they
        are no evidence that the rank is healthy.
        """
        counters = self._context.counters
        if judgement.refusal or judgement.cause is not Cause.UNKNOWN or job.shape.job not in counters.columns:
            return judgement
        column = counters.of(job.shape.job).start + judgement.rank
        if np.isnan(counters.newest[:, column]).all():
            return judgement
        from_start = bool(baseline.from_start[judgement.rank])
        suspects = np.array([column], np.intp)
        weighed = weigh(counters, suspects, self._priors, self._context.switches, from_start)
        items = (*(item for item in judgement.evidence if item.measure != MISSING), *evidence(counters, column))
        cause = weighed.name(0)
        if cause is Cause.UNKNOWN and from_start:
            cause = cause_shown(counters, column)
        hosts = job.shape.sharing.get("host", ())
        if hosts and hosts[judgement.rank] in self._crowded and cause in CONTENDED:
            refusal = "another job uses the same host, and no counter excludes contention between the two jobs"
            return replace(judgement, cause=cause, evidence=items, refusal=refusal)
        more = self._more_work(column, judgement.step_seconds, from_start)
        if cause in OF_LOAD and 0 < MORE_WORK * math.log(longer) <= more:
            usual = "the work of its peers" if from_start else "their usual work, relative to its peers"
            refusal = (
                f"its tensor cores do {math.exp(more):.3g} times {usual}: it has more work, such as a popular expert"
            )
            return replace(judgement, evidence=items, refusal=refusal, counters=True)
        hinted = seconds > counters.learned_seconds(job.shape) or bool(
            (counters.level[BAD_ROWS, column] * BAD[BAD_ROWS] >= EVIDENT * counters.scale[BAD_ROWS, column]).any()
        )
        if cause is not Cause.UNKNOWN:
            margin = log_odds.bounded(float(weighed.margin[0]), 0.0, 1.0)
            items = (*items, Evidence("log_odds_of_cause", float(weighed.margin[0]), MARGIN, "", str(cause), margin))
        confidence = log_odds.confidence(items)
        return replace(judgement, cause=cause, evidence=items, confidence=confidence, counters=True, hinted=hinted)

    def may_be_load(self, judgement: Judgement, job: JobTelemetry) -> bool:
        """Return whether more work may be the cause of a rank that was slow from the start: its GPU lowers its clock,
        and no counters show how much it computes, compared with its peers."""
        counters = self._context.counters
        if judgement.cause not in OF_LOAD or job.shape.job not in counters.columns:
            return False
        column = counters.of(job.shape.job).start + judgement.rank
        return self._more_work(column, judgement.step_seconds, True) == -math.inf

    def _more_work(self, column: int, step_seconds: float, from_start: bool) -> float:
        """Return by how much more tensor core cycles this column has than its peers: a logarithm, -infinity if it is
        unknown.

        Compared with its own past, or with its peers only if it was slow from the start. If a window of counters is
        shorter than a step, means over many steps are compared.
        """
        counters = self._context.counters
        if self._context.telemetry.counters.seconds < step_seconds:
            cycles = counters.cycles
            found = (cycles.more_than_peers if from_start else cycles.more_than_usual)(column, step_seconds)
            return found if math.isfinite(found) else -math.inf
        of = counters.peers if from_start else counters.level
        tensor, clock = of[[FEATURE["tensor_active"], FEATURE["sm_clock"]], column].tolist()
        if not math.isfinite(tensor):
            return -math.inf
        return float(tensor + (clock if math.isfinite(clock) else 0.0))

    def with_past(self, judgement: Judgement, shape: Shape) -> Judgement:
        """Return the judgement with earlier verdicts on the part and its node as further evidence.

        Earlier verdicts raise the confidence. Without other evidence they never lead to a verdict.
        """
        rank = judgement.rank
        past = self._context.fault_history.weight(shape.gpus[rank] if shape.gpus else "", shape.nodes[rank])
        if judgement.cause not in OF_PARTS or not past:
            return judgement
        items = (*judgement.evidence, *past)
        confidence = log_odds.confidence if judgement.counters else log_odds.without_counters
        return replace(judgement, evidence=items, confidence=confidence(items))
