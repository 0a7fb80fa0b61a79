"""Backup: a copy of the journal while the controller writes it, checked before it bears its name."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import StoreError
from scheduler_feedback.journal.store import Reader

PAGES_A_STEP = 512
"""Pages copied between two looks at the writer (2 MiB): it never waits longer for us than for that."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup holds. cycle: the newest. cycles: how many can be replayed."""

    path: Path
    size_bytes: int
    cycle: int
    cycles: int


def back_up(source: Path, target: Path) -> Copied:
    """Copy the journal at `source` to the new file `target`: one moment of it, whole, and readable.

    Raises StoreError where there is no journal, the target exists, or what was written does not prove sound.
    """
    if not source.exists():
        raise StoreError(f"{source}: there is no journal to back up")
    if target.exists():
        raise StoreError(f"{target}: exists already; a backup never overwrites")
    Reader(source).meta("job_number")  # refuses, by the source's name, what this release can't read
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _copy(source, temporary)
        copied = verify(temporary)
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(temporary, target)  # unlike a rename, never over a file that has come meanwhile
        return Copied(target, target.stat().st_size, copied.cycle, copied.cycles)
    except sqlite3.Error as error:
        raise StoreError(f"{target}: the backup failed: {error}") from error
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}") from error
    finally:
        for left in (temporary, *(temporary.with_name(temporary.name + end) for end in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)) as of,
        closing(sqlite3.connect(target)) as to,
    ):
        of.backup(to, pages=PAGES_A_STEP)
        # The copy is a file on its own: no log beside it.
        to.execute("PRAGMA journal_mode=DELETE")


def verify(path: Path) -> Copied:
    """Whether this file is a sound journal, all of which can be read. Raises StoreError where it is not."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise StoreError(f"{path}: damaged: {'; '.join(problems)}")
    reader = Reader(path)
    reader.load()
    cycles = 0
    with reader.replaying() as running:  # row by row: a journal of months does not fit into memory
        newest = 0 if running.state is None else running.state.cycle
        for row in running.journal:
            newest, cycles = row.cycle, cycles + 1
            _ = row.actions  # legible, too
    return Copied(path, path.stat().st_size, newest, cycles)
