"""Schema of the store, its migrations, and the check that a file is a store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agent.schema.errors import NewerStoreError, StoreError
from scheduler_feedback.journal.format_needs import check_reader, minimum_reader, newer_text

APPLICATION_ID = 0x47574A4E  # "GWJN"; https://sqlite.org/pragma.html#pragma_application_id

_SCHEMA_1 = """
CREATE TABLE journal (cycle INTEGER PRIMARY KEY, now_ns INTEGER NOT NULL, events BLOB NOT NULL);
CREATE TABLE actions (
    action_id TEXT PRIMARY KEY, cycle INTEGER NOT NULL, job_id TEXT NOT NULL, body BLOB NOT NULL,
    outcome TEXT, outcome_ns INTEGER);
CREATE INDEX actions_by_cycle ON actions (cycle);
CREATE INDEX actions_by_job ON actions (job_id, cycle);
CREATE INDEX actions_open ON actions (cycle) WHERE outcome IS NULL;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, cycle INTEGER NOT NULL, wall_ns INTEGER NOT NULL, subject TEXT NOT NULL,
    kind TEXT NOT NULL, text TEXT NOT NULL, applied INTEGER NOT NULL, detail TEXT NOT NULL);
CREATE INDEX entries_by_subject ON entries (subject, id);
CREATE INDEX entries_by_time ON entries (wall_ns);
CREATE TABLE snapshots (
    cycle INTEGER PRIMARY KEY, now_ns INTEGER NOT NULL, state BLOB NOT NULL, detectors BLOB NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_SCHEMA_2 = """
CREATE TABLE blocks (
    last_cycle INTEGER PRIMARY KEY, first_cycle INTEGER NOT NULL, last_ns INTEGER NOT NULL, body BLOB NOT NULL);
ALTER TABLE snapshots ADD COLUMN packed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX journal_by_time ON journal (now_ns);
"""

MIGRATIONS = (_SCHEMA_1, _SCHEMA_2)
"""Migrations from an empty file to the newest schema. Never change a released one."""

SCHEMA_RELEASES = ("0.1.0", "0.1.0")
"""First release that can read each schema. A file with a newer schema requires this release, and older releases name it
when they refuse the file."""

SCHEMA_VERSION = len(MIGRATIONS)


def schema_of(database: sqlite3.Connection, path: Path, any_release: bool = False) -> int:
    """Return the file's schema version, from 1 to SCHEMA_VERSION.

    any_release: accept a file that this release cannot read completely. Raises StoreError if it is not a journal of
    gangwatch, NewerStoreError if only a newer release can read it.
    """
    application, version = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: an SQLite file, but no journal of gangwatch; move it out of the way")
    if version > SCHEMA_VERSION:
        schema = f" (it has schema {version}, this release reads {SCHEMA_VERSION})"
        raise NewerStoreError(newer_text(path, minimum_reader(database), [], schema))
    if not any_release:
        check_reader(database, path, SCHEMA_RELEASES[-1])
    return version
