"""Events, actions, entries and the state as bytes and back, exactly.

The form is MessagePack and not JSON because a measure may be infinite or absent (NaN), which JSON has no word for.
Events and actions are unions, so they travel as ``[class name, fields]``; the state travels as ``[version, fields]``. A
field that a newer build added takes its default when an older message is read; a field that this build does not know is
ignored. ``printable`` gives any of them as plain lists and dicts for a person to read.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

import msgspec

from agent.schema.errors import StoreError
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.formats import FORMATS
from scheduler_feedback.core.state import State

STATE_VERSION = 1

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, OverflowError)
"""What damaged bytes raise; TypeError where the database has something else than bytes."""

_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


class _Union(Generic[_T]):
    """Codec of a union of dataclasses, told apart by class name."""

    __slots__ = ("_decoders", "_envelope", "_what")

    def __init__(self, what: str, members: tuple[type, ...]) -> None:
        self._what = what
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            member.__name__: msgspec.msgpack.Decoder(member) for member in members
        }
        self._envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])

    def encode(self, value: _T) -> bytes:
        name = type(value).__name__
        if name not in self._decoders:
            raise TypeError(f"{name} is no {self._what}")
        return _encoder.encode((name, value))

    def decode(self, data: bytes) -> _T:
        try:
            name, body = self._envelope.decode(data)
            if name not in self._decoders:
                raise StoreError(
                    f"{self._what} of the unknown kind {name[:60]!r}: no gangwatch up to {FORMATS.newest} writes it"
                )
            value: _T = self._decoders[name].decode(body)
        except _UNREADABLE as error:
            raise StoreError(f"bytes that are no {self._what}: {error}") from error
        return value


_events: _Union[Event] = _Union("event", get_args(Event))
_actions: _Union[Action] = _Union("action", get_args(Action))
_entries = msgspec.msgpack.Decoder(Entry)
_states = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_state_body = msgspec.msgpack.Decoder(State)


def encode_event(event: Event) -> bytes:
    """The event as bytes. Raises TypeError for what is no event."""
    return _events.encode(event)


def decode_event(data: bytes) -> Event:
    """The event of these bytes. Raises StoreError where they are none, or of a kind that this build does not know."""
    return _events.decode(data)


def encode_action(action: Action) -> bytes:
    """The action as bytes. Raises TypeError for what is no action."""
    return _actions.encode(action)


def decode_action(data: bytes) -> Action:
    """The action of these bytes. Raises StoreError where they are none, or of a kind that this build does not know."""
    return _actions.decode(data)


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """The entry of these bytes. Raises StoreError where they are none."""
    try:
        return _entries.decode(data)
    except _UNREADABLE as error:
        raise StoreError(f"bytes that are no entry: {error}") from error


def encode_state(state: State) -> bytes:
    return _encoder.encode((STATE_VERSION, state))


def decode_state(data: bytes) -> State:
    """The state of these bytes. Raises StoreError where they are none or of another version."""
    try:
        version, body = _states.decode(data)
        if version != STATE_VERSION:
            raise StoreError(f"snapshot of version {version}; this build reads version {STATE_VERSION}")
        return _state_body.decode(body)
    except _UNREADABLE as error:
        raise StoreError(f"bytes that are no state: {error}") from error


def printable(value: Event | Action | Entry | State) -> Any:
    """The value as plain dicts, lists, strings and numbers; a union's member names itself under ``type``."""
    body = msgspec.to_builtins(value)
    return {"type": type(value).__name__, **body} if type(value).__name__ in _NAMED else body


_NAMED = frozenset(member.__name__ for member in (*get_args(Event), *get_args(Action)))
