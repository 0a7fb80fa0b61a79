"""Recovery: the state, rebuilt from the newest snapshot and the journal after it.

The cycle is deterministic, so a replay decides what was decided then, and that is checked action by action. Where it
differs (another build decides otherwise, or a bug), the recorded actions are what was carried out: the state follows
them, so that no gang is lost or ended because a controller was upgraded, and the difference is logged and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from msgspec.structs import replace

from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.codec import decode_action, decode_state, encode_action, encode_state
from scheduler_feedback.core.job import Job, JobState, RankRecord
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import Outcome, run
from scheduler_feedback.journal.garbage_collection import collecting_rarely
from scheduler_feedback.journal.store import JournalRow, Loaded, Reader, Running
from scheduler_feedback.policies.index.scheduling_index import forget_ledger

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """state: as after the newest journalled cycle. detectors: their snapshots by name. cycles: how many were replayed.

    mismatches: of those, how many decided otherwise than was recorded.
    """

    state: State
    detectors: dict[str, bytes]
    cycles: int
    mismatches: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """state: as after the newest cycle. different: of the cycles, how many decided otherwise than was recorded."""

    state: State
    cycles: int
    events: int
    different: int


def recover(store: Reader) -> Recovered:
    """The state that the store holds. Raises StoreError where it can't be read."""
    loaded = store.load()
    with store.explaining("replay the journal"):
        replayed = replay_journal(loaded)
    if replayed.different:
        _log.error(
            "%d of %d replayed cycles decided otherwise than recorded; the state follows the record",
            replayed.different,
            replayed.cycles,
        )
    return Recovered(replayed.state, loaded.detectors, replayed.cycles, replayed.different)


def replay_journal(
    loaded: Loaded | Running, take: Callable[[JournalRow, Outcome, bool], None] = lambda _row, _outcome, _same: None
) -> Replayed:
    """Run a stored journal again; `take` is given each cycle as recorded, as replayed, and whether they agree."""
    state = loaded.state if loaded.state is not None else State()
    cycles = events = different = 0
    for row in loaded.journal:
        outcome, same = run_again(state, row)
        cycles += 1
        events += len(row.events)
        different += not same
        take(row, outcome, same)
    return Replayed(state, cycles, events, different)


def replay_parts(reader: Reader, processes: int) -> Replayed:
    """The whole journal again, cut at its snapshots, so many parts at a time, each in a process of its own.

    Every cycle is run again, as in one run; a part begins with the state that the controller had there.
    """
    parts = reader.parts()
    if processes < 2 or len(parts) < 2:
        found = [_replay_part(reader.path, *part) for part in parts]
    else:
        with ProcessPoolExecutor(min(processes, len(parts)), get_context("spawn")) as pool:
            found = list(pool.map(_replay_part, [reader.path] * len(parts), *zip(*parts, strict=True)))
    cycles, events, different = (sum(counts) for counts in zip(*(counts for _, counts in found), strict=True))
    return Replayed(decode_state(found[-1][0]), cycles, events, different)


def _replay_part(path: Path, start: int | None, last: int | None) -> tuple[bytes, tuple[int, int, int]]:
    """(the state after it as bytes, of the last part alone; cycles, events, different)."""
    with collecting_rarely(), Reader(path).replaying_part(start, last) as running:
        replayed = replay_journal(running)
    state = encode_state(replayed.state) if last is None else b""
    return state, (replayed.cycles, replayed.events, replayed.different)


def replay_row(state: State, row: JournalRow) -> bool:
    """Run one journalled cycle again on `state`; whether it decided what was recorded."""
    return run_again(state, row)[1]


def run_again(state: State, row: JournalRow) -> tuple[Outcome, bool]:
    """Run one journalled cycle again on `state`; what it decided, and whether that is what was recorded."""
    # Cycles in which nothing happened were not journalled; they counted all the same.
    state.cycle = row.cycle - 1
    count_before = state.action_count
    outcome = run(state, row.events, row.now_ns)
    if len(outcome.actions) == len(row.decided) and all(map(_is_recorded, outcome.actions, row.decided)):
        return outcome, True
    recorded = row.actions
    _log.error("cycle %d: recorded %s, replayed %s", row.cycle, _in_words(recorded), _in_words(outcome.actions))
    follow(state, recorded, outcome.actions, row.now_ns)
    forget_ledger(state)
    numbers = [int(number) for action in recorded if (number := action.action_id.rpartition("-")[2]).isdecimal()]
    state.action_count = max(count_before, *numbers, 0)
    return outcome, False


def _is_recorded(action: Action, record: bytes) -> bool:
    """Whether this is what was recorded; in which words a decision was explained is no part of it.

    Another build may have written it with fewer fields or more: other bytes alone are no other decision.
    """
    return encode_action(action) == record or replace(action, reason="") == replace(decode_action(record), reason="")


def follow(state: State, recorded: Sequence[Action], replayed: Sequence[Action], now_ns: int) -> None:
    """Make the jobs what they are after the recorded actions, where the replayed ones differ."""
    for job_id in dict.fromkeys(action.job_id for action in (*recorded, *replayed)):
        done = [action for action in recorded if action.job_id == job_id]
        wrong = [action for action in replayed if action.job_id == job_id]
        if done == wrong:
            continue
        job = state.jobs.get(job_id)
        if job is None:
            start = next((action for action in done if isinstance(action, StartGang)), None)
            if start is None:
                continue
            job = state.jobs[job_id] = Job(job_id, start.spec, JobState.PENDING, now_ns)
        for action in reversed(wrong):
            _undo(job, action)
        for action in done:
            _do(job, action, now_ns)


def _undo(job: Job, action: Action) -> None:
    if isinstance(action, StartGang):
        job.state, job.attempt, job.ranks = JobState.PENDING, action.attempt - 1, []
        job.attempt_started_ns = None
    else:
        job.state, job.stop_reason, job.stopping_ns = JobState.RUNNING, None, None
    job.action_id = ""


def _do(job: Job, action: Action, now_ns: int) -> None:
    job.action_id = action.action_id
    if isinstance(action, StartGang):
        job.state, job.attempt, job.stop_reason, job.claim = JobState.STARTING, action.attempt, None, []
        job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(action.placement)]
        job.started_ns = job.started_ns if job.started_ns is not None else now_ns
        job.attempt_started_ns, job.first_step_ns, job.ended_ns = now_ns, None, None
    else:
        job.state, job.stop_reason, job.stopping_ns = JobState.STOPPING, action.why, now_ns


def _in_words(actions: Sequence[Action]) -> str:
    return (
        ", ".join(f"{type(a).__name__} {a.action_id} of {a.job_id} attempt {a.attempt}" for a in actions) or "nothing"
    )
