"""Leader election by a Lease: one of a cluster's controllers acts.

The rules are client-go's (tools/leaderelection). A holder has lost the lease if it has not renewed it for the lease's
duration, measured by an observer on the observer's clock. The holder stops acting earlier, measured from the start of
its last renewal. So there may be times without a leader, but never two leaders, whatever the wall clocks show.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import BackendError, GangwatchError
from agent.schema.sample import Sample
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.rights import Right, in_words, missing_rights
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Lease

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0
ACTING_SECONDS = 7.0
"""Seconds for which the holder acts after the start of its last renewal. They are fewer than LEASE_SECONDS by more
than the longest duration of a request."""

MISSING_RIGHTS = "gangwatch_missing_rights"
"""Metric: number of rights in the cluster that a leader needs and this controller does not have."""

LAST_HOLDER = f"{OURS}last-holder"
"""Annotation of the lease: identity of its last holder. It remains after the holder releases the lease."""

IDLE_RENEWALS = 15
"""Number of renewals without a finished cycle after which a leader lets its lease expire: half a minute, or more if
requests are slow. Renewals are counted instead of seconds, because a process that is stopped as a whole makes none."""

RETRY_SECONDS = 0.2
"""Seconds between a failed renewal and the next: time for two attempts remains before the holder must stop acting."""

RIGHTS_SECONDS = 30.0
"""Seconds between two checks of a controller's rights; RENEW_SECONDS while rights are missing."""

_REVIEW_SECONDS = 15.0
"""Time limit of such a check, which is about thirty requests."""

_REQUEST_SECONDS = 3.0
_BUG_SECONDS = 10.0
_leases = msgspec.json.Decoder(Lease)
_log = logging.getLogger(__name__)


async def while_leading(
    once: Callable[[], Awaitable[None]], may_act: Callable[[], bool], period_seconds: float, what: str
) -> None:
    """Call `once` periodically while this controller leads, until cancelled.

    Errors are logged; the next period retries. After an unexpected error the pause is at least _BUG_SECONDS.
    """
    while True:
        pause_seconds = period_seconds
        if may_act():
            try:
                await once()
            except GangwatchError as error:
                _log.info("%s: %s", what, error)
            except Exception as error:
                _log.error("%s: this is a bug, please report it", what, exc_info=error)
                pause_seconds = max(period_seconds, _BUG_SECONDS)
        await asyncio.sleep(pause_seconds)


@dataclass(slots=True)
class Sighting:
    """Last observation of another holder's lease."""

    version: str
    at_ns: int
    """Time at which this version of the lease was first observed, on this process's monotonic clock."""


