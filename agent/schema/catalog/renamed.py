"""Renamed metrics. Both names are published for one release.

Remove a row, and with it the old name, in the release after ``release``. Subscribers of a frame stream can request
either name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Renamed:
    """One renamed metric."""

    old: str
    new: str
    release: str
    """First release with the new name, and last release with the old name."""


RENAMED: tuple[Renamed, ...] = ()
