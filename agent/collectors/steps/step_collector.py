"""Collector of training steps: registered processes, progress of each rank, and its open step or collective.

The thread of the step socket admits processes by their attested identity. The collector reads their step rings. From
the records of each rank it updates counters, step records, and the open step or collective.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque

from agent.collectors.block import Block
from agent.collectors.steps.blocked_ranks import BlockedRanks
from agent.collectors.steps.claimed_identity import judge, usable_name
from agent.collectors.steps.rank_progress import WRAP, Progress
from agent.collectors.steps.step_columns import REFUSED, StepColumns
from agent.rank_attribution import Attribution
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import REFUSAL_REASONS, ReporterError
from agent.schema.frame import MAX_RECORDS, EventRecord, Member, OpenRecord, Record, StepRecord
from agent.sources.proc.proc import TICK_NS
from agent.sources.steps.pod_sockets import PodSockets
from agent.sources.steps.shift_orders import Shift, ShiftOrders
from agent.sources.steps.step_connection import Admission, Registered
from agent.sources.steps.step_messages import NO_SHIFT, Claim, Peer, Place, shift_message
from agent.sources.steps.step_socket import MESSAGE_SECONDS, Refusal, StepSocket
from agent.sources.steps.tenants import Quotas, Tenant, fair_shares

_log = logging.getLogger(__name__)

READING_SHARE = 0.07
"""Share of its interval that the step collector may spend reading rings, in CPU time. The limit is below the runner's
PROCESSOR_SHARE (agent/runner.py), at which the runner doubles a collector's interval. A tenant that floods its rings
therefore cannot slow down the sampling."""

FEWEST_RECORDS, MOST_RECORDS = 2048, 65536
"""Minimum and maximum number of records that one run may read from all rings, whatever CPU time a record costs."""

FIRST_RECORD_NS = 2000.0
"""Assumed CPU time per record in ns, before the first measurement: twice the time on the slowest machine measured."""

PIECE_RECORDS = 512
"""Maximum number of records of one ring that are processed before the thread pauses for PAUSE_SECONDS. They take 150 kB
of memory."""

PAUSE_SECONDS = 0.0002
"""Pause in seconds before each piece of records except the first of a run. In the pause, other threads can take the
interpreter lock. Without the pause, a thread that serves a scrape waits for 5 ms each time it needs the lock
(sys.getswitchinterval)."""

OTHERS_RECORDS = 512
"""Number of records per frame, out of MAX_RECORDS, that are reserved for other collectors."""

LINGER_NS = 5_000_000_000
"""Time in ns for which the series of a rank remain after the rank's end. A subscriber at 1 Hz, or after a reconnect,
then receives the last values."""

ATTEST_SECONDS = 2.0
"""Time in seconds for which the agent retries to attest a process that claims a gang, because the shim may not have
written the rank file yet. Afterwards the process may register under an unattested name."""

MAX_REMEMBERED_REFUSALS = 256

LOG_AGAIN_NS = 600_000_000_000
"""Time in ns after which a tenant's refusals for one reason are logged again: ten minutes. Each refusal is counted."""


