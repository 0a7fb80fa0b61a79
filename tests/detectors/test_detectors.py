"""Hang, health and interference detectors, counter statistics and groups, on constructed telemetry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.frame import EventRecord
from scheduler_feedback.core.telemetry.telemetry import (
    DEVICE_LOST,
    FEATURE,
    FEATURES,
    LINK,
    PART_REPLACED,
    RECOVERY_ACTION,
    XID,
    Counters,
    Grouping,
    JobTelemetry,
    NodeEvent,
    Shape,
    StepTable,
    Telemetry,
)
from scheduler_feedback.core.verdict import MASS_LOSS, Abstention, Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors import DETECTORS, Detection, Maker, make_detection
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_signatures import Priors, weigh
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.counters.fault_history import FaultHistory
from scheduler_feedback.detectors.detection import SharedState
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.interference.interference import InterferenceDetector
from scheduler_feedback.detectors.iteration.job_slowdown import SlowdownTest
from scheduler_feedback.detectors.stats.group_intersection import intersected
from scheduler_feedback.detectors.stats.group_medians import NETWORK_SIZE, group_mean, group_median
from scheduler_feedback.detectors.straggler.gang_state import rest
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone

NS = 1_000_000_000
START = 1_700_000_000 * NS


class Job:
    """Synchronous job. work(second): compute seconds of each rank; network(second): seconds of the collective."""

    def __init__(
        self,
        name: str = "j",
        ranks: int = 8,
        nodes: int = 4,
        step_seconds: float = 1.0,
        sharing: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        index = np.arange(ranks)
        self.shape = Shape(
            name, 1, index, tuple(f"{name}-n{r * nodes // ranks}" for r in index.tolist()),
            tuple(f"GPU-{name}-{r}" for r in index.tolist()), tuple(f"{name}/mlx5_{r}" for r in index.tolist()),
            sharing=sharing or {},
        )  # fmt: skip
        self.step_seconds, self.number, self.last_ns = step_seconds, 0, START
        self.work: Callable[[float], np.ndarray] = lambda second: np.full(ranks, 0.7 * step_seconds)
        self.network: Callable[[float], float] = lambda second: 0.3 * step_seconds
        self.sends: Callable[[float], float] = lambda second: 1e9
        self.hung_from = float("inf")
        self.inside = np.ones(ranks, np.bool_)
        self.feature: dict[str, Callable[[float], np.ndarray]] = {}

    def look(self, second: float, random: np.random.Generator) -> JobTelemetry:
        now = START + round(second * NS)
        rows: list[tuple[int, np.ndarray, float]] = []
        while True:
            at = (self.last_ns - START) / NS
            own = self.work(at) * random.normal(1.0, 0.01, len(self.shape))
            lasts = float(own.max()) + self.network(at) * float(random.normal(1.0, 0.01))
            if self.last_ns + round(lasts * NS) > now or at + lasts > self.hung_from:
                break
            self.last_ns += round(lasts * NS)
            self.number += 1
            rows.append((self.last_ns, own, lasts))
        count = len(self.shape)
        own = np.array([row[1] for row in rows]).reshape(-1, count)
        seconds = np.repeat(np.array([row[2] for row in rows])[:, None], count, axis=1)
        table = StepTable(
            np.arange(self.number - len(rows), self.number),
            np.repeat(np.array([row[0] for row in rows], np.int64)[:, None], count, axis=1), seconds, seconds - own,
        )  # fmt: skip
        opened = np.where(self.inside, self.number, -1)
        seen = np.where(self.inside, now, -1)
        collectives = np.stack([opened, np.where(self.inside, self.last_ns, -1), seen], axis=1).astype(np.int64)
        return JobTelemetry(self.shape, table, None, collectives)

    def values(self, second: float, random: np.random.Generator) -> np.ndarray:
        values = np.ones((len(FEATURES), len(self.shape)))
        first = FEATURE["tcp_bytes"]  # the job has no traffic over TCP
        values[:first] = np.abs(random.normal(1.0, 0.01, (first, len(self.shape))))
        values[first:] = np.nan
        values[[FEATURE[f.name] for f in FEATURES if f.unit == "1/s"]] = 0.0
        for name in ("thermal_throttle", "power_throttle", "cpu_waiting", "io_waiting", "runqueue_wait"):
            values[FEATURE[name]] = 0.0
        values[FEATURE["nic_transmit_bytes"]] = self.sends(second) * random.normal(1.0, 0.02, len(self.shape))
        for name, make in self.feature.items():
            values[FEATURE[name]] = make(second)
        return values


def course(
    detectors: Detection,
    jobs: list[Job],
    seconds: int,
    events: dict[int, list[NodeEvent]] | None = None,
    silent: Callable[[int], set[str]] = lambda second: set(),
    seed: int = 1,
    first: int = 1,
) -> list[tuple[int, Finding]]:
    """Return (second, detector result) of a run with one tick a second."""
    random = np.random.default_rng(seed)
    found: list[tuple[int, Finding]] = []
    sent: dict[str, int] = {}
    for second in range(first, first + seconds):
        now = START + second * NS
        looks = tuple(job.look(second, random) for job in jobs)
        values = np.concatenate([job.values(second, random) for job in jobs], axis=1).astype(np.float32)
        for job in jobs:
            sent |= {node: now for node in job.shape.nodes if node not in silent(second)}
        reported = tuple((events or {}).get(second, ()))
        telemetry = Telemetry(now, looks, Counters(np.array([now]), 1.0, values[:, None]), reported, dict(sent))
        found += [(second, finding) for finding in detectors.tick(telemetry)]
    return found


def verdicts(found: list[tuple[int, Finding]]) -> list[Verdict]:
    return [one for _, one in found if isinstance(one, Verdict)]


def gone_after(second: int, *nodes: str) -> Callable[[int], set[str]]:
    return lambda now: set(nodes) if now > second else set()


def event(node: str, kind: str, entity: str, **detail: str) -> NodeEvent:
    return NodeEvent(node, EventRecord(kind, entity, START, detail))


# --- hang -------------------------------------------------------------------------------------------------------------


def test_a_rank_that_never_arrived_is_the_culprit() -> None:
    job = Job()
    job.hung_from = 60.0
    job.inside[5] = False
    found = course(alone(HangDetector()), [job], 160)
    (verdict,) = verdicts(found)
    assert (verdict.kind, verdict.rank, verdict.cause) == (Kind.HANG, 5, Cause.NEVER_ARRIVED)
    assert verdict.device == "GPU-j-5"
    assert 60 + 40 <= found[0][0] <= 60 + 60


def test_if_all_ranks_arrived_the_failing_port_is_accused() -> None:
    job = Job()
    job.hung_from = 60.0
    (reported,) = [one for _, one in course(alone(HangDetector()), [job], 160)]
    assert isinstance(reported, Abstention)
    assert "transport" in reported.reason
    failing = Job()
    failing.hung_from = 60.0
    failing.feature["nic_sequence_errors"] = lambda second: np.where(np.arange(8) == 3, 200.0 * (second > 50), 0.0)
    (verdict,) = verdicts(course(alone(HangDetector()), [failing], 160))
    assert (verdict.rank, verdict.cause, verdict.device) == (3, Cause.NIC, "j/mlx5_3")


def test_a_pause_without_waiting_ranks_is_no_hang_and_steps_clear_a_hang() -> None:
    paused = Job()
    paused.hung_from = 60.0
    paused.inside[:] = False
    assert course(alone(HangDetector()), [paused], 200) == []
    detector, job = alone(HangDetector()), Job()
    job.hung_from = 60.0
    job.inside[2] = False
    assert verdicts(course(detector, [job], 130))
    job.hung_from = float("inf")
    job.last_ns = START + 130 * NS
    reported = [one for _, one in course(detector, [job], 20, first=131)]
    assert [type(one) for one in reported] == [Cleared]


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "acts"), [(13, False), (31, False), (43, False), (14, False), (95, True), (119, True)]
)
def test_an_xid_accuses_only_if_nvidia_asks_for_a_reset(code: int, acts: bool) -> None:
    found = verdicts(
        course(alone(HealthDetector()), [Job()], 40, {30: [event("j-n1", XID, "GPU-j-3", code=str(code))]})
    )
    assert [(one.kind, one.device, one.rank) for one in found] == ([(Kind.HEALTH, "GPU-j-3", 3)] if acts else [])


def test_recovery_actions_and_lost_devices_accuse_and_a_new_part_clears() -> None:
    events = {
        20: [event("j-n0", RECOVERY_ACTION, "GPU-j-0", action="none"), event("j-n0", XID, "GPU-j-0", code="x")],
        30: [event("j-n1", RECOVERY_ACTION, "GPU-j-2", action="drain-and-reset")],
        40: [event("j-n2", DEVICE_LOST, "GPU-j-5")],
        50: [event("j-n1", PART_REPLACED, "GPU-j-2")],
    }
    found = course(alone(HealthDetector()), [Job()], 60, events)
    assert [(at, one.device) for at, one in found if isinstance(one, Verdict)] == [(30, "GPU-j-2"), (40, "GPU-j-5")]
    assert [at for at, one in found if isinstance(one, Cleared)] == [50]


def test_a_flapping_link_is_reported_once_and_a_retrained_link_is_not() -> None:
    def flaps(*seconds: int) -> dict[int, list[NodeEvent]]:
        return {at + off: [event("j-n1", LINK, "mlx5_3", state=state)] for at in seconds
                for off, state in ((0, "down"), (2, "up"))}  # fmt: skip

    assert not verdicts(course(alone(HealthDetector()), [Job()], 100, flaps(30)))
    found = verdicts(course(alone(HealthDetector()), [Job()], 300, flaps(*range(30, 280, 20))))
    assert [(one.cause, one.device) for one in found] == [(Cause.LINK, "j-n1/mlx5_3")]
    down = {30: [event("j-n1", LINK, "mlx5_3", state="down")]}
    assert [at for at, one in course(alone(HealthDetector()), [Job()], 60, down)] == [35]


def test_a_stale_agent_needs_a_second_source_of_evidence() -> None:
    silent = gone_after(50, "j-n2")
    assert not course(alone(HealthDetector()), [Job(ranks=64, nodes=64)], 150, silent=silent)
    job = Job(ranks=64, nodes=64)
    job.hung_from = 50.0
    (verdict,) = verdicts(course(alone(HealthDetector()), [job], 150, silent=silent))
    assert (verdict.node, verdict.cause, verdict.level) == ("j-n2", Cause.LOST, "node")


def test_an_agent_stale_during_a_hang_does_not_mean_a_lost_node() -> None:
    """The job stopped before its agent became stale, so the two are independent."""
    job = Job(ranks=64, nodes=64)
    job.hung_from = 50.0
    assert not verdicts(course(alone(HealthDetector()), [job], 200, silent=gone_after(80, "j-n2")))


@pytest.mark.parametrize(("replicas", "rank"), [(64, 41), (2, None)])
def test_a_reporting_absent_rank_is_at_fault_and_not_a_stale_one(replicas: int, rank: int | None) -> None:
    """Exception: a rank in the stale rank's own replica may wait for data from it."""
    job = Job(ranks=64, nodes=32)
    job.shape = replace(
        job.shape, data=np.arange(64) % replicas, stage=np.arange(64) // replicas, tensor=np.zeros(64, int)
    )
    job.hung_from = 50.0
    job.inside[[4, 5, 41]] = False  # the first two on the stale node
    found = course(Detection((HealthDetector(), HangDetector())), [job], 200, silent=gone_after(48, "j-n2"))
    reported = {(verdict.kind, verdict.node) for verdict in verdicts(found)}
    if rank is None:
        assert (Kind.HEALTH, "j-n2") in reported
    else:
        assert reported == {(Kind.HANG, job.shape.nodes[rank])}


