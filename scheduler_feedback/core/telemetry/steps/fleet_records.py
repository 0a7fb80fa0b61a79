"""Processing of the ranks' records: adds their steps and collectives to the attempts of the gangs.

Invalid records are refused one by one and counted. Memory is bounded by the number of gangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.schema.frame import EventRecord, Frame, Member, OpenRecord, Record, RecordTable, StepRecord
from agent.schema.record_table import FINISHED_STEP, ROW, record_of
from scheduler_feedback.core.telemetry.fleet_nodes import KnownRanks, NodeView
from scheduler_feedback.core.telemetry.membership import AGAIN_NS, MOST_OUTSIDE_RANKS, Counted, Membership
from scheduler_feedback.core.telemetry.placements import Refusal
from scheduler_feedback.core.telemetry.series.consumption_trail import Trails
from scheduler_feedback.core.telemetry.steps import blocked_ranks
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang
from scheduler_feedback.core.telemetry.steps.open_table import OpenTable
from scheduler_feedback.core.telemetry.steps.record_checks import (
    CLOCK_SLACK_NS,
    LARGEST,
    LARGEST_BITS,
    MOST_RANKS,
    OLDEST_RECORD_NS,
    Taken,
    finish_steps,
    is_possible,
    known_ranks,
    open_all,
    possible,
    row_of,
)
from scheduler_feedback.core.telemetry.steps.record_queue import RecordQueue

FORGET_NS = 600_000_000_000
"""Time without reports after which a gang counts as ended: ten minutes. No known pause for a checkpoint takes as
long."""

MOST_GANGS = 1 << 16
"""Maximum number of gangs. More than 100,000 GPUs can run without reaching the limit. Further gangs are refused and
counted, so that no sender fills the memory."""

HELD_NS = 30_000_000_000
"""Time for which a node must not have reported a rank before another node may report that rank."""

WAITS_NS = 120_000_000_000
"""Maximum time for which records wait until the scheduler has their gang. Verdicts wait for the same time."""


class Attempts:
    """The newest attempt of each gang.

    refused: number of invalid records. ended: number of records of attempts that a newer attempt has replaced.
    nodes: nodes of the fleet by name.
    membership: decides what each node may report; None: every node may report anything, for recordings and simulations.
    """

    def __init__(self, nodes: Mapping[str, NodeView] | None = None, membership: Membership | None = None) -> None:
        self.gangs: dict[str, Gang] = {}
        self.trails = Trails()
        self.opened = OpenTable()
        self.tables = RecordQueue(self.opened, self._take_table)
        self._nodes = {} if nodes is None else nodes
        self._membership = membership
        self._outside_ranks: Counter[str] = Counter()
        self.refused = 0
        self.ended = 0
        self.blocked = blocked_ranks.BlockedRanks()
        self._first_steps: list[tuple[str, int, int, int]] = []
        self._stepped: dict[str, int] = {}

    def first_steps(self) -> list[tuple[str, int, int, int]]:
        """Return the first finished step of each attempt since the last call: (gang, attempt, step, end wall time)."""
        found, self._first_steps = self._first_steps, []
        return found

    def of(self, name: str, attempt: int, received_ns: int) -> Gang | None:
        """Return the data of this attempt of the gang; None if the attempt has ended or there are too many gangs. A
        newer attempt replaces the last one."""
        gang = self.gangs.get(name)
        if gang is not None:
            self.tables.settle_of(gang)
        if gang is None or gang.attempt < attempt:
            placed = self._membership is None or name not in self._membership.owners
            # Gangs without a placement use at most half of the limit, so that placed gangs always fit.
            if gang is None and len(self.gangs) >= (MOST_GANGS if placed else MOST_GANGS // 2):
                self.refused += 1
                return None
            if gang is not None:
                self._leave(gang)
            gang = self.gangs[name] = Gang(name, attempt, self.trails, self.opened)
            gang.placed = placed
            gang.stepped = not placed or self._stepped.get(name, -1) >= attempt
            gang.received_ns = received_ns
        elif gang.attempt > attempt:
            self.ended += 1
            return None
        return gang

    def forget_silent(self, received_ns: int) -> list[str]:
        """Delete gangs without reports for FORGET_NS; returns their names. A later report starts them from scratch."""
        self.tables.settle()
        stale = [name for name, gang in self.gangs.items() if received_ns - gang.received_ns > FORGET_NS]
        for name in stale:
            self.forget(name)
        if self._membership is not None:
            for name in self._membership.owners.keys() - self.gangs.keys():
                self._membership.forget(name)
        return stale

    def forget(self, name: str) -> None:
        """Delete the data of the gang."""
        self.tables.settle()
        gang = self.gangs.pop(name, None)
        if gang is not None:
            self._leave(gang)
        if self._membership is not None:
            self._membership.forget(name)

    def _leave(self, gang: Gang) -> None:
        """Delete the gang's reports, and subtract its ranks from the count of ranks without a placement on their
        node."""
        self.blocked.forget(gang.name)
        gang.leave()
        if not gang.placed and self._membership is not None:
            owner = self._membership.owners.get(gang.name, "")
            self._outside_ranks[owner] -= len(gang)
            if self._outside_ranks[owner] <= 0:
                del self._outside_ranks[owner]

    def column(self, gang: Gang, rank: int, node: str) -> int:
        """Return the rank's column in the gang. If the node may not report the rank, count a refusal and return -1.

        A rank that another node still reports belongs to that node.
        """
        if (known := gang.reported_again(rank, node)) >= 0:
            return known  # the usual case
        if self._membership is not None:
            held = gang.holder(rank)
            if held is None:
                if not gang.placed:
                    if self._outside_ranks[node] >= MOST_OUTSIDE_RANKS:
                        self._membership.refuse(node, gang.name, Refusal.LIMIT)
                        return -1
                    self._outside_ranks[node] += 1
            elif held[0] != node and self._reports(held[0], gang, rank, held[1]):
                self._membership.refuse(node, gang.name, Refusal.RANK)
                return -1
        return gang.column(rank, node)

    def _reports(self, node: str, gang: Gang, rank: int, reported_ns: int) -> bool:
        """Return whether the node still reports the rank: by a recent record, a counter or an open record."""
        view = self._nodes.get(node)
        if view is None or gang.received_ns - view.received_ns > HELD_NS:
            return False
        if gang.received_ns - reported_ns <= HELD_NS:
            return True
        if any(group.gang is gang and rank in group.ranks for group in view._groups):
            return True
        column = gang.column(rank, node)
        return any(one is gang and gang.has_cell(column, cells) for one, cells in view._opened)

    def take(self, node: NodeView, frame: Frame, continues: bool, received_ns: int) -> Sequence[EventRecord]:
        """Process the frame's records; returns the events among them.

        continues: whether the node's last frame is of the same boot and agent process.
        """
        if continues and not node._waiting and node._record_seq is not None:
            records: Sequence[Record] | RecordTable = frame.records if frame.table is None else frame.table
            if records is node._records and node._opened and node._record_seq == frame.record_seq:
                for gang, _ in node._opened:
                    if gang.left:
                        break
                else:
                    node._record_seq += len(records) + frame.left_out
                    self.tables.add_again(node, frame.monotonic_ns, received_ns)
                    return ()
            elif self._queued(node, frame, node._record_seq, received_ns):
                return ()
        self.tables.settle_of_node(node)
        if node._waiting and received_ns >= node._waiting_ns and (waited := self._waited(node, received_ns)):
            self._take(node, frame, waited, received_ns)
        table = frame.table
        records = frame.records if table is None else table
        count = len(records)
        expected = node._record_seq if continues else None
        left_out = frame.left_out
        if not count and continues and not left_out:
            node._records = node._opened = ()
            return ()
        known = 0 if expected is None or not count else max(0, expected - frame.record_seq - left_out)
        if expected is not None and (count or left_out):
            node.records_missed += max(0, frame.record_seq - expected)
        node._record_seq = frame.record_seq + count + left_out
        if table is None:
            return self._take(node, frame, frame.records[known:], received_ns)
        self._take_table(node, frame, table if not known else table.after(known), received_ns)
        return ()

    def _queued(self, node: NodeView, frame: Frame, expected: int, received_ns: int) -> bool:
        """Queue the frame's table if it needs no more checks, because its ranks are those of the node's last table.
        Return False without any change otherwise. expected: sequence number of the next record."""
        table, known = frame.table, node._ranks
        if table is None or known is None or known.members is not table.members or expected > frame.record_seq:
            return False
        gang = known.gang
        if not (table.rows and gang.changes == known.changes and self._allowed_again(node, known, received_ns)):
            return False
        node.records_missed += frame.record_seq - expected
        node._record_seq = frame.record_seq + len(table) + frame.left_out
        self.tables.add(node, frame, known, table, received_ns)
        return True

    def _take(self, node: NodeView, frame: Frame, records: Sequence[Record], received_ns: int) -> Sequence[EventRecord]:
        events: list[EventRecord] = []
        taken: list[Taken] = []
        # Most records of a node are of one gang, so the gang is looked up only when it changes.
        name, attempt = "", -1
        gang: Gang | None = None
        ranks: frozenset[int] | None = None
        why: Refusal | None = None
        rank, column = -1, -1
        cells: list[int] = []
        steps: list[tuple[int, ...]] = []
        row: tuple[int, ...] = ()
        count = 0
        now_ns, here = frame.monotonic_ns, node.name
        for record in records:  # hot loop over the frames of ten thousand nodes: avoid calls
            if isinstance(record, EventRecord):
                if record.member is None:
                    events.append(record)
                else:
                    finish_steps(taken)
                    self._take_blocked(node, record, record.member, received_ns)
                continue
            member = record.member
            another = member.gang != name or member.attempt != attempt
            if isinstance(record, OpenRecord):
                fine = 0 <= record.number < LARGEST and 0 <= record.since_ns < LARGEST
            else:
                row = row_of(record, now_ns, received_ns)
                fine = bool(row)
            if not fine or not 0 <= member.rank < MOST_RANKS or (another and not possible(member)):
                self.refused += 1
                continue
            if another:
                name, attempt, rank, cells, steps = member.gang, member.attempt, -1, [], []
                gang, ranks, why = self._gang(here, member, received_ns)
                if gang is not None:
                    gang.received_ns = received_ns
                    taken.append((gang, cells, steps))
            if gang is None:
                if why is not None:
                    self._refuse(node, record, why, received_ns)
                continue
            if member.rank != rank:  # records of one rank are consecutive
                rank = member.rank
                if ranks is not None and rank not in ranks:
                    column = -1
                    self._refuse(node, record, Refusal.RANK, received_ns)
                elif (column := gang.reported_again(rank, here)) < 0:
                    finish_steps(taken)
                    column = self.column(gang, rank, here)
            if column < 0:
                continue
            if isinstance(record, OpenRecord):
                cells += (record.what != "step", column, record.number, record.since_ns)
                count += 1
            else:
                steps.append((column, *row))
                if not gang.stepped:
                    self._first_step(gang, record.step, record.start_ns + record.duration_ns, node)
        finish_steps(taken)
        open_all(node, frame, taken, count == len(frame.records))
        return events

    def _allowed_again(self, node: NodeView, last: KnownRanks, received_ns: int) -> bool:
        """Return whether the node may still report the ranks of its last table, in the same attempt of the gang.

        The backend decides again only after its data, or the node's placement, has changed.
        """
        gang = last.gang
        if gang.left:
            return False
        news = None if self._membership is None else self._membership.news(node.name)
        if news is not None and last.news is news and last.here is node._here:
            return True
        first = last.members[0]
        if self._membership is None:
            return first.attempt == gang.attempt
        found = self._membership.counted(node.name, first.gang, first.attempt, received_ns)
        if isinstance(found, Refusal) or (found.gang, found.attempt, found.ranks) != (
            gang.name,
            gang.attempt,
            last.ranks,
        ):
            return False
        if news is not None and gang.placed:
            node._ranks = replace(last, news=news, here=node._here)
        return True

    def _take_table(self, node: NodeView, frame: Frame, table: RecordTable, received_ns: int) -> None:
        """Process a table of records row by row, with the same effect as ``_take`` has for the same records."""
        taken: list[Taken] = []
        members = table.members
        last: int | None = None
        name, attempt, rank, column = "", -1, -1, -1
        gang: Gang | None = None
        ranks: frozenset[int] | None = None
        why: Refusal | None = None
        cells: list[int] = []
        steps: list[tuple[int, ...]] = []
        count, places, here = 0, len(members), node.name
        oldest_ns, latest_ns = frame.monotonic_ns - OLDEST_RECORD_NS, frame.monotonic_ns + CLOCK_SLACK_NS
        for row in ROW.iter_unpack(table.rows):  # hot loop over the frames of ten thousand nodes: avoid calls
            kind, place, number, start_ns, duration_ns, wait_ns, tokens, squares = row
            end_ns = start_ns + duration_ns
            if kind == FINISHED_STEP:
                odd = (number | start_ns | wait_ns + 1 | tokens + 1 | squares + 1) >> LARGEST_BITS
                odd = odd or wait_ns > duration_ns or duration_ns <= 0 or not oldest_ns <= end_ns <= latest_ns
            else:  # not negative and without a bit above the largest number
                odd = (number | start_ns) >> LARGEST_BITS or kind >> 1
            if odd and not is_possible(row, oldest_ns, latest_ns):
                self.refused += 1
                continue
            if place != last:
                if not 0 <= place < places:
                    self.refused += 1
                    continue
                member = members[place]
                another = member.gang != name or member.attempt != attempt
                if not 0 <= member.rank < MOST_RANKS or (another and not possible(member)):
                    self.refused += 1
                    continue
                last = place
                if another:
                    name, attempt, rank, cells, steps = member.gang, member.attempt, -1, [], []
                    gang, ranks, why = self._gang(here, member, received_ns)
                    if gang is not None:
                        gang.received_ns = received_ns
                        taken.append((gang, cells, steps))
                if gang is not None and member.rank != rank:
                    rank = member.rank
                    if ranks is not None and rank not in ranks:
                        column = -1
                        self._refuse(node, record_of(member, row), Refusal.RANK, received_ns)
                    elif (column := gang.reported_again(rank, here)) < 0:
                        finish_steps(taken)
                        column = self.column(gang, rank, here)
            if gang is None:
                if why is not None:
                    self._refuse(node, record_of(members[place], row), why, received_ns)
            elif column >= 0 and kind == FINISHED_STEP:
                steps.append((column, number, end_ns, duration_ns, received_ns, wait_ns, tokens, squares))
                if not gang.stepped:
                    self._first_step(gang, number, end_ns, node)
            elif column >= 0:
                cells += (kind, column, number, start_ns)
                count += 1
        finish_steps(taken)
        open_all(node, frame, taken, count == len(frame.table or ()))
        node._ranks = known_ranks(node, table, taken, ranks)

    def _take_blocked(self, node: NodeView, record: EventRecord, member: Member, received_ns: int) -> None:
        """Keep a report of where a rank is blocked, if the node may report the rank."""
        if not 0 <= member.rank < MOST_RANKS or not possible(member):
            self.refused += 1
            return
        gang, ranks, why = self._gang(node.name, member, received_ns)
        if ranks is not None and member.rank not in ranks:
            why = Refusal.RANK
        if gang is None or why is not None:
            if self._membership is not None and why not in (None, Refusal.NOT_KNOWN_YET):
                self._membership.refuse(node.name, member.gang, why)
        elif self.column(gang, member.rank, node.name) >= 0:
            at_ns = node.wall_of(node.monotonic_ns)
            if (report := blocked_ranks.read(record, member.rank, node.name, at_ns)) is not None:
                self.blocked.add(gang.name, report)

    def _gang(
        self, node: str, member: Member, received_ns: int
    ) -> tuple[Gang | None, frozenset[int] | None, Refusal | None]:
        """Return three values: the gang of this rank's records, the ranks that the node may report, and the refusal.

        gang: None if the records are not accepted. ranks: None if the node may report any rank. refusal: None if there
        is none.
        """
        if self._membership is None:
            return self.of(member.gang, member.attempt, received_ns), None, None
        found = self._membership.counted(node, member.gang, member.attempt, received_ns)
        if isinstance(found, Refusal):
            return None, None, found
        return self.of(found.gang, found.attempt, received_ns), found.ranks, None

    def _refuse(self, node: NodeView, record: StepRecord | OpenRecord, why: Refusal, received_ns: int) -> None:
        """Count a record that the node may not report.

        A step record is held back instead if the scheduler may add its gang soon.
        """
        assert self._membership is not None
        if why is not Refusal.NOT_KNOWN_YET:
            self._membership.refuse(node.name, record.member.gang, why)
        elif isinstance(record, StepRecord):  # open records are sent again with every frame
            node._waiting.append((received_ns, record))

    def _waited(self, node: NodeView, received_ns: int) -> list[Record]:
        """Return held-back records whose gang the scheduler now has; refuse records that were held back too long."""
        assert self._membership is not None
        waited = list(node._waiting)
        node._waiting.clear()
        node._waiting_ns = received_ns + AGAIN_NS
        found: list[Record] = []
        for came_ns, record in waited:
            gang, attempt = record.member.gang, record.member.attempt
            decided = self._membership.counted(node.name, gang, attempt, came_ns)
            if isinstance(decided, Counted):
                found.append(record)
            elif decided is not Refusal.NOT_KNOWN_YET:
                self._membership.refuse(node.name, gang, decided)
            elif received_ns - came_ns <= WAITS_NS:
                node._waiting.append((came_ns, record))
            else:
                self._membership.refuse(node.name, gang, Refusal.UNKNOWN)
        return found

    def _first_step(self, gang: Gang, step: int, end_ns: int, node: NodeView) -> None:
        self._stepped[gang.name] = gang.attempt
        gang.stepped = True
        self._first_steps.append((gang.name, gang.attempt, step, node.wall_of(end_ns)))
        if len(self._stepped) > MOST_GANGS:
            del self._stepped[next(iter(self._stepped))]
