"""Files of the controller's state folder: lock, token and announcement, and the replacement of an outdated journal."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import tempfile
from pathlib import Path

from agent.schema.errors import StateFolderBusyError, StoreError
from scheduler_feedback.core.state import State
from scheduler_feedback.journal.format_needs import UNCHANGED
from scheduler_feedback.journal.store import Store

_log = logging.getLogger(__name__)


def hold(path: Path) -> int:
    """Lock the file, write this pid to it, and return its descriptor. Closing the descriptor releases the lock.

    Raises StateFolderBusyError if the file is locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateFolderBusyError(f"a controller (pid {holder}) already runs for {path.parent}") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def refuse_emptied(journal: Path, jobs: Path) -> None:
    """Raise StoreError if the journal is empty although records of jobs exist next to it."""
    if journal.exists() and not journal.stat().st_size and jobs.is_dir() and any(jobs.iterdir()):
        raise StoreError(
            f"{journal}: it is empty, but {jobs} has records of jobs: it was truncated. {UNCHANGED}. Restore a backup "
            "made by `gangwatch backup`. Only if there is none, remove the file to start with an empty journal: all "
            "running jobs are then unknown and are ended"
        )


def make_token(path: Path) -> None:
    """Create the API's token at the first start. The file is written atomically."""
    if not path.exists():
        temporary = path.with_name(f".token.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_urlsafe(32).encode())
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.close(descriptor)
            temporary.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def start_time() -> int:
    """Return the start time of this process in clock ticks since boot (field 22 of /proc/PID/stat)."""
    return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])


def replace_journal(journal: Path, state: State, now_ns: int) -> None:
    """Rename the journal, and write a new one that begins with this state."""
    for file in (journal, *(journal.with_name(f"{journal.name}-{part}") for part in ("wal", "shm"))):
        if file.exists():
            file.rename(f"{file}.before-{now_ns // 1_000_000_000}")
    store = Store(journal)
    try:
        store.snapshot(state.cycle, now_ns, state, {}, list(state.jobs))
    finally:
        store.close()
    _log.info("rebuilt the state from the backend: %d nodes, %d gangs", len(state.nodes), len(state.jobs))
