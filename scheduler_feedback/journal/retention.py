"""Retention of the store: snapshots to keep, compression of old cycles, and deletion of expired data.

Cycles older than the snapshots that a restart needs are moved, some hundred at a time, into compressed blocks, which a
replay reads like other cycles. The newest snapshots are kept, and the first one of each earlier day, so that a replay
of a cycle of last week starts at the beginning of its day.

All of this happens with a snapshot, once a minute, in its transaction.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

KEPT_SNAPSHOTS = 3
"""Number of snapshots kept for restarts: if the newest is unreadable, an older one and the journal after it give the
same state."""

BLOCK_CYCLES = 512
"""Number of cycles per compressed block: enough to compress repeated field names, few enough to decompress for one
cycle."""

BLOCKS_AT_ONCE = 32
"""Maximum number of compressed blocks that are written with one snapshot, so that the cycle is not delayed for long.
One block is about a minute of cycles."""

SNAPSHOT_SUMS = "snapshot_sums"
"""Key of the table `meta`. Its value is a JSON object, from a snapshot's cycle to the CRC-32 of its state before
compression."""

DAY_NS = 86400 * 10**9

_encode = msgspec.msgpack.Encoder().encode
_sums = msgspec.json.Decoder(dict[int, int])


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on stored history. Data that a restart needs is always kept."""

    days: float = 30.0
    """Age at which journal rows, outcomes, and entries of ended jobs are deleted."""
    journal_bytes: int = 512 * 1024 * 1024
    """File size above which the oldest journal rows are deleted early."""


def clean_up(database: sqlite3.Connection, retention: Retention, now_ns: int, living: Collection[str]) -> None:
    """Delete surplus snapshots, compact old cycles, and delete expired data. Call it in a transaction.

    living: subjects whose entries and actions are kept at any age.
    """
    _thin_snapshots(database, retention, now_ns)
    _compact(database)
    _forget(database, retention, now_ns, living)


def write_sum(database: sqlite3.Connection, cycle: int, state: bytes) -> None:
    """Record the checksum of a snapshot's state; drop checksums of deleted snapshots. Call it in a transaction."""
    kept = {number for (number,) in database.execute("SELECT cycle FROM snapshots")}
    sums = {number: sum_ for number, sum_ in read_sums(database).items() if number in kept} | {cycle: zlib.crc32(state)}
    database.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (SNAPSHOT_SUMS, msgspec.json.encode(sums).decode())
    )


def read_sums(database: sqlite3.Connection) -> dict[int, int]:
    """Return the checksums of snapshots' states by cycle; empty if unreadable. A snapshot without one is not
    checked."""
    row = database.execute("SELECT value FROM meta WHERE key = ?", (SNAPSHOT_SUMS,)).fetchone()
    try:
        return {} if row is None else _sums.decode(row[0])
    except (msgspec.DecodeError, TypeError):
        return {}


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _thin_snapshots(database: sqlite3.Connection, retention: Retention, now_ns: int) -> None:
    """Keep the newest snapshots, and the first of each day in retention (compressed); delete the others."""
    before_ns = now_ns - round(retention.days * DAY_NS)
    database.execute(
        "DELETE FROM snapshots WHERE cycle NOT IN (SELECT cycle FROM snapshots ORDER BY cycle DESC LIMIT ?) "
        "AND (now_ns < ? OR cycle NOT IN (SELECT min(cycle) FROM snapshots GROUP BY now_ns / ?))",
        (KEPT_SNAPSHOTS, before_ns, DAY_NS),
    )
    for cycle, state in database.execute(
        "SELECT cycle, state FROM snapshots WHERE packed = 0 ORDER BY cycle DESC LIMIT -1 OFFSET ?",
        (KEPT_SNAPSHOTS,),
    ).fetchall():
        # Detectors are not replayed: only a restart needs their snapshots.
        database.execute(
            "UPDATE snapshots SET state = ?, detectors = ?, packed = 1 WHERE cycle = ?",
            (zlib.compress(state), _encode({}), cycle),
        )


def _needed_after(database: sqlite3.Connection) -> int:
    """Return the last cycle whose journal rows no restart needs."""
    cycles = database.execute("SELECT cycle FROM snapshots ORDER BY cycle DESC LIMIT ?", (KEPT_SNAPSHOTS,)).fetchall()
    return int(cycles[-1][0])


def _compact(database: sqlite3.Connection) -> None:
    """Move old cycles into compressed blocks. Only whole blocks are written."""
    needed_after = _needed_after(database)
    for _ in range(BLOCKS_AT_ONCE):
        rows = database.execute(
            "SELECT cycle, now_ns, events FROM journal WHERE cycle <= ? ORDER BY cycle LIMIT ?",
            (needed_after, BLOCK_CYCLES),
        ).fetchall()
        if len(rows) < BLOCK_CYCLES:
            return
        database.execute(
            "INSERT INTO blocks (last_cycle, first_cycle, last_ns, body) VALUES (?, ?, ?, ?)",
            (rows[-1][0], rows[0][0], rows[-1][1], zlib.compress(_encode(rows))),
        )
        database.execute("DELETE FROM journal WHERE cycle <= ?", (rows[-1][0],))


def _forget(database: sqlite3.Connection, retention: Retention, now_ns: int, living: Collection[str]) -> None:
    needed_after = _needed_after(database)
    before_ns = now_ns - round(retention.days * DAY_NS)
    last: int = database.execute(
        "SELECT max(coalesce((SELECT max(last_cycle) FROM blocks WHERE last_ns < ?), 0), "
        "coalesce((SELECT max(cycle) FROM journal WHERE cycle <= ? AND now_ns < ?), 0))",
        (before_ns, needed_after, before_ns),
    ).fetchone()[0]
    used_bytes = _used_bytes(database)
    if used_bytes > retention.journal_bytes:
        # Deleting a tenth with each snapshot, once a minute, outpaces any growth and never delays the cycle for long.
        first, newest = database.execute(
            "SELECT min(coalesce((SELECT min(first_cycle) FROM blocks), min(cycle)), min(cycle)), max(cycle) "
            "FROM journal"
        ).fetchone()
        if first is not None:
            last = max(last, min(needed_after, first + (newest - first) // 10))
    if last:
        # A block with any cycle to keep is kept whole.
        gone = database.execute("DELETE FROM blocks WHERE last_cycle <= ?", (last,)).rowcount
        oldest = database.execute("SELECT min(first_cycle) FROM blocks").fetchone()[0]
        if oldest is None:
            gone += database.execute("DELETE FROM journal WHERE cycle <= ?", (last,)).rowcount
        else:
            last = oldest - 1
        if gone:
            database.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('forgotten_to', ?)", (str(last),))
            database.execute("DELETE FROM snapshots WHERE cycle < ? AND cycle < ?", (last, needed_after))
    keep = msgspec.json.encode(sorted(living)).decode()
    database.execute(
        "DELETE FROM entries WHERE wall_ns < ? AND subject NOT IN (SELECT value FROM json_each(?))",
        (before_ns, keep),
    )
    # Keep the actions of every replayable cycle, to compare with. This is no scan of all actions: before the deleted
    # cycles there are only actions of living jobs.
    forgotten_to = database.execute("SELECT value FROM meta WHERE key = 'forgotten_to'").fetchone()
    database.execute(
        "DELETE FROM actions WHERE cycle <= ? AND outcome_ns < ? AND job_id NOT IN (SELECT value FROM json_each(?))",
        (0 if forgotten_to is None else int(forgotten_to[0]), before_ns, keep),
    )
