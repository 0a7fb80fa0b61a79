"""Features of ranks, computed from the gauges and counters of their nodes.

Info series in the same frame give the GPU of each rank and the NIC next to that GPU. A rank with an unknown GPU only
has the features of its host and of its processes.

Most nodes of a cluster have the same columns in the same places. Frames are therefore processed in batches
(series_queue.py). One batch takes a few array operations. Processing each frame alone would take a dozen operations per
frame, or 1.5 seconds of processor time for 10,000 nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Column, Layout, Member
from agent.schema.rates import NARROW_BITS, difference, exact
from scheduler_feedback.core.telemetry.series.frame_batch import Batch, Failed
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, IndexArray

GAP_NS = 60_000_000_000
"""Longest gap between samples across which a 32-bit counter is assumed to have wrapped at most once."""

SLOW_SECONDS = 2.0
"""Collectors with a longer interval have no new sample in most frames, because frames are sent once a second. Their
counters are computed apart."""

MOST_ADDED = 8
"""numpy adds fewer numbers than this one after the other."""

_PCIE = "pcie_link"
_TRAFFIC = (FEATURE["nvlink_bytes"], FEATURE["nic_transmit_bytes"])

_RULES: dict[str, list[tuple[int, str, tuple[tuple[str, tuple[str, ...]], ...]]]] = {}
"""Features that use each metric, as metric -> (row of the feature, type of its owner, label values that a series must
have)."""

for _row, _feature in enumerate(FEATURES):
    for _name in _feature.metrics if _feature.name != _PCIE else ():
        _RULES.setdefault(_name, []).append((_row, _feature.of, _feature.labels))


_Part = tuple[int, int, float, int, int]
"""A part of a feature: target, column, scale, tier, width."""


@dataclass(frozen=True, slots=True)
class _Wired:
    """Columns of a layout that are parts of features. A target is one feature of one member (rank); its parts are
    adjacent.

    column, scale (factor to the catalogue's unit), tier, width (bits): [c], one entry per part.
    starts: [t], index of each target's first part. target: [t], (row of the feature) * members + member.
    """

    column: IndexArray
    scale: FloatArray
    tier: IndexArray
    width: npt.NDArray[np.uint8]
    starts: IndexArray
    target: IndexArray
    more: tuple[tuple[IndexArray, IndexArray], ...] = ()
    """The second parts, the third parts, and so on: targets that have one, and its index. Adding them is a tenth of the
    work of `reduceat`, with the same result for fewer than eight parts. Empty if a target has more."""

    @classmethod
    def of(cls, parts: Iterable[_Part]) -> _Wired:
        """Return the columns of these parts, which are in the order of their targets."""
        found = list(parts)
        whole = np.array([(one[0], one[1], one[3], one[4]) for one in found], np.intp).reshape(-1, 4)
        target, starts = np.unique(whole[:, 0], return_index=True)
        scales = np.array([one[2] for one in found], np.float64)
        counts = np.diff(starts, append=len(whole))
        more = []
        for part in range(1, int(counts.max(initial=0)) if counts.max(initial=0) < MOST_ADDED else 1):
            targets = np.flatnonzero(counts > part)
            more.append((targets, starts[targets] + part))
        return cls(whole[:, 1], scales, whole[:, 2], whole[:, 3].astype(np.uint8), starts, target, tuple(more))

    def sums(self, parts: FloatArray) -> FloatArray:
        """Add up the parts of each target in k frames: [k, c parts] -> [k, t targets]; NaN if a part is missing."""
        if len(self.starts) == len(self.column):
            return parts
        if not self.more:
            return np.add.reduceat(parts, self.starts, axis=1)
        total = parts.take(self.starts, axis=1)
        for targets, columns in self.more:
            total[:, targets] += parts.take(columns, axis=1)
        return total


T = TypeVar("T", bound=np.generic)

COORDINATES = ("data", "stage", "tensor", "expert")
"""Labels of gangwatch_rank_place_info, which are also fields of a job's shape: a rank's coordinates in its parallel
layout."""

PLACE = "gangwatch_rank_place_info"


class _Counted:
    """Counters that are sampled at similar intervals, with their last values on each node; one row per node.

    wired: the counters and their targets. tiers: [t], tiers (collectors) of the counters.
    """

    def __init__(self, wired: _Wired) -> None:
        self.wired = wired
        self.tiers = np.unique(wired.tier)
        self._before = np.zeros((0, len(wired.column)), np.uint64)
        self._before_valid = np.zeros((0, len(wired.column)), np.bool_)

    def widen(self, rows: int) -> None:
        """Make room for `rows` rows."""
        self._before, self._before_valid = _longer(self._before, rows), _longer(self._before_valid, rows)

    def rates(
        self, rows: IndexArray, now: npt.NDArray[np.uint64], valid: npt.NDArray[np.bool_], elapsed_ns: IntArray,
        goes_on: npt.NDArray[np.bool_],
    ) -> FloatArray:  # fmt: skip
        """Return the increase per second of each target since the last sample of its row: [k rows, t targets].

        A target is a feature of one rank. NaN if unknown. now, valid: [k, counters], all counters of the frames.
        elapsed_ns: [k, tiers], time since the last sample; 0 if it cannot be compared. goes_on: [k], whether the row
        has a comparable sample.
        """
        wired = self.wired
        # `take` returns rows in memory order, indexing returns columns. Mixing the two takes three times as long.
        now, valid = now.take(wired.column, axis=1), valid.take(wired.column, axis=1)
        before, before_valid = self._before.take(rows, axis=0), self._before_valid.take(rows, axis=0)
        known = (elapsed_ns > 0).take(wired.tier, axis=1)
        known &= valid
        known &= before_valid
        advance = (now - before).astype(np.float64)
        odd = now < before
        if (elapsed_ns > GAP_NS).any():
            odd |= (wired.width <= NARROW_BITS) & (elapsed_ns > GAP_NS).take(wired.tier, axis=1)
        odd &= known
        if odd.any():
            width = np.broadcast_to(wired.width, odd.shape)[odd]
            counts, change = difference(
                before[odd], before_valid[odd], now[odd], valid[odd], width, elapsed_ns.take(wired.tier, axis=1)[odd],
                same_source=True, gap_ns=GAP_NS,
            )  # fmt: skip
            advance[odd] = np.where(exact(change), counts, np.nan)
        advance *= wired.scale
        advance /= np.where(elapsed_ns > 0, elapsed_ns * 1e-9, 1.0).take(wired.tier, axis=1)
        if not known.all():
            np.copyto(advance, np.nan, where=~known)
        # Keep the last sample of tiers without a new one.
        old = goes_on[:, None] & (elapsed_ns == 0)
        if old.take(self.tiers, axis=1).any():
            keep = old.take(wired.tier, axis=1)
            np.copyto(now, before, where=keep)
            np.copyto(valid, before_valid, where=keep)
        self._before[rows], self._before_valid[rows] = now, valid
        return wired.sums(advance)


def _longer(array: npt.NDArray[T], rows: int) -> npt.NDArray[T]:
    new = np.zeros((rows, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


class Kind:
    """Nodes whose columns form features in the same way. Their frames are processed together in arrays with r rows, one
    per node.

    members: number of ranks on each node. counters: parts of features, by how often they are sampled. links: [l, 5],
    for each PCIe link the index of a rank and the columns of the link's gauges. values: float32 [r, features, members]
    from the newest frame of each node. fresh: bool [r], True until the row is read. columns: [r, members], set by the
    reader: destination of each member's values; -1 for none.
    """

    def __init__(self, members: int, gauges: _Wired, counters: Iterable[_Wired], links: IndexArray, tiers: int) -> None:
        self.members = members
        self._gauges, self._links = gauges, links
        self._counted = [_Counted(wired) for wired in counters if len(wired.column)]
        self._traffic_tier = next(
            (
                int(counted.wired.tier[start])
                for counted in self._counted
                for start, target in zip(counted.wired.starts.tolist(), counted.wired.target.tolist(), strict=True)
                if target // members in _TRAFFIC
            ),
            -1,
        )
        self._rows = 0
        self._free: list[int] = []
        self.fresh = np.zeros(0, np.bool_)
        self.values = np.zeros((0, len(FEATURES), members), np.float32)
        self.columns = np.zeros((0, members), np.intp)
        self._known = np.zeros(0, np.bool_)
        self._before_ns = np.zeros((0, tiers), np.int64)

    def add(self) -> int:
        """Reserve a row for a node, and return the index of the row."""
        if self._free:
            return self._free.pop()
        self._rows += 1
        if self._rows > len(self.fresh):
            rows = len(self.fresh) + max(4, len(self.fresh) // 8)
            for name in ("fresh", "values", "columns", "_known", "_before_ns"):
                setattr(self, name, _longer(getattr(self, name), rows))
            for counted in self._counted:
                counted.widen(rows)
        return self._rows - 1

    def drop(self, row: int) -> None:
        """Free the row of a node that is now of another kind."""
        self._known[row] = self.fresh[row] = False
        self.columns[row] = -1
        self._free.append(row)

    @property
    def empty(self) -> bool:
        """Whether no node has a row."""
        return len(self._free) == self._rows

    def traffic_sampled_ns(self, rows: IndexArray) -> IntArray | None:
        """Return when the traffic of these rows was last sampled, on the nodes' monotonic clocks; None without traffic
        counters."""
        return self._before_ns[rows, self._traffic_tier] if self._traffic_tier >= 0 else None

    def _fold(self, batch: Batch) -> None:
        rows = np.array([node._kind_row for node in batch.nodes], np.intp)
        values = np.full((len(batch), len(FEATURES) * self.members), np.nan, np.float32)
        gauges = batch.gauges
        if len(self._gauges.column):
            values[:, self._gauges.target] = self._gauges.sums(
                gauges.take(self._gauges.column, axis=1) * self._gauges.scale
            )
        if len(self._links):
            member, generation, lanes, most_generation, most_lanes = self._links.T
            most = gauges.take(most_generation, axis=1) * gauges.take(most_lanes, axis=1)
            now = gauges.take(generation, axis=1) * gauges.take(lanes, axis=1)
            values[:, FEATURE[_PCIE] * self.members + member] = np.divide(
                now, most, out=np.full(now.shape, np.nan), where=most > 0
            )
        if self._counted:
            self._fold_counters(rows, batch, values)
        self.values[rows] = values.reshape(len(batch), len(FEATURES), self.members)
        self.fresh[rows] = True

    def _fold_counters(self, rows: IndexArray, batch: Batch, values: npt.NDArray[np.float32]) -> None:
        """Write the rates of counters into `values`, [k, features * members]."""
        at_ns = batch.tier_ns
        goes_on = batch.continues & self._known[rows]
        elapsed_ns = np.where(goes_on[:, None], at_ns - self._before_ns[rows], 0)
        for counted in self._counted:
            # Slow tiers have no new sample in most frames, and then nothing changes.
            new = ~goes_on | (elapsed_ns.take(counted.tiers, axis=1) != 0).any(axis=1)
            if new.all():
                values[:, counted.wired.target] = counted.rates(rows, batch.counters, batch.valid, elapsed_ns, goes_on)
            elif new.any():
                at = np.flatnonzero(new)
                values[np.ix_(at, counted.wired.target)] = counted.rates(
                    rows[at], batch.counters[at], batch.valid[at], elapsed_ns[at], goes_on[at]
                )
            # Nothing has read the features of the message's earlier samples, which may have the newest rates.
            if (kept := ~new & batch.lasts).any():
                at = np.flatnonzero(kept)
                target = counted.wired.target
                values[np.ix_(at, target)] = self.values[rows[at]].reshape(len(at), -1)[:, target]
        self._before_ns[rows] = at_ns
        self._known[rows] = True


class Device(NamedTuple):
    """GPU of a rank, and the NIC, rail and PCIe switch of that GPU."""

    gpu: str = ""
    """UUID of the rank's GPU; '' if unknown."""
    nic: str = ""
    """NIC next to the GPU ('node-3/mlx5_0'); '' if unknown."""
    rail: int = -1
    """Rail of the NIC; -1 if unknown."""
    switch: str = ""
    """PCIe switch of the GPU ('node-3/0000:16:00.0'); '' if unknown."""
    model: str = ""
    """Model of the GPU ('NVIDIA H100 80GB HBM3'); '' if unknown."""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Ranks of one node, according to its newest layout."""

    layout_id: str
    """Id of the newest layout."""
    members: tuple[Member, ...]
    """Ranks of the node, in the order of the arrays in `kind`."""
    devices: tuple[Device, ...]
    """GPU of each rank, with the NIC, rail and PCIe switch of that GPU."""
    coordinates: dict[Member, tuple[int, ...]]
    """Coordinates of the ranks that report them, in the order of COORDINATES."""
    kind: Kind | None
    """Kind that contains the ranks' features; None if the node has no ranks."""
    row: int
    """Index of the node's row in the arrays of `kind`."""


class Counting:
    """Features of the ranks of all nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeCounts] = {}
        self._changed: set[str] = set()
        self._kinds: dict[bytes, Kind] = {}
        self.failed: list[Failed] = []

    @property
    def kinds(self) -> Iterable[Kind]:
        """Kinds of nodes (see ``Kind``)."""
        return self._kinds.values()

    def take_changed(self) -> set[str]:
        """Return the nodes with a new layout since the last call. Their ranks and rows may have changed."""
        found, self._changed = self._changed, set()
        return found

    def drop(self, node: str) -> None:
        """Delete a node's data. Its next frame counts as its first."""
        if (old := self.nodes.pop(node, None)) is not None:
            self._drop(old)

    def _drop(self, old: NodeCounts) -> None:
        if old.kind is not None:
            old.kind.drop(old.row)
            if old.kind.empty:  # each new job adds new kinds
                self._kinds = {key: kind for key, kind in self._kinds.items() if kind is not old.kind}

    def read(self, layout: Layout) -> NodeCounts:
        """Use a node's new layout, and return its ranks and the place of their features."""
        if (old := self.nodes.get(layout.node)) is not None:
            self._drop(old)
        members, devices, places = _who(layout)
        kind, row = None, 0
        if members:
            kind = self._kind(layout, places, len(members))
            row = kind.add()
            kind.columns[row] = -1
        self._changed.add(layout.node)
        coordinates = dict(_coordinates(layout.gauges))
        counts = self.nodes[layout.node] = NodeCounts(layout.layout_id, members, devices, coordinates, kind, row)
        return counts

    def _kind(self, layout: Layout, places: _Places, members: int) -> Kind:
        slow = {tier for tier, one in enumerate(layout.tiers) if one.interval_seconds > SLOW_SECONDS}
        gauges = _Wired.of(_wire(layout.gauges, places, members))
        found = _wire(layout.counters, places, members)
        often = {part[0] for part in found if part[3] not in slow}  # all parts of a target belong together
        counters = [_Wired.of(part for part in found if (part[0] in often) is fast) for fast in (True, False)]
        links = _pcie_columns(layout.gauges, places)
        parts = (gauges.column, gauges.target, gauges.starts, gauges.scale, links, *(
            part for one in counters for part in (one.column, one.target, one.starts, one.scale, one.tier, one.width)
        ))  # fmt: skip
        sizes = (members, len(layout.tiers), len(layout.gauges), len(layout.counters), *(len(part) for part in parts))
        key = repr(sizes).encode() + b"".join(part.tobytes() for part in parts)
        key = hashlib.blake2b(key, digest_size=16).digest()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(members, gauges, counters, links, len(layout.tiers))
        return kind


_Places = dict[tuple[str, str], list[int]]
"""Map from an owner of series, as (type, name), to the indices of the ranks to which it belongs."""


def _who(layout: Layout) -> tuple[tuple[Member, ...], tuple[Device, ...], _Places]:
    """Return the ranks of a node, the devices of each rank, and the ranks that use each owner of series (such as a
    GPU).
    """
    owners, address_of, devices_at, models = _relations(layout.gauges)
    found: dict[Member, str] = {}
    for column in layout.counters:
        if column.metric in ("gangwatch_rank_cpu_seconds_total", "gangwatch_rank_steps_total"):
            member = _member(dict(column.labels))
            if member is not None:
                found.setdefault(member, "")
    for uuid, member in owners.items():
        found[member] = found.get(member) or uuid
    here = {uuid: devices_at.get(address_of.get(uuid, ""), Device()) for uuid in owners}
    switches = {name: f"{layout.node}/{name}" for name in {one.switch for one in here.values()} if name}
    devices = tuple(
        Device(
            uuid,
            f"{layout.node}/{one.nic}" if one.nic else "",
            one.rail,
            switches.get(one.switch, ""),
            models.get(uuid, ""),
        )
        for uuid, one in ((uuid, here.get(uuid, Device())) for uuid in found.values())
    )
    places: _Places = {("host", ""): list(range(len(found)))}
    for index, (member, uuid) in enumerate(found.items()):
        places.setdefault(("rank", f"{member.gang}/{member.attempt}/{member.rank}"), []).append(index)
        if uuid:
            places.setdefault(("gpu", uuid), []).append(index)
            places.setdefault(("pci", address_of.get(uuid, "?")), []).append(index)
            places.setdefault(("nic", here[uuid].nic), []).append(index)
    return tuple(found), devices, places


def _relations(
    gauges: Iterable[Column],
) -> tuple[dict[str, Member], dict[str, str], dict[str, Device], dict[str, str]]:
    """Return four dicts: GPU UUID -> rank, GPU UUID -> PCI address, PCI address -> devices next to the GPU, and GPU
    UUID -> model of the GPU. The devices have the names that the node uses."""
    owners: dict[str, Member] = {}
    address_of: dict[str, str] = {}
    devices_at: dict[str, Device] = {}
    models: dict[str, str] = {}
    for column in gauges:
        labels = dict(column.labels)
        if column.metric == "gangwatch_gpu_owner_info":
            member = _member(labels)
            if member is not None and labels.get("gpu"):
                owners.setdefault(intern(labels["gpu"]), member)  # one string object per GPU
        elif column.metric == "gangwatch_gpu_info":
            address_of[labels.get("gpu", "")] = labels.get("pci_address", "")
            models[labels.get("gpu", "")] = intern(labels.get("model", ""))  # one string object per model
        elif column.metric == "gangwatch_topology_rail_info":
            rail = labels.get("rail", "")
            devices_at[labels.get("pci_address", "")] = Device(
                nic=labels.get("nic", ""),
                rail=int(rail) if rail.isdecimal() else -1,
                switch=labels.get("switch", ""),
            )
    return owners, address_of, devices_at, models


def _coordinates(gauges: Iterable[Column]) -> Iterator[tuple[Member, tuple[int, ...]]]:
    """Yield each rank with the coordinates that it reports; -1 for each missing one."""
    for column in gauges:
        if column.metric == PLACE:
            labels = dict(column.labels)
            member = _member(labels)
            if member is not None:
                reported = (labels.get(name, "") for name in COORDINATES)
                yield member, tuple(int(index) if index.isdecimal() and len(index) < 9 else -1 for index in reported)


def _member(labels: dict[str, str]) -> Member | None:
    try:
        gang = intern(labels["gang"])
        return Member(gang, int(labels["attempt"]), int(labels["rank"])) if gang else None
    except (KeyError, ValueError):
        return None


def _whose(of: str, labels: dict[str, str]) -> str:
    if of == "gpu":
        return labels.get("gpu", "")
    if of == "nic":
        return labels.get("device", "")
    if of == "rank":
        return f"{labels.get('gang')}/{labels.get('attempt')}/{labels.get('rank')}"
    return ""


def _wire(columns: Iterable[Column], places: _Places, members: int) -> list[_Part]:
    """Return the parts of features among the columns, in the order of their targets."""
    found: list[_Part] = []
    for index, column in enumerate(columns):
        rules = _RULES.get(column.metric)
        if rules is None:
            continue
        labels = dict(column.labels)
        scale = BY_NAME[column.metric].scale
        for row, of, counted in rules:
            for label, allowed in counted:
                if labels.get(label) not in allowed:
                    break
            else:
                for member in places.get((of, _whose(of, labels)), ()):
                    found.append((row * members + member, index, scale, column.tier, column.width))
    found.sort()
    return found


def _pcie_columns(gauges: Iterable[Column], places: _Places) -> IndexArray:
    """Return [l links, 5], one row per PCIe link: the index of a rank, and the columns of the link's generation,
    lanes, and their maxima.
    """
    metrics = FEATURES[FEATURE[_PCIE]].metrics
    parts: dict[int, dict[str, int]] = {}
    for index, column in enumerate(gauges):
        if column.metric in metrics:
            for member in places.get(("pci", dict(column.labels).get("pci_address", "")), ()):
                parts.setdefault(member, {})[column.metric] = index
    links = [
        (member, *(known[name] for name in metrics)) for member, known in parts.items() if len(known) == len(metrics)
    ]
    return np.array(links, np.intp).reshape(-1, 1 + len(metrics))