class Leadership:
    """Leader election in a separate thread.

    identity: unique to this process. needs: rights that a leader needs. Leader and standby check that they have them.
    """

    def __init__(
        self,
        access: Access,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Clock | None = None,
        lost: Callable[[], None] = lambda: None,
        needs: Sequence[Right] = (),
    ) -> None:
        self._access, self._identity = access, identity
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._namespace = name, namespace
        self._lease = f"lease {namespace}/{name}"
        self._clock, self._lost, self._needs = clock or SystemClock(), lost, needs
        self._until_ns = 0
        self._leading = threading.Event()
        self._ending = threading.Event()
        self._sighting: Sighting | None = None
        self._written: Lease | None = None  # our last write, if nothing has failed since
        self._thread: threading.Thread | None = None
        self._finished: Callable[[], int] = lambda: 0
        self._seen_finished = self._idle = 0
        self._follows = False
        self._reported = ""  # the last error, until a request succeeds
        self._missing = ""  # rights that a leader needs and this controller lacks, in words
        self._missing_count = 0
        self._reviewed_ns: int | None = None  # time of the last check of rights
        self._review: asyncio.Task[None] | None = None
        self._tried = False
        self.stuck = False
        """Whether this controller gave up its lease because its cycles did not finish. Set before `lost` is called."""
        self.before = ""  # the last holder before us (may be an earlier term of this process); '' if there was none

    def may_act(self) -> bool:
        """Return whether this controller is the leader now. Any thread may call it."""
        return self._clock.monotonic_ns() < self._until_ns

    def obstacle(self) -> str:
        """Return why this controller could not lead if the leader ended now; '' if nothing is known to prevent it.

        Any thread may call it.
        """
        if self._reported:
            return f"{self._lease} cannot be acquired: {self._reported}"
        if not self._tried:
            return f"{self._lease} has not been read yet"
        return self._missing

    def missing_rights(self) -> str:
        """Return which rights of a leader this controller lacks, as a sentence; '' if none is known to be missing.

        Any thread may call it.
        """
        return self._missing

    def measures(self) -> list[Sample]:
        """Return the number of rights that this controller lacks. Any thread may call it."""
        return [(MISSING_RIGHTS, (), float(self._missing_count))]

    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="lease", daemon=True)
        self._thread.start()

    def follow(self, finished: Callable[[], int]) -> None:
        """Renew the lease from now on only while cycles finish. finished: returns the number of cycles; thread-safe."""
        self._finished, self._follows = finished, True

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until this controller is the leader; return whether it is."""
        return self._leading.wait(timeout_seconds)

    def stop(self) -> None:
        """Stop acting and release the lease at once, so that another controller need not wait for its expiry."""
        self._ending.set()
        self._until_ns = 0
        if self._thread is not None:
            self._thread.join(2 * _REQUEST_SECONDS)

    async def _live(self) -> None:
        async with Client(self._access) as client:
            while not self._ending.is_set():
                began_ns = self._clock.monotonic_ns()
                if self._leading.is_set() and not self._works():
                    # Let the lease expire instead of releasing it: the stuck thread's requests may still be executed.
                    self._until_ns, self.stuck = 0, True
                    _log.error("%s stops leading: no cycle has finished for %d renewals", self._identity, self._idle)
                    self._lost()
                    return
                try:
                    held = await asyncio.wait_for(self._try(client, began_ns), _REQUEST_SECONDS)
                except (BackendError, TimeoutError) as error:
                    self._report(str(error) or "no response in time")
                    held = None
                else:
                    self._reported, self._tried = "", True
                if held:
                    late_seconds = (self._clock.monotonic_ns() - self._until_ns) / 1e9
                    self._until_ns = began_ns + int(ACTING_SECONDS * 1e9)
                    if self._leading.is_set() and late_seconds > 0:
                        _log.warning("%s was renewed late: writes waited for %.1f s", self._lease, late_seconds)
                    if not self._leading.is_set():
                        _log.info("%s leads", self._identity)
                        self._leading.set()
                elif self._leading.is_set() and (held is False or not self.may_act()):
                    self._until_ns = 0
                    _log.error("%s no longer leads", self._identity)
                    self._lost()
                    return
                self._check_rights(client)
                failed = held is None and self._leading.is_set()
                await asyncio.to_thread(self._ending.wait, RETRY_SECONDS if failed else RENEW_SECONDS)
            if self._review is not None:
                self._review.cancel()
            if self._leading.is_set():
                await self._let_go(client)

    def _report(self, why: str) -> None:
        """Log why the lease was neither read nor written, unless it is the same reason as the last time.

        A controller that never leads, because of a missing right for example, is otherwise a healthy standby.
        """
        if why != self._reported:
            _log.warning("%s cannot be acquired or renewed: %s", self._lease, why)
        self._reported = why

    def _check_rights(self, client: Client) -> None:
        """Begin a check of the rights if one is due. It must not delay the renewal of the lease."""
        now_ns, last_ns = self._clock.monotonic_ns(), self._reviewed_ns
        recent = last_ns is not None and not self._missing and now_ns - last_ns < RIGHTS_SECONDS * 1e9
        if not recent and (self._review is None or self._review.done()):
            self._review = asyncio.create_task(self._review_rights(client, now_ns))

    async def _review_rights(self, client: Client, now_ns: int) -> None:
        """Check that this controller has the rights of a leader. If the check fails, the last result remains."""
        try:
            missing = await asyncio.wait_for(missing_rights(client, self._needs), _REVIEW_SECONDS)
        except (BackendError, TimeoutError):
            return
        self._reviewed_ns = now_ns
        words = f"its user may not {', '.join(in_words(missing))}" if missing else ""
        if words and words != self._missing:
            level, who = (
                (logging.ERROR, "this leader cannot schedule completely")
                if self._leading.is_set()
                else (logging.WARNING, "this standby could not lead")
            )
            _log.log(level, "%s: %s; see the rights of the chart's ClusterRole", who, words)
        elif self._missing and not words:
            _log.info("this controller has all rights again")
        self._missing, self._missing_count = words, len(missing)

    def _works(self) -> bool:
        """Return whether a cycle has finished during the last IDLE_RENEWALS renewals of the lease."""
        finished = self._finished()
        self._idle = self._idle + 1 if self._follows and finished == self._seen_finished else 0
        self._seen_finished = finished
        return self._idle < IDLE_RENEWALS

    async def _try(self, client: Client, now_ns: int) -> bool:
        """Acquire or renew the lease; return whether this controller holds it.

        A renewal is one request as long as nobody else changes the lease: a busy API server takes seconds for each.
        """
        written, self._written = self._written, None
        if written is not None and await self._write(client, written, written.spec.lease_transitions):
            return True
        try:
            lease = await client.get(f"{self._path}/{self._name}", _leases)
        except RefusedError as error:
            if error.code != 404:
                raise
            return await self._write(client, None, 0)
        holder = lease.spec.holder_identity
        if not self._leading.is_set():
            self.before = lease.metadata.annotation(LAST_HOLDER)
        if holder == self._identity:
            return await self._write(client, lease, lease.spec.lease_transitions)
        if self._leading.is_set():
            return False  # another controller has acted since, and may have released the lease already
        if holder:
            version = lease.metadata.resource_version
            if self._sighting is None or self._sighting.version != version:
                self._sighting = Sighting(version, now_ns)
            waited = (now_ns - self._sighting.at_ns) / 1e9
            if waited < max(lease.spec.lease_duration_seconds, LEASE_SECONDS):
                return False
        return await self._write(client, lease, lease.spec.lease_transitions + 1)

    async def _write(self, client: Client, lease: Lease | None, transitions: int, holder: str | None = None) -> bool:
        """Write the lease with this controller as holder; return False if another controller was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        known = lease.spec.acquire_time if lease is not None and lease.spec.holder_identity == self._identity else None
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "annotations": {LAST_HOLDER: self._identity},
            },
            "spec": {
                "holderIdentity": self._identity if holder is None else holder,
                "leaseDurationSeconds": int(LEASE_SECONDS),
                "acquireTime": known or now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
        try:
            if lease is None:
                response = await client.create(self._path, body)
            else:
                body["metadata"]["resourceVersion"] = lease.metadata.resource_version
                response = await client.replace(f"{self._path}/{self._name}", body)
        except RefusedError as error:
            if error.code == 409:
                return False
            raise
        self._written = _decoded(response) if holder is None else None
        return True

    async def _let_go(self, client: Client) -> None:
        try:
            lease = await client.get(f"{self._path}/{self._name}", _leases)
            if lease.spec.holder_identity == self._identity:
                await self._write(client, lease, lease.spec.lease_transitions, holder="")
        except BackendError as error:
            _log.info("lease %s: %s; it is left to expire", self._name, error)


def _decoded(response: bytes) -> Lease | None:
    """Return the lease in the server's response to a write; None if unreadable: then the next renewal reads it."""
    try:
        return _leases.decode(response)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
