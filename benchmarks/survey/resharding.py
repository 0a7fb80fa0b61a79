"""Row of Tenplex: elastic gangs that have a layout for some numbers of ranks only, and pay for a change of it.

The traces and speeds are those of ``elastic``. Each job has layouts for the powers of two, and for the number of GPUs
that it requests. A restart with another number takes RESHARD_SECONDS longer, which is an assumption. Compared is the
same choice of sizes with fixed sizes, and with any number of GPUs at no such cost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

from msgspec import structs

from benchmarks.survey import sia_data
from benchmarks.survey.elastic import POLICY, average_jct
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.state import Sizes
from scheduler_feedback.sim.job_trace import TraceJob
from scheduler_feedback.sim.simulation import Simulation

RESHARD_SECONDS = 60.0
"""Additional time of a restart with another number of ranks."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = (
        f"average JCT with layouts for powers of two / with fixed sizes, {sia_data.TRACES} traces of Sia's artifact"
    )
    return [
        Row("Tenplex", "restart on another number of GPUs", measure, None, "Wagenländer et al., SOSP'24", _measured)
    ]


def with_layouts(job: TraceJob, reshard_seconds: float = RESHARD_SECONDS) -> TraceJob:
    """Return the elastic job with layouts for the powers of two and for its requested number of ranks."""
    spec = job.spec
    least, most = spec.min_ranks or spec.ranks, spec.max_ranks or spec.ranks
    powers = {1 << power for power in range(most.bit_length()) if least <= 1 << power <= most}
    sizes = tuple(sorted({*powers, spec.ranks}))
    changes = {"sizes": sizes, "min_ranks": sizes[0], "max_ranks": sizes[-1], "reshard_seconds": reshard_seconds}
    return replace(job, spec=structs.replace(spec, **changes))


@cache
def jct_with_layouts(number: int) -> float:
    """Return the average completion time of a trace in seconds, with learnt speeds."""
    trace = sia_data.trace(number, elastic=True)
    trace = replace(trace, jobs=tuple(with_layouts(job) for job in trace.jobs))
    policy = replace(POLICY, sizes=Sizes.SPEEDUP, learn_speeds=True)
    report = Simulation(trace, sia_data.nodes(), policy, speeds=sia_data.speeds(), seed=number).run()
    assert report.avg_jct_seconds is not None and not report.unfinished, "all jobs end"
    return report.avg_jct_seconds


def _measured() -> Outcome:
    traces = range(1, sia_data.TRACES + 1)
    fixed = tuple(jct_with_layouts(one) / average_jct(one, None, False) for one in traces)
    free = tuple(jct_with_layouts(one) / average_jct(one, Sizes.SPEEDUP, True) for one in traces)
    reason = (
        f"+-{interval(fixed):.3f} (95 %); / any size without the cost {fmean(free):.3f} +-{interval(free):.3f}; "
        f"{RESHARD_SECONDS:g} s for each change of the layout are assumed; no published figure is for these jobs"
    )
    return Outcome(None, round(fmean(fixed), 4), reason)