class StepCollector:
    """Collector that reads step rings. It listens on `socket_path` from its construction until ``close``.

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
        shifts: ShiftOrders | None = None,
    ) -> None:
        """Start to listen at the socket.

        pods: the kubelet's folder of pods, None for no step sockets in pods. quotas: limits of each tenant. shifts:
        time shifts that the controller orders; None: it may order none.
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
        self._blocked = BlockedRanks()
        self._shifts = shifts
        self._shifted: dict[Registered, tuple[int, Shift]] = {}
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
        """True if the collector has no rank."""
        return not self._progress

    def collect(self) -> Block:
        """Read every ring once. The block of series is a new one if a rank was added or removed."""
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
        self._pass_shifts(registered, closed)
        events = self._refusals(self._clock.monotonic_ns()) + self._ask_blocked(registered, closed)
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
        """Return new records for a frame: finished steps and refused registrations since the last call, and open
        records.

        The open records are the steps and collectives that had not ended at the last run.
        """
        with self._lock:
            taken: list[Record] = [record for records in self._records.values() for record in records]
            taken.extend(self._events)
            taken.extend(self._inside)
            self._records.clear()
            self._events.clear()
            self._inside = []
        return taken

    def close(self) -> None:
        """Stop listening. Training processes keep their rings and reconnect to the next agent."""
        self._socket.close()

    # --- registrations (the socket's thread) ---

    def _admit(self, peer: Peer, claim: Claim, waited_seconds: float) -> Admission | None:
        """Return the rank and tenant of a process that registers, or None to retry later.

        Raise ReporterError to refuse the process.
        """
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
        """Store the rank of a registered process that has no rank file, if its pod or job is attested."""
        member = registered.member
        if registered.tenant.attested:
            self._attribution.register(member.gang, member.attempt, member.rank, registered.peer.pid)

    # --- one run ---

    def _follow(self, reporter: Registered, registered: list[Registered]) -> None:
        """Add the progress of a registered process's rank, if the rank is new.

        If the tenant then has more ranks than its limit of reporting processes, drop its ranks that ended first.
        """
        member, tenant = reporter.member, reporter.tenant
        progress = self._progress.get(member)
        if progress is None:
            own = [one for one, of in self._tenants.items() if of == tenant]
            present = {one.member for one in registered}
            gone = sorted(self._gone_ns.keys() & set(own) - present, key=self._gone_ns.__getitem__)
            for one in gone[: max(0, len(own) + 1 - self._quotas.reporters_of(tenant))]:
                self._forget(one)
            progress = self._progress[member] = Progress(member, self._since_ns)
            progress.newest_ns = self._clock.monotonic_ns()
            self._tenants[member] = tenant
        progress.place = reporter.place
        progress.shift_known = bool(reporter.claim.shifts)

    def _read_all(self, registered: list[Registered], closed: set[Registered]) -> int:
        """Read the new records of the rings, up to the limit of one run. Return the number of records read.

        The limit is shared fairly among tenants, and the share of a tenant among its rings. Rings with few records are
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
        """Return the maximum number of records that one run may read, at least FEWEST_RECORDS and at most MOST_RECORDS.

        Between these limits, it is the number of records that take READING_SHARE of the interval in CPU time, as
        measured in recent runs.
        """
        affordable = READING_SHARE * self.interval_seconds * 1e9 / self._record_ns
        return int(min(max(affordable, FEWEST_RECORDS), MOST_RECORDS))

    def _learn_cost(self, records: int, processor_ns: int) -> None:
        """Update the average CPU time per record from one run. Runs that read few records are ignored."""
        if records >= FEWEST_RECORDS // 2:
            self._record_ns += (processor_ns / records - self._record_ns) / 4

    def _forget_ring(self, reporter: Registered) -> None:
        self._unread.pop(reporter, None)
        self._socket.forget(reporter)

    def _read(self, reporter: Registered, share: int) -> None:
        """Read the next `share` records of a process's ring in pieces, and update the progress of its rank."""
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
        """Drop step records that are not sent yet, until at most `most` remain. The caller holds the lock.

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
        """Remove the ranks that ended more than LINGER_NS ago. living: ranks with a registered process."""
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
        """Return one event for each newly refused registration. Repeated attempts of one client make one event."""
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

    def _ask_blocked(self, registered: list[Registered], closed: set[Registered]) -> list[EventRecord]:
        """Ask the ranks that make no progress where they are blocked. Return events about the answers received."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        reporters = {one.member: one for one in registered if one not in closed and one.claim.answers}
        ranks: dict[Member, tuple[Tenant, int, float]] = {}
        for member, reporter in reporters.items():
            progress = self._progress[member]
            ranks[member] = reporter.tenant, progress.newest_ns, progress.usual_step_ns
        for member in self._blocked.due(ranks, now_ns):
            self._socket.ask(reporters[member])
        events = self._blocked.silent(now_ns, wall_ns)
        while self._socket.reports:
            reporter, report = self._socket.reports.popleft()
            if reporters.get(reporter.member) is reporter:
                event = self._blocked.answered(reporter.member, report, now_ns, wall_ns)
                events += [] if event is None else [event]
        return events

    def _pass_shifts(self, registered: list[Registered], closed: set[Registered]) -> None:
        """Pass the newest order of time shifts to the reporters of its gangs, and end the shifts of all others."""
        if self._shifts is None:
            return
        number, shifts = self._shifts.newest()
        if not shifts and not self._shifted:
            return
        before, self._shifted = self._shifted, {}
        for one in registered:
            if one in closed or not one.claim.shifts:
                continue
            shift = shifts.get(one.member.gang)
            if shift is not None:
                self._shifted[one] = number, shift
                if before.get(one) != (number, shift):
                    self._socket.send(one, shift_message(*shift))
            elif one in before:
                self._socket.send(one, NO_SHIFT)

    def _fill(self, reporters: int) -> Block:
        by_tenant: dict[Tenant, list[tuple[Member, Place]]] = {}
        for member, tenant in self._tenants.items():
            by_tenant.setdefault(tenant, []).append((member, self._progress[member].place))
        self._columns.follow(by_tenant, self._clock.monotonic_ns() / 1e9)
        refused = self._socket.refused
        own = (*(refused[reason] for reason in REFUSAL_REASONS), self._malformed, self._lost)
        ranks = {member: (progress.newest_step, progress.totals()) for member, progress in self._progress.items()}
        return self._columns.fill(reporters, [total & WRAP for total in own], ranks)
