"""Background threads that close descriptors received from untrusted processes.

``close`` can block for as long as the peer wants: on a TCP socket with SO_LINGER and unsent data (socket(7)), on a FUSE
file, whose server must respond to FLUSH, or on an NFS file. A client can send such a descriptor with a message
(SCM_RIGHTS), or leave it in the queue of the connection. The kernel empties this queue when the connection is closed.

Therefore a worker thread closes received descriptors, one at a time, with tenants in rotation. After KICK_SECONDS the
worker gets a signal, which interrupts the close of a lingering socket. The signal does not interrupt the close of a
file whose FUSE server does not respond: the worker stays blocked, and the other descriptors of the same tenant wait. A
new worker serves the other tenants.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import OrderedDict, deque

from agent.sources.steps.tenants import Tenant

KICK_SECONDS = 0.002
"""Duration in seconds after which a signal interrupts a close. A close that does not block takes some microseconds."""

STUCK_SECONDS = 0.25
"""Duration in seconds after which a close counts as stuck. Its thread is blocked until the peer releases the
descriptor."""

IDLE_SECONDS = 5.0
"""Idle time in seconds after which a worker thread ends. Most of the time no worker is running."""

MAX_WORKERS = 32
"""Maximum number of worker threads, including stuck threads. Each tenant can block at most one thread."""

_KICK = signal.SIGURG
"""Signal that interrupts a close. Without a handler, the default action ignores this signal."""


def _handle_kick(_number: int, _frame: object) -> None:
    """Do nothing. The signal only has to interrupt the system call."""


def allow_kicks() -> None:
    """Install a handler for SIGURG, so that the signal interrupts a blocked close.

    It is installed only from the main thread and if SIGURG has no other handler. Otherwise a blocked close counts as
    stuck.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_KICK) in (
        signal.SIG_DFL,
        signal.SIG_IGN,
    ):
        signal.signal(_KICK, _handle_kick)


class _Worker:
    """One worker thread. closing: tenant of the descriptor being closed, and start of the close (monotonic seconds)."""

    def __init__(self, closer: Closer, number: int) -> None:
        self.closing: tuple[Tenant, float] | None = None
        self.abandoned = False
        self.thread = threading.Thread(target=closer._work, args=(self,), name=f"{closer.name}-{number}", daemon=True)


class Closer:
    """Background closing of descriptors, one tenant (pod, job or user) after another.

    ``put`` and ``look_after`` do not block.
    """

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
        """Close the descriptor in the background. The caller must not use it any more."""
        with self._changed:
            self._queues.setdefault(tenant, deque()).append(descriptor)
            if self._worker is None:
                self._start()
            self._changed.notify()

    def waiting(self) -> int:
        """Return the number of descriptors to close, without those of tenants whose close is stuck."""
        with self._changed:
            worker = self._worker
            queued = sum(len(queue) for tenant, queue in self._queues.items() if tenant not in self._stuck)
            return queued + (worker is not None and worker.closing is not None)

    def has(self, tenant: Tenant) -> bool:
        """Return whether a descriptor of this tenant is not closed yet."""
        with self._changed:
            worker = self._worker
            return (
                tenant in self._queues
                or tenant in self._stuck
                or (worker is not None and worker.closing is not None and worker.closing[0] == tenant)
            )

    def stuck_tenants(self) -> frozenset[Tenant]:
        """Return the tenants that have sent a descriptor whose close is blocked."""
        return self._stuck_tenants

    def look_after(self) -> bool:
        """Interrupt a close that takes too long. Return whether a close is running: if so, call again within
        KICK_SECONDS."""
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
        """Continue closing for at most `seconds`. Descriptors that remain are closed when the agent's process ends."""
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
                pass  # closed despite the error; EBADF would be a bug of the caller
            with self._changed:
                worker.closing = None
                if worker.abandoned and not self._queues.get(tenant):
                    # The tenant is no longer stuck and has no descriptors left. Another worker serves the others.
                    self._stuck.pop(tenant, None)
                    self._stuck_tenants = frozenset(self._stuck)
                    return

    def _next(self, worker: _Worker) -> tuple[Tenant, int] | None:
        """Return the next (tenant, descriptor) to close, or None if there is no descriptor for this worker.

        A worker that was blocked by a tenant's descriptor closes only that tenant's descriptors. Other workers serve
        the tenants without a blocked descriptor.
        """
        for tenant, queue in self._queues.items():
            if (self._stuck.get(tenant) is worker) if worker.abandoned else tenant not in self._stuck:
                descriptor = queue.popleft()
                if queue:
                    self._queues.move_to_end(tenant)
                else:
                    del self._queues[tenant]
                return tenant, descriptor
        return None
