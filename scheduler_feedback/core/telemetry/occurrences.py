"""Occurrences: what happened to devices, as agents tell it, in the words that the detectors know.

Agents tell in two ways. In records: XIDs, the driver's events, the kernel's log. And in series, which also tell what
was lost as a record: whether a GPU answers, what it needs in order to recover, whether a port has a carrier and how
often it lost it. Whoever tells names a device as he knows it, by PCI address or network interface; here it gets the
name that it has in a job's shape: the GPU's UUID, the RDMA device.

An agent that starts reads the kernel's log from its beginning: what is told there is history, not news.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from sys import intern

import numpy as np
from msgspec import structs

from agent.schema.frame import AnyLayout, Column, EventRecord, Frame, Layout
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
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
"""What happened more than ten minutes before it is told is history: whoever was to act on it has."""

MOST_LOSSES = 100
"""A counter that advanced by more losses of the carrier than this in one sample has not counted them."""

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
"""Each counts the same losses in another place: they are never added up."""

_RISES = frozenset({ACTION})
"""Wrong where it is 1; the others are wrong where they are low."""

_DOWN = {ANSWERS: 0.0, CARRIER: 0.0, PORT_STATE: 1.0}
"""At this value or below the device is gone, or the port down (RDMA: 1 is down, 2 and 3 are on the way up)."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """One series that is watched: metric, name of the device, its port or the recovery action."""

    metric: str
    device: str
    of: str = ""


_watched_port = lru_cache(4096)(_Watched)
"""Ports have the same names on thousands of nodes."""


@dataclass(slots=True, eq=False)
class _Node:
    """What is watched of one node, by its newest layout, and how it stood.

    gauge, counter: columns of the series in `gauges` and `counters`. told, counts: their values as last looked at.
    wrong, counted: what each gauge was last known to say, and each counter. gpus: UUID by PCI address; nics: RDMA
    device by address, interface or its own name.
    """

    layout_id: str = ""
    gauge: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    gauges: tuple[_Watched, ...] = ()
    counter: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    counters: tuple[_Watched, ...] = ()
    told: bytes = b""
    wrong: dict[_Watched, bool] = field(default_factory=dict)
    counts: bytes = b""
    counted: dict[_Watched, int] = field(default_factory=dict)
    gpus: dict[str, str] = field(default_factory=dict)
    nics: dict[str, str] = field(default_factory=dict)


class Occurrences:
    """What happened on all nodes since it was last taken. parts: whose each GPU is; None: whoever's reports about it.

    passed_over: events beyond MOST_OF_NODE, by node.
    """

    MOST_OF_NODE = 256
    """Events of one node between two looks, half a second apart: the newest are kept. A node that sends more keeps no
    other node's events from being looked at."""

    def __init__(self, parts: Parts | None = None) -> None:
        self._parts = parts
        self._nodes: dict[str, _Node] = {}
        self._found: dict[str, deque[tuple[int, NodeEvent]]] = {}
        self._count = 0
        self.passed_over: Counter[str] = Counter()

    def take(self) -> tuple[NodeEvent, ...]:
        """What was found since the last call, in order."""
        found = sorted((one for of_node in self._found.values() for one in of_node), key=itemgetter(0))
        self._found.clear()
        return tuple(event for _, event in found)

    def forget(self, node: str) -> None:
        """Forget how a node stood: its next frame is its first."""
        self._nodes.pop(node, None)

    def observe(self, layout: AnyLayout, frame: Frame, continues: bool, told: Iterable[EventRecord]) -> None:
        """Look through one frame. continues: whether it goes on where the node's newest one ended; told: its events."""
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = _Node()
        if node.layout_id != layout.layout_id:
            self._read(node, layout.whole(), frame)
        for record in told:
            self._record(node, record, frame)
        gauges = frame.gauges.take(node.gauge)
        if (new := gauges.tobytes()) != node.told:
            node.told = new
            self._gauges(node, gauges, frame)
        counts = frame.counters.take(node.counter)
        if (new := counts.tobytes()) != node.counts or not continues:
            node.counts = new
            self._counters(node, frame, continues)

    # --- records ------------------------------------------------------------------------------------------------------

    def _record(self, node: _Node, record: EventRecord, frame: Frame) -> None:
        detail = record.detail
        if frame.wall_ns - record.time_ns > STALE_NS or "before_start" in detail:
            return
        entity = record.entity
        if record.kind == "xid":
            self._tell(frame, XID, node.gpus.get(entity, entity), record.time_ns, detail)
        elif record.kind == "gpu_lost" or (record.kind == "gpu" and detail.get("event") == "gpu_unavailable"):
            self._tell(frame, DEVICE_LOST, node.gpus.get(entity, entity), record.time_ns, detail)
        elif record.kind == "nic_link":
            name = node.nics.get(entity) or node.nics.get(detail.get("netdev", ""))
            state = detail.get("state", "").lower()
            if name and state in ("up", "down"):
                self._tell(frame, LINK, name, record.time_ns, {"state": state, "source": "kernel"})
        elif record.kind in (RECOVERY_ACTION, LINK, DEVICE_LOST, PART_REPLACED):
            self._add(frame.node, record)
        # A recovery action that changed is told without saying to what: the series tells, at its next sample.

    def _tell(self, frame: Frame, kind: str, entity: str, time_ns: int, detail: Mapping[str, str]) -> None:
        self._add(frame.node, EventRecord(kind, entity, time_ns, dict(detail)))

    def _add(self, node: str, event: EventRecord) -> None:
        if self._parts is not None and (name := self._parts.name(node, event.entity)) != event.entity:
            event = structs.replace(event, entity=name)
        of_node = self._found.get(node)
        if of_node is None:
            of_node = self._found[node] = deque(maxlen=self.MOST_OF_NODE)
        elif len(of_node) == self.MOST_OF_NODE:
            self.passed_over[node] += 1
        self._count += 1
        of_node.append((self._count, NodeEvent(node, event)))

    # --- series -------------------------------------------------------------------------------------------------------

    def _gauges(self, node: _Node, values: FloatArray, frame: Frame) -> None:
        for one, value in zip(node.gauges, values.tolist(), strict=True):
            if value != value:  # not known now; it is as it was
                continue
            wrong = value > 0 if one.metric in _RISES else value <= _DOWN[one.metric]
            before = node.wrong.get(one)
            node.wrong[one] = wrong
            if wrong == before:
                continue
            if one.metric == ACTION:
                if wrong:
                    self._tell(frame, RECOVERY_ACTION, one.device, frame.wall_ns, {"action": one.of})
            elif one.metric == ANSWERS:
                if wrong:  # an agent shows as down only what it has seen
                    self._tell(frame, DEVICE_LOST, one.device, frame.wall_ns, {})
            elif before is not None:  # a port that was always down is not connected
                state = {"state": "down" if wrong else "up", "source": one.metric}
                self._tell(frame, LINK, one.device, frame.wall_ns, state)

    def _counters(self, node: _Node, frame: Frame, continues: bool) -> None:
        values, valid = frame.counters[node.counter].tolist(), frame.counters_valid[node.counter].tolist()
        for one, value, known in zip(node.counters, values, valid, strict=True):
            if not known:
                continue
            before = node.counted.get(one)
            node.counted[one] = value
            if before is not None and continues and 0 < value - before <= MOST_LOSSES:
                detail = {"state": "lost", "times": str(value - before), "source": one.metric}
                self._tell(frame, LINK, one.device, frame.wall_ns, detail)

    def _read(self, node: _Node, layout: Layout, frame: Frame) -> None:
        gpus, nics = _names(layout.gauges)
        for address, uuid in node.gpus.items():
            if gpus.get(address, uuid) != uuid:
                self._tell(frame, PART_REPLACED, uuid, frame.wall_ns, {"gpu": gpus[address]})
        node.layout_id, node.gpus, node.nics = layout.layout_id, {**node.gpus, **gpus}, nics
        node.gauge, node.gauges = _watched(layout.gauges, GAUGES, nics)
        node.counter, node.counters = _watched(layout.counters, LOSSES, nics)
        node.wrong = {one: node.wrong[one] for one in node.gauges if one in node.wrong}
        node.counted = {one: node.counted[one] for one in node.counters if one in node.counted}
        node.told = node.counts = b""


def _names(gauges: Iterable[Column]) -> tuple[dict[str, str], dict[str, str]]:
    """UUID of each GPU by PCI address; RDMA device by its PCI address, by its interface and by its own name."""
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
    """The series of these metrics. Interfaces of no RDMA device count only where the node has none at all."""
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
