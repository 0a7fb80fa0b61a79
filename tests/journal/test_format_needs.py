"""Journals of newer releases or with a damaged entry: they are refused, with advice that keeps running jobs alive."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from click.testing import CliRunner

from agent.schema.errors import NewerStoreError, StoreError
from gangwatch.cli import cli
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core import codec
from scheduler_feedback.core.actions import Action, Entry, StopGang
from scheduler_feedback.core.codec import encode_event, encode_state
from scheduler_feedback.core.events import CancelRequested, Event, Submitted, Tick
from scheduler_feedback.core.formats import FORMATS, KINDS, Feature, Formats, version_key
from scheduler_feedback.core.job import JobSpec, StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.journal import store as store_module
from scheduler_feedback.journal.backup import back_up
from scheduler_feedback.journal.format_needs import this_release
from scheduler_feedback.journal.recovery import recover
from scheduler_feedback.journal.store import MIGRATIONS, CycleRow, Reader, Store
from scheduler_feedback.journal.store_schema import SCHEMA_RELEASES, SCHEMA_VERSION
from tests.journal.reading import journal_to

SPEC = JobSpec("train", ("python", "train.py"), 2)


class NodeRepainted(msgspec.Struct, frozen=True):
    """Kind of event that no release has."""

    node: str
    colour: str = "green"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Make this process a later release, 9.1.0, with one more kind of event and two more features."""
    stops = Feature("StopReason.PREEMPT", "9.1.0", StopGang, lambda action: action.why is StopReason.PREEMPT)
    waits = Feature("State.waits", "8.0.0", State, lambda state: state.waits)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "FORMATS", Formats({**KINDS, NodeRepainted: "9.0.0"}, (stops, waits)))
        patch.setattr(codec, "_events", codec._Union("event", (*get_args(Event), NodeRepainted)))
        yield patch


def needs(path: Path) -> tuple[str | None, dict[str, str]]:
    """Return (oldest release that can read the file, features) from the file."""
    with sqlite3.connect(path) as database:
        rows = dict(database.execute("SELECT key, value FROM meta"))
    database.close()
    return rows.get("minimum_reader"), json.loads(rows.get("features", "{}"))


def written(path: Path, cycles: int = 3) -> None:
    store = Store(path)
    for cycle in range(1, cycles + 1):
        store.append(cycle, cycle, [Submitted(f"j-{cycle:06d}", SPEC), Tick()], [], [Entry(cycle, "j-1", "x", "said")])
    store.close()


def put_unknown_event(path: Path, cycle: int) -> None:
    """Insert an event of an unknown kind between the events of an existing cycle."""
    alien = msgspec.msgpack.encode(("NodeRepainted", {"node": "n0"}))
    with sqlite3.connect(path) as database:
        (body,) = database.execute("SELECT events FROM journal WHERE cycle = ?", (cycle,)).fetchone()
        first, *rest = msgspec.msgpack.decode(body)
        database.execute(
            "UPDATE journal SET events = ? WHERE cycle = ?", (msgspec.msgpack.encode([first, alien, *rest]), cycle)
        )
    database.close()


def content_of(path: Path) -> str:
    """Return the whole database as text. The bytes may change when the file is opened in another mode."""
    with sqlite3.connect(path) as database:
        dump = "\n".join(database.iterdump())
    database.close()
    return hashlib.sha256(dump.encode()).hexdigest()


# --- requirements of a store -----------------------------------------------------------------------------------------


def test_data_that_every_release_reads_requires_no_release(path: Path) -> None:
    written(path)
    assert needs(path) == (None, {})


def test_the_first_event_of_a_newer_kind_requires_its_release(path: Path, newer: pytest.MonkeyPatch) -> None:
    store = Store(path)
    store.append(1, 1, [Tick()], [], [])
    assert needs(path) == (None, {})
    store.append(2, 2, [NodeRepainted("n0")], [], [])  # type: ignore[list-item]
    assert needs(path) == ("9.0.0", {"NodeRepainted": "9.0.0"})
    store.append(3, 3, [], [StopGang("a-1", "j", 1, "SIGTERM", 1.0, StopReason.CANCEL)], [])
    assert needs(path)[0] == "9.0.0"
    store.append(4, 4, [], [StopGang("a-2", "j", 1, "SIGTERM", 1.0, StopReason.PREEMPT)], [])
    assert needs(path) == ("9.1.0", {"NodeRepainted": "9.0.0", "StopReason.PREEMPT": "9.1.0"})
    store.snapshot(4, 4, State(cycle=4, waits=True), {})
    assert needs(path)[0] == "9.1.0", "an older feature does not lower it"
    assert needs(path)[1]["State.waits"] == "8.0.0"
    store.close()


