"""Backup of the journal while the controller writes it. The copy is verified before it gets its name."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import StoreError
from scheduler_feedback.journal.store import Reader

PAGES_A_STEP = 512
"""Number of pages per step of the copy (2 MiB). The writer is blocked for at most one step at a time."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a backup."""

    path: Path
    size_bytes: int
    cycle: int
    """Number of the newest cycle in the copy."""
    cycles: int
    """Number of cycles in the copy that can be replayed."""


def back_up(source: Path, target: Path) -> Copied:
    """Copy the journal at `source` to the new file `target`, as of one moment.

    Raises StoreError if there is no journal, the target exists, or the copy fails its verification.
    """
    if not source.exists():
        raise StoreError(f"{source}: there is no journal to back up")
    if target.exists():
        raise StoreError(f"{target}: exists already; a backup never overwrites a file: choose another name")
    Reader(source).meta("job_number")  # raises, with the source's name, if this release cannot read it
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
        os.link(temporary, target)  # unlike a rename, it never replaces a file
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
        # The copy is a single file, without a write-ahead log.
        to.execute("PRAGMA journal_mode=DELETE")


def verify(path: Path) -> Copied:
    """Verify that the file is a journal that can be read completely. Raises StoreError if not."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise StoreError(f"{path}: damaged: {'; '.join(problems)}")
    reader = Reader(path)
    reader.load()
    cycles = 0
    with reader.replaying() as running:  # row by row: the journal may not fit into memory
        newest = 0 if running.state is None else running.state.cycle
        for row in running.journal:
            newest, cycles = row.cycle, cycles + 1
            _ = row.actions  # must decode, too
    return Copied(path, path.stat().st_size, newest, cycles)
