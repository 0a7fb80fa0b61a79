"""Unix socket on which training processes register with the node's agent.

``gangwatch/steps.py`` describes the messages. The kernel reports the peer's pid and user (SO_PEERCRED), ``admit``
decides its identity, and the accounts limit each tenant (agent/sources/steps/tenants.py).

One thread serves all connections, and no client can block it:

- It never waits for a client. Sockets are non-blocking, and descriptors whose close may block are closed by other
  threads (agent/sources/steps/closers.py).
- It serves the tenant first that has used the least CPU time in the current second.
- It uses at most BUSY_SHARE of a CPU once BUSY_BURST_SECONDS are used up. Otherwise the agent's CPU quota would delay
  its frames.
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
from agent.sources.steps.pod_sockets import LOOK_SECONDS, PodSockets
from agent.sources.steps.rings import Ring
from agent.sources.steps.step_messages import MAX_MESSAGE_BYTES, Claim, Peer, parse_claim, parse_place, take_message
from agent.sources.steps.tenants import Accounts, Quotas, Tenant

MAX_REFUSALS = 256
MAX_PLACES = 16
"""Maximum number of positions that a reporter may send. A rank knows its position in the parallel layout once its job
has created its process groups. Every change makes a new layout of the node's columns."""

MESSAGE_SECONDS = 5.0
"""Time in which a client must send its complete registration."""

ASK_AGAIN_SECONDS, LAST_ASK_AGAIN_SECONDS = 0.1, 0.5
"""Minimum and maximum delay before ``admit`` is called again for an undecided registration; doubled each time."""

BUSY_SHARE, BUSY_BURST_SECONDS, SLICE_SECONDS = 0.08, 0.1, 0.0005
"""CPU time for all clients: average share, burst (300 registrations), and minimum that is worth a wake-up."""

MAX_REST_SECONDS = 0.05
"""Maximum duration of one sleep, so that a stop is noticed in time."""

ACCEPTS_A_PASS = 16
"""Maximum connections accepted from one listener before the others are served."""

MAX_CLOSING = 256
"""Maximum number of connections waiting to be closed. At the limit the socket accepts no connections."""

MAX_STUCK_USERS = 8
"""Number of unattested users with a descriptor that cannot be closed, at which all unattested processes are refused."""

MAX_REFUSAL_CHARACTERS = 500

_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of unix(7), the maximum per message. With room for all, the kernel closes none in this thread, which could
block."""


_OURS = Tenant("user", "")
"""Tenant for which listeners are closed: no peer has an empty user id."""


class Refusal(NamedTuple):
    """Refused registration. reason: error text; label: one of REFUSAL_REASONS."""

    peer: Peer
    reason: str
    label: str
    tenant: Tenant


class Admission(NamedTuple):
    """Rank whose steps a process reports, and the tenant that is charged."""

    member: Member
    tenant: Tenant


class Registered:
    """Admitted reporter. ``closed`` becomes True when its connection ends; its ring is still readable.

    place: last reported position of `member` in the job's parallel layout.
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
"""Decision on a registration: rank and tenant, or None to retry later. The third argument is the time in seconds since
the connection. Raises ReporterError to refuse it. Called in the socket's thread."""


def tenant_of_user(peer: Peer) -> Tenant:
    """Return the tenant of a peer of which only the user id is known."""
    return Tenant("user", str(peer.uid))


