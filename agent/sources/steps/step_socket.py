"""The unix socket on which training processes register with the node's agent.

``gangwatch/steps.py`` describes the messages. Who a client is, the kernel says (SO_PEERCRED) and ``admit`` judges; what
its tenant may use, the accounts say (agent/sources/steps/tenants.py).

One thread serves every connection, and no client can hold it up:

- It never waits for a client: sockets do not block, and whatever could block at its close is closed by other threads
  (agent/sources/steps/closers.py).
- It serves the tenant first that has used the least of it in the present second.
- It uses no more than BUSY_SHARE of a processor once BUSY_BURST_SECONDS are used up, since the agent's own limit
  (a CPU quota) would otherwise delay its frames.
"""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import socket
import stat
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agent.schema.errors import REFUSAL_REASONS, GangwatchError, ReporterError, SourceError
from agent.schema.frame import Member
from agent.sources.steps.closers import KICK_SECONDS, Closer, allow_kicks
from agent.sources.steps.pod_sockets import LOOK_SECONDS, PodDoors
from agent.sources.steps.rings import Ring
from agent.sources.steps.step_messages import MAX_MESSAGE_BYTES, Claim, Peer, parse_claim, parse_place, take_message
from agent.sources.steps.tenants import Accounts, Quotas, Tenant

MAX_REFUSALS = 256
MAX_PLACES = 16
"""A rank knows its place once its job has made its groups; every change of it lays the node's columns out anew."""

MESSAGE_SECONDS = 5.0
"""A client that has not sent its whole message by then is shown out."""

ASK_AGAIN_SECONDS, LAST_ASK_AGAIN_SECONDS = 0.1, 0.5
"""After how long a registration that cannot be judged yet is put to ``admit`` again: doubled from the first to the
last."""

BUSY_SHARE, BUSY_BURST_SECONDS, SLICE_SECONDS = 0.08, 0.1, 0.0005
"""Processor time for all clients: on average, at once (300 registrations), and the least that is worth a wake-up."""

MAX_REST_SECONDS = 0.05
"""The longest sleep at a time: a stop is noticed within it."""

ACCEPTS_A_PASS = 16
"""Connections taken from one listener before all others get their turn."""

MAX_CLOSING = 256
"""So many connections may wait to be closed; the socket accepts none meanwhile."""

MAX_STUCK_USERS = 8
"""Once descriptors of so many unattested users cannot be closed, no unattested process may send any."""

MAX_REFUSAL_CHARACTERS = 500

_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of unix(7): no message brings more, so that the kernel closes none in this thread, which could block."""


_OURS = Tenant("user", "")
"""On whose account listeners are closed: no peer has an empty user id."""


class Refusal(NamedTuple):
    """A registration that was refused: in words, and by which of REFUSAL_REASONS."""

    peer: Peer
    reason: str
    label: str
    tenant: Tenant


class Admission(NamedTuple):
    """Whose steps a process reports, and on whose account."""

    member: Member
    tenant: Tenant


class Registered:
    """One reporter that was admitted. ``closed`` turns true when its connection ends; its ring is readable still.

    place: what it said last of where `member` stands: of no other, whoever it names.
    """

    __slots__ = ("claim", "closed", "member", "peer", "place", "ring", "tenant")

    def __init__(self, peer: Peer, claim: Claim, admission: Admission, ring: Ring) -> None:
        self.peer = peer
        self.claim = claim
        self.member, self.tenant = admission
        self.ring = ring
        self.place = claim.place
        self.closed = False


Admit = Callable[[Peer, Claim, float], Admission | None]
"""Judges a registration: whose it is, None to be asked again (the third argument: for how many seconds it has waited).

Raises ReporterError to refuse it. Called from the socket's thread."""


def tenant_of_user(peer: Peer) -> Tenant:
    """The tenant where nothing but the user id is known."""
    return Tenant("user", str(peer.uid))


