"""What the store gives back: the way to a state, the journal for a replay, actions with outcomes, entries.

Each call opens a read-only connection of its own, so that it may be made from any thread, and sees whole cycles only.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.codec import decode_action, decode_event, decode_state
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.state import State
from scheduler_feedback.store_schema import schema_of

_log = logging.getLogger(__name__)
_event_list = msgspec.msgpack.Decoder(list[bytes])
_detector_map = msgspec.msgpack.Decoder(dict[str, bytes])
_detail = msgspec.json.Decoder(tuple[tuple[str, str], ...])

WHEN_DAMAGED = (
    "Put back a copy of it, or move it aside to begin with an empty journal: that one knows no job, and ends what runs"
)
_ADVICE = (
    ("SQLITE_FULL", "Make room on its disk; nothing of this was written"),
    ("SQLITE_READONLY", "Make the file and its folder writable for this user"),
    ("SQLITE_CANTOPEN", "Make the file and its folder writable for this user"),
    ("SQLITE_CORRUPT", WHEN_DAMAGED),
    ("SQLITE_NOTADB", WHEN_DAMAGED),
    ("SQLITE_IOERR", "The disk under it fails; nothing of this was written"),
)
"""What the operator can do, by SQLite's name of the error (https://sqlite.org/rescode.html)."""


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One cycle: its number and time, what it was told, and what it decided, as it is written.

    Of most cycles nobody asks more than whether the same bytes come out again, which is told sooner than they are read.
    """

    cycle: int
    now_ns: int
    events: tuple[Event, ...]
    decided: tuple[bytes, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """What it decided. Raises StoreError where the bytes are no actions."""
        return tuple(map(decode_action, self.decided))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state to start from (None: an empty one), the detectors' snapshots by name, and the cycles to replay on it."""

    state: State | None
    detectors: dict[str, bytes]
    journal: tuple[JournalRow, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """A state to start from (None: an empty one), and the cycles to replay on it, read as they are asked for, once."""

    state: State | None
    journal: Iterator[JournalRow]


@dataclass(frozen=True, slots=True)
class NumberedEntry:
    """An entry as it stands in the store. entry_id: rises with each entry ever written."""

    entry_id: int
    cycle: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action with the cycle's time at which it was decided, and what came of it (None: not known yet)."""

    cycle: int
    now_ns: int
    action: Action
    outcome: str | None


_LARGEST = 2**63 - 1  # of an SQLite integer
_block = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]])


def _has_blocks(database: sqlite3.Connection) -> bool:
    """Whether the file is of schema 2 or newer: a file of an older build may be read before it is migrated."""
    return int(database.execute("PRAGMA user_version").fetchone()[0]) >= 2


def _cycles(database: sqlite3.Connection, after: int, last: int) -> Iterator[tuple[int, int, bytes]]:
    """(cycle, time, events) of the cycles after `after` up to `last`, wherever they are."""
    if _has_blocks(database):
        for (body,) in database.execute(
            "SELECT body FROM blocks WHERE last_cycle > ? AND first_cycle <= ? ORDER BY last_cycle", (after, last)
        ):
            for cycle, now_ns, events in _block.decode(zlib.decompress(body)):
                if after < cycle <= last:
                    yield cycle, now_ns, events
    yield from database.execute(
        "SELECT cycle, now_ns, events FROM journal WHERE cycle > ? AND cycle <= ? ORDER BY cycle", (after, last)
    )


