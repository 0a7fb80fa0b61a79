"""Messages that training processes send over the step socket. Pure.

``gangwatch/steps.py`` describes the messages. Their content is not trusted:
agent/collectors/steps/claimed_identity.py checks the claimed identity.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from agent.schema.errors import ReporterError

MAX_MESSAGE_BYTES = 4096

MAX_REPORT_BYTES = 16 * 1024
"""Maximum size in bytes of the report about a blocked rank, which a process may send only if the agent has asked."""

QUESTION = b'{"v":1,"ask":"blocked"}'
"""Message to a registered process that asks where it is blocked."""

NO_SHIFT = b'{"v":1,"shift":null}'
"""Message to a registered process that ends its time shift."""

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
    answers: _Count = 0
    """1 if the process answers QUESTION."""
    shifts: _Count = 0
    """1 if the process can delay its steps (``shift_message``)."""


_Text = Annotated[str, msgspec.Meta(max_length=512)]
_Stacks = Annotated[str, msgspec.Meta(max_length=8192)]
_Long = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class CollectiveReport(msgspec.Struct, frozen=True):
    """Collective in which a rank says it is. Fields of later versions are ignored."""

    operation: _Text = ""
    """Name of the operation, for example all_reduce."""
    group: _Text = ""
    """Name of the process group (communicator)."""
    sequence: _Long | None = None
    """Number of the collective in its group, from 0; None if it is not counted."""
    ranks: _Text = ""
    """Global ranks of the group, for example 0-7."""
    bytes: _Long | None = None
    """Size of the rank's input in bytes."""


class BlockedReport(msgspec.Struct, frozen=True):
    """Answer of a process to QUESTION. Fields of later versions are ignored."""

    where: _Text = ""
    """Innermost place of the main thread, in words."""
    stacks: _Stacks = ""
    """Python stacks of the threads, one frame a line."""
    collective: CollectiveReport | None = None
    communicators: _Text = ""
    """Communicators of NCCL that are incomplete or out of step, in words; '' if none are known."""


class _Later(msgspec.Struct, frozen=True):
    """Message that a process sends after its registration: its new position, or an answer to QUESTION."""

    v: int
    place: Place | None = None
    blocked: BlockedReport | None = None


_UPGRADE = "upgrade gangwatch on the node, or gangwatch-steps in the job, whichever is older"

_claims = msgspec.json.Decoder(Claim)
_later = msgspec.json.Decoder(_Later)


def take_message(received: bytearray, most_bytes: int = MAX_MESSAGE_BYTES) -> bytes | None:
    """Remove the first message from `received` and return it without its length; None if it is incomplete.

    Raise ReporterError if the message is longer than `most_bytes`.
    """
    if len(received) < LENGTH_BYTES:
        return None
    length = int.from_bytes(received[:LENGTH_BYTES], "big")
    if length > most_bytes:
        what = "registration" if most_bytes == MAX_MESSAGE_BYTES else "message"
        raise ReporterError(f"{what} of {length} bytes, at most {most_bytes}")
    if len(received) < LENGTH_BYTES + length:
        return None
    message = bytes(received[LENGTH_BYTES : LENGTH_BYTES + length])
    del received[: LENGTH_BYTES + length]
    return message


def shift_message(period_ns: int, offset_ns: int) -> bytes:
    """Return the message to a registered process that its steps begin at ``offset_ns + k * period_ns`` since 1970."""
    return b'{"v":1,"shift":{"period_ns":%d,"offset_ns":%d}}' % (period_ns, offset_ns)


def parse_claim(message: bytes) -> Claim:
    """Parse the identity that a process claims in a message (without its length). Raise ReporterError if invalid."""
    try:
        claim = _claims.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"registration: {error}") from None
    if claim.v != 1:
        raise ReporterError(f"registration of version {claim.v}; this agent supports version 1: {_UPGRADE}")
    return claim


def parse_later(message: bytes) -> Place | BlockedReport:
    """Parse what a registered process sends (without its length): its position, or an answer to QUESTION.

    Raise ReporterError if the message is invalid.
    """
    try:
        update = _later.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReporterError(f"message after the registration: {error}") from None
    if update.v != 1:
        raise ReporterError(f"message of version {update.v}; this agent supports version 1: {_UPGRADE}")
    found = update.blocked if update.place is None else update.place
    if found is None:
        raise ReporterError("message after the registration: it has neither a place nor a report")
    return found
