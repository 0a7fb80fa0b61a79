"""Verdicts: nobody is accused who was not disturbed, and who was disturbed is found."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import Disturbance, Document, Doubt, Facts, Instant

RIGHT: dict[str, dict[str, tuple[str, ...]]] = {
    "stopped": {"hang": ("never-arrived", "suspended", "unknown"), "straggler": ("suspended", "unknown")},
    "held": {"straggler": ("suspended", "unknown", "compute"), "hang": ("never-arrived", "suspended")},
    "outspun": {"straggler": ("cpu-contention", "host-contention", "unknown", "compute")},
    "killed": {},
}
"""By kind of disturbance the kinds of verdict that are right, with their causes."""

LAG_SECONDS = 20.0
"""A disturbance is seen in windows of seconds: so long after its end a verdict may still begin."""

EARLY_SECONDS = 3.0
"""Steps are judged in windows of about a second or of one step: the first that shows a fault began before it."""

STARVED_SHARE = 0.1
STARVED_TIMES = 2.0
"""A rank that waited for a processor for a tenth of the time, and for twice as long as the middle rank of its gang, was
starved in truth, whoever took the processor: a verdict of contention about it is right."""


def nobody_accused_wrongly(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Every verdict about a job of the day is about a disturbance, or about a rank that was starved in truth."""
    for verdict in facts.reading.verdicts if facts.reading is not None else ():
        if verdict["kind"] == "unknown" or verdict["job"] not in facts.owner_of:
            continue
        if any(_matches(one, verdict) for one in facts.disturbances if one.job == verdict["job"]):
            continue
        if verdict["cause"] in ("cpu-contention", "host-contention") and _starved(facts, verdict):
            continue
        text = f"{verdict['kind']} ({verdict['cause']}) of rank {verdict['rank']} on {verdict['node'] or 'no node'}, "
        text += f"confidence {verdict['confidence']:.2f}: it was not disturbed so"
        yield Doubt("false_verdict", verdict["job"], text)


def _matches(disturbance: Disturbance, verdict: Document) -> bool:
    causes = RIGHT[disturbance.kind].get(verdict["kind"])
    began = verdict["first_wall_ns"] / 1e9
    in_time = disturbance.began - EARLY_SECONDS <= began <= disturbance.until + LAG_SECONDS
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
        return not shares  # it has ended: nobody can tell any more
    middle = sorted(shares.values())[(len(shares) - 1) // 2]
    return mine > STARVED_SHARE and mine > STARVED_TIMES * middle


def everybody_found(facts: Facts, now: Instant) -> Iterator[Doubt]:
    """Each disturbance of which a verdict is demanded has one in time."""
    found = facts.reading.verdicts if facts.reading is not None else ()
    for one in facts.disturbances:
        if one.found or one.expected is None:
            continue
        one.found = any(_matches(one, verdict) and verdict["job"] == one.job for verdict in found)
        if not one.found and now.fair - one.fair > one.expected:
            seen = [f"{v['kind']} ({v['cause']}) of rank {v['rank']}" for v in found if v["job"] == one.job]
            text = f"rank {one.rank} was {one.kind} for {now.fair - one.fair:.0f} fair seconds and has no such verdict"
            yield Doubt("missed_verdict", one.job, f"{text}; verdicts about it: {seen or 'none'}")
