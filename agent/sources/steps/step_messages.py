"""Messages that training processes send over the step socket. Pure.

``gangwatch/steps.py`` describes the messages. Their content is not trusted:
agent/collectors/steps/claimed_identity.py checks the claimed identity.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from agent.schema.errors import ReporterError

MAX_MESSAGE_BYTES = 4096

LENGTH_BYTES = 4
"""Size in bytes of the length before each message, a big-endian integer."""


class Peer(NamedTuple):
    """Process at the other end of a connection, as reported by the kernel (SO_PEERCRED).

    pid: 0 if the process is in a pid namespace that the agent cannot see.
    """

    pid: int
    uid: int


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]*\Z")]


_Coordinate = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]


class Place(msgspec.Struct, frozen=True):
    """Reported position of a rank in its job: data-parallel, stage, tensor and expert index; None if not known."""

    data: _Coordinate | None = None
    stage: _Coordinate | None = None
    tensor: _Coordinate | None = None
    expert: _Coordinate | None = None


class Claim(msgspec.Struct, frozen=True):
    """Identity that a registering process claims. Fields of later versions are ignored."""

    v: int
    gang: _Word | None = None
    rank: _Count | None = None
    attempt: _Count | None = None
    world_size: _Count | None = None
    pid: _Count | None = None
    place: Place = Place()


class _Later(msgspec.Struct, frozen=True):
    """Message that a process sends after its registration: an update of its position."""

    v: int
    place: Place


_UPGRADE = "upgrade gangwatch on the node, or gangwatch-steps in the job, whichever is older"

_claims = msgspec.json.Decoder(Claim)
_later = msgspec.json.Decoder(_Later)


def take_message(received: bytearray) -> bytes | None:
    """Remove the first message from `received` and return it without its length; None if it is incomplete.

    Raise ReporterError if the message is too long.
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
    """Parse the identity that a process claims in a message (without its length). Raise ReporterError if invalid."""
    try:
        claim = _claims.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"registration: {error}") from None
    if claim.v != 1:
        raise ReporterError(f"registration of version {claim.v}; this agent supports version 1: {_UPGRADE}")
    return claim


def parse_place(message: bytes) -> Place:
    """Parse the position that a registered process reports in a message (without its length).

    Raise ReporterError if the message is invalid.
    """
    try:
        update = _later.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"place: {error}") from None
    if update.v != 1:
        raise ReporterError(f"place of version {update.v}; this agent supports version 1: {_UPGRADE}")
    return update.place
