"""Opt-in: the declaration by which a job's owner allows a restart. No I/O.

A job declares it in its comment. The declaration is a list separated by commas that begins with 'gangwatch:'::

    sbatch --comment=gangwatch:restartable,signal=USR1,grace=60,restart=30 train.sh

signal: makes the job save; it may keep running or exit. grace: seconds for the save. restart: seconds that a start
takes, for the cost estimate. every: seconds between two checkpoints of a job that saves periodically, without
a signal.
A script that asks Slurm for a warning before its end (``#SBATCH --signal=[B:]USR1[@seconds]``) has a handler that
saves, so this is an opt-in too. Without either, a job is never signalled or requeued.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

PREFIX = "gangwatch:"
_DIRECTIVE = re.compile(
    r"^#SBATCH[ \t]+(?:.*[ \t])?--signal[= ](?P<options>[A-Z]*:)?(?P<signal>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?",
    re.MULTILINE,
)
_WORD = re.compile(r"[a-z]+")
MOST_GRACE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class OptIn:
    """Declaration by a job's owner that gangwatch may requeue the job."""

    restartable: bool = False
    signal: str = ""
    """Name of the signal that makes the job save, without 'SIG'; '' if the job is stopped without a save."""

    batch: bool = False
    """Whether the signal goes to the batch script instead of the job's steps."""

    grace_seconds: float = 30.0
    restart_seconds: float = 30.0
    every_seconds: float | None = None
    complaint: str = ""
    """Error in the declaration, which is then ignored; '' if it has none."""


def of_comment(comment: str) -> OptIn:
    """Parse a job's comment. Without a valid declaration the job has not opted in."""
    at = comment.find(PREFIX)
    if at < 0:
        return OptIn()
    words = comment[at + len(PREFIX) :].split()[:1]
    values: dict[str, str] = {}
    for word in words[0].split(",") if words else ():
        key, equals, value = word.partition("=")
        if key not in ("restartable", "signal", "grace", "restart", "every", "batch") or (equals and not value):
            return OptIn(complaint=f"{word[:40]!r} is not in {PREFIX}restartable,signal=,grace=,restart=,every=")
        values[key] = value
    if "restartable" not in values:
        return OptIn()
    try:
        every = _seconds(values, "every", 0.0)
        return OptIn(
            True,
            _signal(values.get("signal", "")),
            "batch" in values,
            _seconds(values, "grace", 30.0),
            _seconds(values, "restart", 30.0),
            every or None,
        )
    except ValueError as error:
        return OptIn(complaint=str(error))


def of_script(script: str) -> OptIn:
    """Return the declaration in a batch script: a directive that requests a warning signal before the end is an
    opt-in.
    """
    found = _DIRECTIVE.search(script)
    if found is None:
        return OptIn()
    try:
        name = _signal(found["signal"])
    except ValueError as error:
        return OptIn(complaint=str(error))
    # Slurm's default is 60 s before the end (sbatch(1), --signal).
    seconds = min(float(found["seconds"] or 60), MOST_GRACE_SECONDS)
    return OptIn(True, name, "B" in (found["options"] or ""), seconds)


def comment_of(opted: OptIn) -> str:
    """Return a job comment with this declaration. ``of_comment`` parses it."""
    words = ["restartable"]
    words += [f"signal={opted.signal}"] if opted.signal else []
    words += ["batch"] if opted.batch else []
    words += [f"grace={opted.grace_seconds:g}", f"restart={opted.restart_seconds:g}"]
    words += [f"every={opted.every_seconds:g}"] if opted.every_seconds else []
    return PREFIX + ",".join(words)


def _signal(text: str) -> str:
    """Return the signal's name without 'SIG'. Raises ValueError if there is no such signal."""
    if not text:
        return ""
    try:
        if text.isdecimal():
            return signal.Signals(int(text)).name.removeprefix("SIG")
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"].name.removeprefix("SIG")
    except (KeyError, ValueError):
        raise ValueError(f"{text[:40]!r} is not a signal") from None


def _seconds(values: dict[str, str], key: str, default: float) -> float:
    text = values.get(key)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_GRACE_SECONDS:
        raise ValueError(f"{key}={text[:40]}: expected seconds, at most {MOST_GRACE_SECONDS:g}")
    return seconds
