"""The messages that training processes send over the step socket, and who sends them. Pure.

``gangwatch/steps.py`` describes them. All of it is the sender's word: what is believed is decided in
agent/collectors/steps/steps.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from agent.schema.errors import ReporterError

MAX_MESSAGE_BYTES = 4096

LENGTH_BYTES = 4
"""Of the big-endian length before each message."""


class Peer(NamedTuple):
    """Who is at the other end, by the kernel's word (SO_PEERCRED). pid is 0 where it is in a foreign namespace."""

    pid: int
    uid: int


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]*\Z")]


_Coordinate = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]


class Place(msgspec.Struct, frozen=True):
    """Where a rank says that it stands in its job's parallel layout: indices in its groups, None where not known."""

    data: _Coordinate | None = None
    stage: _Coordinate | None = None
    tensor: _Coordinate | None = None
    expert: _Coordinate | None = None


class Claim(msgspec.Struct, frozen=True):
    """What a registering process says of itself. Fields that a later version adds are ignored."""

    v: int
    gang: _Word | None = None
    rank: _Count | None = None
    attempt: _Count | None = None
    world_size: _Count | None = None
    pid: _Count | None = None
    place: Place = Place()


class _Later(msgspec.Struct, frozen=True):
    """What a registered process says when it knows more."""

    v: int
    place: Place


_UPGRADE = "upgrade gangwatch on the node, or gangwatch-steps in the job, whichever is older"

_claims = msgspec.json.Decoder(Claim)
_later = msgspec.json.Decoder(_Later)


def take_message(received: bytearray) -> bytes | None:
    """The first whole message in `received`, without its length and taken out of it; None where it is not whole yet.

    Raises ReporterError where it is longer than any message may be.
    """
    if len(received) < LENGTH_BYTES:
        return None
    length = int.from_bytes(received[:LENGTH_BYTES], "big")
    if length > MAX_MESSAGE_BYTES:
        raise ReporterError(f"registration of {length} bytes, at most {MAX_MESSAGE_BYTES}")
    if len(received) < LENGTH_BYTES + length:
        return None
    message = bytes(received[LENGTH_BYTES : LENGTH_BYTES + length])
    del received[: LENGTH_BYTES + length]
    return message


def parse_claim(message: bytes) -> Claim:
    """The claim in a message (without its length). Raises ReporterError, saying what is wrong."""
    try:
        claim = _claims.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"registration: {error}") from None
    if claim.v != 1:
        raise ReporterError(f"registration of version {claim.v}; this agent speaks 1: {_UPGRADE}")
    return claim


def parse_place(message: bytes) -> Place:
    """The place in a later message (without its length). Raises ReporterError, saying what is wrong."""
    try:
        told = _later.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"place: {error}") from None
    if told.v != 1:
        raise ReporterError(f"place of version {told.v}; this agent speaks 1: {_UPGRADE}")
    return told.place
