"""Fuzz targets: the readers of the OpenB files in the study of shares of GPUs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.schema.errors import TraceError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.files import written
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.sim.studies import share_study

PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427061
openb-pod-0002,8000,30517,0,0,,BE,Succeeded,5,7,6
"openb-pod-0003",88000,327680,8,1000,G2,Burstable,Running,9437497,10769854,9437497
"""
"""Tasks in the format of Alibaba's OpenB trace."""

NODES = """sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,64000,262144,2,P100
openb-node-0001,96000,524288,8,V100M16
openb-node-0002,32000,131072,0,
"openb-node-0003",128000,786432,8,G3
"""
"""Nodes in the same format."""


def _table(chance: random.Random, table: str) -> bytes:
    """Return the table with up to two changed cells, sometimes with a doubled line or damaged bytes."""
    rows = [row.split(",") for row in table.splitlines()]
    for _ in range(chance.randrange(3)):
        row = rows[chance.randrange(1, len(rows)) if chance.random() < 0.9 else 0]
        column = chance.randrange(len(row))
        row[column] = str(chance.choice(mutate.NUMBERS)) if chance.random() < 0.4 else mutate.text(chance, row[column])
    if chance.random() < 0.1:
        rows.append(list(chance.choice(rows)))
    if chance.random() < 0.05:
        del rows[1:]
    data = "\n".join([",".join(row) for row in rows]).encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


def _parser(read: Callable[[Path], Any], header: bytes) -> Callable[[bytes], str]:
    def parse(data: bytes) -> str:
        try:
            read(written(data, ".csv"))
        except TraceError:
            return REFUSED if data.startswith(header) else REFUSED_FIRST
        return ACCEPTED

    return parse


def _make_tasks(chance: random.Random) -> bytes:
    return _table(chance, PODS)


def _make_nodes(chance: random.Random) -> bytes:
    return _table(chance, NODES)


_STUDY = "scheduler_feedback.sim.studies.share_study"

TARGETS = (
    Target(
        "openb-tasks",
        _make_tasks,
        _parser(share_study.tasks_of, b"name,cpu_milli"),
        (f"{_STUDY}:tasks_of", "scheduler_feedback.sim.table"),
    ),
    Target("openb-nodes", _make_nodes, _parser(share_study.cluster_of, b"sn,cpu_milli"), (f"{_STUDY}:cluster_of",)),
)
