"""The unix socket on which training processes register with the node's agent.

``gangwatch/steps.py`` describes the message. One thread serves every connection: nobody can hold it up with silence,
garbage or descriptors, and who a client is, the kernel says (SO_PEERCRED) and ``admit`` judges.
"""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from agent.schema.errors import GangwatchError, ReporterError, SourceError
from agent.schema.frame import Member
from agent.sources.pod_doors import LOOK_SECONDS, PodDoors
from agent.sources.rings import Ring

MAX_MESSAGE_BYTES = 4096
MAX_CONNECTIONS = 1024
MAX_REFUSALS = 256
MAX_PLACES = 16
"""A rank knows its place once its job has made its groups; every change of it lays the node's columns out anew."""

MESSAGE_SECONDS = 5.0
"""A client that has not sent its whole message by then is shown out."""

ASK_AGAIN_SECONDS = 0.1
"""How often a registration that cannot be judged yet is put to ``admit`` again."""

_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of unix(7): no message brings more, so that none stays unseen and open."""


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


class Refusal(NamedTuple):
    """A registration that was refused."""

    peer: Peer
    reason: str


class Registered:
    """One reporter that was admitted. ``closed`` turns true when its connection ends; its ring is readable still.

    place: what it said last of where `member` stands: of no other, whoever it names.
    """

    __slots__ = ("claim", "closed", "member", "peer", "place", "ring")

    def __init__(self, peer: Peer, claim: Claim, member: Member, ring: Ring) -> None:
        self.peer = peer
        self.claim = claim
        self.member = member
        self.ring = ring
        self.place = claim.place
        self.closed = False


Admit = Callable[[Peer, Claim, float], Member | None]
"""Judges a registration: whose it is, None to be asked again (the third argument: for how many seconds it has waited).

Raises ReporterError to refuse it. Called from the socket's thread."""


