"""Device events: from the agent's collectors on fake devices to verdicts of the health detector."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from agent.node import Node
from agent.schema.clock import SystemClock
from agent.schema.frame import Column, EventRecord, Frame, Layout, Record, Tier, make_layout
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.series import series_queue
from scheduler_feedback.core.telemetry.series.consumption import Consumption
from scheduler_feedback.core.telemetry.series.consumption_trail import Trails
from scheduler_feedback.core.telemetry.series.counter_features import Counting
from scheduler_feedback.core.telemetry.series.occurrences import STALE_NS, Occurrences
from scheduler_feedback.core.telemetry.series.series_queue import SeriesQueue
from scheduler_feedback.core.telemetry.telemetry import (
    DEVICE_LOST,
    LINK,
    PART_REPLACED,
    RECOVERY_ACTION,
    XID,
    NodeEvent,
)
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.core.verdict import Cause, Finding, Verdict
from scheduler_feedback.detectors.health.health import HealthDetector
from tests.agent.training_node import TrainingNode, shorten_intervals
from tests.detectors.alone import alone
from tests.fakes.nvml.control import GPU_IS_LOST, FakeNvml

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND


class DetectorReader:
    """Health detector that receives a node's frames through the fleet."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._received: queue.SimpleQueue[tuple[Layout, Frame]] = queue.SimpleQueue()
        node.add_listener(lambda layout, frame: self._received.put((layout, frame)))
        self._fleet = Fleet()
        self._look = Look(self._fleet)
        self._detector = alone(HealthDetector())
        self.events: list[NodeEvent] = []
        self.findings: list[Finding] = []

    def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Process received frames until the condition holds."""
        clock = SystemClock()
        ends = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < ends, (self.events, self.findings)
            try:
                layout, frame = self._received.get(timeout=0.5)
            except queue.Empty:
                continue
            self._fleet.observe(layout, frame, clock.monotonic_ns())
            telemetry = self._look.next(clock.wall_ns(), clock.monotonic_ns())
            self.events += telemetry.events
            self.findings += self._detector.tick(telemetry)

    def kinds(self, kind: str) -> list[EventRecord]:
        return [one.event for one in self.events if one.event.kind == kind]

    def verdicts(self) -> list[Verdict]:
        return [one for one in self.findings if isinstance(one, Verdict)]


@pytest.fixture
def site(tmp_path: Path, nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingNode]:
    shorten_intervals(monkeypatch)
    with TrainingNode(tmp_path, nvml_library, nvml) as running:
        try:
            yield running
        finally:
            nvml.reset()


def test_device_events_of_a_real_agent_become_verdicts(site: TrainingNode) -> None:
    """A node has one fault after another: XIDs, a recovery action, a lost GPU, a port in the log and in counters."""
    reader = DetectorReader(site.node)
    reader.until(lambda: len(reader._fleet.nodes) == 1)
    uuids = {dict(labels)["index"]: dict(labels)["gpu"] for labels in site.values("gangwatch_gpu_info")}

    site.nvml.push_xid(1, 31)
    site.nvml.push_xid(2, 95)
    reader.until(lambda: len(reader.kinds(XID)) == 2)
    (verdict,) = reader.verdicts()
    assert (verdict.cause, verdict.device) == (Cause.XID, uuids["2"]), "XID 31 is an error of the application"
    assert "RESET_GPU" in verdict.evidence[0].against

    site.nvml.push_event(4, 0x8000)
    site.nvml.set_field(230, 1, gpu=4)
    reader.until(lambda: len(reader.verdicts()) == 2)
    verdict = reader.verdicts()[1]
    assert (verdict.cause, verdict.device) == (Cause.XID, uuids["4"])
    assert "gpu-reset" in verdict.evidence[0].against

    site.nvml.set_gpu_code(3, GPU_IS_LOST)
    reader.until(lambda: len(reader.verdicts()) == 3)
    verdict = reader.verdicts()[2]
    assert (verdict.cause, verdict.device, verdict.node) == (Cause.LOST, uuids["3"], "n0")

    nic = site.tree.nics[0]
    since_boot = time.monotonic()
    for run in range(3):
        for state in ("Down", "Up"):
            site.tree.log(f"mlx5_core {nic.address} {nic.netdev}: Link {state.lower()}", since_boot + run)
    reader.until(lambda: len(reader.verdicts()) == 4)
    verdict = reader.verdicts()[3]
    assert (verdict.cause, verdict.device) == (Cause.LINK, f"n0/{nic.name}")

    other = site.tree.nics[5]
    interface = site.tree.root / "class" / "net" / other.netdev
    (interface / "carrier_down_count").write_text("5\n")
    reader.until(lambda: len(reader.verdicts()) == 5)
    verdict = reader.verdicts()[4]
    assert (verdict.cause, verdict.device) == (Cause.LINK, f"n0/{other.name}")
    assert "4 times" in verdict.evidence[0].against
    assert len({one.verdict_id for one in reader.verdicts()}) == 5


# --- constructed frames -----------------------------------------------------------------------------------------------

GPU_INFO = Column("gangwatch_gpu_info", (("gpu", "GPU-1"), ("pci_address", "0000:3b:00.0")))
RDMA_INFO = Column("gangwatch_rdma_device_info", (("device", "mlx5_0"), ("pci_address", "0000:5e:00.0")))
PORT_INFO = Column("gangwatch_rdma_port_info", (("device", "mlx5_0"), ("netdev", "rail0"), ("port", "1")))
CARRIERS = tuple(Column("gangwatch_network_carrier", (("device", name),)) for name in ("eth0", "rail0"))
LOST = Column("gangwatch_network_carrier_down_total", (("device", "rail0"),))


def layout(*gauges: Column, counters: tuple[Column, ...] = ()) -> Layout:
    return make_layout("n", (Tier("fast", 1.0),), gauges, counters)


def frame(made: Layout, seq: int, gauges: list[float], counters: tuple[int, ...] = (), valid: bool = True) -> Frame:
    return Frame(
        "n", "boot", "a", seq, made.layout_id, NOW + seq * SECOND, seq * SECOND, np.array([seq * SECOND]),
        np.array(gauges, np.float64), np.array(counters, np.uint64), np.full(len(counters), valid), 0, (),
    )  # fmt: skip


class Watched:
    """Device events of some nodes, with the queue of their frames."""

    def __init__(self) -> None:
        self.occurrences = Occurrences()
        self._queue = SeriesQueue(Counting(), Consumption(Trails()), self.occurrences)
        self._nodes: dict[str, NodeView] = {}

    def observe(self, made: Layout, one: Frame, continues: bool, events: Sequence[EventRecord]) -> None:
        node = self._nodes.setdefault(one.node, NodeView(one.node))
        if node._series_id != made.layout_id:
            self._queue.read(node, made, one)
        if events:
            self._queue.add_events(node, made, one, events)
        self._queue.add(node, one, continues)

    def take(self) -> tuple[NodeEvent, ...]:
        self._queue.settle()
        return self.occurrences.take()

    def forget(self, node: str) -> None:
        self._queue.settle()
        self.occurrences.forget(node)
        del self._nodes[node]


def reported(found: Watched) -> list[tuple[str, str, str]]:
    """Return the kind, entity and main word of each event."""
    return [
        (one.event.kind, one.event.entity, one.event.detail.get("action") or one.event.detail.get("state", ""))
        for one in found.take()
    ]


def test_a_port_going_down_and_up_is_reported_once_each_with_its_rdma_name() -> None:
    made = layout(RDMA_INFO, PORT_INFO, *CARRIERS, counters=(LOST,))
    found = Watched()
    course = [  # carriers of eth0 and rail0, losses of rail0
        ((1, 1), 7), ((1, 1), 7), ((0, 0), 8), ((0, 0), 8), ((np.nan, np.nan), 8), ((0, 1), 8), ((1, 1), 3),
    ]  # fmt: skip
    for seq, (carriers, losses) in enumerate(course, 1):
        found.observe(made, frame(made, seq, [1, 1, *carriers], (losses,)), seq > 1, ())
    assert reported(found) == [
        (LINK, "mlx5_0", "down"), (LINK, "mlx5_0", "lost"), (LINK, "mlx5_0", "up"),
    ], "an interface without an RDMA device is ignored; a decreasing counter counts nothing"  # fmt: skip


def test_ports_always_down_or_unknown_are_no_events() -> None:
    made = layout(RDMA_INFO, PORT_INFO, *CARRIERS, counters=(LOST,))
    found = Watched()
    found.observe(made, frame(made, 1, [1, 1, 1, 0], (5,)), False, ())
    found.observe(made, frame(made, 2, [1, 1, 1, 0], (9,), valid=False), True, ())
    found.observe(made, frame(made, 3, [1, 1, 1, 0], (9,)), False, ())
    assert reported(found) == []


def test_a_port_in_transition_is_not_down_and_an_unknown_one_keeps_its_state() -> None:
    made = layout(RDMA_INFO, Column("gangwatch_rdma_port_state", (("device", "mlx5_0"), ("port", "1"))))
    found = Watched()
    for seq, state in enumerate((4.0, 3.0, 2.0, 1.0, np.nan, 1.0, 0.0, 2.0, np.nan, 4.0), 1):
        found.observe(made, frame(made, seq, [1, state]), seq > 1, ())
    events = found.take()
    assert [(one.event.entity, one.event.detail["state"]) for one in events] == [("mlx5_0", "down"), ("mlx5_0", "up")]
    assert [one.event.time_ns for one in events] == [NOW + 4 * SECOND, NOW + 8 * SECOND]


def test_losses_are_counted_between_samples_and_implausible_increases_are_ignored() -> None:
    made = layout(RDMA_INFO, PORT_INFO, counters=(LOST,))
    found = Watched()
    for seq, losses in enumerate((7, 9, 9, 109, 109 + 101, 211), 1):
        found.observe(made, frame(made, seq, [1, 1], (losses,)), seq > 1, ())
    assert [one.event.detail["times"] for one in found.take()] == ["2", "100", "1"]
    another = layout(GPU_INFO, RDMA_INFO, PORT_INFO, counters=(LOST,))
    found.observe(another, frame(another, 7, [1, 1, 1], (213,)), True, ())
    assert [one.event.detail["times"] for one in found.take()] == ["2"], "a new layout keeps the last sample"
    found.forget("n")
    found.observe(another, frame(another, 8, [1, 1, 1], (215,)), True, ())
    assert found.take() == (), "its next frame is its first"


def test_interfaces_without_rdma_devices_count_on_nodes_that_have_none() -> None:
    made = layout(*CARRIERS)
    found = Watched()
    for seq, carriers in enumerate(((1, 1), (0, 1)), 1):
        found.observe(made, frame(made, seq, list(carriers)), seq > 1, ())
    assert reported(found) == [(LINK, "eth0", "down")]


def test_a_recovery_action_and_a_lost_gpu_are_reported_to_a_new_reader_too() -> None:
    gauges = [
        Column("gangwatch_gpu_recovery_action", (("action", action), ("gpu", "GPU-1")))
        for action in ("none", "gpu_reset", "node_reboot")
    ]
    made = layout(GPU_INFO, Column("gangwatch_gpu_up", (("gpu", "GPU-1"),)), *gauges)
    found = Watched()
    for seq, values in enumerate(([1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]), 1):
        found.observe(made, frame(made, seq, list(values)), seq > 1, ())
    assert reported(found) == [
        (DEVICE_LOST, "GPU-1", ""), (RECOVERY_ACTION, "GPU-1", "gpu-reset"), (RECOVERY_ACTION, "GPU-1", "node-reboot"),
    ]  # fmt: skip


def test_a_gpu_that_is_lost_in_the_first_frame_is_reported() -> None:
    """The frame's only monitored value is 0, as are the values of a node without frames."""
    made = layout(GPU_INFO, Column("gangwatch_gpu_up", (("gpu", "GPU-1"),)))
    found = Watched()
    for seq in (1, 2):
        found.observe(made, frame(made, seq, [1, 0]), seq > 1, ())
    assert reported(found) == [(DEVICE_LOST, "GPU-1", "")]
    found.forget("n")
    found.observe(made, frame(made, 3, [1, 0]), False, ())
    assert reported(found) == [(DEVICE_LOST, "GPU-1", "")]


