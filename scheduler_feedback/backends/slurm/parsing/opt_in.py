"""Opting in: what a job's owner has said of being stopped and started again. Pure.

A job says so in its comment, in words with commas, the first of which begins with 'gangwatch:'::

    sbatch --comment=gangwatch:restartable,signal=USR1,grace=60,restart=30 train.sh

signal: what makes it save; it may go on running or exit. grace: seconds that it has for that. restart: seconds that a
start takes it, for the cost test. every: seconds between two checkpoints of a job that saves on its own alone.
A job whose script asks Slurm to be warned of its end (``#SBATCH --signal=[B:]USR1[@seconds]``) has a handler that
saves: that counts too. Without either, a job is never signalled or requeued.
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
    """signal: without 'SIG'; '' where it is just stopped. batch: the signal is for the script, not for the steps."""

    restartable: bool = False
    signal: str = ""
    batch: bool = False
    grace_seconds: float = 30.0
    restart_seconds: float = 30.0
    every_seconds: float | None = None
    complaint: str = ""


def of_comment(comment: str) -> OptIn:
    """What a job's comment declares; `complaint` says what in it is not understood, and then it has not opted in."""
    at = comment.find(PREFIX)
    if at < 0:
        return OptIn()
    words = comment[at + len(PREFIX) :].split()[:1]
    values: dict[str, str] = {}
    for word in words[0].split(",") if words else ():
        key, equals, value = word.partition("=")
        if key not in ("restartable", "signal", "grace", "restart", "every", "batch") or (equals and not value):
            return OptIn(complaint=f"{word[:40]!r} is no word of {PREFIX}restartable,signal=,grace=,restart=,every=")
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
    """What the directives of a batch script declare: a signal by which Slurm is to warn it of its end."""
    found = _DIRECTIVE.search(script)
    if found is None:
        return OptIn()
    try:
        name = _signal(found["signal"])
    except ValueError as error:
        return OptIn(complaint=str(error))
    # Slurm's own default is 60 s ahead of the end (sbatch(1), --signal).
    seconds = min(float(found["seconds"] or 60), MOST_GRACE_SECONDS)
    return OptIn(True, name, "B" in (found["options"] or ""), seconds)


def comment_of(opted: OptIn) -> str:
    """The comment that declares this; ``of_comment`` reads it back."""
    words = ["restartable"]
    words += [f"signal={opted.signal}"] if opted.signal else []
    words += ["batch"] if opted.batch else []
    words += [f"grace={opted.grace_seconds:g}", f"restart={opted.restart_seconds:g}"]
    words += [f"every={opted.every_seconds:g}"] if opted.every_seconds else []
    return PREFIX + ",".join(words)


def _signal(text: str) -> str:
    """The signal's name without 'SIG'. Raises ValueError."""
    if not text:
        return ""
    try:
        if text.isdecimal():
            return signal.Signals(int(text)).name.removeprefix("SIG")
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"].name.removeprefix("SIG")
    except (KeyError, ValueError):
        raise ValueError(f"{text[:40]!r} is no signal") from None


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
