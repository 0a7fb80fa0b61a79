"""Scenarios for the alerts: a cluster with its faults, and the exact set of alerts that must fire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile

from scheduler_feedback.core.events import CancelRequested, Event, FreezeSet, NodeCommand, NodeCommanded, Submitted
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Mode
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit, Sent
from tests.dashboards.scripted import POLICY, Job, Script, ScriptedRun, job

SECONDS = 1050.0
ONSET, LENGTH = 240.0, 210.0
"""Start of the faults, after a job's history of over two minutes, and their length, in seconds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario. make: returns its run. fires: alerts that must fire. labels: required labels of all delivered alerts.

    inhibited: alerts that fire and must not be delivered, because another alert reports the same fault. unscraped:
    Prometheus scrapes its agents only after the faults of all other scenarios. down: simulated seconds in which the
    controller does not respond.
    """

    make: Callable[[], ScriptedRun]
    fires: frozenset[str] = frozenset()
    inhibited: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    unscraped: bool = False
    down: tuple[float, float] = (0.0, 0.0)

    @property
    def named(self) -> frozenset[str]:
        """Return the alerts whose labels are known in advance."""
        return self.fires - self.inhibited if self.labels else frozenset()


def _with(one: Job, disorder: str, ranks: tuple[int, ...], severity: float = 0.4) -> Job:
    fault = Fault(disorder, one.name, ranks, ONSET, LENGTH, severity=severity)
    one.course.faults.append(one.course.solved(fault))
    return one


def _ends(name: str, at: float) -> Script:
    """Return a script that cancels the job at this time, which clears its verdicts."""

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        return [CancelRequested(name, "ann")] if now == at else ()

    return script


def _neighbours(victim: Job, other: Job, disorder: str, seen_by_other: str) -> ScriptedRun:
    """Return a run of two jobs that share a resource, which is overloaded during the fault."""
    ranks = tuple(range(victim.course.plan.gpus))
    fault = Fault(disorder, victim.name, ranks, ONSET, LENGTH, severity=0.4, aggressor=other.name)
    fault = victim.course.solved(fault)
    victim.course.faults.append(fault)
    other.course.faults.append(replace(fault, disorder=seen_by_other, job=other.name, aggressor=""))
    return ScriptedRun([victim, other], _ends(victim.name, ONSET + LENGTH + 150.0))


@cache
def _frames_of_two_nodes() -> tuple[Sent, ...]:
    return tuple(takewhile(lambda sent: sent[0] < SECONDS + 1.0, FrameExit([_small().course], 1).until(SECONDS + 2.0)))


def _small() -> Job:
    return job("j-000001", range(2))


def _quiet(script: Script | None = None) -> ScriptedRun:
    """Return a run of two nodes without detectors, with only the script's events."""
    return ScriptedRun([_small()], script, detect=False, frames=_frames_of_two_nodes())


def healthy() -> ScriptedRun:
    """Return a run in which detectors run and publish no verdict."""
    return ScriptedRun([_small()], frames=_frames_of_two_nodes())


def straggler() -> ScriptedRun:
    return ScriptedRun([_with(job("j-000001", range(4)), "thermal", (9,))])


def interference() -> ScriptedRun:
    victim = job("j-000001", range(4), spots=(0, 1, 2, 3))
    other = job("j-000002", range(4), begin=6.0, spots=(4, 5, 6, 7), seed=9, seconds=3.0, queue="production")
    return _neighbours(victim, other, "host-interference", "crowding")


def congestion() -> ScriptedRun:
    victim = job("j-000001", (0, 1, 32, 33))
    other = job("j-000002", (2, 3, 34, 35), begin=6.0, seed=9, seconds=3.0, queue="production")
    return _neighbours(victim, other, "uplink-congestion", "crossing")


def preemption() -> ScriptedRun:
    first = job("j-000001", range(2))
    second = job("j-000002", range(2), begin=ONSET, seed=9, priority=10, queue="production")
    return ScriptedRun([first, second], detect=False, policy=replace(POLICY, mode=Mode.ACT))


def lost_agent() -> ScriptedRun:
    one = job("j-000001", range(4))
    one.course.faults.append(Fault("agent-loss", one.name, tuple(range(8, 16)), ONSET, LENGTH))
    return ScriptedRun([one], detect=False)


def lost_agents() -> ScriptedRun:
    one = job("j-000001", range(4))
    one.course.faults.append(Fault("mass-loss", one.name, tuple(range(8, 32)), ONSET, LENGTH))
    return ScriptedRun([one], detect=False)


def sick_device() -> ScriptedRun:
    one = _with(job("j-000001", range(4)), "nic-errors", (9,))
    return ScriptedRun([one], _ends(one.name, ONSET + LENGTH + 150.0))


def hang() -> ScriptedRun:
    one = job("j-000001", range(4))
    one.course.faults.append(Fault("hang-compute", one.name, (9,), ONSET, SECONDS))
    return ScriptedRun([one], _ends(one.name, ONSET + LENGTH + 120.0))


def stalled() -> ScriptedRun:
    """Return a run without detectors in which a job stops reporting steps and is cancelled later."""

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        if now == ONSET:
            run.halted.add("j-000001")
        return [CancelRequested("j-000001", "ann")] if now == ONSET + LENGTH + 240.0 else ()

    return _quiet(script)


