"""Steps of training processes: who registered, how far each rank is, and what it is inside of right now.

The socket's thread admits reporters by what the machine attests of them; the collector reads their rings and folds
each rank's records into counters, step records, and the step or collective that is open.
"""

from __future__ import annotations

import logging
import threading
import time
import unicodedata
from collections import OrderedDict, deque

from agent.collectors.block import Block
from agent.collectors.steps.step_columns import REFUSED, StepColumns
from agent.rank_attribution import Attribution, Identity
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import REFUSAL_REASONS, ReporterError
from agent.schema.frame import MAX_RECORDS, EventRecord, Member, OpenRecord, Record, StepRecord
from agent.sources.proc.proc import TICK_NS
from agent.sources.steps.pod_sockets import PodDoors
from agent.sources.steps.rings import COLLECTIVE_ENTERED, COLLECTIVE_LEFT, STEP_BEGUN, STEP_ENDED, RingRecord
from agent.sources.steps.step_messages import Claim, Peer, Place
from agent.sources.steps.step_socket import MESSAGE_SECONDS, Admission, Refusal, Registered, StepSocket
from agent.sources.steps.tenants import Quotas, Tenant, fair_shares

_log = logging.getLogger(__name__)

READING_SHARE = 0.07
"""Of its interval, what a run may use of a processor to read rings. The runner slows a collector that takes a tenth:
a tenant that floods its rings must not cost the others half of their samples (agent/runner.py, PROCESSOR_SHARE)."""

FEWEST_RECORDS, MOST_RECORDS = 2048, 65536
"""Records that one run looks at over all rings, however long one takes."""

FIRST_RECORD_NS = 2000.0
"""What a record is taken to cost until one has been measured: twice what it cost on the slowest machine seen."""

PIECE_RECORDS = 512
"""Records of one ring that are in the agent's memory at once, 150 kB, and that are folded without a pause."""

PAUSE_SECONDS = 0.0002
"""After each piece but the first of a run: long enough for a thread that waits for the interpreter to have it. One that
serves a scrape would else wait for 5 ms each time that it needs it (sys.getswitchinterval)."""

OTHERS_RECORDS = 512
"""Of a frame's MAX_RECORDS, what is left to other collectors."""

LINGER_NS = 5_000_000_000
"""Columns of a rank that has gone stay for so long: a subscriber at 1 Hz, or one that reconnects, sees their end."""

ATTEST_SECONDS = 2.0
"""A process that claims a gang and that nothing attests is asked about again for so long: its shim may be about to
write its rank file, and a rank under a made-up name is worse than one that is registered two seconds late."""

MAX_OPEN_COLLECTIVES = 256
MAX_STEPS_IN_FLIGHT = 64
"""Bounds on what one rank may have begun and not ended; the oldest is forgotten."""

MAX_REMEMBERED_REFUSALS = 256

LOG_AGAIN_NS = 600_000_000_000
"""A tenant's refusals for one reason are logged once in ten minutes; each is counted."""

ATTESTED = ("pod-", "slurm-")
"""Names of gangs that only a control group gives begin so: who claims one must be of it."""

_NAME_MARKS = " !#$%&()*+,-./:;=?@[]^_{|}~"

_WRAP = 2**64 - 1


