"""Fuzz target: the reader of recordings in JSON lines, with steps and counters."""

from __future__ import annotations

import json
import random

from agent.schema.errors import TraceError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.files import written
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.step_traces import json_lines

Row = dict[str, object]

STEP: Row = {"step": 3, "rank": 1, "seconds": 2.5, "wait_seconds": None, "node": "n0", "dp_rank": 1, "end": 12.5}
COUNTERS: Row = {"at": 12.0, "rank": 1, "power": 612.5, "sm_active": 0.8, "memory_errors": 0}


def _make(chance: random.Random) -> bytes:
    rows: list[Row] = []
    for number in range(chance.randrange(1, 6)):
        for rank in range(2):
            rows.append(STEP | {"step": number, "rank": rank, "node": f"n{rank}", "end": 2.5 * number + 2.5})
            rows.append(COUNTERS | {"at": 2.0 * number, "rank": rank})
    if chance.random() < 0.2:
        rows = [{name: value for name, value in row.items() if name != "end"} for row in rows]
    if chance.random() < 0.1:
        rows = [row for row in rows if ("at" in row) == (chance.random() < 0.5)]
    for _ in range(chance.randrange(3) if rows else 0):
        row = chance.choice(rows)
        name = chance.choice([*row, "job", "tokens", "temperature"])
        row[name] = mutate.value(chance) if chance.random() < 0.5 else chance.choice(mutate.NUMBERS)
        if chance.random() < 0.2:
            del row[name]
    data = "\n".join(json.dumps(row, default=str) for row in rows).encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


def _parse(data: bytes) -> str:
    try:
        for trace in json_lines.read(written(data, ".jsonl")):
            if trace.counters is not None:
                trace.counters.between(0, min(trace.counters.windows, 8), trace.counters_start_ns)
    except TraceError:
        return REFUSED if data.startswith(b"{") else REFUSED_FIRST
    return ACCEPTED


_READER = "scheduler_feedback.step_traces"

TARGETS = (Target("recordings", _make, _parse, (f"{_READER}.json_lines", f"{_READER}.counter_lines")),)
