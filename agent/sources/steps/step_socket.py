"""Unix socket on which training processes register with the node's agent.

``gangwatch/steps.py`` describes the messages. The kernel reports the pid and user of each process (SO_PEERCRED). The
function ``admit`` decides which rank a process is. The accounts limit each tenant (agent/sources/steps/tenants.py).

One thread serves all connections, and no client can block it:

- It never waits for a client. Sockets are non-blocking. Other threads close the descriptors whose close may block
  (agent/sources/steps/closers.py).
- It serves first the tenant that has used the least CPU time in the current second.
- Its CPU time is limited (agent/sources/steps/processor_budget.py). Otherwise the agent's CPU quota would delay its
  frames.
"""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agent.schema.errors import REFUSAL_REASONS, GangwatchError, ReporterError
from agent.schema.frame import Member
from agent.sources.steps.closers import KICK_SECONDS, Closer, allow_kicks
from agent.sources.steps.pod_sockets import SCAN_SECONDS, PodSockets
from agent.sources.steps.processor_budget import ProcessorBudget
from agent.sources.steps.step_connection import Admission, Connection, Registered
from agent.sources.steps.step_listener import listen, lock
from agent.sources.steps.step_messages import BlockedReport, Claim, Peer
from agent.sources.steps.tenants import Accounts, Quotas, Tenant

MAX_REFUSALS = 256

MESSAGE_SECONDS = 5.0
"""Maximum time in seconds in which a client must send its complete registration."""

ASK_AGAIN_SECONDS, LAST_ASK_AGAIN_SECONDS = 0.1, 0.5
"""Minimum and maximum delay in seconds before ``admit`` is called again for an undecided registration. The delay
doubles each time."""

MAX_REST_SECONDS = 0.05
"""Maximum duration in seconds of one sleep of the thread. A stop takes effect after the current sleep."""

ACCEPTS_A_PASS = 16
"""Maximum number of connections accepted from one listener before other listeners are served."""

MAX_CLOSING = 256
"""Maximum number of connections waiting to be closed. At the limit the socket accepts no connections."""

MAX_STUCK_USERS = 8
"""Number of stuck users at which all processes whose pod or job is unknown are refused. A user is stuck if a descriptor
that the user has sent cannot be closed."""

MAX_REFUSAL_CHARACTERS = 500

MAX_MESSAGES = 4096
"""Maximum number of messages to processes that wait for the socket's thread: one for each of the most reporters. The
oldest are dropped; the next renewal of a time shift replaces them."""

MAX_QUESTIONS = 64
"""Maximum number of questions and of reports about blocked ranks that wait for the other thread. Further ones are
dropped."""

_OURS = Tenant("user", "")
"""Tenant under which the agent closes its own listening sockets. No client has an empty user id."""


class Refusal(NamedTuple):
    """One refused registration. reason: error text; label: one of REFUSAL_REASONS."""

    peer: Peer
    reason: str
    label: str
    tenant: Tenant


Admit = Callable[[Peer, Claim, float], Admission | None]
"""Function that decides on a registration. It returns the rank and tenant, or None to be called again later. It raises
ReporterError to refuse the registration. The third argument is the time in seconds since the connection. The function
is called in the socket's thread."""


def tenant_of_user(peer: Peer) -> Tenant:
    """Return the tenant of a process of which only the user id is known."""
    return Tenant("user", str(peer.uid))


