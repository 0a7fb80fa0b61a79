"""Collector of training steps: registered processes, progress of each rank, and its open step or collective.

The thread of the step socket admits reporters by their attested identity. The collector reads their rings and folds the
records of each rank into counters, step records, and the open step or collective.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque

from agent.collectors.block import Block
from agent.collectors.steps.claimed_identity import judge, usable_name
from agent.collectors.steps.rank_progress import WRAP, Progress
from agent.collectors.steps.step_columns import REFUSED, StepColumns
from agent.rank_attribution import Attribution
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import REFUSAL_REASONS, ReporterError
from agent.schema.frame import MAX_RECORDS, EventRecord, Member, OpenRecord, Record, StepRecord
from agent.sources.proc.proc import TICK_NS
from agent.sources.steps.pod_sockets import PodSockets
from agent.sources.steps.step_connection import Admission, Registered
from agent.sources.steps.step_messages import Claim, Peer, Place
from agent.sources.steps.step_socket import MESSAGE_SECONDS, Refusal, StepSocket
from agent.sources.steps.tenants import Quotas, Tenant, fair_shares

_log = logging.getLogger(__name__)

READING_SHARE = 0.07
"""Share of its interval that a run may use as CPU time to read rings. The runner doubles the interval of a collector
that uses a tenth of its interval (agent/runner.py, PROCESSOR_SHARE). A tenant that floods its rings must not cause
that."""

FEWEST_RECORDS, MOST_RECORDS = 2048, 65536
"""Minimum and maximum number of records that one run reads from all rings, whatever CPU time a record costs."""

FIRST_RECORD_NS = 2000.0
"""Assumed CPU time per record before the first measurement: twice the time on the slowest machine measured."""

PIECE_RECORDS = 512
"""Records of one ring that are read and folded at once without a pause; they take 150 kB of memory."""

PAUSE_SECONDS = 0.0002
"""Pause before each piece of records except the first of a run, so that other threads can take the interpreter lock.
Without it, a thread that serves a scrape waits for 5 ms each time it needs the lock (sys.getswitchinterval)."""

OTHERS_RECORDS = 512
"""Part of a frame's MAX_RECORDS that is reserved for other collectors."""

LINGER_NS = 5_000_000_000
"""Time for which the columns of a rank stay after its end, so that a subscriber at 1 Hz or after a reconnect receives
the last values."""

ATTEST_SECONDS = 2.0
"""Time for which attestation of a process that claims a gang is retried. Its shim may be about to write the rank file,
and a rank under an unattested name is worse than a rank that registers two seconds late."""

MAX_REMEMBERED_REFUSALS = 256

LOG_AGAIN_NS = 600_000_000_000
"""Refusals of a tenant for one reason are logged once in ten minutes. Each refusal is counted."""


