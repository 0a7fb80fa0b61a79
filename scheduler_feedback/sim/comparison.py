"""Comparison of several scheduling policies on one trace, for `gangwatch simulate compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Order, Policy, Sharing, Sizes
from scheduler_feedback.sim.comparison_page import Curves, curves_of, slowdowns
from scheduler_feedback.sim.results import Account, Report
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.truth import Course

SIZES = (1, 8, 64)
"""Upper bounds of the classes of job size, in ranks. The last class has all larger jobs."""

PREEMPT = "preempt"
"""Part of a policy's name that allows preemption."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Figures of one policy. Times are means over ended jobs, in seconds; None if no job has ended."""

    name: str
    """Name of the policy."""
    jobs: int
    """Number of ended jobs."""
    unfinished: int
    """Number of jobs that never ended."""
    refused: int
    """Number of jobs that could not be read, or that this cluster or policy can never run."""
    avg_jct_seconds: float | None
    """Mean time from submission to end."""
    p99_jct_seconds: float | None
    """Time from submission to end that 99 % of the jobs do not exceed."""
    avg_queue_seconds: float | None
    """Mean total time that a job was pending."""
    max_queue_seconds: float | None
    """Longest total time that a job was pending."""
    makespan_seconds: float
    """Time from the first submission to the last end."""
    utilization: float
    """Share of all slot-seconds that gangs held."""
    fragmentation: float
    """Share of the free slots that are on partly used nodes."""
    preemptions: int
    """Number of attempts that were stopped for another gang."""
    goodput: float
    """Share of all slot-seconds that was lasting progress: utilization without what the next figure counts."""
    lost_slot_hours: float
    """Slot-hours that gangs held without lasting progress: restarts, repeated work, and slow nodes."""
    energy_kwh: float | None
    """Energy of all GPUs from the first submission to the last end; None if their power is not given."""
    avg_slowdown: float | None
    """Mean of a job's time from submission to end, divided by its run time alone (at least SHORTEST_SECONDS)."""
    p99_slowdown: float | None
    """Slowdown that 99 % of the jobs do not exceed."""
    user_fairness: float | None
    """Jain's index of the mean slowdowns of users: 1 if all are equal, 1 / n if one of n has all of it."""
    per_user: dict[str, dict[str, float | int]]
    """Jobs, mean JCT, mean wait and mean slowdown of each user; of each queue if the trace has no users."""
    per_size: dict[str, dict[str, float | int]]
    """The same by class of job size in ranks."""
    wall_seconds: float
    """Run time of the simulation."""


def policy_of(name: str) -> Policy:
    """Return the policy with this name: an order, and optionally a rule of backfill, one of sizes, one for shared slots
    and `preempt`, joined by `+`.

    Examples: `fair`, `fifo+easy`, `srtf+goodput`, `srtf+greedy+preempt`, `fifo+gandiva`. The rest is as in `gangwatch
    simulate`: EASY backfill, no preemption, and for `fair` the default policy of simulations. Raises ValueError that
    names the possible parts.
    """
    order, *parts = name.split("+")
    rules = {one.value for one in Backfilling}
    kinds = {one.value for one in Sizes}
    sharing = {one.value for one in Sharing if one is not Sharing.NONE}
    backfills = [Backfilling(part) for part in parts if part in rules]
    sizes = [Sizes(part) for part in parts if part in kinds]
    shares = [Sharing(part) for part in parts if part in sharing]
    if order not in set(Order) or any(part not in rules | kinds | sharing | {PREEMPT} for part in parts):
        raise ValueError(
            f"{name!r} is not ORDER[+BACKFILL][+SIZES][+SHARING][+{PREEMPT}]; an order is one of {_values(Order)}; "
            f"backfill one of {_values(Backfilling)}; sizes one of {_values(Sizes)}; sharing one of {_values(Sharing)}"
        )
    if any(len(one) > 1 for one in (backfills, sizes, shares)) or len(set(parts)) != len(parts):
        raise ValueError(f"{name!r} has more than one rule of backfill, of sizes or for shared slots, or a part twice")
    base = FAIR_POLICY if Order(order) is Order.FAIR else Policy()
    return replace(
        base,
        order=Order(order),
        preempt=PREEMPT in parts,
        backfill=backfills[0] if backfills else Backfilling.EASY,
        sizes=sizes[0] if sizes else Sizes.IDLE,
        sharing=shares[0] if shares else Sharing.NONE,
    )


