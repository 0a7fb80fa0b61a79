"""Output of the simulated world as frames that agents send: the product's fleet accepts them."""

from __future__ import annotations

import numpy as np
import pytest

from agent.schema.catalog import BY_NAME
from agent.schema.frame import EventRecord, Frame, Layout, OpenRecord, StepRecord, check_fits
from agent.schema.wire import decode, encode_frame, encode_layout
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World
from scheduler_feedback.sim.world.outputs.device_counters import COUNTS
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit, Path, Sent
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS
from scheduler_feedback.sim.world.plan import Workload
from tests.sim.world.test_course import LENGTH, course, with_fault
from tests.sim.world.test_telemetry import NO_TCP


def column(layout: Layout, metric: str, **labels: str) -> int:
    """Return the index of a counter."""
    found = [
        index
        for index, one in enumerate(layout.counters)
        if one.metric == metric and set(labels.items()) <= set(one.labels)
    ]
    assert len(found) >= 1, (metric, labels)
    return found[0]


def by_node(sent: list[Sent]) -> dict[str, list[tuple[Layout, Frame]]]:
    found: dict[str, list[tuple[Layout, Frame]]] = {}
    for _, layout, frame in sent:
        found.setdefault(frame.node, []).append((layout, frame))
    return found


def test_every_name_and_label_is_in_the_catalogue() -> None:
    for _, layout, _ in FrameExit([course()], 1).until(2.0):
        for columns, kinds in ((layout.gauges, ("gauge", "info")), (layout.counters, ("counter",))):
            for one in columns:
                metric = BY_NAME[one.metric]
                assert metric.kind in kinds, one.metric
                assert tuple(name for name, _ in one.labels) == tuple(sorted(metric.labels)), one.metric


def test_frames_pass_the_wire_format_and_the_fleet() -> None:
    fleet = Fleet()
    for at, layout, frame in FrameExit([course()], 1).until(90.0):
        assert decode(encode_layout(layout)) == layout
        again = decode(encode_frame(frame))
        assert isinstance(again, Frame) and again.records == frame.records
        check_fits(layout, frame)
        assert fleet.observe(layout, frame, round(at * NS))
    assert fleet.records_refused == 0
    gang = fleet.gangs["j"]
    assert len(gang) == 64
    seconds = fleet.gang_step_seconds("j")
    assert seconds is not None and seconds == pytest.approx(1.8, abs=0.2)
    assert {view.name for view in fleet.nodes.values()} == {f"node-{n:05d}" for n in range(8)}


def test_counters_rise_and_hold_between_samples_of_their_tier() -> None:
    sent = by_node(list(FrameExit([course()], 1, {"rdma": 10.0, "gpu": 2.0}).until(65.0)))["node-00000"]
    layout = sent[0][0]
    values = np.array([frame.counters for _, frame in sent]).astype(np.int64)
    assert (np.diff(values, axis=0) >= 0).all()
    nic = column(layout, "gangwatch_rdma_port_transmit_bytes_total", device="mlx5_0")
    changes = np.flatnonzero(np.diff(values[:, nic]))
    assert np.diff(changes).tolist() == [10] * (len(changes) - 1)
    tier_ns = np.array([frame.tier_ns[layout.counters[nic].tier] for _, frame in sent])
    assert np.array_equal(np.flatnonzero(np.diff(tier_ns)), changes)


def test_records_contain_each_step_once_and_open_steps() -> None:
    frames = [frame for _, frame in by_node(list(FrameExit([course()], 1).until(60.0)))["node-00003"]]
    steps = [r for f in frames for r in f.records if isinstance(r, StepRecord) and r.member.rank == 24]
    assert [record.step for record in steps] == list(range(1, len(steps) + 1))
    assert all(record.wait_ns is not None and 0 <= record.wait_ns <= record.duration_ns for record in steps)
    opened = [r for r in frames[-1].records if isinstance(r, OpenRecord) and r.what == "step"]
    assert sorted(record.member.rank for record in opened) == list(range(24, 32))
    assert frames[-1].record_seq == sum(len(frame.records) for frame in frames[:-1])


def test_frames_may_be_doubled_late_restarted_or_reloaded() -> None:
    rough = Path(lost=0.1, doubled=0.2, late=0.2, restarted=0.02, reloaded=0.02)
    sent = list(FrameExit([course()], 1, path=rough).until(120.0))
    frames = [frame for _, frame in by_node(sent)["node-00000"]]
    keys = [(frame.agent_id, frame.seq) for frame in frames]
    assert len(set(keys)) < len(keys)  # doubled
    assert keys != sorted(keys)  # late
    assert len({agent for agent, _ in keys}) > 1  # restarted
    layout = sent[0][1]
    energy = column(layout, "gangwatch_nvlink_transmit_bytes_total")
    values = np.array([frame.counters[energy] for frame in sorted(frames, key=lambda f: f.wall_ns)]).astype(np.int64)
    assert (np.diff(values) < 0).any()  # reloaded
    fleet = Fleet()
    for at, one, frame in sent:
        fleet.observe(one, frame, round(at * NS))
    assert fleet.nodes["node-00000"].frames_missed + fleet.nodes["node-00000"].frames_refused > 0


