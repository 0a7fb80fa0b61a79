"""Checks of jobs: no job is lost or runs twice, and states and times match the processes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import ENDED, HOLDING, Doubt, Facts, Instant, Process, RankLife

STATE_SECONDS = 6.0
"""Maximum fair seconds by which a state may differ from the processes. The controller polls four times a second, and
journals each result before it shows it."""

START_SECONDS = 20.0
"""Maximum fair seconds for which a starting gang may have no process. Each node first forks and records its ranks."""

LEFT_SECONDS = 3.0
"""Seconds that a process may outlive its job. gangwatch waits one second between SIGTERM and SIGKILL."""

FREEZE_SECONDS = 1.0
"""Seconds after which `gangwatch freeze` must have taken effect."""

CLOCK_SECONDS = 0.02
"""Maximum difference in seconds between two processes' readings of one clock, with 10 ms for a process's start."""

_EXIT = re.compile(r"rank (\d+)(?: on node \S+)? (?:exited with|was killed by|ended by|got) \D*(\d+)")


def nothing_lost(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that every accepted job is in every later API response."""
    if facts.reading is None:
        return
    for submission in facts.submissions.values():
        if submission.accepted < facts.reading.begun.wall:
            for member in submission.members:
                if member not in facts.reading.jobs:
                    yield Doubt("job_lost", member, f"{member} was accepted and is not in the list of jobs")


