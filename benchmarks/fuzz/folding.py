"""Fuzz target: frames of several agents, from which the controller updates its state of all nodes."""

from __future__ import annotations

import random

import msgspec

from agent.schema.errors import FrameError, VersionError
from agent.schema.frame import (
    Frame,
    Layout,
    OpenRecord,
    PackedLayout,
    Record,
    StepRecord,
    check_fits,
    pack,
)
from agent.schema.wire import Decoder, encode_frame, encode_layout, with_length
from benchmarks.fuzz.frames import AT_NS, NODES, SECOND, WALL_NS, batch, changed, frame, layout
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements, Refusal
from scheduler_feedback.core.telemetry.telemetry_update import Look


class _Controller:
    """The controller's state of all agents, with two placed jobs, and the messages that it has received."""

    def __init__(self) -> None:
        self.slurm_known = False
        placements = Placements(self._attest)
        self.placements = placements
        placements.follow([self._job("j-1", "n0", "n1"), self._job("j-2", "n1")])
        self.fleet = Fleet(placements)
        self.look = Look(self.fleet)
        self.layouts: dict[str, Layout | PackedLayout] = {}
        self.decoder = Decoder()
        self.now_ns = AT_NS
        self.attempt = 1

    @staticmethod
    def _job(job_id: str, *nodes: str) -> Job:
        ranks = [RankRecord(rank, Slot(node, 0)) for rank, node in enumerate(nodes)]
        return Job(job_id, JobSpec(job_id, ("train",), len(nodes)), JobState.RUNNING, 0, 1, ranks)

    def _attest(self, node: str, gang: str, _came_ns: int) -> Placed | Refusal | None:
        if not gang.startswith("slurm-"):
            return None
        if gang.startswith("slurm-7") and self.slurm_known:
            return Placed(0, None) if node != "evil" else Refusal.NOT_PLACED
        return Refusal.NOT_KNOWN_YET

    def pass_time(self, op: int) -> None:
        """Apply events before the next message, for example the move of a job. op: bits that select the events."""
        self.now_ns += (SECOND // 10, SECOND, 3 * SECOND, 31 * SECOND)[op & 3]
        if op & 4:
            self.slurm_known = True
        if op & 24 == 24:  # the second job is moved and restarts
            self.attempt += 1
            second = self._job("j-2", "n1" if op & 32 else "n0")
            second.attempt = self.attempt
            self.placements.follow([self._job("j-1", "n0", "n1"), second])
        if op & 96 == 96:
            self._tick_detectors()
        if op & 159 == 159:
            self.now_ns += 601 * SECOND
            self.fleet.forget_silent(self.now_ns)
        elif op & 158 == 158:
            self.fleet.forget("j-1")

    def _tick_detectors(self) -> None:
        self.look.next(WALL_NS + self.now_ns, self.now_ns)
        list(self.fleet.measures())
        self.fleet.newly_refused()
        self.fleet.first_steps()
        assert not self.fleet.failed(), "a frame that could not be folded is a bug"
        assert not self.look.failed, "a gang that could not be put together is a bug"

    def take(self, message: Layout | Frame, op: int) -> bool:
        """Update the state from a layout or frame as the controller does. Return False if the frame has no layout
        yet."""
        if isinstance(message, Layout):
            self.layouts[message.node] = pack(message)
            return True
        of = self.layouts.get(message.node)
        if of is None:
            return False
        check_fits(of, message)
        self.fleet.observe(of, message, self.now_ns, superseded=op & 64 == 64)
        return True


def make_session(rng: random.Random) -> bytes:
    """Make messages of several agents: a layout for each, then frames.

    The byte before each message selects the events that happen before it.
    """
    layouts = {node: layout(rng, node) for node in rng.sample(NODES, rng.randint(1, 3))}
    seq = 1
    found = [encode_layout(made) for made in layouts.values()]
    twice: dict[str, Frame] = {}
    for _ in range(rng.randint(4, 16)):
        node = rng.choice(list(layouts))
        if rng.random() < 0.1:
            layouts[node] = layout(rng, node)
            found.append(encode_layout(layouts[node]))
        seq += rng.choice((1, 1, 1, 5))
        made = frame(rng, layouts[node], seq)
        if node in twice and rng.random() < 0.3:  # nothing happened since
            made = msgspec.structs.replace(made, records=twice[node].records, record_seq=twice[node].record_seq)
        if rng.random() < 0.15:
            made = batch(rng, layouts[node], seq)
            seq = made.seq
        twice[node] = made
        found.append(encode_frame(made, as_table=rng.random() < 0.5))
        if rng.random() < 0.3:
            for _ in range(rng.choice((1, 2, 5))):  # tables of the same ranks
                seq += 1
                twice[node] = made = _next_frame(rng, made, seq)
                found.append(encode_frame(made, as_table=True))
    for at, message in enumerate(found):
        if rng.random() < 0.15:
            found[at] = changed(rng, message)
    return b"".join(bytes([rng.randrange(256)]) + with_length(one) for one in found)


def _next_frame(rng: random.Random, before: Frame, seq: int) -> Frame:
    """Return the agent's next frame, with steps and open steps of the same ranks, or the same records again."""
    at_ns = AT_NS + seq * SECOND
    records: list[Record] = []
    for one in before.records:
        if isinstance(one, StepRecord):
            begun_ns = at_ns - one.duration_ns - rng.choice((0, 0, 0, 2 * 3600 * SECOND))
            records.append(msgspec.structs.replace(one, step=rng.choice((seq, seq, -1)), start_ns=begun_ns))
        elif isinstance(one, OpenRecord):
            records.append(msgspec.structs.replace(one, number=seq))
    return msgspec.structs.replace(
        before, earlier=(), left_out=0, seq=seq, wall_ns=WALL_NS + seq * SECOND, monotonic_ns=at_ns,
        record_seq=before.record_seq + len(before.records) + before.left_out + rng.choice((0, 0, 0, 1)),
        records=before.records if rng.random() < 0.2 else tuple(records),
    )  # fmt: skip


def parse_session(data: bytes) -> str:
    """Decode the messages and add them to the state of a controller that has just started."""
    controller = _Controller()
    decoded, folded = 0, 0
    at = 0
    while at < len(data):
        op, length = data[at], int.from_bytes(data[at + 1 : at + 5], "big")
        message = data[at + 5 : at + 5 + length]
        at += 5 + length
        controller.pass_time(op)
        try:
            received = controller.decoder.decode(message)
            decoded += 1
            if received.node in NODES and controller.take(received, op):  # else the feed refuses it: not its stream
                folded += isinstance(received, Frame)
        except (VersionError, FrameError):
            continue
    controller.pass_time(96)
    return ACCEPTED if folded else REFUSED if decoded else REFUSED_FIRST


TARGETS: tuple[Target, ...] = (
    Target(
        "frames-fold",
        make_session,
        parse_session,
        (
            "scheduler_feedback.core.telemetry.fleet:Fleet.observe",
            "scheduler_feedback.core.telemetry.membership:Membership",
            "scheduler_feedback.core.telemetry.steps.fleet_records:Attempts",
            "scheduler_feedback.core.telemetry.steps.record_queue",
            "scheduler_feedback.core.telemetry.series.series_queue",
            "scheduler_feedback.core.telemetry.steps.blocked_ranks",
            "scheduler_feedback.core.telemetry.series.occurrences:Occurrences",
            "scheduler_feedback.core.telemetry.device_locations",
        ),
    ),
)
