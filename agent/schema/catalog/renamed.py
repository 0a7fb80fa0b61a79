"""Metrics that were renamed: an old name is published beside the new one for one release.

A row is removed in the release after ``release``, and the old name with it. Subscribers of a frame stream may ask for
either name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Renamed:
    """One renaming. release: the first that has the new name, and the last that has the old."""

    old: str
    new: str
    release: str


RENAMED: tuple[Renamed, ...] = ()
