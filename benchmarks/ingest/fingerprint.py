"""Fingerprint of the telemetry and verdicts of recorded frames: ``python -m benchmarks.ingest.fingerprint --json``.

Two versions that compute the same have the same fingerprint. The frames are simulated: jobs of many sizes with slow
ranks, frames that are lost, repeated and late, agents that restart, and jobs that start on nodes where another job
ended. Every message passes through the decoder of its stream. Every array counts bit by bit, so run both versions
with the same release of numpy.

With ``--cost``, nothing is hashed. Instead, the CPU time of decoding, folding, telemetry and detectors is measured, in
each simulated second. The lower quartile of the seconds is little affected by other work on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np

from agent.schema.frame import Frame, Layout, PackedLayout, pack
from agent.schema.wire import Decoder
from benchmarks.ingest.decisions import ACCEPTED
from benchmarks.ingest.frames import Agents
from benchmarks.ingest.generator import SLOTS
from benchmarks.ingest.timeline import Plan, Timeline
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.detectors import make_detection

SECOND = 1_000_000_000
BEGUN_NS, WALL_NS = 10**13, 10**18
TICK_SLOTS = SLOTS // 2
DISTURBED_SECONDS, LIFETIME_SECONDS = 45, 240.0
DISTURBED_SHARE = 0.02
STEP_SECONDS = 0.5, 8.0

LOST, REPEATED, LATE, RESTARTED = 0.01, 0.01, 0.01, 0.001
"""Share of the frames that are lost, sent twice, or sent after the next one, and before which an agent restarts."""

WARM_SECONDS = 10
"""Simulated seconds whose cost does not count: new layouts, and jobs without a baseline."""

READ_ALL_TICKS = 7
"""Every seventh tick reads every array of the telemetry, including those that no detector reads."""

STAGES = ("decode", "fold", "telemetry", "detectors")


class Hashed:
    """Digest of a sequence of values: numbers, texts, arrays, and objects with fields."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, value: Any) -> None:
        """Add a value. A function without arguments is called and its result added; others are left out."""
        if isinstance(value, np.ndarray):
            self._digest.update(repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
        elif is_dataclass(value):
            for one in fields(value):
                if not one.name.startswith("_"):  # a kept result
                    self.add((one.name, getattr(value, one.name)))
        elif isinstance(value, msgspec.Struct):
            self._digest.update(msgspec.msgpack.encode(value))
        elif isinstance(value, Mapping):
            for key in sorted(value, key=repr):
                self.add((key, value[key]))
        elif isinstance(value, list | tuple):
            self._digest.update(b"(%d" % len(value))
            for one in value:
                self.add(one)
        elif isinstance(value, set | frozenset):
            self.add(sorted(value, key=repr))
        elif not callable(value):
            self._digest.update(repr(value).encode())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class Messages:
    """Messages of the simulated agents of one seed, with lost, repeated and late frames, and restarts."""

    def __init__(self, nodes: int, seed: int, as_tables: bool) -> None:
        self._timeline = Timeline(
            Plan(nodes, seed, BEGUN_NS, BEGUN_NS + DISTURBED_SECONDS * SECOND, LIFETIME_SECONDS, DISTURBED_SHARE,
                 STEP_SECONDS)
        )  # fmt: skip
        jobs = [run.job_on(run.first_node + n) for run in self._timeline.running for n in range(run.nodes)]
        self._agents = Agents(0, jobs, WANTED, as_tables)
        self._random = np.random.default_rng((seed, 3))
        self._late: dict[int, bytes] = {}
        self.restarts = [0] * nodes
        self.first = [self._agents.layout_message(index)[4:] for index in range(nodes)]

    def running(self) -> set[str]:
        """Return the names of the jobs that run now."""
        return {run.gang for run in self._timeline.running}

    def at(self, slot: int, nodes: range) -> list[tuple[int, bytes]]:
        """Return (node, message) of these nodes at this time slot, in order."""
        now_ns = BEGUN_NS + slot * SECOND // SLOTS
        found: list[tuple[int, bytes]] = []
        for run in self._timeline.advance(now_ns):
            for node in range(run.first_node, run.first_node + run.nodes):
                self._agents.change_job(node, run.job_on(node))
                self._late.pop(node, None)  # an agent sends its frames in order, before another layout
                found.append((node, self._agents.layout_message(node)[4:]))
        self._agents.advance(slice(nodes.start, nodes.stop), WALL_NS + now_ns - BEGUN_NS, now_ns)
        for node in nodes:
            message = self._agents.frame_message(node)[4:]
            chance = self._random.uniform(size=4)
            if chance[3] < RESTARTED:
                self.restarts[node] += 1
            message = self._of_this_run(node, message)
            if chance[0] < LOST:
                continue
            if chance[2] < LATE:
                self._late[node] = message
                continue
            found.append((node, message))
            if chance[1] < REPEATED:
                found.append((node, message))
            if node in self._late:
                found.append((node, self._late.pop(node)))
        return found

    def _of_this_run(self, node: int, message: bytes) -> bytes:
        """Return the message with the id of the agent's current run. Ids have 16 digits; restarts change the first."""
        before = b"%016d" % node
        return message.replace(before, b"%d" % (self.restarts[node] % 9 + 1) + before[1:], 1)


def fingerprint(nodes: int, seconds: int, seed: int, hashing: bool, as_tables: bool = True) -> dict[str, Any]:
    """Return the digests after this many simulated seconds, or (not `hashing`) the CPU time of each stage in µs a
    frame."""
    messages = Messages(nodes, seed, as_tables)
    decoders = [Decoder() for _ in range(nodes)]
    layouts: list[PackedLayout] = []
    for decoder, message in zip(decoders, messages.first, strict=True):
        layout = decoder.decode(message)
        assert isinstance(layout, Layout)
        layouts.append(pack(layout))
    fleet = Fleet(Placements(lambda _node, _gang, _at_ns: Placed(1, None), lambda _node: ACCEPTED))
    look, detection = Look(fleet), make_detection()
    telemetry, findings = Hashed(), Hashed()
    used, frames, found_count, ticks = np.zeros((seconds, 1 + len(STAGES))), 0, 0, 0

    def count(stage: int, since: float) -> None:
        used[slot // SLOTS, stage] += time.thread_time() - since

    for slot in range(seconds * SLOTS):
        now_ns = BEGUN_NS + slot * SECOND // SLOTS
        wall_ns = WALL_NS + now_ns - BEGUN_NS
        phase = slot % SLOTS
        batch = messages.at(slot, range(phase * nodes // SLOTS, (phase + 1) * nodes // SLOTS))
        since = time.thread_time()
        received = [(node, decoders[node].decode(message)) for node, message in batch]
        count(0, since)
        since = time.thread_time()
        fleet.set_clock(wall_ns, now_ns)
        for node, one in received:
            if isinstance(one, Frame):
                frames += 1
                fleet.observe(layouts[node], one, now_ns)
            else:
                layouts[node] = pack(one)
        count(1, since)
        used[slot // SLOTS, -1] += sum(isinstance(one, Frame) for _, one in received)
        if slot % TICK_SLOTS != TICK_SLOTS - 1:
            continue
        ticks += 1
        since = time.thread_time()
        first_steps = fleet.first_steps()
        new = look.next(wall_ns, now_ns)
        count(2, since)
        if hashing and ticks % READ_ALL_TICKS == 0:
            for job in new.jobs:
                names = ("given_open_steps", "given_open_collectives", "given_steps_finished", "given_frames")
                telemetry.add([getattr(job, name)() for name in names])
                assert job.consumed is not None
                telemetry.add([job.consumed(np.full(len(job.shape), wall_ns - back, np.int64)) for back in (0, SECOND)])
        since = time.thread_time()
        results = detection.tick(new)
        count(3, since)
        found_count += len(results)
        if hashing:
            telemetry.add((first_steps, new))
            findings.add(results)
    if not hashing:
        warm = used[WARM_SECONDS:]
        quartiles = np.quantile(warm[:, :-1] / warm[:, -1:], 0.25, axis=0) * 1e6
        figures = dict(zip(STAGES, quartiles.round(2).tolist(), strict=True))
        return {"us_a_frame": figures, "all": round(float(quartiles.sum()), 2), "frames": frames}
    for sample in sorted(fleet.measures(), key=repr):
        telemetry.add(sample)
    return {
        "telemetry": telemetry.hexdigest(), "findings": findings.hexdigest(), "frames": frames, "found": found_count,
        "refused": sum(node.frames_refused for node in fleet.nodes.values()),
        "missed": sum(node.frames_missed for node in fleet.nodes.values()),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest.fingerprint", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--seconds", type=int, default=150, help="simulated seconds (default 150)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure CPU time instead of hashing")
    parser.add_argument(
        "--records", choices=("table", "objects"), default="table", help="form of the records (default table)"
    )
    arguments = parser.parse_args()
    found = fingerprint(
        arguments.nodes, arguments.seconds, arguments.seed, not arguments.cost, arguments.records == "table"
    )
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
