"""Cost of timing every collective of a torch training: ``python -m benchmarks.collective_waits --json``.

Measures the added time of one collective in a group of one rank, with and without
gangwatch.reporting.collective_waits, in alternating batches of one process. Then runs FSDP2 with two ranks over gloo,
and counts the collectives of a step. All times are CPU time of the training's thread, which other programs on the
machine hardly change. So the step's time does not include waits, and its share is an upper limit. Needs
PyTorch (`make components`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.reality.run import torch_python

MOST_SHARE = 0.01
"""Maximum share of a step that the timing of its collectives may take."""

CHECKOUT = Path(__file__).resolve().parents[1]

COST = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
from gangwatch import steps
from gangwatch.reporting.collective_waits import CollectiveWaits
from gangwatch.torch import _mark_of_device
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(1024)
Work = torch._C._distributed_c10d.Work
plain = vars(dist.ProcessGroup)["allreduce"], vars(Work)["wait"]
waits = CollectiveWaits(steps.Reporter(), _mark_of_device)
waits.install()
timed = vars(dist.ProcessGroup)["allreduce"], vars(Work)["wait"]

def batch(methods):
    dist.ProcessGroup.allreduce, Work.wait = methods
    begun = time.thread_time_ns()
    for _ in range(200):
        dist.all_reduce(tensor)
    took = (time.thread_time_ns() - begun) / 200
    waits.take()
    return took

without, with_ = [], []
for _ in range(40):
    without.append(batch(plain))
    with_.append(batch(timed))
assert waits.failures == 0
print(json.dumps({"without_ns": statistics.median(without), "with_ns": statistics.median(with_),
                  "added_ns": statistics.median(a - b for a, b in zip(with_, without))}))
"""

STEPS = """
import json, os, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from gangwatch.torch import attach
torch.set_num_threads(1)
attachment = attach()
assert not attachment.off, attachment.status
dist.init_process_group("gloo")
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batch = torch.randn(256, 512)
waits = attachment.collectives
counts, times, inner = [], [], waits.take

def take():
    found = inner()
    counts.append(len(found or ()))
    return found

waits.take = take
for step in range(40):
    begun = time.thread_time()
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.thread_time() - begun)
print(json.dumps({"collectives": sorted(counts[5:])[len(counts[5:]) // 2],
                  "seconds": sorted(times[5:])[len(times[5:]) // 2], "status": attachment.status}))
dist.destroy_process_group()
"""


def measure() -> dict[str, Any]:
    """Return the cost of one collective in nanoseconds, and its share of a step of FSDP2."""
    with tempfile.TemporaryDirectory() as folder:
        cost = _run(COST, [{"GANGWATCH_SOCKET": f"{folder}/none.sock"}])[0]
        rank = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port(), "GANGWATCH_JOB": "benchmark"}
        ranks = [{**rank, "RANK": str(n), "GANGWATCH_SOCKET": f"{folder}/none.sock"} for n in range(2)]
        step = _run(STEPS, ranks)[0]
    return {
        "collective": cost,
        "fsdp2_step": step,
        "share_of_step": cost["added_ns"] * step["collectives"] / 1e9 / step["seconds"],
        "most_share": MOST_SHARE,
        "load": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "machine": platform.machine(),
    }


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _run(program: str, environments: list[dict[str, str]]) -> list[dict[str, Any]]:
    started = [
        subprocess.Popen(
            [str(torch_python()), "-c", program],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    said = [one.communicate(timeout=200)[0] for one in started]
    if any(one.returncode for one in started):
        raise RuntimeError(f"a program of the benchmark failed: {said}")
    return [json.loads(one.splitlines()[-1]) for one in said]


def main() -> int:
    """Measure, print, and return 1 if the share is above MOST_SHARE."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collective_waits", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    if not torch_python().exists():
        print(f"benchmarks.collective_waits: {torch_python()} is absent: run `make components`", file=sys.stderr)
        return 2
    found = measure()
    if given.json:
        print(json.dumps(found))
    else:
        step = found["fsdp2_step"]
        print(f"{found['collective']['added_ns'] / 1000:.1f} us per collective, {step['collectives']} in a step of")
        print(
            f"{1000 * step['seconds']:.1f} ms: {found['share_of_step']:.2%} of its CPU time (load {found['load']:.1f})"
        )
    return 0 if found["share_of_step"] <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