class _Connection:
    """One client: its message as far as it came, then its registration."""

    __slots__ = (
        "ask_at",
        "asks",
        "begun",
        "claim",
        "message",
        "peer",
        "places",
        "registered",
        "ring",
        "socket",
        "tenant",
    )

    def __init__(self, connection: socket.socket, peer: Peer, tenant: Tenant, begun: float) -> None:
        self.socket = connection
        self.peer = peer
        self.tenant = tenant
        self.begun = begun
        self.message = bytearray()
        self.ring: Ring | None = None
        self.claim: Claim | None = None
        self.registered: Registered | None = None
        self.ask_at = 0.0
        self.asks = 0
        self.places = 0

    def receive(self, closer: Closer) -> bool:
        """Take what has come; False at the end of the stream. A descriptor that is no ring goes to the closer.

        Raises ReporterError for what nobody may send.
        """
        data, ancillary, flags, _ = self.socket.recvmsg(
            MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if descriptors or flags & socket.MSG_CTRUNC:
            self._take_ring(list(descriptors), closer)
        self.message += data
        if len(self.message) > 2 * MAX_MESSAGE_BYTES:
            raise ReporterError(f"{len(self.message)} bytes and no end of a message: at most {MAX_MESSAGE_BYTES}")
        return bool(data)

    def _take_ring(self, descriptors: list[int], closer: Closer) -> None:
        """Keep the one descriptor that a registration brings. Raises ReporterError."""
        if len(descriptors) == 1 and self.ring is None and self.registered is None:
            try:
                self.ring = Ring.of_descriptor(descriptors[0])
            except ReporterError:
                closer.put(descriptors[0], self.tenant)
                raise
            os.close(descriptors[0])  # a memory file: to close it waits for nobody
            return
        for descriptor in descriptors:
            closer.put(descriptor, self.tenant)
        raise ReporterError(
            "more than one descriptor: send one, of the memory file, and only with the registration", "descriptors"
        )

    def understand(self) -> bool:
        """Whether the claim is here, and a ring with it. Raises ReporterError."""
        if self.claim is None:
            message = take_message(self.message)
            if message is None:
                return False
            claim = parse_claim(message)
            if self.ring is None:
                raise ReporterError("registration without a memory file: attach its descriptor (SCM_RIGHTS)", "ring")
            self.claim = claim
        return True

    def hear_places(self) -> None:
        """Take what the registered one said since. Raises ReporterError."""
        while self.registered is not None and (message := take_message(self.message)) is not None:
            self.places += 1
            if self.places > MAX_PLACES:
                raise ReporterError(f"it has told its place {MAX_PLACES} times")
            self.registered.place = parse_place(message)


def _answer(client: socket.socket, refusal: str | None) -> None:
    """Tell the client; one that does not listen is its own loss."""
    said = {"ok": True} if refusal is None else {"ok": False, "error": refusal}
    body = msgspec.json.encode(said)
    try:
        client.send(len(body).to_bytes(4, "big") + body, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        pass


def _printable(text: str) -> str:
    """The text as a log or page may show it, whatever a client wrote into it."""
    shown = text if len(text) <= MAX_REFUSAL_CHARACTERS else f"{text[:MAX_REFUSAL_CHARACTERS]}..."
    return shown if shown.isprintable() else "".join(one if one.isprintable() else "?" for one in shown)


class _Pace:
    """How much processor time the thread may use now: BUSY_SHARE of the time that passes, at most a burst of it."""

    def __init__(self) -> None:
        self._left = BUSY_BURST_SECONDS
        self._at = time.monotonic()

    def spend(self, seconds: float) -> None:
        now = time.monotonic()
        self._left = min(BUSY_BURST_SECONDS, self._left + (now - self._at) * BUSY_SHARE) - seconds
        self._at = now

    @property
    def used_up(self) -> bool:
        return self._left <= 0.0

    def rest_seconds(self) -> float:
        """How long to sleep until a slice's worth is there; 0 where some is left."""
        self.spend(0.0)
        return max(0.0, (SLICE_SECONDS - self._left) / BUSY_SHARE) if self._left <= 0.0 else 0.0


class StepSocket:
    """Listens for reporters at `path`, in a folder that only this user can enter, until ``close``; and at the doors of
    pods, where there are such.

    admit: judges each registration. tenant_of: whose account a new connection is on, before anything is read from it.
    confirm: is called with each reporter once it is registered; it and the others are called from the socket's thread.
    refused: refusals by reason. Raises SourceError where the path cannot be used, and where another living agent
    listens on it.
    """

    def __init__(
        self,
        path: str,
        admit: Admit,
        message_seconds: float = MESSAGE_SECONDS,
        doors: PodDoors | None = None,
        quotas: Quotas | None = None,
        tenant_of: Callable[[Peer], Tenant] = tenant_of_user,
        confirm: Callable[[Registered], None] | None = None,
    ) -> None:
        self.refused = dict.fromkeys(REFUSAL_REASONS, 0)
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self._doors = doors
        self._look_at_doors = 0.0  # when next, by the monotonic clock
        self._path = path
        self._admit = admit
        self._tenant_of = tenant_of
        self._confirm = confirm
        self._message_seconds = message_seconds
        self._accounts = Accounts(quotas or Quotas())
        self._settle_at = 0.0
        self._pending: dict[_Connection, None] = {}  # have not registered yet; oldest first
        self._undecided: dict[_Connection, None] = {}  # of them those that ``admit`` is to be asked about again
        self._reporting: dict[Member, _Connection] = {}
        self._registered: dict[Registered, None] = {}
        self._forgotten: deque[Tenant] = deque()
        self._lock = threading.Lock()  # over _registered
        self._lock_file = _hold(path)
        try:
            self._listener = _listen(path)
        except BaseException:
            os.close(self._lock_file)
            raise
        allow_kicks()
        self._sockets = Closer("step-socket-closer")
        self._descriptors = Closer("step-descriptor-closer")
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
        """Close the ring of one whose connection has closed. Only who reads the rings may call it."""
        with self._lock:
            del self._registered[registered]
        registered.ring.close()
        self._forgotten.append(registered.tenant)

    def close(self) -> None:
        """Stop listening, close every connection and ring, remove the socket. Reporters will look for a successor."""
        self._stopping = True
        self._wake.send(b"x")
        self._thread.join()
        for connection in [*self._pending, *self._reporting.values()]:
            self._drop(connection)
        for registered in self.registered():
            self.forget(registered)
        self._selector.close()
        for listener in (self._listener, *(self._doors.close() if self._doors else ())):
            if (descriptor := listener.detach()) >= 0:
                self._sockets.put(descriptor, _OURS)
        self._wake.close()
        self._woken.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass
        self._sockets.close(1.0)
        self._descriptors.close(1.0)
        os.close(self._lock_file)

    # --- the thread ---

    def _serve(self) -> None:
        pace = _Pace()
        spent = time.thread_time()
        while not self._stopping:
            events = self._selector.select(self._next_look_seconds())
            now = time.monotonic()
            if now >= self._settle_at:
                self._settle_at = now + 1.0
                self._accounts.settle(now)
            while self._forgotten:
                self._accounts.forget(self._forgotten.popleft())
            self._descriptors.look_after()
            listening = not self._sockets.look_after() or self._sockets.waiting() < MAX_CLOSING
            ready: list[_Connection] = []
            for key, _ in events:
                if key.data is not None:
                    ready.append(key.data)
                elif listening and key.fileobj is not self._woken and isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, now)
            ready.extend(connection for connection in self._undecided if connection.ask_at <= now)
            waits = not listening
            for connection in sorted(set(ready), key=self._turn):
                waits |= not self._attend(connection, now)
                before, spent = spent, time.thread_time()
                pace.spend(spent - before)
                self._accounts.spend(connection.tenant, spent - before, now)
                if pace.used_up:
                    break
            self._show_out(now)
            if self._doors is not None and now >= self._look_at_doors:
                self._look_at_doors = now + LOOK_SECONDS
                self._look_for_doors(self._doors)
            before, spent = spent, time.thread_time()
            pace.spend(spent - before)
            if waits:
                time.sleep(KICK_SECONDS)
            while (rest_seconds := pace.rest_seconds()) and not self._stopping:
                time.sleep(min(rest_seconds, MAX_REST_SECONDS))

    def _turn(self, connection: _Connection) -> tuple[float, float]:
        """What orders those who wait to be served: who has used least, and of one tenant who came first."""
        return self._accounts.spent(connection.tenant), connection.begun

    def _next_look_seconds(self) -> float | None:
        """How long nothing needs to be done of itself: forever where everyone is registered, and no pod may come."""
        now = time.monotonic()
        looks = [] if self._doors is None else [self._look_at_doors - now]
        looks.extend(connection.ask_at - now for connection in self._undecided)
        oldest = next((connection for connection in self._pending if connection not in self._undecided), None)
        if oldest is not None:
            looks.append(oldest.begun + self._message_seconds - now)
        if self._sockets.waiting() or self._descriptors.waiting():
            looks.append(KICK_SECONDS)
        return max(0.0, min(looks)) if looks else None

    def _look_for_doors(self, doors: PodDoors) -> None:
        """Pods have come or gone."""
        opened, gone = doors.look()
        for listener in gone:
            self._selector.unregister(listener)
            self._sockets.put(listener.detach(), _OURS)
        for listener in opened:
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket, now: float) -> None:
        """Take up to ACCEPTS_A_PASS connections."""
        for _ in range(ACCEPTS_A_PASS):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the backlog and the selector would spin on it.
                peer = Peer(0, 0)
                self._count_refusal(peer, Tenant("user", ""), f"accept: {error.strerror}", "descriptors", now)
                time.sleep(ASK_AGAIN_SECONDS)
                return
            accepted.setblocking(False)
            pid, uid, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            peer = Peer(pid, uid)
            tenant = self._tenant_of(peer)
            try:
                self._check_stuck(tenant)
                self._accounts.connect(tenant, now)
            except ReporterError as error:
                self._count_refusal(peer, tenant, str(error), error.reason, now)
                _answer(accepted, _printable(str(error)))
                self._close_socket(accepted, tenant)
                continue
            connection = _Connection(accepted, peer, tenant, now)
            self._pending[connection] = None
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _check_stuck(self, tenant: Tenant) -> None:
        """Raise ReporterError where this tenant may send nothing, since what it sent cannot be closed."""
        stuck = self._descriptors.stuck_tenants()
        if tenant in stuck:
            raise ReporterError(
                f"{tenant} has sent a descriptor that cannot be closed (of a FUSE or NFS file whose server does not "
                "answer): end that server, and send a memory file",
                "descriptors",
            )
        if not tenant.attested and sum(not one.attested for one in stuck) >= MAX_STUCK_USERS:
            raise ReporterError("descriptors of other users cannot be closed: try again later", "full")

    def _attend(self, connection: _Connection, now: float) -> bool:
        """Take what a client has sent, or judge it once more; False where it has to be left for a moment."""
        try:
            if connection in self._undecided and connection.ask_at <= now:
                self._judge(connection, now)
                return True
            self._check_stuck(connection.tenant)
            if self._descriptors.has(connection.tenant):
                return False  # one message with descriptors at a time, of each tenant
            if not connection.receive(self._descriptors):
                self._drop(connection)
            elif connection.registered is not None:
                connection.hear_places()
            elif connection not in self._undecided and connection.understand():
                self._judge(connection, now)
        except BlockingIOError:
            pass
        except ReporterError as error:
            self._refuse(connection, str(error), error.reason, now)
        except GangwatchError as error:
            self._refuse(connection, str(error), "identity", now)
        except OSError:
            self._drop(connection)
        return True

    def _judge(self, connection: _Connection, now: float) -> None:
        """Put a complete registration to ``admit``. Raises GangwatchError."""
        claim, ring = connection.claim, connection.ring
        assert claim is not None and ring is not None
        admission = self._admit(connection.peer, claim, now - connection.begun)
        if admission is None:
            pause_seconds = min(ASK_AGAIN_SECONDS * 2.0**connection.asks, LAST_ASK_AGAIN_SECONDS)
            connection.asks += 1
            connection.ask_at = now + pause_seconds
            self._undecided[connection] = None
            return
        member = admission.member
        if (other := self._reporting.get(member)) is not None:
            raise ReporterError(
                f"rank {member.rank} of {member.gang} is reported by process {other.peer.pid} already", "identity"
            )
        self._accounts.register(admission.tenant, ring.slots, now)
        self._undecided.pop(connection, None)
        del self._pending[connection]
        self._accounts.disconnect(connection.tenant)
        registered = connection.registered = Registered(connection.peer, claim, admission, ring)
        self._reporting[member] = connection
        with self._lock:
            self._registered[registered] = None
        if self._confirm is not None:
            self._confirm(registered)
        _answer(connection.socket, None)
        connection.hear_places()

    def _show_out(self, now: float) -> None:
        """Refuse those that have not sent a whole registration in time."""
        late: list[_Connection] = []
        for connection in self._pending:
            if now - connection.begun < self._message_seconds:
                break
            if connection not in self._undecided:
                late.append(connection)
        for connection in late:
            self._refuse(connection, f"no whole registration within {self._message_seconds:g} s", "timeout", now)

    def _refuse(self, connection: _Connection, reason: str, label: str, now: float) -> None:
        self._count_refusal(connection.peer, connection.tenant, reason, label, now)
        _answer(connection.socket, _printable(reason))
        self._drop(connection)

    def _count_refusal(self, peer: Peer, tenant: Tenant, reason: str, label: str, now: float) -> None:
        self.refused[label] += 1
        if self._accounts.may_report_refusal(tenant, now):
            self.refusals.append(Refusal(peer, _printable(reason), label, tenant))

    def _close_socket(self, client: socket.socket, tenant: Tenant) -> None:
        """Close a connection: at once where nothing in its queue could make that wait, since nothing more can come."""
        unread = array.array("i", [1])
        try:
            client.shutdown(socket.SHUT_RDWR)
            fcntl.ioctl(client.fileno(), termios.FIONREAD, unread)
        except OSError:
            pass
        descriptor = client.detach()
        if unread[0]:
            self._sockets.put(descriptor, tenant)
        else:
            os.close(descriptor)

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._close_socket(connection.socket, connection.tenant)
        self._undecided.pop(connection, None)
        registered = connection.registered
        if registered is not None:
            del self._reporting[registered.member]
            self._accounts.close(registered.tenant)
            registered.closed = True
            return
        del self._pending[connection]
        self._accounts.disconnect(connection.tenant)
        if connection.ring is not None:
            connection.ring.close()


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