class Reader:
    """Reads the store at a path. Raises StoreError, naming the file and what to do, where it can't."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def meta(self, key: str) -> str | None:
        """The value kept under a name."""
        with self._reading("read it") as database:
            row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def load(self) -> Loaded:
        """What a restart begins with: the newest snapshot that can be read, and the cycles after it."""
        with self._reading("read the newest snapshot") as database:
            cycles = database.execute("SELECT cycle FROM snapshots ORDER BY cycle DESC").fetchall()
            for (cycle,) in cycles:
                try:
                    found = self._snapshot_of(database, cycle)
                except (StoreError, msgspec.DecodeError, zlib.error) as error:
                    _log.error("%s: snapshot of cycle %d passed over: %s", self.path, cycle, error)
                    continue
                return Loaded(*found, tuple(self._rows(database, cycle)))
            if forgotten_to := self._forgotten_to(database):
                raise StoreError(
                    f"{self.path}: no snapshot can be read, and the journal begins after cycle {forgotten_to}. "
                    f"{WHEN_DAMAGED}"
                )
            return Loaded(None, {}, tuple(self._rows(database, 0)))

    def journal_all(self) -> Loaded:
        """The longest replay that the store still gives: from the first cycle, or from the oldest snapshot."""
        with self._reading("read the journal") as database:
            return self._from(database, self._start(database, "", ()))

    def journal_to(self, now_ns: int | None = None, cycle: int | None = None) -> Loaded:
        """The way to an instant or a cycle of the past: the newest snapshot before it, and the cycles up to it."""
        with self._reading("read the journal") as database:
            loaded = self._from(database, *self._way_to(database, now_ns, cycle))
        if now_ns is None:
            return loaded
        return Loaded(loaded.state, loaded.detectors, tuple(row for row in loaded.journal if row.now_ns <= now_ns))

    @contextmanager
    def replaying(
        self, now_ns: int | None = None, cycle: int | None = None, job: str | None = None
    ) -> Iterator[Running]:
        """``journal_to`` (``journal_all`` where nothing is given) for journals of any length, as far as one is needed.

        job: from before its submission to the last that is recorded of it, where the journal has its story.
        Inside of the block the file is read as of one moment, so it may go on growing; what grows is its write-ahead
        log, until the block is left.
        """
        with self._reading("read the journal") as database:
            story = None
            if now_ns is not None or cycle is not None:
                start, last = self._way_to(database, now_ns, cycle)
            elif job is not None and (story := self._story_of(database, job)) is not None:
                start, last = self._start(database, "WHERE cycle < ?", (story[0],), newest=True), story[1]
            else:
                start, last = self._start(database, "", ()), None
            state = None if start is None else self._snapshot_of(database, start)[0]
            with closing(self._rows(database, start or 0, last)) as rows:
                yield Running(state, rows if now_ns is None else takewhile(lambda row: row.now_ns <= now_ns, rows))

    @staticmethod
    def _story_of(database: sqlite3.Connection, job: str) -> tuple[int, int] | None:
        """The first cycle and the last of which an entry about the job is kept; a simulation's journal has none."""
        first, last = database.execute(
            "SELECT min(cycle), max(cycle) FROM entries WHERE subject = ?", (job,)
        ).fetchone()
        return None if first is None else (int(first), int(last))

    def parts(self) -> list[tuple[int | None, int | None]]:
        """The whole journal cut at its snapshots: (cycle of the snapshot to begin with, last cycle) of each part.

        None: from the beginning, to the end.
        """
        with self._reading("read the journal") as database:
            first = self._start(database, "", ())
            later = database.execute("SELECT cycle FROM snapshots WHERE cycle > ? ORDER BY cycle", (first or 0,))
            return list(pairwise([first, *(cycle for (cycle,) in later), None]))

    @contextmanager
    def replaying_part(self, start: int | None, last: int | None) -> Iterator[Running]:
        """``replaying``, of one of ``parts``."""
        with self._reading("read the journal") as database:
            state = None if start is None else self._snapshot_of(database, start)[0]
            with closing(self._rows(database, start or 0, last)) as rows:
                yield Running(state, rows)

    def _way_to(
        self, database: sqlite3.Connection, now_ns: int | None, cycle: int | None
    ) -> tuple[int | None, int | None]:
        """(cycle of the snapshot to begin with, last cycle); None: from the beginning, to the end."""
        if cycle is not None:
            return self._start(database, "WHERE cycle < ?", (cycle,), newest=True), cycle
        return self._start(database, "WHERE now_ns <= ?", (now_ns,), newest=True), None

    def journal_end(self, cycles: int) -> tuple[JournalRow, ...]:
        """The newest cycles, at most so many of them."""
        with self._reading("read the journal") as database:
            newest = database.execute("SELECT max(cycle) FROM journal").fetchone()[0] or 0
            return tuple(self._rows(database, max(newest - cycles, 0)))

    def _start(
        self, database: sqlite3.Connection, where: str, values: tuple[object, ...], newest: bool = False
    ) -> int | None:
        """Cycle of the snapshot to begin with; None: the journal begins at the beginning.

        Raises StoreError where what is asked for has been forgotten.
        """
        forgotten_to = self._forgotten_to(database)
        if not newest and not forgotten_to:
            return None
        order = "DESC" if newest else "ASC"
        row = database.execute(f"SELECT cycle FROM snapshots {where} ORDER BY cycle {order} LIMIT 1", values).fetchone()
        if row is not None and row[0] >= forgotten_to:
            return int(row[0])
        if forgotten_to:
            raise StoreError(
                f"{self.path}: the journal begins after cycle {forgotten_to}: what was before is forgotten"
            )
        return None

    def _from(self, database: sqlite3.Connection, cycle: int | None, last: int | None = None) -> Loaded:
        if cycle is None:
            return Loaded(None, {}, tuple(self._rows(database, 0, last)))
        return Loaded(*self._snapshot_of(database, cycle), tuple(self._rows(database, cycle, last)))

    @staticmethod
    def _snapshot_of(database: sqlite3.Connection, cycle: int) -> tuple[State, dict[str, bytes]]:
        packed = "packed" if _has_blocks(database) else "0"
        state, detectors, is_packed = database.execute(
            f"SELECT state, detectors, {packed} FROM snapshots WHERE cycle = ?", (cycle,)
        ).fetchone()
        return decode_state(zlib.decompress(state) if is_packed else state), _detector_map.decode(detectors)

    @staticmethod
    def _forgotten_to(database: sqlite3.Connection) -> int:
        row = database.execute("SELECT value FROM meta WHERE key = 'forgotten_to'").fetchone()
        return 0 if row is None else int(row[0])

    @staticmethod
    def _rows(database: sqlite3.Connection, after: int, last: int | None = None) -> Generator[JournalRow, None, None]:
        """The cycles after `after`, up to `last`, from the blocks and then from the journal."""
        last = _LARGEST if last is None else last
        actions = database.execute(
            "SELECT cycle, body FROM actions WHERE cycle > ? AND cycle <= ? ORDER BY cycle, rowid", (after, last)
        )
        action = actions.fetchone()
        for cycle, now_ns, events in _cycles(database, after, last):
            told = tuple([decode_event(event) for event in _event_list.decode(events)])
            decided: list[bytes] = []
            while action is not None and action[0] <= cycle:
                if action[0] == cycle:
                    decided.append(action[1])
                action = actions.fetchone()
            yield JournalRow(cycle, now_ns, told, tuple(decided))

    def open_actions(self) -> list[Action]:
        """Actions of which it is not known what came of them, in the order in which they were decided."""
        with self._reading("read open actions") as database:
            rows = database.execute("SELECT body FROM actions WHERE outcome IS NULL ORDER BY cycle, rowid").fetchall()
        return [decode_action(body) for (body,) in rows]

    def actions_of(self, job_id: str) -> list[RecordedAction]:
        """Every action kept for the job, in order. now_ns is 0 where the cycle's row has been forgotten."""
        with self._reading(f"read the actions of {job_id}") as database:
            rows = database.execute(
                "SELECT actions.cycle, coalesce(now_ns, 0), body, outcome FROM actions "
                "LEFT JOIN journal ON journal.cycle = actions.cycle WHERE job_id = ? ORDER BY actions.rowid",
                (job_id,),
            ).fetchall()
        return [RecordedAction(cycle, now_ns, decode_action(body), outcome) for cycle, now_ns, body, outcome in rows]

    def entries_of(self, subject: str) -> list[NumberedEntry]:
        """Every entry kept of the subject (a job id, or 'node:NAME'), in the order in which they were written."""
        return self._entries("WHERE subject = ? ORDER BY id", (subject,))

    def entries_after(self, entry_id: int, limit: int = 1000) -> list[NumberedEntry]:
        """Entries of every subject after this one, oldest first."""
        return self._entries("WHERE id > ? ORDER BY id LIMIT ?", (entry_id, limit))

    def newest_entry_id(self) -> int:
        """Number of the newest entry ever written, 0 where there is none."""
        with self._reading("read entries") as database:
            return int(database.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0])

    def _entries(self, where: str, values: tuple[object, ...]) -> list[NumberedEntry]:
        with self._reading("read entries") as database:
            rows = database.execute(
                f"SELECT id, cycle, wall_ns, subject, kind, text, applied, detail FROM entries {where}", values
            ).fetchall()
        return [
            NumberedEntry(entry_id, cycle, Entry(wall_ns, subject, kind, text, bool(applied), _detail.decode(detail)))
            for entry_id, cycle, wall_ns, subject, kind, text, applied, detail in rows
        ]

    @contextmanager
    def _reading(self, what: str) -> Iterator[sqlite3.Connection]:
        with self._named(what):
            database = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            with closing(database):
                schema_of(database, self.path)
                database.execute("BEGIN")  # one moment for all the queries of a call
                yield database

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Give what SQLite reports the file's name and a reason; a misuse of SQLite is our bug and stays as it is."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except StoreError as error:  # of the codec, which knows no file
            if str(error).startswith(f"{self.path}: "):
                raise
            raise StoreError(f"{self.path}: could not {what}: {error}. {WHEN_DAMAGED}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorname", type(error).__name__)
            advice = next((text for prefix, text in _ADVICE if code.startswith(prefix)), "")
            raise StoreError(f"{self.path}: could not {what}: {error} ({code}). {advice}".rstrip()) from error
        except (msgspec.DecodeError, zlib.error) as error:
            raise StoreError(f"{self.path}: could not {what}: {error}. {WHEN_DAMAGED}") from error