class _Connection:
    """One client connection: the received part of its message, and later its registration."""

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
        """Receive available data; return False at the end of the stream. Give a descriptor that is not a ring to the
        closer. Raise ReporterError for data that no client may send.
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
            raise ReporterError(f"incomplete message of {len(self.message)} bytes, at most {MAX_MESSAGE_BYTES}")
        return bool(data)

    def _take_ring(self, descriptors: list[int], closer: Closer) -> None:
        """Keep the one descriptor of a registration. Raise ReporterError for any other."""
        if len(descriptors) == 1 and self.ring is None and self.registered is None:
            try:
                self.ring = Ring.of_descriptor(descriptors[0])
            except ReporterError:
                closer.put(descriptors[0], self.tenant)
                raise
            os.close(descriptors[0])  # closing a memory file does not block
            return
        for descriptor in descriptors:
            closer.put(descriptor, self.tenant)
        raise ReporterError(
            "too many descriptors: send exactly one, of the memory file, with the registration", "descriptors"
        )

    def parse_registration(self) -> bool:
        """Return whether the registration is complete: claim and ring. Raise ReporterError if it is invalid."""
        if self.claim is None:
            message = take_message(self.message)
            if message is None:
                return False
            claim = parse_claim(message)
            if self.ring is None:
                raise ReporterError("registration without a memory file: attach its descriptor (SCM_RIGHTS)", "ring")
            self.claim = claim
        return True

    def update_place(self) -> None:
        """Parse the position updates of a registered reporter. Raise ReporterError if one is invalid."""
        while self.registered is not None and (message := take_message(self.message)) is not None:
            self.places += 1
            if self.places > MAX_PLACES:
                raise ReporterError(f"more than {MAX_PLACES} updates of its place")
            self.registered.place = parse_place(message)


def _answer(client: socket.socket, refusal: str | None) -> None:
    """Send the result to the client. Ignore a client that does not read it."""
    response = {"ok": True} if refusal is None else {"ok": False, "error": refusal}
    body = msgspec.json.encode(response)
    try:
        client.send(len(body).to_bytes(4, "big") + body, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        pass


def _printable(text: str) -> str:
    """Return the text shortened and without unprintable characters, since it may contain input of a client."""
    shown = text if len(text) <= MAX_REFUSAL_CHARACTERS else f"{text[:MAX_REFUSAL_CHARACTERS]}..."
    return shown if shown.isprintable() else "".join(one if one.isprintable() else "?" for one in shown)


class _Pace:
    """Budget of the thread's CPU time: BUSY_SHARE of elapsed time, up to a burst."""

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
        """Return the time to sleep until a slice is available; 0 if some budget is left."""
        self.spend(0.0)
        return max(0.0, (SLICE_SECONDS - self._left) / BUSY_SHARE) if self._left <= 0.0 else 0.0


