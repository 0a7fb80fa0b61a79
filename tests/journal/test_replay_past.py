"""Replay of older journals: of a simulation, of backups of a growing journal, and with different decisions."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from agent.schema.errors import GangwatchError, StoreError
from gangwatch.cli import cli
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.codec import decode_action, encode_action
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.journal.backup import back_up, verify
from scheduler_feedback.journal.recovery import recover, replay_journal, replay_parts, run_again
from scheduler_feedback.journal.store import Reader, Store
from scheduler_feedback.sim.simulated_journal import JournalFile
from tests.sim.scenario import job, simulation


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return the journal of a simulation with some hundred jobs, pending and backfilled."""
    path = tmp_path / "journal.sqlite"
    jobs = [job(f"j{number}", 3 * number, 1 + number % 6, 20 + 31 * number % 170) for number in range(300)]
    simulation(jobs, 3, 4).engine(JournalFile(path)).run()
    return path


def test_a_simulation_is_replayed_to_the_same_decisions(journal: Path) -> None:
    loaded = Reader(journal).journal_all()
    starts = [action for row in loaded.journal for action in row.actions if isinstance(action, StartGang)]
    assert len(starts) == 300
    replayed = replay_journal(loaded)
    assert (replayed.different, replayed.cycles) == (0, len(loaded.journal))
    assert replayed.events >= 900
    assert recover(Reader(journal)).state == replayed.state


