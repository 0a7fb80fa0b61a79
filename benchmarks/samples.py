"""Cost of the text of the controller's samples: ``python -m benchmarks.samples --json``.

Writes the samples that a controller has for each node, with prometheus_client and with gangwatch's own writer, in turns
in one process, and compares the texts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from exporter.prometheus.library_format import family_text, sample_families
from exporter.prometheus.sample_page import sample_texts
from exporter.prometheus.text_format import Sample

RANKS = 8


def samples(nodes: int) -> Iterator[Sample]:
    """Yield the samples of the feed about each node, and the slowdown of each rank."""
    random = np.random.default_rng(1)
    for number in range(nodes):
        node = (("node", f"node-{number:05d}"),)
        yield "gangwatch_feed_connected", node, 1.0
        yield "gangwatch_feed_frames_total", node, float(random.integers(1 << 20))
        yield "gangwatch_feed_malformed_total", node, 0.0
        yield "gangwatch_feed_pauses_total", node, 0.0
        yield "gangwatch_feed_identity_refused_total", node, 0.0
        yield "gangwatch_feed_frame_age_seconds", node, float(random.uniform(0.0, 1.0))
        for rank in range(number * RANKS, (number + 1) * RANKS):
            labels = (("gang", "slurm-1.0"), ("rank", str(rank)))
            yield "gangwatch_rank_slowdown_ratio", labels, float(random.uniform(1.0, 1.1))


def measure(nodes: int, rounds: int) -> dict[str, object]:
    """Return the median CPU time a sample of both writers, in microseconds."""
    given = list(samples(nodes))
    library, own = [], []
    for _ in range(rounds):
        begun = time.process_time()
        expected = family_text(sample_families(given), False)
        between = time.process_time()
        text = "".join(sample_texts(given, False).values()).encode()
        ended = time.process_time()
        library.append((between - begun) / len(given) * 1e6)
        own.append((ended - between) / len(given) * 1e6)
    return {
        "samples": len(given),
        "library_us_a_sample": round(float(np.median(library)), 2),
        "own_us_a_sample": round(float(np.median(own)), 2),
        "equal": text == expected,
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.samples",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="Example: python -m benchmarks.samples --nodes 1000 --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--nodes", type=int, default=500, help="simulated nodes (default 500)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both writers (default 5)")
    arguments = parser.parse_args()
    found = measure(arguments.nodes, arguments.rounds)
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
