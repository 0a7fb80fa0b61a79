"""Lossless encoding of events, actions, entries and the state as bytes.

The format is MessagePack, not JSON, because a number may be infinite or absent (NaN), which JSON cannot represent.
Events and actions are unions, encoded as ``[class name, fields]``; the state is encoded as ``[version, fields]``. A
field that is missing in an older message takes its default; an unknown field is ignored. ``printable`` returns an
event, action, entry or state as plain lists and dicts.
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
"""Exceptions that damaged bytes raise; TypeError if the database column does not contain bytes."""

_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


class _Union(Generic[_T]):
    """Encoder and decoder of a union: a value of one of several classes, tagged with the name of its class."""

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
_states = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_state_body = msgspec.msgpack.Decoder(State)


def encode_event(event: Event) -> bytes:
    """Encode an event. Raises TypeError if the value is not an event."""
    return _events.encode(event)


def decode_event(data: bytes) -> Event:
    """Decode an event. Raises StoreError if the bytes do not contain an event of a known kind."""
    return _events.decode(data)


def encode_action(action: Action) -> bytes:
    """Encode an action. Raises TypeError if the value is not an action."""
    return _actions.encode(action)


def decode_action(data: bytes) -> Action:
    """Decode an action. Raises StoreError if the bytes do not contain an action of a known kind."""
    return _actions.decode(data)


def encode_state(state: State) -> bytes:
    """Encode the state with its version."""
    return _encoder.encode((STATE_VERSION, state))


def decode_state(data: bytes) -> State:
    """Decode a state. Raises StoreError if the bytes do not contain a state, or if the state has another version."""
    try:
        version, body = _states.decode(data)
        if version != STATE_VERSION:
            raise StoreError(f"snapshot of version {version}; this build reads version {STATE_VERSION}")
        return _state_body.decode(body)
    except _UNREADABLE as error:
        raise StoreError(f"bytes that are no state: {error}") from error


def printable(value: Event | Action | Entry | State) -> Any:
    """Return the value as plain dicts, lists, strings and numbers. The dict of an event or action has a ``type``: the
    name of its class."""
    body = msgspec.to_builtins(value)
    return {"type": type(value).__name__, **body} if type(value).__name__ in _NAMED else body


_NAMED = frozenset(member.__name__ for member in (*get_args(Event), *get_args(Action)))
