"""Fuzz targets: readers of job traces that need measurements beside them, and of pods."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from agent.schema.errors import TraceError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.files import written
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.sim.speeds.gavel_throughputs import is_gavel, read_gavel
from scheduler_feedback.sim.traces import gavel, kubernetes, sia

A, B, C = "('ResNet-18 (batch size 16)', 1)", "('LM (batch size 5)', 1)", "('ResNet-18 (batch size 16)', 4)"

THROUGHPUTS = {
    "k80": {A: {"null": 4.9, B: [2.5, 3.1]}, B: {"null": 0.0}, C: {"null": 9.5}},
    "v100": {A: {"null": 32.4, A: [16.1, 16.1], B: [30.5, 4.1]}, B: {"null": 6.5, A: [1.0, 9.0]}},
    "v100_unconsolidated": {C: {"null": 80.5}},
}
"""Throughputs in Gavel's format."""

GAVEL = (
    "ResNet-18 (batch size 16)\tpython3 main.py\timage\t--num_steps\t1\t2931\t1\t1\t-1.000000\t0\n"
    "ResNet-18 (batch size 16)\tpython3 main.py\timage\t--num_steps\t1\t2931\t4\t1\t-1.000000\t7\n"
    "LM (batch size 5)\tpython3 main.py\t--steps\t1\t95121\t6.000000\t1\n"
    "A3C\tpython3 main.py\t--steps\t1\t95121\t6.000000\t1\n"
)
"""Lines of both forms of Gavel's traces."""

TIMES = "local_bsz,step_time,sync_time\n"
SIA = {
    "traces/bert/placements-{}.csv": f"placement,{TIMES}1,4,0.45,0.01\n1,6,0.57,0.01\n4,4,0.5,0.1\n4,6,0.6,0.1\n",
    "traces/bert/scalability-{}.csv": f"num_nodes,num_replicas,{TIMES}2,8,4,1.49,1.09\n2,8,6,1.53,1.01\n",
    "traces/bert/validation-12.csv": "progress,iteration,metric\n7392.3,950,86.2\n14778.2,1885,88.3\n",
    "traces/bert/validation-48.csv": "progress,iteration,metric\n7392.3,240,86.2\n14778.2,480,88.3\n",
    "workloads/philly/workload-1.csv": "name,time,application,num_replicas,batch_size\n"
    "bert-0,107,bert,4,24\nbert-1,110,bert,8,48\nncf-2,135,ncf,1,256\nbert-3,7.5,bert,1,12\n",
}
"""Files of Sia's artifact, by path; with the ends of the names of three GPU types."""

PODS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{n}",
            "namespace": "ml",
            "uid": f"u{n}",
            "creationTimestamp": "2026-11-29T10:00:00Z",
            "deletionTimestamp": "2026-11-29T10:20:00Z" if n == 2 else None,
            "labels": {"kueue.x-k8s.io/queue-name": "vision"} if n else {},
            "annotations": {"gangwatch.io/restartable": "true"},
            "ownerReferences": [{"kind": "Job", "name": "train", "uid": "o1", "controller": True}] if n < 2 else [],
        },
        "spec": {
            "priority": 3,
            "activeDeadlineSeconds": 900,
            "nodeSelector": {"nvidia.com/gpu.product": "H200"},
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"} if n < 4 else {}}}],
        },
        "status": {
            "phase": ("Succeeded", "Failed", "Running", "Pending", "Running")[n],
            "startTime": "2026-11-29T10:01:00Z",
            "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "finishedAt": f"2026-11-29T10:1{n}:00Z"}}}],
        },
    }
    for n in range(5)
]
"""Pods of a Job, of none, and without a GPU."""


def _make_throughputs(chance: random.Random) -> bytes:
    data = json.dumps(mutate.tree(chance, THROUGHPUTS, chance.randrange(3))).encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


def _parse_throughputs(data: bytes) -> str:
    try:
        file = written(data, ".json")
        is_gavel(file)
        found = read_gavel(file)
    except TraceError:
        return REFUSED if data.startswith(b"{") else REFUSED_FIRST
    _ = found.speeds, found.rate("A3C", 1)
    return ACCEPTED


def _lines(chance: random.Random, text: str, separator: str) -> bytes:
    """Return the text with up to two changed cells, sometimes with damaged bytes."""
    rows = [line.split(separator) for line in text.splitlines()]
    for _ in range(chance.randrange(3)):
        row = chance.choice(rows)
        at = chance.randrange(len(row))
        row[at] = str(chance.choice(mutate.NUMBERS)) if chance.random() < 0.5 else mutate.text(chance, row[at])
    data = ("\n".join(map(separator.join, rows)) + "\n").encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


def _make_gavel(chance: random.Random) -> bytes:
    return _lines(chance, GAVEL, "\t")


@cache
def _folder(name: str) -> Path:
    """Return a folder of this process for files that belong together."""
    folder = Path(f"/dev/shm/gangwatch-fuzz-{os.getpid()}-{name}")
    folder.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _parse_gavel(data: bytes) -> str:
    folder = _folder("gavel")
    throughputs = folder / gavel.THROUGHPUTS[0]
    if not throughputs.exists():
        throughputs.write_text(json.dumps(THROUGHPUTS))
    (folder / "x.trace").write_bytes(data)
    return _read(gavel.read, folder / "x.trace", bool(data.strip()))


def _make_sia(chance: random.Random) -> bytes:
    """Return the name of a file of the artifact, a line end, and its damaged contents."""
    name = chance.choice(list(SIA))
    return name.encode() + b"\n" + _lines(chance, SIA[name], ",")


def _parse_sia(data: bytes) -> str:
    changed, _, contents = data.partition(b"\n")
    folder = _folder("sia")
    for name, text in SIA.items():
        for suffix in ("aws", "rtx", "dgx-ext") if "{}" in name else ("",):
            file = folder / name.format(suffix)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(contents if name.encode() == changed else text.encode())
    return _read(sia.read, folder / "workloads" / "philly" / "workload-1.csv", bool(contents.strip()))


def _make_pods(chance: random.Random) -> bytes:
    pods = [mutate.tree(chance, pod, int(chance.random() < 0.4)) for pod in PODS]
    form, indent = chance.randrange(3), chance.choice((None, 4))
    if form == 0:
        documents: list[Any] = [{"kind": "List", "items": pods}]
    elif form == 1:
        kinds = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
        documents = [{"type": chance.choice(kinds), "object": pod} for pod in pods]
    else:
        documents = pods
    data = "\n".join(json.dumps(one, indent=indent) for one in documents).encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


def _parse_pods(data: bytes) -> str:
    return _read(kubernetes.read, written(data, ".pods.json"), data.lstrip().startswith(b"{"))


def _read(read: Callable[[Path], Any], path: Path, usable: bool) -> str:
    try:
        read(path)
    except TraceError:
        return REFUSED if usable else REFUSED_FIRST
    return ACCEPTED


_SIM = "scheduler_feedback.sim"

TARGETS = (
    Target("gavel-throughputs", _make_throughputs, _parse_throughputs, (f"{_SIM}.speeds.gavel_throughputs",)),
    Target("gavel-trace", _make_gavel, _parse_gavel, (f"{_SIM}.traces.gavel:_jobs", f"{_SIM}.traces.gavel:_rows")),
    Target("sia-trace", _make_sia, _parse_sia, (f"{_SIM}.traces.sia", f"{_SIM}.speeds.sia_measurements")),
    Target("kubernetes-pods", _make_pods, _parse_pods, (f"{_SIM}.traces.kubernetes",)),
)
