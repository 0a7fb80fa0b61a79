"""The health detector: devices that their own events and counters accuse, whether or not a step shows it yet.

Events act at once, where they may: an XID only where NVIDIA's catalogue asks for a reset, a reboot or a drain, or where
the driver's recovery action does. Most XIDs are the application's own doing (13, 31, 43). A link that flaps is told
once and damped. Telemetry that is lost needs a second witness: an agent can die while its node trains on. And losing
many agents at once is a rollout or a network: everything is frozen, and told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from agent.schema.xid import describe
from scheduler_feedback.core.fleet import Sample
from scheduler_feedback.core.telemetry import (
    DEVICE_LOST,
    FEATURE,
    LINK,
    PART_REPLACED,
    RECOVERY_ACTION,
    XID,
    JobTelemetry,
    NodeEvent,
    Telemetry,
)
from scheduler_feedback.core.verdict import MASS_LOSS, Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors import weighing
from scheduler_feedback.detectors.gate import JobGate
from scheduler_feedback.detectors.panel import ABSENT_NS, ALARM, Panel
from scheduler_feedback.detectors.signatures import evidence
from scheduler_feedback.detectors.switches import Switches

ACTING_BUCKETS = frozenset({"RESET_GPU", "RESTART_BM"})
"""Buckets of NVIDIA's XID catalogue that ask for a reset or reboot. RESTART_APP and IGNORE are the application's, and
the workflows (48, 45, NVLink) end in one of the others or in none: the recovery action tells."""

ACTING_RECOVERIES = frozenset(
    {"gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "bus-reset", "system-reboot"}
)
"""Values of the driver's recovery action that ask for a reset, reboot or drain; 'none' and 'imex' do not."""

LINK_DOWN_SECONDS = 5.0
"""A port that is back within five seconds has flapped: retraining takes one to three."""

FLAPS = 3
FLAP_SECONDS = 600.0
DAMPED_SECONDS = 1800.0
"""Three flaps in ten minutes are a fault; after that the port is not told of for half an hour (as BGP damps routes)."""

SILENT_SECONDS = 15.0
WITNESS_SECONDS = 60.0
"""An agent unheard for fifteen seconds is lost; its node is, where within a minute a job on it stops making steps."""

MASS_SHARE = 0.05
MASS_SECONDS = 60.0
MASS_LEAST = 3
"""More than five per cent of the agents lost within a minute is a rollout or a network, not the nodes. Below three
agents a share says nothing."""

COUNTER_WINDOWS = 6
HURT = 1.05
PCIE_LEAST = 0.75
"""A PCIe link at three quarters of its generation times width or less has lost a lane pair or a generation."""

BEST_STEPS = 16

FEATURES_OF: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.PCIE, "gpu", ("pcie_link", "pcie_errors")),
    (Cause.NIC, "nic", ("nic_physical_errors",)),
    (Cause.NIC, "nic", ("nic_sequence_errors",)),
    (Cause.NIC, "nic", ("nic_pause_sent",)),
    (Cause.NVLINK, "gpu", ("nvlink_errors",)),
    (Cause.MEMORY, "gpu", ("memory_errors",)),
)
"""What accuses which device: cause, level, and the counters any of which must stand above the peers. A NIC that pauses
its switch without end makes a storm of it: who sends the pauses is the culprit. Throttling is no fault by itself (a
power cap is set on purpose): it explains a slow rank, and that is the straggler detector's."""

FEATURES_OF_SLOW: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.THERMAL, "gpu", ("thermal_throttle",)),
    (Cause.POWER, "gpu", ("power_throttle",)),
    (Cause.GPU, "gpu", ("sm_clock",)),
    (Cause.CPU_CONTENTION, "node", ("cpu_waiting",)),
    (Cause.STORAGE, "node", ("io_waiting",)),
)
"""Where a job reports no steps, these tell who is slow, if by its traffic the job is slower than it was."""

SNAPSHOT_VERSION = 2


_Bests = tuple[float, dict[str, float]]
"""Seconds of the best steps (infinite where none are reported), and the best rate of each counter that tells."""

NO_BEST: _Bests = (float("inf"), {})


