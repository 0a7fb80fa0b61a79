"""Which families are published: a profile, and lists of names over it.

``full`` is everything. ``default`` leaves out what is read when something is being looked into and not on every
dashboard: counts a link, a lane, a priority, a location, where a sum a device stands beside them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

FULL_ONLY: tuple[str, ...] = ()
"""Names, or globs, of families that ``default`` leaves out."""

Reason = Literal["profile", "deny"]


def left_out_by(name: str, profile: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> Reason | None:
    """Why the family of this name is left out; None where it is published. deny goes over allow, allow over profile."""
    if _matches(name, deny):
        return "deny"
    if profile == "full" or _matches(name, allow):
        return None
    return "profile" if _matches(name, FULL_ONLY) else None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
