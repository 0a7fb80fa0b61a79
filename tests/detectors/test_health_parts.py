"""Parts of the health detector: ports, stale agents, speeds, fault history, and verdicts from counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from agent.schema.frame import EventRecord
from scheduler_feedback.core.telemetry.telemetry import (
    DEVICE_LOST,
    LINK,
    XID,
    JobTelemetry,
    NodeEvent,
    Shape,
    StepTable,
    Telemetry,
    no_counters,
)
from scheduler_feedback.core.verdict import Abstention, Cause, Kind, Verdict
from scheduler_feedback.detectors.counters.fault_history import MOST_WEIGHT, REMEMBERED_NS, FaultHistory
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.health.job_speed import BEST_STEPS, Speed, Speeds
from scheduler_feedback.detectors.health.port_health import DAMPED_SECONDS, FLAP_SECONDS, Ports
from scheduler_feedback.detectors.health.stale_agents import MASS_SECONDS, STALE_SECONDS, StaleAgents
from tests.detectors.alone import accuse, alone
from tests.detectors.test_detectors import Job, course, event, verdicts

NS = 1_000_000_000
START = 1_700_000_000 * NS


def at(second: float) -> int:
    return START + round(second * NS)


# --- ports -----------------------------------------------------------------------------------------------------------


class FedPorts:
    """Port check of the health detector, with helpers that send it port events."""

    def __init__(self) -> None:
        self.ports = Ports()

    def receive(
        self, second: float, state: str, source: str = "kernel", entity: str = "mlx5_0", times: str = "1"
    ) -> None:
        details = {"state": state, "source": source, "times": times}
        self.ports.take(NodeEvent("n", EventRecord(LINK, entity, at(second), details)), at(second))

    def flaps(self, *seconds: float, source: str = "kernel") -> None:
        for second in seconds:
            self.receive(second, "down", source)
            self.receive(second + 2, "up", source)

    def reported(self, second: float) -> list[tuple[str, str]]:
        return [(one.device, one.level) for one in self.ports.failing(at(second))]


def test_a_port_down_for_five_seconds_is_reported() -> None:
    port = FedPorts()
    port.receive(0.0, "down")
    port.receive(3.0, "down", "carrier")  # another source reports the same flap
    assert not port.reported(4.9)
    assert port.reported(5.0) == [("n/mlx5_0", "nic")]
    assert not port.reported(6.0), "reported once"
    port.receive(7.0, "up")
    assert not port.reported(DAMPED_SECONDS + 10.0), "it is up"
    port.receive(DAMPED_SECONDS + 20.0, "down")
    assert port.reported(DAMPED_SECONDS + 26.0)


def test_a_port_that_keeps_failing_is_reported_again_after_half_an_hour() -> None:
    port = FedPorts()
    port.receive(0.0, "down")
    reported = [second for second in range(0, 4000, 10) if port.reported(second)]
    assert reported == [10, 10 + int(DAMPED_SECONDS), 10 + 2 * int(DAMPED_SECONDS)]


def test_three_flaps_within_ten_minutes_are_a_fault_and_two_or_old_ones_are_not() -> None:
    port = FedPorts()
    port.flaps(0.0, 100.0)
    assert not port.reported(110.0)
    port.flaps(FLAP_SECONDS + 3.0)
    assert not port.reported(FLAP_SECONDS + 6.0), "the first flap is long ago"
    port.flaps(FLAP_SECONDS + 20.0)
    assert port.reported(FLAP_SECONDS + 23.0) == [("n/mlx5_0", "nic")]


def test_all_sources_report_the_same_flaps() -> None:
    port = FedPorts()
    for source in ("kernel", "carrier", "counter"):
        port.flaps(10.0, source=source)
    assert not port.reported(20.0), "it has flapped once"
    port.receive(30.0, "lost", "counter", times="2")
    assert port.reported(31.0)


def test_a_counter_of_losses_reports_their_number() -> None:
    port = FedPorts()
    port.receive(10.0, "lost", times="3")
    assert port.reported(11.0)
    odd = FedPorts()
    odd.receive(10.0, "lost", times="many")
    odd.receive(11.0, "up")
    assert not odd.reported(12.0), "one loss, and a port comes up that was never down"
    links = FedPorts()
    links.receive(0.0, "down", entity="GPU-1/3")
    links.receive(0.0, "down", entity="n/mlx5_1")
    assert links.reported(6.0) == [("n/GPU-1/3", "link"), ("n/mlx5_1", "nic")]


# --- stale agents ----------------------------------------------------------------------------------------------------


class StaleAgentsOf:
    """Check for stale agents on a cluster. quiet: second since which each of these agents has not reported."""

    def __init__(self, agents: int = 100) -> None:
        self.silence, self.agents = StaleAgents(), agents
        self.quiet: dict[str, float] = {}

    def scan(self, *seconds: float) -> list[Abstention]:
        found = [self.silence.mass(self.telemetry(second)) for second in seconds]
        return [one for one in found if one is not None]

    def telemetry(self, second: float, *jobs: JobTelemetry) -> Telemetry:
        results = {f"n{n}": at(self.quiet.get(f"n{n}", second)) for n in range(self.agents)}
        return Telemetry(at(second), jobs, no_counters(sum(len(job.shape) for job in jobs)), (), results)

    def lose_agents(self, second: float, nodes: Iterable[int]) -> None:
        self.quiet |= dict.fromkeys((f"n{n}" for n in nodes), second)


def every(first: float, last: float) -> list[float]:
    return [first + step * 0.5 for step in range(round((last - first) * 2))]


@pytest.mark.parametrize(("agents", "lost", "frozen"), [(100, 5, False), (100, 6, True), (20, 2, False), (20, 3, True)])
def test_a_mass_loss_of_agents_freezes_all_actions(agents: int, lost: int, frozen: bool) -> None:
    cluster = StaleAgentsOf(agents)
    cluster.scan(*every(0.0, 10.0))
    cluster.lose_agents(10.0, range(lost))
    found = cluster.scan(*every(10.0, 100.0))
    assert len(found) == frozen
    assert not frozen or f"{lost} of {agents} agents stopped reporting" in found[0].reason


def test_agents_lost_one_by_one_are_not_a_mass_loss() -> None:
    cluster = StaleAgentsOf(100)
    for number in range(12):
        cluster.lose_agents(10.0 + 20.0 * number, [number])
    assert not cluster.scan(*every(0.0, 300.0)), "four within a minute"
    cluster.quiet.clear()
    cluster.scan(*every(300.0, 301.0))
    cluster.lose_agents(301.0, range(6))
    assert len(cluster.scan(*every(301.0, 300.0 + STALE_SECONDS + MASS_SECONDS))) == 1


def test_after_a_suspension_of_the_controller_staleness_starts_over() -> None:
    cluster = StaleAgentsOf(100)
    cluster.scan(*every(0.0, 10.0))
    cluster.lose_agents(9.5, range(50))
    assert not cluster.scan(*every(60.0, 60.0 + STALE_SECONDS)), "frames sent during the suspension are still unread"
    assert len(cluster.scan(*every(60.0 + STALE_SECONDS, 60.0 + STALE_SECONDS + 2))) == 1
    steady = StaleAgentsOf(100)
    steady.scan(*every(0.0, 10.0))
    steady.lose_agents(9.5, range(50))
    assert len(steady.scan(*every(10.0, 9.5 + STALE_SECONDS + 1.5))) == 1


def standing_still(job: str, nodes: tuple[str, ...]) -> JobTelemetry:
    return JobTelemetry(Shape(job, 1, np.arange(len(nodes)), nodes))


def lost_nodes(cluster: StaleAgentsOf, second: float, job: JobTelemetry, last_step: float) -> list[str]:
    speeds = Speeds()
    speeds.of[job.shape.job] = Speed(finished_ns=at(last_step))
    speeds.of[job.shape.job].newest.extend([2.0] * 4)
    return [one.node for one in cluster.silence.lost(cluster.telemetry(second, job), speeds)]


def test_a_stale_node_is_lost_if_its_job_has_stopped_except_in_a_mass_loss() -> None:
    job = standing_still("j", ("n3", "n4"))
    cluster = StaleAgentsOf(100)
    cluster.scan(*every(0.0, 10.0))
    cluster.lose_agents(10.0, [3, 50])
    cluster.scan(*every(10.0, 60.0))
    assert lost_nodes(cluster, 60.0, job, last_step=9.5) == ["n3"], "n50 is stale, and no job has a rank on it"
    assert lost_nodes(cluster, 60.0, job, last_step=40.0) == [], "the job has made steps since"
    assert lost_nodes(cluster, 60.0, job, last_step=-5.0) == [], "the job had stopped before"
    assert lost_nodes(cluster, 54.0, job, last_step=9.5) == [], "stopped for less than thirty seconds"
    cluster.lose_agents(60.0, range(60, 80))
    assert cluster.scan(*every(60.0, 80.0))
    assert lost_nodes(cluster, 80.0, job, last_step=9.5) == [], "in a mass loss no node is accused"


# --- speeds ----------------------------------------------------------------------------------------------------------


def steps(job: str, seconds: Iterable[float], first: int = 0) -> JobTelemetry:
    lasts = np.array([list(seconds)]).T.repeat(2, axis=1)
    lasts[:, 1] *= 0.5
    ends = np.cumsum(np.rint(lasts * NS), axis=0).astype(np.int64) + START
    table = StepTable(np.arange(first, first + len(lasts)), ends, lasts, lasts * 0)
    return JobTelemetry(Shape(job, 1, np.arange(2), ("n0", "n1")), table)


def taken(speeds: Speeds, *jobs: JobTelemetry, second: float = 0.0) -> Speeds:
    speeds.take(Telemetry(at(second), jobs, no_counters(sum(len(job.shape) for job in jobs))))
    return speeds


@pytest.mark.parametrize(
    ("usual", "newest", "slower"),
    [
        (1.0, [1.3] * 4, 1.3),
        (1.0, [1.0, 1.0, 1.3, 1.3, 9.0], 1.3),  # the median of the steps in four seconds
        (1.0, [1.0, 1.0, 1.0, 9.0], 1.0),  # one long step is a checkpoint
        (10.0, [13.0, 20.0], 1.3),  # the shorter of two
        (10.0, [10.0, 90.0], 1.0),
        (0.1, [0.1] * 4 + [0.2] * 8, 2.0),
    ],
)
def test_the_slowdown_of_a_job_follows_its_newest_steps(usual: float, newest: list[float], slower: float) -> None:
    speeds = taken(Speeds(), steps("j", [usual] * BEST_STEPS))
    taken(speeds, steps("j", newest))
    assert speeds.slower("j") == pytest.approx(slower)
    assert speeds.slower("another") == 1.0


def test_the_best_speed_is_a_median_of_sixteen_steps() -> None:
    speeds = taken(Speeds(), steps("j", [0.1] + [1.0] * (BEST_STEPS - 2)))
    assert speeds.slower("j") == 1.0 and not np.isfinite(speeds.of["j"].best), "too few steps"
    taken(speeds, steps("j", [1.0] * 8, 90))
    assert speeds.of["j"].best == 1.0
    assert (speeds.of["j"].step, speeds.of["j"].usual) == (97, 1.0)
    taken(speeds, steps("j", [2.0] * 40))
    assert speeds.of["j"].best == 1.0, "the best speed is kept"


def test_the_best_speed_survives_a_restart_of_the_controller() -> None:
    before = taken(Speeds(), steps("j", [1.0] * BEST_STEPS), steps("k", [2.0] * BEST_STEPS))
    after = Speeds()
    after.load(before.dump())
    taken(after, steps("k", [3.0] * 4), second=1.0)
    assert after.slower("k") == pytest.approx(1.5)
    assert after.dump()["j"] == (1.0, {}), "kept until the job reports"
    taken(after, steps("k", [3.0]), second=2.0)
    taken(after, steps("k", [3.0]), second=700.0)
    assert "j" not in after.dump(), "for ten minutes"


def test_a_job_that_starts_to_report_steps_is_judged_by_them() -> None:
    shape = Shape("j", 1, np.arange(2), ("n0", "n1"))
    speeds = taken(Speeds(), JobTelemetry(shape))
    assert set(speeds.slowdown_tests) == {"j"}
    taken(speeds, steps("j", [1.0] * BEST_STEPS))
    taken(speeds, steps("j", [2.0] * 4))
    assert not speeds.slowdown_tests and speeds.slower("j") == 2.0
    taken(speeds)
    assert not speeds.of, "the old value is dropped"


# --- fault history ---------------------------------------------------------------------------------------------------


def test_fault_history_lasts_four_weeks_and_saturates_at_three() -> None:
    fault_history = FaultHistory()
    for number in range(5):
        fault_history.remember("GPU-1", "n0", Cause.MEMORY, number)
    of_part, of_node = fault_history.weight("GPU-1", "n0")
    assert (of_part.value, of_part.log_likelihood_ratio) == (5.0, MOST_WEIGHT)
    assert (of_node.value, of_node.log_likelihood_ratio) == (5.0, 1.25)
    fault_history.remember("GPU-1", "n7", Cause.NVLINK, 4 + REMEMBERED_NS)
    assert fault_history.weight("GPU-1", "")[0].value == 6.0, "only recent faults count"
    fault_history.remember("GPU-1", "n7", Cause.NVLINK, 5 + 2 * REMEMBERED_NS)
    (fresh,) = fault_history.weight("GPU-1", "")
    assert fresh.value == 1.0 and "newest for nvlink" in fresh.against
    fault_history.remember("", "n9", Cause.LOST, 1)
    assert len(fault_history.weight("", "n9")) == 1 and fault_history.weight("", "") == ()


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_an_active_verdict_is_not_repeated_until_its_job_has_ended() -> None:
    detector, job = alone(HealthDetector()), Job()
    xid = event("j-n1", XID, "GPU-j-3", code="95")
    assert len(verdicts(course(detector, [job], 40, {30: [xid, xid], 35: [xid]}))) == 1
    course(detector, [Job("other")], 3, first=41)
    assert len(verdicts(course(detector, [job], 5, {45: [xid]}, first=44))) == 1


def test_a_fault_of_an_unused_device_is_reported_without_a_rank() -> None:
    events = {30: [event("j-n1", XID, "GPU-spare", code="95")], 31: [event("elsewhere", DEVICE_LOST, "GPU-x")]}
    detector = alone(HealthDetector())
    found = verdicts(course(detector, [Job()], 40, events))
    assert [(one.gang, one.rank, one.node, one.device) for one in found] == [
        ("j", -1, "j-n1", "GPU-spare"), ("", -1, "elsewhere", "GPU-x"),
    ]  # fmt: skip
    again = verdicts(course(detector, [Job()], 5, {43: events[31]}, first=41))
    assert not again, "a verdict without a rank stays active when jobs start and end"


def failing(feature: str, value: float, ranks: Callable[[np.ndarray], np.ndarray], usual: float = 0.0) -> Job:
    """Return a job of 16 ranks on 8 nodes that becomes slower when this feature of some ranks reports a fault."""
    job = Job(ranks=16, nodes=8)
    bad = ranks(np.arange(16))
    job.feature[feature] = lambda second: np.where(bad & (second > 80), value, usual)
    job.network = lambda second: 0.6 if second > 80 else 0.3
    return job


def test_many_failing_ports_on_several_nodes_accuse_no_port() -> None:
    one = verdicts(course(alone(HealthDetector()), [failing("nic_physical_errors", 50.0, lambda r: r == 6)], 140))
    assert [(v.rank, v.cause) for v in one] == [(6, Cause.NIC)]
    assert not verdicts(
        course(alone(HealthDetector()), [failing("nic_physical_errors", 50.0, lambda r: r % 2 == 0)], 140)
    )


@pytest.mark.parametrize(("share", "slower", "reported"), [(0.5, False, True), (0.8, False, False), (0.8, True, True)])
def test_a_degraded_link_is_reported_even_if_the_job_is_not_slower(share: float, slower: bool, reported: bool) -> None:
    job = failing("pcie_link", share, lambda r: r == 6, usual=1.0)
    if not slower:
        job.network = lambda second: 0.3
    found = verdicts(course(alone(HealthDetector()), [job], 160))
    assert [(one.rank, one.cause, one.kind) for one in found] == [(6, Cause.PCIE, Kind.HEALTH)] * reported


def test_a_verdict_of_another_detector_is_not_repeated() -> None:
    detector = alone(HealthDetector())
    accuse(detector.shared.arbiter, "j", 6)
    assert not verdicts(course(detector, [failing("nic_physical_errors", 50.0, lambda r: r == 6)], 140))


def test_errors_that_have_stopped_accuse_no_device() -> None:
    job = failing("nvlink_errors", 50.0, lambda r: r == 6)
    job.network = lambda second: 0.6 if second > 95 else 0.3
    job.feature["nvlink_errors"] = lambda second: np.where((np.arange(16) == 6) & (80 < second <= 88), 50.0, 0.0)
    assert not verdicts(course(alone(HealthDetector()), [job], 130))


def test_a_verdict_contains_the_job_speed_before_and_now() -> None:
    job = failing("nic_physical_errors", 50.0, lambda r: r == 6)
    (verdict,) = verdicts(course(alone(HealthDetector()), [job], 140))
    assert isinstance(verdict, Verdict)
    assert 1.05 <= verdict.slowdown <= 1.35, "from the steps reported up to that time"
    assert verdict.step_seconds_before == pytest.approx(1.0, rel=0.05)
    assert verdict.detected_step >= 75 and verdict.suspects == ("node:j-n3",)