def operator() -> ScriptedRun:
    """Return a run with a freeze, a quarantined node, a job larger than the cluster, a failing backend, and bugs."""
    large = JobSpec(name="large", command=("train",), ranks=4096, queue="research")

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        during = ONSET <= now < ONSET + LENGTH
        run.counters["gangwatch_backend_failures_total"] += during and now % 5 == 0
        run.broken = {"hang", "feed"} if during else set()
        if now == ONSET:
            return [
                Submitted("j-000009", large),
                NodeCommanded("node-00001", NodeCommand.QUARANTINE, "ann", "noisy fan"),
                FreezeSet(True, "ann"),
            ]
        if now == ONSET + LENGTH:
            return [
                FreezeSet(False, "ann"),
                NodeCommanded("node-00001", NodeCommand.RELEASE, "ann"),
                CancelRequested("j-000009", "ann"),
            ]
        return ()

    return _quiet(script)


def too_large() -> ScriptedRun:
    large = JobSpec(name="large", command=("train",), ranks=4096, queue="research")

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        if now == ONSET:
            return [Submitted("j-000009", large)]
        if now == ONSET + LENGTH:
            return [CancelRequested("j-000009", "ann")]
        return ()

    return _quiet(script)


def disk_full() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.stuck = ONSET <= now < ONSET + LENGTH + 75.0
        run.counters["gangwatch_store_failures_total"] += run.stuck
        return ()

    return _quiet(script)


def stuck_cycle() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.stuck = ONSET <= now < ONSET + LENGTH + 75.0
        return ()

    return _quiet(script)


def late_detection() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.frame_age = 12.0 if ONSET <= now < ONSET + LENGTH else 0.5
        return ()

    return _quiet(script)


def without_rights() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.missing_rights = 2 if ONSET <= now < ONSET + LENGTH + 120.0 else 0
        return ()

    return _quiet(script)


def leaderless() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.leads = not ONSET <= now < ONSET + LENGTH
        return ()

    return _quiet(script)


def failing_collector() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.failing = {"node-00001"} if ONSET <= now < ONSET + LENGTH else set()
        return ()

    return _quiet(script)


def partition() -> ScriptedRun:
    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.unread = {"node-00001"} if ONSET <= now < ONSET + LENGTH else set()
        return ()

    return _quiet(script)


def foreign_ranks() -> ScriptedRun:
    """Return a run in which an agent reports ranks that the scheduler has placed on other nodes."""

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.foreign["node-00001"] += int(ONSET <= now < ONSET + 60.0)
        return ()

    return _quiet(script)


def certificate_ends() -> ScriptedRun:
    """Return a run in which the renewal of an agent's certificate fails until an operator repairs it."""

    def script(run: ScriptedRun, now: float) -> Sequence[Event]:
        run.days_left = {"node-00000": 60.0, "node-00001": 13.0 if ONSET <= now < ONSET + LENGTH else 90.0}
        return ()

    return _quiet(script)


def _alerts(*names: str) -> frozenset[str]:
    return frozenset(f"Gangwatch{name}" for name in names)


_ACCUSED = (("gang", "j-000001"), ("name", "train-j-000001"))
_RANK_NINE = (*_ACCUSED, ("rank", "9"), ("node", "node-00001"))

SCENARIOS: dict[str, Scenario] = {
    "healthy": Scenario(healthy),
    "straggler": Scenario(straggler, _alerts("Straggler"), labels=(*_RANK_NINE, ("cause", "thermal"))),
    "interference": Scenario(interference, _alerts("Interference"), labels=(*_ACCUSED, ("aggressor", "j-000002"))),
    "congestion": Scenario(congestion, _alerts("Congestion"), labels=(*_ACCUSED, ("aggressor", "j-000002"))),
    "preemption": Scenario(preemption, _alerts("Preempted"), labels=_ACCUSED),
    "lost-agent": Scenario(
        lost_agent, _alerts("AgentDown", "FeedLost"), _alerts("FeedLost"), labels=(("node", "node-00001"),)
    ),
    "lost-agents": Scenario(
        lost_agents, _alerts("AgentsLost", "AgentDown", "FeedLost"), _alerts("AgentDown", "FeedLost")
    ),
    "sick-device": Scenario(
        sick_device, _alerts("DeviceAccused"), labels=(*_RANK_NINE, ("device", "node-00001/mlx5_1"), ("cause", "nic"))
    ),
    "hang": Scenario(hang, _alerts("Hang", "GangStalled"), _alerts("GangStalled"), labels=_RANK_NINE),
    "stalled": Scenario(stalled, _alerts("GangStalled"), labels=_ACCUSED),
    "operator": Scenario(
        operator, _alerts("Frozen", "NodeQuarantined", "BackendFailing", "DetectorBroken", "PartBroken")
    ),
    "too-large": Scenario(too_large, _alerts("GangCannotStart")),
    "disk-full": Scenario(disk_full, _alerts("JournalFailing", "CyclesStopped"), _alerts("CyclesStopped")),
    "stuck-cycle": Scenario(stuck_cycle, _alerts("CyclesStopped")),
    "late-detection": Scenario(late_detection, _alerts("DetectionLate")),
    "leaderless": Scenario(leaderless, _alerts("NobodyLeads")),
    "without-rights": Scenario(without_rights, _alerts("RightsMissing")),
    "controller-down": Scenario(
        _quiet,
        _alerts("ControllerDown"),
        down=(ONSET, ONSET + LENGTH),
    ),
    "partition": Scenario(partition, _alerts("FeedLost"), labels=(("node", "node-00001"),)),
    "foreign-ranks": Scenario(foreign_ranks, _alerts("ForeignRanks"), labels=(("node", "node-00001"),)),
    "certificate-ends": Scenario(certificate_ends, _alerts("CertificateEnds"), labels=(("node", "node-00001"),)),
    "failing-collector": Scenario(
        failing_collector, _alerts("CollectorFailing"), labels=(("node", "node-00001"), ("collector", "gpu"))
    ),
    "silent": Scenario(_quiet, _alerts("TelemetryAbsent"), unscraped=True),
}