class LateRecords(Job):
    """Job that continues, but whose step records are missing from second 50 on."""

    def look(self, second: float, random: np.random.Generator) -> JobTelemetry:
        sent = super().look(second, random)
        return sent if second <= 50 or sent.steps is None else replace(sent, steps=rest(sent.steps, len(sent.steps)))


def test_a_stale_agent_with_late_records_is_no_lost_node_while_collectives_go_on() -> None:
    assert not verdicts(course(alone(HealthDetector()), [LateRecords()], 200, silent=gone_after(50, "j-n2")))


def test_many_agents_lost_at_once_freeze_and_page_once() -> None:
    job = Job(ranks=64, nodes=64)
    job.hung_from = 50.0
    silent = gone_after(50, *(f"j-n{i}" for i in range(12)))
    found = [one for _, one in course(alone(HealthDetector()), [job], 200, silent=silent)]
    assert isinstance(found[0], Abstention)
    assert found[0].detector == MASS_LOSS
    assert len([one for one in found if isinstance(one, Abstention)]) == 1
    assert not [one for one in found[:1] if isinstance(one, Verdict)]


def test_errors_accuse_a_port_only_if_the_job_is_slower() -> None:
    def failing(slower: bool) -> Job:
        job = Job()
        job.feature["nic_physical_errors"] = lambda second: np.where(np.arange(8) == 6, 50.0 * (second > 80), 0.0)
        job.network = lambda second: 0.6 if slower and second > 80 else 0.3
        return job

    (verdict,) = verdicts(course(alone(HealthDetector()), [failing(True)], 140))
    assert (verdict.kind, verdict.cause, verdict.device, verdict.level) == (Kind.HEALTH, Cause.NIC, "j/mlx5_6", "nic")
    assert any(item.measure == "nic_physical_errors" and item.value == 50.0 for item in verdict.evidence)
    assert not verdicts(course(alone(HealthDetector()), [failing(False)], 140))


