"""Renamed metrics, which are published under the old and the new name for one release.

In the release after ``release``, remove the entry of a metric from the table. The old name is then no longer published.
Subscribers of a frame stream can request either name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Renamed:
    """Old and new name of one metric."""

    old: str
    new: str
    release: str
    """First release with the new name, and last release with the old name."""


RENAMED: tuple[Renamed, ...] = ()
