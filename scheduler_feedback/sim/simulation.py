"""Entry point of simulations, for `gangwatch simulate` and benchmarks: a trace, a cluster and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.sim.disturbances import Disturbances
from scheduler_feedback.sim.engine import Engine, Journal, Settings
from scheduler_feedback.sim.faults import Faults, faults_of
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.presets import PRESETS
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.simulated_feedback import FEEDBACKS, Detector, DetectorModel, Feedback, Oracle
from scheduler_feedback.sim.speeds.co_location import CoSpeed, equal_shares
from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads
from scheduler_feedback.sim.speeds.device_memory import DeviceMemory
from scheduler_feedback.sim.speeds.gpu_power import GpuModel
from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds
from scheduler_feedback.sim.speeds.shared_links import SharedLinks
from scheduler_feedback.sim.traces import TRACES

ENDED_JOBS_KEPT = 1000
"""Number of ended jobs that are kept in the state. The engine keeps its own records of all jobs."""

HORIZON = 3.0
"""Faults of nodes can begin from the first submission until this many times the expected length of the trace later. The
expected length is the time between the first and the last submission, plus the longest run time of a job."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Inputs of a simulation."""

    trace: Trace
    """Jobs to simulate."""
    nodes: tuple[NodeSeen, ...]
    """Nodes of the simulated cluster."""
    policy: Policy = field(default_factory=Policy)
    """Settings of the scheduler. A preset overrides some of them."""
    load: float = 1.0
    """Factor by which the arrival rate of jobs is multiplied."""
    restart_cost_seconds: float = 0.0
    """Seconds without progress at the start of every attempt except a job's first."""
    preset: str | None = None
    """Name of a preset (see ``presets.py``); None: no preset."""
    faults: str | None = None
    """Name of built-in faults, or the path of a file of faults; None: no faults."""
    feedback: str | Feedback = "off"
    """Source of verdicts: one of FEEDBACKS, or an implementation of Feedback."""
    detector: DetectorModel = field(default_factory=DetectorModel)
    """Errors of the simulated detector."""
    seed: int = 0
    """Seed of all random draws."""
    retries: int | None = None
    """Number of retries after failures of each job; None: that of the trace."""
    checkpoint_seconds: float | None = None
    """Interval of the checkpoints of restartable jobs, in seconds; None: that of the trace."""
    apart_slowdown: float = 1.0
    """Run time of a gang outside of one domain of its preferred level, divided by its run time inside."""
    co_speed: CoSpeed = equal_shares
    """True speed of a job beside the jobs that share its slots."""
    speeds: MeasuredSpeeds | None = None
    """Real speeds of gangs by workload; None: proportional to their ranks."""
    links: SharedLinks | None = None
    """Uplinks that gangs share; None: gangs do not slow each other down."""
    power: GpuModel | None = None
    """Power limits and curves of the GPUs; None: they have none."""
    datasets: DatasetLoads | None = None
    """Size and rate of the caches of datasets on the nodes; None: gangs start without loading."""
    memory: DeviceMemory | None = None
    """Device memory of the jobs by id; None: it never runs out."""
    spans: bool = False
    """Whether to keep every finished attempt, so that the HTML page can draw its chart."""

    def engine(self, journal: Journal | None = None) -> Engine:
        """Return the engine, ready to run. Raises TraceError if the faults cannot be read."""
        trace = self._changed(self.trace.scaled(self.load))
        policy = replace(self.policy, start_timeout_seconds=0.0, ended_jobs_kept=ENDED_JOBS_KEPT)
        settings = Settings(
            policy,
            self.restart_cost_seconds,
            apart_slowdown=self.apart_slowdown,
            co_speed=self.co_speed,
            speeds=self.speeds,
            links=self.links,
            datasets=None if self.datasets is None else self.datasets.empty(),
            memory=None if self.memory is None else self.memory.empty(),
            power=self.power,
            seed=self.seed,
            spans=self.spans,
        )
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
            limit = policy.default_time_limit_seconds
            note = f"{unlimited} jobs have no time limit; their expected run time is {limit:g} s"
            trace = replace(trace, notes=(*trace.notes, note))
        return Engine(trace, self.nodes, settings, self._disturbances(trace), journal)

    def _changed(self, trace: Trace) -> Trace:
        """Return the trace with the retries and the checkpoints of this simulation."""
        changes: dict[str, int | float] = {}
        if self.retries is not None:
            changes["max_retries"] = self.retries
        if self.checkpoint_seconds is not None:
            changes["checkpoint_interval_seconds"] = self.checkpoint_seconds
        if not changes:
            return trace
        return replace(trace, jobs=tuple(replace(job, spec=structs.replace(job.spec, **changes)) for job in trace.jobs))

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
                raise ValueError(f"feedback {self.feedback!r} is unknown; use one of {', '.join(FEEDBACKS)}")
        return self.feedback

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Simulate to the end. Raises TraceError."""
        return self.engine().run(progress)


def read_trace(path: Path, format_name: str) -> Trace:
    """Read the jobs in a file of this format. Raises TraceError."""
    for one in TRACES:
        if one.name == format_name:
            return one.read(path)
    raise TraceError(f"format {format_name!r} is unknown; use one of {', '.join(one.name for one in TRACES)}")