def test_records_get_names_of_the_shape_and_old_records_are_left_out() -> None:
    made = layout(GPU_INFO, RDMA_INFO, PORT_INFO)
    found, at = Watched(), NOW + SECOND

    def record(kind: str, entity: str, time_ns: int = at, **detail: str) -> Record:
        return EventRecord(kind, entity, time_ns, detail)

    records = [
        record("xid", "0000:3b:00.0", code="79", action="RESTART_BM"),
        record("xid", "GPU-1", at - STALE_NS - SECOND, code="95"),
        record("gpu_lost", "0000:3b:00.0", before_start="true"),
        record("gpu_lost", "0000:3b:00.0"),
        record("gpu", "GPU-1", event="gpu_unavailable"),
        record("gpu", "GPU-1", event="recovery_action_changed"),
        record("nic_link", "0000:5e:00.0", netdev="renamed", state="Down"),
        record("nic_link", "0000:99:00.0", netdev="other", state="Down"),
        record("out_of_memory", "python"),
    ]
    found.observe(made, frame(made, 1, [1, 1, 1]), True, [one for one in records if isinstance(one, EventRecord)])
    assert reported(found) == [
        (XID, "GPU-1", "RESTART_BM"), (DEVICE_LOST, "GPU-1", ""), (DEVICE_LOST, "GPU-1", ""),
        (LINK, "mlx5_0", "down"),
    ]  # fmt: skip


