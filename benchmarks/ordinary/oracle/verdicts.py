"""Checks of verdicts: they accuse only ranks that the test has disturbed, and every disturbed rank gets one."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import Disturbance, Document, Doubt, Facts, Instant

RIGHT: dict[str, dict[str, tuple[str, ...]]] = {
    "stopped": {"hang": ("never-arrived", "suspended", "unknown"), "straggler": ("suspended", "unknown")},
    "held": {"straggler": ("suspended", "unknown"), "hang": ("never-arrived", "suspended")},
    "outspun": {"straggler": ("cpu-contention", "host-contention", "unknown")},
    "killed": {},
}
"""Right verdicts by kind of disturbance: kinds of verdicts with their causes."""

LAG_SECONDS = 20.0
"""Seconds after a disturbance's end in which its verdict may still begin. Detectors judge windows of some seconds."""

EARLY_SECONDS = 30.0
"""Maximum seconds by which a verdict's evidence may begin before the fault. An alarm collects evidence since the rank
was last healthy, but some of the evidence must come after the fault's start."""

SILENT_SECONDS = 60.0
"""Seconds after an agent was killed or stopped in which its node may be reported as not reporting. The agent's stream
must be reopened, and verdicts last for a while."""

RESTART_SECONDS = 70.0
"""Fair seconds after the verdict within which a hanging gang must be stopped, if it is restartable. They contain the
thirty seconds for which a stopped process may be continued, the next cycle, and the gang's grace of eight seconds."""

RESTART_CONFIDENCE = 0.9
"""Least confidence with which a hang restarts a gang: the default of policy.minimum_confidence. The controller reports
some hangs earlier and less certainly; these reports restart nothing."""

CLEARLY_SHARE, CLEARLY_TIMES = 0.25, 3.0
"""Limits of waiting for a processor above which a rank must be found: share of time, and multiple of the median.
The median is that of the rank's peers. Below the limits the machine is only busy, and `unknown` or no verdict is right
as well."""

STARVED_SHARE = 0.1
STARVED_TIMES = 2.0
"""A rank was starved if it waited for a processor this many times as long as the median rank of its gang. It must also
have waited for a tenth of the time. A verdict of contention about it is then right."""


def nobody_accused_wrongly(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that every verdict about a job of the day matches a disturbance, or a rank that waited for a CPU."""
    for verdict in facts.reading.verdicts if facts.reading is not None else ():
        if verdict["kind"] == "unknown" or verdict["job"] not in facts.owner_of:
            continue
        if any(_matches(one, verdict) for one in facts.disturbances if one.job == verdict["job"]):
            continue
        if verdict["cause"] == "lost" and _silent(facts, verdict):
            continue
        if verdict["cause"] in ("cpu-contention", "host-contention") and _starved(facts, verdict):
            continue
        text = f"{verdict['kind']} ({verdict['cause']}) of rank {verdict['rank']} on {verdict['node'] or 'no node'}, "
        text += f"confidence {verdict['confidence']:.2f}: it was not disturbed so"
        yield Doubt("false_verdict", verdict["job"], text)


def _matches(disturbance: Disturbance, verdict: Document) -> bool:
    causes = RIGHT[disturbance.kind].get(verdict["kind"])
    began = verdict["first_wall_ns"] / 1e9
    last = verdict["last_wall_ns"] / 1e9
    in_time = disturbance.began - EARLY_SECONDS <= began <= disturbance.until + LAG_SECONDS
    in_time = in_time and last >= disturbance.began
    ranks = (verdict["rank"], *verdict.get("ranks", ()))
    right = causes is not None and verdict["cause"] in causes and disturbance.rank in ranks
    return right and in_time and verdict.get("attempt", disturbance.attempt) == disturbance.attempt


def _starved(facts: Facts, verdict: Document) -> bool:
    if facts.table is None:
        return False
    shares = {
        process.rank: process.waited / max(facts.table.at.wall - process.created, 1.0)
        for process in facts.table.processes
        if process.job == verdict["job"] and process.leader
    }
    mine = shares.get(verdict["rank"])
    if mine is None:
        return not shares  # it has ended, so there is no more evidence
    middle = statistics.median_low(shares.values())
    return mine > STARVED_SHARE and mine > STARVED_TIMES * middle


def _silent(facts: Facts, verdict: Document) -> bool:
    """Return whether the test kept the agent of the accused node down when the verdict began."""
    began = verdict["first_wall_ns"] / 1e9
    return any(
        one.node == verdict["node"] and one.began - EARLY_SECONDS <= began <= one.until + SILENT_SECONDS
        for one in facts.outages
    )


def everybody_found(facts: Facts, now: Instant) -> Iterator[Doubt]:
    """Check that each disturbance that needs a verdict gets one in time."""
    found = facts.reading.verdicts if facts.reading is not None else ()
    for one in facts.disturbances:
        if one.found is not None:
            continue
        if not one.before and facts.table is not None:
            one.before = {rank: (facts.table.at.wall, waited) for rank, waited in _waited(facts, one).items()}
        least = RESTART_CONFIDENCE if one.restarts else 0.0
        right = (verdict for verdict in found if verdict["job"] == one.job and _matches(one, verdict))
        if any(verdict["confidence"] >= least for verdict in right):
            one.found = now.fair
        elif one.expected is not None and now.fair - one.fair > one.expected:
            if one.kind == "outspun" and not _clearly_starved(facts, one):
                continue
            seen = [f"{v['kind']} ({v['cause']}) of rank {v['rank']}" for v in found if v["job"] == one.job]
            text = f"rank {one.rank} was {one.kind} for {now.fair - one.fair:.0f} fair seconds and has no such verdict"
            yield Doubt("missed_verdict", one.job, f"{text}; verdicts about it: {seen or 'none'}")


def hangs_restarted(facts: Facts, now: Instant) -> Iterator[Doubt]:
    """Check that a restartable gang is stopped soon after its hang was reported."""
    for one in facts.disturbances:
        job = facts.reading.jobs.get(one.job) if facts.reading is not None else None
        if not one.restarts or one.found is None or job is None:
            continue
        if job["state"] == "running" and job["attempt"] == one.attempt and now.fair - one.found > RESTART_SECONDS:
            text = (
                f"its hang was reported {now.fair - one.found:.0f} fair seconds ago, and attempt {one.attempt} runs on"
            )
            yield Doubt("hang_restarted", one.job, text)


def _waited(facts: Facts, one: Disturbance) -> dict[int, float]:
    processes = facts.table.processes if facts.table is not None else ()
    mine = (process for process in processes if process.job == one.job and process.attempt == one.attempt)
    return {process.rank: process.waited for process in mine if process.leader}


def _clearly_starved(facts: Facts, one: Disturbance) -> bool:
    """Return whether the process table shows that the rank waited for a CPU much longer than its peers."""
    if facts.table is None:
        return False
    shares = {
        rank: (waited - one.before[rank][1]) / max(facts.table.at.wall - one.before[rank][0], 1.0)
        for rank, waited in _waited(facts, one).items()
        if rank in one.before
    }
    mine = shares.pop(one.rank, None)
    if mine is None or not shares:
        return False
    middle = statistics.median_high(shares.values())
    return mine > CLEARLY_SHARE and mine > CLEARLY_TIMES * middle
