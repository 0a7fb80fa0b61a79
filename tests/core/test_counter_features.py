"""Features of ranks from one node's frames: GPU of each rank, sums and rates; absent values stay absent."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from agent.schema.catalog import BY_NAME
from agent.schema.clock import SystemClock
from agent.schema.frame import Column, Frame, Layout, Member, StepRecord, Tier, make_layout
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.series import series_queue
from scheduler_feedback.core.telemetry.series.counter_features import Counting
from scheduler_feedback.core.telemetry.series.series_queue import SeriesQueue
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Telemetry
from scheduler_feedback.core.telemetry.telemetry_update import Look

SECOND = 1_000_000_000
UUID = "GPU-1"


def test_every_feature_uses_metrics_of_the_catalogue() -> None:
    for feature in FEATURES:
        for metric in feature.metrics:
            assert metric in BY_NAME, feature.name
            assert {name for name, _ in feature.labels} <= set(BY_NAME[metric].labels)
            assert (BY_NAME[metric].kind == "counter") is feature.rate
    assert len(FEATURE) == len(FEATURES) == 27


def layout() -> Layout:
    owner = (("attempt", "1"), ("gang", "g"), ("gpu", UUID), ("rank", "0"))
    gauges = (
        Column("gangwatch_gpu_owner_info", owner),
        Column("gangwatch_gpu_info", (("gpu", UUID), ("pci_address", "0:1"))),
        Column(
            "gangwatch_topology_rail_info",
            (("nic", "mlx5_3"), ("pci_address", "0:1"), ("rail", "3"), ("switch", "0:9")),
        ),
        Column("gangwatch_gpu_sm_clock_hertz", (("gpu", UUID),)),
        Column("gangwatch_pcie_link_generation", (("pci_address", "0:1"),)),
        Column("gangwatch_pcie_link_generation_maximum", (("pci_address", "0:1"),)),
        Column("gangwatch_pcie_link_lanes", (("pci_address", "0:1"),)),
        Column("gangwatch_pcie_link_lanes_maximum", (("pci_address", "0:1"),)),
    )
    counters = (
        Column("gangwatch_nvlink_transmit_bytes_total", (("gpu", UUID), ("link", "0"))),
        Column("gangwatch_nvlink_transmit_bytes_total", (("gpu", UUID), ("link", "1"))),
        Column("gangwatch_rdma_port_transmit_bytes_total", (("device", "mlx5_3"), ("port", "1")), tier=1),
        Column("gangwatch_gpu_throttle_seconds_total", (("gpu", UUID), ("reason", "sw_thermal"))),
        Column("gangwatch_gpu_throttle_seconds_total", (("gpu", UUID), ("reason", "power_cap"))),
    )
    return make_layout("n0", (Tier("fast", 1.0), Tier("slow", 10.0)), gauges, counters)


def frame(seq: int, counters: list[int], gauges: list[float] | None = None, slow: int = 0, agent: str = "a") -> Frame:
    wall = 1_000 * SECOND + seq * SECOND
    values = [1.0, 1.0, 1.0, 1.98e9, 5.0, 5.0, 8.0, 16.0] if gauges is None else gauges
    step = StepRecord(Member("g", 1, 0), seq, seq * SECOND - 5 * 10**8, 10**8, 10**7)
    return Frame(
        "n0", "boot", agent, seq, layout().layout_id, wall, seq * SECOND, np.array([seq * SECOND, slow * SECOND]),
        np.array(values), np.array(counters, np.uint64), np.ones(5, np.bool_), seq, (step,),
    )  # fmt: skip


def seen(*frames: Frame) -> list[Telemetry]:
    fleet = Fleet()
    reader = Look(fleet)
    found = []
    for one in frames:
        fleet.observe(layout(), one, one.wall_ns)
        found.append(reader.next(one.wall_ns))
    return found


def test_gauges_rates_sums_and_devices() -> None:
    first, second = seen(frame(1, [0, 0, 0, 0, 0], slow=1), frame(2, [400, 600, 50, 250_000_000, 500_000_000], slow=2))
    shape = second.jobs[0].shape
    assert (shape.gpus, shape.nics, shape.coordinate("rail").tolist()) == ((UUID,), ("n0/mlx5_3",), [3])
    assert shape.sharing == {"host": ("n0",), "nic": ("n0/mlx5_3",), "pcie_switch": ("n0/0:9",)}
    value = {name: float(second.counters.values[row, 0, 0]) for name, row in FEATURE.items()}
    assert value["sm_clock"] == pytest.approx(1.98e9)
    assert value["pcie_link"] == pytest.approx(0.5), "eight of sixteen lanes"
    assert value["nvlink_bytes"] == pytest.approx(1000.0)
    assert value["nic_transmit_bytes"] == pytest.approx(200.0), "the catalogue's scale: counted in words of four bytes"
    assert (value["thermal_throttle"], value["power_throttle"]) == (pytest.approx(0.25), pytest.approx(0.5))
    assert np.isnan(value["cpu_waiting"])
    rates = [row for row, feature in enumerate(FEATURES) if feature.rate]
    assert np.isnan(first.counters.values[rates]).all(), "one sample gives no rate"


def test_slow_tier_gives_one_rate_per_sample_and_nothing_between() -> None:
    frames = [frame(seq, [0, 0, 100 * (seq // 5), 0, 0], slow=5 * (seq // 5)) for seq in range(5, 16)]
    rates = [float(one.counters.values[FEATURE["nic_transmit_bytes"], 0, 0]) for one in seen(*frames)]
    assert [round(rate) for rate in rates if np.isfinite(rate)] == [80, 80]


def test_missing_reset_or_repeated_samples_give_no_rate() -> None:
    hole = frame(3, [900, 0, 0, 0, 0])
    hole.counters_valid[1] = False
    found = seen(
        frame(1, [500, 500, 0, 0, 0]), frame(2, [600, 600, 0, 0, 0]), hole, frame(4, [10, 20, 0, 0, 0]),
        frame(4, [10, 20, 0, 0, 0]), frame(5, [20, 30, 0, 0, 0]), frame(6, [30, 40, 0, 0, 0], agent="b"),
    )  # fmt: skip
    row = FEATURE["nvlink_bytes"]
    rates = [float(one.counters.values[row, 0, 0]) if one.counters.values.shape[1] else None for one in found]
    assert rates[1] == pytest.approx(200.0)
    assert rates[5] == pytest.approx(20.0)
    assert all(rates[index] is None or np.isnan(rates[index]) for index in (0, 2, 3, 4, 6))


def test_first_sample_of_a_counter_gives_no_rate() -> None:
    absent = frame(2, [600, 0, 0, 0, 0])
    absent.counters_valid[1] = False
    found = seen(
        frame(1, [500, 500, 0, 0, 0]), absent, frame(3, [700, 10**12, 0, 0, 0]), frame(4, [800, 10**12 + 50, 0, 0, 0])
    )
    rates = [float(one.counters.values[FEATURE["nvlink_bytes"], 0, 0]) for one in found]
    assert np.isnan(rates[:3]).all()
    assert rates[3] == pytest.approx(150.0)


def test_link_with_a_missing_part_has_no_share() -> None:
    whole = layout()
    changed = make_layout(whole.node, whole.tiers, whole.gauges[:-1], whole.counters)
    fleet = Fleet()
    one = structs.replace(frame(1, [0] * 5, [1.0, 1.0, 1.0, 1.98e9, 5.0, 5.0, 8.0]), layout_id=changed.layout_id)
    fleet.observe(changed, one, one.wall_ns)
    values = Look(fleet).next(one.wall_ns).counters.values
    assert np.isnan(values[FEATURE["pcie_link"]]).all()
    assert values[FEATURE["sm_clock"], 0, 0] == pytest.approx(1.98e9)
    zero = frame(1, [0] * 5, [1.0, 1.0, 1.0, 1.98e9, 5.0, 0.0, 8.0, 16.0])
    assert np.isnan(seen(zero)[0].counters.values[FEATURE["pcie_link"]]).all(), "the maximum of no values is missing"


def test_rank_with_two_gpus_uses_the_first() -> None:
    whole = layout()
    second = Column("gangwatch_gpu_owner_info", (("attempt", "1"), ("gang", "g"), ("gpu", "GPU-2"), ("rank", "0")))
    changed = make_layout(whole.node, whole.tiers, (*whole.gauges, second), whole.counters)
    counting = Counting()
    counting.read(changed)
    assert [one.gpu for one in counting.nodes["n0"].devices] == [UUID]


@pytest.mark.parametrize("together_at_most", [256, 2, 1])
def test_batch_folding_matches_folding_one_by_one(monkeypatch: pytest.MonkeyPatch, together_at_most: int) -> None:
    monkeypatch.setattr(series_queue, "MOST_QUEUED", together_at_most)
    frames = [
        frame(1, [500, 500, 0, 0, 0]), frame(2, [600, 700, 0, 0, 0]), frame(3, [10, 20, 0, 0, 0]),
        frame(4, [20, 40, 0, 0, 0], agent="b"), frame(5, [50, 80, 0, 0, 0], agent="b"),
    ]  # fmt: skip
    fleet = Fleet()
    for one in frames:
        fleet.observe(layout(), one, one.wall_ns)
    together = Look(fleet).next(frames[-1].wall_ns)
    one_by_one = seen(*frames)[-1]
    assert np.array_equal(together.counters.values, one_by_one.counters.values, equal_nan=True)
    assert float(together.counters.values[FEATURE["nvlink_bytes"], 0, 0]) == pytest.approx(70.0)


def test_newest_of_the_queued_frames_is_folded_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []
    add = SeriesQueue.add

    def added(self: SeriesQueue, node: NodeView, one: Frame, continues: bool) -> None:
        folded.append(one.seq)
        add(self, node, one, continues)

    monkeypatch.setattr(SeriesQueue, "add", added)
    watch = DetectionThread((), lambda _: None, SystemClock(), tick_seconds=3600.0)
    watch.between()
    frames = [frame(seq, [seq * 100, 0, 0, 0, 0]) for seq in (1, 2, 3, 5)]  # the fourth was lost
    frames += [frame(seq, [seq * 10, 0, 0, 0, 0], agent="b") for seq in (6, 7, 8)]
    for one in frames:
        watch.offer(layout(), one, one.wall_ns)
    watch.between()
    assert folded == [1, 5, 6, 8], "an agent's first frame only starts the counters; the last one covers all frames"
    fleet = watch._fleet
    assert fleet.gangs["g"].newest_steps().tolist() == [8], "steps are taken from every frame"
    assert (fleet.nodes["n0"].frames_missed, fleet.nodes["n0"].frames_refused) == (1, 0)
    steps = fleet.gangs["g"].completed()
    assert steps is not None and steps.number.tolist() == [1, 2, 3, 5, 6, 7, 8]
    values = Look(fleet).next(frames[-1].wall_ns).counters.values
    assert float(values[FEATURE["nvlink_bytes"], 0, 0]) == pytest.approx(10.0), "the mean over both seconds"


class _Crowd:
    """Nodes whose ranks change. Each rank has a unique clock value, which identifies its column."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.look = Look(self.fleet)
        self.seq = 0
        self.on: dict[str, tuple[Member, ...]] = {}

    @staticmethod
    def clock(member: Member) -> float:
        return 1e9 + 1e6 * int(member.gang.removeprefix("g")) + 1e5 * member.attempt + member.rank

    def second(self) -> Telemetry:
        self.seq += 1
        for node, members in self.on.items():
            gauges = []
            for place, member in enumerate(members):
                uuid = f"{node}-{place}"
                labels = {"attempt": str(member.attempt), "gang": member.gang, "gpu": uuid, "rank": str(member.rank)}
                gauges.append(Column("gangwatch_gpu_owner_info", tuple(sorted(labels.items()))))
                gauges.append(Column("gangwatch_gpu_sm_clock_hertz", (("gpu", uuid),)))
            changed = make_layout(node, (Tier("fast", 1.0),), gauges, ())
            now = self.seq * SECOND
            values = [value for member in members for value in (1.0, self.clock(member))]
            steps = tuple(StepRecord(member, self.seq, now - 5 * 10**8, 10**8, 10**7) for member in members)
            none = np.zeros(0, np.uint64)
            made = Frame(
                node, node, "a", self.seq, changed.layout_id, 1_000 * SECOND + now, now, np.array([now]),
                np.array(values), none, none.astype(np.bool_), 1 + 64 * self.seq, steps,
            )  # fmt: skip
            self.fleet.observe(changed, made, made.wall_ns)
        return self.look.next(1_000 * SECOND + self.seq * SECOND)


