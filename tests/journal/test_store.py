"""Journal's store: it writes complete cycles or nothing, on full disks, after kill -9, and after damage."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry, StartGang, StopGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.codec import encode_event, encode_state
from scheduler_feedback.core.events import CancelRequested, Event, PolicySet, Submitted
from scheduler_feedback.core.job import JobSpec, Slot, StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.journal.backup import verify
from scheduler_feedback.journal.store import MIGRATIONS, SCHEMA_VERSION, CycleRow, Reader, Retention, Store
from scheduler_feedback.journal.store_reading import Extent
from tests import needs
from tests.journal.reading import journal_to

SPEC = JobSpec("train", ("python", "train.py"), 2)
DAY_NS = 86400 * 10**9


def start(number: int, job: str = "j-000001") -> StartGang:
    return StartGang(f"a-{number}", job, number, SPEC, (Slot("n0", 0), Slot("n0", 1)), "fits")


def write(store: Store, cycle: int, now_ns: int = 0, text: str = "") -> None:
    """Write a cycle with one event, one action and one log entry, all with the cycle's number."""
    store.append(
        cycle, now_ns, [Submitted(f"j-{cycle:06d}", SPEC)], [start(cycle)], [Entry(now_ns, "j-000001", "started", text)]
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


def fill(store: Store, cycle: int = 1) -> tuple[int, StoreError]:
    """Write cycles until the store refuses. Return the number of the refused cycle, and the error."""
    while True:
        try:
            write(store, cycle, text="x" * 4000)
        except StoreError as error:
            return cycle, error
        cycle += 1


def assert_whole(store: Store, cycles: int) -> None:
    """Assert that the store has exactly the cycles 1..cycles, each with its event, action and log entry."""
    rows = store.load().journal
    assert [row.cycle for row in rows] == list(range(1, cycles + 1))
    assert [row.actions for row in rows] == [(start(number),) for number in range(1, cycles + 1)]
    assert [entry.cycle for entry in store.entries_of("j-000001")] == list(range(1, cycles + 1))


def test_written_data_is_read_after_a_restart(path: Path) -> None:
    events: list[Event] = [Submitted("j-000001", SPEC), PolicySet(Policy(migration_margin=0.5), "test")]
    actions: list[Action] = [start(1), StopGang("a-2", "j-000001", 1, "SIGTERM", 3.0, StopReason.CANCEL, "asked")]
    entry = Entry(7, "node:n0", "quarantine", "n0 is slow", False, (("slowdown", "1.4"),))
    store = Store(path)
    store.append(1, 5, events, actions, [entry])
    store.outcome("a-1", "applied", 9)
    store.close()

    again = Store(path)
    loaded = again.load()
    assert loaded.state is None
    [row] = loaded.journal
    assert (row.cycle, row.now_ns, row.events, row.actions) == (1, 5, tuple(events), tuple(actions))
    assert [numbered.entry for numbered in again.entries_of("node:n0")] == [entry]
    assert again.open_actions() == [actions[1]]
    assert [(recorded.now_ns, recorded.outcome) for recorded in again.actions_of("j-000001")] == [
        (5, "applied"),
        (5, None),
    ]
    again.close()


def test_commits_are_durable(store: Store) -> None:
    connection = store._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert store.path.stat().st_mode & 0o777 == 0o600
    write(store, 1)
    assert Path(f"{store.path}-wal").stat().st_mode & 0o777 == 0o600


def test_a_cycle_that_raises_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.cycle(1, 0, [CancelRequested("j-000001")]) as record:
        record.decided([start(1)], [Entry(0, "j-000001", "started", "")])
        raise ZeroDivisionError
    assert_whole(store, 0)
    write(store, 1)
    assert_whole(store, 1)


def test_a_discarded_cycle_leaves_nothing(store: Store) -> None:
    with store.cycle(1, 0, [CancelRequested("j-000001")]) as record:
        record.discard()
    assert_whole(store, 0)


def test_job_numbers_increase_across_restarts_and_refused_cycles(path: Path) -> None:
    store = Store(path)
    store.append(1, 0, [Submitted("j-000041", SPEC)], [], [])
    with pytest.raises(ZeroDivisionError), store.cycle(2, 0, [Submitted("j-000042", SPEC)]):
        raise ZeroDivisionError
    assert store.job_number == 41
    store.close()
    again = Store(path)
    assert again.job_number == 41
    again.close()


def test_load_begins_at_the_newest_snapshot(store: Store) -> None:
    for cycle in range(1, 11):
        write(store, cycle, cycle)
        if cycle % 2 == 0:
            store.snapshot(cycle, cycle, State(cycle=cycle), {"straggler": b"%d" % cycle})
    write(store, 11)
    loaded = store.load()
    assert loaded.state is not None
    assert (loaded.state.cycle, loaded.detectors, [row.cycle for row in loaded.journal]) == (
        10,
        {"straggler": b"10"},
        [11],
    )
    assert [row.cycle for row in store.journal_all().journal] == list(range(1, 12))
    assert store._connection.execute("SELECT cycle FROM snapshots ORDER BY cycle").fetchall() == [
        (2,),
        (6,),
        (8,),
        (10,),
    ], "the newest three, and the day's first"


def test_every_replay_begins_with_the_state_that_was_rebuilt_from_a_backend(store: Store) -> None:
    rebuilt = State(nodes={"n1": Node("n1", 8)})
    store.snapshot(0, 0, rebuilt, {})
    for cycle in range(1, 4):
        write(store, cycle, cycle)
        store.snapshot(cycle, cycle, State(cycle=cycle), {})
    loaded = store.journal_all()
    assert loaded.state is not None and loaded.state.nodes.keys() == {"n1"}
    assert [row.cycle for row in loaded.journal] == [1, 2, 3]
    with store.replaying() as running:
        assert running.state is not None and running.state.nodes.keys() == {"n1"}
        assert [row.cycle for row in running.journal] == [1, 2, 3]
    assert store.parts()[0] == (0, 1)
    assert store.journal_extent() == Extent(complete=True, after=0, last=3)


def test_a_damaged_snapshot_is_skipped(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for cycle in (1, 2, 3):
        write(store, cycle)
        store.snapshot(cycle, cycle, State(cycle=cycle), {})
    store._connection.execute("UPDATE snapshots SET state = x'00' WHERE cycle = 3")
    loaded = store.load()
    assert loaded.state is not None
    assert (loaded.state.cycle, [row.cycle for row in loaded.journal]) == (2, [3])
    assert "snapshot of cycle 3 skipped" in caplog.text
    store._connection.execute("UPDATE snapshots SET state = x'00'")
    assert [row.cycle for row in store.load().journal] == [1, 2, 3]
    assert store.load().state is None


def test_retention_keeps_what_a_restart_needs(path: Path) -> None:
    store = Store(path, Retention(days=1))
    write(store, 1, 0)
    store.append(2, 0, [], [start(2, "j-000002")], [Entry(0, "j-000002", "started", "")])
    store.outcomes([("a-1", "applied"), ("a-2", "applied")], 0)
    for cycle in (3, 4, 5):
        store.append(cycle, 3 * DAY_NS, [], [], [])
        store.snapshot(cycle, 3 * DAY_NS, State(cycle=cycle), {}, living=["j-000002"])
    assert store.entries_of("j-000001") == []
    assert store.actions_of("j-000001") == []
    assert len(store.entries_of("j-000002")) == 1
    assert len(store.actions_of("j-000002")) == 1
    replay = store.journal_all()
    assert replay.state is not None
    assert (replay.state.cycle, [row.cycle for row in replay.journal]) == (3, [4, 5])
    store._connection.execute("UPDATE snapshots SET state = x'00'")
    with pytest.raises(StoreError, match="no snapshot can be read, and the journal begins after cycle 2"):
        store.load()
    store.close()


def test_a_large_journal_is_shortened_early(path: Path) -> None:
    store = Store(path, Retention(days=1000, journal_bytes=400_000))
    for cycle in range(1, 400):
        store.append(cycle, 0, [Submitted("j-000001", JobSpec("a", ("x" * 4000,), 1))], [], [])
        if cycle % 20 == 0:
            store.snapshot(cycle, 0, State(cycle=cycle), {})
    pages, free = (
        store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
    )
    assert (pages - free) * 4096 < 1_000_000 < 400 * 4000
    assert store.load().state is not None
    store.close()


# --- full disks ------------------------------------------------------------------------------------------------------


def test_a_full_database_refuses_whole_cycles(store: Store) -> None:
    write(store, 1)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages + 8}")
    refused, error = fill(store, 2)
    assert str(store.path) in str(error)
    assert "SQLITE_FULL" in str(error)
    assert "Free disk space" in str(error)
    with pytest.raises(StoreError, match="SQLITE_FULL"):
        store.probe()
    assert_whole(store, refused - 1)
    store._connection.execute("PRAGMA max_page_count=100000")
    store.probe()
    write(store, refused)
    assert_whole(store, refused)


def test_a_full_disk_refuses_whole_cycles(tmp_path: Path) -> None:
    needs.small_file_system(tmp_path, "400k")
    try:
        store = Store(tmp_path / "store.sqlite")
        refused, error = fill(store)
        assert str(store.path) in str(error)
        assert "SQLITE_FULL" in str(error) or "SQLITE_IOERR" in str(error)
        with pytest.raises(StoreError):
            store.probe()
        assert_whole(store, refused - 1)
        store.close()
        subprocess.run(["mount", "-o", "remount,size=4m", tmp_path], check=True)
        again = Store(tmp_path / "store.sqlite")
        assert_whole(again, refused - 1)
        again.probe()
        write(again, refused)
        assert_whole(again, refused)
        again.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    Store(folder / "store.sqlite").close()
    mounted = os.geteuid() == 0
    if mounted:
        needs.read_only(folder)
    else:
        folder.chmod(0o500)
        (folder / "store.sqlite").chmod(0o400)
    try:
        with pytest.raises(StoreError, match=r"store\.sqlite: (Read-only file system|Permission denied)"):
            Store(folder / "store.sqlite")
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)
        else:
            folder.chmod(0o700)


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_file_of_garbage_is_named(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(8192))
    with pytest.raises(StoreError, match=r"store\.sqlite: could not open it: .*NOTADB.* move it aside"):
        Store(path)


