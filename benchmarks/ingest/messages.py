"""CPU time of messages with several samples: ``python -m benchmarks.ingest.messages --json``.

Decodes messages of 64 nodes of eight GPUs as the feed does, and adds them to the state of all nodes. Prints for each
rate the microseconds and bytes of a message, and of a frame.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks.ingest.frames import GPUS, Agents, Job
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.feed.stream_decoder import StreamDecoder

NODES, MESSAGES, WARM_MESSAGES = 64, 12, 4
SECOND = 1_000_000_000
STEP_NS = 3 * SECOND

RATES = ((1, 1), (2, 1), (4, 2), (8, 1), (8, 4), (32, 1), (32, 4), (32, 8), (32, 16))
"""Frames for one message, and samples in it. 32: a reader that is late by half a minute."""


def measure(every: int, samples: int, messages: int = MESSAGES) -> dict[str, float]:
    """Return the cost of one message for `every` frames with the values of `samples` of them."""
    agents = Agents(0, [Job("j-1", 0, STEP_NS, node * GPUS) for node in range(NODES)], WANTED)
    agents.with_samples = agents.as_tables = True
    decoders = [StreamDecoder(name) for name in agents.names]
    fleet = Fleet(Placements(lambda _node, _gang, _at_ns: Placed(1, None)))
    for index, decoder in enumerate(decoders):
        decoder.take(agents.layout_message(index)[4:])
    seconds, size = 0.0, 0
    everyone = set(range(NODES))
    for second in range(1, every * (WARM_MESSAGES + messages) + 1):
        now_ns = 10_000 * SECOND + second * SECOND
        held = everyone if second % every else set[int]()
        agents.advance(slice(0, NODES), 10**18 + now_ns, now_ns, held, held if second % (every // samples) == 0 else ())
        if held:
            continue
        received = [agents.frame_message(index)[4:] for index in range(NODES)]
        begun = time.process_time()
        for decoder, message in zip(decoders, received, strict=True):
            frame = decoder.take(message)
            assert frame is not None and decoder.layout is not None and len(frame.earlier) < samples
            fleet.observe(decoder.layout, frame, now_ns)
        fleet.failed()
        if second > every * WARM_MESSAGES:
            seconds += time.process_time() - begun
            size += sum(map(len, received))
    micros, count = seconds / (messages * NODES) * 1e6, size / (messages * NODES)
    return {
        "frames": every,
        "samples": samples,
        "message_us": round(micros, 1),
        "frame_us": round(micros / every, 1),
        "message_bytes": round(count),
        "frame_bytes": round(count / every),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest.messages", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    arguments = parser.parse_args()
    found = [measure(every, samples) for every, samples in RATES]
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for one in found:
            print("  ".join(f"{name} {value}" for name, value in one.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
