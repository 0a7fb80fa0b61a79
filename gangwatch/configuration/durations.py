"""Parser of the durations that the configuration and the command line accept."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(ms|s|m|h|d)?", re.ASCII)
_CLOCK = re.compile(
    r"(?:(\d{1,6})-(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?|(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6}))", re.ASCII
)
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "90s", "1.5h", "10m", "250ms", "2d", or of Slurm's "30:00", "1:00:00", "2-00:00:00".

    Raises ValueError with the expected formats.
    """
    if (clock := _CLOCK.fullmatch(text.strip())) is not None:
        days, *rest = clock.groups()
        return _clock_seconds(days, *rest)
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text[:60]!r} is not a duration: expected seconds, a number with ms, s, m, h or d (90, 90s, 10m), or "
            "minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds (30:00, 1:00:00, 2-00:00:00)"
        )
    return float(found[1]) * _DURATION_UNITS[found[2] or ""]


def _clock_seconds(days: str | None, *parts: str | None) -> float:
    """Return the seconds of a time in Slurm's format (sbatch(1), --time).

    The parts after days are hours, minutes and seconds. Without days, two parts are minutes and seconds.
    """
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 86400.0 + hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = numbers if len(numbers) == 3 else (0, *numbers)
    return hours * 3600.0 + minutes * 60 + seconds
