"""What the store gives back: the way to a state, the journal for a replay, actions with outcomes, entries.

Each call opens a read-only connection of its own, so that it may be made from any thread, and sees whole cycles only.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.codec import decode_action, decode_event, decode_state
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.state import State

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
    """One cycle: its number and time, what it was told, and what it decided."""

    cycle: int
    now_ns: int
    events: tuple[Event, ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state to start from (None: an empty one), the detectors' snapshots by name, and the cycles to replay on it."""

    state: State | None
    detectors: dict[str, bytes]
    journal: tuple[JournalRow, ...]


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
            rows = database.execute("SELECT cycle, state, detectors FROM snapshots ORDER BY cycle DESC").fetchall()
            for cycle, state, detectors in rows:
                try:
                    found = decode_state(state), _detector_map.decode(detectors)
                except (StoreError, msgspec.DecodeError) as error:
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
            if not self._forgotten_to(database):
                return Loaded(None, {}, tuple(self._rows(database, 0)))
            cycle, state, detectors = database.execute(
                "SELECT cycle, state, detectors FROM snapshots ORDER BY cycle LIMIT 1"
            ).fetchone()
            return Loaded(decode_state(state), _detector_map.decode(detectors), tuple(self._rows(database, cycle)))

    @staticmethod
    def _forgotten_to(database: sqlite3.Connection) -> int:
        row = database.execute("SELECT value FROM meta WHERE key = 'forgotten_to'").fetchone()
        return 0 if row is None else int(row[0])

    @staticmethod
    def _rows(database: sqlite3.Connection, after: int) -> Iterator[JournalRow]:
        decided: dict[int, list[Action]] = {}
        for cycle, body in database.execute("SELECT cycle, body FROM actions WHERE cycle > ? ORDER BY rowid", (after,)):
            decided.setdefault(cycle, []).append(decode_action(body))
        for cycle, now_ns, events in database.execute(
            "SELECT cycle, now_ns, events FROM journal WHERE cycle > ? ORDER BY cycle", (after,)
        ):
            told = tuple(decode_event(event) for event in _event_list.decode(events))
            yield JournalRow(cycle, now_ns, told, tuple(decided.get(cycle, ())))

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
                database.execute("BEGIN")  # one moment for all the queries of a call
                yield database

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Give what SQLite reports the file's name and a reason; a misuse of SQLite is our bug and stays as it is."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorname", type(error).__name__)
            advice = next((text for prefix, text in _ADVICE if code.startswith(prefix)), "")
            raise StoreError(f"{self.path}: could not {what}: {error} ({code}). {advice}".rstrip()) from error
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path}: could not {what}: {error}. {WHEN_DAMAGED}") from error