def test_damaged_pages_are_found_at_the_start(path: Path) -> None:
    store = Store(path)
    for cycle in range(1, 200):
        write(store, cycle, text="x" * 500)
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.sqlite: .*(damaged|malformed).*move it aside"):
        Store(path)


def test_another_programs_database_is_unchanged(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="no journal of gangwatch"):
        Store(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(path: Path) -> None:
    store = Store(path)
    store._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    store.close()
    refused = rf"needs a newer gangwatch \(it has schema {SCHEMA_VERSION + 1}.*Install a newer gangwatch"
    with pytest.raises(StoreError, match=refused) as raised:
        Store(path)
    assert "aside" not in str(raised.value)
    with pytest.raises(StoreError, match=refused):  # a Reader refuses it, too
        Reader(path).journal_all()
    with pytest.raises(StoreError, match=refused):
        verify(path)


def test_a_file_that_is_no_journal_is_not_read_as_one(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE meta (key, value)").connection.close()
    with pytest.raises(StoreError, match="an SQLite file, but no journal of gangwatch"):
        Reader(path).journal_all()


def test_damaged_rows_are_named(store: Store) -> None:
    write(store, 1)
    store._connection.execute("UPDATE journal SET events = x'c1'")
    with pytest.raises(
        StoreError,
        match=r"store\.sqlite: could not read its snapshots and the journal .*: cycle 1: the list of its events",
    ):
        store.load()


def test_an_unknown_event_is_reported_without_advice_to_start_empty(store: Store) -> None:
    write(store, 1)
    alien = msgspec.msgpack.encode(("NodeRepainted", {"node": "n0"}))
    store.append(2, 0, [CancelRequested("j-000001")], [], [])
    (body,) = store._connection.execute("SELECT events FROM journal WHERE cycle = 2").fetchone()
    body = msgspec.msgpack.encode([*msgspec.msgpack.decode(body), alien])
    store._connection.execute("UPDATE journal SET events = ? WHERE cycle = 2", (body,))
    with pytest.raises(StoreError, match=r"cycle 2, entry 2 of 2: .*'NodeRepainted'") as refused:
        store.load()
    assert "aside" not in str(refused.value) and "empty journal" not in str(refused.value)
    assert "newest snapshot" not in str(refused.value)
    assert "running jobs go on" in str(refused.value)


@pytest.mark.parametrize("left", [1, 100, 511, 512, 4096])
def test_a_truncated_file_is_not_taken_for_a_new_journal(path: Path, left: int) -> None:
    store = Store(path)
    for cycle in range(1, 50):
        write(store, cycle, text="x" * 500)
    store.close()
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(StoreError, match=r"store\.sqlite: .*(damaged|malformed)"):
        Store(path)


# --- kill -9 ---------------------------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from scheduler_feedback.journal.store import Store
from tests.journal.test_store import write
store = Store(Path(sys.argv[1]))
cycle = len(store.load().journal)
while True:
    cycle += 1
    write(store, cycle, text="x" * 2000)
    print(cycle, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_no_acknowledged_write(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, bufsize=1
        ) as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.2))
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                if line.endswith("\n"):
                    acknowledged = int(line)
        store = Store(path)
        written = len(store.load().journal)
        assert acknowledged <= written <= acknowledged + 1
        assert_whole(store, written)
        store.close()


# --- compaction, replay of the past, migration ------------------------------------------------------------------------


def _long_past(path: Path, days: int = 10, cycles_a_day: int = 700) -> Store:
    """Return a store of this many days with four snapshots a day. Each cycle submits the job with its number."""
    store = Store(path)
    for day in range(days):
        for quarter in range(4):
            rows = [
                CycleRow(cycle, day * DAY_NS + cycle, [Submitted(f"j-{cycle:06d}", SPEC)], [start(cycle)])
                for cycle in range(day * cycles_a_day + quarter * 175 + 1, day * cycles_a_day + (quarter + 1) * 175 + 1)
            ]
            store.append_all(rows)
            last = rows[-1]
            store.snapshot(last.cycle, last.now_ns, State(cycle=last.cycle, now_ns=last.now_ns), {"d": b"x"})
    return store


def test_old_cycles_are_compacted_and_read_as_before(path: Path) -> None:
    store = _long_past(path)
    cycles = 7000
    assert [row.cycle for row in store.journal_all().journal] == list(range(1, cycles + 1))
    assert store.journal_all().journal[4].actions == (start(5),)
    [(blocks,)] = store._connection.execute("SELECT count(*) FROM blocks").fetchall()
    [(rows,)] = store._connection.execute("SELECT count(*) FROM journal").fetchall()
    assert blocks == (cycles - 2 * 175) // 512
    assert rows == cycles - blocks * 512
    store.close()
    again = Store(path)
    loaded = again.load()
    assert loaded.state is not None and loaded.state.cycle == cycles
    again.close()


def test_a_cycle_of_last_week_is_replayed_from_the_beginning_of_its_day(path: Path) -> None:
    store = _long_past(path)
    loaded = journal_to(store, cycle=2400)
    assert loaded.state is not None
    assert loaded.state.cycle == 3 * 700 + 175, "the first snapshot of the fourth day"
    assert [row.cycle for row in loaded.journal] == list(range(3 * 700 + 176, 2401))
    by_time = journal_to(store, now_ns=3 * DAY_NS + 2400)
    assert by_time == loaded
    assert [row.cycle for row in journal_to(store, cycle=3).journal] == [1, 2, 3]
    assert store._connection.execute("SELECT count(*) FROM snapshots").fetchone()[0] == 10 + 3
    store.close()


def test_only_the_requested_part_of_a_long_journal_is_read(path: Path) -> None:
    """Cycles after the requested moment are not decoded: in this journal they cannot be."""
    store = _long_past(path)
    with store._connection:
        for cycle, kind in ((2300, "submitted"), (2410, "ended")):
            store._connection.execute(
                "INSERT INTO entries (cycle, wall_ns, subject, kind, text, applied, detail) "
                "VALUES (?, 0, 'j', ?, '', 1, '[]')",
                (cycle, kind),
            )
        store._connection.execute("UPDATE blocks SET body = x'00' WHERE first_cycle > 2600")
    for asked, last in (
        ({"now_ns": 3 * DAY_NS + 2400}, 2400),
        ({"cycle": 2400}, 2400),
        ({"job": "j"}, 2410),
    ):
        with store.replaying(**asked) as running:
            assert running.state is not None
            assert running.state.cycle == 3 * 700 + 175, "the first snapshot of the fourth day"
            assert [row.cycle for row in running.journal] == list(range(3 * 700 + 176, last + 1))
    with pytest.raises(StoreError, match="could not read"), store.replaying(job="unknown") as running:
        assert sum(1 for _ in running.journal), "without a story of the job, the whole journal is read"
    store.close()


def test_a_replay_of_deleted_cycles_is_an_error(path: Path) -> None:
    store = _long_past(path)
    store._connection.execute(
        f"UPDATE actions SET outcome = 'applied', outcome_ns = (cycle - 1) / 700 * {DAY_NS} + cycle"
    )
    store.retention = Retention(days=3)
    now_ns = 10 * DAY_NS
    store.snapshot(7001, now_ns, State(cycle=7001, now_ns=now_ns), {})
    forgotten = int(store.meta("forgotten_to") or 0)
    assert 6 * 700 < forgotten < 7 * 700, "whole blocks, up to the seventh day"
    with pytest.raises(StoreError, match=rf"the journal begins after cycle {forgotten}: earlier cycles were deleted"):
        journal_to(store, cycle=forgotten - 10)
    whole = store.journal_all()
    assert whole.state is not None and whole.state.cycle >= forgotten
    kept = store._connection.execute("SELECT min(cycle), count(*) FROM actions").fetchone()
    assert kept == (forgotten + 1, 7000 - forgotten), "replayable cycles keep their actions"
    assert [row.cycle for row in whole.journal] == list(range(whole.state.cycle + 1, 7001))
    store.close()


def _first_schema(path: Path) -> None:
    """Write a journal in the first release's schema."""
    database = sqlite3.connect(path, isolation_level=None)
    for statement in filter(str.strip, MIGRATIONS[0].split(";")):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={0x47574A4E}")
    database.execute("PRAGMA user_version=1")
    database.execute(
        "INSERT INTO journal (cycle, now_ns, events) VALUES (1, 5, ?)",
        (msgspec.msgpack.encode([encode_event(Submitted("j-000041", SPEC))]),),
    )
    database.execute(
        "INSERT INTO snapshots (cycle, now_ns, state, detectors) VALUES (1, 5, ?, ?)",
        (encode_state(State(cycle=1)), msgspec.msgpack.encode({"d": b"x"})),
    )
    database.close()


def test_an_older_schema_is_readable_and_migrated_when_opened(path: Path) -> None:
    _first_schema(path)
    reader = Reader(path)
    assert [row.events for row in reader.journal_all().journal] == [(Submitted("j-000041", SPEC),)]
    loaded = reader.load()
    assert loaded.state is not None and loaded.detectors == {"d": b"x"}
    store = Store(path)
    assert store._connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert store.load() == loaded
    write(store, 2)
    store.snapshot(2, 6, State(cycle=2), {})
    assert [row.cycle for row in store.journal_all().journal] == [1, 2]
    store.close()


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _first_schema(path)
    monkeypatch.setattr(
        "scheduler_feedback.journal.store.MIGRATIONS", (*MIGRATIONS[:1], MIGRATIONS[1] + "; CREATE NONSENSE")
    )
    with pytest.raises(StoreError, match="could not open it"):
        Store(path)
    monkeypatch.undo()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    assert database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'blocks'").fetchone() == (0,)
    database.close()
    Store(path).close()
