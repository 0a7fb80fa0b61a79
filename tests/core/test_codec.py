"""Encoding for the journal: each value is decoded to an equal value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from agent.schema.errors import StoreError
from scheduler_feedback.core import codec
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.events import Event, Submitted, Tick
from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import SeenRequests, State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict


def of_fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for a struct. Hypothesis has one for dataclasses only; it calls default factories."""
    hints = get_type_hints(kind)
    drawn = {}
    for field in msgspec.structs.fields(kind):
        values: st.SearchStrategy[Any] = st.from_type(hints[field.name])
        drawn[field.name] = values if field.default is msgspec.NODEFAULT else st.just(field.default) | values
    return st.builds(kind, **drawn)


for _kind in (JobSpec, Job, SeenRequests):
    st.register_type_strategy(_kind, of_fields(_kind))


def check_round_trip(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any) -> None:
    """Check that a value is equal after encoding and decoding.

    Values are compared as text, because NaN is not equal to NaN. Integers have at most 64 bits.
    """
    try:
        data = encode(value)
    except OverflowError:
        reject()
    again = decode(data)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


@settings(max_examples=150, deadline=None)
@given(st.one_of(*(st.from_type(member) for member in get_args(Event))))
def test_event_round_trips(event: Event) -> None:
    check_round_trip(codec.encode_event, codec.decode_event, event)


@settings(max_examples=50, deadline=None)
@given(st.one_of(*(st.from_type(member) for member in get_args(Action))))
def test_action_round_trips(action: Action) -> None:
    check_round_trip(codec.encode_action, codec.decode_action, action)


# A state is large and slow to draw. It has enough integers that one of more than 64 bits is likely.
_STATE = {name: st.from_type(hint) for name, hint in get_type_hints(State).items()}
_LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=20, deadline=None, suppress_health_check=_LARGE)
@given(st.fixed_dictionaries({}, optional=_STATE).map(lambda given: State(**given)))
def test_state_round_trips(state: State) -> None:
    check_round_trip(codec.encode_state, codec.decode_state, state)


def test_infinite_and_missing_measures_round_trip() -> None:
    verdict = Verdict("v", Kind.HANG, "j", 1, 0, "n", Cause.UNKNOWN, 0.5, math.inf, 0.1, math.nan, 0, 1)
    again = codec.decode_event(codec.encode_event(verdict))
    assert isinstance(again, Verdict)
    assert again.slowdown == math.inf
    assert math.isnan(again.step_seconds_now)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"\x92\xa7Unknown\x80", b"\x92\xa8RankExit\x80", b"\xff" * 9])
def test_invalid_event_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="event"):
        codec.decode_event(data)


def test_event_with_a_field_of_the_wrong_type_is_refused() -> None:
    good = codec.encode_event(Submitted("j-1", JobSpec("a", ("x",), 2)))
    with pytest.raises(StoreError, match="event"):
        codec.decode_event(good.replace(b"\xa5ranks\x02", b"\xa5ranks\xc2"))


def test_snapshot_of_another_version_is_refused() -> None:
    data = codec.encode_state(State())
    assert data[1] == codec.STATE_VERSION
    with pytest.raises(StoreError, match="version 99"):
        codec.decode_state(data[:1] + bytes([99]) + data[2:])
    with pytest.raises(StoreError, match="no state"):
        codec.decode_state(data[:-3])


def test_encoding_refuses_values_that_are_no_event() -> None:
    with pytest.raises(TypeError, match="Entry is no event"):
        codec.encode_event(Entry(0, "j", "k", "t"))  # type: ignore[arg-type]


def test_printable_events_contain_their_type() -> None:
    assert codec.printable(Tick()) == {"type": "Tick"}
    printed = codec.printable(Submitted("j-1", JobSpec("a", ("x",), 2)))
    assert printed["type"] == "Submitted"
    assert printed["spec"]["ranks"] == 2
    assert set(codec.printable(State())) == {field.encode_name for field in msgspec.structs.fields(State)}