def test_a_different_gpu_in_a_slot_is_a_replaced_part() -> None:
    new = Column("gangwatch_gpu_info", (("gpu", "GPU-2"), ("pci_address", "0000:3b:00.0")))
    found = Watched()
    first, none, second = layout(GPU_INFO), layout(), layout(new)
    for seq, (made, values) in enumerate(((first, [1.0]), (none, []), (second, [1.0]), (second, [1.0])), 1):
        found.observe(made, frame(made, seq, values), seq not in (1, 3), ())
    (one,) = found.take()
    assert (one.event.kind, one.event.entity, one.event.detail) == (PART_REPLACED, "GPU-1", {"gpu": "GPU-2"})


def test_the_number_of_events_is_limited() -> None:
    made = layout(GPU_INFO)
    storm = [EventRecord("xid", "GPU-1", NOW, {"code": str(n)}) for n in range(3 * Occurrences.MOST_OF_NODE)]
    found = Watched()
    found.observe(made, frame(made, 1, [1.0]), True, storm)
    kept = found.take()
    assert len(kept) == Occurrences.MOST_OF_NODE
    assert kept[-1].event.detail["code"] == str(3 * Occurrences.MOST_OF_NODE - 1), "the newest are kept"


# --- batches ----------------------------------------------------------------------------------------------------------


