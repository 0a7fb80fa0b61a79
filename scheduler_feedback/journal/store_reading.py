"""Reading of the store: the state to restart from, the journal for a replay, actions with outcomes, entries.

Each call opens its own read-only connection, so it may be made from any thread, and sees whole cycles only.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.codec import decode_state
from scheduler_feedback.core.state import State
from scheduler_feedback.journal.format_needs import UNCHANGED
from scheduler_feedback.journal.retention import read_sums
from scheduler_feedback.journal.store_schema import schema_of
from scheduler_feedback.journal.stored_rows import (
    UNREADABLE,
    EntryError,
    JournalRow,
    NumberedEntry,
    RecordedAction,
    action_of,
    block_of,
    entry_of,
    events_of,
)

_log = logging.getLogger(__name__)
_detector_map = msgspec.msgpack.Decoder(dict[str, bytes])
WHEN_DAMAGED = (
    f"{UNCHANGED}. Restore a backup made by `gangwatch backup`: jobs that began after it are ended. Only if there is "
    "none, move it aside to start with an empty journal: all running jobs are then unknown and are ended"
)
WHEN_ENTRY_DAMAGED = (
    f"The journal is damaged there, or a build between two releases wrote it. {UNCHANGED}. Start the build that wrote "
    "it, or restore a backup made by `gangwatch backup`: jobs that began after it are ended"
)
"""Remedy for a damaged entry. It does not suggest an empty journal: all other entries can be read, and running jobs are
worth more than one entry."""

_ADVICE = (
    ("SQLITE_FULL", "Free disk space; nothing of this was written"),
    ("SQLITE_READONLY", "Make the file and its folder writable for this user"),
    ("SQLITE_CANTOPEN", "Make the file and its folder writable for this user"),
    ("SQLITE_CORRUPT", WHEN_DAMAGED),
    ("SQLITE_NOTADB", WHEN_DAMAGED),
    ("SQLITE_IOERR", "Its disk fails: check the kernel log; nothing of this was written"),
)
"""Advice to the user by the name of SQLite's error (https://sqlite.org/rescode.html)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Data for a restart or replay: the initial state (None: an empty one), the detectors' snapshots by name, and
    cycles.
    """

    state: State | None
    detectors: dict[str, bytes]
    journal: tuple[JournalRow, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """Data for a replay: the initial state (None: an empty one), and the cycles, which can be read only once."""

    state: State | None
    journal: Iterator[JournalRow]


@dataclass(frozen=True, slots=True)
class Extent:
    """Range of the cycles that can be replayed: those after `after`, up to `last`. complete: whether the range starts
    at the first cycle ever.
    """

    complete: bool
    after: int
    last: int


_LARGEST = 2**63 - 1  # of an SQLite integer


def _has_blocks(database: sqlite3.Connection) -> bool:
    """Return whether the file has compressed blocks (schema 2 or newer). An older file may not be migrated yet."""
    return int(database.execute("PRAGMA user_version").fetchone()[0]) >= 2


def _cycles(database: sqlite3.Connection, after: int, last: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (cycle, time, events) of the cycles after `after` up to `last`, from blocks and rows."""
    if _has_blocks(database):
        for first_cycle, last_cycle, body in database.execute(
            "SELECT first_cycle, last_cycle, body FROM blocks WHERE last_cycle > ? AND first_cycle <= ? "
            "ORDER BY last_cycle",
            (after, last),
        ):
            for cycle, now_ns, events in block_of(first_cycle, last_cycle, body):
                if after < cycle <= last:
                    yield cycle, now_ns, events
    yield from database.execute(
        "SELECT cycle, now_ns, events FROM journal WHERE cycle > ? AND cycle <= ? ORDER BY cycle", (after, last)
    )


_ENTRIES = "SELECT id, cycle, wall_ns, subject, kind, text, applied, detail FROM entries"