class StepSocket:
    """Listener for reporters at `path` and at the sockets of pods, until ``close``.

    admit: decides on each registration. tenant_of: returns the tenant of a new connection before anything is read.
    confirm: is called with each registered reporter. All are called in the socket's thread. refused: refusals by
    reason. Raise SourceError if the path cannot be used or another live agent listens on it.
    """

    def __init__(
        self,
        path: str,
        admit: Admit,
        message_seconds: float = MESSAGE_SECONDS,
        doors: PodSockets | None = None,
        quotas: Quotas | None = None,
        tenant_of: Callable[[Peer], Tenant] = tenant_of_user,
        confirm: Callable[[Registered], None] | None = None,
    ) -> None:
        self.refused = dict.fromkeys(REFUSAL_REASONS, 0)
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self._doors = doors
        self._scan_doors_at = 0.0  # next scan for pods, monotonic seconds
        self._path = path
        self._admit = admit
        self._tenant_of = tenant_of
        self._confirm = confirm
        self._message_seconds = message_seconds
        self._accounts = Accounts(quotas or Quotas())
        self._settle_at = 0.0
        self._pending: dict[_Connection, None] = {}  # not registered yet, oldest first
        self._undecided: dict[_Connection, None] = {}  # pending connections for which ``admit`` must be called again
        self._reporting: dict[Member, _Connection] = {}
        self._registered: dict[Registered, None] = {}
        self._forgotten: deque[Tenant] = deque()
        self._lock = threading.Lock()  # guards _registered
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
        """Return all admitted reporters that are not forgotten, in order of registration."""
        with self._lock:
            return list(self._registered)

    def forget(self, registered: Registered) -> None:
        """Close the ring of a reporter whose connection has closed. Only the reader of the rings may call it."""
        with self._lock:
            del self._registered[registered]
        registered.ring.close()
        self._forgotten.append(registered.tenant)

    def close(self) -> None:
        """Stop listening, close all connections and rings, and remove the socket. Reporters reconnect later."""
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
            events = self._selector.select(self._timeout_seconds())
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
            self._refuse_late(now)
            if self._doors is not None and now >= self._scan_doors_at:
                self._scan_doors_at = now + LOOK_SECONDS
                self._scan_doors(self._doors)
            before, spent = spent, time.thread_time()
            pace.spend(spent - before)
            if waits:
                time.sleep(KICK_SECONDS)
            while (rest_seconds := pace.rest_seconds()) and not self._stopping:
                time.sleep(min(rest_seconds, MAX_REST_SECONDS))

    def _turn(self, connection: _Connection) -> tuple[float, float]:
        """Return the sort key for serving: tenants with the least CPU time first, then older connections first."""
        return self._accounts.spent(connection.tenant), connection.begun

    def _timeout_seconds(self) -> float | None:
        """Return the time until the next timed task; None if there is none."""
        now = time.monotonic()
        delays = [] if self._doors is None else [self._scan_doors_at - now]
        delays.extend(connection.ask_at - now for connection in self._undecided)
        oldest = next((connection for connection in self._pending if connection not in self._undecided), None)
        if oldest is not None:
            delays.append(oldest.begun + self._message_seconds - now)
        if self._sockets.waiting() or self._descriptors.waiting():
            delays.append(KICK_SECONDS)
        return max(0.0, min(delays)) if delays else None

    def _scan_doors(self, doors: PodSockets) -> None:
        """Open and close the sockets of pods that were added or removed."""
        opened, gone = doors.look()
        for listener in gone:
            self._selector.unregister(listener)
            self._sockets.put(listener.detach(), _OURS)
        for listener in opened:
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket, now: float) -> None:
        """Accept up to ACCEPTS_A_PASS connections."""
        for _ in range(ACCEPTS_A_PASS):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the backlog, and the selector would spin without a pause.
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
        """Raise ReporterError if this tenant is refused because its descriptors cannot be closed."""
        stuck = self._descriptors.stuck_tenants()
        if tenant in stuck:
            raise ReporterError(
                f"{tenant} has sent a descriptor that cannot be closed (of a FUSE or NFS file whose server does not "
                "respond): stop that server, and send a memory file",
                "descriptors",
            )
        if not tenant.attested and sum(not one.attested for one in stuck) >= MAX_STUCK_USERS:
            raise ReporterError("too many users have descriptors that cannot be closed: try again later", "full")

    def _attend(self, connection: _Connection, now: float) -> bool:
        """Receive data of a client, or decide on it again; return False if it must be retried shortly."""
        try:
            if connection in self._undecided and connection.ask_at <= now:
                self._judge(connection, now)
                return True
            self._check_stuck(connection.tenant)
            if self._descriptors.has(connection.tenant):
                return False  # one message with descriptors at a time for each tenant
            if not connection.receive(self._descriptors):
                self._drop(connection)
            elif connection.registered is not None:
                connection.update_place()
            elif connection not in self._undecided and connection.parse_registration():
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
        """Decide on a complete registration with ``admit``. Raise GangwatchError to refuse it."""
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
                f"rank {member.rank} of {member.gang} is already reported by process {other.peer.pid}", "identity"
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
        connection.update_place()

    def _refuse_late(self, now: float) -> None:
        """Refuse connections without a complete registration in time."""
        late: list[_Connection] = []
        for connection in self._pending:
            if now - connection.begun < self._message_seconds:
                break
            if connection not in self._undecided:
                late.append(connection)
        for connection in late:
            self._refuse(connection, f"no complete registration within {self._message_seconds:g} s", "timeout", now)

    def _refuse(self, connection: _Connection, reason: str, label: str, now: float) -> None:
        self._count_refusal(connection.peer, connection.tenant, reason, label, now)
        _answer(connection.socket, _printable(reason))
        self._drop(connection)

    def _count_refusal(self, peer: Peer, tenant: Tenant, reason: str, label: str, now: float) -> None:
        self.refused[label] += 1
        if self._accounts.may_report_refusal(tenant, now):
            self.refusals.append(Refusal(peer, _printable(reason), label, tenant))

    def _close_socket(self, client: socket.socket, tenant: Tenant) -> None:
        """Close a connection: in this thread if its queue is empty, so that closing cannot block."""
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
"""Mode bits of a folder that others may enter but not list or change. The kernel and control groups attest their
processes."""


def _hold(path: str) -> int:
    """Make or check the folder, and return the descriptor of the lock of the only agent at this path."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner = os.stat(folder)
        if owner.st_uid != os.geteuid() or stat.S_IMODE(owner.st_mode) & 0o077 not in (0, _ENTERED_BY_ALL):
            raise SourceError(
                f"{folder}: the folder must belong to this user with mode 0700, or with mode 0711 if ranks of other "
                "users report to this agent: run chmod"
            )
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SourceError(f"{path}.lock: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SourceError(f"{path}: another agent is listening on this socket") from None
    return descriptor


def _listen(path: str) -> socket.socket:
    """Return the listening socket. Replace the socket file of a dead agent."""
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