def test_a_snapshot_alone_requires_its_release(path: Path, newer: pytest.MonkeyPatch) -> None:
    store = Store(path)
    store.append(1, 1, [Tick()], [], [])
    store.snapshot(1, 1, State(cycle=1), {})
    assert needs(path) == (None, {})
    store.snapshot(1, 1, State(cycle=1, waits=True), {})
    assert needs(path) == ("8.0.0", {"State.waits": "8.0.0"})
    store.close()


def test_cycles_of_a_simulation_require_their_release_too(path: Path, newer: pytest.MonkeyPatch) -> None:
    store = Store(path)
    store.append_all([CycleRow(1, 1, [NodeRepainted("n0")], [])])  # type: ignore[list-item]
    store.close()
    assert needs(path)[0] == "9.0.0"


def test_a_cycle_that_was_not_written_requires_nothing(path: Path, newer: pytest.MonkeyPatch) -> None:
    store = Store(path)
    with pytest.raises(ZeroDivisionError), store.cycle(1, 1, [NodeRepainted("n0")]):  # type: ignore[list-item]
        raise ZeroDivisionError
    with store.cycle(1, 1, [NodeRepainted("n0")]) as record:  # type: ignore[list-item]
        record.discard()
    assert needs(path) == (None, {})
    store.append(1, 1, [NodeRepainted("n0")], [], [])  # type: ignore[list-item]
    assert needs(path)[0] == "9.0.0"
    store.close()


def test_a_migration_requires_the_release_that_reads_its_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SCHEMA_RELEASES) == len(MIGRATIONS)
    written(path)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (a)"))
        for module in ("store", "store_schema"):
            patch.setattr(f"scheduler_feedback.journal.{module}.SCHEMA_VERSION", SCHEMA_VERSION + 1)
            patch.setattr(f"scheduler_feedback.journal.{module}.SCHEMA_RELEASES", (*SCHEMA_RELEASES, "7.2.0"))
        Store(path).close()
    with pytest.raises(NewerStoreError, match=r"needs gangwatch 7\.2\.0 or newer \(it has schema 3"):
        Reader(path).load()


# --- a store that needs a newer release ------------------------------------------------------------------------------


@pytest.fixture
def from_later(path: Path, newer: pytest.MonkeyPatch) -> Path:
    """Write a journal with the later release. Afterwards this process is the present release again."""
    store = Store(path)
    store.append(1, 1, [Submitted("j-000001", SPEC)], [], [Entry(1, "j-000001", "submitted", "said")])
    store.append(2, 2, [NodeRepainted("n0")], [], [])  # type: ignore[list-item]
    store.close()
    newer.undo()
    return path


def assert_says_what_is_safe(text: str, path: Path) -> None:
    assert text.startswith(f"{path}: ")
    assert "9.0.0 or newer" in text, "the required release"
    assert f"this is gangwatch {this_release()}" in text
    assert "Nothing was changed" in text
    assert "running jobs go on" in text
    assert "Install gangwatch 9.0.0" in text
    assert "NodeRepainted" in text, "the feature that requires it"
    assert "aside" not in text and "empty" not in text and "damaged" not in text


def test_a_start_on_a_newer_store_names_the_release_and_changes_nothing(from_later: Path) -> None:
    before = content_of(from_later)
    with pytest.raises(NewerStoreError) as refused:
        Store(from_later)
    assert_says_what_is_safe(str(refused.value), from_later)
    assert content_of(from_later) == before


def test_every_reader_of_a_newer_store_raises_the_same_error(from_later: Path, tmp_path: Path) -> None:
    reader = Reader(from_later)

    def replay() -> None:
        with reader.replaying() as running:
            list(running.journal)

    for read in (
        reader.load,
        reader.journal_all,
        replay,
        reader.parts,
        reader.open_actions,
        lambda: reader.actions_of("j-000001"),
        lambda: reader.entries_of("j-000001"),
        lambda: journal_to(reader, cycle=1),
        lambda: back_up(from_later, tmp_path / "copy.sqlite"),
    ):
        with pytest.raises(NewerStoreError) as refused:
            read()
        assert "9.0.0 or newer" in str(refused.value)
        assert "aside" not in str(refused.value)
        assert str(refused.value).startswith(f"{from_later}: "), "the journal's name, not a copy's"
    assert sorted(tmp_path.glob("*copy*")) == [], "no partial backup remains"