class Reader:
    """A reader of the store at a path. Raises StoreError, naming the file and the remedy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def meta(self, key: str) -> str | None:
        """Return the value of a key in the table of metadata."""
        with self._reading("read it") as database:
            row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def load(self) -> Loaded:
        """Return the data for a restart: the newest readable snapshot, and the cycles after it."""
        with self._reading("read its snapshots and the journal after them") as database:
            cycles = database.execute("SELECT cycle FROM snapshots ORDER BY cycle DESC").fetchall()
            for (cycle,) in cycles:
                try:
                    state = self._state_of(database, cycle)
                except (StoreError, zlib.error) as error:
                    _log.error(
                        "%s: snapshot of cycle %d skipped: %s. The one before it and the journal give the same state",
                        self.path,
                        cycle,
                        error,
                    )
                    continue
                return Loaded(state, self._newest_detectors(database), tuple(self._rows(database, cycle)))
            if forgotten_to := self._forgotten_to(database):
                raise StoreError(
                    f"{self.path}: no snapshot can be read, and the journal begins after cycle {forgotten_to}. "
                    f"{WHEN_DAMAGED}"
                )
            return Loaded(None, {}, tuple(self._rows(database, 0)))

    def journal_all(self) -> Loaded:
        """Return the data for the longest possible replay: from the first cycle, or from the oldest snapshot."""
        with self._reading("read the journal") as database:
            cycle = self._start(database, "", ())
            state = None if cycle is None else self._state_of(database, cycle)
            return Loaded(state, {}, tuple(self._rows(database, cycle or 0)))

    @contextmanager
    def replaying(
        self, now_ns: int | None = None, cycle: int | None = None, job: str | None = None
    ) -> Iterator[Running]:
        """Open a replay of the journal: up to a time or a cycle, of the cycles of one job, or of all cycles. Cycles are
        read one by one while the context is active.

        job: replay from a snapshot before the job's submission to the job's last entry. If the journal has no entry of
        the job, all cycles are replayed. The context reads the file as it was at the start. Until the context ends,
        other threads may write, but the write-ahead log grows.
        """
        with self._reading("read the journal") as database:
            story = None
            if now_ns is not None or cycle is not None:
                start, last = self._way_to(database, now_ns, cycle)
            elif job is not None and (story := self._story_of(database, job)) is not None:
                start, last = self._start(database, "WHERE cycle < ?", (story[0],), newest=True), story[1]
            else:
                start, last = self._start(database, "", ()), None
            state = None if start is None else self._state_of(database, start)
            with closing(self._rows(database, start or 0, last)) as rows:
                yield Running(state, rows if now_ns is None else takewhile(lambda row: row.now_ns <= now_ns, rows))

    @staticmethod
    def _story_of(database: sqlite3.Connection, job: str) -> tuple[int, int] | None:
        """Return the first and last cycle with an entry about the job. None if there is none, as in a simulation."""
        first, last = database.execute(
            "SELECT min(cycle), max(cycle) FROM entries WHERE subject = ?", (job,)
        ).fetchone()
        return None if first is None else (int(first), int(last))

    def journal_extent(self) -> Extent:
        """Return the range of cycles that ``journal_all`` reads, so that a caller can read it in parts."""
        with self._reading("read the journal") as database:
            start = self._start(database, "", ())
            last = int(database.execute("SELECT coalesce(max(cycle), 0) FROM journal").fetchone()[0])
            if _has_blocks(database):
                last = max(last, int(database.execute("SELECT coalesce(max(last_cycle), 0) FROM blocks").fetchone()[0]))
        return Extent(not start, start or 0, last)

    def journal_count(self, after: int, last: int, most_blocks: int) -> tuple[int, int]:
        """Count the cycles after `after` up to `last`, in at most `most_blocks` blocks. Return the count, and the last
        counted cycle."""
        with self._reading("count the journal's cycles") as database:
            found, until = 0, last
            if _has_blocks(database):
                blocks = database.execute(
                    "SELECT first_cycle, last_cycle, body FROM blocks WHERE last_cycle > ? AND first_cycle <= ? "
                    "ORDER BY last_cycle LIMIT ?",
                    (after, last, most_blocks),
                ).fetchall()
                for first_cycle, last_cycle, body in blocks:
                    found += sum(after < cycle <= last for cycle, _, _ in block_of(first_cycle, last_cycle, body))
                if len(blocks) == most_blocks:
                    until = min(int(blocks[-1][1]), last)
            count = "SELECT count(*) FROM journal WHERE cycle > ? AND cycle <= ?"
            return found + int(database.execute(count, (after, until)).fetchone()[0]), until

    def journal_part(self, after: int, last: int, most: int) -> list[JournalRow]:
        """Return cycles after `after` up to `last`, oldest first, at most `most`."""
        with self._reading("read the journal") as database, closing(self._rows(database, after, last)) as rows:
            return list(islice(rows, most))

    def parts(self) -> list[tuple[int | None, int | None]]:
        """Cut the whole journal at its snapshots; return (cycle of the first snapshot, last cycle) of each part.

        None as the first cycle means the start of the journal, None as the last cycle means the end of the journal.
        """
        with self._reading("read the journal") as database:
            first = self._start(database, "", ())
            later = database.execute("SELECT cycle FROM snapshots WHERE cycle > ? ORDER BY cycle", (first or 0,))
            return list(pairwise([first, *(cycle for (cycle,) in later), None]))

    @contextmanager
    def replaying_part(self, start: int | None, last: int | None) -> Iterator[Running]:
        """Open ``replaying`` for one of the parts that ``parts`` returns."""
        with self._reading("read the journal") as database:
            state = None if start is None else self._state_of(database, start)
            with closing(self._rows(database, start or 0, last)) as rows:
                yield Running(state, rows)

    def _way_to(
        self, database: sqlite3.Connection, now_ns: int | None, cycle: int | None
    ) -> tuple[int | None, int | None]:
        """Return the cycles for a replay up to a time or cycle: (cycle of the first snapshot, last cycle).

        None as the first means the start of the journal, None as the last means the end of the journal.
        """
        if cycle is not None:
            return self._start(database, "WHERE cycle < ?", (cycle,), newest=True), cycle
        return self._start(database, "WHERE now_ns <= ?", (now_ns,), newest=True), None

    def journal_end(self, cycles: int) -> tuple[tuple[JournalRow, ...], tuple[str, ...]]:
        """Return the newest readable cycles, at most `cycles`, and a sentence about each unreadable one.

        This is for a report about the journal, even one that requires a newer release.
        """
        found: list[JournalRow] = []
        complaints: list[str] = []
        with self._reading("read the journal", any_release=True) as database:
            newest = database.execute("SELECT max(cycle) FROM journal").fetchone()[0] or 0
            for (cycle,) in database.execute(
                "SELECT cycle FROM journal WHERE cycle > ? ORDER BY cycle", (newest - cycles,)
            ).fetchall():
                try:
                    (row,) = self._rows(database, cycle - 1, cycle)
                    _ = row.actions
                    found.append(row)
                except EntryError as error:
                    complaints.append(str(error))
        return tuple(found), tuple(complaints)

    def _start(
        self, database: sqlite3.Connection, where: str, values: tuple[object, ...], newest: bool = False
    ) -> int | None:
        """Return the cycle of the snapshot from which to replay; None to replay from the start of the journal.

        Raises StoreError if the requested cycles were deleted.
        """
        forgotten_to = self._forgotten_to(database)
        if not newest and not forgotten_to:  # a rebuilt state is the snapshot of cycle 0, before the first cycle
            return 0 if database.execute("SELECT 1 FROM snapshots WHERE cycle = 0").fetchone() else None
        order = "DESC" if newest else "ASC"
        row = database.execute(f"SELECT cycle FROM snapshots {where} ORDER BY cycle {order} LIMIT 1", values).fetchone()
        if row is not None and row[0] >= forgotten_to:
            return int(row[0])
        if forgotten_to:
            raise StoreError(
                f"{self.path}: the journal begins after cycle {forgotten_to}: earlier cycles were deleted (retention)"
            )
        return None

    @staticmethod
    def _state_of(database: sqlite3.Connection, cycle: int) -> State:
        """Return the state of the snapshot of this cycle. Raises StoreError or zlib.error if it is unreadable."""
        packed = "packed" if _has_blocks(database) else "0"
        state, is_packed = database.execute(
            f"SELECT state, {packed} FROM snapshots WHERE cycle = ?", (cycle,)
        ).fetchone()
        try:
            encoded = zlib.decompress(state) if is_packed else state
            if (sum_ := read_sums(database).get(cycle)) is not None and zlib.crc32(encoded) != sum_:
                raise StoreError("its checksum is wrong (CRC-32)")
            return decode_state(encoded)
        except (StoreError, *UNREADABLE) as error:
            raise StoreError(f"snapshot of cycle {cycle}: {error}") from error

    def _newest_detectors(self, database: sqlite3.Connection) -> dict[str, bytes]:
        """Return the newest readable snapshots of the detectors, which may be older than the state."""
        packed = "packed = 0" if _has_blocks(database) else "1"
        for cycle, detectors in database.execute(
            f"SELECT cycle, detectors FROM snapshots WHERE {packed} ORDER BY cycle DESC"
        ):
            try:
                return _detector_map.decode(detectors)
            except UNREADABLE as error:
                _log.error("%s: detectors' snapshots of cycle %d skipped: %s", self.path, cycle, error)
        return {}

    @staticmethod
    def _forgotten_to(database: sqlite3.Connection) -> int:
        row = database.execute("SELECT value FROM meta WHERE key = 'forgotten_to'").fetchone()
        return 0 if row is None else int(row[0])

    @staticmethod
    def _rows(database: sqlite3.Connection, after: int, last: int | None = None) -> Generator[JournalRow, None, None]:
        """Yield the cycles after `after`, up to `last`: first from the compressed blocks, then from the table
        `journal`.
        """
        last = _LARGEST if last is None else last
        actions = database.execute(
            "SELECT cycle, body FROM actions WHERE cycle > ? AND cycle <= ? ORDER BY cycle, rowid", (after, last)
        )
        action = actions.fetchone()
        for cycle, now_ns, events in _cycles(database, after, last):
            if not isinstance(now_ns, int):
                raise EntryError(f"cycle {cycle}: its time is {now_ns!r}")
            inputs = events_of(cycle, events)
            decided: list[bytes] = []
            while action is not None and action[0] <= cycle:
                if action[0] == cycle:
                    decided.append(action[1])
                action = actions.fetchone()
            yield JournalRow(cycle, now_ns, inputs, tuple(decided))

    def open_actions(self) -> list[Action]:
        """Return the actions without an outcome, in the order of their decision."""
        with self._reading("read open actions") as database:
            rows = database.execute(
                "SELECT action_id, body FROM actions WHERE outcome IS NULL ORDER BY cycle, rowid"
            ).fetchall()
            return [action_of(action_id, body) for action_id, body in rows]

    def actions_of(self, job_id: str) -> list[RecordedAction]:
        """Return every stored action of the job, in order. now_ns is 0 if the cycle's row was deleted."""
        with self._reading(f"read the actions of {job_id}") as database:
            rows = database.execute(
                "SELECT actions.cycle, coalesce(now_ns, 0), action_id, body, outcome FROM actions "
                "LEFT JOIN journal ON journal.cycle = actions.cycle WHERE job_id = ? ORDER BY actions.rowid",
                (job_id,),
            ).fetchall()
            return [
                RecordedAction(cycle, now_ns, action_of(action_id, body), outcome)
                for cycle, now_ns, action_id, body, outcome in rows
            ]

    def entries_of(self, subject: str, after: int = 0, most: int = _LARGEST) -> list[NumberedEntry]:
        """Return at most `most` entries of the subject (a job id, or 'node:NAME'), oldest first, with numbers above
        `after`.
        """
        return self.entries_of_all([(subject, 0, _LARGEST)], after, most)

    def entries_of_all(
        self, wanted: Iterable[tuple[str, int, int]], after: int = 0, most: int = _LARGEST, newest: bool = False
    ) -> list[NumberedEntry]:
        """Return at most `most` entries of several subjects, with numbers above `after`.

        wanted: (subject, first cycle, last cycle). newest: return the newest entries, newest first; otherwise the
        oldest ones, oldest first.
        """
        where = "WHERE subject = ? AND cycle >= ? AND cycle <= ? AND id > ? ORDER BY id " + ("DESC " if newest else "")
        found: dict[int, tuple[Any, ...]] = {}
        with self._reading("read entries") as database:
            for subject, first, last in wanted:
                values = (subject, first, last, after, most)
                for row in database.execute(f"{_ENTRIES} {where} LIMIT ?", values):
                    found[row[0]] = row
        return [entry_of(found[entry_id]) for entry_id in sorted(found, reverse=newest)[:most]]

    def end_of(self, job_id: str) -> int | None:
        """Return the cycle in which the job ended, according to its story; None if it has not ended."""
        with self._reading(f"read the story of {job_id}") as database:
            row = database.execute(
                "SELECT cycle FROM entries WHERE subject = ? AND kind = 'ended' ORDER BY id DESC LIMIT 1", (job_id,)
            ).fetchone()
        return None if row is None else int(row[0])

    def entries_after(self, entry_id: int, limit: int = 1000) -> list[NumberedEntry]:
        """Return the entries of all subjects after the entry with this number, oldest first."""
        return self._entries("WHERE id > ? ORDER BY id LIMIT ?", (entry_id, limit))

    def newest_entry_id(self) -> int:
        """Return the number of the newest entry; 0 if there is none."""
        with self._reading("read entries") as database:
            return int(database.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0])

    def _entries(self, where: str, values: tuple[object, ...]) -> list[NumberedEntry]:
        with self._reading("read entries") as database:
            return [entry_of(row) for row in database.execute(f"{_ENTRIES} {where}", values).fetchall()]

    @contextmanager
    def _reading(self, what: str, any_release: bool = False) -> Iterator[sqlite3.Connection]:
        """Open a connection that reads a consistent snapshot of the file. any_release: also files of newer releases."""
        with self._named(what):
            database = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            with closing(database):
                schema_of(database, self.path, any_release)
                database.execute("BEGIN")  # all queries of a call see the same moment
                yield database

    def explaining(self, what: str) -> AbstractContextManager[None]:
        """Return a context that adds the file's name and a remedy to errors about rows that were read earlier."""
        return self._named(what)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Add the file's name and a remedy to errors of SQLite. Errors that show a bug in gangwatch are unchanged."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except StoreError as error:  # from the codec, which does not know the file
            if str(error).startswith(f"{self.path}: "):
                raise
            advice = WHEN_ENTRY_DAMAGED if isinstance(error, EntryError) else WHEN_DAMAGED
            raise StoreError(f"{self.path}: could not {what}: {error}. {advice}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorname", type(error).__name__)
            advice = next((text for prefix, text in _ADVICE if code.startswith(prefix)), "")
            raise StoreError(f"{self.path}: could not {what}: {error} ({code}). {advice}".rstrip()) from error
        except (msgspec.DecodeError, zlib.error) as error:
            raise StoreError(f"{self.path}: could not {what}: {error}. {WHEN_DAMAGED}") from error
