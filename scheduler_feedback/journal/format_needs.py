"""Requirements of a store: the oldest release that can read it, and the features that require it.

Both are in the table `meta`: ``minimum_reader`` (a release) and ``features`` (a JSON object, name to release). They are
written in the transaction that first writes data that the first release cannot read, and are never removed.
"""

from __future__ import annotations

import importlib.metadata
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.schema.errors import NewerStoreError, StoreError
from scheduler_feedback.core.formats import FIRST_RELEASE, FORMATS, Formats, version_key

MINIMUM_READER = "minimum_reader"
FEATURES = "features"

MOST_NAMES = 5
"""Maximum number of feature names in one message."""

UNCHANGED = "Nothing was changed, and running jobs go on under their shims"
"""Sentence that is true whenever a store is refused: the controller does not start, and shims outlive controllers."""

_features = msgspec.json.Decoder(dict[str, str])


def this_release() -> str:
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("gangwatch")
    except importlib.metadata.PackageNotFoundError:
        return FORMATS.newest


def write_needs(database: sqlite3.Connection, used: Mapping[str, str]) -> None:
    """Record that the store contains these features (name to release), in the transaction that adds them."""
    minimum, features = _read(database)
    if used.keys() <= features.keys():
        return
    features |= used
    minimum = max([minimum, *features.values()], key=version_key)
    database.executemany(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
        [(MINIMUM_READER, minimum), (FEATURES, msgspec.json.encode(features, order="sorted").decode())],
    )


def raise_minimum(database: sqlite3.Connection, release: str) -> None:
    """Record that the store requires at least this release. Call it in a transaction."""
    minimum, _ = _read(database)
    if version_key(release) > version_key(minimum):
        database.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (MINIMUM_READER, release))


def check_reader(database: sqlite3.Connection, path: Path, schema_release: str, formats: Formats = FORMATS) -> None:
    """Raise NewerStoreError if the store contains data that this release cannot read; StoreError if it is damaged.

    schema_release: oldest release that can read the current schema.
    """
    try:
        minimum, features = _read(database)
        reads = max(map(version_key, (formats.newest, schema_release, this_release())))
        is_newer = version_key(minimum) > reads
    except (ValueError, msgspec.DecodeError) as error:
        raise StoreError(
            f"{path}: the required release cannot be read from its table meta: {error}. {UNCHANGED}. "
            "Restore a backup made by `gangwatch backup`"
        ) from None
    unknown = sorted(features.keys() - formats.names.keys())
    if is_newer or unknown:
        raise NewerStoreError(newer_text(path, minimum, unknown))


def newer_text(path: Path, minimum: str, unknown: list[str], schema: str = "") -> str:
    """Return why the store is refused, and a safe next step. minimum: required release, '' if the store names none."""
    named = ", ".join(unknown[:MOST_NAMES]) + (f" and {len(unknown) - MOST_NAMES} more" if unknown[MOST_NAMES:] else "")
    contains = f" (it contains {named})" if named else schema
    needed = f"gangwatch {minimum} or newer" if minimum else "a newer gangwatch"
    this = f"{'an earlier build of ' if minimum == this_release() else ''}gangwatch {this_release()}"
    return (
        f"{path}: reading it needs {needed}{contains}; this is {this}. {UNCHANGED}. Install {needed} and start it again"
    )


def minimum_reader(database: sqlite3.Connection) -> str:
    """Return the release that the store requires; '' if the store names none or cannot be queried."""
    try:
        row = database.execute("SELECT value FROM meta WHERE key = ?", (MINIMUM_READER,)).fetchone()
    except sqlite3.Error:
        return ""
    return "" if row is None else str(row[0])


def _read(database: sqlite3.Connection) -> tuple[str, dict[str, str]]:
    rows = dict(database.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", (MINIMUM_READER, FEATURES)))
    return str(rows.get(MINIMUM_READER, FIRST_RELEASE)), _features.decode(str(rows.get(FEATURES, "{}")))