class _Connection:
    """One client: its message as far as it came, then its registration."""

    __slots__ = ("begun", "claim", "descriptor", "message", "peer", "places", "registered", "ring", "socket")

    def __init__(self, connection: socket.socket, peer: Peer, begun: float) -> None:
        self.socket = connection
        self.peer = peer
        self.begun = begun
        self.message = bytearray()
        self.descriptor = -1
        self.claim: Claim | None = None
        self.ring: Ring | None = None
        self.registered: Registered | None = None
        self.places = 0

    def receive(self) -> bool:
        """Take what has come, keeping the first descriptor and closing all others; False at the end of the stream."""
        data, ancillary, _, _ = self.socket.recvmsg(
            MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                for descriptor in descriptors:
                    if self.descriptor < 0 and self.claim is None:
                        self.descriptor = descriptor
                    else:
                        os.close(descriptor)
        self.message += data
        return bool(data)

    def complete(self) -> bool:
        """Whether a whole message is here. Raises ReporterError where it is too long."""
        if len(self.message) > 2 * MAX_MESSAGE_BYTES:
            raise ReporterError(f"{len(self.message)} bytes before it was registered")
        if len(self.message) < 4:
            return False
        length = int.from_bytes(self.message[:4], "big")
        if length > MAX_MESSAGE_BYTES:
            raise ReporterError(f"registration of {length} bytes, at most {MAX_MESSAGE_BYTES}")
        return len(self.message) >= 4 + length

    def understand(self) -> None:
        """Parse the message and map the ring. Raises ReporterError."""
        claim = parse_claim(self._take())
        if self.descriptor < 0:
            raise ReporterError("registration without a memory file")
        self.ring = Ring.of_descriptor(self.descriptor)
        self.claim = claim
        self.close_descriptor()

    def hear_places(self) -> None:
        """Take what the registered one said since. Raises ReporterError."""
        while self.registered is not None and self.complete():
            self.places += 1
            if self.places > MAX_PLACES:
                raise ReporterError(f"it has told its place {MAX_PLACES} times")
            self.registered.place = parse_place(self._take())

    def _take(self) -> bytes:
        length = int.from_bytes(self.message[:4], "big")
        message = bytes(self.message[4 : 4 + length])
        del self.message[: 4 + length]
        return message

    def answer(self, refusal: str | None) -> None:
        """Tell the client; one that does not listen is its own loss."""
        said = {"ok": True} if refusal is None else {"ok": False, "error": refusal}
        body = msgspec.json.encode(said)
        try:
            self.socket.send(len(body).to_bytes(4, "big") + body)
        except OSError:
            pass

    def close_descriptor(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Close all that is not a registered reporter's."""
        self.close_descriptor()
        if self.ring is not None and self.registered is None:
            self.ring.close()
        self.socket.close()


class StepSocket:
    """Listens for reporters at `path`, in a folder that only this user can enter, until ``close``; and at the doors of
    pods, where there are such.

    One thread serves every connection; none can hold it up. Raises SourceError where the path cannot be used, and where
    another living agent listens on it.
    """

    def __init__(
        self, path: str, admit: Admit, message_seconds: float = MESSAGE_SECONDS, doors: PodDoors | None = None
    ) -> None:
        self.refused = 0
        self._doors = doors
        self._look_at_doors = 0.0  # when next, by the monotonic clock
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self._path = path
        self._admit = admit
        self._message_seconds = message_seconds
        self._connections: set[_Connection] = set()
        self._registered: list[Registered] = []
        self._lock = threading.Lock()  # over _registered
        self._lock_file = _hold(path)
        try:
            self._listener = _listen(path)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="step-socket", daemon=True)
        self._thread.start()

    def registered(self) -> list[Registered]:
        """Everyone admitted and not forgotten, in the order of their coming."""
        with self._lock:
            return list(self._registered)

    def forget(self, registered: Registered) -> None:
        """Unmap the ring of one whose connection has closed. Only who reads the rings may call it."""
        with self._lock:
            self._registered.remove(registered)
        registered.ring.close()

    def close(self) -> None:
        """Stop listening, close every connection and ring, remove the socket. Reporters will look for a successor."""
        self._stopping = True
        self._wake.send(b"x")
        self._thread.join()
        for connection in self._connections:
            connection.close()
        for registered in self.registered():
            self.forget(registered)
        self._selector.close()
        for end in (self._listener, self._wake, self._woken, *(self._doors.close() if self._doors else ())):
            end.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass
        os.close(self._lock_file)

    # --- the thread ---

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._next_look_seconds()):
                if key.data is not None:
                    self._hear(key.data)
                elif key.fileobj is not self._woken and isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj)
            now = time.monotonic()
            if self._doors is not None and now >= self._look_at_doors:
                self._look_at_doors = now + LOOK_SECONDS
                self._attend(self._doors)
            for connection in list(self._connections):
                if connection.registered is None:
                    self._look_after(connection, now)

    def _next_look_seconds(self) -> float | None:
        """How long nothing needs to be done of itself: forever where everyone is registered, and no pod may come."""
        now = time.monotonic()
        looks = [] if self._doors is None else [max(0.0, self._look_at_doors - now)]
        waiting = [connection for connection in self._connections if connection.registered is None]
        if any(connection.claim is not None for connection in waiting):
            looks.append(ASK_AGAIN_SECONDS)
        elif waiting:
            oldest = min(connection.begun for connection in waiting)
            looks.append(max(0.0, oldest + self._message_seconds - now))
        return min(looks, default=None)

    def _attend(self, doors: PodDoors) -> None:
        """Pods have come or gone."""
        opened, gone = doors.look()
        for listener in gone:
            self._selector.unregister(listener)
            listener.close()
        for listener in opened:
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError as error:
            # Out of descriptors: the connection stays in the backlog and the selector would spin on it.
            self.refused += 1
            self.refusals.append(Refusal(Peer(0, 0), f"accept: {error.strerror}"))
            time.sleep(ASK_AGAIN_SECONDS)
            return
        accepted.setblocking(False)
        pid, uid, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        connection = _Connection(accepted, Peer(pid, uid), time.monotonic())
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        if len(self._connections) > MAX_CONNECTIONS:
            self._refuse(connection, f"{MAX_CONNECTIONS} reporters are connected already")

    def _hear(self, connection: _Connection) -> None:
        """Something has come from a client, or its end."""
        try:
            if not connection.receive():
                self._drop(connection)
            elif connection.complete():
                if connection.claim is None:
                    connection.understand()
                connection.hear_places()
        except BlockingIOError:
            pass
        except ReporterError as error:
            self._refuse(connection, str(error))
        except OSError:
            self._drop(connection)

    def _look_after(self, connection: _Connection, now: float) -> None:
        """Judge a complete registration; show out who has not sent one in time."""
        waited = now - connection.begun
        claim, ring = connection.claim, connection.ring
        try:
            if claim is None or ring is None:
                if waited >= self._message_seconds:
                    raise ReporterError(f"no whole registration within {self._message_seconds:g} s")
                return
            member = self._admit(connection.peer, claim, waited)
            if member is None:
                return
            self._register(connection, Registered(connection.peer, claim, member, ring))
            connection.hear_places()
        except GangwatchError as error:
            self._refuse(connection, str(error))

    def _register(self, connection: _Connection, registered: Registered) -> None:
        with self._lock:
            if len(self._registered) >= MAX_CONNECTIONS:
                raise ReporterError(f"{MAX_CONNECTIONS} reporters are registered already")
            for other in self._registered:
                if other.member == registered.member and not other.closed:
                    who = f"rank {other.member.rank} of {other.member.gang}"
                    raise ReporterError(f"{who} is reported by process {other.peer.pid} already")
            self._registered.append(registered)
        connection.registered = registered
        connection.answer(None)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self.refused += 1
        self.refusals.append(Refusal(connection.peer, reason))
        connection.answer(reason)
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        connection.close()
        if connection.registered is not None:
            connection.registered.closed = True


_ENTERED_BY_ALL = 0o011
"""Of a folder that others may enter only: whose processes register there, the kernel and the control groups attest."""


def _hold(path: str) -> int:
    """Descriptor of the lock that makes its holder the only agent at this path; the folder is made, or checked."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner = os.stat(folder)
        if owner.st_uid != os.geteuid() or stat.S_IMODE(owner.st_mode) & 0o077 not in (0, _ENTERED_BY_ALL):
            raise SourceError(
                f"{folder}: must belong to this user and be closed to others (chmod 0700), or be one that all may "
                "enter and nobody else may list or change (chmod 0711), where ranks of other users are to report"
            )
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SourceError(f"{path}.lock: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SourceError(f"{path}: another agent listens here") from None
    return descriptor


def _listen(path: str) -> socket.socket:
    """The listening socket; one that a dead agent left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        entered = stat.S_IMODE(os.stat(os.path.dirname(path) or ".").st_mode) & _ENTERED_BY_ALL
        os.chmod(path, 0o666 if entered else 0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SourceError(f"{path}: {error.strerror or error}") from None
    return listener