# --- interference -----------------------------------------------------------------------------------------------------

UPLINK: dict[str, tuple[str, ...]] = {"uplink": ("leaf-0",) * 8}
HOST: dict[str, tuple[str, ...]] = {"host": ("host-0", "host-0", *(f"host-{n}" for n in range(1, 7)))}


def neighbours(sharing: dict[str, tuple[str, ...]], disturbs: bool = True) -> list[Job]:
    """Return a victim, a neighbour whose bursts slow it down, and a neighbour with independent bursts."""
    victim, loud, other = Job("victim", sharing=sharing), Job("loud", sharing=sharing), Job("other", sharing=sharing)

    def busy(second: float) -> bool:
        return int(second) % 50 > 30 and second > 100

    loud.sends = lambda second: 9e9 if busy(second) else 1e9
    other.sends = lambda second: 9e9 if int(second) % 37 > 20 else 1e9
    if disturbs:
        victim.network = lambda second: 0.6 if busy(second) else 0.3
    return [victim, loud, other]


def test_an_interfering_neighbour_is_reported_and_no_rank_is_accused() -> None:
    found = verdicts(course(make_detection(), neighbours(UPLINK), 320))
    assert {(one.kind, one.gang, one.aggressor, one.rank) for one in found} == {
        (Kind.INTERFERENCE, "victim", "loud", -1)
    }
    assert found[0].resource == "uplink:leaf-0"
    assert found[0].node == ""


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_neighbour_with_the_higher_correlation_is_reported(names: tuple[str, str]) -> None:
    """Independent of the jobs' names and order."""
    culprit, rival = names
    victim, loud, like = Job("victim", sharing=UPLINK), Job(culprit, sharing=UPLINK), Job(rival, sharing=UPLINK)

    def busy(second: float) -> bool:
        return int(second) % 50 > 30 and second > 100

    loud.sends = lambda second: 9e9 if busy(second) else 1e9
    like.sends = lambda second: (9e9 if int(second) % 3 else 5e9) if busy(second) else 1e9
    victim.network = lambda second: 0.6 if busy(second) else 0.3
    for jobs in ([victim, loud, like], [like, loud, victim]):
        for job in jobs:
            job.number, job.last_ns = 0, START
        found = verdicts(course(alone(InterferenceDetector()), jobs, 400))
        assert [(one.gang, one.aggressor) for one in found if one.gang == "victim"] == [("victim", culprit)]
        assert found[0].suspects == (f"job:{rival}",), "the other one is listed, so there was a choice"


