"""Simulated telemetry: rates are consistent, lost samples occur as in reality, and no value reveals the fault."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import DEVICE_LOST, FEATURE, FEATURES, LINK, XID, Telemetry
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, ROUGH, Delivery, World
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS
from scheduler_feedback.sim.world.physics.step_timing import local_replicas
from tests.sim.world.test_course import LENGTH, ONSET, course, with_fault

NO_TCP = frozenset({"tcp_bytes", "tcp_busy", "transmit_queue"})
"""Features that simulated jobs lack: they communicate over RDMA."""


def observed(world: World, seconds: float, tick: float = 10.0) -> list[Telemetry]:
    return [world.tick(tick) for _ in range(round(seconds / tick))]


def feature(stream: list[Telemetry], name: str) -> np.ndarray:
    """Return the feature's values: [windows, ranks]."""
    return np.concatenate([t.counters.values[FEATURE[name]] for t in stream])


@pytest.mark.parametrize("sampling", [1.0, 10.0, 30.0])
def test_bytes_equal_those_of_the_steps(sampling: float) -> None:
    one = course(seconds=3.0)
    stream = observed(World([one], 1, sampling, PERFECT), 900.0, 30.0)
    made = one.plan
    end = np.concatenate([b.end for t in [0] for b in one.blocks])
    steps_a_second = 1.0 / np.median(np.diff(end))
    replicas = 2.0 * (made.data - 1) / made.data * made.data_bytes / local_replicas(made)
    stage = made.coordinates()[0]
    hops = (stage > 0).astype(float) + (stage < made.stages - 1)
    expected = 1.02 * steps_a_second * (replicas + made.stage_bytes * made.microbatches * hops)
    sent = np.nanmean(feature(stream, "nic_transmit_bytes"), axis=0)
    assert sent == pytest.approx(expected, rel=0.03)


def test_a_window_contains_only_its_own_phase() -> None:
    # A step of 20 s, sampled every second: the NIC is idle during compute and busy during the gradient exchange.
    one = course(seconds=20.0)
    sent = feature(observed(World([one], 1, 1.0, PERFECT), 300.0), "nic_transmit_bytes")[30:, 0]
    assert sent.max() > 5 * np.median(sent)


def test_every_feature_of_a_healthy_job_is_present_and_in_range() -> None:
    stream = observed(World([course()], 1, 10.0, PERFECT), 600.0)
    for one in FEATURES:
        values = feature(stream, one.name)[2:]
        if one.name in NO_TCP:
            assert np.isnan(values).all(), one.name
            continue
        assert np.isfinite(values).all(), one.name
        assert (values >= 0).all(), one.name
    for name in ("sm_active", "tensor_active", "dram_active", "cpu_waiting", "thermal_throttle", "pcie_link"):
        assert feature(stream, name)[2:].max() <= 1.05, name
    assert 1.5e9 < np.median(feature(stream, "sm_clock")[2:]) <= 1.98e9
    assert 200 < np.median(feature(stream, "power")[2:]) < 720
    assert feature(stream, "nvlink_errors")[2:].max() == 0


