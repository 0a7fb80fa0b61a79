"""Nodes of a simulation: a number of equal nodes ('64x8'), or a file with each node and its place in the network.

A file is a table with a header. Column names of public files are accepted too:

========= ============================================================================================================
node      ip (Alibaba's Lingjun), sn (Alibaba's OpenB)
slots     gpu (OpenB); 8 if the file has none, as in a Lingjun host (Qian et al., SIGCOMM'24)
gpu_type  model (OpenB); a model of ``core.mig.MODELS``, such as A100-80GB, can be divided by MIG
rack      ASW, the access switch (Lingjun)       spine   DSW, the core switch, and PSW, the pod's (Lingjun)
rail, island, island_slots: as in ``NodeSeen``
========= ============================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.mig import MODELS, MigProfile
from scheduler_feedback.sim.table import CellError, Row, rows

RACK_NODES = 32
"""Default number of nodes per leaf switch: one scalable unit of NVIDIA's DGX SuperPOD (reference architecture)."""

DEFAULT_SLOTS = 8
MOST_SLOTS = 1_000_000
"""Maximum number of slots of all nodes. A larger number is assumed to be a typing error."""

_GRID = re.compile(r"(\d+)x(\d+)(?:/(\d+))?")


def nodes_of(text: str) -> tuple[NodeSeen, ...]:
    """Return the nodes that --nodes selects: 'NODESxGPUS', 'NODESxGPUS/NODES PER RACK' or a file. Raises TraceError."""
    found = _GRID.fullmatch(text)
    if found is not None:
        count, slots, rack = int(found[1]), int(found[2]), int(found[3] or RACK_NODES)
        if not count or not slots or not rack:
            raise TraceError(f"--nodes {text}: none of the numbers can be 0")
        if count * slots > MOST_SLOTS:
            raise TraceError(f"--nodes {text}: {count * slots} GPUs; at most {MOST_SLOTS} can be simulated")
        return grid(count, slots, rack)
    path = Path(text)
    if not path.is_file():
        raise TraceError(f"--nodes {text}: neither a shape like 64x8 nor a file")
    return read(path)


def grid(
    count: int,
    slots: int,
    rack: int = RACK_NODES,
    gpu_type: str = "",
    jobs_per_slot: int = 1,
    slot_memory_mib: int = 0,
    mig_profiles: tuple[MigProfile, ...] = (),
) -> tuple[NodeSeen, ...]:
    """Return `count` equal nodes. Sorting them by name sorts them by number."""
    digits, rack_digits = len(str(count - 1)), len(str((count - 1) // rack))
    return tuple(
        NodeSeen(
            f"n{number:0{digits}}",
            slots,
            machine=f"n{number:0{digits}}",
            rack=f"r{number // rack:0{rack_digits}}",
            gpu_type=gpu_type,
            jobs_per_slot=jobs_per_slot,
            slot_memory_mib=slot_memory_mib,
            mig_profiles=mig_profiles,
        )
        for number in range(count)
    )


def read(path: Path) -> tuple[NodeSeen, ...]:
    """Read the nodes of a file. Raises TraceError with line and column if a line is invalid."""
    found: dict[str, NodeSeen] = {}
    slots = 0
    for row in rows(path, ()):
        try:
            if isinstance(row, CellError):
                raise row
            node = _node(row)
            if node.node in found:
                raise row.wrong("node", f"{node.node!r} is listed twice")
        except CellError as error:
            raise TraceError(f"{path}: {error}") from error
        found[node.node] = node
        if (slots := slots + node.slots) > MOST_SLOTS:
            raise TraceError(f"{path}: line {row.line}: {slots} GPUs so far; at most {MOST_SLOTS} can be simulated")
    if not found:
        raise TraceError(f"{path}: contains no node")
    return tuple(found.values())


def divisible(nodes: Iterable[NodeSeen], model: str) -> tuple[NodeSeen, ...]:
    """Return the nodes with GPUs of a model that MIG can divide. Raises TraceError for an unknown model."""
    if model not in MODELS:
        raise TraceError(f"--mig {model}: unknown GPU model; use one of {', '.join(MODELS)}")
    return tuple(structs.replace(node, mig_profiles=MODELS[model]) for node in nodes)


def _node(row: Row) -> NodeSeen:
    name = _first(row, "node", "ip", "sn")
    if not name:
        raise row.wrong("node", "is missing (or one of ip, sn)")
    column = next((column for column in ("slots", "gpu") if row.text(column)), "")
    gpu_type = _first(row, "gpu_type", "model")
    spine = row.text("spine") or "/".join(filter(None, (row.text("DSW"), row.text("PSW"))))
    return NodeSeen(
        name,
        row.count(column, 1) if column else DEFAULT_SLOTS,
        machine=name,
        gpu_type=gpu_type,
        spine=spine,
        rack=_first(row, "rack", "ASW"),
        rail=row.text("rail"),
        island=row.text("island"),
        island_slots=row.count("island_slots") if row.text("island_slots") else 0,
        mig_profiles=MODELS.get(gpu_type, ()),
    )


def _first(row: Row, *columns: str) -> str:
    return next((text for column in columns if (text := row.text(column))), "")