@pytest.mark.parametrize("seed", [1, 2, 3, 10, 13])  # before LEAST_LEAD, one was reported with all but the first
def test_of_two_neighbours_with_the_same_bursts_none_is_reported(seed: int) -> None:
    jobs = neighbours(UPLINK)
    jobs.append(Job("same", sharing=UPLINK))
    jobs[-1].sends = jobs[1].sends
    found = [one for _, one in course(alone(InterferenceDetector()), jobs, 400, seed=seed)]
    assert not [one for one in found if isinstance(one, Verdict)]
    (note,) = [one for one in found if isinstance(one, Abstention) and one.gang == "victim"]
    assert "jobs loud, same" in note.reason, "it is reported once, with both names"


@pytest.mark.parametrize("seed", range(4))
def test_harmless_neighbours_are_not_reported(seed: int) -> None:
    assert not verdicts(course(make_detection(), neighbours(UPLINK, disturbs=False), 250, seed=seed))


@pytest.mark.parametrize(("waits", "reported"), [(0.3, True), (0.1, False), (0.0, False), (np.nan, True)])
def test_without_long_cpu_waits_there_is_no_host_interference(waits: float, reported: bool) -> None:
    """Compute time and a neighbour's load correlate by chance now and then. A rank that lost a fifth of its time to
    the neighbour must have waited for a CPU that long."""
    victim, loud = jobs = [Job("victim", sharing=HOST), Job("loud", sharing=HOST)]

    def busy(second: float) -> bool:
        return int(second) % 50 > 30 and second > 100

    victim.work = lambda second: np.where(np.arange(8) < 2, 0.95 if busy(second) else 0.7, 0.7)
    loud.feature["processor"] = lambda second: np.full(8, 12.0 if busy(second) else 1.0)
    for job in jobs:
        job.feature["cpu_waiting"] = lambda second: np.where(np.arange(8) < 2, waits * busy(second), 0.0)
        job.feature["runqueue_wait"] = lambda second: np.full(8, waits * 0.0)
    found = verdicts(course(alone(InterferenceDetector()), jobs, 320))
    assert [(one.gang, one.aggressor) for one in found if one.kind is Kind.INTERFERENCE] == [
        ("victim", "loud")
    ] * reported


