"""Counting: one node's gauges and counters folded into features of the ranks that stand on it.

Which GPU is a rank's, and which NIC stands beside that GPU, is said by info series of the same frame. A rank whose GPU
is not known has the features of its host and of its processes alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Column, CounterArray, Frame, Layout, Member, ValidArray
from agent.schema.rates import difference, exact
from scheduler_feedback.core.gangs import FloatArray, IntArray
from scheduler_feedback.core.telemetry import FEATURE, FEATURES, IndexArray

GAP_NS = 60_000_000_000
"""As for step reports (fleet.py): silence over which a narrow counter is not trusted to have turned once."""

_PCIE = "pcie_link"
_OF_METRIC: dict[str, list[int]] = {}
for _row, _feature in enumerate(FEATURES):
    for _name in _feature.metrics:
        _OF_METRIC.setdefault(_name, []).append(_row)


@dataclass(slots=True)
class _Wired:
    """Columns of a layout that make up features: column, target (row * members + member), scale to the catalogue's
    unit, tier and, of counters, width: [c] each."""

    column: IndexArray
    target: IndexArray
    scale: FloatArray
    tier: IndexArray
    width: IndexArray


@dataclass(slots=True)
class NodeCounts:
    """The features of one node's ranks.

    members: whose they are, in order. devices: (GPU UUID, NIC, rail) of each, empty or -1 where not known.
    values: float64 [features, members] of the newest frame; at_ns: its wall time; fresh: whether it was not yet read.
    """

    layout_id: str = ""
    members: tuple[Member, ...] = ()
    devices: tuple[tuple[str, str, int], ...] = ()
    values: FloatArray = field(default_factory=lambda: np.zeros((len(FEATURES), 0)))
    at_ns: int = 0
    fresh: bool = False
    _gauges: _Wired | None = None
    _counters: _Wired | None = None
    _links: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    _before: tuple[CounterArray, ValidArray, IntArray] | None = None

    def take(self, layout: Layout, frame: Frame, continues: bool) -> None:
        """Fold in one frame that fits its layout."""
        if layout.layout_id != self.layout_id:
            self._read(layout)
        if self._gauges is None or self._counters is None or not self.members:
            return
        shape = (len(FEATURES), len(self.members))
        gauges, counters = self._gauges, self._counters
        values = np.full(shape[0] * shape[1], np.nan)
        _add(values, gauges.target, frame.gauges[gauges.column] * gauges.scale)
        values.reshape(shape)[FEATURE[_PCIE]] = self._pcie(frame)
        now, valid = frame.counters[counters.column], frame.counters_valid[counters.column]
        at_ns = frame.tier_ns[counters.tier]
        if self._before is not None and continues:
            before, before_valid, before_ns = self._before
            elapsed_ns = at_ns - before_ns
            counts, change = difference(
                before, before_valid, now, valid, counters.width.astype(np.uint8), elapsed_ns,
                same_source=True, gap_ns=GAP_NS,
            )  # fmt: skip
            known = exact(change) & (elapsed_ns > 0)
            rate = np.where(known, counts * counters.scale / np.maximum(elapsed_ns * 1e-9, 1e-9), np.nan)
            _add(values, counters.target, rate)
            moved = elapsed_ns != 0  # a tier that was not sampled anew keeps what it is compared with
            now, valid = np.where(moved, now, before), np.where(moved, valid, before_valid)
            at_ns = np.where(moved, at_ns, before_ns)
        self._before = now, valid, at_ns
        self.values, self.at_ns, self.fresh = values.reshape(shape), frame.wall_ns, True

    def _pcie(self, frame: Frame) -> FloatArray:
        result = np.full(len(self.members), np.nan)
        for member, parts in self._links.items():
            now_generation, now_lanes, generation, lanes = (frame.gauges[index] for index in parts)
            most = generation * lanes
            result[member] = now_generation * now_lanes / most if most > 0 else np.nan
        return result

    def _read(self, layout: Layout) -> None:
        self.layout_id, self._before = layout.layout_id, None
        owners, address_of, beside = _relations(layout.gauges)
        found: dict[Member, str] = {}
        for column in layout.counters:
            if column.metric in ("gangwatch_rank_cpu_seconds_total", "gangwatch_rank_steps_total"):
                member = _member(dict(column.labels))
                if member is not None:
                    found.setdefault(member, "")
        for uuid, member in owners.items():
            found[member] = found.get(member) or uuid
        self.members = tuple(found)
        nics = {uuid: beside.get(address_of.get(uuid, ""), ("", -1)) for uuid in owners}
        self.devices = tuple(
            (uuid, f"{layout.node}/{nics[uuid][0]}" if uuid and nics[uuid][0] else "", nics[uuid][1] if uuid else -1)
            for uuid in found.values()
        )
        places: dict[tuple[str, str], list[int]] = {("host", ""): list(range(len(found)))}
        for index, (member, uuid) in enumerate(found.items()):
            places.setdefault(("rank", f"{member.gang}/{member.attempt}/{member.rank}"), []).append(index)
            if uuid:
                places.setdefault(("gpu", uuid), []).append(index)
                places.setdefault(("pci", address_of.get(uuid, "?")), []).append(index)
                places.setdefault(("nic", nics[uuid][0]), []).append(index)
        self._gauges = _wire(layout.gauges, places, len(found))
        self._counters = _wire(layout.counters, places, len(found))
        self._links = _pcie_columns(layout.gauges, places)


def _relations(
    gauges: Iterable[Column],
) -> tuple[dict[str, Member], dict[str, str], dict[str, tuple[str, int]]]:
    """GPU UUID -> its rank; GPU UUID -> PCI address; PCI address -> (NIC, rail)."""
    owners: dict[str, Member] = {}
    address_of: dict[str, str] = {}
    beside: dict[str, tuple[str, int]] = {}
    for column in gauges:
        labels = dict(column.labels)
        if column.metric == "gangwatch_gpu_owner_info":
            member = _member(labels)
            if member is not None and labels.get("gpu"):
                owners.setdefault(labels["gpu"], member)
        elif column.metric == "gangwatch_gpu_info":
            address_of[labels.get("gpu", "")] = labels.get("pci_address", "")
        elif column.metric == "gangwatch_topology_rail_info":
            rail = labels.get("rail", "")
            beside[labels.get("pci_address", "")] = labels.get("nic", ""), int(rail) if rail.isdecimal() else -1
    return owners, address_of, beside


def _member(labels: dict[str, str]) -> Member | None:
    try:
        return Member(labels["gang"], int(labels["attempt"]), int(labels["rank"])) if labels.get("gang") else None
    except (KeyError, ValueError):
        return None


def _wire(columns: Iterable[Column], places: dict[tuple[str, str], list[int]], members: int) -> _Wired:
    found: list[tuple[int, int, float, int, int]] = []
    for index, column in enumerate(columns):
        rows = _OF_METRIC.get(column.metric)
        if rows is None:
            continue
        labels = dict(column.labels)
        scale = BY_NAME[column.metric].scale
        for row in rows:
            feature = FEATURES[row]
            if feature.name == _PCIE or any(labels.get(name) not in allowed for name, allowed in feature.labels):
                continue
            key = {
                "gpu": labels.get("gpu", ""),
                "nic": labels.get("device", ""),
                "rank": f"{labels.get('gang')}/{labels.get('attempt')}/{labels.get('rank')}",
                "host": "",
            }[feature.of]
            for member in places.get((feature.of, key), ()):
                found.append((index, row * members + member, scale, column.tier, column.width))
    whole = np.array([(one[0], one[1], one[3], one[4]) for one in found], np.intp).reshape(-1, 4)
    return _Wired(whole[:, 0], whole[:, 1], np.array([one[2] for one in found], np.float64), whole[:, 2], whole[:, 3])


def _pcie_columns(
    gauges: Iterable[Column], places: dict[tuple[str, str], list[int]]
) -> dict[int, tuple[int, int, int, int]]:
    """For each member the columns of its link: generation, lanes, and the most of both."""
    metrics = FEATURES[FEATURE[_PCIE]].metrics
    order = (metrics[0], metrics[1], metrics[2], metrics[3])
    parts: dict[int, dict[str, int]] = {}
    for index, column in enumerate(gauges):
        if column.metric in order:
            for member in places.get(("pci", dict(column.labels).get("pci_address", "")), ()):
                parts.setdefault(member, {})[column.metric] = index
    return {
        member: (known[order[0]], known[order[1]], known[order[2]], known[order[3]])
        for member, known in parts.items()
        if len(known) == len(order)
    }


def _add(values: FloatArray, target: IndexArray, parts: FloatArray) -> None:
    """Sum the parts into their targets; one of whose parts any is missing is unknown: a sum without it is wrong."""
    if not len(target):
        return
    size = len(values)
    missing = np.bincount(target, np.isnan(parts), size) > 0
    sums = np.bincount(target, np.nan_to_num(parts), size)
    present = np.bincount(target, minlength=size) > 0
    values[present] = np.where(missing, np.nan, sums)[present]
