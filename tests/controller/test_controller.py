"""Controller: journal before action, restarts, full disks, freezes, and bugs."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from agent.schema.catalog import BY_NAME, FEEDBACK
from agent.schema.clock import SystemClock
from agent.schema.errors import BackendError, ConfigError, StateFolderBusyError, StoreError
from agent.schema.frame import Frame, Layout, Member, StepRecord, make_layout
from agent.schema.sample import Sample, expanded
from scheduler_feedback.controller import cycle_thread as loop_module
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.codec import decode_action, encode_action, encode_state
from scheduler_feedback.core.events import CancelRequested, Event, FreezeSet, NodeSeen, PolicySet, Submitted
from scheduler_feedback.core.job import JobSpec, JobState, Slot
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors import DETECTORS
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.feed import Stream
from scheduler_feedback.journal.recovery import recover, run_again
from scheduler_feedback.journal.store import Store
from tests.cluster.memory_backend import MemoryBackend, World

SPEC = JobSpec("train", ("python", "train.py"), 2)
POLICY = Policy(retry_backoff_seconds=0.0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of the cycle's thread."""
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.05)


@contextmanager
def controlling(
    folder: Path, backend: MemoryBackend, policy: Policy = POLICY, detectors: Sequence[object] = (), **more: object
) -> Iterator[Controller]:
    settings = ControllerSettings(detectors=detectors)  # type: ignore[arg-type]
    with Controller(folder, backend, policy, settings, **more) as controller:  # type: ignore[arg-type]
        yield controller


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def submit(controller: Controller, spec: JobSpec = SPEC) -> str:
    event = controller.cycle.request(lambda _: Submitted(controller.cycle.new_job_id(), spec)).result(20)
    assert isinstance(event, Submitted)
    return event.job_id


def state_of(controller: Controller, job_id: str) -> JobState | None:
    def ask(state: State) -> JobState | None:
        return state.jobs[job_id].state if job_id in state.jobs else None

    return controller.cycle.ask(ask).result(20)


def is_in(controller: Controller, job_id: str, state: JobState) -> Callable[[], bool]:
    return lambda: state_of(controller, job_id) is state


def sample(controller: Controller, name: str, **labels: str) -> float | None:
    found = {(n, frozenset(pairs)): value for n, pairs, value in expanded(controller.measures())}
    return found.get((name, frozenset(labels.items())))


def snapshot_of(controller: Controller) -> bytes:
    return controller.cycle.ask(encode_state).result(20)


