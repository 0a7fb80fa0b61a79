"""Rows of the store, decoded: cycles, actions and entries. A damaged row names its cycle and position."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.codec import decode_action, decode_event
from scheduler_feedback.core.events import Event

_event_list = msgspec.msgpack.Decoder(list[bytes])
_detail = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_block = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]])


class EntryError(StoreError):
    """One entry of the journal is unreadable; the text names its cycle and position."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, zlib.error, TypeError)
"""Errors from decoding a damaged database column; TypeError if the column has another type than bytes."""


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One cycle as stored: number, time, inputs and encoded decisions.

    Most replays only compare the encoded decisions, which is faster than decoding them.
    """

    cycle: int
    now_ns: int
    events: tuple[Event, ...]
    decided: tuple[bytes, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """Decode the actions. Raises StoreError, naming cycle and entry, if that fails."""
        return _decoded(self.decided, decode_action, f"cycle {self.cycle}, decided")


@dataclass(frozen=True, slots=True)
class NumberedEntry:
    """A journal entry with its number. entry_id: increases with every entry."""

    entry_id: int
    cycle: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action with the time of its cycle, and its outcome (None: not known yet)."""

    cycle: int
    now_ns: int
    action: Action
    outcome: str | None


_Decoded = TypeVar("_Decoded")


def _decoded(entries: Sequence[bytes], decode: Callable[[bytes], _Decoded], where: str) -> tuple[_Decoded, ...]:
    """Decode the entries. Raises EntryError that starts with `where` and the number of the first unreadable one."""
    found: list[_Decoded] = []
    try:
        for one in entries:
            found.append(decode(one))
    except StoreError as error:
        raise EntryError(f"{where} entry {len(found) + 1} of {len(entries)}: {error}") from error
    return tuple(found)


def block_of(first_cycle: int, last_cycle: int, body: bytes) -> list[tuple[int, int, bytes]]:
    """Return (cycle, time, events) of each cycle in a compressed block of old cycles. Raises EntryError."""
    try:
        return _block.decode(zlib.decompress(body))
    except UNREADABLE as error:
        raise EntryError(f"the block of cycles {first_cycle} to {last_cycle}: {error}") from error


def events_of(cycle: int, packed: bytes) -> tuple[Event, ...]:
    """Decode the events of a cycle. Raises EntryError."""
    try:
        events = _event_list.decode(packed)
    except UNREADABLE as error:
        raise EntryError(f"cycle {cycle}: the list of its events can't be read: {error}") from error
    return _decoded(events, decode_event, f"cycle {cycle},")


def action_of(action_id: str, body: bytes) -> Action:
    """Decode an action. Raises EntryError."""
    try:
        return decode_action(body)
    except StoreError as error:
        raise EntryError(f"action {action_id}: {error}") from error


def _detail_of(text: str) -> tuple[tuple[str, str], ...]:
    """Decode the numbers of an entry. If they are damaged, return the error instead, so that the text stays
    readable."""
    try:
        return _detail.decode(text)
    except UNREADABLE as error:
        return (("unreadable", str(error)),)


def entry_of(row: tuple[Any, ...]) -> NumberedEntry:
    """Return the entry of a row of the table `entries`."""
    entry_id, cycle, wall_ns, subject, kind, text, applied, detail = row
    return NumberedEntry(entry_id, cycle, Entry(wall_ns, subject, kind, text, bool(applied), _detail_of(detail)))
