"""The store: journal, actions with their outcomes, entries, and snapshots, in one SQLite file.

A cycle is one transaction: its inputs, its decisions and its entries become durable together, before any action is
carried out (write-ahead log, ``synchronous=FULL``: the commit returns after fsync). A decision that was not written was
not made. The outcome of an action is written later. An action without an outcome is carried out again at the next
start; backends accept this, because an action takes effect once per job and attempt.

Only the thread that owns the state writes. Each read opens its own connection, so any thread may read, and sees whole
cycles only.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.codec import encode_action, encode_event, encode_state
from scheduler_feedback.core.events import Event, Submitted
from scheduler_feedback.core.formats import FORMATS
from scheduler_feedback.core.state import State
from scheduler_feedback.journal import retention as store_keeping
from scheduler_feedback.journal.format_needs import raise_minimum, write_needs
from scheduler_feedback.journal.retention import Retention
from scheduler_feedback.journal.store_reading import WHEN_DAMAGED, Loaded, Reader, Running
from scheduler_feedback.journal.store_schema import (
    APPLICATION_ID,
    MIGRATIONS,
    SCHEMA_RELEASES,
    SCHEMA_VERSION,
    schema_of,
)
from scheduler_feedback.journal.stored_rows import JournalRow, NumberedEntry, RecordedAction

__all__ = [
    "Store",
    "Retention",
    "CycleRecord",
    "CycleRow",
    "Reader",
    "Loaded",
    "JournalRow",
    "NumberedEntry",
    "RecordedAction",
    "Running",
    "MIGRATIONS",
    "SCHEMA_VERSION",
]

SMALLEST_BYTES = 512
"""Smallest possible size of a journal file in bytes: one page of SQLite. A shorter file is refused as damaged, because
SQLite would treat it as empty and start a new journal in it."""

PROBE_BYTES = 64 * 1024
"""Size of the test write. A store that can write this much has room for several cycles, so the next cycle will not
fail."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class CycleRow:
    """A cycle that has run: its inputs and its decisions."""

    cycle: int
    now_ns: int
    events: Sequence[Event]
    actions: Sequence[Action]


class CycleRecord:
    """A cycle in the process of being written. Its inputs are written; ``decided`` adds its decisions, ``discard``
    drops the cycle.
    """

    __slots__ = ("_connection", "_cycle", "discarded", "entries")

    def __init__(self, connection: sqlite3.Connection, cycle: int) -> None:
        self._connection = connection
        self._cycle = cycle
        self.discarded = False
        self.entries: list[NumberedEntry] = []

    def discard(self) -> None:
        """Write nothing of this cycle, because it changed nothing."""
        self.discarded = True

    def decided(self, actions: Sequence[Action], entries: Sequence[Entry]) -> None:
        """Write the cycle's decisions."""
        _write_needs(self._connection, actions)
        self._connection.executemany(
            "INSERT INTO actions (action_id, cycle, job_id, body) VALUES (?, ?, ?, ?)",
            [(action.action_id, self._cycle, action.job_id, encode_action(action)) for action in actions],
        )
        for entry in entries:
            written = self._connection.execute(
                "INSERT INTO entries (cycle, wall_ns, subject, kind, text, applied, detail) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    self._cycle,
                    entry.wall_ns,
                    entry.subject,
                    entry.kind,
                    entry.text,
                    entry.applied,
                    msgspec.json.encode(entry.detail).decode(),
                ),
            ).lastrowid
            assert written is not None, "an INSERT gives a row id"
            self.entries.append(NumberedEntry(written, self._cycle, entry))