def course_of_three(random: np.random.Generator) -> list[tuple[Layout, Frame, bool, list[EventRecord]] | None]:
    """Return frames of three nodes with changing ports, losses, events and layouts; None: the events are taken."""
    found: list[tuple[Layout, Frame, bool, list[EventRecord]] | None] = []
    for seq in range(1, 120):
        node = f"n{random.integers(3)}"
        gauges = (RDMA_INFO, PORT_INFO, *CARRIERS) if random.random() < 0.9 else (PORT_INFO, RDMA_INFO, *CARRIERS)
        made = make_layout(node, (Tier("fast", 1.0),), gauges, (LOST,))
        one = frame(made, seq, [1, 1, *random.choice([0.0, 1.0, np.nan], 2)], (int(random.integers(3)),))
        events = [EventRecord("xid", f"gpu{seq}", NOW + seq * SECOND, {"code": "79"})] if random.random() < 0.1 else []
        found.append((made, structs.replace(one, node=node), bool(random.random() < 0.95), events))
        if random.random() < 0.1:
            found.append(None)
    return [*found, None]


@pytest.mark.parametrize("seed", range(20))
def test_frames_together_give_the_events_of_frames_alone_in_the_same_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of_three(np.random.default_rng(seed))
    results = []
    for at_once in (1, 7, 256):
        monkeypatch.setattr(series_queue, "MOST_QUEUED", at_once)
        watched = Watched()
        taken: list[tuple[NodeEvent, ...]] = []
        for one in course:
            if one is None:
                taken.append(watched.take())
            else:
                watched.observe(*one)
        assert not watched.occurrences.failed
        results.append(taken)
    assert sum(map(len, results[0])) > 20
    assert results[0] == results[1] == results[2]


def test_a_frame_that_cannot_be_processed_affects_only_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(occurrences: Occurrences, node: object, one: Frame, continues: bool, number: int) -> None:
        if one.node == "n1":
            raise KeyError("bug")
        original(occurrences, node, one, continues, number)  # type: ignore[arg-type]

    original = Occurrences._counters
    monkeypatch.setattr(Occurrences, "_counters", fails)
    found = Watched()
    for seq, losses in ((1, 3), (2, 4)):
        for node in ("n0", "n1"):
            made = make_layout(node, (Tier("fast", 1.0),), (RDMA_INFO, PORT_INFO), (LOST,))
            found.observe(made, structs.replace(frame(made, seq, [1, 1], (losses,)), node=node), seq > 1, ())
    assert [one.node for one in found.take()] == ["n0"]
    assert [node for node, _ in found.occurrences.failed] == ["n1", "n1"]