def test_an_emptied_journal_next_to_job_records_is_refused(tmp_path: Path, world: World) -> None:
    """With an empty journal the running jobs would be ended. Without job records it is a controller's first start."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "store.sqlite").touch()
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: controller.ready() == (True, ""))
    (tmp_path / "jobs" / "j-000001").mkdir()
    with controlling(tmp_path, MemoryBackend(world)):
        pass
    (tmp_path / "store.sqlite").write_bytes(b"")
    with (
        pytest.raises(StoreError, match=r"store\.sqlite: it is empty, but .*jobs has records of jobs"),
        controlling(tmp_path, MemoryBackend(world)),
    ):
        pass
    assert (tmp_path / "store.sqlite").stat().st_size == 0, "nothing was changed"
    (tmp_path / "store.sqlite").unlink()
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: controller.ready() == (True, ""))


# --- normal operation ------------------------------------------------------------------------------------------------


def test_a_job_is_journalled_started_observed_and_ended(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: controller.ready() == (True, ""))
        job_id = submit(controller)
        assert job_id == "j-000001"
        until(is_in(controller, job_id, JobState.RUNNING))
        world.end(job_id)
        until(is_in(controller, job_id, JobState.COMPLETED))
        [action] = controller.store.actions_of(job_id)
        assert action.outcome == "applied"
        assert [numbered.entry.kind for numbered in controller.store.entries_of(job_id)] == [
            "submitted",
            "started",
            "running",
            "ended",
        ]
        until(lambda: sample(controller, "gangwatch_gangs", state="completed") == 1)
        assert sample(controller, "gangwatch_store_failures_total") == 0
    assert world.attempts[job_id, 1].starts == 1


def test_actions_are_journalled_before_they_are_carried_out(tmp_path: Path, world: World) -> None:
    seen: list[tuple[str, bool]] = []

    def check(action: Action) -> None:
        with sqlite3.connect(f"file:{tmp_path}/store.sqlite?mode=ro", uri=True) as database:
            row = database.execute("SELECT outcome FROM actions WHERE action_id = ?", (action.action_id,)).fetchone()
        database.close()
        seen.append((action.action_id, row == (None,)))

    with controlling(tmp_path, MemoryBackend(world, before_apply=check)) as controller:
        submit(controller)
        until(lambda: seen)
    assert seen == [("a-000001", True)]


def test_idle_cycles_are_not_journalled(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        written = len(controller.store.journal_all().journal)
        cycles = sample(controller, "gangwatch_cycles_total") or 0
        until(lambda: (sample(controller, "gangwatch_cycles_total") or 0) > cycles + 5)
        assert len(controller.store.journal_all().journal) == written


def test_a_replay_of_the_journal_rebuilds_the_state(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        jobs = [submit(controller, structs.replace(SPEC, ranks=ranks)) for ranks in (2, 4, 1, 1)]
        for job_id in jobs:
            until(lambda job_id=job_id: state_of(controller, job_id) is not JobState.PENDING)
            until(is_in(controller, job_id, JobState.RUNNING))
            time.sleep(0.1)  # idle cycles, which a replay must not need
            world.end(job_id)
        until(lambda: all(state_of(controller, job_id) is JobState.COMPLETED for job_id in jobs))
        controller.cycle.request(lambda _: FreezeSet(True, "last")).result(20)
        live = controller.cycle.ask(lambda state: (state.jobs, state.nodes, state.counts, state.frozen)).result(20)
        replayed = State()
        for row in controller.store.journal_all().journal:
            assert run_again(replayed, row)[1]
        assert (replayed.jobs, replayed.nodes, replayed.counts, replayed.frozen) == live


class FallingClock(SystemClock):
    """Wall clock that is set back by an hour."""

    back_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() - self.back_ns


def test_the_time_of_cycles_never_decreases(tmp_path: Path, world: World) -> None:
    clock = FallingClock()
    with controlling(tmp_path, MemoryBackend(world), clock=clock) as controller:
        first = submit(controller)
        clock.back_ns = 3600 * 10**9
        second = submit(controller)
        until(is_in(controller, second, JobState.RUNNING))
        times = [row.now_ns for row in controller.store.journal_all().journal]
        assert times == sorted(times)
        assert first != second


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_second_controller_of_a_folder_is_refused(tmp_path: Path, world: World) -> None:
    with (
        controlling(tmp_path, MemoryBackend(world)),
        pytest.raises(StateFolderBusyError, match=rf"pid {os.getpid()}\).*{tmp_path}"),
        controlling(tmp_path, MemoryBackend(world)),
    ):
        pass
    with controlling(tmp_path, MemoryBackend(world)):
        pass


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_loses_no_job_and_starts_no_job_twice(tmp_path: Path, world: World, clean: bool) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        running = submit(controller)
        until(is_in(controller, running, JobState.RUNNING))
        waiting = submit(controller, structs.replace(SPEC, ranks=4))
        before = snapshot_of(controller)
        if not clean:
            (tmp_path / "copy").mkdir()
            for part in ("store.sqlite", "store.sqlite-wal"):  # as after kill -9: no snapshot
                (tmp_path / "copy" / part).write_bytes((tmp_path / part).read_bytes())
    folder = tmp_path if clean else tmp_path / "copy"
    assert not (folder / "controller.json").exists()

    store = Store(folder / "store.sqlite")
    assert (store.load().state is not None) is clean
    assert clean or recover(store).mismatches == 0
    store.close()
    world.end(running)  # while no controller runs
    backend = MemoryBackend(world)
    with controlling(folder, backend) as controller:
        until(is_in(controller, waiting, JobState.RUNNING))
        assert state_of(controller, running) is JobState.COMPLETED
        assert submit(controller) == "j-000003"
    assert world.attempts[running, 1].starts == 1
    assert len(backend.applied) == 1
    assert world.strays == []
    assert before


class CrashError(BaseException):
    """End of the controller's process, simulated by an exception."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_intent_without_an_outcome_is_carried_out_once_after_the_restart(tmp_path: Path, world: World) -> None:
    def crash(_action: Action) -> None:
        raise CrashError

    with controlling(tmp_path, MemoryBackend(world, before_apply=crash)) as controller:
        job_id = submit(controller)
        until(lambda: isinstance(controller.failure, CrashError))
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(is_in(controller, job_id, JobState.RUNNING))
        until(lambda: not controller.store.open_actions())
        assert [(a.job_id, a.attempt) for a in backend.applied] == [(job_id, 1)]
    assert list(world.attempts) == [(job_id, 1)]