@pytest.mark.parametrize("seed", range(20))
def test_rank_keeps_its_column_while_others_change(seed: int) -> None:
    random = np.random.default_rng(seed)
    crowd = _Crowd()
    for _ in range(25):
        node = f"n{random.integers(6)}"
        at = int(random.integers(4))
        if random.random() < 0.2:
            crowd.fleet.forget(f"g{random.integers(4)}")
        taken = {member for there, members in crowd.on.items() if there != node for member in members}
        wanted = (
            Member(f"g{random.integers(4)}", 1 + int(random.random() < 0.1), int(random.integers(12)))
            for _ in range(at)
        )
        crowd.on[node] = tuple(dict.fromkeys(member for member in wanted if member not in taken))
        telemetry = crowd.second()
        known = {
            Member(job.shape.job, job.shape.attempt, rank)
            for job in telemetry.jobs
            for rank in job.shape.ranks.tolist()
        }
        found = 0
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            clocks = telemetry.counters.values[FEATURE["sm_clock"], 0, columns]
            for rank, clock in zip(job.shape.ranks.tolist(), clocks.tolist(), strict=True):
                if clock == clock:
                    found += 1
                    assert clock == np.float32(crowd.clock(Member(job.shape.job, job.shape.attempt, rank)))
        present = [member for members in crowd.on.values() for member in members]
        assert found == len(known.intersection(present))


