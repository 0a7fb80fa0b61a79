"""Files with the stacks of hanging jobs: one for each attempt, written when the hang is reported.

A restart ends the processes, and with them everything that shows why they hung. The number and the size of the files
are limited; the oldest are deleted. A thread of its own writes them, so that a slow disk delays no detection.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from agent.schema.clock import Clock
from scheduler_feedback.controller import state_files
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.verdict import Abstention, Kind, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.part_failures import PartFailures

MOST_FILES = 256
"""Maximum number of files. Together with MOST_BYTES they take at most 1 GiB; a hang of 8 ranks takes about 30 kB."""

MOST_BYTES = 4 * 1024 * 1024
"""Maximum size of one file in bytes. Stacks of the last ranks are left out until the file fits."""

MOST_WAITING = 64
"""Maximum number of hangs that wait to be written. Further ones are dropped and logged."""

STOP_SECONDS = 1.0

_log = logging.getLogger(__name__)


class HangFile(msgspec.Struct, frozen=True):
    """Where the ranks of one attempt were blocked when its hang was reported."""

    job: str
    attempt: int
    at_ns: int
    """Wall time at which the file was made, in nanoseconds since 1970."""
    text: str
    """The verdict, or why there is none, as a sentence."""
    ranks: list[Blocked]
    """Reports of the ranks that made no progress, by rank."""


def what_hangs(event: Event) -> str | None:
    """Return a sentence about the hang that the event reports; None if it reports none."""
    if isinstance(event, Verdict):
        return sentence(event) if event.kind is Kind.HANG else None
    return event.reason if isinstance(event, Abstention) and event.detector == "hang" else None


class HangFiles:
    """Files in `folder`. ``save`` never blocks; other threads may call ``read``."""

    def __init__(self, folder: Path, clock: Clock, failures: PartFailures) -> None:
        self._folder = folder
        self._clock = clock
        self._failures = failures
        self._waiting: queue.Queue[HangFile | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def save(self, job: str, attempt: int, text: str, ranks: Sequence[Blocked]) -> None:
        """Write the file of this attempt soon. Nothing is written without reports of ranks."""
        if not ranks:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hang-files", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(HangFile(job, attempt, self._clock.wall_ns(), text, list(ranks)))
        except queue.Full:
            _log.error("job=%s attempt=%d: its stacks are not saved: %d wait to be written", job, attempt, MOST_WAITING)

    def read(self, job: str, attempt: int) -> HangFile | None:
        """Return the saved file of this attempt; None if there is none. A damaged file counts as none."""
        try:
            return msgspec.json.decode(self._path(job, attempt).read_bytes(), type=HangFile)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def close(self) -> None:
        """Write the waiting files, for at most STOP_SECONDS, and end the thread."""
        if self._thread is not None:
            try:
                self._waiting.put(None, timeout=STOP_SECONDS)
            except queue.Full:
                return
            self._thread.join(STOP_SECONDS)

    def _path(self, job: str, attempt: int) -> Path:
        return self._folder / f"{quote(job, safe='')[:200]}.{attempt}.json"

    def _run(self) -> None:
        while (one := self._waiting.get()) is not None:
            try:
                self._write(one)
            except OSError as error:
                _log.error("job=%s attempt=%d: its stacks are not saved: %s", one.job, one.attempt, error)
            except Exception as error:
                self._failures.report("verdicts", error, "the stacks of a hang are not saved")

    def _write(self, one: HangFile) -> None:
        content = msgspec.json.encode(one)
        kept = len(one.ranks)
        while len(content) > MOST_BYTES:
            kept //= 2
            ranks = [*one.ranks[:kept], *(replace(rank, stacks="") for rank in one.ranks[kept:])]
            content = msgspec.json.encode(msgspec.structs.replace(one, ranks=ranks))
            if not kept:
                break
        self._folder.mkdir(mode=0o700, exist_ok=True)
        state_files.write_atomically(self._path(one.job, one.attempt), content)
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)