def test_interference_is_cleared_when_the_neighbour_is_idle_and_reported_again() -> None:
    jobs = neighbours(UPLINK)
    victim, loud = jobs[0], jobs[1]
    bursts = [(110, 130), (160, 180), (210, 230), (260, 280), (600, 620), (650, 670)]

    def busy(second: float) -> bool:
        return any(first <= second < last for first, last in bursts)

    loud.sends = lambda second: 9e9 if busy(second) else 1e9
    victim.network = lambda second: 0.6 if busy(second) else 0.3
    found = [(second, type(one)) for second, one in course(alone(InterferenceDetector()), jobs, 700)]
    assert [kind for _, kind in found] == [Verdict, Cleared, Verdict]
    reported, ended, again = (second for second, _ in found)
    assert reported < 280
    assert 400 < ended < 420, "two minutes after its last burst, although twelve minutes of history are kept"
    assert 600 <= again < 670


def test_a_neighbour_with_long_pauses_keeps_its_verdict() -> None:
    jobs = neighbours(UPLINK)
    victim, loud = jobs[0], jobs[1]

    def busy(second: float) -> bool:
        return 100 < second < 500 and second % 130 < 30  # pauses of 100 s, the last burst up to 420

    loud.sends = lambda second: 9e9 if busy(second) else 1e9
    victim.network = lambda second: 0.6 if busy(second) else 0.3
    found = [(second, type(one)) for second, one in course(alone(InterferenceDetector()), jobs, 650)]
    assert [kind for _, kind in found] == [Verdict, Cleared]
    assert 619 < found[1][0] < 632


@pytest.mark.parametrize("disturbs", [True, False])
def test_bursts_within_long_steps_are_correlated_by_steps(disturbs: bool) -> None:
    """Steps last twelve windows, and bursts two windows in five, so single windows do not correlate."""
    victim, loud, other = (
        Job("victim", sharing=UPLINK, step_seconds=12.0), Job("loud", sharing=UPLINK), Job("other", sharing=UPLINK)
    )  # fmt: skip

    def more(second: float) -> bool:
        return 600 < second < 1100

    loud.sends = lambda second: (9e9 if int(second) % 5 < 2 else 0.0) * (2.0 if more(second) else 1.0)
    other.sends = lambda second: 9e9 if int(second) % 37 > 20 else 1e9
    if disturbs:
        victim.network = lambda second: 5.4 if more(second) else 3.6
    found = verdicts(course(alone(InterferenceDetector()), [victim, loud, other], 800))
    assert [(one.gang, one.aggressor) for one in found] == [("victim", "loud")] * disturbs


