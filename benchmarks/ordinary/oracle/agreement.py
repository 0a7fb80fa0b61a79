"""Checks that command line and page show the same as the API."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import ENDED, Doubt, Facts, Instant, Reading, Statement

_NUMBER = re.compile(r"[\d.]+ (?:ms|s|min|h|d)\b|\d+")

FIELDS = ("state", "attempt", "ranks_total", "waiting_because", "reason", "queue", "exit_codes", "frozen", "slots")


def statements_agree(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check each output of the command line or page: it must agree with the API responses before and after it."""
    waiting: list[Statement] = []
    for statement in facts.statements:
        before = next((one for one in reversed(facts.readings) if one.ended.wall <= statement.begun.wall), None)
        after = next((one for one in facts.readings if one.begun.wall >= statement.ended.wall), None)
        if after is None:
            waiting.append(statement)
        elif before is not None:
            between = [one for one in facts.readings if before.begun.wall < one.begun.wall < after.begun.wall]
            yield from _judge(statement, before, after, between)
    facts.statements[:] = waiting


def _judge(statement: Statement, before: Reading, after: Reading, between: list[Reading]) -> Iterator[Doubt]:
    for subject, said in statement.fields.items():
        first, second = _known(before, subject), _known(after, subject)
        if first is None or second is None:
            if first is None and second is None and subject.startswith("j-"):
                yield Doubt("agreement", subject, f"{statement.source} has it, the API has not")
            continue
        for field in FIELDS:
            # Skip fields that changed in between: either value is right.
            if field not in said or field not in first or _plain(first[field]) != _plain(second[field]):
                continue
            if first.get("state") != second.get("state") or first.get("attempt") != second.get("attempt"):
                continue
            if field == "waiting_because" and _places(before) != _places(after):
                continue  # its reason may have changed while other jobs came and went
            # The reason may have been different for a moment, for example while a node was out of use.
            meanwhile = [known[field] for one in between if (known := _known(one, subject)) and field in known]
            if all(_plain(said[field]) != _plain(value) for value in (first[field], *meanwhile)):
                text = f"{statement.source} says {field} {said[field]!r}, the API says {first[field]!r}"
                yield Doubt("agreement", subject, text)
        yield from _times_agree(statement, subject, first, second)


def _places(reading: Reading) -> dict[str, tuple[object, object]]:
    """Return the state and attempt of each job that holds or requests slots."""
    return {name: (job["state"], job["attempt"]) for name, job in reading.jobs.items()}


def _times_agree(
    statement: Statement, subject: str, first: dict[str, object], second: dict[str, object]
) -> Iterator[Doubt]:
    """Check that the page shows the job's times as in the API, and that it shows no running time for an ended job."""
    said = statement.fields[subject]
    same = first.get("state") == second.get("state") and first.get("attempt") == second.get("attempt")
    if not same:
        return
    if said.get("counting") and first.get("state") in ENDED:
        yield Doubt("agreement", subject, f"{statement.source} goes on counting its time, and it is {first['state']}")
    for name in ("submitted_ns", "ended_ns"):
        wall_ns = first.get(name)
        if "times" in said and isinstance(wall_ns, int) and wall_ns // 10**9 not in said["times"]:
            yield Doubt("agreement", subject, f"{statement.source} does not have its {name}, {wall_ns / 1e9:.0f}")


def _plain(value: object) -> object:
    """Return a text without its numbers. Remaining times, for example, change between two responses."""
    return _NUMBER.sub("#", value).strip() if isinstance(value, str) else value


def _known(reading: Reading, subject: str) -> dict[str, object] | None:
    """Return the API's fields of a job or node, with the names that command line and page use."""
    if subject == "cluster":
        return {"frozen": reading.queue.get("frozen")}
    if subject.startswith("node:"):
        node = reading.nodes.get(subject.removeprefix("node:"))
        if node is None:
            return None
        return {"state": node["state"] if node["present"] else "absent", "slots": node["slots"]}
    job = reading.jobs.get(subject)
    if job is None:
        return None
    known = {
        "state": job["state"],
        "attempt": job["attempt"],
        "ranks_total": len(job["ranks"]),
        "waiting_because": job["waiting_because"],
        "queue": job["queue"],
        "submitted_ns": job["submitted_ns"],
        "ended_ns": job["ended_ns"],
        "exit_codes": [rank["exit_code"] for rank in job["ranks"]],
    }
    if job["state"] in ENDED:
        known["reason"] = job["reason"]
    return known
