"""Steps of training processes: who registered, how far each rank is, and what it is inside of right now.

The socket's thread admits reporters by what the machine attests of them; the collector reads their rings and folds
each rank's records into counters, step records, and the step or collective that is open.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque

import msgspec

from agent.attribution import Attribution, Identity
from agent.collectors.block import Block
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ReporterError
from agent.schema.frame import MAX_RECORDS, Column, EventRecord, Member, OpenRecord, Record, StepRecord
from agent.sources.pod_doors import PodDoors
from agent.sources.proc import TICK_NS
from agent.sources.rings import COLLECTIVE_ENTERED, COLLECTIVE_LEFT, MAX_SLOTS, STEP_BEGUN, STEP_ENDED, Ring, RingRecord
from agent.sources.step_socket import MESSAGE_SECONDS, Claim, Peer, Place, StepSocket

RECORDS_A_TICK = 65536
"""Most records folded in one run, over all rings: about a quarter of a second of one processor."""

FEWEST_RECORDS_A_RING = 64

LINGER_NS = 5_000_000_000
"""Columns of a rank that has gone stay for so long: a subscriber at 1 Hz, or one that reconnects, sees their end."""

ATTEST_SECONDS = 2.0
"""A process that claims a gang and that nothing attests is asked about again for so long: its shim may be about to
write its rank file, and a rank under a made-up name is worse than one that is registered two seconds late."""

MAX_OPEN_COLLECTIVES = 256
MAX_STEPS_IN_FLIGHT = 64
"""Bounds on what one rank may have begun and not ended; the oldest is forgotten."""

MAX_REMEMBERED_REFUSALS = 256

ATTESTED = ("pod-", "slurm-")
"""Names of gangs that only a control group gives begin so: who claims one must be of it."""

_WRAP = 2**64 - 1

_COUNTERS = (
    "gangwatch_rank_steps_total",
    "gangwatch_rank_step_seconds_total",
    "gangwatch_rank_wait_seconds_total",
    "gangwatch_rank_tokens_total",
    "gangwatch_rank_collectives_entered_total",
    "gangwatch_rank_collectives_left_total",
)
_AGENT_COUNTERS = (
    "gangwatch_step_reporters_refused_total",
    "gangwatch_step_records_malformed_total",
    "gangwatch_step_records_lost_total",
)


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
        """Values of _COUNTERS, None where the rank's newest step did not tell it. They wrap at 2^64."""
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
        raise ReporterError(f"claims gang {claim.gang}, and is of {identity.gang}")
    for word, claimed, attested in (
        ("attempt", claim.attempt, identity.attempt),
        ("rank", claim.rank, identity.rank),
    ):
        if claimed is not None and attested is not None and claimed != attested:
            raise ReporterError(f"claims {word} {claimed} of {identity.gang}, and is {word} {attested}")
    rank = identity.rank if identity.rank is not None else claim.rank
    if rank is None:
        raise ReporterError(f"of {identity.gang}, and nothing tells which rank")
    attempt = identity.attempt if identity.attempt is not None else claim.attempt
    return Member(identity.gang, attempt or 0, rank)


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
    ) -> None:
        """pods: the kubelet's folder of them; None: none have doors."""
        self.interval_seconds = interval_seconds
        self._attribution = attribution
        self._clock = clock or SystemClock()
        self._since_ns = self._clock.monotonic_ns()
        self._progress: dict[Member, Progress] = {}
        self._gone_ns: dict[Member, int] = {}
        self._malformed = 0
        self._lost = 0
        self._remembered: OrderedDict[tuple[Peer, str], None] = OrderedDict()
        self._lock = threading.Lock()  # over _records and _inside: never held while anything is read
        self._records: deque[Record] = deque(maxlen=MAX_RECORDS)
        self._inside: list[OpenRecord] = []
        self._block = Block()
        self._members: tuple[tuple[Member, Place], ...] | None = None
        doors = None if pods is None else PodDoors(pods)
        self._socket = StepSocket(socket_path, self._admit, message_seconds, doors)

    @property
    def idle(self) -> bool:
        """Whether no rank has reported."""
        return not self._progress

    def collect(self) -> Block:
        """Read every ring once. The block is a new one where a rank has come or gone."""
        records: list[Record] = []
        registered = self._socket.registered()
        limit = max(FEWEST_RECORDS_A_RING, RECORDS_A_TICK // max(1, len(registered)))
        living: set[Member] = set()
        for reporter in registered:
            # Whether it has closed is asked before the reading, so that nothing is written after the last one.
            closed = reporter.closed
            progress = self._progress.get(reporter.member)
            if progress is None:
                progress = self._progress[reporter.member] = Progress(reporter.member, self._since_ns)
            progress.place = reporter.place
            self._read(reporter.ring, progress, MAX_SLOTS if closed else limit, records)
            if closed:
                self._socket.forget(reporter)
            else:
                living.add(reporter.member)
        now_ns = self._clock.monotonic_ns()
        self._let_go(living, now_ns)
        records.extend(self._refusals(now_ns))
        inside = [
            open_record
            for member in self._progress
            if member in living
            for open_record in self._progress[member].inside()
        ]
        with self._lock:
            self._lost += max(0, len(self._records) + len(records) - MAX_RECORDS)
            self._records.extend(records)
            self._inside = inside
        return self._fill(len(living))

    def take_records(self) -> list[Record]:
        """Finished steps and refusals since the last call, and what each rank was inside of at the newest reading."""
        with self._lock:
            taken: list[Record] = [*self._records, *self._inside]
            self._records.clear()
            self._inside = []
        return taken

    def close(self) -> None:
        """Stop listening. Reporters keep their rings, and look for the agent that comes next."""
        self._socket.close()

    # --- registrations (the socket's thread) ---

    def _admit(self, peer: Peer, claim: Claim, waited_seconds: float) -> Member | None:
        """Whose the process is; None while its rank file may still be on its way. Raises ReporterError."""
        # The kernel's word was given when the process connected. Where that one has ended since, another may have got
        # its number, and must not be taken for the one that holds the other end.
        began_ns = self._attribution.started_ns(peer.pid)
        connected_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - round(waited_seconds * 1e9)
        if began_ns is not None and began_ns > connected_ns + TICK_NS:
            raise ReporterError(f"process {peer.pid} began after it connected: the one that connected has ended")
        elsewhere = self._attribution.elsewhere(peer.pid)
        if elsewhere is not None:
            raise ReporterError(f"process {peer.pid} belongs to node {elsewhere}")
        identity = self._attribution.of_pid(peer.pid)
        if identity is not None:
            member = judge(claim, identity)
            if identity.source != "local":
                self._attribution.register(member.gang, member.attempt, member.rank, peer.pid)
            return member
        if claim.gang is not None and waited_seconds < ATTEST_SECONDS:
            return None
        # Nothing attests it: it may report, under a name that no attested gang can have.
        return Member(f"uid-{peer.uid}/{claim.gang or peer.pid}", claim.attempt or 0, claim.rank or 0)

    # --- one run ---

    def _read(self, ring: Ring, progress: Progress, limit: int, records: list[Record]) -> None:
        """Fold what is new in a ring."""
        malformed, lost = ring.malformed, ring.lost
        for record in ring.read(self._clock.monotonic_ns(), limit):
            step = progress.fold(record)
            if step is not None:
                records.append(step)
        self._malformed += ring.malformed - malformed
        self._lost += ring.lost - lost

    def _let_go(self, living: set[Member], now_ns: int) -> None:
        """Forget ranks that have been gone for LINGER_NS."""
        for member in list(self._progress):
            if member in living:
                self._gone_ns.pop(member, None)
            elif now_ns - self._gone_ns.setdefault(member, now_ns) >= LINGER_NS:
                del self._progress[member], self._gone_ns[member]

    def _refusals(self, now_ns: int) -> list[EventRecord]:
        """An event for each new refusal; a client that tries again and again makes one."""
        events: list[EventRecord] = []
        while self._socket.refusals:
            refusal = self._socket.refusals.popleft()
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
        members = tuple(sorted(self._progress, key=lambda member: (member.gang, member.attempt, member.rank)))
        standing = tuple((member, self._progress[member].place) for member in members)
        if standing != self._members:
            self._members = standing
            self._block = _layout(standing)
        block = self._block
        block.clear()
        block.set_gauge(0, reporters)
        block.gauges[1 + len(members) :] = 1.0  # where they stand
        for index, total in enumerate((self._socket.refused, self._malformed, self._lost)):
            block.set_counter(index, total & _WRAP)
        at = len(_AGENT_COUNTERS)
        for row, member in enumerate(members, 1):
            progress = self._progress[member]
            if progress.newest_step is not None:
                block.set_gauge(row, progress.newest_step)
            for index, value in enumerate(progress.totals(), at):
                if value is not None:
                    block.set_counter(index, value)
            at += len(_COUNTERS)
        return block


def _layout(standing: tuple[tuple[Member, Place], ...]) -> Block:
    """A block with the agent's own columns first, then each member's, then where those stand that said so."""
    gauges = [Column("gangwatch_step_reporters")]
    counters = [Column(name) for name in _AGENT_COUNTERS]
    places = []
    for member, place in standing:
        labels = (("attempt", str(member.attempt)), ("gang", member.gang), ("rank", str(member.rank)))
        gauges.append(Column("gangwatch_rank_step", labels))
        counters.extend(Column(name, labels) for name in _COUNTERS)
        if place != Place():
            told = {name: "" if index is None else str(index) for name, index in msgspec.structs.asdict(place).items()}
            places.append(Column("gangwatch_rank_place_info", tuple(sorted((dict(labels) | told).items()))))
    return Block(gauges + places, counters)