def nothing_twice(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that no rank starts twice in one attempt.

    Also checks that attempts do not overlap, and that only restartable jobs are restarted.
    """
    live: dict[str, set[int]] = defaultdict(set)
    for process in facts.table.processes if facts.table is not None else ():
        if process.leader:
            live[process.job].add(process.attempt)
    for job, attempts in live.items():
        if len(attempts) > 1:
            yield Doubt("run_twice", job, f"attempts {sorted(attempts)} of {job} run at the same time")
    by_job: dict[str, dict[int, list[RankLife]]] = defaultdict(lambda: defaultdict(list))
    for life in facts.lives.values():
        by_job[life.job][life.attempt].append(life)
        if life.starts > 1:
            yield Doubt(
                "run_twice", life.job, f"rank {life.rank} of attempt {life.attempt} started {life.starts} times"
            )
    for job, attempts_of in by_job.items():
        submission = facts.owner_of.get(job)
        if submission is None or len(attempts_of) < 2:
            continue
        request = submission.request
        for number in sorted(attempts_of)[:-1]:
            ranks = attempts_of[number]
            whole = len(ranks) == ranks[0].size
            if not whole or request.get("restartable"):
                continue
            if all(life.code == 0 and life.terminated is None for life in ranks):
                yield Doubt("run_twice", job, f"attempt {number} of {job} completed, and another one started")
            if not request.get("max_retries") and any(life.code not in (0, None) for life in ranks):
                yield Doubt("run_twice", job, f"attempt {number} of {job} failed, and it has no retries")


def nothing_left(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that no process outlives its job or its attempt. The process table was read after the API."""
    table, reading = facts.table, facts.reading
    if table is None or reading is None or table.at.wall < reading.ended.wall:
        return
    for process in table.processes:
        job = reading.jobs.get(process.job)
        if job is None:
            continue
        over = job["state"] in ENDED or (job["state"] == "pending" and process.attempt <= job["attempt"])
        if over or process.attempt < job["attempt"]:
            what = f"pid {process.pid} of attempt {process.attempt}, rank {process.rank}"
            yield Doubt("left_behind", process.job, f"{what} still runs: the job is {job['state']}")


def states_true(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that a running job has processes on its nodes, and that a job without processes does not run."""
    table, reading = facts.table, facts.reading
    if table is None or reading is None:
        return
    live: dict[tuple[str, int], dict[int, Process]] = defaultdict(dict)
    for process in table.processes:
        if process.leader:
            live[process.job, process.attempt][process.rank] = process
    for job in reading.jobs.values():
        if job["job"] not in facts.owner_of:
            continue
        name, state, attempt = job["job"], job["state"], job["attempt"]
        ranks = live.get((name, attempt), {})
        newest = max((number for one, number in live if one == name), default=0)
        if newest > attempt:
            yield Doubt("state_true", name, f"attempt {newest} runs, attempt {attempt} is {state}", STATE_SECONDS)
        if state in ("running", "stopping") and not any(p.job == name for p in table.processes):
            yield Doubt("state_true", name, f"attempt {attempt} is {state}, and has no process", STATE_SECONDS)
        if state == "starting":
            size = len(job["ranks"])
            if not ranks:
                yield Doubt("state_true", name, f"attempt {attempt} is starting, without a process", START_SECONDS)
            elif len(ranks) == size:
                yield Doubt("state_true", name, f"attempt {attempt} is starting, and all its ranks run", STATE_SECONDS)
        if state in HOLDING:
            yield from _ranks_true(facts, job, ranks)


def _ranks_true(facts: Facts, job: dict[str, object], ranks: dict[int, Process]) -> Iterator[Doubt]:
    name, attempt = str(job["job"]), int(str(job["attempt"]))
    for rank in job["ranks"]:  # type: ignore[attr-defined]
        process = ranks.get(rank["rank"])
        life = facts.lives.get((name, attempt, rank["rank"]))
        if process is not None:
            if rank["node"] != process.node:
                yield Doubt("state_true", name, f"rank {rank['rank']} is on {process.node}, not on {rank['node']}")
            if rank["pid"] is not None and rank["pid"] != process.pid:
                yield Doubt("state_true", name, f"rank {rank['rank']} is pid {process.pid}, not {rank['pid']}")
            if rank["exit_code"] is not None:
                yield Doubt("state_true", name, f"rank {rank['rank']} runs, and is said to have exited")
        if life is not None and life.code is not None and rank["exit_code"] not in (None, life.code):
            text = f"rank {rank['rank']} exited with {life.code}, not with {rank['exit_code']}"
            yield Doubt("exit_code", name, text)


def ends_true(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check the end states (completed, failed, cancelled) against the exits of processes, and the reason of a
    failure."""
    if facts.reading is None:
        return
    for job in facts.reading.jobs.values():
        name, state = job["job"], job["state"]
        submission = facts.owner_of.get(name)
        if submission is None or state not in ENDED:
            continue
        lives = facts.attempt_lives(name, job["attempt"])
        size = lives[0].size if lives else len(job["ranks"])
        if state == "completed":
            missing = size - sum(life.code == 0 for life in lives)
            if missing or not lives:
                yield Doubt("end_true", name, f"completed, but {missing} of {size} ranks never ended with 0")
        for rank in job["ranks"]:
            life = facts.lives.get((name, job["attempt"], rank["rank"]))
            if life is not None and life.code is not None and rank["exit_code"] != life.code:
                yield Doubt("exit_code", name, f"rank {rank['rank']} exited with {life.code}, not {rank['exit_code']}")
        if state == "cancelled" and facts.cancelled(name) is None and not submission.request.get("after"):
            yield Doubt("end_true", name, f"cancelled without a request: {job['reason']}")
        if state == "failed":
            yield from _failure_true(facts, job, lives)


def _failure_true(facts: Facts, job: dict[str, object], lives: list[RankLife]) -> Iterator[Doubt]:
    name, reason = str(job["job"]), str(job["reason"])
    submission = facts.owner_of[name]
    killed = any(one.job == name and one.kind == "killed" for one in facts.disturbances)
    excused = submission.fails or not submission.starts or killed or submission.request.get("after")
    if not excused and not any(life.code not in (None, 0) and life.terminated is None for life in lives):
        yield Doubt("end_true", name, f"failed, though its program does not fail: {reason}")
    found = _EXIT.search(reason)
    if found is not None:
        life = next((one for one in lives if one.rank == int(found[1])), None)
        if life is not None and life.code is not None and life.code != int(found[2]):
            yield Doubt("end_true", name, f"rank {life.rank} exited with {life.code}; the reason is {reason!r}")


def times_true(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that the times of submission, start and end are between the events that cause them and follow them."""
    if facts.reading is None:
        return
    for job in facts.reading.jobs.values():
        name = job["job"]
        submission = facts.owner_of.get(name)
        if submission is None:
            continue
        submitted, started, ended = (_seconds(job[key]) for key in ("submitted_ns", "attempt_started_ns", "ended_ns"))
        if (
            submitted is None
            or not submission.asked - CLOCK_SECONDS <= submitted <= submission.accepted + CLOCK_SECONDS
        ):
            text = f"submitted at {submitted}, asked for at {submission.asked}, accepted at {submission.accepted}"
            yield Doubt("time_true", name, text)
        lives = facts.attempt_lives(name, job["attempt"])
        if job["attempt"] and started is not None and lives:
            first = min(life.started for life in lives)
            if job["state"] != "pending" and started > first + CLOCK_SECONDS:
                yield Doubt(
                    "time_true", name, f"attempt {job['attempt']} is said to start {started - first:.2f} s late"
                )
        ends = [life.ended for life in lives if life.ended is not None]
        if ended is not None and ends and ended < max(ends) - CLOCK_SECONDS:
            yield Doubt("time_true", name, f"is said to end {max(ends) - ended:.2f} s before its last rank did")


def _seconds(wall_ns: int | None) -> float | None:
    return None if wall_ns is None else wall_ns / 1e9


def commands_done(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that a cancelled job ends in time, and that nothing starts during a freeze or on a closed node."""
    reading = facts.reading
    if reading is None:
        return
    for command in facts.commands:
        if command.word != "cancel" or command.accepted > reading.begun.wall:
            continue
        submission = facts.owner_of.get(command.target) or facts.submissions.get(command.target)
        for member in submission.members if submission is not None else ():
            if command.target not in (member, submission.job if submission else ""):
                continue
            job = reading.jobs.get(member)
            if job is not None and job["state"] not in ENDED and submission is not None:
                grace = float(submission.request.get("grace_seconds", 30.0))
                saving = 0.0 if job["state"] == "pending" else grace
                yield Doubt("cancelled", member, f"was cancelled and is {job['state']}", saving + STATE_SECONDS)
    frozen = _spans(facts, ("freeze",), ("thaw",), "")
    shut = {
        node: _spans(facts, ("maintenance",), ("release", "quarantine"), node)
        for node in {one.target for one in facts.commands if one.word == "maintenance"}
    }
    for life in facts.lives.values():
        # A gang that was already starting continues: the decision time of the attempt counts.
        job = reading.jobs.get(life.job)
        started = _seconds(job["attempt_started_ns"]) if job is not None and job["attempt"] == life.attempt else None
        if started is None:
            continue
        if any(begin + FREEZE_SECONDS < started < end for begin, end in frozen):
            yield Doubt("frozen", life.job, f"attempt {life.attempt} started while all actions were frozen")
        if any(begin + CLOCK_SECONDS < started < end for begin, end in shut.get(life.node, ())):
            yield Doubt("maintenance", life.job, f"attempt {life.attempt} started on {life.node}, in maintenance")


def _spans(facts: Facts, opening: tuple[str, ...], closing: tuple[str, ...], target: str) -> list[tuple[float, float]]:
    """Return the periods from each request in `opening` to the next request in `closing`, as wall times."""
    spans: list[tuple[float, float]] = []
    begin: float | None = None
    for command in facts.took(opening + closing, target):
        if command.word in opening:
            begin = command.accepted if begin is None else begin
        elif begin is not None:
            spans.append((begin, command.asked))
            begin = None
    if begin is not None:
        spans.append((begin, float("inf")))
    return spans