class Progress:
    """One rank's records, folded (pure).

    Times are of the host's monotonic clock, totals in nanoseconds. Records stamped before `since_ns` only say what the
    rank is inside of: they were counted by the agent that ran before this one, or by none.
    """

    def __init__(self, member: Member, since_ns: int) -> None:
        self.member = member
        self.steps = 0
        self.step_ns = 0
        self.wait_ns = 0
        self.tokens = 0
        self.entered = 0
        self.left = 0
        self.wait_known = False
        self.tokens_known = False
        self.newest_step: int | None = None
        self.place = Place()
        self._since_ns = since_ns
        self._begins = False
        self._open_step: tuple[int, int] | None = None
        self._open_collectives: OrderedDict[int, int] = OrderedDict()
        self._entered_in: OrderedDict[int, int] = OrderedDict()

    def fold(self, record: RingRecord) -> StepRecord | None:
        """Take one record; gives the step that it finishes."""
        counted = record.time_ns >= self._since_ns
        if record.kind == STEP_BEGUN:
            self._begins = True
            self.newest_step = record.number
            self._open_step = (record.number, record.time_ns)
            self._entered_in[record.number] = 0
            if len(self._entered_in) > MAX_STEPS_IN_FLIGHT:
                self._entered_in.popitem(last=False)
        elif record.kind == STEP_ENDED:
            return self._finish(record, counted)
        elif record.kind == COLLECTIVE_ENTERED:
            self.entered += counted
            self._open_collectives[record.number] = record.time_ns
            if len(self._open_collectives) > MAX_OPEN_COLLECTIVES:
                self._open_collectives.popitem(last=False)
            if self._open_step is not None and self._open_step[0] in self._entered_in:
                self._entered_in[self._open_step[0]] += 1
        elif record.kind == COLLECTIVE_LEFT:
            self.left += counted
            self._open_collectives.pop(record.number, None)
        return None

    def _finish(self, record: RingRecord, counted: bool) -> StepRecord | None:
        # Where steps are timed on a GPU, the end of one is told after the next has begun.
        if self._open_step is not None and self._open_step[0] == record.number:
            self._open_step = None
        collectives = self._entered_in.pop(record.number, 0)
        if not self._begins:
            self.newest_step = record.number
        if record.abandoned or not counted:
            return None
        self.steps += 1
        self.step_ns += record.duration_ns
        self.wait_known = record.wait_ns is not None
        self.wait_ns += record.wait_ns or 0
        self.tokens_known = record.tokens is not None
        self.tokens += record.tokens or 0
        return StepRecord(
            member=self.member,
            step=record.number,
            start_ns=record.time_ns - record.duration_ns,
            duration_ns=record.duration_ns,
            wait_ns=record.wait_ns,
            tokens=record.tokens,
            collectives=collectives,
            squares=record.squares,
        )

    def inside(self) -> list[OpenRecord]:
        """What is open: at most one step, and of the collectives the one that was entered first."""
        found: list[OpenRecord] = []
        if self._open_step is not None:
            found.append(OpenRecord(self.member, "step", *self._open_step))
        if self._open_collectives:
            number, since_ns = min(self._open_collectives.items(), key=lambda entry: (entry[1], entry[0]))
            found.append(OpenRecord(self.member, "collective", number, since_ns))
        return found

    def totals(self) -> tuple[int | None, ...]:
        """Values of RANK_COUNTERS, None where the rank's newest step did not tell it. They wrap at 2^64."""
        return (
            self.steps & _WRAP,
            self.step_ns & _WRAP,
            self.wait_ns & _WRAP if self.wait_known else None,
            self.tokens & _WRAP if self.tokens_known else None,
            self.entered & _WRAP,
            self.left & _WRAP,
        )


def judge(claim: Claim, identity: Identity) -> Member:
    """The member that a process is whom the machine attests; the claim fills in what is not attested.

    Raises ReporterError where the claim contradicts what is attested, and where neither tells the rank.
    """
    gang = claim.gang
    if identity.source == "slurm" and gang is not None and gang.isdecimal():
        gang = f"slurm-{gang}"  # SLURM_JOB_ID; the attested name may also have the step
        agrees = identity.gang == gang or identity.gang.startswith(f"{gang}.")
    elif identity.source == "local" or (gang is not None and gang.startswith(ATTESTED)):
        agrees = gang is None or gang == identity.gang
    else:
        # A pod's uid is nothing that a process in it would claim: what it calls itself is of no account.
        agrees = True
    if not agrees:
        raise ReporterError(f"claims gang {claim.gang}, and is of {identity.gang}", "identity")
    for word, claimed, attested in (
        ("attempt", claim.attempt, identity.attempt),
        ("rank", claim.rank, identity.rank),
    ):
        if claimed is not None and attested is not None and claimed != attested:
            raise ReporterError(f"claims {word} {claimed} of {identity.gang}, and is {word} {attested}", "identity")
    rank = identity.rank if identity.rank is not None else claim.rank
    if rank is None:
        raise ReporterError(f"of {identity.gang}, and nothing tells which rank: set RANK", "identity")
    attempt = identity.attempt if identity.attempt is not None else claim.attempt
    return Member(identity.gang, attempt or 0, rank)