class Store(Reader):
    """The store of one controller. durable: whether a commit waits for the disk.

    Raises StoreError, naming the file and the remedy, if the file cannot be opened, is damaged, is not gangwatch's, or
    was written by a newer release.
    """

    def __init__(self, path: Path, retention: Retention | None = None, durable: bool = True) -> None:
        super().__init__(path)
        self.retention = retention if retention is not None else Retention()
        self._durable = durable
        with self._named("open it"):
            try:
                # SQLite creates its side files with the mode of the main file, so create that first, for its owner
                # only.
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                size_bytes = os.fstat(descriptor).st_size
                os.close(descriptor)
                if 0 < size_bytes < SMALLEST_BYTES:
                    raise StoreError(f"{path}: damaged: cut off after {size_bytes} bytes. {WHEN_DAMAGED}")
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror}") from error
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            with self._named("open it"):
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        database = self._connection
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            database.execute("PRAGMA journal_mode=WAL")
            self._migrate(0)
        else:
            version = schema_of(database, self.path)
            problems = "; ".join(row[0] for row in database.execute("PRAGMA quick_check(3)"))
            if problems != "ok":
                raise StoreError(f"{self.path}: damaged ({' '.join(problems.split())}). {WHEN_DAMAGED}")
            if version < SCHEMA_VERSION:
                self._migrate(version)
        database.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
        self.job_number = int(self.meta("job_number") or 0)

    def _migrate(self, version: int) -> None:
        """Upgrade the schema in one transaction: an interrupted start changes nothing."""
        database = self._connection
        with self._transaction():
            for script in MIGRATIONS[version:]:
                # executescript would commit first; single statements stay inside the transaction.
                for statement in filter(str.strip, script.split(";")):
                    database.execute(statement)
            database.execute(f"PRAGMA application_id={APPLICATION_ID}")
            database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            raise_minimum(database, SCHEMA_RELEASES[-1])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # --- writing: only on the thread that owns the state
    # ---------------------------------------------------------------

    @contextmanager
    def cycle(self, cycle: int, now_ns: int, events: Sequence[Event]) -> Iterator[CycleRecord]:
        """Open the transaction of one cycle: write the inputs first, and commit at the end of the context.

        If the context raises an exception, nothing is written. Raises StoreError if the store fails.
        """
        with self._named(f"write cycle {cycle}"), self._transaction() as database:
            database.execute(
                "INSERT INTO journal (cycle, now_ns, events) VALUES (?, ?, ?)",
                (cycle, now_ns, _encode([encode_event(event) for event in events])),
            )
            _write_needs(database, events)
            numbers = [_job_number(event.job_id) for event in events if isinstance(event, Submitted)]
            highest = max(numbers, default=0)
            if highest > self.job_number:
                self._set_meta("job_number", str(highest))
            record = CycleRecord(database, cycle)
            yield record
            if record.discarded:
                database.execute("ROLLBACK")
                return
        self.job_number = max(self.job_number, highest)

    def append(
        self, cycle: int, now_ns: int, events: Sequence[Event], actions: Sequence[Action], entries: Sequence[Entry]
    ) -> list[NumberedEntry]:
        """Write a cycle with its decisions in one transaction. Raises StoreError if nothing could be written."""
        with self.cycle(cycle, now_ns, events) as record:
            record.decided(actions, entries)
        return record.entries

    def append_all(self, rows: Sequence[CycleRow]) -> None:
        """Write many cycles, without entries, in one transaction. Raises StoreError if nothing could be written."""
        with self._named("write cycles"), self._transaction() as database:
            _write_needs(database, [value for row in rows for value in (*row.events, *row.actions)])
            database.executemany(
                "INSERT INTO journal (cycle, now_ns, events) VALUES (?, ?, ?)",
                [(row.cycle, row.now_ns, _encode([encode_event(event) for event in row.events])) for row in rows],
            )
            database.executemany(
                "INSERT INTO actions (action_id, cycle, job_id, body) VALUES (?, ?, ?, ?)",
                [
                    (action.action_id, row.cycle, action.job_id, encode_action(action))
                    for row in rows
                    for action in row.actions
                ],
            )

    def outcomes(self, outcomes: Iterable[tuple[str, str]], now_ns: int) -> None:
        """Record outcomes of actions: (action id, text)."""
        with self._named("write outcomes"), self._transaction() as database:
            database.executemany(
                "UPDATE actions SET outcome = ?, outcome_ns = ? WHERE action_id = ?",
                [(text, now_ns, action_id) for action_id, text in outcomes],
            )

    def outcome(self, action_id: str, text: str, now_ns: int) -> None:
        """Record the outcome of one action."""
        self.outcomes([(action_id, text)], now_ns)

    def probe(self) -> None:
        """Write PROBE_BYTES durably and delete them, to test whether cycles can be written. Raises StoreError."""
        with self._named("write it"):
            with self._transaction() as database:
                database.execute("INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(?))", (PROBE_BYTES,))
            with self._transaction() as database:
                database.execute("DELETE FROM meta WHERE key = 'probe'")

    def snapshot(
        self, cycle: int, now_ns: int, state: State, detectors: Mapping[str, bytes], living: Collection[str] = ()
    ) -> None:
        """Write the state after `cycle` with the detectors' snapshots, and delete data past its retention.

        living: subjects whose entries and actions are kept at any age (jobs that have not ended).
        """
        with self._named(f"write the snapshot of cycle {cycle}"), self._transaction() as database:
            _write_needs(database, [state])
            encoded = encode_state(state)
            database.execute(
                "INSERT OR REPLACE INTO snapshots (cycle, now_ns, state, detectors) VALUES (?, ?, ?, ?)",
                (cycle, now_ns, encoded, _encode(dict(detectors))),
            )
            store_keeping.clean_up(self._connection, self.retention, now_ns, living)
            store_keeping.write_sum(database, cycle, encoded)

    def _set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._connection
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            if database.in_transaction:
                database.execute("COMMIT")
        finally:
            # On a full disk SQLite has already rolled back (https://sqlite.org/lang_transaction.html, 3.1).
            if database.in_transaction:
                database.execute("ROLLBACK")


def _write_needs(database: sqlite3.Connection, values: Iterable[object]) -> None:
    """Record which release is needed to read these values, if the first release cannot read them. Call it in the
    transaction that adds the values."""
    if used := FORMATS.used_by(values):
        write_needs(database, used)


def _job_number(job_id: str) -> int:
    """Return the number in a job id of gangwatch ('j-000012' is 12); 0 for any other id."""
    head, _, number = job_id.partition("-")
    return int(number) if head == "j" and number.isdecimal() else 0