def test_an_action_without_a_recorded_outcome_is_not_repeated(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("UPDATE actions SET outcome = NULL")
    database.close()
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: not controller.store.open_actions())
        until(is_in(controller, job_id, JobState.RUNNING))
    assert world.attempts[job_id, 1].starts == 1
    world.end(job_id)
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("UPDATE actions SET outcome = NULL")
    database.close()
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(is_in(controller, job_id, JobState.COMPLETED))
    backend = MemoryBackend(world)
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("UPDATE actions SET outcome = NULL")
    database.close()
    with controlling(tmp_path, backend) as controller:
        until(lambda: not controller.store.open_actions())
        assert [recorded.outcome for recorded in controller.store.actions_of(job_id)] == ["superseded"]
    assert backend.applied == []


def test_the_state_follows_the_record_if_a_replay_differs(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
    elsewhere = (Slot("n1", 0), Slot("n1", 1))
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        [body] = database.execute("SELECT body FROM actions").fetchone()
        start = decode_action(body)
        assert isinstance(start, StartGang)
        assert start.placement != elsewhere
        database.execute("UPDATE actions SET body = ?", (encode_action(structs.replace(start, placement=elsewhere)),))
        database.execute("DELETE FROM snapshots")
    database.close()
    world.attempts[job_id, 1].action = structs.replace(start, placement=elsewhere)
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(is_in(controller, job_id, JobState.RUNNING))
        slots = controller.cycle.ask(lambda state: [rank.slot for rank in state.jobs[job_id].ranks]).result(20)
        assert tuple(slots) == elsewhere
        assert sample(controller, "gangwatch_replay_mismatches_total") == 1
        other = submit(controller)
        until(is_in(controller, other, JobState.RUNNING))
    assert "decided otherwise than recorded" in caplog.text
    assert world.strays == []


def test_a_recorded_start_is_kept_if_a_replay_lacks_it(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
    with sqlite3.connect(tmp_path / "store.sqlite") as database:  # as if another version had lost the submission
        for cycle, events in database.execute("SELECT cycle, events FROM journal").fetchall():
            if b"Submitted" in events:
                database.execute("UPDATE journal SET events = x'90' WHERE cycle = ?", (cycle,))
        database.execute("DELETE FROM snapshots")
    database.close()
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(is_in(controller, job_id, JobState.RUNNING))
    assert world.strays == []
    assert world.running() == {(job_id, 1)}


def test_settings_are_journalled_when_they_change(tmp_path: Path, world: World) -> None:
    first = replace(POLICY, start_timeout_seconds=30.0)
    with controlling(tmp_path, MemoryBackend(world), first) as controller:
        until(lambda: controller.cycle.ask(lambda state: state.policy).result(20) == first)
    other = replace(first, migration_margin=0.7)
    wrong = ConfigError("gangwatch.toml: policy.migration_margin: expected a number")

    def reload() -> Policy:
        if wrong is not None:
            raise wrong
        return replace(first, migration_margin=0.9)

    with controlling(tmp_path, MemoryBackend(world), other, reload=reload) as controller:
        until(lambda: controller.cycle.ask(lambda state: state.policy).result(20) == other)
        with pytest.raises(ConfigError, match="migration_margin"):
            asyncio.run(controller.reload("test"))
        assert controller.cycle.ask(lambda state: state.policy).result(20) == other
        wrong = None
        asyncio.run(controller.reload("test"))
        assert controller.cycle.ask(lambda state: state.policy.migration_margin).result(20) == 0.9
        events = [event for row in controller.store.journal_all().journal for event in row.events]
        margins = [event.policy.migration_margin for event in events if isinstance(event, PolicySet)]
        assert margins == [0.2, 0.7, 0.9]


def test_a_clean_stop_is_quick_and_leaves_a_snapshot(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    assert world.running() == {(job_id, 1)}
    store = Store(tmp_path / "store.sqlite")
    loaded = store.load()
    store.close()
    assert loaded.state is not None
    assert loaded.state.jobs[job_id].state is JobState.RUNNING
    assert loaded.journal == ()


def test_nodes_are_added_and_removed(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: controller.ready()[0])
        gone = world.nodes.pop()
        until(lambda: not controller.cycle.ask(lambda state: state.nodes["n1"].present).result(20))
        world.nodes.append(structs.replace(gone, slots=8))
        until(lambda: controller.cycle.ask(lambda state: state.nodes["n1"].slots).result(20) == 8)
        seen = [
            event
            for row in controller.store.journal_all().journal
            for event in row.events
            if isinstance(event, NodeSeen) and event.node == "n1"
        ]
        assert [(event.present, event.slots) for event in seen] == [(True, 2), (False, 2), (True, 8)]


# --- failing stores --------------------------------------------------------------------------------------------------


def fill(controller: Controller) -> None:
    """Leave the journal's file without free pages and without room to grow."""
    connection = controller.store._connection

    def full(_state: State) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")

    controller.cycle.ask(full).result(20)


def make_room(controller: Controller) -> None:
    def room(_state: State) -> None:
        controller.store._connection.execute("PRAGMA max_page_count=1000000")

    controller.cycle.ask(room).result(20)


BIG = structs.replace(SPEC, environment={"FILLING": "x" * 100_000})


def test_a_full_store_refuses_requests_and_keeps_observations(tmp_path: Path, world: World) -> None:
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        fill(controller)
        with pytest.raises(StoreError, match=r"store\.sqlite.*SQLITE_FULL"):
            submit(controller, BIG)
        ready, reason = controller.ready()
        assert not ready
        assert "store.sqlite" in reason
        assert (sample(controller, "gangwatch_store_failures_total") or 0) >= 1
        assert [a.job_id for a in backend.applied] == [job_id]
        assert controller.cycle.ask(lambda state: list(state.jobs)).result(20) == [job_id]
        world.end(job_id)
        make_room(controller)
        until(lambda: controller.ready()[0])
        until(is_in(controller, job_id, JobState.COMPLETED))
        later = submit(controller, BIG)
        until(is_in(controller, later, JobState.RUNNING))
        assert later > job_id


@pytest.mark.parametrize("table", ["journal", "actions", "entries"])
def test_a_store_that_fails_within_a_cycle_writes_nothing_of_it(tmp_path: Path, world: World, table: str) -> None:
    """Also if the cycle has changed the state already: the state must equal the journal's."""
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        first = submit(controller)
        until(is_in(controller, first, JobState.RUNNING))
        before = controller.cycle.ask(lambda state: (dict(state.jobs), state.action_count)).result(20)
        trigger = f"CREATE TRIGGER fails BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no room'); END"
        controller.cycle.ask(lambda _: controller.store._connection.execute(trigger)).result(20)
        with pytest.raises(StoreError, match="no room"):
            submit(controller)
        assert (sample(controller, "gangwatch_store_failures_total") or 0) >= 1
        assert controller.cycle.ask(lambda state: (dict(state.jobs), state.action_count)).result(20) == before
        assert len(backend.applied) == 1
        world.end(first)  # an observation, which must not be lost
        time.sleep(0.1)
        controller.cycle.ask(lambda _: controller.store._connection.execute("DROP TRIGGER fails")).result(20)
        until(is_in(controller, first, JobState.COMPLETED))
        second = submit(controller)
        until(is_in(controller, second, JobState.RUNNING))
        assert recover(controller.store).mismatches == 0
    assert world.attempts[second, 1].starts == 1


# --- freeze ----------------------------------------------------------------------------------------------------------


def test_a_freeze_survives_restarts_and_allows_cancellation(tmp_path: Path, world: World) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        running = submit(controller)
        until(is_in(controller, running, JobState.RUNNING))
        assert asyncio.run(controller.freeze("test")) == ""
        held = submit(controller)
    assert (tmp_path / "frozen").exists()
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.ready()[0])
        time.sleep(0.2)
        assert state_of(controller, held) is JobState.PENDING
        controller.cycle.request(lambda _: CancelRequested(running)).result(20)
        until(is_in(controller, running, JobState.CANCELLED))
        assert [type(action) for action in backend.applied] == [StopGang]
        asyncio.run(controller.thaw("test"))
        until(is_in(controller, held, JobState.RUNNING))
        assert not (tmp_path / "frozen").exists()


def test_a_flag_file_created_by_hand_freezes(tmp_path: Path, world: World) -> None:
    (tmp_path / "frozen").touch()
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.cycle.ask(lambda state: state.frozen).result(20))
        held = submit(controller)
        time.sleep(0.1)
        assert backend.applied == []
        asyncio.run(controller.thaw("test"))
        until(is_in(controller, held, JobState.RUNNING))


def test_a_freeze_takes_effect_while_the_store_is_full(tmp_path: Path, world: World) -> None:
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.ready()[0])
        fill(controller)
        with pytest.raises(StoreError):
            submit(controller, BIG)
        assert "not in the journal until that is writable" in asyncio.run(controller.freeze("test"))
        assert (tmp_path / "frozen").exists()
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.cycle.ask(lambda state: state.frozen).result(20))
        held = submit(controller)
        time.sleep(0.1)
        assert state_of(controller, held) is JobState.PENDING
    assert backend.applied == []