@dataclass(slots=True)
class _Port:
    """A port that went down: since when it is, and when it was before; until when it is not told of again.

    flaps: times by who told of them: the kernel's log, the port's state, and each of the counters see the same ones.
    """

    down_ns: int = 0
    flaps: dict[str, deque[int]] = field(default_factory=dict)
    damped_until_ns: int = 0

    def flapped(self, source: str, times: int, now_ns: int) -> None:
        """The port was down and is up again, so many times."""
        self.flaps.setdefault(source, deque(maxlen=2 * FLAPS)).extend([now_ns] * times)

    def recent(self, now_ns: int) -> int:
        """How often it flapped of late, by the source that saw most of it."""
        since_ns = now_ns - round(FLAP_SECONDS * 1e9)
        return max((sum(at_ns >= since_ns for at_ns in ring) for ring in self.flaps.values()), default=0)


@dataclass(slots=True)
class _Speed:
    """How fast a job goes: its newest steps' seconds, the best mean so far, when a step was last finished."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=BEST_STEPS))
    best: float = float("inf")
    finished_ns: int = 0
    step: int = -1

    @property
    def slower(self) -> float:
        """The newest steps over the best; 1 where not known."""
        if len(self.newest) < 4 or not np.isfinite(self.best):
            return 1.0
        return float(np.median(list(self.newest)[-4:])) / self.best


class HealthDetector:
    """Finds devices, links and nodes at fault. Owned by one thread."""

    name = "health"

    def __init__(
        self,
        timed: bool = True,
        switches: Switches | None = None,
        panel: Panel | None = None,
    ) -> None:
        self._timed = timed
        self._switches = Switches() if switches is None else switches
        self._panel = Panel(self._switches) if panel is None else panel
        self._ports: dict[str, _Port] = {}
        self._speed: dict[str, _Speed] = {}
        self._gates: dict[str, JobGate] = {}
        self._standing: dict[tuple[str, str], Verdict] = {}
        self._counted: dict[tuple[str, int, int], int] = {}
        self._lost: dict[str, int] = {}
        self._mass_until_ns = 0
        self._bests: dict[str, _Bests] = {}
        self._bests_until_ns = 0
        self.lemons = self._panel.lemons

    def tick(self, telemetry: Telemetry) -> list[Finding]:
        """Look at events, counters and silence; the findings that are new."""
        findings: list[Finding] = []
        self._panel.at(telemetry)
        if not self._timed:
            return findings
        if self._bests:
            self._bests_until_ns = self._bests_until_ns or telemetry.now_ns + ABSENT_NS
            if telemetry.now_ns > self._bests_until_ns:
                self._bests.clear()
        jobs = {job.shape.job: job for job in telemetry.jobs}
        self._take_speeds(telemetry)
        for event in telemetry.events:
            findings += self._event(event, telemetry)
        findings += self._links(telemetry)
        findings += self._silence(telemetry)
        findings += self._counters(telemetry)
        for key in [key for key, one in self._standing.items() if one.gang and one.gang not in jobs]:
            del self._standing[key]
        for gone in self._speed.keys() - jobs.keys():
            del self._speed[gone]
        for gone in self._gates.keys() - jobs.keys():
            del self._gates[gone]
        return findings

    def measures(self) -> Iterator[Sample]:
        """None of its own."""
        return iter(())

    def snapshot(self) -> bytes:
        """What past verdicts said of parts and nodes, the norms of counters, and how fast jobs went at their best."""
        bests: dict[str, _Bests] = {name: (float(speed.best), {}) for name, speed in self._speed.items()}
        bests |= {name: (float("inf"), gate.best) for name, gate in self._gates.items()}
        kept = (SNAPSHOT_VERSION, self.lemons.dump(), self._panel.dump(), {**self._bests, **bests})
        return msgspec.msgpack.encode(kept)

    def restore(self, data: bytes) -> None:
        """Take a snapshot's place. Raises ValueError where it is not one of ours."""
        try:
            version, *kept = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
            if msgspec.msgpack.decode(version, type=int) != SNAPSHOT_VERSION or len(kept) != 3:
                raise ValueError("of another version")
            self.lemons.load(msgspec.msgpack.decode(kept[0], type=bytes))
            self._panel.load(msgspec.msgpack.decode(kept[1], type=bytes))
            self._bests = msgspec.msgpack.decode(kept[2], type=dict[str, tuple[float, dict[str, float]]])
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"health snapshot of {len(data)} bytes: {error}") from None

    # --- events -----------------------------------------------------------------------------------------------------

    def _event(self, told: NodeEvent, telemetry: Telemetry) -> list[Finding]:
        event, detail = told.event, told.event.detail
        if event.kind == XID:
            try:
                code = int(detail.get("code", ""))
            except ValueError:
                return []
            known = describe(code)
            action = detail.get("action") or known.action
            if action not in ACTING_BUCKETS:
                return []
            words = f"XID {code} {known.name}: {known.meaning}; NVIDIA's catalogue asks for {action}"
            return self._accuse(told.node, "gpu", event.entity, Cause.XID, words, float(code), telemetry)
        if event.kind == RECOVERY_ACTION:
            action = detail.get("action", "")
            if action not in ACTING_RECOVERIES:
                return []
            words = f"the driver's recovery action asks for {action}"
            return self._accuse(told.node, "gpu", event.entity, Cause.XID, words, 1.0, telemetry)
        if event.kind == DEVICE_LOST:
            words = f"{event.entity} was there and is no longer"
            return self._accuse(told.node, "gpu", event.entity, Cause.LOST, words, 1.0, telemetry)
        if event.kind == LINK:
            self._link(told, telemetry.now_ns)
        elif event.kind == PART_REPLACED:
            return self._replaced(told, telemetry.now_ns)
        return []

    def _link(self, told: NodeEvent, now_ns: int) -> None:
        port = self._ports.setdefault(_port_name(told), _Port())
        detail = told.event.detail
        state, source = detail.get("state"), detail.get("source", "")
        if state == "down":
            port.down_ns = port.down_ns or now_ns
        elif state == "lost":  # a counter: how often, not whether it is up
            times = detail.get("times", "1")
            port.flapped(source, int(times) if times.isdecimal() else 1, now_ns)
        elif port.down_ns:
            port.flapped(source, 1, now_ns)
            port.down_ns = 0

    def _links(self, telemetry: Telemetry) -> list[Finding]:
        """Ports that stay down, and ports that keep flapping; each told once, then damped."""
        findings: list[Finding] = []
        now_ns = telemetry.now_ns
        for name, port in self._ports.items():
            if now_ns < port.damped_until_ns:
                continue
            node, _, device = name.partition("/")
            down = (now_ns - port.down_ns) * 1e-9 if port.down_ns else 0.0
            recent = port.recent(now_ns)
            if down >= LINK_DOWN_SECONDS:
                words, value = f"the link has been down for {down:.0f} s", down
            elif recent >= FLAPS:
                words, value = f"the link went down {recent} times in {FLAP_SECONDS / 60:.0f} minutes", recent
            else:
                continue
            port.damped_until_ns = now_ns + round(DAMPED_SECONDS * 1e9)
            level = "link" if device.startswith("GPU-") else "nic"
            findings += self._accuse(node, level, name, Cause.LINK, words, float(value), telemetry)
        return findings

    def _replaced(self, told: NodeEvent, now_ns: int) -> list[Finding]:
        """The part is new: what was held against the old one, or against the node, is forgotten."""
        self.lemons.forget(told.event.entity, told.node)
        gone = [key for key in self._standing if key[1] in (told.event.entity, told.node)]
        return [
            Cleared(one.verdict_id, one.gang, now_ns, "the part was replaced")
            for one in (self._standing.pop(key) for key in gone)
        ]

    # --- silence ----------------------------------------------------------------------------------------------------

    def _silence(self, telemetry: Telemetry) -> list[Finding]:
        now_ns = telemetry.now_ns
        silent_ns = now_ns - round(SILENT_SECONDS * 1e9)
        silent = {node for node, heard_ns in telemetry.heard_ns.items() if heard_ns < silent_ns}
        for node in silent - self._lost.keys():
            self._lost[node] = now_ns
        for node in self._lost.keys() - silent:
            del self._lost[node]
        recent = [node for node, at in self._lost.items() if (now_ns - at) * 1e-9 <= MASS_SECONDS]
        agents = len(telemetry.heard_ns)
        if len(recent) >= MASS_LEAST and len(recent) > MASS_SHARE * agents:
            told = now_ns < self._mass_until_ns
            self._mass_until_ns = now_ns + round(MASS_SECONDS * 1e9)
            if told:
                return []
            words = (
                f"{len(recent)} of {agents} agents were lost within {MASS_SECONDS:.0f} s: a rollout or a network, not "
                "the nodes; all actions are frozen"
            )
            return [Abstention("", 0, None, now_ns, words, (), MASS_LOSS)]
        if now_ns < self._mass_until_ns or not self._lost:
            return []
        findings: list[Finding] = []
        for job in telemetry.jobs:
            speed = self._speed.get(job.shape.job)
            if speed is None or not len(speed.newest):
                continue
            still = (now_ns - speed.finished_ns) * 1e-9
            usual = float(np.median(speed.newest))
            for node in dict.fromkeys(job.shape.nodes):
                lost_ns = self._lost.get(node)
                # The second witness: the job has made no step since, for longer than its steps take.
                if lost_ns is None or speed.finished_ns > lost_ns or still < max(SILENT_SECONDS, 3 * usual):
                    continue
                words = f"its agent is not heard, and {job.shape.job} has made no step for {still:.0f} s"
                findings += self._accuse(node, "node", node, Cause.LOST, words, still, telemetry)
        return findings

    # --- counters ---------------------------------------------------------------------------------------------------

    def _take_speeds(self, telemetry: Telemetry) -> None:
        for job in telemetry.jobs:
            if job.steps is None or not len(job.steps):
                continue
            name = job.shape.job
            speed = self._speed.get(name)
            if speed is None:
                speed = self._speed[name] = _Speed(best=self._bests.pop(name, NO_BEST)[0])
            seconds = np.where(np.isfinite(job.steps.seconds), job.steps.seconds, 0.0).max(axis=1)
            for one in seconds.tolist():
                speed.newest.append(one)
                if len(speed.newest) == BEST_STEPS:
                    speed.best = min(speed.best, float(np.median(speed.newest)))
            speed.finished_ns, speed.step = int(job.steps.end_ns.max()), int(job.steps.number[-1])

    def _counters(self, telemetry: Telemetry) -> list[Finding]:
        """Error counters and degraded links that stand above the peers' for some windows, on a job that is slower."""
        panel = self._panel
        if not telemetry.counters.values.shape[1]:
            return []
        findings: list[Finding] = []
        self._gate(telemetry)
        rows = sorted({FEATURE[name] for _, _, names in (*FEATURES_OF, *FEATURES_OF_SLOW) for name in names})
        alarmed = np.flatnonzero((panel.score[rows] >= ALARM).any(axis=0))
        by_job: dict[str, list[int]] = {}
        starts = [(columns.start, name) for name, columns in panel.columns.items()]
        for column in alarmed.tolist():
            place = int(np.searchsorted([start for start, _ in starts], column, side="right")) - 1
            by_job.setdefault(starts[place][1], []).append(column)
        jobs = {job.shape.job: job for job in telemetry.jobs}
        seen = set()
        for name, columns in by_job.items():
            job, first = jobs[name], panel.of(name).start
            speed = self._speed.get(name)
            for column in columns:
                key = (name, job.shape.attempt, int(job.shape.ranks[column - first]))
                seen.add(key)
                self._counted[key] = self._counted.get(key, 0) + 1
                if self._counted[key] % COUNTER_WINDOWS or key in panel.accused:
                    continue
                findings += self._failing(job, column, first, speed, telemetry)
        for key in self._counted.keys() - seen:
            del self._counted[key]
        return findings

    def _gate(self, telemetry: Telemetry) -> None:
        """How fast the jobs go that report no steps."""
        values = telemetry.counters.values
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            if job.steps is None:
                gate = self._gates.get(job.shape.job)
                if gate is None:
                    gate = self._gates[job.shape.job] = JobGate(best=dict(self._bests.pop(job.shape.job, NO_BEST)[1]))
                for window in range(values.shape[1]):
                    gate.take(values[:, window, columns])
            else:
                self._gates.pop(job.shape.job, None)

    def _failing(
        self, job: JobTelemetry, column: int, first: int, speed: _Speed | None, telemetry: Telemetry
    ) -> list[Finding]:
        panel, shape, rank = self._panel, job.shape, column - first
        gate = self._gates.get(shape.job)
        slower = gate.slower() if gate is not None else 1.0 if speed is None else speed.slower
        for cause, level, names in FEATURES_OF if gate is None else (*FEATURES_OF, *FEATURES_OF_SLOW):
            name = max(names, key=lambda one: float(panel.score[FEATURE[one], column]))
            score = float(panel.score[FEATURE[name], column])
            if score < ALARM:
                continue
            degraded = cause is Cause.PCIE and float(panel.newest[FEATURE["pcie_link"], column]) <= PCIE_LEAST
            if not degraded and slower < HURT:
                continue  # errors that cost nothing are a matter for maintenance, not for a verdict
            alike = panel.score[FEATURE[name], panel.of(shape.job)] >= ALARM
            nodes = {shape.nodes[one] for one in np.flatnonzero(alike).tolist()}
            if int(alike.sum()) > max(1, len(shape) // 8) and len(nodes) > 1:
                continue  # many devices alike: what they share is at fault
            names_of = {"nic": shape.nics, "gpu": shape.gpus}.get(level, ())
            device = names_of[rank] if names_of else ""
            more = (
                Evidence(name, float(panel.newest[FEATURE[name], column]), 0.0, "", "its peers", 2.0),
                Evidence("excess_over_peers", score, ALARM, "sigma", "the sum at which it alarms", 1.0),
                Evidence(
                    "step_seconds_to_best", slower, HURT, "ratio", "the job's best", 2.0 if slower >= HURT else 0.0
                ),
                *evidence(panel, column),
            )
            return self._accuse(
                shape.nodes[rank], level if device else "node", device or shape.nodes[rank], cause,
                f"{name.replace('_', ' ')} stands away from its peers", score, telemetry, more, job, rank, slower,
                Kind.STRAGGLER if (cause, level, names) in FEATURES_OF_SLOW else Kind.HEALTH,
            )  # fmt: skip
        return []

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def _accuse(
        self,
        node: str,
        level: str,
        device: str,
        cause: Cause,
        words: str,
        value: float,
        telemetry: Telemetry,
        more: tuple[Evidence, ...] = (),
        job: JobTelemetry | None = None,
        index: int = -1,
        slower: float = 1.0,
        kind: Kind = Kind.HEALTH,
    ) -> list[Finding]:
        """A verdict about a device, in every job that stands on it; without a job it is about the node alone."""
        findings: list[Finding] = []
        affected: list[tuple[JobTelemetry | None, int]] = [(job, index)]
        if job is None:
            affected = [*_standing_on(telemetry, node, level, device)] or [(None, -1)]
        past = self.lemons.weight(device, node)
        for one, rank in affected:
            gang = "" if one is None else one.shape.job
            key = (gang, device or node)
            if key in self._standing:
                continue
            told = Evidence("event", value, float("nan"), "", words, 3.0 if more else 6.0)
            items = (told, *more, *past)
            speed = self._speed.get(gang, _Speed())
            usual = float(np.median(speed.newest)) if speed.newest else float("nan")
            number = -1 if one is None or rank < 0 else int(one.shape.ranks[rank])
            attempt = 0 if one is None else one.shape.attempt
            verdict = Verdict(
                verdict_id=f"{gang}.{attempt}.{cause}.{device or node}.{telemetry.now_ns}",
                kind=kind,
                gang=gang,
                attempt=attempt,
                rank=number,
                node=node,
                cause=cause,
                confidence=weighing.confidence(items),
                slowdown=max(1.0, slower),
                step_seconds_before=speed.best if np.isfinite(speed.best) else usual,
                step_seconds_now=usual,
                first_wall_ns=telemetry.now_ns,
                last_wall_ns=telemetry.now_ns,
                evidence=items,
                frames=() if one is None else one.frames,
                detector=self.name,
                level=level,
                device="" if level == "node" else device,
                suspects=() if level == "node" else (f"node:{node}",),
                first_step=speed.step,
                last_step=speed.step,
                detected_step=speed.step,
            )
            if verdict.confidence < weighing.LEAST_CONFIDENCE:
                continue
            self._standing[key] = verdict
            self._panel.accused.add((gang, attempt, number))
            self.lemons.remember(device, node, cause, telemetry.now_ns)
            findings.append(verdict)
        return findings


def _port_name(told: NodeEvent) -> str:
    entity = told.event.entity
    return entity if entity.startswith(f"{told.node}/") else f"{told.node}/{entity}"


def _standing_on(telemetry: Telemetry, node: str, level: str, device: str) -> Iterator[tuple[JobTelemetry, int]]:
    """Jobs with a rank on the device, and the first such rank; or on its node, and -1 where the device is nobody's."""
    for job in telemetry.jobs:
        names = {"gpu": job.shape.gpus, "nic": job.shape.nics}.get(level, ())
        if names and device in names:
            yield job, names.index(device)
        elif node in job.shape.nodes:
            yield job, job.shape.nodes.index(node) if level == "node" else -1
