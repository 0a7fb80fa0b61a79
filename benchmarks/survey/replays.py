"""Rows that the simulator computes: published runs on public traces, and our default policy on the same traces.

Muri's authors published the results of five schedulers on their own traces (Rivendile/Muri, simulator/draw_fig9-10.py).
``--preset muri`` follows the rules of these runs, where restarts cost nothing. The column `ours` is our default policy,
which does not know run times in advance and pays five minutes for each restart. It is therefore a different problem:
its figure may be larger than the published one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from benchmarks.policies import POLICIES, RESTART_COST_SECONDS, data_folder, read, simulate
from benchmarks.survey.row import Outcome, Row
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

MURI = "Zhao et al., SIGCOMM'22; Rivendile/Muri 4e69a78, simulator/draw_fig9-10.py"
MURI_RUNS: tuple[tuple[str, str, Order, dict[str, float]], ...] = (
    ("SRTF", "shortest remaining time first", Order.SRTF, {"muri-1": 1370.603, "muri-3": 193.082}),
    ("SRSF", "shortest remaining time x GPUs first", Order.SRSF, {"muri-1": 980.141, "muri-3": 185.022}),
    ("Tiresias", "least attained service in queues (2D-LAS)", Order.LAS, {"muri-1": 3330.371, "muri-3": 347.213}),
)
"""Published runs: (system, mechanism, order, average JCT by trace in thousands of seconds)."""

THEMIS_KS = {"muri-1": 1823.2, "muri-3": 397.1}
"""Published average JCT of Themis by trace, in thousands of seconds (same source)."""

PHILLY_JOBS = 10_000
"""Number of jobs of the Philly trace in the rows of backfilling, counted from the first. More take minutes."""
PHILLY_NODES = 40
"""Number of nodes of 8 GPUs in these rows, so few that jobs wait."""

FREE_OF_COST = "ours pays 300 s for each restart and learns run times; the published run pays nothing and knows them"


def rows() -> list[Row]:
    """Return the rows of this module."""
    found = [
        Row(system, mechanism, f"average JCT on {trace}, ks", jct[trace], MURI, partial(_muri, trace, order),
            slow=trace == "muri-1")
        for system, mechanism, order, jct in MURI_RUNS
        for trace in jct
    ]  # fmt: skip
    found += [
        Row("Themis", "finish-time fairness: the largest rho first", f"average JCT on {trace}, ks", jct, MURI,
            partial(_themis, trace), slow=trace == "muri-1")
        for trace, jct in THEMIS_KS.items()
    ]  # fmt: skip
    found.append(
        Row("Themis", "finish-time fairness: the largest rho first", "largest rho on muri-3, FIFO + EASY = 1", None,
            "Mahajan et al., NSDI'20 (other traces)", _largest_rho, slow=True)
    )  # fmt: skip
    found += [
        Row("Tiresias", "2D-Gittins: the largest Gittins index per GPU first", "average JCT on muri-3, 2D-LAS = 1",
            None, "Gu et al., NSDI'19 (other traces)", _gittins),
    ]  # fmt: skip
    found += [
        Row(system, mechanism, f"average wait of {PHILLY_JOBS} Philly jobs, 40x8, FIFO without backfill = 1", None,
            source, partial(_philly, backfill), slow=backfill is Backfilling.CONSERVATIVE)
        for system, mechanism, source, backfill in (
            ("EASY", "backfill behind one reservation", "Lifka, JSSPP'95 (other traces)", Backfilling.EASY),
            ("conservative", "backfill behind a reservation for each job",
             "Mu'alem and Feitelson, TPDS'01 (other traces)", Backfilling.CONSERVATIVE),
        )
    ]  # fmt: skip
    return found


@cache
def _default(trace: str) -> Report:
    return simulate(trace, POLICIES["default"])


def _muri(trace: str, order: Order) -> Outcome:
    """Return the average JCT in thousands of seconds by the published rules, and with our default policy."""
    policy = Policy(order=order, estimates=Estimates.EXACT)
    theirs = Simulation(read(trace), grid(8, 8), policy, preset="muri").run().avg_jct_seconds
    mine = _default(trace).avg_jct_seconds
    return Outcome(_thousands(theirs), _thousands(mine), FREE_OF_COST)


def _themis(trace: str) -> Outcome:
    """Return the average JCT in thousands of seconds with our default policy, and in the reason with the order."""
    policy = Policy(order=Order.THEMIS, estimates=Estimates.EXACT)
    greedy = _thousands(Simulation(read(trace), grid(8, 8), policy, preset="muri").run().avg_jct_seconds)
    mine = _thousands(_default(trace).avg_jct_seconds)
    reason = (
        f"the published run solves Gavel's program for finish-time fairness at each event; the largest rho first, with "
        f"the same rules otherwise, has {greedy}; {FREE_OF_COST}"
    )
    return Outcome(None, mine, reason)


def _gittins() -> Outcome:
    """Return the average JCT of the fair order divided by that of 2D-LAS, on Muri's trace 3 with restarts of 300 s.

    The fair order sorts by ranks x ``runtime_history.expense``, the reciprocal of the Gittins index, with a restart
    counted. Its distributions are learnt.
    """
    las = simulate("muri-3", POLICIES["tiresias-l"]).avg_jct_seconds
    mine = _default("muri-3").avg_jct_seconds
    assert las is not None and mine is not None, "all jobs end"
    reason = (
        "Muri's published runs have 2D-LAS only; ours is the order `fair`, whose key is ranks / Gittins index, against "
        "2D-LAS; both learn run times and pay 300 s for each restart; one trace, nothing random"
    )
    return Outcome(None, round(mine / las, 4), reason)


def _thousands(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 1000, 3)


def _largest_rho() -> Outcome:
    """Return the largest rho under the order `themis`, divided by that under FIFO and EASY, on Muri's trace 3.

    rho is the time from submission to end, divided by the run time alone on the GPUs that the job asks for.
    """
    easy = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.HISTORY)
    themis = replace(POLICIES["clairvoyant-srsf"], order=Order.THEMIS, estimates=Estimates.HISTORY)
    worst = []
    for policy in (themis, easy):
        engine = Simulation(read("muri-3"), grid(8, 8), policy, restart_cost_seconds=RESTART_COST_SECONDS).engine()
        engine.run()
        worst.append(
            max(
                (course.ended_ns - course.submitted_ns) / 1e9 / max(course.job.run_seconds, 1.0)
                for course in engine.courses.values()
                if course.ended_ns is not None
            )
        )
    return Outcome(None, round(worst[0] / worst[1], 4), "its auction is not public for a public trace")


@cache
def _philly_wait(backfill: Backfilling) -> float:
    """Return the average wait in seconds of the first jobs of Philly under FIFO."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    trace = replace(trace, jobs=trace.jobs[:PHILLY_JOBS])
    policy = Policy(order=Order.FIFO, backfill=backfill, estimates=Estimates.EXACT)
    wait = Simulation(trace, grid(PHILLY_NODES, 8), policy).run().avg_queue_seconds
    assert wait is not None, "all jobs end"
    return wait


def _philly(backfill: Backfilling) -> Outcome:
    without = _philly_wait(Backfilling.NONE)
    reason = "no result is public for this trace; tests/sim compares starts of EASY with AccaSim's"
    return Outcome(None, round(_philly_wait(backfill) / without, 4), reason)