def test_an_action_decided_before_a_freeze_is_withheld_and_decided_again(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The freeze begins between commit and apply. No action is carried out, and none is lost."""
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.ready()[0])
        switch = controller._freeze_switch
        written = controller._written

        def freeze_after_commit(events: Sequence[Event], entries: Sequence[object]) -> None:
            if any(isinstance(event, Submitted) for event in events):
                switch.turn_on()
            written(events, entries)  # type: ignore[arg-type]

        hooks = replace(controller.cycle._hooks, written=freeze_after_commit)
        monkeypatch.setattr(controller.cycle, "_hooks", hooks)
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.PENDING))
        assert backend.applied == []
        [withheld] = controller.store.actions_of(job_id)
        assert withheld.outcome == "withheld: frozen"
        until(lambda: controller.cycle.ask(lambda state: state.frozen).result(20))
        asyncio.run(controller.thaw("test"))
        until(is_in(controller, job_id, JobState.RUNNING))
        assert list(world.attempts) == [(job_id, 2)]


# --- failures of other parts -----------------------------------------------------------------------------------------


def test_a_refused_action_is_recorded_and_decided_again(tmp_path: Path, world: World) -> None:
    refusals = iter(["no room in the process table"])

    def refuse(_action: Action) -> None:
        for reason in refusals:
            raise BackendError(reason)

    with controlling(tmp_path, MemoryBackend(world, before_apply=refuse)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        outcomes = [recorded.outcome for recorded in controller.store.actions_of(job_id)]
        assert outcomes[0] == "failed: no room in the process table"
        until(lambda: not controller.store.open_actions())
        assert (sample(controller, "gangwatch_backend_failures_total") or 0) >= 1


def test_a_failing_backend_makes_the_controller_unready(tmp_path: Path, world: World) -> None:
    backend = MemoryBackend(world)
    with controlling(tmp_path, backend) as controller:
        until(lambda: controller.ready()[0])
        backend.trouble = "the API server does not answer"
        until(lambda: controller.ready() == (False, "the API server does not answer"))
        backend.trouble = ""
        until(lambda: controller.ready()[0])


def test_a_bug_in_the_cycle_ends_the_controller_with_a_reason(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        until(lambda: controller.ready()[0])
        written = len(controller.store.journal_all().journal)

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        notified: list[bool] = []

        async def scene() -> None:
            async with controller.serving(lambda: notified.append(True)):
                monkeypatch.setattr(loop_module, "run", broken)
                while not notified:
                    await asyncio.sleep(0.01)

        asyncio.run(scene())
        assert isinstance(controller.failure, ZeroDivisionError)
        assert "ZeroDivisionError: a bug" in controller.ready()[1]
        with pytest.raises(Exception, match="stopping or has failed"):
            submit(controller)
        assert len(controller.store.journal_all().journal) == written
    assert "ZeroDivisionError" in caplog.text


class Detector:
    """Detector that counts its ticks, and raises an exception if a test requests it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ticks = 0
        self.restored = b""
        self.broken = False

    def tick(self, context: DetectionContext) -> list[Finding]:
        self.ticks += 1
        if self.broken:
            raise IndexError("list index out of range")
        return []

    def measures(self) -> list[Sample]:
        return [("gangwatch_rank_slowdown_ratio", (("gang", self.name), ("rank", "0")), 1.0)]

    def snapshot(self) -> bytes:
        return f"{self.name} after {self.ticks}".encode()

    def restore(self, data: bytes) -> None:
        if not data.startswith(self.name.encode()):
            raise ValueError("not mine")
        self.restored = data


def test_a_broken_detector_is_disabled_and_jobs_continue(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Detector("good"), Detector("bad")
    with controlling(tmp_path, MemoryBackend(world), detectors=[bad, good]) as controller:
        until(lambda: bad.ticks and controller.ready()[0])
        bad.broken = True
        until(lambda: controller.ready() == (False, "bad failed: IndexError: list index out of range"))
        ticks = good.ticks
        until(lambda: good.ticks > ticks)
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        assert sample(controller, "gangwatch_detector_failures_total", detector="bad") == 1
        assert sample(controller, "gangwatch_detector_failures_total", detector="good") == 0
    assert "Traceback" in caplog.text
    again = [Detector("good"), Detector("bad")]
    with controlling(tmp_path, MemoryBackend(world), detectors=again):
        assert again[0].restored.startswith(b"good after ")


def test_baselines_survive_a_restart_and_invalid_ones_are_refused(tmp_path: Path, world: World) -> None:
    detector = Detector("one")
    with controlling(tmp_path, MemoryBackend(world), detectors=[detector]):
        until(lambda: detector.ticks)
    again = Detector("one")
    with controlling(tmp_path, MemoryBackend(world), detectors=[again]):
        assert again.restored == f"one after {detector.ticks}".encode()
    with controlling(tmp_path, MemoryBackend(world), detectors=[Detector("o")]) as controller:
        until(lambda: controller.ready()[0])


# --- frames ----------------------------------------------------------------------------------------------------------


def frame(layout: Layout, seq: int, records: tuple[StepRecord, ...] = ()) -> Frame:
    now_ns = time.monotonic_ns()
    return Frame(
        layout.node, "m", "a", seq, layout.layout_id, time.time_ns(), now_ns,
        np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.bool_), 0, records,
    )  # fmt: skip


def test_the_first_step_comes_from_the_frames(tmp_path: Path, world: World) -> None:
    layout = make_layout("n0", (), (), ())
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        job_id = submit(controller)
        until(is_in(controller, job_id, JobState.RUNNING))
        step = StepRecord(Member(job_id, 1, 0), 17, time.monotonic_ns() - 2_000_000, 1_000_000)
        controller._detection.offer(layout, frame(layout, 1, (step,)), time.monotonic_ns())
        until(lambda: "first-step" in [n.entry.kind for n in controller.store.entries_of(job_id)])
        assert sample(controller, "gangwatch_gang_step_seconds", gang=job_id) == pytest.approx(0.001)
        world.end(job_id)
        until(is_in(controller, job_id, JobState.COMPLETED))
        until(lambda: sample(controller, "gangwatch_gang_step_seconds", gang=job_id) is None)


def test_frames_that_do_not_match_their_layout_are_refused(tmp_path: Path, world: World) -> None:
    layout = make_layout("n0", (), (), ())
    other = make_layout("n1", (), (), ())
    with controlling(tmp_path, MemoryBackend(world)) as controller:
        controller._detection.offer(layout, frame(other, 1), 0)
        controller._detection.offer(layout, structs.replace(frame(layout, 1), gauges=np.zeros(3)), 0)
        until(lambda: sample(controller, "gangwatch_watch_frames_refused_total") == 2)
        until(lambda: controller.ready()[0])


def test_the_oldest_frames_are_dropped_if_folding_is_too_slow(tmp_path: Path, world: World) -> None:
    from scheduler_feedback.controller.detection_thread import DetectionThread

    layout = make_layout("n0", (), (), ())
    watch = DetectionThread((), lambda _: None, SystemClock(), queue_frames=10)
    for seq in range(1, 31):
        watch.offer(layout, frame(layout, seq), 0)
    watch.run_tick()
    samples = {name: value for name, _, value in expanded(watch.measures())}
    assert samples["gangwatch_watch_frames_dropped_total"] == 20
    assert watch._fleet.nodes["n0"].seq == 30


def test_every_metric_is_in_the_catalogue(tmp_path: Path, world: World) -> None:
    layout = make_layout("n0", (), (), ())
    detectors = [make() for make in DETECTORS]
    with controlling(tmp_path, MemoryBackend(world), detectors=detectors) as controller:
        first, second = submit(controller), submit(controller, structs.replace(SPEC, ranks=4))
        until(is_in(controller, first, JobState.RUNNING))
        step = StepRecord(Member(first, 1, 0), 17, time.monotonic_ns() - 2_000_000, 1_000_000)
        controller._detection.offer(layout, frame(layout, 1, (step,)), time.monotonic_ns())
        controller._feed.feed.streams["n0"] = Stream("n0", received_ns=1)
        until(lambda: sample(controller, "gangwatch_gang_wait_seconds_ahead", gang=second) is not None)
        until(lambda: sample(controller, "gangwatch_gang_step_seconds", gang=first) is not None)
        samples = list(expanded(controller.measures()))
    for name, labels, _ in samples:
        names = [label for label, _ in labels]
        assert set(names) - {"node"} == set(BY_NAME[name].labels) - {"node"}, name
        assert names == sorted(names), name
    assert len(samples) == len({(name, labels) for name, labels, _ in samples})
    missing = {metric.name for metric in FEEDBACK} - {name for name, _, _ in samples}
    assert missing <= {  # these require a fault, windows of steps, or minutes of traffic
        "gangwatch_gang_inferred_step_seconds",
        "gangwatch_rank_slowdown_ratio",
        "gangwatch_verdicts_total",
        "gangwatch_verdict_active",
        "gangwatch_verdict_info",
        "gangwatch_verdict_slowdown_ratio",
        "gangwatch_verdict_lost_slots",
        "gangwatch_abstentions_total",
        # These require a power budget.
        "gangwatch_power_budget_watts",
        "gangwatch_power_committed_watts",
        "gangwatch_gang_power_limit_watts",
        "gangwatch_gang_power_speed_ratio",
        # These require queues in the configuration.
        "gangwatch_queue_quota_slots",
        "gangwatch_queue_used_slot_seconds",
        "gangwatch_watch_records_refused_total",
        "gangwatch_node_clock_skew_seconds",  # a node with a wrong clock
        "gangwatch_feed_certificate_expiry_seconds",  # agents with TLS
        "gangwatch_certificates_signed_total",  # the signer on Kubernetes
        "gangwatch_leads",  # controllers with leader election, on Kubernetes
        "gangwatch_missing_rights",
        "gangwatch_lost_leases_total",
    }