def test_without_a_topology_the_neighbour_is_unknown() -> None:
    jobs = neighbours({})
    jobs[0].network = lambda second: 0.3 if second < 120 else 0.6
    jobs[0].feature["nic_congestion"] = lambda second: np.full(8, 5.0 if second < 120 else 5000.0)
    found = [one for _, one in course(alone(InterferenceDetector()), jobs, 200)]
    assert [type(one) for one in found] in ([Abstention], [])
    assert not verdicts([(0, one) for one in found])


# --- counter statistics, groups, signatures, fault history, slowdown test --------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 0.3), st.integers(0, 2**32 - 1))
def test_medians_and_means_of_groups_are_correct(sizes: list[int], holes: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    of = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = random.normal(size=(3, len(of))).astype(np.float32)
    values[random.random(values.shape) < holes] = np.nan
    grouping = Grouping(of)
    median, mean = group_median(values, grouping), group_mean(values, grouping)
    assert max(sizes) <= NETWORK_SIZE or any(bucket.index.shape[1] > NETWORK_SIZE for bucket in grouping.buckets)
    for group in range(len(sizes)):
        for feature in range(3):
            members = np.sort(values[feature, of == group])
            members = members[np.isfinite(members)]
            if len(members):
                assert median[feature, group] == members[(len(members) - 1) // 2]
                assert mean[feature, group] == pytest.approx(members.mean(), abs=1e-5)
            else:
                assert np.isnan(median[feature, group])


def statistics_after(order: np.ndarray, seconds: int = 60) -> CounterStatistics:
    job = Job(ranks=12)
    job.feature["sm_clock"] = lambda second: np.where(np.arange(12) == 7, 0.8 if second > 40 else 1.0, 1.0)
    random, statistics = np.random.default_rng(3), CounterStatistics()
    for second in range(seconds):
        values = job.values(second, random).astype(np.float32)[:, order]
        telemetry = Telemetry(second, (JobTelemetry(job.shape),), Counters(np.array([second]), 1.0, values[:, None]))
        statistics.take(telemetry)
        statistics.take(telemetry)  # called twice, folded once
    return statistics


def test_permuting_ranks_permutes_the_statistics() -> None:
    order = np.random.default_rng(9).permutation(12)
    straight, mixed = statistics_after(np.arange(12)), statistics_after(order)
    assert np.allclose(straight.level[:, order], mixed.level, equal_nan=True, atol=1e-5)
    assert np.allclose(straight.score[:, order], mixed.score, atol=1e-3)
    assert int(straight.score[FEATURE["sm_clock"]].argmax()) == 7
    weighed = weigh(straight, np.arange(12), Priors())
    assert weighed.name(7) is Cause.GPU
    assert {weighed.name(rank) for rank in range(12) if rank != 7} == {Cause.UNKNOWN}


def test_missing_samples_accuse_no_rank() -> None:
    job = Job(ranks=12)
    random, statistics = np.random.default_rng(3), CounterStatistics()
    for second in range(150):
        values = job.values(second, random).astype(np.float32)
        values[random.random(values.shape) < 0.3] = np.nan
        counters = Counters(np.array([second]), 1.0, values[:, None])
        statistics.take(Telemetry(second, (JobTelemetry(job.shape),), counters))
    assert (statistics.score < 8.0).all()


def test_fault_history_follows_a_part_until_it_is_replaced() -> None:
    fault_history = FaultHistory()
    assert fault_history.weight("GPU-1", "n0") == ()
    fault_history.remember("GPU-1", "n0", Cause.MEMORY, 1)
    fault_history.remember("GPU-1", "n5", Cause.NVLINK, 2)
    (of_part, of_node) = fault_history.weight("GPU-1", "n5")
    assert of_part.log_likelihood_ratio > of_node.log_likelihood_ratio > 0
    copy = FaultHistory()
    copy.load(fault_history.dump())
    assert copy.weight("GPU-1", "") == (of_part,)
    fault_history.forget("GPU-1", "n5")
    assert fault_history.weight("GPU-1", "n5") == ()
    with pytest.raises(ValueError, match="past verdicts"):
        copy.load(b"\xc1")


def test_a_job_without_steps_is_slower_if_its_traffic_falls() -> None:
    job, random, slowdown_test = Job(), np.random.default_rng(1), SlowdownTest()
    for second in range(120):
        job.sends = lambda second: 1e9 if second < 80 else 0.7e9
        job.feature["nvlink_bytes"] = lambda second: np.full(8, 1e9 if second < 80 else 0.7e9)
        slowdown_test.take(job.values(second, random).astype(np.float32))
    assert slowdown_test.slower() == pytest.approx(1 / 0.7, rel=0.05)


def test_the_rank_in_most_slow_groups_explains_the_others() -> None:
    """Four replicas of four tensor ranks: one tensor group looks slow, and one of its data groups too."""
    index = np.arange(16)
    shape = Shape("j", 1, index, ("n",) * 16, data=index // 4, stage=np.zeros(16, np.int64), tensor=index % 4)
    slow = (index // 4 == 1) | (index % 4 == 2)
    assert intersected(slow, shape, [4, 5, 6, 7]) == [6]
    assert intersected(index // 4 == 1, shape, [4, 5, 6, 7]) == [4, 5, 6, 7], "no other group distinguishes them"
    assert intersected(index == 3, shape, [3]) == [3]


# --- all detectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", DETECTORS)
def test_every_detector_restores_only_its_own_snapshot(make: Maker) -> None:
    detector = alone(make())
    course(detector, [Job()], 30)
    make().restore(detector.snapshot())
    with pytest.raises(ValueError, match="snapshot"):
        make().restore(b"\xc1garbage")


@pytest.mark.parametrize("part", [None, *Switches.__slots__])
def test_a_slow_gpu_is_found_with_any_part_off(part: str | None) -> None:
    switches = Switches() if part is None else replace(Switches(), **{part: False})
    job = Job(ranks=16)
    job.work = lambda second: np.where(np.arange(16) == 9, 1.0 if second > 60 else 0.7, 0.7)
    job.feature["sm_clock"] = lambda second: np.where(np.arange(16) == 9, 0.7 if second > 60 else 1.0, 1.0)
    found = verdicts(course(make_detection(switches=switches), [job], 120))
    assert {(one.kind, one.rank) for one in found} == {(Kind.STRAGGLER, 9)}
    if part is None:
        assert (found[0].cause, found[0].device, found[0].level) == (Cause.GPU, "GPU-j-9", "gpu")


@pytest.mark.parametrize("seed", range(3))
def test_healthy_jobs_have_no_findings(seed: int) -> None:
    jobs = [Job("a"), Job("b", ranks=2, nodes=2), Job("c", ranks=32, nodes=4, step_seconds=3.0)]
    assert not course(make_detection(), jobs, 150, seed=seed)


def test_detectors_accept_empty_telemetry() -> None:
    nothing = Counters(np.zeros(0, np.int64), 1.0, np.zeros((len(FEATURES), 0, 0), np.float32))
    assert make_detection().tick(Telemetry(1, (), nothing)) == []


def after_windows(job: Job, first: int, seconds: int, restored: bytes = b"") -> SharedState:
    detection = Detection(())
    if restored:
        detection.shared.restore(restored)
    course(detection, [job], seconds, first=first)
    return detection.shared


def test_a_restart_during_a_fault_does_not_learn_it_as_healthy() -> None:
    """Rank 3's clock is low when the controller restarts. Only the stored baselines show that this is not usual."""
    job = Job(ranks=16)
    before = after_windows(job, 1, 60).snapshot()
    job.feature["sm_clock"] = lambda second: np.where(np.arange(16) == 3, 0.8, 1.0)
    row = FEATURE["sm_clock"]
    shared = after_windows(job, 61, 20, before)
    restored, fresh = shared.counters, after_windows(job, 61, 60).counters
    assert restored.score[row].argmax() == 3
    assert restored.score[row, 3] >= 8.0
    assert np.abs(restored.level[row, [2, 4]]).max() < 0.05
    assert np.abs(fresh.level[row, 3]) < 0.05, "the low clock was learned as healthy: the snapshot prevents this"
    SharedState().restore(shared.snapshot())


def test_baselines_are_restored_rank_by_rank_within_an_attempt() -> None:
    job = Job(ranks=16)
    before = after_windows(job, 1, 60).snapshot()
    few, all_of_them = job.shape, job.shape
    detector = Detection(())
    detector.shared.restore(before)
    statistics = detector.shared.counters
    job.shape = Shape("j", 1, few.ranks[:5], few.nodes[:5], few.gpus[:5], few.nics[:5])
    job.work = lambda second: np.full(len(job.shape), 0.7)
    job.inside = np.ones(5, np.bool_)
    course(detector, [job], 1, first=61)
    assert (statistics._taken[FEATURE["power"]] >= 30).all()
    job.shape = all_of_them
    job.inside = np.ones(16, np.bool_)
    course(detector, [job], 1, first=62)
    assert (statistics._taken[FEATURE["power"]] >= 30).all()
    job.shape = replace(all_of_them, attempt=2)
    course(detector, [job], 1, first=63)
    assert (statistics._taken[FEATURE["power"]] <= 2).all(), "another attempt may be on other devices"


def test_a_cause_found_late_is_added_to_the_active_verdict() -> None:
    """Counters that arrive every half minute show the cause long after the steps have identified the rank."""
    detectors = make_detection()
    job = Job(ranks=16)
    job.work = lambda second: np.where((np.arange(16) == 3) & (second > 60), 0.9, 0.7)
    job.feature["thermal_throttle"] = lambda second: np.where((np.arange(16) == 3) & (second > 100), 0.4, 0.0)
    job.feature["sm_clock"] = lambda second: np.where((np.arange(16) == 3) & (second > 100), 0.75, 1.0)
    before = [one for one in verdicts(course(detectors, [job], 95)) if one.kind is Kind.STRAGGLER]
    assert {(one.rank, one.cause) for one in before} == {(3, Cause.UNKNOWN)}
    later = course(detectors, [job], 60, first=96)
    *_, after = [one for one in verdicts(later) if one.kind is Kind.STRAGGLER]
    assert (after.verdict_id, after.cause) == (before[0].verdict_id, Cause.THERMAL)
    assert after.confidence >= 0.9
    assert detectors.shared.arbiter.fault_history.weight("GPU-j-3", "j-n0"), (
        "the fault is added to the history of its part"
    )
    (straggler,) = [one for one in detectors.detectors if isinstance(one, StragglerDetector)]
    fresh = StragglerDetector()
    fresh.restore(straggler.snapshot())
    assert fresh._watched["j"].active == straggler._watched["j"].active
    assert fresh._watched["j"].active[3].reported_cause


def test_fault_history_raises_confidence_until_the_part_is_replaced() -> None:
    def verdict(fault_history: FaultHistory) -> Verdict:
        detectors = make_detection()
        history = detectors.shared.arbiter.fault_history
        history.load(fault_history.dump())
        job = Job(ranks=16)
        job.work = lambda second: np.where((np.arange(16) == 3) & (second > 60), 0.9, 0.7)
        job.feature["thermal_throttle"] = lambda second: np.where((np.arange(16) == 3) & (second > 60), 0.4, 0.0)
        job.feature["sm_clock"] = lambda second: np.where((np.arange(16) == 3) & (second > 60), 0.75, 1.0)
        (first, *_) = [one for one in verdicts(course(detectors, [job], 110)) if one.kind is Kind.STRAGGLER]
        assert (first.rank, first.cause) == (3, Cause.THERMAL)
        weight = history.weight("GPU-j-3", "j-n0")
        assert weight[0].value >= 1 + sum(one.value for one in fault_history.weight("GPU-j-3", ""))
        return first

    known = FaultHistory()
    for _ in range(3):
        known.remember("GPU-j-3", "j-n0", Cause.THERMAL, START)
    blank, past = verdict(FaultHistory()), verdict(known)
    assert "past_verdicts" in {one.measure for one in past.evidence}
    assert "past_verdicts" not in {one.measure for one in blank.evidence}
    assert past.confidence >= blank.confidence
    health = alone(HealthDetector())
    health.shared.arbiter.fault_history.load(known.dump())
    course(health, [Job()], 5, {3: [event("j-n0", PART_REPLACED, "GPU-j-3", gpu="GPU-new")]})
    assert health.shared.arbiter.fault_history.weight("GPU-j-3", "j-n0") == ()