def _answer(client: socket.socket, refusal: str | None) -> None:
    """Send the result of the registration to the client: `refusal`, or success if it is None.

    Ignore a failure, such as a client that does not read.
    """
    response = {"ok": True} if refusal is None else {"ok": False, "error": refusal}
    body = msgspec.json.encode(response)
    try:
        client.send(len(body).to_bytes(4, "big") + body, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        pass


def _printable(text: str) -> str:
    """Return the text, shortened and without unprintable characters. The text may contain input of a client."""
    shown = text if len(text) <= MAX_REFUSAL_CHARACTERS else f"{text[:MAX_REFUSAL_CHARACTERS]}..."
    return shown if shown.isprintable() else "".join(one if one.isprintable() else "?" for one in shown)


class StepSocket:
    """Listener for training processes at `path` and at the sockets of pods, until ``close``.

    admit: accepts or refuses a registration. tenant_of: returns the tenant of a new connection. confirm: called with
    each registered process. These functions are called in the socket's thread. refused: number of refusals by
    reason. reports: answers of the processes that ``ask`` has asked, for the caller to remove. The constructor raises
    SourceError if the path cannot be used or another live agent uses it.
    """

    def __init__(
        self,
        path: str,
        admit: Admit,
        message_seconds: float = MESSAGE_SECONDS,
        pod_sockets: PodSockets | None = None,
        quotas: Quotas | None = None,
        tenant_of: Callable[[Peer], Tenant] = tenant_of_user,
        confirm: Callable[[Registered], None] | None = None,
    ) -> None:
        self.refused = dict.fromkeys(REFUSAL_REASONS, 0)
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self.reports: deque[tuple[Registered, BlockedReport]] = deque(maxlen=MAX_QUESTIONS)
        self._questions: deque[Registered] = deque(maxlen=MAX_QUESTIONS)
        self._messages: deque[tuple[Registered, bytes]] = deque(maxlen=MAX_MESSAGES)
        self._pod_sockets = pod_sockets
        self._scan_pods_at = 0.0  # next scan for pods, monotonic seconds
        self._path = path
        self._admit = admit
        self._tenant_of = tenant_of
        self._confirm = confirm
        self._message_seconds = message_seconds
        self._accounts = Accounts(quotas or Quotas())
        self._settle_at = 0.0
        self._pending: dict[Connection, None] = {}  # not registered yet, oldest first
        self._undecided: dict[Connection, None] = {}  # pending connections for which ``admit`` must be called again
        self._reporting: dict[Member, Connection] = {}
        self._registered: dict[Registered, None] = {}
        self._forgotten: deque[Tenant] = deque()
        self._lock = threading.Lock()  # guards _registered
        self._lock_file = lock(path)
        try:
            self._listener = listen(path)
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
        """Return all registered processes for which ``forget`` was not called, in order of registration."""
        with self._lock:
            return list(self._registered)

    def ask(self, registered: Registered) -> None:
        """Ask a registered process where it is blocked. Its answer, if it gives one, is added to ``reports``."""
        self._questions.append(registered)
        self._wake_thread()

    def send(self, registered: Registered, message: bytes) -> None:
        """Send a message to a registered process, without waiting."""
        self._messages.append((registered, message))
        self._wake_thread()

    def _wake_thread(self) -> None:
        try:
            self._wake.send(b"x", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the thread has been woken already

    def forget(self, registered: Registered) -> None:
        """Close the ring of a registered process whose connection has closed.

        Only the reader of the rings may call it.
        """
        with self._lock:
            del self._registered[registered]
        registered.ring.close()
        self._forgotten.append(registered.tenant)

    def close(self) -> None:
        """Stop listening, close all connections and rings, and remove the socket.

        Training processes reconnect later.
        """
        self._stopping = True
        self._wake.send(b"x")
        self._thread.join()
        for connection in [*self._pending, *self._reporting.values()]:
            self._drop(connection)
        for registered in self.registered():
            self.forget(registered)
        self._selector.close()
        for listener in (self._listener, *(self._pod_sockets.close() if self._pod_sockets else ())):
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
        budget = ProcessorBudget()
        spent = time.thread_time()
        while not self._stopping:
            events = self._selector.select(self._timeout_seconds())
            now = time.monotonic()
            if now >= self._settle_at:
                self._settle_at = now + 1.0
                self._accounts.settle(now)
            while self._forgotten:
                self._accounts.forget(self._forgotten.popleft())
            self._ask_all()
            self._descriptors.look_after()
            listening = not self._sockets.look_after() or self._sockets.waiting() < MAX_CLOSING
            ready: list[Connection] = []
            for key, _ in events:
                if key.data is not None:
                    ready.append(key.data)
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif listening and isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, now)
            ready.extend(connection for connection in self._undecided if connection.ask_at <= now)
            waits = not listening
            for connection in sorted(set(ready), key=self._serving_order):
                waits |= not self._attend(connection, now)
                before, spent = spent, time.thread_time()
                budget.spend(spent - before)
                self._accounts.spend(connection.tenant, spent - before, now)
                if budget.used_up:
                    break
            self._refuse_late(now)
            if self._pod_sockets is not None and now >= self._scan_pods_at:
                self._scan_pods_at = now + SCAN_SECONDS
                self._scan_pods(self._pod_sockets)
            before, spent = spent, time.thread_time()
            budget.spend(spent - before)
            if waits:
                time.sleep(KICK_SECONDS)
            while (rest_seconds := budget.rest_seconds()) and not self._stopping:
                time.sleep(min(rest_seconds, MAX_REST_SECONDS))

    def _serving_order(self, connection: Connection) -> tuple[float, float]:
        """Return the sort key of a connection: CPU time used by its tenant, then the connection's age (oldest
        first)."""
        return self._accounts.spent(connection.tenant), connection.begun

    def _timeout_seconds(self) -> float | None:
        """Return the seconds until the socket's thread has something to do; None if it only waits for clients."""
        now = time.monotonic()
        delays = [] if self._pod_sockets is None else [self._scan_pods_at - now]
        delays.extend(connection.ask_at - now for connection in self._undecided)
        oldest = next((connection for connection in self._pending if connection not in self._undecided), None)
        if oldest is not None:
            delays.append(oldest.begun + self._message_seconds - now)
        if self._sockets.waiting() or self._descriptors.waiting():
            delays.append(KICK_SECONDS)
        return max(0.0, min(delays)) if delays else None

    def _scan_pods(self, pod_sockets: PodSockets) -> None:
        """Open the sockets of added pods, and close the sockets of removed pods."""
        opened, gone = pod_sockets.scan()
        for listener in gone:
            self._selector.unregister(listener)
            self._sockets.put(listener.detach(), _OURS)
        for listener in opened:
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket, now: float) -> None:
        """Accept at most ACCEPTS_A_PASS connections from the listener."""
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
            connection = Connection(accepted, peer, tenant, now)
            self._pending[connection] = None
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _check_stuck(self, tenant: Tenant) -> None:
        """Raise ReporterError if the tenant, or too many users, have sent a descriptor that cannot be closed."""
        stuck = self._descriptors.stuck_tenants()
        if tenant in stuck:
            raise ReporterError(
                f"{tenant} has sent a descriptor that cannot be closed (of a FUSE or NFS file whose server does not "
                "respond): stop that server, and send a memory file",
                "descriptors",
            )
        if not tenant.attested and sum(not one.attested for one in stuck) >= MAX_STUCK_USERS:
            raise ReporterError("too many users have descriptors that cannot be closed: try again later", "full")

    def _attend(self, connection: Connection, now: float) -> bool:
        """Receive data of a client, or retry the decision on its registration.

        Return False if descriptors that the tenant sent earlier must be closed first. The caller then tries again
        soon.
        """
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
                self._take_updates(connection, connection.registered)
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

    def _judge(self, connection: Connection, now: float) -> None:
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
        self._take_updates(connection, registered)

    def _take_updates(self, connection: Connection, registered: Registered) -> None:
        """Take what a registered process has sent. Raise ReporterError if it is invalid."""
        if (report := connection.take_updates()) is not None:
            self.reports.append((registered, report))

    def _ask_all(self) -> None:
        """Send the questions and messages of ``ask`` and ``send``, without waiting for any process."""
        while self._questions:
            registered = self._questions.popleft()
            connection = self._reporting.get(registered.member)
            if connection is not None and connection.registered is registered:
                connection.ask()
        while self._messages:
            registered, message = self._messages.popleft()
            connection = self._reporting.get(registered.member)
            if connection is not None and connection.registered is registered:
                connection.send(message)

    def _refuse_late(self, now: float) -> None:
        """Refuse connections that have not sent a complete registration within MESSAGE_SECONDS."""
        late: list[Connection] = []
        for connection in self._pending:
            if now - connection.begun < self._message_seconds:
                break
            if connection not in self._undecided:
                late.append(connection)
        for connection in late:
            self._refuse(connection, f"no complete registration within {self._message_seconds:g} s", "timeout", now)

    def _refuse(self, connection: Connection, reason: str, label: str, now: float) -> None:
        self._count_refusal(connection.peer, connection.tenant, reason, label, now)
        _answer(connection.socket, _printable(reason))
        self._drop(connection)

    def _count_refusal(self, peer: Peer, tenant: Tenant, reason: str, label: str, now: float) -> None:
        self.refused[label] += 1
        if self._accounts.may_report_refusal(tenant, now):
            self.refusals.append(Refusal(peer, _printable(reason), label, tenant))

    def _close_socket(self, client: socket.socket, tenant: Tenant) -> None:
        """Close a connection. If unread data is in its queue, a worker thread closes it, since the close may block."""
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

    def _drop(self, connection: Connection) -> None:
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