def test_fault_counters_are_on_the_faulty_ranks() -> None:
    for disorder, name in (
        ("nvlink", "nvlink_errors"),
        ("pcie", "nic_pause_sent"),
        ("nic-errors", "nic_physical_errors"),
        ("memory-errors", "memory_errors"),
        ("thermal", "thermal_throttle"),
    ):
        one = course()
        with_fault(one, disorder)
        values = feature(observed(World([one], 1, 10.0, PERFECT), ONSET + LENGTH), name)
        inside = values[int(ONSET + 100) // 10 :].mean(axis=0)
        assert int(inside.argmax()) == 9, disorder
        assert values[2 : int(ONSET) // 10 - 2, 9].max() < 0.1 * inside[9], disorder


def test_steps_arrive_once_in_order_and_add_up() -> None:
    one = course()
    stream = observed(World([one], 1, 10.0, PERFECT), 600.0)
    tables = [t.jobs[0].steps for t in stream]
    numbers = np.concatenate([table.number for table in tables if table is not None])
    assert numbers.tolist() == list(range(1, len(numbers) + 1))
    for table in tables:
        assert table is not None
        assert (table.wait_seconds <= table.seconds).all()
        assert (table.wait_seconds >= 0).all()
    seconds = np.concatenate([table.seconds for table in tables if table is not None])
    end = (tables[-1].end_ns[-1, 0] - WALL_START_NS) / NS  # type: ignore[union-attr]
    assert seconds.sum(axis=0) == pytest.approx(np.full(64, end), abs=0.1)


def test_no_event_is_reported_before_it_happens() -> None:
    world = World([course()], 1, 1.0, ROUGH)
    for _ in range(60):
        telemetry = world.tick(5.0)
        assert (telemetry.counters.at_ns <= telemetry.now_ns).all()
        steps = telemetry.jobs[0].steps
        assert steps is None or len(steps) == 0 or steps.end_ns.max() <= telemetry.now_ns


def test_lost_values_are_absent_not_zero() -> None:
    rough = Delivery(missing=0.2, late=0.1, reset=0.05, lost=0.2, held=0.0, silent_per_day=0.0)
    stream = observed(World([course()], 1, 10.0, rough), 900.0)
    power, sent = feature(stream, "power")[2:], feature(stream, "nic_transmit_bytes")[2:]
    assert np.isnan(power).mean() == pytest.approx(0.3, abs=0.06)
    assert np.isnan(sent).mean() > np.isnan(power).mean()  # a restarted counter has no rate; a gauge keeps its value
    assert np.nanmin(power) > 50
    seconds = np.concatenate([t.jobs[0].steps.seconds for t in stream])  # type: ignore[union-attr]
    assert np.isnan(seconds).mean() == pytest.approx(0.2, abs=0.03)


def test_agents_in_an_outage_are_not_received() -> None:
    one = course(gpus=256, seconds=2.0)
    lost = tuple(range(64))
    one.faults.append(Fault("mass-loss", "j", lost, ONSET, LENGTH))
    stream = observed(World([one], 1, 10.0, PERFECT), ONSET + 120.0)
    last = stream[-1]
    silent = [node for node, at in last.last_received_ns.items() if last.now_ns - at > 60 * NS]
    assert sorted(silent) == [f"node-{n:05d}" for n in range(8)]
    assert np.isnan(last.counters.values[FEATURE["power"]][:, :64]).all()
    assert np.isfinite(last.counters.values[FEATURE["power"]][:, 64:]).all()
    steps = [t.jobs[0].steps for t in stream[-6:]]
    assert all(s is None or np.isnan(s.seconds[:, :64]).all() for s in steps)


def test_a_hang_shows_the_rank_that_did_not_arrive() -> None:
    for disorder, absent in (("hang-compute", [9]), ("hang-transport", [])):
        one = course()
        one.faults.append(Fault(disorder, "j", (9,), ONSET, LENGTH))
        last = observed(World([one], 1, 10.0, PERFECT), ONSET + 200.0)[-1].jobs[0]
        assert last.open_steps is not None and last.open_collectives is not None
        number = last.open_steps[0, 0]
        assert (last.open_steps[:, 0] == number).all()
        assert np.flatnonzero(last.open_collectives[:, 0] != number).tolist() == absent


def test_events_are_reported_once_on_their_node() -> None:
    one = course()
    with_fault(one, "nic-flap")
    events = [
        e for t in observed(World([one], 1, 10.0, PERFECT), ONSET + LENGTH) for e in t.events if e.event.kind == LINK
    ]
    assert {event.node for event in events} == {"node-00001"}
    assert {event.event.entity for event in events} == {"mlx5_1"}
    times = [event.event.time_ns for event in events]
    assert len(times) == len(set(times)) >= 20
    one = course()
    one.faults.append(Fault("detachment", "j", (9,), ONSET, LENGTH))
    stream = observed(World([one], 1, 10.0, PERFECT), ONSET + 100.0)
    kinds = [(e.event.kind, e.event.detail.get("code", "")) for t in stream for e in t.events if e.node == "node-00001"]
    assert (XID, "79") in kinds and (DEVICE_LOST, "") in kinds
    assert np.isnan(stream[-1].counters.values[FEATURE["power"]][:, 9]).all()
    assert np.isfinite(stream[-1].counters.values[FEATURE["nic_transmit_bytes"]][:, 9]).all()


def test_jobs_that_share_a_nic_or_a_host_read_the_same_counter() -> None:
    jobs = [
        Course(
            plan.make(name, 16, "balanced", 2.0, np.random.default_rng(1), per_node=4),
            clos_fabric.place(np.arange(4), 16, spots, shared=2),
            np.random.default_rng(seed),
        )
        for name, spots, seed in (("a", (0, 2, 4, 6), 1), ("b", (1, 3, 5, 7), 2))
    ]
    values = World(jobs, 1, 10.0, PERFECT).tick(100.0).counters.values
    for name in ("nic_transmit_bytes", "cpu_waiting"):
        assert np.array_equal(values[FEATURE[name], 2:, :16], values[FEATURE[name], 2:, 16:]), name
    assert not np.array_equal(values[FEATURE["power"], 2:, :16], values[FEATURE["power"], 2:, 16:])


def test_telemetry_follows_starting_and_ending_jobs() -> None:
    early, late = course(), course(gpus=16)
    late.plan = plan.make("k", 16, "balanced", 1.0, np.random.default_rng(1))
    late = Course(late.plan, clos_fabric.place(np.arange(40, 42), 16), np.random.default_rng(1), begin=100.0)
    early.finish = 200.0
    world = World([early, late], 1, 10.0, PERFECT)
    present = [tuple(job.shape.job for job in world.tick(10.0).jobs) for _ in range(30)]
    assert present[0] == ("j",)
    assert present[15] == ("j", "k")
    assert present[-1] == ("k",)


def test_time_without_waiting_is_computing_or_stall() -> None:
    one = course()
    world = World([one], 1, 10.0, PERFECT)
    kernels: dict[int, np.ndarray] = {}
    for _ in range(20):
        steps = world.tick(10.0).jobs[0].steps
        for block in one.blocks:
            own = block.kernels + block.stall + block.pause[:, None]
            kernels |= {block.first + row: own[row] for row in range(len(block))}
        assert steps is not None
        for row, number in enumerate(steps.number.tolist()):
            own = steps.seconds[row] - steps.wait_seconds[row]
            assert own == pytest.approx(kernels[number], abs=0.02)


def test_windows_close_on_time_at_any_tick_length() -> None:
    stream = observed(World([course()], 1, 30.0, PERFECT), 300.0, 5.0)
    assert [len(one.counters.at_ns) for one in stream] == ([0] * 5 + [1]) * 10
    ends = np.concatenate([one.counters.at_ns for one in stream])
    assert ((ends - WALL_START_NS) // NS).tolist() == list(range(30, 301, 30))


def test_replicas_with_longer_documents_report_more_tokens() -> None:
    one = course()
    with_fault(one, "sequence-imbalance", severity=0.3)
    stream = observed(World([one], 1, 10.0, PERFECT), ONSET + LENGTH)
    tables = [table for tick in stream if (table := tick.jobs[0].steps) is not None and len(table)]
    tokens = np.concatenate([table.tokens for table in tables if table.tokens is not None])
    own = np.concatenate([table.seconds - table.wait_seconds for table in tables])
    ends = np.concatenate([table.end_ns[:, 0] for table in tables])
    during = (ends - WALL_START_NS) / NS > ONSET + 30.0
    before = (ends - WALL_START_NS) / NS < ONSET
    assert np.ptp(tokens[before]) == 0.0
    assert tokens[during].std() > 0.05 * tokens.mean()
    slower, longer = own[during] / np.median(own[before], axis=0), tokens[during] / tokens[before].mean(axis=0)
    assert np.median(np.abs(slower - longer)) < 0.02
