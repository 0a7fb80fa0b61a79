"""Recovery of the state from the newest snapshot and the journal after it.

The cycle is deterministic, so a replay makes the recorded decisions. Recovery compares each replayed action with the
recorded one. If they differ (another build, or a bug), the state follows the recorded action, because the backend has
carried it out. The difference is logged and counted.
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
from scheduler_feedback.policies.index.scheduling_index import drop_index

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery."""

    state: State
    """State after the newest journalled cycle."""
    detectors: dict[str, bytes]
    """Snapshots of the detectors' states, by name of the detector."""
    cycles: int
    """Number of replayed cycles."""
    mismatches: int
    """Number of replayed cycles whose decisions differ from the recorded ones."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    state: State
    """State after the newest cycle."""
    cycles: int
    events: int
    different: int
    """Number of cycles whose decisions differ from the recorded ones."""


def recover(store: Reader) -> Recovered:
    """Return the state in the store. Raises StoreError if it cannot be read."""
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
    """Replay a stored journal. `take` is called for each cycle with the recorded cycle, the replayed outcome, and
    whether the two agree.
    """
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
    """Replay the whole journal in parts, cut at its snapshots, with one process per part, `processes` at a time.

    Every cycle is replayed; each part starts with the controller's snapshot at that point.
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
    """Replay a part of the journal. Return the encoded state (b'' unless it is the last part), and the numbers of
    replayed cycles, of events, and of cycles whose decisions differ from the recorded ones.
    """
    with collecting_rarely(), Reader(path).replaying_part(start, last) as running:
        replayed = replay_journal(running)
    state = encode_state(replayed.state) if last is None else b""
    return state, (replayed.cycles, replayed.events, replayed.different)


def run_again(state: State, row: JournalRow) -> tuple[Outcome, bool]:
    """Replay one journalled cycle on `state`. Return its outcome, and whether its actions are the recorded ones."""
    # Cycles without a change were not journalled, but they count.
    state.cycle = row.cycle - 1
    count_before = state.action_count
    outcome = run(state, row.events, row.now_ns)
    if len(outcome.actions) == len(row.decided) and all(map(_is_recorded, outcome.actions, row.decided)):
        return outcome, True
    recorded = row.actions
    _log.error("cycle %d: recorded %s, replayed %s", row.cycle, _in_words(recorded), _in_words(outcome.actions))
    follow(state, recorded, outcome.actions, row.now_ns)
    drop_index(state)
    numbers = [int(number) for action in recorded if (number := action.action_id.rpartition("-")[2]).isdecimal()]
    state.action_count = max(count_before, *numbers, 0)
    return outcome, False


def _is_recorded(action: Action, record: bytes) -> bool:
    """Return whether the action is the recorded one. The wording of its reason is ignored.

    Its encoded bytes may differ, because another build may have written fewer or more fields.
    """
    return encode_action(action) == record or replace(action, reason="") == replace(decode_action(record), reason="")


def follow(state: State, recorded: Sequence[Action], replayed: Sequence[Action], now_ns: int) -> None:
    """Correct the jobs so that they follow the recorded actions where the replayed actions differ."""
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
