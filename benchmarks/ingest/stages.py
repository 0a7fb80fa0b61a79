"""CPU time of each stage of a frame, in one thread without sockets: ``python -m benchmarks.ingest.stages --json``.

Each stage processes a batch of frames, as the feed does. All jobs are external, as with Slurm: their placement is not
in the scheduler's state, so the backend decides which ranks a node may report. With `--kubernetes` the scheduler has
placed all jobs, and an informer cache decides about pods. `--repeat-decisions` asks for each report, as without
`Backend.attest_data`; `--moves N` lets N pods a second move, after which every kept decision is made again. Compare
the stages only with each other: without system calls and other threads, the figures are lower than in
`benchmarks.ingest`.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from msgspec import structs

from agent.schema.frame import Frame, Layout, PackedLayout, pack
from agent.schema.record_table import records_of
from agent.schema.wire import Decoder, decode, encode_frame, with_length
from benchmarks.ingest.decisions import Decisions
from benchmarks.ingest.frames import STEP_SECONDS, Agents, jobs
from benchmarks.ingest.generator import HEAD, RECORD_BYTES, SLOTS, chunk
from benchmarks.ingest.processes import certificates
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.feed.frames_response import Response

WARM_SECONDS = 3
TICK_SLOTS = SLOTS // 2
SECOND = 1_000_000_000
SAMPLES = ("tier_ns", "gauges", "counters", "counters_valid")
STAGES = ("decrypt", "parse_response", "decode", "fold", "prepare_tick")


class Stream:
    """Both ends of one agent's TLS stream in memory, with the receiver's parsers."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self._there, self._back = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._agent = server.wrap_bio(self._back, self._there, server_side=True)
        self._feed = client.wrap_bio(self._there, self._back, server_hostname="127.0.0.1")
        for _ in range(3):
            for end in (self._feed, self._agent):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
        self._response = Response()
        self._response.feed(HEAD)
        self.decoder = self._newest = Decoder()
        self._of_records = Decoder()

    def send(self, message: bytes) -> None:
        self._agent.write(chunk(message))

    def decrypt(self) -> list[bytes]:
        """Return the decrypted data, one item per TLS record."""
        records: list[bytes] = []
        while self._there.pending:
            try:
                records.append(self._feed.read(RECORD_BYTES))
            except ssl.SSLWantReadError:
                break
        return records

    def parse(self, records: list[bytes]) -> list[bytes]:
        """Return the messages in decrypted data of a chunked HTTP response."""
        return [message for record in records for message in self._response.feed(record)]

    def decode(self, message: bytes, with_counters: bool) -> Layout | Frame:
        """Decode a message. Frames with and without counters have a decoder each, which share the last records."""
        decoder, before = self.decoder if with_counters else self._of_records, self._newest
        if decoder is not before:
            decoder._raw_records, decoder._records, decoder._table = before._raw_records, before._records, before._table
            decoder._before_rows, decoder._members = before._before_rows, before._members
            self._newest = decoder
        return decoder.decode(message)

    def layout(self, message: bytes) -> Layout:
        self.send(message)
        layout = self.decoder.decode(self.parse(self.decrypt())[0])
        assert isinstance(layout, Layout)
        return layout


def streams(count: int) -> list[Stream]:
    with tempfile.TemporaryDirectory() as name:
        ca_file, certificate, key = certificates(Path(name))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key)
        server.num_tickets = 0
        client = ssl.create_default_context(cafile=ca_file)
        return [Stream(server, client) for _ in range(count)]


class ByNeed:
    """Selection of the frames that agents would send by need: those with changed records, and every n-th frame.

    apart: whether changed records are sent apart from counters, so that a frame with them does not replace an n-th
    frame.
    """

    def __init__(self, agents: Agents, nodes: int, every: int, apart: bool = False) -> None:
        self._agents, self._every, self._apart = agents, every, apart
        self._sent = [agents.records(index) for index in range(nodes)]
        self._left = [index % every for index in range(nodes)] if apart else [0] * nodes

    def needed(self, index: int) -> tuple[bool, bool]:
        """Return whether the node's newest frame is sent, and whether with its counters; call it once per frame."""
        records = self._agents.records(index)
        changed, due = records is not self._sent[index], self._left[index] <= 0
        self._sent[index] = records
        whole = due or (changed and not self._apart)
        self._left[index] = self._every - 1 if whole else self._left[index] - 1
        return changed or due, whole


def only_records(message: bytes) -> bytes:
    """Return the frame's message, with its length, without its samples."""
    frame = decode(message[4:])
    assert isinstance(frame, Frame)
    records = frame.records if frame.table is None else tuple(records_of(frame.table))
    none = {name: getattr(frame, name)[:0] for name in SAMPLES}
    return with_length(encode_frame(structs.replace(frame, records=records, table=None, **none), as_table=True))


def with_samples(frame: Frame, layout: PackedLayout) -> Frame:
    """Return a frame without samples with as many samples as its layout has. They are not used."""
    tiers, gauges, counters = layout.sizes
    return structs.replace(
        frame, tier_ns=np.zeros(tiers, np.int64), gauges=np.zeros(gauges), counters=np.zeros(counters, np.uint64),
        counters_valid=np.zeros(counters, np.bool_),
    )  # fmt: skip


