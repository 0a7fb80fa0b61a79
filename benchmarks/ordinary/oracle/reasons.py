"""Checks that the reason of every pending job is true, and that the first pending job starts if it fits.

Each possible reason has a pattern here, with the condition for it to be true. A reason without a pattern is a
failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from benchmarks.ordinary.oracle.facts import ENDED, FOREVER, HOLDING, Document, Doubt, Facts, Instant, Reading

REASON_SECONDS = 5.0
"""Maximum fair seconds for which a reason may be out of date: one poll of the backend and one cycle."""

IDLE_SECONDS = 5.0
"""Maximum fair seconds for which the first job in the queue may wait while enough slots are free."""

Rule = Callable[["_Case", "re.Match[str]"], str]


class _Case:
    """One pending job in one API response, with the numbers of free and used slots."""

    def __init__(self, facts: Facts, reading: Reading, job: Document) -> None:
        self.facts, self.reading, self.job = facts, reading, job
        self.submission = facts.owner_of.get(job["job"])
        self.request = self.submission.request if self.submission is not None else {}
        self.least = int(self.request.get("min_ranks") or self.request.get("ranks") or job["size"])

    def free(self, states: tuple[str, ...] = ("healthy", "suspect")) -> int:
        """Return the number of free slots on nodes in these states."""
        held = self.held_by_node()
        return sum(
            max(node["slots"] - held.get(name, 0), 0)
            for name, node in self.reading.nodes.items()
            if node["present"] and node["state"] in states
        )

    def held_by_node(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for job in self.reading.jobs.values():
            if job["state"] in HOLDING:
                for rank in job["ranks"]:
                    held[rank["node"]] = held.get(rank["node"], 0) + 1
        return held

    @property
    def settled(self) -> bool:
        """Return whether free slots can be counted reliably: no node is in probation, and the job has not run yet."""
        doubtful = any(node["state"] == "probation" for node in self.reading.nodes.values())
        return not doubtful and self.job["attempt"] == 0

    def job_named(self, name: str) -> list[Document]:
        found = [self.reading.jobs[name]] if name in self.reading.jobs else []
        return found or [job for one, job in self.reading.jobs.items() if one.startswith(f"{name}.")]


def _frozen(case: _Case, _found: re.Match[str]) -> str:
    commands = case.facts.took(("freeze", "thaw"))
    if commands and (commands[-1].word == "freeze" or commands[-1].accepted == FOREVER):
        return ""
    return "nothing is frozen"


def _tried_again(case: _Case, _found: re.Match[str]) -> str:
    return "" if case.job["attempt"] > 0 else "nothing was tried yet"


def _dependency(case: _Case, found: re.Match[str]) -> str:
    name, word = found["job"], found["word"]
    if not any(name == other for other, _ in case.request.get("after", ())):
        return f"it was not submitted to wait for {name}"
    jobs = case.job_named(name)
    met = all(_met(word, job) for job in jobs)
    return f"that is so already: {name} {word}" if jobs and met else ""


def _met(word: str, job: Document) -> bool:
    if word == "completes":
        return bool(job["state"] == "completed")
    if word == "fails":
        return job["state"] in ("failed", "cancelled")
    return job["state"] in ENDED if word == "ends" else job["attempt"] > 0


def _array(case: _Case, found: re.Match[str]) -> str:
    members = case.job_named(found["array"])
    active = sum(job["state"] in HOLDING for job in members)
    # Earlier members may be waiting for slots of their own: they count as running.
    index = int(case.job["job"].rpartition(".")[2])
    before = sum(job["state"] == "pending" and int(job["job"].rpartition(".")[2]) < index for job in members)
    return "" if active + before >= int(found["most"]) else f"only {active} of them run, and {before} are before it"


def _claimed(case: _Case, found: re.Match[str]) -> str:
    places = {
        (node, int(slot))
        for node, slots in re.findall(r"([\w-]+):([\d,]+)", found["places"])
        for slot in slots.split(",")
        if slot
    }
    taken = {
        (rank["node"], rank["slot"])
        for job in case.reading.jobs.values()
        if job["state"] in HOLDING
        for rank in job["ranks"]
    }
    return "" if places & taken else f"all of {sorted(places)} are free"


def _too_large(case: _Case, found: re.Match[str]) -> str:
    most = sum(
        node["slots"]
        for node in case.reading.nodes.values()
        if node["present"] and node["state"] in ("healthy", "suspect")
    )
    asked, together = int(found["ranks"]), int(found["slots"])
    if together >= asked and "within one" not in found[0]:
        return f"{together} slots hold {asked} ranks"
    if case.settled and "excluded" not in found[0] and together != most:
        return f"the nodes in use have {most} slots"
    named = re.search(r"not available: ([^;]*)", found[0])
    for name in named[1].removesuffix(" ...").split(", ") if named else ():
        node = case.reading.nodes.get(name)
        if node is not None and node["present"] and node["state"] in ("healthy", "suspect"):
            return f"{name} is {node['state']}"
    return ""


def _limit(case: _Case, found: re.Match[str]) -> str:
    queue, most, holds = found["queue"], int(found["most"]), int(found["holds"])
    known = case.facts.queues.get(queue)
    if not case.facts.policy_settled:
        return ""
    if known is None:
        return f"no queue {queue} is configured"
    limits = [known.get("limit")] + ([known.get("quota")] if known.get("borrow") is False else [])
    if most not in limits:
        return f"queue {queue} is configured with {limits}"
    below = {queue}
    while more := {n for n, q in case.facts.queues.items() if q.get("parent") in below} - below:
        below |= more
    held = sum(
        len(job["ranks"]) for job in case.reading.jobs.values() if job["state"] in HOLDING and job["queue"] in below
    )
    claims = any("its reserved slots on" in (job["waiting_because"] or "") for job in case.reading.jobs.values())
    if held != holds and not claims:
        return f"its jobs hold {held}"
    return "" if holds + case.least > most else f"{holds} and {case.least} more are within {most}"


def _never(case: _Case, found: re.Match[str]) -> str:
    queue, most = found["queue"], int(found["most"])
    if not case.facts.policy_settled:
        return ""
    known = case.facts.queues.get(queue)
    limits = [known.get("limit")] + ([known.get("quota")] if known.get("borrow") is False else []) if known else []
    if most not in limits:
        return f"queue {queue} is configured with {limits}"
    return "" if case.least > most else f"it needs {case.least}"


def _before(case: _Case, _found: re.Match[str]) -> str:
    waiting = [row["job"] for row in case.reading.queue.get("waiting", ())]
    name = case.job["job"]
    return "no job is before it" if name in waiting and waiting.index(name) == 0 else ""


def _head(case: _Case, found: re.Match[str]) -> str:
    if case.reading.queue.get("reserved_for") not in (case.job["job"], None):
        return f"first is {case.reading.queue.get('reserved_for')}"
    free = case.free()
    if case.settled and int(found["free"]) > free:
        return f"{free} slots are free"
    return ""


def _not_together(case: _Case, found: re.Match[str]) -> str:
    head = found["head"]
    if head is not None and case.reading.queue.get("reserved_for") not in (head, None):
        return f"first is {case.reading.queue.get('reserved_for')}"
    free = case.free()
    if (
        case.settled
        and not case.request.get("required_level")
        and free >= int(found["least"] or found["ranks"])
        and not _kept(case)
    ):
        return f"{free} slots are free"
    return ""


def _kept(case: _Case) -> bool:
    """Return whether slots are reserved for a gang that moves or restarts. Other jobs cannot use these free slots."""
    return any("its reserved slots on" in (job["waiting_because"] or "") for job in case.reading.jobs.values())


def _delays_head(case: _Case, found: re.Match[str]) -> str:
    if case.reading.queue.get("reserved_for") not in (found["head"], None):
        return f"first is {case.reading.queue.get('reserved_for')}"
    return "" if case.free() >= case.least or not case.settled else f"only {case.free()} slots are free"


def _level(case: _Case, found: re.Match[str]) -> str:
    if case.request.get("required_level") != found["level"]:
        return f"it asks for {case.request.get('required_level')}"
    if found["level"] == "node" and case.settled and not _kept(case):
        held = case.held_by_node()
        for name, node in case.reading.nodes.items():
            usable = node["present"] and node["state"] in ("healthy", "suspect")
            if usable and node["slots"] - held.get(name, 0) >= int(found["ranks"]):
                kept = case.reading.queue.get("reserved_nodes", {}).get(name, 0)
                if node["slots"] - held.get(name, 0) - kept >= int(found["ranks"]):
                    return f"{name} has {node['slots'] - held.get(name, 0)} free slots"
    return ""


RULES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (re.compile(r"all actions are frozen( by .*)?"), _frozen),
    (re.compile(r".*; next try in .*", re.DOTALL), _tried_again),
    (re.compile(r"waits until (?P<job>j-[\d.]+) (?P<word>completes|fails|ends|starts)"), _dependency),
    (re.compile(r"at most (?P<most>\d+) of array (?P<array>j-\d+) may run at the same time"), _array),
    (re.compile(r"its reserved slots on (?P<places>.+) are not free yet"), _claimed),
    (re.compile(r"needs (\d+ to )?(?P<ranks>\d+) slots?.*; the available nodes have (?P<slots>\d+) slots? in total.*"),
     _too_large),
    (re.compile(r"queue (?P<queue>\S+) is limited to (?P<most>\d+) slots? and uses (?P<holds>\d+)"), _limit),
    (re.compile(r"cannot start with the present configuration: it asks for \d+ ranks?; "
                r"queue (?P<queue>\S+) may hold at most (?P<most>\d+) slots?: .*"), _never),
    (re.compile(r"enough slots are free, but jobs ahead of it in the queue go first"), _before),
    (re.compile(r"first in the queue; needs (\d+ to )?(?P<ranks>\d+) slots?, (?P<free>\d+) available now; "
                r"expected to start .*"),
     _head),
    (re.compile(r"enough slots are free, but it is expected to run too long and would delay (?P<head>\S+), "
                r"first in the queue"),
     _delays_head),
    (re.compile(r"needs ((?P<least>\d+) to )?(?P<ranks>\d+) slots?; not enough are free"
                r"(; behind (?P<head>\S+) in the queue)?"),
     _not_together),
    (re.compile(r"needs (?P<ranks>\d+) slots? within one (?P<level>\w+); enough are free, but not within one \w+"),
     _level),
)  # fmt: skip


def judge_reason(facts: Facts, reading: Reading, job: Document, sentence: str) -> str:
    """Return an error text if the stated reason is not true of the job in this API response; '' if it is true."""
    for pattern, rule in RULES:
        found = pattern.fullmatch(sentence)
        if found is not None:
            return rule(_Case(facts, reading, job), found)
    return "the oracle does not know this reason"


def reasons_true(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that every pending job has a reason, and that the reason is true."""
    reading = facts.reading
    if reading is None:
        return
    for job in reading.jobs.values():
        if job["state"] != "pending" or job["job"] not in facts.owner_of:
            continue
        sentence = job["waiting_because"]
        if not sentence:
            yield Doubt("reason", job["job"], "it waits, and no reason is given", REASON_SECONDS)
        elif why_not := judge_reason(facts, reading, job, sentence):
            yield Doubt("reason", job["job"], f"{sentence!r}: but {why_not}", REASON_SECONDS)


def room_is_used(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that the first job in the queue is not pending while enough usable slots are free."""
    reading = facts.reading
    if reading is None or reading.queue.get("frozen"):
        return
    for row in reading.queue.get("waiting", ())[:1]:
        job = reading.jobs.get(row["job"])
        if job is None or job["state"] != "pending" or job["job"] not in facts.owner_of:
            continue
        case = _Case(facts, reading, job)
        why = job["waiting_because"] or ""
        excused = re.match(
            r"waits until|at most \d+ of array|queue |cannot start|its reserved|.*next try|all actions", why
        )
        if excused or not case.settled or _kept(case) or case.request.get("required_level"):
            continue
        if case.request.get("groups"):
            continue
        if (free := case.free()) >= case.least:
            yield Doubt("room", job["job"], f"first in the queue, {free} slots free, needs {case.least}", IDLE_SECONDS)