def test_lost_gpu_is_absent_and_reported() -> None:
    one = course()
    one.faults.append(Fault("detachment", "j", (9,), 30.0, LENGTH))
    sent = by_node(list(FrameExit([one], 1).until(60.0)))["node-00001"]
    layout, frame = sent[-1]
    gpu = one.place.gpus[9]
    of_gpu = np.array([("gpu", gpu) in c.labels for c in layout.counters])
    assert not frame.counters_valid[of_gpu].any()
    assert frame.counters_valid[~of_gpu].all()
    events = [r.kind for _, f in sent for r in f.records if isinstance(r, EventRecord)]
    assert sorted(events) == ["device-lost", "xid"]


def test_agents_in_an_outage_send_nothing() -> None:
    one = course()
    one.faults.append(Fault("agent-loss", "j", tuple(range(8, 16)), 20.0, 100.0))
    late = [frame.node for at, _, frame in FrameExit([one], 1).until(60.0) if at > 21.0]
    assert "node-00001" not in late and "node-00002" in late


def test_a_slow_link_shows_in_the_frames_counters() -> None:
    one = course()
    with_fault(one, "nic-errors")
    sent = by_node(list(FrameExit([one], 1).until(260.0)))["node-00001"]
    layout = sent[0][0]
    errors = [column(layout, "gangwatch_rdma_physical_symbol_errors_total", device=f"mlx5_{n}") for n in range(8)]
    rise = sent[-1][1].counters[errors].astype(np.int64) - sent[150][1].counters[errors].astype(np.int64)
    assert int(rise.argmax()) == 1
    assert rise[1] > 1000 > 10 * np.delete(rise, 1).max()


def test_frames_contain_every_input_of_the_detectors() -> None:
    """Compare with the fast output, which skips the frames: an evaluation must not give detectors any other input."""
    fleet = Fleet()
    for at, layout, frame in FrameExit([course(workload="long-context")], 1).until(30.0):
        fleet.observe(layout, frame, round(at * NS))
    live = Look(fleet).next(WALL_START_NS + 30 * NS)
    fast = World([course(workload="long-context")], 1, 1.0, PERFECT).tick(30.0)

    def filled(part: object) -> set[str]:
        return {name for name in part.__dataclass_fields__ if getattr(part, name) is not None}  # type: ignore[attr-defined]

    (mine,), (theirs,) = live.jobs, fast.jobs
    assert set(theirs.shape.sharing) - set(mine.shape.sharing) == {"uplink"}, "the fabric comes from a file"
    both = ((fast, live), (theirs, mine), (theirs.shape, mine.shape), (theirs.steps, mine.steps))
    for at_once, in_turn in (*both, (fast.counters, live.counters)):
        missing = filled(at_once) - filled(in_turn)
        assert missing <= {"lag_seconds"}, "the lag exists only for jobs without reported steps"
    for name in ("data", "stage", "tensor", "rail"):
        assert np.array_equal(mine.shape.coordinate(name), theirs.shape.coordinate(name)), name


@pytest.mark.parametrize(("workload", "squares"), [("long-context", True), ("balanced", False)])
def test_frames_contain_tokens_and_squares(workload: Workload, squares: bool) -> None:
    fleet = Fleet()
    for at, layout, frame in FrameExit([course(workload=workload)], 1).until(60.0):
        fleet.observe(layout, frame, round(at * NS))
    (job,) = Look(fleet).next(WALL_START_NS + 60 * NS).jobs
    (fast,) = World([course(workload=workload)], 1, 1.0, PERFECT).tick(60.0).jobs
    assert job.steps is not None and fast.steps is not None
    both, here, there = np.intersect1d(job.steps.number, fast.steps.number, return_indices=True)
    assert len(both) > 5
    for name in ("tokens", "squares"):
        mine, theirs = getattr(job.steps, name), getattr(fast.steps, name)
        assert (mine is None) is (theirs is None) is (name == "squares" and not squares), name
        if mine is not None:
            assert mine[here] == pytest.approx(theirs[there], rel=1e-3), name


def test_frames_give_the_same_features_as_the_fast_exit() -> None:
    seconds = 60.0
    fleet = Fleet()
    look, found = Look(fleet), []
    due = 0.0
    for at, layout, frame in FrameExit([course()], 1).until(seconds):
        while due + 10.0 <= at:
            due += 10.0
            found.append(look.next(WALL_START_NS + round(due * NS)))
        fleet.observe(layout, frame, round(at * NS))
    found.append(look.next(WALL_START_NS + round(seconds * NS)))
    fast = [World([course()], 1, 1.0, PERFECT).tick(seconds)]
    values = np.concatenate([t.counters.values for t in found if t.counters.values.shape[2] == 64], axis=1)
    for feature in FEATURES:
        if feature.name in NO_TCP:
            continue
        mine = values[FEATURE[feature.name]]
        theirs = fast[0].counters.values[FEATURE[feature.name], 5:]
        assert np.isfinite(mine).any(), feature.name
        # Each meter draws its own rates of rare errors for the whole job; all other values come from the same world.
        if feature.name not in COUNTS and np.nanmean(theirs) > 1e-2:
            assert np.nanmean(mine) == pytest.approx(np.nanmean(theirs), rel=0.25), feature.name
