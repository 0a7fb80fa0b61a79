"""Features of ranks, computed from the gauges and counters of their nodes.

Info series in the same frame give the GPU of each rank and the NIC next to that GPU. A rank with an unknown GPU only
has the features of its host and of its processes.

Most nodes of a cluster have the same columns in the same places. Frames are therefore queued, and processed together
when there are many or a caller reads the features. One batch takes a few array operations. Processing each frame alone
would take a dozen operations per frame, or 1.5 seconds of processor time for 10,000 nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from agent.schema.catalog import BY_NAME
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Member
from agent.schema.rates import NARROW_BITS, difference, exact
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, IndexArray

GAP_NS = 60_000_000_000
"""Longest gap between samples across which a 32-bit counter is assumed to have wrapped at most once."""

_PCIE = "pcie_link"
_TRAFFIC = (FEATURE["nvlink_bytes"], FEATURE["nic_transmit_bytes"])

_RULES: dict[str, list[tuple[int, str, tuple[tuple[str, tuple[str, ...]], ...]]]] = {}
"""Features that use each metric, as metric -> (row of the feature, type of its owner, label values that a series must
have)."""

for _row, _feature in enumerate(FEATURES):
    for _name in _feature.metrics if _feature.name != _PCIE else ():
        _RULES.setdefault(_name, []).append((_row, _feature.of, _feature.labels))


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

    def sums(self, parts: FloatArray) -> FloatArray:
        """Add up the parts of each target in k frames: [k, c parts] -> [k, t targets]; NaN if a part is missing."""
        return parts if len(self.starts) == len(self.column) else np.add.reduceat(parts, self.starts, axis=1)


COORDINATES = ("data", "stage", "tensor", "expert")
"""Labels of gangwatch_rank_place_info, which are also fields of a job's shape: a rank's coordinates in its parallel
layout."""

PLACE = "gangwatch_rank_place_info"

_Queued = tuple[int, Frame, bool]

T = TypeVar("T", bound=np.generic)


def rows_of(arrays: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    """Stack k arrays [n] into one array [k, n], faster than np.array. Raises ValueError if their lengths differ."""
    if len(lengths := set(map(len, arrays))) != 1:
        raise ValueError(f"rows of different lengths {sorted(lengths)}: frames of different layouts are in one batch")
    return np.concatenate(arrays).reshape(len(arrays), -1)


Failed = tuple[str, Exception]
"""A node whose frame could not be processed, and the exception."""

Queued = TypeVar("Queued")


def fold_apart(
    fold: Callable[[list[Queued]], None], batch: list[Queued], node_of: Callable[[Queued], str], failed: list[Failed]
) -> None:
    """Process a batch. If the batch raises an exception, process each of its frames alone.

    A bug then affects only the nodes whose frames trigger it.
    failed: receives (node, error) of each frame that could not be processed. Frames that were processed before the
    exception are processed again without effect, because they are not newer than their rows.
    """
    try:
        fold(batch)
    except Exception as error:
        if len(batch) == 1:
            failed.append((node_of(batch[0]), error))
            return
        for one in batch:
            fold_apart(fold, [one], node_of, failed)


class Kind:
    """Nodes whose columns form features in the same way. Their frames are processed together in arrays with r rows, one
    per node.

    members: number of ranks on each node. links: [l, 5], for each PCIe link the index of a rank and the columns of the
    link's gauges. values: float32 [r, features, members] from the newest frame of each node. fresh: bool [r], True
    until the row is read. columns: [r, members], set by the reader: destination of each member's values; -1 for none.
    failed: receives (node, error) of frames that could not be processed.
    """

    ROWS_AT_ONCE = 256
    """Number of rows that are processed at once. During a dozen operations, 256 rows of 250 columns fit in a
    processor's second-level cache."""

    def __init__(
        self, members: int, gauges: _Wired, counters: _Wired, links: IndexArray, tiers: int, failed: list[Failed]
    ) -> None:
        self.members = members
        self._failed = failed
        self.queue: list[_Queued] = []
        self._gauges, self._counters, self._links = gauges, counters, links
        self._traffic_tier = next(
            (
                int(counters.tier[start])
                for start, target in zip(counters.starts.tolist(), counters.target.tolist(), strict=True)
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
        self._before = np.zeros((0, len(counters.column)), np.uint64)
        self._before_valid = np.zeros((0, len(counters.column)), np.bool_)
        self._before_ns = np.zeros((0, tiers), np.int64)

    def add(self) -> int:
        """Reserve a row for a node, and return the index of the row."""
        if self._free:
            return self._free.pop()
        self._rows += 1
        if self._rows > len(self.fresh):
            rows = len(self.fresh) + max(4, len(self.fresh) // 8)
            for name in ("fresh", "values", "columns", "_known", "_before", "_before_valid", "_before_ns"):
                old = getattr(self, name)
                new = np.zeros((rows, *old.shape[1:]), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
        return self._rows - 1

    def drop(self, row: int) -> None:
        """Free the row of a node that is now of another kind."""
        self.queue = [one for one in self.queue if one[0] != row]
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

    def settle(self) -> None:
        """Process the queued frames in order."""
        while self.queue:
            # First the first frame of each node, then the second ones. Most nodes have only one.
            first = {one[0]: one for one in reversed(self.queue)}
            if len(first) == len(self.queue):
                batch, self.queue = self.queue, []
            else:
                batch, later = list(first.values()), [one for one in self.queue if first[one[0]] is not one]
                self.queue = later
            for start in range(0, len(batch), self.ROWS_AT_ONCE):
                fold_apart(self._fold, batch[start : start + self.ROWS_AT_ONCE], _node_of, self._failed)

    def _fold(self, batch: list[_Queued]) -> None:
        rows = np.array([row for row, _, _ in batch], np.intp)
        frames = [frame for _, frame, _ in batch]
        values = np.full((len(batch), len(FEATURES) * self.members), np.nan, np.float32)
        gauges = rows_of([frame.gauges for frame in frames])
        if len(self._gauges.column):
            values[:, self._gauges.target] = self._gauges.sums(
                gauges.take(self._gauges.column, axis=1) * self._gauges.scale
            )
        if len(self._links):
            member, generation, lanes, most_generation, most_lanes = self._links.T
            most = gauges[:, most_generation] * gauges[:, most_lanes]
            now = gauges[:, generation] * gauges[:, lanes]
            values[:, FEATURE[_PCIE] * self.members + member] = np.divide(
                now, most, out=np.full(now.shape, np.nan), where=most > 0
            )
        if len(self._counters.column):
            values[:, self._counters.target] = self._rates(rows, frames, np.array([one[2] for one in batch]))
        self.values[rows] = values.reshape(len(batch), len(FEATURES), self.members)
        self.fresh[rows] = True

    def _rates(self, rows: IndexArray, frames: list[Frame], continues: npt.NDArray[np.bool_]) -> FloatArray:
        """Return the increase per second of each target since the last sample of its row: [k frames, t targets].

        A target is a feature of one rank. NaN if unknown.
        """
        wired = self._counters
        # `take` returns rows in memory order, indexing returns columns. Mixing the two takes three times as long.
        now = rows_of([frame.counters for frame in frames]).take(wired.column, axis=1)
        valid = rows_of([frame.counters_valid for frame in frames]).take(wired.column, axis=1)
        at_ns = rows_of([frame.tier_ns for frame in frames])
        before, before_valid = self._before[rows], self._before_valid[rows]
        goes_on = continues & self._known[rows]
        tier_elapsed_ns = np.where(goes_on[:, None], at_ns - self._before_ns[rows], 0)
        elapsed_ns = tier_elapsed_ns.take(wired.tier, axis=1)
        known = (elapsed_ns > 0) & valid & before_valid
        advance = (now - before).astype(np.float64)
        odd = now < before
        if (tier_elapsed_ns > GAP_NS).any():
            odd |= (wired.width <= NARROW_BITS) & (elapsed_ns > GAP_NS)
        odd &= known
        if odd.any():
            width = np.broadcast_to(wired.width, odd.shape)[odd]
            counts, change = difference(
                before[odd], before_valid[odd], now[odd], valid[odd], width, elapsed_ns[odd],
                same_source=True, gap_ns=GAP_NS,
            )  # fmt: skip
            advance[odd] = np.where(exact(change), counts, np.nan)
        seconds = np.where(tier_elapsed_ns > 0, tier_elapsed_ns * 1e-9, 1.0).take(wired.tier, axis=1)
        advance *= wired.scale
        advance /= seconds
        np.copyto(advance, np.nan, where=~known)
        # Keep the last sample of tiers without a new one.
        if (tier_elapsed_ns[goes_on] == 0).any():
            keep = goes_on[:, None] & (elapsed_ns == 0)
            np.copyto(now, before, where=keep)
            np.copyto(valid, before_valid, where=keep)
        self._before[rows], self._before_valid[rows], self._before_ns[rows] = now, valid, at_ns
        self._known[rows] = True
        return wired.sums(advance)


def _node_of(queued: _Queued) -> str:
    return queued[1].node


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
        """Kinds of nodes (see ``Kind``). All queued frames are processed first."""
        for kind in self._kinds.values():
            kind.settle()
        return self._kinds.values()

    def take_changed(self) -> set[str]:
        """Return the nodes with a new layout since the last call. Their ranks and rows may have changed."""
        found, self._changed = self._changed, set()
        return found

    def take(self, layout: AnyLayout, frame: Frame, continues: bool) -> None:
        """Queue one frame that fits its layout. continues: whether the node's last frame is of the same boot and agent
        process."""
        counts = self.nodes.get(frame.node)
        if counts is None or counts.layout_id != layout.layout_id:
            counts = self._read(layout.whole(), counts)
        if counts.kind is not None:
            counts.kind.queue.append((counts.row, frame, continues))
            if len(counts.kind.queue) >= counts.kind.ROWS_AT_ONCE:
                counts.kind.settle()

    def drop(self, node: str) -> None:
        """Delete a node's data. Its next frame counts as its first."""
        if (old := self.nodes.pop(node, None)) is not None:
            self._drop(old)

    def _drop(self, old: NodeCounts) -> None:
        if old.kind is not None:
            old.kind.drop(old.row)
            if old.kind.empty:  # each new job adds new kinds
                self._kinds = {key: kind for key, kind in self._kinds.items() if kind is not old.kind}

    def _read(self, layout: Layout, old: NodeCounts | None) -> NodeCounts:
        if old is not None:
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
        gauges, counters = _wire(layout.gauges, places, members), _wire(layout.counters, places, members)
        links = _pcie_columns(layout.gauges, places)
        parts = (gauges.column, gauges.target, gauges.starts, gauges.scale, counters.column, counters.target,
                 counters.starts, counters.scale, counters.tier, counters.width, links)  # fmt: skip
        sizes = (members, len(layout.tiers), len(layout.gauges), len(layout.counters), *(len(part) for part in parts))
        key = repr(sizes).encode() + b"".join(part.tobytes() for part in parts)
        key = hashlib.blake2b(key, digest_size=16).digest()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(members, gauges, counters, links, len(layout.tiers), self.failed)
        return kind


_Places = dict[tuple[str, str], list[int]]
"""Map from an owner of series, as (type, name), to the indices of the ranks to which it belongs."""


def _who(layout: Layout) -> tuple[tuple[Member, ...], tuple[Device, ...], _Places]:
    """Return the ranks of a node, the devices of each rank, and the ranks that use each owner of series (such as a
    GPU).
    """
    owners, address_of, devices_at = _relations(layout.gauges)
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
        Device(uuid, f"{layout.node}/{one.nic}" if one.nic else "", one.rail, switches.get(one.switch, ""))
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
) -> tuple[dict[str, Member], dict[str, str], dict[str, Device]]:
    """Return three dicts: GPU UUID -> rank, GPU UUID -> PCI address, and PCI address -> devices next to the GPU. The
    devices have the names that the node uses."""
    owners: dict[str, Member] = {}
    address_of: dict[str, str] = {}
    devices_at: dict[str, Device] = {}
    for column in gauges:
        labels = dict(column.labels)
        if column.metric == "gangwatch_gpu_owner_info":
            member = _member(labels)
            if member is not None and labels.get("gpu"):
                owners.setdefault(intern(labels["gpu"]), member)  # one string object per GPU
        elif column.metric == "gangwatch_gpu_info":
            address_of[labels.get("gpu", "")] = labels.get("pci_address", "")
        elif column.metric == "gangwatch_topology_rail_info":
            rail = labels.get("rail", "")
            devices_at[labels.get("pci_address", "")] = Device(
                nic=labels.get("nic", ""),
                rail=int(rail) if rail.isdecimal() else -1,
                switch=labels.get("switch", ""),
            )
    return owners, address_of, devices_at


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


def _wire(columns: Iterable[Column], places: _Places, members: int) -> _Wired:
    found: list[tuple[int, int, float, int, int]] = []
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
    whole = np.array([(one[0], one[1], one[3], one[4]) for one in found], np.intp).reshape(-1, 4)
    target, starts = np.unique(whole[:, 0], return_index=True)
    scales = np.array([one[2] for one in found], np.float64)
    return _Wired(whole[:, 1], scales, whole[:, 2], whole[:, 3].astype(np.uint8), starts, target)


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