def usable_name(name: str, most: int) -> str:
    """The name that an unattested process gives to its gang, which becomes a label and part of pages and logs.

    Raises ReporterError where it is longer than `most` characters, or has others than letters and digits of any script
    and ``_NAME_MARKS``: no characters without width, none that turn the text around, no spaces at the ends.
    """
    if len(name) > most:
        raise ReporterError(
            f"a gang's name of {len(name)} characters; {most} are allowed (step_quotas.name_length): shorten "
            "GANGWATCH_JOB",
            "name",
        )
    if not all(unicodedata.category(one)[0] in "LMN" or one in _NAME_MARKS for one in name) or name != name.strip():
        raise ReporterError(
            f"the gang's name {name!a} has characters other than letters, digits and {_NAME_MARKS!r}: change "
            "GANGWATCH_JOB",
            "name",
        )
    return name


class StepCollector:
    """The collector of step rings; listens on `socket_path` from its making until ``close``.

    Raises SourceError where the socket's path cannot be used, or another living agent listens there.
    """

    name = "steps"
    lane = "host"

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
        """pods: the kubelet's folder of them; None: none have doors. quotas: what each tenant may use."""
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
        self._pieces = 0  # of this run
        self._malformed = 0
        self._lost = 0
        self._remembered: OrderedDict[tuple[Peer, str], None] = OrderedDict()
        self._logged_ns: OrderedDict[tuple[Tenant, str], int] = OrderedDict()
        self._lock = threading.Lock()  # over _records and _inside: never held while anything is read
        self._records: dict[Tenant, deque[StepRecord]] = {}
        self._events: deque[EventRecord] = deque(maxlen=MAX_REMEMBERED_REFUSALS)
        self._inside: list[OpenRecord] = []
        self._columns = StepColumns()
        doors = None if pods is None else PodDoors(pods)
        self._socket = StepSocket(
            socket_path,
            self._admit,
            message_seconds,
            doors,
            self._quotas,
            attribution.tenant_of_peer,
            self._confirm,
        )

    @property
    def idle(self) -> bool:
        """Whether no rank has reported."""
        return not self._progress

    def collect(self) -> Block:
        """Read every ring once. The block is a new one where a rank has come or gone."""
        registered = self._socket.registered()
        # Whether one has closed is asked before the reading, so that nothing is written after the last one.
        closed = {reporter for reporter in registered if reporter.closed}
        living = {reporter.member for reporter in registered if reporter not in closed}
        for reporter in registered:
            self._follow(reporter, registered)
        began_ns = time.thread_time_ns()
        looked_at = self._read_all(registered, closed)
        self._learn_cost(looked_at, time.thread_time_ns() - began_ns)
        self._let_go(living, self._clock.monotonic_ns())
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
        """Finished steps and refusals since the last call, and what each rank was inside of at the newest reading."""
        with self._lock:
            taken: list[Record] = [record for records in self._records.values() for record in records]
            taken.extend(self._events)
            taken.extend(self._inside)
            self._records.clear()
            self._events.clear()
            self._inside = []
        return taken

    def close(self) -> None:
        """Stop listening. Reporters keep their rings, and look for the agent that comes next."""
        self._socket.close()

    # --- registrations (the socket's thread) ---

    def _admit(self, peer: Peer, claim: Claim, waited_seconds: float) -> Admission | None:
        """Whose the process is; None while its rank file may still be on its way. Raises ReporterError."""
        # The kernel's word was given when the process connected. Where that one has ended since, another may have got
        # its number, and must not be taken for the one that holds the other end.
        began_ns = self._attribution.started_ns(peer.pid)
        connected_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - round(waited_seconds * 1e9)
        if began_ns is not None and began_ns > connected_ns + TICK_NS:
            raise ReporterError(
                f"process {peer.pid} began after it connected: the one that connected has ended", "identity"
            )
        elsewhere = self._attribution.elsewhere(peer.pid)
        if elsewhere is not None:
            raise ReporterError(f"process {peer.pid} belongs to node {elsewhere}", "identity")
        identity = self._attribution.of_pid(peer.pid)
        if identity is not None:
            return Admission(judge(claim, identity), identity.tenant())
        if claim.gang is not None and waited_seconds < ATTEST_SECONDS:
            return None
        # Nothing attests it: it may report, under a name that no attested gang can have.
        name = str(peer.pid) if claim.gang is None else usable_name(claim.gang, self._quotas.name_length)
        member = Member(f"uid-{peer.uid}/{name}", claim.attempt or 0, claim.rank or 0)
        return Admission(member, self._attribution.user_of_peer(peer))

    def _confirm(self, registered: Registered) -> None:
        """A reporter is registered: where no file says so, its process is the rank that it reports."""
        member = registered.member
        if registered.tenant.attested:
            self._attribution.register(member.gang, member.attempt, member.rank, registered.peer.pid)

    # --- one run ---

    def _follow(self, reporter: Registered, registered: list[Registered]) -> None:
        """Have a place for what the reporter's ring tells. Of a tenant's ranks that have gone, the oldest make room."""
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
        """Fold what is new in the rings, as far as a run's budget goes; returns how many records it has looked at.

        Tenants share the budget, and the rings of each share its part: who writes little gets all of it read.
        """
        fresh: dict[Tenant, list[tuple[Registered, int]]] = {}
        for reporter in registered:
            wanted = reporter.ring.fresh()
            if reporter in closed:
                # Its writer may go on for ever: no more is read than the ring could hold when the connection closed.
                wanted = min(wanted, self._unread.setdefault(reporter, reporter.ring.slots))
            if wanted:
                fresh.setdefault(reporter.tenant, []).append((reporter, wanted))
            elif reporter in closed:
                self._let_ring_go(reporter)
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
                        self._let_ring_go(reporter)
        return sum(parts)

    def _budget(self) -> int:
        """How many records a run may look at, by what one has cost lately."""
        affordable = READING_SHARE * self.interval_seconds * 1e9 / self._record_ns
        return int(min(max(affordable, FEWEST_RECORDS), MOST_RECORDS))

    def _learn_cost(self, records: int, processor_ns: int) -> None:
        """Take a run into account that was long enough to tell what a record costs."""
        if records >= FEWEST_RECORDS // 2:
            self._record_ns += (processor_ns / records - self._record_ns) / 4

    def _let_ring_go(self, reporter: Registered) -> None:
        self._unread.pop(reporter, None)
        self._socket.forget(reporter)

    def _read(self, reporter: Registered, share: int) -> None:
        """Fold the next `share` records of a ring, a piece at a time."""
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
        """Drop the oldest records of the tenants that have most of them. The lock is held."""
        kept = list(self._records.values())
        for records, share in zip(kept, fair_shares([len(records) for records in kept], max(0, most)), strict=True):
            self._drop_oldest(records, share)

    def _drop_oldest(self, records: deque[StepRecord], most: int) -> None:
        while len(records) > most:
            records.popleft()
            self._lost += 1

    def _let_go(self, living: set[Member], now_ns: int) -> None:
        """Forget ranks that have been gone for LINGER_NS."""
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
            "step reporter refused: tenant=%s reason=%s process=%d uid=%d: %s (more of this tenant for this reason are "
            "counted in %s only)",
            *(refusal.tenant, refusal.label, *refusal.peer, refusal.reason, REFUSED),
        )

    def _refusals(self, now_ns: int) -> list[EventRecord]:
        """An event for each new refusal; a client that tries again and again makes one."""
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
        standing: dict[Tenant, list[tuple[Member, Place]]] = {}
        for member, tenant in self._tenants.items():
            standing.setdefault(tenant, []).append((member, self._progress[member].place))
        self._columns.follow(standing, self._clock.monotonic_ns() / 1e9)
        refused = self._socket.refused
        own = (*(refused[reason] for reason in REFUSAL_REASONS), self._malformed, self._lost)
        ranks = {member: (progress.newest_step, progress.totals()) for member, progress in self._progress.items()}
        return self._columns.fill(reporters, [total & _WRAP for total in own], ranks)
