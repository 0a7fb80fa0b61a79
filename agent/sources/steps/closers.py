"""Closing descriptors that come from strangers, in threads that may wait for it.

``close`` can block for as long as the other party likes: on a TCP socket with SO_LINGER and unsent data (socket(7)), on
a file of FUSE, whose server must answer FLUSH, or of NFS. A stranger can make any of them ours to close: attached to a
message (SCM_RIGHTS), or left unread in the queue of the connection itself, which the kernel empties at its close.

So a worker closes them, one at a time, tenant by tenant. A wait that signals can end (a lingering socket) is ended
after KICK_SECONDS by a signal to the worker. One that they cannot (a FUSE server that does not answer) keeps its
worker; the tenant's other descriptors wait behind it, and a new worker goes on for all other tenants.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import OrderedDict, deque

from agent.sources.steps.tenants import Tenant

KICK_SECONDS = 0.002
"""A close that takes longer is interrupted; it takes some microseconds where nobody is to be waited for."""

STUCK_SECONDS = 0.25
"""A close that is not over by then, whatever signals it got, has lost us a thread until the other party lets go."""

IDLE_SECONDS = 5.0
"""A worker that has nothing to close for so long ends: most of the time there is none."""

MAX_WORKERS = 32
"""Threads, those that are stuck included: one is lost per tenant at most."""

_KICK = signal.SIGURG
"""Ignored by default, so that nothing ends where no handler could be installed (threads must be the first to ask)."""


def _handle_kick(_number: int, _frame: object) -> None:
    """Nothing: the signal's only purpose is to end a system call."""


def allow_kicks() -> None:
    """Let signals end a close that waits. It takes the main thread; elsewhere, or where SIGURG has another handler,
    such a close is waited for by a thread of its own."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_KICK) in (
        signal.SIG_DFL,
        signal.SIG_IGN,
    ):
        signal.signal(_KICK, _handle_kick)


class _Worker:
    """One thread. `closing`: whose descriptor it closes now, and since when (monotonic seconds)."""

    def __init__(self, closer: Closer, number: int) -> None:
        self.closing: tuple[Tenant, float] | None = None
        self.abandoned = False
        self.thread = threading.Thread(target=closer._work, args=(self,), name=f"{closer.name}-{number}", daemon=True)


class Closer:
    """Closes descriptors in the background, in turn for each tenant. ``put`` and ``look_after`` never wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._queues: OrderedDict[Tenant, deque[int]] = OrderedDict()
        self._stuck: dict[Tenant, _Worker] = {}
        self._stuck_tenants: frozenset[Tenant] = frozenset()
        self._stopping = False
        self._started = 0
        self._worker: _Worker | None = None

    def put(self, descriptor: int, tenant: Tenant) -> None:
        """Have the descriptor closed; it is not the caller's any more."""
        with self._changed:
            self._queues.setdefault(tenant, deque()).append(descriptor)
            if self._worker is None:
                self._start()
            self._changed.notify()

    def waiting(self) -> int:
        """Descriptors to be closed, without those of tenants that are stuck."""
        with self._changed:
            worker = self._worker
            queued = sum(len(queue) for tenant, queue in self._queues.items() if tenant not in self._stuck)
            return queued + (worker is not None and worker.closing is not None)

    def has(self, tenant: Tenant) -> bool:
        """Whether a descriptor of this tenant is still to be closed."""
        with self._changed:
            worker = self._worker
            return (
                tenant in self._queues
                or tenant in self._stuck
                or (worker is not None and worker.closing is not None and worker.closing[0] == tenant)
            )

    def stuck_tenants(self) -> frozenset[Tenant]:
        """Those of whom a descriptor cannot be closed until the other party lets go."""
        return self._stuck_tenants

    def look_after(self) -> bool:
        """End waits that last too long; whether it has to be called again soon (within KICK_SECONDS)."""
        worker = self._worker
        if worker is None or (closing := worker.closing) is None:
            return False
        tenant, since = closing
        lasted = time.monotonic() - since
        if lasted >= KICK_SECONDS and worker.thread.ident is not None:
            signal.pthread_kill(worker.thread.ident, _KICK)
        if lasted >= STUCK_SECONDS:
            with self._changed:
                if worker.closing == closing and len(self._stuck) + 1 < MAX_WORKERS:
                    worker.abandoned = True
                    self._stuck[tenant] = worker
                    self._stuck_tenants = frozenset(self._stuck)
                    self._start()
        return True

    def close(self, seconds: float) -> None:
        """Close what waits, for at most so long; what then still waits is left to the process's end."""
        deadline = time.monotonic() + seconds
        while self.waiting() > 0 and time.monotonic() < deadline:
            self.look_after()
            time.sleep(KICK_SECONDS)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._worker is not None and self._worker.closing is None:
            self._worker.thread.join(seconds)

    # --- the workers ---

    def _start(self) -> None:
        self._started += 1
        self._worker = _Worker(self, self._started)
        self._worker.thread.start()

    def _work(self, worker: _Worker) -> None:
        while True:
            with self._changed:
                while (found := self._next(worker)) is None:
                    if self._stopping or worker.abandoned:
                        return
                    if not self._changed.wait(IDLE_SECONDS) and not self._queues:
                        self._worker = None
                        return
                tenant, descriptor = found
                worker.closing = (tenant, time.monotonic())
            try:
                os.close(descriptor)
            except OSError:
                pass  # closed all the same, except EBADF, which a wrong caller would get
            with self._changed:
                worker.closing = None
                if worker.abandoned and not self._queues.get(tenant):
                    # The tenant has let go, and nothing of it is left: the others have another worker.
                    self._stuck.pop(tenant, None)
                    self._stuck_tenants = frozenset(self._stuck)
                    return

    def _next(self, worker: _Worker) -> tuple[Tenant, int] | None:
        """The next descriptor for this worker: of the tenant that it is stuck with, or of all who are not stuck."""
        for tenant, queue in self._queues.items():
            if (self._stuck.get(tenant) is worker) if worker.abandoned else tenant not in self._stuck:
                descriptor = queue.popleft()
                if queue:
                    self._queues.move_to_end(tenant)
                else:
                    del self._queues[tenant]
                return tenant, descriptor
        return None
