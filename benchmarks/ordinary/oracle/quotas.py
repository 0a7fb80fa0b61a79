"""Check that a queue below its quota gets back slots that other queues have borrowed, within five seconds.

The check implements the documented rule without the product's code. The scheduler must free slots for a gang of a queue
with a quota if all of these conditions are true:

- with this gang, the queue stays within its quota, and no parent queue reaches its limit;
- it is the first gang of its queue that waits only for free slots;
- the policy's order is `fair`, the one with quotas, and preemption is on;
- nothing is frozen, and no node is out of use or suspect;
- free slots, and the slots of gangs that may be stopped, are enough for it. A gang may be stopped if it is preemptible,
  has run for its minimum time, and belongs to a queue that holds more than its quota. Slots that a pending gang of
  higher priority needs are not counted, since priority goes before quota.

The check passes if gangs stop, if slots are reserved for the gang, or if it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import HOLDING, Document, Doubt, Facts, Instant, Reading

QUOTA_SECONDS = 5.0
"""Fair seconds within which a queue below its quota must get back borrowed slots."""

_SLOTS_ALONE = re.compile(r"first in the queue|needs (\d+ to )?\d+ slots?; not enough|enough slots are free, but")


def quotas_kept(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check the first gang of each queue with a quota that waits only because there are no free slots."""
    reading = facts.reading
    if reading is None or reading.queue.get("frozen") or not _quiet(facts, reading):
        return
    queues = facts.queues
    held = dict.fromkeys(queues, 0)
    for job in reading.jobs.values():
        if job["state"] in HOLDING and job["queue"] in held:
            held[job["queue"]] += len(job["ranks"])
    asked: set[str] = set()
    for row in reading.queue.get("waiting", ()):
        waiting = reading.jobs.get(row["job"])
        if waiting is None or waiting["state"] != "pending" or waiting["job"] not in facts.owner_of:
            continue
        queue = waiting["queue"]
        if queue in asked or queue not in queues or queues[queue].get("quota") is None:
            continue
        if not _SLOTS_ALONE.match(waiting["waiting_because"] or ""):
            continue
        asked.add(queue)
        request = facts.owner_of[waiting["job"]].request
        ranks = int(request["ranks"])
        within = held[queue] + ranks <= queues[queue]["quota"]
        limit = queues[queue].get("limit")
        if not within or (limit is not None and held[queue] + ranks > limit) or _shaped(request):
            continue
        room = _free(reading) + sum(len(job["ranks"]) for job in _lent(facts, reading, held, queue))
        room -= _needed_before(facts, reading, _priority(request))
        if room >= ranks:
            text = f"queue {queue} holds {held[queue]} of its quota {queues[queue]['quota']}; {waiting['job']} needs"
            yield Doubt("quota", waiting["job"], f"{text} {ranks}, {room} could be had back", QUOTA_SECONDS)


def _quiet(facts: Facts, reading: Reading) -> bool:
    """Return whether all nodes are in use, no job stops or moves, and the policy has preemption on."""
    if not facts.policy.get("preempt") or facts.policy.get("order") != "fair" or not facts.policy_settled:
        return False
    if any(not node["present"] or node["state"] != "healthy" for node in reading.nodes.values()):
        return False
    if any(job["state"] == "stopping" for job in reading.jobs.values()):
        return False
    return not any("its reserved slots on" in (job["waiting_because"] or "") for job in reading.jobs.values())


def _shaped(request: Document) -> bool:
    """Return whether the gang requests a network level, groups or several sizes. Such a gang may be pending although
    enough slots are free."""
    return bool(request.get("required_level") or request.get("groups") or request.get("min_ranks"))


def _priority(request: Document) -> int:
    return int(request.get("priority") or 0)


def _needed_before(facts: Facts, reading: Reading, priority: int) -> int:
    """Return the number of slots that pending gangs of a higher priority need."""
    needed = 0
    for row in reading.queue.get("waiting", ()):
        waiting = reading.jobs.get(row["job"])
        submission = facts.owner_of.get(row["job"])
        if waiting is None or submission is None or waiting["state"] != "pending":
            continue
        if _priority(submission.request) > priority and _SLOTS_ALONE.match(waiting["waiting_because"] or ""):
            needed += int(submission.request["ranks"])
    return needed


def _free(reading: Reading) -> int:
    held = sum(len(job["ranks"]) for job in reading.jobs.values() if job["state"] in HOLDING)
    return sum(int(node["slots"]) for node in reading.nodes.values()) - held


def _lent(facts: Facts, reading: Reading, held: dict[str, int], owner: str) -> list[Document]:
    """Return the gangs that may be preempted for a gang of the queue `owner`, the smallest first.

    Gangs of queues at or below their quota are left out.
    """
    left, chosen = dict(held), []
    running = [job for job in reading.jobs.values() if job["state"] == "running"]
    for job in sorted(running, key=lambda one: len(one["ranks"])):
        submission = facts.owner_of.get(job["job"])
        lender = facts.queues.get(job["queue"])
        if submission is None or lender is None or job["queue"] == owner or lender.get("quota") is None:
            continue
        request = submission.request
        least = request.get("min_run_seconds")
        least = facts.policy.get("min_run_seconds", 0.0) if least is None else least
        aged = job["attempt_started_ns"] is not None and reading.begun.wall - job["attempt_started_ns"] / 1e9 >= least
        if request.get("preemptible") and aged and left[job["queue"]] > lender["quota"]:
            left[job["queue"]] -= len(job["ranks"])
            chosen.append(job)
    return chosen