def test_a_newer_schema_is_not_migrated(from_later: Path) -> None:
    with sqlite3.connect(from_later) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(NewerStoreError, match=r"needs gangwatch 9\.0\.0 or newer \(it has schema 99"):
        Store(from_later)


def test_an_older_schema_with_newer_content_is_not_migrated(path: Path) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in filter(str.strip, MIGRATIONS[0].split(";")):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={0x47574A4E}")
    database.execute("PRAGMA user_version=1")
    database.execute("INSERT INTO meta VALUES ('minimum_reader', '9.0.0')")
    with pytest.raises(NewerStoreError):
        Store(path)
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()


def test_the_release_that_wrote_it_reads_it_again(from_later: Path, newer: pytest.MonkeyPatch) -> None:
    """The fixture `newer` was undone, so the later release's kinds are registered again here."""
    names = Formats({**KINDS, NodeRepainted: "9.0.0"})
    newer.setattr("scheduler_feedback.journal.format_needs.check_reader.__defaults__", (names,))
    newer.setattr(codec, "_events", codec._Union("event", (*get_args(Event), NodeRepainted)))
    assert [row.events[0] for row in Reader(from_later).load().journal] == [
        Submitted("j-000001", SPEC),
        NodeRepainted("n0"),
    ]


def test_a_feature_that_an_earlier_build_of_the_release_lacks_is_named(path: Path) -> None:
    written(path)
    with sqlite3.connect(path) as database:
        database.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [("minimum_reader", this_release()), ("features", json.dumps({"Mood": this_release()}))],
        )
    database.close()
    with pytest.raises(NewerStoreError, match=r"\(it contains Mood\); this is an earlier build of gangwatch"):
        Store(path)


def test_a_readable_store_is_read_whatever_release_it_requires(path: Path) -> None:
    written(path)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO meta VALUES ('minimum_reader', ?)", (FORMATS.newest,))
        database.execute("INSERT INTO meta VALUES ('features', ?)", (json.dumps({"Tick": "0.1.0"}),))
    database.close()
    Store(path).close()
    assert len(Reader(path).load().journal) == 3


@pytest.mark.parametrize(("key", "value"), [("minimum_reader", "soon"), ("features", "{"), ("features", "[1]")])
def test_a_damaged_required_release_is_reported_as_damage(path: Path, key: str, value: str) -> None:
    written(path)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
    database.close()
    with pytest.raises(StoreError, match="the required release cannot be read") as refused:
        Store(path)
    assert not isinstance(refused.value, NewerStoreError)
    assert "aside" not in str(refused.value)


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.1.0", "0.2.0"), ("0.9.0", "0.10.0"), ("0.1.0", "1"), ("0.1.0", "0.1.1"), ("0.1.9rc1", "0.2.0")],
)
def test_releases_are_compared_by_their_numbers(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)
    assert version_key("1.0") == version_key("1.0.0") == version_key("1.0.0rc2")


# --- damage ----------------------------------------------------------------------------------------------------------


def test_an_unknown_event_without_a_newer_release_is_reported_as_damage(path: Path) -> None:
    written(path)
    put_unknown_event(path, 2)
    store = Store(path)
    with pytest.raises(StoreError) as refused:
        recover(store)
    store.close()
    text = str(refused.value)
    assert text.startswith(f"{path}: ")
    assert "cycle 2, entry 2 of 3" in text
    assert "'NodeRepainted'" in text
    assert "damaged" in text
    assert "Nothing was changed" in text and "running jobs go on" in text
    assert "snapshot of" not in text and "newest snapshot" not in text, "the snapshot is not damaged"
    assert "aside" not in text and "empty journal" not in text, "that would end running jobs"


def test_a_damaged_decision_is_reported_with_its_position(path: Path) -> None:
    store = Store(path)
    stop = StopGang("a-1", "j-000001", 1, "SIGTERM", 1.0, StopReason.CANCEL)
    store.append(1, 1, [CancelRequested("j-000001")], [stop], [])
    store._connection.execute("UPDATE actions SET body = x'92a454656c6c80'")
    for read in (lambda: recover(store), store.open_actions, lambda: store.actions_of("j-000001")):
        with pytest.raises(StoreError, match=r"cycle 1, decided entry 1 of 1|action a-1") as refused:
            read()
        assert str(path) in str(refused.value) and "'Tell'" in str(refused.value)
        assert "aside" not in str(refused.value)
    store.close()


