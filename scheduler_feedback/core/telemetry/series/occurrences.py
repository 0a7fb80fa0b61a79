"""Occurrences: device events from the agents' reports, in the detectors' terms.

Agents report in two ways. Records contain XIDs, events of the driver, and the kernel's log. Series also show events
whose record was lost: whether a GPU responds, its recovery action, whether a port has a carrier, and how often the port
lost it. Sources name a device by PCI address or network interface. This module converts the name to the detectors'
name: the GPU's UUID or the RDMA device.

Records of the kernel's log from before the agent's start are ignored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from sys import intern

import numpy as np
from msgspec import structs

from agent.schema.frame import Column, EventRecord, Frame, Layout
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.series.frame_batch import Batch, Failed
from scheduler_feedback.core.telemetry.series.watched_columns import WatchedColumns
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import (
    DEVICE_LOST,
    LINK,
    PART_REPLACED,
    RECOVERY_ACTION,
    XID,
    IndexArray,
    NodeEvent,
)

STALE_NS = 600_000_000_000
"""Events reported more than ten minutes late are ignored, because it is too late to act on them."""

MOST_LOSSES = 100
"""Maximum number of carrier losses between two samples. A larger increase of the counter is not believed."""

ACTION = "gangwatch_gpu_recovery_action"
ANSWERS = "gangwatch_gpu_up"
CARRIER = "gangwatch_network_carrier"
PORT_STATE = "gangwatch_rdma_port_state"
GAUGES = (ACTION, ANSWERS, CARRIER, PORT_STATE)
LINK_DOWNED = "gangwatch_rdma_port_link_downed_total"
LOSSES = (
    "gangwatch_network_carrier_down_total",
    LINK_DOWNED,
    "gangwatch_rdma_physical_link_down_events_total",
)
"""Counters of lost links. All of them count the same losses in different places, so their values are never added up."""

_RISES = frozenset({ACTION})
"""Gauges that show a fault if their value is 1. The other gauges show a fault if their value is low."""

_DOWN = {ANSWERS: 0.0, CARRIER: 0.0, PORT_STATE: 1.0}
"""Highest value of each gauge that shows a lost device or a port that is down (RDMA: 1 is down, 2 and 3 are coming
up)."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """One monitored series of a layout."""

    metric: str
    """Metric name."""
    device: str
    """Name of the device."""
    of: str = ""
    """Port of the device, or name of the recovery action; '' for other series."""


_watched_port = lru_cache(4096)(_Watched)
"""Return the series (metric, device, port). The result is cached, because ports have the same names on thousands of
nodes."""


@dataclass(slots=True, eq=False)
class WatchedNode:
    """Monitored series in the newest layout of one node, and their last values."""

    gauge: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Column of each series in `gauges`."""
    gauges: tuple[_Watched, ...] = ()
    """Monitored gauges, one per entry of `gauge`."""
    counter: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Column of each series in `counters`."""
    counters: tuple[_Watched, ...] = ()
    """Monitored counters, one per entry of `counter`."""
    columns: WatchedColumns | None = None
    """Last values of the series, with those of similar nodes."""
    row: int = 0
    """Row of the node in `columns`."""
    wrong: dict[_Watched, bool] = field(default_factory=dict)
    """Last known state of each gauge: whether it shows a fault."""
    counted: dict[_Watched, int] = field(default_factory=dict)
    """Last known value of each counter."""
    gpus: dict[str, str] = field(default_factory=dict)
    """GPU UUID by PCI address."""
    nics: dict[str, str] = field(default_factory=dict)
    """RDMA device by PCI address, interface or its own name."""


class Occurrences:
    """Device events of all nodes since the last call of ``take``.

    Series are compared for many frames at once (series_queue.py); the events have the same order as if each frame had
    been alone.

    parts: node of each GPU; None: any node may report about any GPU.
    passed_over: number of dropped events beyond MOST_OF_NODE, by node.
    failed: (node, error) of frames that could not be processed, until the caller clears the list.
    """

    MOST_OF_NODE = 256
    """Maximum number of events of one node between two calls of ``take``, half a second apart; the newest are kept. The
    limit is per node, so that a noisy node does not displace events of other nodes."""

    def __init__(self, parts: Parts | None = None) -> None:
        self._parts = parts
        self._nodes: dict[str, WatchedNode] = {}
        self._found: dict[str, deque[tuple[int, NodeEvent]]] = {}
        self.passed_over: Counter[str] = Counter()
        self.failed: list[Failed] = []
        self._columns: dict[bytes, WatchedColumns] = {}

    def take(self) -> tuple[NodeEvent, ...]:
        """Return the events since the last call, in order."""
        found = sorted((one for of_node in self._found.values() for one in of_node), key=itemgetter(0))
        self._found.clear()
        return tuple(event for _, event in found)

    def forget(self, node: str) -> None:
        """Delete a node's data. Its next frame counts as its first."""
        if (gone := self._nodes.pop(node, None)) is not None:
            self._leave(gone)

    def read(self, layout: Layout, frame: Frame, number: int) -> tuple[WatchedNode, WatchedColumns]:
        """Use a node's new layout. Return the node's monitored series, and those of all nodes with the same columns.

        number: place of the frame in the order of all processed frames.
        """
        node = self._nodes.get(layout.node)
        if node is None:
            node = self._nodes[layout.node] = WatchedNode()
        return node, self._read(node, layout, frame, number)

    def record(self, records: Sequence[EventRecord], frame: Frame, number: int) -> None:
        """Add the events that a frame's records report. number: as in ``read``."""
        node = self._nodes.get(frame.node)
        for record in records:
            self._record(WatchedNode() if node is None else node, record, frame, number)

    def fold(self, columns: WatchedColumns, batch: Batch) -> None:
        """Add the events that the series of these frames show. All nodes have the columns `columns`."""
        nodes = [one for view in batch.nodes if (one := view._watched) is not None]
        gauges, counters = columns.take([node.row for node in nodes], batch)
        counters |= ~batch.continues
        for place in np.flatnonzero(gauges | counters).tolist():
            node, frame, number = nodes[place], batch.frames[place], batch.numbers[place]
            try:
                if gauges[place]:
                    self._gauges(node, frame.gauges.take(node.gauge), frame, number)
                if counters[place]:
                    self._counters(node, frame, bool(batch.continues[place]), number)
            except Exception as error:
                self.failed.append((frame.node, error))

    def _leave(self, node: WatchedNode) -> None:
        """Free the node's row."""
        if (columns := node.columns) is not None:
            columns.drop(node.row)
            if columns.empty:
                del self._columns[columns.key]

    # --- records ------------------------------------------------------------------------------------------------------

    def _record(self, node: WatchedNode, record: EventRecord, frame: Frame, number: int) -> None:
        detail = record.detail
        if frame.wall_ns - record.time_ns > STALE_NS or "before_start" in detail:
            return
        entity = record.entity
        if record.kind == "xid":
            self._report(frame, number, XID, node.gpus.get(entity, entity), record.time_ns, detail)
        elif record.kind == "gpu_lost" or (record.kind == "gpu" and detail.get("event") == "gpu_unavailable"):
            self._report(frame, number, DEVICE_LOST, node.gpus.get(entity, entity), record.time_ns, detail)
        elif record.kind == "nic_link":
            name = node.nics.get(entity) or node.nics.get(detail.get("netdev", ""))
            state = detail.get("state", "").lower()
            if name and state in ("up", "down"):
                self._report(frame, number, LINK, name, record.time_ns, {"state": state, "source": "kernel"})
        elif record.kind in (RECOVERY_ACTION, LINK, DEVICE_LOST, PART_REPLACED):
            self._add(frame.node, record, number)
        # The record of a changed recovery action does not contain the action. The next sample of the series does.

    def _report(
        self, frame: Frame, number: int, kind: str, entity: str, time_ns: int, detail: Mapping[str, str]
    ) -> None:
        self._add(frame.node, EventRecord(kind, entity, time_ns, dict(detail)), number)

    def _add(self, node: str, event: EventRecord, number: int) -> None:
        if self._parts is not None and (name := self._parts.name(node, event.entity)) != event.entity:
            event = structs.replace(event, entity=name)
        of_node = self._found.get(node)
        if of_node is None:
            of_node = self._found[node] = deque(maxlen=self.MOST_OF_NODE)
        elif len(of_node) == self.MOST_OF_NODE:
            self.passed_over[node] += 1
        of_node.append((number, NodeEvent(node, event)))

    # --- series -------------------------------------------------------------------------------------------------------

    def _gauges(self, node: WatchedNode, values: FloatArray, frame: Frame, number: int) -> None:
        for one, value in zip(node.gauges, values.tolist(), strict=True):
            if value != value:  # unknown: keep the last state
                continue
            wrong = value > 0 if one.metric in _RISES else value <= _DOWN[one.metric]
            before = node.wrong.get(one)
            node.wrong[one] = wrong
            if wrong == before:
                continue
            if one.metric == ACTION:
                if wrong:
                    self._report(frame, number, RECOVERY_ACTION, one.device, frame.wall_ns, {"action": one.of})
            elif one.metric == ANSWERS:
                if wrong:  # agents report as down only devices that they have seen
                    self._report(frame, number, DEVICE_LOST, one.device, frame.wall_ns, {})
            elif before is not None:  # a port that was always down is not connected
                state = {"state": "down" if wrong else "up", "source": one.metric}
                self._report(frame, number, LINK, one.device, frame.wall_ns, state)

    def _counters(self, node: WatchedNode, frame: Frame, continues: bool, number: int) -> None:
        values, valid = frame.counters[node.counter].tolist(), frame.counters_valid[node.counter].tolist()
        for one, value, known in zip(node.counters, values, valid, strict=True):
            if not known:
                continue
            before = node.counted.get(one)
            node.counted[one] = value
            if before is not None and continues and 0 < value - before <= MOST_LOSSES:
                detail = {"state": "lost", "times": str(value - before), "source": one.metric}
                self._report(frame, number, LINK, one.device, frame.wall_ns, detail)

    def _read(self, node: WatchedNode, layout: Layout, frame: Frame, number: int) -> WatchedColumns:
        gpus, nics = _names(layout.gauges)
        for address, uuid in node.gpus.items():
            if gpus.get(address, uuid) != uuid:
                self._report(frame, number, PART_REPLACED, uuid, frame.wall_ns, {"gpu": gpus[address]})
        node.gpus, node.nics = {**node.gpus, **gpus}, nics
        node.gauge, node.gauges = _watched(layout.gauges, GAUGES, nics)
        node.counter, node.counters = _watched(layout.counters, LOSSES, nics)
        node.wrong = {one: node.wrong[one] for one in node.gauges if one in node.wrong}
        node.counted = {one: node.counted[one] for one in node.counters if one in node.counted}
        self._leave(node)
        key = repr((layout.sizes, len(node.gauge))).encode() + node.gauge.tobytes() + node.counter.tobytes()
        columns = self._columns.get(key)
        if columns is None:
            columns = self._columns[key] = WatchedColumns(key, node.gauge, node.counter)
        node.columns, node.row = columns, columns.add()
        return columns


