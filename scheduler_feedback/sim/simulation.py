"""Simulation: a trace, a cluster and settings, put together and run: what `gangwatch simulate` and benchmarks call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.cycle_context import nanoseconds
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.sim.account import Report
from scheduler_feedback.sim.disturbances import Disturbances
from scheduler_feedback.sim.engine import Engine, Journal, Settings
from scheduler_feedback.sim.faults import Faults, faults_of
from scheduler_feedback.sim.feedback import Detector, DetectorModel, Feedback, Oracle
from scheduler_feedback.sim.presets import PRESETS
from scheduler_feedback.sim.trace import Trace
from scheduler_feedback.sim.traces import TRACES

ENDED_JOBS_KEPT = 1000
"""The engine accounts for jobs itself; the state need not remember them all."""

FEEDBACKS = ("off", "on", "told", "oracle")
"""What is said of slow nodes (``sim.feedback``)."""

HORIZON = 3.0
"""Faults of nodes are drawn for so many times the span of the submissions: a queue may outlast it."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to simulate.

    policy: of the scheduler; a preset is put over it. load: jobs arrive so many times as fast.
    restart_cost_seconds: of every job. faults: a preset's name or a file's. feedback: one of FEEDBACKS, or its giver.
    """

    trace: Trace
    nodes: tuple[NodeSeen, ...]
    policy: Policy = field(default_factory=Policy)
    load: float = 1.0
    restart_cost_seconds: float = 0.0
    preset: str | None = None
    faults: str | None = None
    feedback: str | Feedback = "off"
    detector: DetectorModel = field(default_factory=DetectorModel)
    seed: int = 0
    spans: bool = False

    def engine(self, journal: Journal | None = None) -> Engine:
        """The engine, ready to run. Raises TraceError for faults that can't be read."""
        trace = self.trace.scaled(self.load)
        policy = replace(self.policy, start_timeout_seconds=0.0, ended_jobs_kept=ENDED_JOBS_KEPT)
        settings = Settings(policy, self.restart_cost_seconds, spans=self.spans)
        if self.preset is not None:
            preset = next(one for one in PRESETS if one.name == self.preset)
            trace = preset.trace(trace)
            settings = replace(
                settings,
                policy=preset.policy(policy),
                restart_cost_seconds=preset.restart_cost_seconds,
                stall_seconds=preset.stall_seconds,
            )
        unlimited = sum(job.spec.time_limit_seconds is None for job in trace.jobs)
        if policy.estimates is Estimates.LIMIT and unlimited:
            note = f"{unlimited} jobs name no limit: they are expected to run {policy.default_time_limit_seconds:g} s"
            trace = replace(trace, notes=(*trace.notes, note))
        return Engine(trace, self.nodes, settings, self._disturbances(trace), journal)

    def _disturbances(self, trace: Trace) -> Disturbances | None:
        first_ns, span_ns = trace.first_ns, trace.jobs[-1].submitted_ns - trace.jobs[0].submitted_ns
        longest_ns = nanoseconds(max(job.run_seconds for job in trace.jobs))
        last_ns = first_ns + round(HORIZON * (span_ns + longest_ns))
        faults = faults_of(self.faults, trace.jobs, self.nodes, first_ns, last_ns, self.seed)
        feedback = self._feedback()
        if faults == Faults() and feedback is None:
            return None
        return Disturbances(faults, feedback)

    def _feedback(self) -> Feedback | None:
        match self.feedback:
            case "off":
                return None
            case "on":
                return Detector(self.detector, self.seed)
            case "told" | "oracle":
                return Oracle(for_how_long=self.feedback == "oracle")
            case str():
                raise ValueError(f"{self.feedback!r}: there are {', '.join(FEEDBACKS)}")
        return self.feedback

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Simulate to the end. Raises TraceError."""
        return self.engine().run(progress)


def read_trace(path: Path, format_name: str) -> Trace:
    """The jobs in a file of this format. Raises TraceError."""
    for one in TRACES:
        if one.name == format_name:
            return one.read(path)
    raise TraceError(f"{format_name!r} is no format; there are {', '.join(one.name for one in TRACES)}")