def _values(choices: type[StrEnum]) -> str:
    return ", ".join(one.value for one in choices)


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Power of a GPU, in watts: without and with a job."""

    idle: float
    busy: float

    def kwh(self, slots: int, seconds: float, utilization: float) -> float:
        """Return the energy of this number of GPUs over a time, of which jobs hold a share."""
        return slots * seconds * (self.idle + utilization * (self.busy - self.idle)) / 3.6e6


def compared(
    name: str,
    simulation: Simulation,
    progress: Callable[[int, int], None] | None = None,
    power: GpuPower | None = None,
) -> tuple[Compared, Curves]:
    """Run the simulation and return its figures, and the curves for a page (empty without ``Simulation.spans``).

    progress: called with (ended jobs, all jobs). Raises TraceError.
    """
    engine = simulation.engine()
    report = engine.run(progress)
    return figures(name, report, list(engine.courses.values()), engine.account, power), curves_of(name, engine)


def figures(
    name: str, report: Report, courses: Sequence[Course], account: Account, power: GpuPower | None = None
) -> Compared:
    """Return the figures of a finished simulation."""
    slots, held_slot_ns = sum(account.capacity.values()), account.held_slot_ns
    ended, jct, slowdown = slowdowns(courses)
    wait = np.array([course.waiting_ns / 1e9 for course in ended])
    useful = sum((course.work_ns - course.left_ns) * course.job.spec.ranks for course in courses)
    whose = [course.job.spec.user or course.job.spec.queue for course in ended]
    per_user = _by(whose, jct, wait, slowdown)
    means = np.array([float(one["avg_slowdown"]) for one in per_user.values()])
    return Compared(
        name=name,
        jobs=report.jobs,
        unfinished=report.unfinished,
        refused=len(report.refused) - report.unfinished,
        avg_jct_seconds=report.avg_jct_seconds,
        p99_jct_seconds=report.p99_jct_seconds,
        avg_queue_seconds=report.avg_queue_seconds,
        max_queue_seconds=report.max_queue_seconds,
        makespan_seconds=report.makespan_seconds,
        utilization=report.utilization,
        fragmentation=report.fragmentation,
        preemptions=report.preemptions,
        goodput=useful / (slots * report.makespan_seconds * 1e9) if report.makespan_seconds else 0.0,
        lost_slot_hours=max(held_slot_ns - useful, 0) / 3.6e12,
        energy_kwh=report.power["energy_kwh"] if report.power else _energy(power, slots, report),
        avg_slowdown=float(slowdown.mean()) if ended else None,
        p99_slowdown=float(np.quantile(slowdown, 0.99, method="inverted_cdf")) if ended else None,
        user_fairness=float(means.sum() ** 2 / (means.size * (means**2).sum())) if ended else None,
        per_user=per_user,
        per_size=_by([size_class(course.job.spec.ranks) for course in ended], jct, wait, slowdown),
        wall_seconds=report.wall_seconds,
    )


def _energy(power: GpuPower | None, slots: int, report: Report) -> float | None:
    return None if power is None else power.kwh(slots, report.makespan_seconds, report.utilization)


def size_class(ranks: int) -> str:
    """Return the class of a job's size, such as '2-8'."""
    least = 1
    for most in SIZES:
        if ranks <= most:
            return f"{least}-{most}" if least < most else f"{most}"
        least = most + 1
    return f"{least}+"


def _by(
    groups: Iterable[str], jct: NDArray[np.float64], wait: NDArray[np.float64], slowdown: NDArray[np.float64]
) -> dict[str, dict[str, float | int]]:
    """Return the number of jobs and the means of their figures for each group, by name in natural order."""
    names = np.array(list(groups))
    found = {}
    for name in sorted(set(names.tolist()), key=lambda one: (len(one.split("-")[0]), one)):
        mine = names == name
        found[str(name)] = {
            "jobs": int(mine.sum()),
            "avg_jct_seconds": float(jct[mine].mean()),
            "avg_queue_seconds": float(wait[mine].mean()),
            "avg_slowdown": float(slowdown[mine].mean()),
        }
    return found
