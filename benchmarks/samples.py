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

from agent.schema.sample import SampleColumn, expanded
from exporter.prometheus.library_format import family_text, sample_families
from exporter.prometheus.sample_page import sample_texts

RANKS, GANG = 8, 100


def columns(nodes: int) -> Iterator[SampleColumn]:
    """Yield the samples of the feed about each node, and the slowdown of each rank in gangs of 100 ranks."""
    random = np.random.default_rng(1)
    names = [f"node-{number:05d}" for number in range(nodes)]
    for name in ("connected", "malformed_total", "pauses_total", "identity_refused_total"):
        yield SampleColumn(f"gangwatch_feed_{name}", (), "node", names, [float(name == "connected")] * nodes)
    frames = random.integers(1 << 19, size=nodes).astype(float).tolist()
    yield SampleColumn("gangwatch_feed_frames_total", (), "node", names, frames)
    yield SampleColumn("gangwatch_feed_frame_age_seconds", (), "node", names, random.uniform(0.0, 1.0, nodes).tolist())
    for number in range(0, nodes * RANKS, GANG):
        ranks = range(min(GANG, nodes * RANKS - number))
        ratios = random.uniform(1.0, 1.1, len(ranks)).tolist()
        labels = (("gang", f"slurm-{number}.0"),)
        yield SampleColumn("gangwatch_rank_slowdown_ratio", labels, "rank", tuple(ranks), ratios)


def measure(nodes: int, rounds: int) -> dict[str, object]:
    """Return the median CPU time a sample of the writers, in microseconds."""
    given = list(columns(nodes))
    singles = list(expanded(given))
    library, own, of_columns = [], [], []
    for _ in range(rounds):
        begun = time.process_time()
        expected = family_text(sample_families(singles), False)
        between = time.process_time()
        text = "".join(sample_texts(singles, False).values()).encode()
        then = time.process_time()
        text_of_columns = "".join(sample_texts(given, False).values()).encode()
        ended = time.process_time()
        library.append((between - begun) / len(singles) * 1e6)
        own.append((then - between) / len(singles) * 1e6)
        of_columns.append((ended - then) / len(singles) * 1e6)
    return {
        "samples": len(singles),
        "library_us_a_sample": round(float(np.median(library)), 2),
        "own_us_a_sample": round(float(np.median(own)), 2),
        "columns_us_a_sample": round(float(np.median(of_columns)), 2),
        "equal": text == expected == text_of_columns,
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