def test_the_command_prints_decisions_about_a_job_and_reasons(journal: Path) -> None:
    result = CliRunner().invoke(cli, ["replay", "--journal", str(journal), "--job", "j7", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["different"] == 0
    [start] = [action for one in document["decisions"] for action in one["actions"]]
    assert (start["type"], start["job_id"]) == ("StartGang", "j7")
    assert "spec" not in start
    kinds = [entry["kind"] for one in document["decisions"] for entry in one["told"]]
    assert kinds[0] == "submitted" and kinds[-1] == "ended"


def test_the_command_prints_one_cycle_and_the_state_at_a_time(journal: Path) -> None:
    rows = Reader(journal).journal_all().journal
    chosen = next(row for row in rows if row.actions and row.cycle > 50)
    result = CliRunner().invoke(cli, ["replay", "--journal", str(journal), "--cycle", str(chosen.cycle), "--json"])
    [decided] = json.loads(result.stdout)["decisions"]
    assert (decided["cycle"], decided["as_recorded"], decided["wall_ns"]) == (chosen.cycle, True, chosen.now_ns)
    result = CliRunner().invoke(
        cli, ["replay", "--journal", str(journal), "--at", "2000-01-01T00:05:00+00:00", "--json"]
    )
    then = json.loads(result.stdout)["then"]
    assert then["running"] and then["waiting"]
    assert all(one["because"] for one in then["waiting"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--job", "j-none"], "the journal has no record of job j-none"),
        (["--cycle", "999999"], "the journal has no record of cycle 999999"),
        (["--cycle", "3", "--job", "j-none"], "the journal has no record of cycle 3 about j-none"),
    ],
)
def test_an_unknown_job_or_cycle_is_an_error(journal: Path, asked: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["replay", "--journal", str(journal), *asked])
    assert result.exit_code and isinstance(result.exception, GangwatchError)
    assert str(result.exception) == f"{journal}: {words}"


def test_a_different_decision_is_found_and_the_record_followed(journal: Path) -> None:
    database = sqlite3.connect(journal)
    rowid, body = database.execute("SELECT rowid, body FROM actions WHERE job_id = 'j40'").fetchone()
    action = decode_action(body)
    assert isinstance(action, StartGang)
    moved = StartGang(action.action_id, action.job_id, action.attempt, action.spec, action.placement[::-1], "otherwise")
    assert moved.placement != action.placement
    database.execute("UPDATE actions SET body = ? WHERE rowid = ?", (encode_action(moved), rowid))
    database.commit()
    database.close()
    result = CliRunner().invoke(cli, ["replay", "--journal", str(journal), "--json"], standalone_mode=False)
    assert result.return_value == 1, "the command's exit code"
    assert json.loads(result.stdout)["different"] >= 1


def test_a_replay_in_parallel_parts_gives_the_same_result(journal: Path) -> None:
    """The journal has several snapshots, and a different decision in the first part."""
    state = State()
    loaded = Reader(journal).journal_all()
    store = Store(journal)
    for number, row in enumerate(loaded.journal, start=1):
        run_again(state, row)
        if number in (100, 250, 400):
            store.snapshot(row.cycle, row.now_ns, state, {})
    store.close()
    reader = Reader(journal)
    assert len(reader.parts()) == 4
    apart, together = replay_parts(reader, 2), replay_parts(reader, 1)
    assert apart == together == replay_journal(loaded)
    assert (apart.cycles, apart.different) == (len(loaded.journal), 0)
    other = replace(next(row for row in loaded.journal if row.cycle > 50 and row.actions).actions[0], attempt=9)
    with closing(sqlite3.connect(journal)) as database, database:
        database.execute("UPDATE actions SET body = ? WHERE action_id = ?", (encode_action(other), other.action_id))
    assert replay_parts(reader, 2).different >= 1


def test_a_file_that_is_no_journal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "nonsense"
    path.write_text("nonsense")
    result = CliRunner().invoke(cli, ["replay", "--journal", str(path)])
    assert isinstance(result.exception, StoreError)
    assert str(path) in str(result.exception)


# --- backup ----------------------------------------------------------------------------------------------------------

SPEC = JobSpec("train", ("python", "train.py"), 2)


def test_a_backup_is_consistent_while_the_journal_is_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    for cycle in range(1, 200):
        store.append(cycle, cycle, [Submitted(f"j-{cycle:06d}", SPEC)], [], [])
    stop = threading.Event()

    def write() -> None:
        cycle = 200
        while not stop.is_set():
            store.append(cycle, cycle, [Submitted(f"j-{cycle:06d}", SPEC)], [], [])
            cycle += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [back_up(store.path, tmp_path / f"copy-{number}") for number in range(3)]
    finally:
        stop.set()
        writer.join()
    store.close()
    for copied in copies:
        rows = Reader(copied.path).journal_all().journal
        assert [row.cycle for row in rows] == list(range(1, copied.cycle + 1))
        assert copied.cycles == len(rows) >= 199
        assert copied.path.stat().st_mode & 0o777 == 0o600
        Store(copied.path).close()
    assert [copied.cycle for copied in copies] == sorted(copied.cycle for copied in copies)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("store")}
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in left} == {"copy-0", "copy-1", "copy-2"}


def test_a_backup_never_overwrites_and_leaves_nothing_if_it_fails(tmp_path: Path) -> None:
    Store(tmp_path / "store.sqlite").close()
    target = tmp_path / "copy"
    target.write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        back_up(tmp_path / "store.sqlite", target)
    assert target.read_text() == "mine"
    with pytest.raises(StoreError, match="there is no journal"):
        back_up(tmp_path / "absent", tmp_path / "other")
    with pytest.raises(StoreError, match="No such file"):
        back_up(tmp_path / "store.sqlite", tmp_path / "absent" / "copy")


@pytest.mark.parametrize("damage", ["UPDATE journal SET events = x'c1'", "UPDATE actions SET body = x'c1'"])
def test_a_damaged_journal_makes_no_backup(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path / "store.sqlite")
    start = StartGang("a-000001", "j-000001", 1, SPEC, (Slot("n0", 0), Slot("n0", 1)))
    store.append(1, 1, [Submitted("j-000001", SPEC)], [start], [])
    store.snapshot(1, 1, State(cycle=1), {})
    store._connection.execute(damage)
    store.close()
    with pytest.raises(StoreError, match="could not read the journal"):
        back_up(tmp_path / "store.sqlite", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(StoreError):
        verify(tmp_path / "store.sqlite")