def measure(
    nodes: int,
    seconds: int,
    seed: int,
    every: int = 1,
    step_seconds: tuple[float, float] = STEP_SECONDS,
    apart: bool = False,
    kubernetes: bool = False,
    repeated: bool = False,
    moves: int = 0,
) -> dict[str, float]:
    """Return the microseconds of each stage for each second of each node, and `sent` and `with_counters`,
    the shares of frames that are sent, and that are sent with counters.

    seconds: simulated seconds that are measured after the warm-up. every: of frames without changed records, only
    every n-th is sent; 1 sends all. apart: of frames with changed records, only every n-th is sent with counters.
    kubernetes, repeated: see `Decisions`. moves: number of pods a second that move, at most SLOTS.
    """
    placed = list(jobs(nodes, seed, step_seconds))
    agents, links = Agents(0, placed, WANTED), streams(nodes)
    decisions = Decisions(kubernetes, repeated, agents, placed)
    by_need, sent, whole_sent = ByNeed(agents, nodes, every, apart), 0, 0
    layouts = [pack(link.layout(agents.layout_message(index))) for index, link in enumerate(links)]
    fleet = Fleet(decisions.placements)
    look, used = Look(fleet), dict.fromkeys(STAGES, 0.0)

    def lap(stage: str, before: float) -> float:
        now = time.thread_time()
        if at_ns >= WARM_SECONDS * SECOND:
            used[stage] += now - before
        return now

    for slot in range((WARM_SECONDS + seconds) * SLOTS):
        at_ns, phase = slot * SECOND // SLOTS, slot % SLOTS
        if phase * moves // SLOTS != (phase + 1) * moves // SLOTS:
            decisions.moved()
        due = range(phase * nodes // SLOTS, (phase + 1) * nodes // SLOTS)
        agents.advance(slice(due.start, due.stop), 10**18 + at_ns, 10**13 + at_ns)
        needed = {index: by_need.needed(index) for index in due}
        batch = [index for index, (is_sent, _) in needed.items() if is_sent]
        whole = [needed[index][1] for index in batch]
        sent += len(batch) if at_ns >= WARM_SECONDS * SECOND else 0
        whole_sent += sum(whole) if at_ns >= WARM_SECONDS * SECOND else 0
        for index, with_counters in zip(batch, whole, strict=True):
            message = agents.frame_message(index)
            bare = only_records(message) if apart else b""  # for each frame: it displaces the caches
            links[index].send(message if with_counters else bare)
        since = time.thread_time()
        records = [links[index].decrypt() for index in batch]
        since = lap("decrypt", since)
        messages = [links[index].parse(of_one) for index, of_one in zip(batch, records, strict=True)]
        since = lap("parse_response", since)
        frames = [
            links[index].decode(found[0], of_one) for index, found, of_one in zip(batch, messages, whole, strict=True)
        ]
        lap("decode", since)
        folded: list[Frame] = []
        for index, frame, with_counters in zip(batch, frames, whole, strict=True):
            assert isinstance(frame, Frame)
            folded.append(frame if with_counters else with_samples(frame, layouts[index]))
        since = time.thread_time()
        for index, frame, with_counters in zip(batch, folded, whole, strict=True):
            fleet.observe(layouts[index], frame, 10**13 + at_ns, superseded=not with_counters)
        since = lap("fold", since)
        if slot % TICK_SLOTS == TICK_SLOTS - 1:
            look.next(10**18 + at_ns, 10**13 + at_ns)
            lap("prepare_tick", since)
    found = {stage: round(total / (seconds * nodes) * 1e6, 2) for stage, total in used.items()}
    frames_due = seconds * nodes
    return {**found, "sent": round(sent / frames_due, 3), "with_counters": round(whole_sent / frames_due, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest.stages", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=10, help="simulated seconds (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--every", type=int, default=1, help="of frames without changed records, send only every n-th (default all)"
    )
    parser.add_argument(
        "--steps", type=float, nargs=2, default=STEP_SECONDS, metavar=("SHORTEST", "LONGEST"), help="seconds of a step"
    )
    parser.add_argument(
        "--apart", action="store_true", help="send counters only in every n-th frame; compare with --every 1 --apart"
    )
    parser.add_argument("--kubernetes", action="store_true", help="decide as the Kubernetes backend does")
    parser.add_argument("--repeat-decisions", action="store_true", help="decide again for each report")
    parser.add_argument("--moves", type=int, default=0, help="pods a second that move, at most 50 (default 0)")
    arguments = parser.parse_args()
    shortest, longest = arguments.steps
    figures = measure(
        arguments.agents, arguments.seconds, arguments.seed, arguments.every, (shortest, longest), arguments.apart,
        arguments.kubernetes, arguments.repeat_decisions, arguments.moves,
    )  # fmt: skip
    shares = {name: figures.pop(name) for name in ("sent", "with_counters")}
    found = {"agents": arguments.agents, "us_a_frame": figures, **shares}
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
