"""Counting: nodes' gauges and counters folded into features of the ranks that stand on them.

Which GPU is a rank's, and which NIC stands beside that GPU, is said by info series of the same frame. A rank whose GPU
is not known has the features of its host and of its processes alone.

Most nodes of a cluster have the same columns at the same places. Frames are therefore queued as they come, and folded
together once there are many, or somebody looks: a handful of array operations, where one frame after the other would
take a dozen each, a second and a half of processor time for 10,000 nodes.
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
"""As for step reports (fleet.py): silence over which a narrow counter is not trusted to have turned once."""

_PCIE = "pcie_link"
_TRAFFIC = (FEATURE["nvlink_bytes"], FEATURE["nic_transmit_bytes"])

_RULES: dict[str, list[tuple[int, str, tuple[tuple[str, tuple[str, ...]], ...]]]] = {}
"""Metric -> for each feature that it is a part of: its row, whose it is, and the labels that count."""

for _row, _feature in enumerate(FEATURES):
    for _name in _feature.metrics if _feature.name != _PCIE else ():
        _RULES.setdefault(_name, []).append((_row, _feature.of, _feature.labels))


@dataclass(frozen=True, slots=True)
class _Wired:
    """Columns of a layout that make up features, parts of one target side by side.

    column, scale (to the catalogue's unit), tier, width (bits): [c], of each part. starts [t]: where the parts of each
    target begin; target [t]: row * members + member.
    """

    column: IndexArray
    scale: FloatArray
    tier: IndexArray
    width: npt.NDArray[np.uint8]
    starts: IndexArray
    target: IndexArray

    def sums(self, parts: FloatArray) -> FloatArray:
        """[k, t] of [k, c]. A sum of which a part is missing is unknown: NaN."""
        return parts if len(self.starts) == len(self.column) else np.add.reduceat(parts, self.starts, axis=1)


COORDINATES = ("data", "stage", "tensor", "expert")
"""Labels of gangwatch_rank_place_info, and fields of a job's shape: where a rank stands in its parallel layout."""

PLACE = "gangwatch_rank_place_info"

_Queued = tuple[int, Frame, bool]

T = TypeVar("T", bound=np.generic)


def rows_of(arrays: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    """Stack k arrays [n] into one array [k, n], in a third of the time of np.array.

    Raises ValueError where their lengths differ: np.concatenate alone would shift every row after the first odd one.
    """
    if len(lengths := set(map(len, arrays))) != 1:
        raise ValueError(f"rows of different lengths {sorted(lengths)}: frames of different layouts are in one batch")
    return np.concatenate(arrays).reshape(len(arrays), -1)


Failed = tuple[str, Exception]
"""A node whose frame could not be folded, and what was raised."""

Queued = TypeVar("Queued")


def fold_apart(
    fold: Callable[[list[Queued]], None], batch: list[Queued], node_of: Callable[[Queued], str], failed: list[Failed]
) -> None:
    """Fold a batch; where that raises, one frame after the other, so that a bug costs only the nodes that show it.

    failed: (node, error) of each frame that could not be folded is added to it. A frame that was folded before the
    batch raised has no newer time than its row then, and adds nothing the second time.
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
    """Nodes whose columns make up features in one and the same way: their frames are folded together, as arrays.

    members: ranks on each. links: [l, 5], a member and the gauges of its PCIe link. Of each of the r rows (a node
    each): values: float32 [r, features, members] of its newest frame; fresh: bool [r], whether they were not yet read;
    columns: [r, members], for whoever reads, where a member's values go; -1 for nowhere. failed: (node, error) of
    frames that could not be folded are added to it.
    """

    ROWS_AT_ONCE = 256
    """So many rows of 250 columns stay in a processor's second cache while a dozen operations pass over them."""

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
        """A row for another node."""
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
        """The row's node is of another kind now."""
        self.queue = [one for one in self.queue if one[0] != row]
        self._known[row] = self.fresh[row] = False
        self.columns[row] = -1
        self._free.append(row)

    @property
    def empty(self) -> bool:
        """Whether no node has a row here."""
        return len(self._free) == self._rows

    def traffic_sampled_ns(self, rows: IndexArray) -> IntArray | None:
        """When each of these rows' traffic was last sampled, by its node's monotonic clock; None where it has none."""
        return self._before_ns[rows, self._traffic_tier] if self._traffic_tier >= 0 else None

    def settle(self) -> None:
        """Fold what is queued, in its order."""
        while self.queue:
            # Each node's first frame, then each one's second: mostly there is but one.
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
        told = rows_of([frame.gauges for frame in frames])
        if len(self._gauges.column):
            values[:, self._gauges.target] = self._gauges.sums(
                told.take(self._gauges.column, axis=1) * self._gauges.scale
            )
        if len(self._links):
            member, generation, lanes, most_generation, most_lanes = self._links.T
            most = told[:, most_generation] * told[:, most_lanes]
            now = told[:, generation] * told[:, lanes]
            values[:, FEATURE[_PCIE] * self.members + member] = np.divide(
                now, most, out=np.full(now.shape, np.nan), where=most > 0
            )
        if len(self._counters.column):
            values[:, self._counters.target] = self._rates(rows, frames, np.array([one[2] for one in batch]))
        self.values[rows] = values.reshape(len(batch), len(FEATURES), self.members)
        self.fresh[rows] = True

    def _rates(self, rows: IndexArray, frames: list[Frame], continues: npt.NDArray[np.bool_]) -> FloatArray:
        """Advance a second of each target since the row's sample before; NaN where that is not known. [k, targets]"""
        wired = self._counters
        # take, not an index: it lays rows one behind the other, an index columns, and mixing the two costs threefold
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
        # A tier that was not sampled anew keeps what it is compared with.
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
    """What a rank stands on. gpu: its UUID; nic, switch: as ('node-3/mlx5_0', 'node-3/0000:16:00.0'). Empty, or rail
    -1, where not known."""

    gpu: str = ""
    nic: str = ""
    rail: int = -1
    switch: str = ""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """One node's ranks, by its newest layout.

    members: whose they are, in order. devices: what each stands on.
    coordinates: as COORDINATES, of those that say where they stand. kind, row: where their features are; None where the
    node has no ranks.
    """

    layout_id: str
    members: tuple[Member, ...]
    devices: tuple[Device, ...]
    coordinates: dict[Member, tuple[int, ...]]
    kind: Kind | None
    row: int


class Counting:
    """The features of all nodes' ranks."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeCounts] = {}
        self._anew: set[str] = set()
        self._kinds: dict[bytes, Kind] = {}
        self.failed: list[Failed] = []

    @property
    def kinds(self) -> Iterable[Kind]:
        """The nodes by kind, with all that was taken folded in."""
        for kind in self._kinds.values():
            kind.settle()
        return self._kinds.values()

    def read_anew(self) -> set[str]:
        """Nodes of which a layout came since the last call: who stands on them, and in which row, may have changed."""
        found, self._anew = self._anew, set()
        return found

    def take(self, layout: AnyLayout, frame: Frame, continues: bool) -> None:
        """Queue one frame that fits its layout. continues: whether it goes on where the node's newest one ended."""
        counts = self.nodes.get(frame.node)
        if counts is None or counts.layout_id != layout.layout_id:
            counts = self._read(layout.whole(), counts)
        if counts.kind is not None:
            counts.kind.queue.append((counts.row, frame, continues))
            if len(counts.kind.queue) >= counts.kind.ROWS_AT_ONCE:
                counts.kind.settle()

    def drop(self, node: str) -> None:
        """Forget a node: its next frame is its first."""
        if (old := self.nodes.pop(node, None)) is not None:
            self._drop(old)

    def _drop(self, old: NodeCounts) -> None:
        if old.kind is not None:
            old.kind.drop(old.row)
            if old.kind.empty:  # jobs come and go, and each brings new kinds
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
        self._anew.add(layout.node)
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
"""(whose, its name) -> the members that it belongs to."""


def _who(layout: Layout) -> tuple[tuple[Member, ...], tuple[Device, ...], _Places]:
    """The ranks of a node, the devices of each, and what belongs to whom."""
    owners, address_of, beside = _relations(layout.gauges)
    found: dict[Member, str] = {}
    for column in layout.counters:
        if column.metric in ("gangwatch_rank_cpu_seconds_total", "gangwatch_rank_steps_total"):
            member = _member(dict(column.labels))
            if member is not None:
                found.setdefault(member, "")
    for uuid, member in owners.items():
        found[member] = found.get(member) or uuid
    here = {uuid: beside.get(address_of.get(uuid, ""), Device()) for uuid in owners}
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
    """GPU UUID -> its rank; GPU UUID -> PCI address; PCI address -> what stands beside it, by its name on the node."""
    owners: dict[str, Member] = {}
    address_of: dict[str, str] = {}
    beside: dict[str, Device] = {}
    for column in gauges:
        labels = dict(column.labels)
        if column.metric == "gangwatch_gpu_owner_info":
            member = _member(labels)
            if member is not None and labels.get("gpu"):
                owners.setdefault(intern(labels["gpu"]), member)  # one string wherever the GPU is told of
        elif column.metric == "gangwatch_gpu_info":
            address_of[labels.get("gpu", "")] = labels.get("pci_address", "")
        elif column.metric == "gangwatch_topology_rail_info":
            rail = labels.get("rail", "")
            beside[labels.get("pci_address", "")] = Device(
                nic=labels.get("nic", ""),
                rail=int(rail) if rail.isdecimal() else -1,
                switch=labels.get("switch", ""),
            )
    return owners, address_of, beside


def _coordinates(gauges: Iterable[Column]) -> Iterator[tuple[Member, tuple[int, ...]]]:
    """Where ranks say that they stand; -1 for what one does not say."""
    for column in gauges:
        if column.metric == PLACE:
            labels = dict(column.labels)
            member = _member(labels)
            if member is not None:
                told = (labels.get(name, "") for name in COORDINATES)
                yield member, tuple(int(index) if index.isdecimal() and len(index) < 9 else -1 for index in told)


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
    """[l, 5]: a member, and the columns of its link: generation, lanes, and the most of both."""
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