class StepCollector:
    """Collector of step rings. It listens on `socket_path` from its construction until ``close``.

    Raise SourceError if the socket's path cannot be used or another live agent listens there.
    """

    name = "steps"
    worker = "host"

    def __init__(
        self,
        socket_path: str,
        attribution: Attribution,
        clock: Clock | None = None,
        interval_seconds: float = 0.5,
        message_seconds: float = MESSAGE_SECONDS,
        pods: str | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Start to listen at the socket.

        pods: the kubelet's folder of pods, None for no pod sockets. quotas: limits of each tenant.
        """
        self.interval_seconds = interval_seconds
        self._attribution = attribution
        self._clock = clock or SystemClock()
        self._quotas = quotas or Quotas()
        self._since_ns = self._clock.monotonic_ns()
        self._progress: dict[Member, Progress] = {}
        self._tenants: dict[Member, Tenant] = {}
        self._gone_ns: dict[Member, int] = {}
        self._unread: dict[Registered, int] = {}
        self._record_ns = FIRST_RECORD_NS
        self._pieces = 0  # pieces read in this run
        self._malformed = 0
        self._lost = 0
        self._remembered: OrderedDict[tuple[Peer, str], None] = OrderedDict()
        self._logged_ns: OrderedDict[tuple[Tenant, str], int] = OrderedDict()
        self._lock = threading.Lock()  # guards _records and _inside; never held during a read
        self._records: dict[Tenant, deque[StepRecord]] = {}
        self._events: deque[EventRecord] = deque(maxlen=MAX_REMEMBERED_REFUSALS)
        self._inside: list[OpenRecord] = []
        self._columns = StepColumns()
        pod_sockets = None if pods is None else PodSockets(pods)
        self._socket = StepSocket(
            socket_path,
            self._admit,
            message_seconds,
            pod_sockets,
            self._quotas,
            attribution.tenant_of_peer,
            self._confirm,
        )

    @property
    def idle(self) -> bool:
        """True if no rank has reported."""
        return not self._progress

    def collect(self) -> Block:
        """Read every ring once. Return a new block if a rank was added or removed."""
        registered = self._socket.registered()
        # Check for closed reporters before reading, so that the last read of a ring gets all of its records.
        closed = {reporter for reporter in registered if reporter.closed}
        living = {reporter.member for reporter in registered if reporter not in closed}
        for reporter in registered:
            self._follow(reporter, registered)
        began_ns = time.thread_time_ns()
        records_read = self._read_all(registered, closed)
        self._learn_cost(records_read, time.thread_time_ns() - began_ns)
        self._forget_ended(living, self._clock.monotonic_ns())
        events = self._refusals(self._clock.monotonic_ns())
        inside = [
            open_record
            for member in self._progress
            if member in living
            for open_record in self._progress[member].inside()
        ]
        with self._lock:
            self._events.extend(events)
            self._inside = inside
            self._keep_within(MAX_RECORDS - OTHERS_RECORDS - len(inside))
        return self._fill(len(living))

    def take_records(self) -> list[Record]:
        """Return finished steps and refusals since the last call, and the open records of the last run."""
        with self._lock:
            taken: list[Record] = [record for records in self._records.values() for record in records]
            taken.extend(self._events)
            taken.extend(self._inside)
            self._records.clear()
            self._events.clear()
            self._inside = []
        return taken

    def close(self) -> None:
        """Stop listening. Reporters keep their rings and reconnect to the next agent."""
        self._socket.close()

    # --- registrations (the socket's thread) ---

    def _admit(self, peer: Peer, claim: Claim, waited_seconds: float) -> Admission | None:
        """Return the rank and tenant of a process, or None to retry later. Raise ReporterError to refuse it."""
        # The kernel reports the pid of the process that connected. If that process has ended, its pid may belong to
        # another process, which must not be mistaken for it.
        began_ns = self._attribution.started_ns(peer.pid)
        connected_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - round(waited_seconds * 1e9)
        if began_ns is not None and began_ns > connected_ns + TICK_NS:
            raise ReporterError(
                f"process {peer.pid} started after the connection: the process that connected has ended", "identity"
            )
        other_node = self._attribution.other_node(peer.pid)
        if other_node is not None:
            raise ReporterError(f"process {peer.pid} belongs to node {other_node}", "identity")
        identity = self._attribution.of_pid(peer.pid)
        if identity is not None:
            return Admission(judge(claim, identity), identity.tenant())
        if claim.gang is not None and waited_seconds < ATTEST_SECONDS:
            return None
        # An unattested process may report, under a name that no attested gang can have.
        name = str(peer.pid) if claim.gang is None else usable_name(claim.gang, self._quotas.name_length)
        member = Member(f"uid-{peer.uid}/{name}", claim.attempt or 0, claim.rank or 0)
        return Admission(member, self._attribution.user_of_peer(peer))

    def _confirm(self, registered: Registered) -> None:
        """Record the rank of an attested process in the attribution, because the process may have no rank file."""
        member = registered.member
        if registered.tenant.attested:
            self._attribution.register(member.gang, member.attempt, member.rank, registered.peer.pid)

    # --- one run ---

    def _follow(self, reporter: Registered, registered: list[Registered]) -> None:
        """Create the progress of the reporter's rank. At the tenant's limit, drop the tenant's oldest ended ranks."""
        member, tenant = reporter.member, reporter.tenant
        progress = self._progress.get(member)
        if progress is None:
            own = [one for one, of in self._tenants.items() if of == tenant]
            present = {one.member for one in registered}
            gone = sorted(self._gone_ns.keys() & set(own) - present, key=self._gone_ns.__getitem__)
            for one in gone[: max(0, len(own) + 1 - self._quotas.reporters_of(tenant))]:
                self._forget(one)
            progress = self._progress[member] = Progress(member, self._since_ns)
            self._tenants[member] = tenant
        progress.place = reporter.place

    def _read_all(self, registered: list[Registered], closed: set[Registered]) -> int:
        """Read the new records of the rings within the budget of a run. Return the number of records read.

        The budget is shared fairly among tenants, and the share of a tenant among its rings. Rings with few records are
        read completely.
        """
        fresh: dict[Tenant, list[tuple[Registered, int]]] = {}
        for reporter in registered:
            wanted = reporter.ring.fresh()
            if reporter in closed:
                # The writer may continue forever: read at most one full ring after the connection closed.
                wanted = min(wanted, self._unread.setdefault(reporter, reporter.ring.slots))
            if wanted:
                fresh.setdefault(reporter.tenant, []).append((reporter, wanted))
            elif reporter in closed:
                self._forget_ring(reporter)
        self._pieces = 0
        tenants = list(fresh)
        parts = fair_shares([sum(wanted for _, wanted in fresh[tenant]) for tenant in tenants], self._budget())
        for tenant, part in zip(tenants, parts, strict=True):
            shares = fair_shares([wanted for _, wanted in fresh[tenant]], part)
            for (reporter, wanted), share in zip(fresh[tenant], shares, strict=True):
                self._read(reporter, share)
                if reporter in closed:
                    self._unread[reporter] -= share
                    if share == wanted:
                        self._forget_ring(reporter)
        return sum(parts)

    def _budget(self) -> int:
        """Return the maximum number of records for a run, from the recent cost of a record."""
        affordable = READING_SHARE * self.interval_seconds * 1e9 / self._record_ns
        return int(min(max(affordable, FEWEST_RECORDS), MOST_RECORDS))

    def _learn_cost(self, records: int, processor_ns: int) -> None:
        """Update the average CPU time per record from a run, if the run read enough records."""
        if records >= FEWEST_RECORDS // 2:
            self._record_ns += (processor_ns / records - self._record_ns) / 4

    def _forget_ring(self, reporter: Registered) -> None:
        self._unread.pop(reporter, None)
        self._socket.forget(reporter)

    def _read(self, reporter: Registered, share: int) -> None:
        """Read the next `share` records of a ring in pieces, and update the progress of its rank."""
        ring, progress = reporter.ring, self._progress[reporter.member]
        malformed, lost = ring.malformed, ring.lost
        while share > 0:
            piece = min(share, PIECE_RECORDS)
            if self._pieces:
                time.sleep(PAUSE_SECONDS)
            self._pieces += 1
            steps = [
                step
                for record in ring.read(self._clock.monotonic_ns(), piece)
                if (step := progress.fold(record)) is not None
            ]
            share -= piece
            if steps:
                with self._lock:
                    kept = self._records.setdefault(reporter.tenant, deque())
                    kept.extend(steps)
                    self._drop_oldest(kept, MAX_RECORDS)
        self._malformed += ring.malformed - malformed
        self._lost += ring.lost - lost

    def _keep_within(self, most: int) -> None:
        """Keep at most `most` records; the caller holds the lock.

        The oldest records of the tenants with the most records are dropped.
        """
        kept = list(self._records.values())
        for records, share in zip(kept, fair_shares([len(records) for records in kept], max(0, most)), strict=True):
            self._drop_oldest(records, share)

    def _drop_oldest(self, records: deque[StepRecord], most: int) -> None:
        while len(records) > most:
            records.popleft()
            self._lost += 1

    def _forget_ended(self, living: set[Member], now_ns: int) -> None:
        """Remove ranks that ended LINGER_NS ago."""
        for member in list(self._progress):
            if member in living:
                self._gone_ns.pop(member, None)
            elif now_ns - self._gone_ns.setdefault(member, now_ns) >= LINGER_NS:
                self._forget(member)

    def _forget(self, member: Member) -> None:
        del self._progress[member], self._tenants[member], self._gone_ns[member]

    def _log_once(self, refusal: Refusal, now_ns: int) -> None:
        key = (refusal.tenant, refusal.label)
        logged_ns = self._logged_ns.get(key)
        if logged_ns is not None and now_ns - logged_ns < LOG_AGAIN_NS:
            return
        self._logged_ns[key] = now_ns
        self._logged_ns.move_to_end(key)
        if len(self._logged_ns) > MAX_REMEMBERED_REFUSALS:
            self._logged_ns.popitem(last=False)
        _log.warning(
            "step reporter refused: tenant=%s reason=%s process=%d uid=%d: %s (further refusals of this tenant and "
            "reason are only counted in %s)",
            *(refusal.tenant, refusal.label, *refusal.peer, refusal.reason, REFUSED),
        )

    def _refusals(self, now_ns: int) -> list[EventRecord]:
        """Return one event for each new refusal. Repeated attempts of one client make one event."""
        events: list[EventRecord] = []
        while self._socket.refusals:
            refusal = self._socket.refusals.popleft()
            self._log_once(refusal, now_ns)
            key = (refusal.peer, refusal.reason)
            if key in self._remembered:
                continue
            self._remembered[key] = None
            if len(self._remembered) > MAX_REMEMBERED_REFUSALS:
                self._remembered.popitem(last=False)
            detail = {"reason": refusal.reason, "uid": str(refusal.peer.uid)}
            events.append(EventRecord("reporter-refused", f"process {refusal.peer.pid}", now_ns, detail))
        return events

    def _fill(self, reporters: int) -> Block:
        by_tenant: dict[Tenant, list[tuple[Member, Place]]] = {}
        for member, tenant in self._tenants.items():
            by_tenant.setdefault(tenant, []).append((member, self._progress[member].place))
        self._columns.follow(by_tenant, self._clock.monotonic_ns() / 1e9)
        refused = self._socket.refused
        own = (*(refused[reason] for reason in REFUSAL_REASONS), self._malformed, self._lost)
        ranks = {member: (progress.newest_step, progress.totals()) for member, progress in self._progress.items()}
        return self._columns.fill(reporters, [total & WRAP for total in own], ranks)
