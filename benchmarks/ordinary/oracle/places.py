"""Checks that no slot is used twice, according to gangwatch's output and to the processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import HOLDING, Doubt, Facts, Instant


def slots_once(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check in each API response that every slot exists and has at most one rank."""
    reading = facts.reading
    if reading is None:
        return
    held: dict[tuple[str, int], str] = {}
    for job in reading.jobs.values():
        if job["state"] not in HOLDING:
            continue
        for rank in job["ranks"]:
            place = (rank["node"], rank["slot"])
            node = reading.nodes.get(rank["node"])
            if node is not None and not 0 <= rank["slot"] < node["slots"]:
                yield Doubt("slots_once", job["job"], f"rank {rank['rank']} is in slot {place}, which does not exist")
            if place in held:
                yield Doubt("slots_once", job["job"], f"{held[place]} and {job['job']} both hold slot {place}")
            held[place] = job["job"]


def processes_fit(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that no node has more live ranks than slots, and that no slot has two live ranks."""
    table, reading = facts.table, facts.reading
    if table is None or reading is None:
        return
    on_node: dict[str, list[str]] = defaultdict(list)
    in_slot: dict[tuple[str, int], tuple[str, int, int]] = {}
    for process in table.processes:
        if not process.leader:
            continue
        on_node[process.node].append(f"{process.job}/{process.attempt}/{process.rank}")
        job = reading.jobs.get(process.job)
        if job is None or job["attempt"] != process.attempt:
            continue
        for rank in job["ranks"]:
            if rank["rank"] == process.rank:
                place = (rank["node"], rank["slot"])
                other = in_slot.get(place)
                if other is not None and other != (process.job, process.attempt, process.rank):
                    yield Doubt("processes_fit", process.job, f"{other} and rank {process.rank} run in slot {place}")
                in_slot[place] = (process.job, process.attempt, process.rank)
    for node, ranks in on_node.items():
        slots = reading.nodes.get(node, {}).get("slots")
        if slots is not None and len(set(ranks)) > slots:
            yield Doubt("processes_fit", node, f"{len(set(ranks))} ranks run on {slots} slots: {sorted(ranks)}")
