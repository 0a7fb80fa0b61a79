"""The audit: one line of JSON for every change of Slurm, made or withheld, with its evidence."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from agent.schema.clock import Clock

_log = logging.getLogger(__name__)


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the audit: a change, whether it was made, and why."""

    wall_ns: int
    """Wall time of the command, in nanoseconds since the epoch."""

    action: str
    target: str
    outcome: str
    """Result: 'done', 'would' (in mode `advise`), 'withheld: REASON' or 'failed: REASON'."""

    why: str = ""
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class Audit:
    """Writer of the audit file. counts: number of lines by (action, first word of the outcome)."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.counts: Counter[tuple[str, str]] = Counter()
        self._clock = clock

    def write(
        self,
        action: str,
        target: str,
        outcome: str,
        why: str = "",
        command: Sequence[str] = (),
        verdict: str = "",
        evidence: Sequence[str] = (),
    ) -> None:
        """Write a line to the file and to the log; if the file cannot be written, the log alone has it."""
        line = Line(self._clock.wall_ns(), action, target, outcome, why, verdict, tuple(evidence), tuple(command))
        self.counts[action, outcome.partition(":")[0]] += 1
        _log.info("%s %s: %s (%s)%s", action, target, outcome, why, f" {' '.join(command)}" if command else "")
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.error("%s: %s", self.path, error.strerror)


def lines(path: Path) -> Iterator[Line]:
    """Yield the lines of the audit file, oldest first; nothing if there is no file. Skip damaged lines (full disk)."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    for part in text.split(b"\n"):
        try:
            yield msgspec.json.decode(part, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