def test_cycles_before_the_snapshot_are_not_needed(path: Path) -> None:
    written(path)
    put_unknown_event(path, 2)
    store = Store(path)
    store.snapshot(3, 3, State(cycle=3), {})
    assert recover(store).state.cycle == 3
    with pytest.raises(StoreError, match="cycle 2, entry 2 of 3"):
        store.journal_all()
    store.close()


def damaged(encoded: bytes) -> Iterator[bytes]:
    """Yield the bytes with one of them changed, at many positions, and truncated."""
    for at in range(0, len(encoded), max(len(encoded) // 40, 1)):
        yield encoded[:at] + bytes([encoded[at] ^ 0x01]) + encoded[at + 1 :]
        yield encoded[:at]


def test_a_damaged_newest_snapshot_is_replaced_by_the_one_before(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some changed bytes can still be decoded: a wrong state that is not detected would be worse than none."""
    store = Store(path)
    state = State()
    for cycle in (1, 2, 3):
        event = Submitted(f"j-{cycle:06d}", SPEC)
        with store.cycle(cycle, cycle, [event]) as record:
            from scheduler_feedback.cycle import run

            outcome = run(state, [event], cycle)
            record.decided(outcome.actions, outcome.entries)
        store.snapshot(cycle, cycle, state, {"straggler": b"%d" % cycle})
    whole = recover(store)
    assert (whole.cycles, whole.detectors) == (0, {"straggler": b"3"})
    (encoded,) = store._connection.execute("SELECT state FROM snapshots WHERE cycle = 3").fetchone()
    for broken in damaged(encoded):
        store._connection.execute("UPDATE snapshots SET state = ? WHERE cycle = 3", (broken,))
        again = recover(store)
        assert again.cycles == 1, "the one cycle after the previous snapshot"
        assert encode_state(again.state) == encode_state(whole.state)
        assert again.detectors == {"straggler": b"3"}
    assert "snapshot of cycle 3 skipped" in caplog.text
    store.close()


def test_damaged_detector_baselines_affect_nothing_else(path: Path) -> None:
    written(path)
    store = Store(path)
    for cycle in (1, 2, 3):
        store.snapshot(cycle, cycle, State(cycle=cycle), {"straggler": b"%d" % cycle})
    store._connection.execute("UPDATE snapshots SET detectors = x'ff' WHERE cycle = 3")
    loaded = store.load()
    assert loaded.state is not None and loaded.state.cycle == 3
    assert loaded.detectors == {"straggler": b"2"}
    store._connection.execute("UPDATE snapshots SET detectors = 'text'")
    assert store.load().detectors == {}
    store.close()


def test_a_snapshot_without_a_checksum_is_read(path: Path) -> None:
    """The first builds wrote no checksums. Later snapshots in the same file may have one."""
    store = Store(path)
    store.append(1, 1, [Tick()], [], [])
    store.snapshot(1, 1, State(cycle=1), {})
    store._connection.execute("DELETE FROM meta WHERE key = 'snapshot_sums'")
    loaded = store.load()
    assert loaded.state is not None and loaded.state.cycle == 1
    store._connection.execute("INSERT INTO meta VALUES ('snapshot_sums', 'nonsense')")
    assert store.load() == loaded
    store.close()


def test_checksums_of_snapshots_that_are_gone_are_dropped(path: Path) -> None:
    store = Store(path)
    for cycle in range(1, 20):
        store.append(cycle, cycle, [Tick()], [], [])
        store.snapshot(cycle, cycle, State(cycle=cycle), {})
    kept = {number for (number,) in store._connection.execute("SELECT cycle FROM snapshots")}
    assert {int(number) for number in json.loads(store.meta("snapshot_sums") or "")} == kept
    for cycle in kept:
        assert store._state_of(store._connection, cycle).cycle == cycle, "including compressed ones"
    store.close()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE journal SET events = 'text' WHERE cycle = 2", "cycle 2: the list of its events"),
        ("UPDATE journal SET events = x'' WHERE cycle = 2", "cycle 2: the list of its events"),
        ("UPDATE journal SET events = x'91c403c1c1c1' WHERE cycle = 2", "cycle 2, entry 1 of 1: bytes that are no"),
        ("UPDATE journal SET now_ns = 'noon' WHERE cycle = 2", "cycle 2: its time is 'noon'"),
        ("INSERT INTO blocks VALUES (9, 8, 0, x'00')", "the block of cycles 8 to 9"),
        ("INSERT INTO blocks VALUES (9, 8, 0, 'text')", "the block of cycles 8 to 9"),
    ],
)
def test_every_damaged_row_is_reported(path: Path, statement: str, expected: str) -> None:
    written(path)
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    store = Store(path)
    with pytest.raises(StoreError, match=expected) as refused:
        store.load()
    assert str(refused.value).startswith(f"{path}: could not read") and "aside" not in str(refused.value)
    store.close()


def test_an_entry_with_damaged_numbers_is_still_readable(path: Path) -> None:
    written(path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entries SET detail = '{' WHERE id = 2")
    database.close()
    entries = [numbered.entry for numbered in Reader(path).entries_of("j-1")]
    assert [entry.text for entry in entries] == ["said"] * 3
    assert entries[0].detail == () and entries[1].detail[0][0] == "unreadable"


def test_a_truncated_journal_is_refused_or_complete(path: Path, tmp_path: Path) -> None:
    """The file is cut at each page and within some pages. The start must fail or find all jobs."""
    written(path, 200)
    content = path.read_bytes()
    jobs = len(Reader(path).load().journal)
    cuts = [*range(1, len(content), 4096), *range(100, len(content), 9973), 1, 50, 99]
    for at in sorted(set(cuts)):
        cut = tmp_path / f"cut{at}.sqlite"
        cut.write_bytes(content[:at])
        try:
            store = Store(cut)
        except StoreError as error:
            assert str(cut) in str(error)
            continue
        try:
            assert len(store.load().journal) == jobs
        except StoreError as error:
            assert str(cut) in str(error)
        finally:
            store.close()


# --- support bundle ---------------------------------------------------------------------------------------------------


def bundle_of(folder: StateFolder, target: Path) -> dict[str, str]:
    from tests.gangwatch.test_support_bundle import parts_of

    result = CliRunner().invoke(cli, ["support-bundle", "--state", str(folder), str(target)])
    assert result.exit_code == 0, result.output
    return parts_of(target)


def test_a_support_bundle_has_readable_cycles_and_names_the_others(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    written(folder.path / "store.sqlite")
    put_unknown_event(folder.path / "store.sqlite", 2)
    parts = bundle_of(folder, tmp_path / "bundle.tar.gz")
    assert [json.loads(line)["cycle"] for line in parts["journal.jsonl"].splitlines()] == [1, 3]
    assert "cycle 2, entry 2 of 3" in parts["journal-unreadable.txt"]


def test_a_support_bundle_of_a_newer_store_says_so(tmp_path: Path, newer: pytest.MonkeyPatch) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    store = Store(folder.path / "store.sqlite")
    store.append(1, 1, [Tick()], [], [])
    store.append(2, 2, [NodeRepainted("n0", "a-secret-colour")], [], [])  # type: ignore[list-item]
    store.close()
    newer.undo()
    parts = bundle_of(folder, tmp_path / "bundle.tar.gz")
    assert [json.loads(line)["cycle"] for line in parts["journal.jsonl"].splitlines()] == [1]
    assert "9.0.0 or newer" in parts["journal-unreadable.txt"]
    assert "a-secret-colour" not in "".join(parts.values())


def test_every_kind_of_event_and_action_is_in_the_registry() -> None:
    assert set(KINDS) == {*get_args(Event), *get_args(Action)}, (
        "add each kind to KINDS in scheduler_feedback/core/formats.py with the version in pyproject.toml, then run "
        "`python -m tests.fixtures.record`"
    )
    assert version_key(FORMATS.newest) <= version_key(this_release())


def test_packed_snapshots_are_checked_too(path: Path) -> None:
    store = Store(path)
    for cycle in range(1, 8):
        store.append(cycle, cycle, [Tick()], [], [])
        store.snapshot(cycle, cycle, State(cycle=cycle), {})
    (cycle,) = store._connection.execute("SELECT min(cycle) FROM snapshots WHERE packed = 1").fetchone()
    other = zlib.compress(encode_state(State(cycle=99)))
    store._connection.execute("UPDATE snapshots SET state = ? WHERE cycle = ?", (other, cycle))
    with pytest.raises(StoreError, match=rf"snapshot of cycle {cycle}: its checksum is wrong"):
        journal_to(store, cycle=cycle + 1)
    store.close()


def test_events_are_encoded_as_before() -> None:
    assert encode_event(Tick()) == b"\x92\xa4Tick\x80"