def _names(gauges: Iterable[Column]) -> tuple[dict[str, str], dict[str, str]]:
    """Return two dicts: GPU UUID by PCI address, and RDMA device by PCI address, by interface and by the device's own
    name."""
    gpus: dict[str, str] = {}
    nics: dict[str, str] = {}
    for column in gauges:
        if column.metric == "gangwatch_gpu_info":
            labels = dict(column.labels)
            gpus[intern(labels.get("pci_address", ""))] = intern(labels.get("gpu", ""))
        elif column.metric in ("gangwatch_rdma_device_info", "gangwatch_rdma_port_info"):
            labels = dict(column.labels)
            for name in ("pci_address", "netdev", "device"):
                if labels.get(name):
                    nics[intern(labels[name])] = intern(labels.get("device", ""))
    return gpus, nics


def _watched(
    columns: Iterable[Column], metrics: tuple[str, ...], nics: Mapping[str, str]
) -> tuple[IndexArray, tuple[_Watched, ...]]:
    """Return the columns of these metrics, and the monitored series in each column.

    Interfaces without an RDMA device are monitored only on nodes without RDMA devices.
    """
    found: list[tuple[int, _Watched]] = []
    for index, column in enumerate(columns):
        if column.metric not in metrics:
            continue
        labels = dict(column.labels)
        if column.metric == ACTION:
            if labels.get("action", "none") != "none":
                action = labels["action"].replace("_", "-")
                found.append((index, _Watched(ACTION, intern(labels.get("gpu", "")), intern(action))))
        elif column.metric == ANSWERS:
            found.append((index, _Watched(ANSWERS, intern(labels.get("gpu", "")))))
        else:
            name = labels.get("device", "")
            name = nics.get(name, "") if nics else name
            if name:
                found.append((index, _watched_port(column.metric, name, labels.get("port", ""))))
    return np.array([index for index, _ in found], np.intp), tuple(one for _, one in found)