def test_sampling_time_of_traffic_is_known_for_jobs_without_steps() -> None:
    fleet = Fleet()
    reader = Look(fleet)
    whole = layout()
    of_rank = Column("gangwatch_rank_cpu_seconds_total", (("attempt", "1"), ("gang", "g"), ("rank", "0")))
    changed = make_layout(whole.node, whole.tiers, whole.gauges, (*whole.counters, of_rank))
    lags = []
    for seq in (1, 2, 3):
        one = frame(seq, [0, 0, 0, 0, 0, 0])
        sampled = np.array([seq * SECOND - 300_000_000, 0])  # on the node's own clock, which is 1,000 s behind
        one = structs.replace(
            one, layout_id=changed.layout_id, tier_ns=sampled, counters_valid=np.ones(6, np.bool_), records=()
        )
        fleet.observe(changed, one, one.wall_ns)
        telemetry = reader.next(one.wall_ns + 200_000_000)
        assert [job.steps for job in telemetry.jobs] == [None]
        lags.append(telemetry.counters.lag_seconds)
    assert [lag.tolist() for lag in lags if lag is not None] == [[pytest.approx(0.5)]] * 3
    assert seen(frame(1, [0] * 5), frame(2, [0] * 5))[1].counters.lag_seconds is None, "it reports its steps"
    never = structs.replace(
        frame(4, [0] * 6), layout_id=changed.layout_id, tier_ns=np.zeros(2, np.int64),
        counters_valid=np.ones(6, np.bool_), records=(),
    )  # fmt: skip
    fleet.observe(changed, never, never.wall_ns)
    lag = reader.next(never.wall_ns + SECOND // 2).counters.lag_seconds
    assert lag is not None and np.isnan(lag).all(), "a counter that was never sampled has no age"
