"""Memory of telemetry and detection: ``python -m benchmarks.ingest.memory --json``.

Simulated agents send frames for some minutes of simulated time, with jobs that start and end. Each rail of 16 nodes
connects to one leaf switch, whose uplinks their jobs share; with `--nodes-a-leaf 0` the fabric is unknown. Printed are
the KiB for each node after each period, and the largest parts at the end. Only memory that Python and numpy allocate in
the product counts: no TLS streams, and not the simulated agents. Slow, because each allocation is traced.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

from agent.schema.frame import Frame, Layout, PackedLayout, pack
from agent.schema.wire import Decoder
from benchmarks.ingest.decisions import ACCEPTED
from benchmarks.ingest.fingerprint import BEGUN_NS, SECOND, TICK_SLOTS, WALL_NS, Messages
from benchmarks.ingest.frames import GPUS
from benchmarks.ingest.generator import SLOTS
from scheduler_feedback.core.fabric import Fabric, Leaf
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.detectors import make_detection

ROOT = Path(__file__).parents[2]
PRODUCT = (
    *(tracemalloc.Filter(True, f"{ROOT / name}/*", all_frames=True) for name in ("agent", "scheduler_feedback")),
    tracemalloc.Filter(False, f"{ROOT}/benchmarks/ingest/frames.py", all_frames=True),
)
LARGEST = 12


def fabric(nodes: int, nodes_a_leaf: int) -> Fabric | None:
    """Return a rail-optimised fabric of the simulated nodes; None with `nodes_a_leaf` 0."""
    if not nodes_a_leaf:
        return None
    names = [f"node-{index:05d}" for index in range(nodes)]
    return Fabric(
        Leaf(f"leaf-{first // nodes_a_leaf}-{rail}", tuple(names[first : first + nodes_a_leaf]), rail)
        for first in range(0, nodes, nodes_a_leaf)
        for rail in range(GPUS)
    )


def measure(nodes: int, seconds: int, seed: int, period_seconds: int, nodes_a_leaf: int = 16) -> dict[str, Any]:
    """Return `kib_a_node` by simulated second, and `largest`: the places that allocated most, in KiB for each node."""
    messages = Messages(nodes, seed, as_tables=True)
    tracemalloc.start(4)  # numpy, our line and its callers
    decoders = [Decoder() for _ in range(nodes)]
    layouts: dict[int, PackedLayout] = {}
    batch = list(enumerate(messages.first))
    fleet = Fleet(Placements(lambda _node, _gang, _at_ns: Placed(1, None), lambda _node: ACCEPTED))
    look, detection = Look(fleet, fabric(nodes, nodes_a_leaf)), make_detection()
    found: dict[str, float] = {}
    for slot in range(seconds * SLOTS):
        now_ns = BEGUN_NS + slot * SECOND // SLOTS
        wall_ns, phase = WALL_NS + now_ns - BEGUN_NS, slot % SLOTS
        batch += messages.at(slot, range(phase * nodes // SLOTS, (phase + 1) * nodes // SLOTS))
        fleet.set_clock(wall_ns, now_ns)
        for node, message in batch:
            received = decoders[node].decode(message)
            if isinstance(received, Frame):
                fleet.observe(layouts[node], received, now_ns)
            else:
                assert isinstance(received, Layout)
                layouts[node] = pack(received)
        batch = []
        if slot % TICK_SLOTS == TICK_SLOTS - 1:
            for ended in fleet.gangs.keys() - messages.running():
                fleet.forget(ended)  # as the controller does
            fleet.first_steps()
            detection.tick(look.next(wall_ns, now_ns))
        if (slot + 1) % (period_seconds * SLOTS) == 0:
            gc.collect()
            taken = tracemalloc.take_snapshot().filter_traces(PRODUCT)
            found[str((slot + 1) // SLOTS)] = round(sum(trace.size for trace in taken.traces) / nodes / 1024, 1)
            print(f"{(slot + 1) // SLOTS} s: {[*found.values()][-1]} KiB a node", file=sys.stderr)
    tracemalloc.stop()
    return {"nodes": nodes, "kib_a_node": found, "largest": _largest(taken, nodes) if found else []}


def _largest(taken: tracemalloc.Snapshot, nodes: int) -> list[dict[str, Any]]:
    """Return the product's lines that allocated most. What numpy's Python code allocates counts for its caller."""
    used: dict[str, int] = {}
    for trace in taken.traces:
        here = next((frame for frame in reversed(trace.traceback) if _is_ours(frame.filename)), None)
        if here is not None:
            place = f"{Path(here.filename).relative_to(ROOT)}:{here.lineno}"
            used[place] = used.get(place, 0) + trace.size
    most = sorted(used.items(), key=lambda one: -one[1])[:LARGEST]
    return [{"place": place, "kib_a_node": round(size / nodes / 1024, 1)} for place, size in most]


def _is_ours(name: str) -> bool:
    return any(name.startswith(f"{ROOT / part}/") for part in ("agent", "scheduler_feedback"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest.memory", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=720, help="simulated seconds (default 720: all windows)")
    parser.add_argument("--period", type=int, default=120, help="simulated seconds between two figures (default 120)")
    parser.add_argument("--nodes-a-leaf", type=int, default=16, metavar="N", help="0: unknown fabric (default 16)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if min(arguments.nodes, arguments.seconds, arguments.period) < 1 or arguments.nodes_a_leaf < 0:
        parser.error("--nodes, --seconds and --period must be at least 1, and --nodes-a-leaf at least 0")
    if arguments.period > arguments.seconds:
        parser.error(
            f"--period {arguments.period} is longer than --seconds {arguments.seconds}: no period would end; "
            "use a shorter period or more seconds"
        )
    found = measure(arguments.nodes, arguments.seconds, arguments.seed, arguments.period, arguments.nodes_a_leaf)
    print(json.dumps(found, indent=2) if arguments.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
