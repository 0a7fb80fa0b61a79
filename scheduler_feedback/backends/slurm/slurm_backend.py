"""The Slurm backend. Slurm queues, places and starts jobs; gangwatch observes them and changes what the cycle requests.

One thread with its own event loop talks to Slurm. The cycle's thread reads the newest snapshot and queues work. A
round of that loop is::

    1  ask the cycle for the desired state of the nodes    (answered by the cycle's thread, without a request to Slurm)
    2  if a scan is due, list nodes and active jobs; list the whole queue only if the active jobs have changed
    3  compare the snapshot with the desired state and change what differs    (node_plan.py)

The interval between scans is 30 s while all nodes are healthy. It is 5 s while a node is not healthy or a job is being
moved, and a new verdict triggers a scan. These scans list the whole queue, because the cycle compares the cost of a
slow node with the wait of pending jobs. A failed scan changes nothing: the old snapshot stays in use. So an incomplete
response never makes a job look ended or a node look lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import BackendError
from agent.schema.sample import Sample
from scheduler_feedback.backends.backend import Backend, RunningCycle
from scheduler_feedback.backends.slurm.agent_announcements import Announcements
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.consent import Consents
from scheduler_feedback.backends.slurm.cycle_queries import Cycle
from scheduler_feedback.backends.slurm.desired_state import DesiredState, desired_state_of
from scheduler_feedback.backends.slurm.node_updates import NodeUpdater
from scheduler_feedback.backends.slurm.parsing.refusals import Refusals
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Nodes, SlurmJob, SlurmNode, Snapshot, unreadable
from scheduler_feedback.backends.slurm.pending_verdicts import HELD_BACK_SECONDS, PendingVerdicts
from scheduler_feedback.backends.slurm.probe_reservation import Probes
from scheduler_feedback.backends.slurm.requeue_state import Moves
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_audit import Audit
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.backends.slurm.slurm_names import (
    external_job,
    host_waits,
    job_id_of,
    node_seen,
    number_of,
    why_not,
)
from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptUnknown,
    Event,
    HostWaits,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
)
from scheduler_feedback.core.job import JobKind, StopReason
from scheduler_feedback.core.telemetry.placements import Placed, Refusal
from scheduler_feedback.part_failures import PartFailures

ROUND_SECONDS = 1.0
RETRY_SECONDS = 5.0
"""Seconds between two scans while Slurm does not respond."""

SHORTEST_INTERVAL_SECONDS = 1.0
"""Shortest time between two scans, in seconds."""

REPORT_AGAIN_SECONDS = 5.0

FIRST_SCAN_SECONDS = 30.0

_log = logging.getLogger(__name__)


class SlurmBackend(Backend):
    """Backend for a cluster on which Slurm queues, places and starts the jobs."""

    submit_with = (
        "Slurm schedules the jobs of this cluster: submit with `sbatch`, or with `gangwatch slurm submit`, which also "
        "declares the job restartable"
    )

    def __init__(
        self,
        state_folder: Path,
        commands: Commands,
        settings: SlurmSection | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Read the record of gangwatch's changes to Slurm. Raises BackendError if it cannot be read."""
        self._clock = clock or SystemClock()
        self._settings = settings or SlurmSection()
        agents = self._settings.agents
        self._agents = Announcements(state_folder / "agents", agents) if agents is not None else None
        self._commands = commands
        self._audit = Audit(state_folder / "slurm-actions.jsonl", self._clock)
        self._audited = AuditedCommands(commands, self._audit, state_folder / "slurm-touched.json", self._job_read)
        self._thread = threading.Thread(target=self._main, name="slurm", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._scanned = threading.Event()
        self._stopping = False
        self._cycle = Cycle()
        self._snapshot: Snapshot | None = None
        self._seen_nodes: tuple[dict[str, SlurmNode], list[NodeSeen]] = {}, []
        """A snapshot's nodes, and what `nodes` returns for them."""
        self._trouble = "Slurm has not responded yet"
        self._listing = ""
        self._unread = False
        self._due_seconds = self._newest_seconds = 0.0
        self._early = False
        self._desired = DesiredState()
        self._consents = Consents(commands)
        self._refusals = Refusals()
        self._reported: dict[tuple[str, int], float] = {}
        self._holding: frozenset[str] = frozenset()
        self._events: deque[Event] = deque()
        self._pending_verdicts = PendingVerdicts()
        self._queue_reported: HostWaits | None = None
        self._listed_seconds = 0.0
        self._updater = NodeUpdater(self._audited, self._settings, self._clock)
        self._moves = Moves(
            self._audited, self._settings, self._cycle, self._consents.read,
            lambda: self._snapshot, self._updater.audit_once, self._scan_soon,
        )  # fmt: skip
        self._probes = Probes(self._audited)

    @classmethod
    def configured(cls, folder: Path, settings: SlurmSection) -> SlurmBackend:
        commands = Commands(settings.programs, settings.configuration, settings.timeout_seconds, settings.text)
        return cls(folder, commands, settings)

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self, wait_seconds: float = FIRST_SCAN_SECONDS) -> None:
        """Start the thread, and wait up to wait_seconds for the first snapshot.

        It returns also without one. The controller then logs an error and schedules nothing until a snapshot arrives.
        """
        self._thread.start()
        self._scanned.wait(wait_seconds)

    def attach(self, cycle: RunningCycle, failures: PartFailures) -> None:  # noqa: ARG002
        """Attach the running cycle. The backend asks it for the desired state from now on."""
        self._cycle.ask = cycle.ask
        self._wake_up()

    def stop(self) -> None:
        """Stop the thread and leave operations in progress as they are; the next start continues them."""
        self._stopping = True
        self._wake_up()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    # --- Backend -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSeen]:
        nodes = self._known().nodes
        if nodes is not self._seen_nodes[0]:
            self._seen_nodes = nodes, [node_seen(node) for node in nodes.values() if node.gpus]
        return self._seen_nodes[1]

    def apply(self, action: Action) -> None:
        if isinstance(action, StartGang):
            if action.spec.kind is not JobKind.PROBE:
                raise BackendError(f"{action.action_id}: {action.job_id} must be started in Slurm, with sbatch")
            self._call(lambda: self._probes.begin(action))
            return
        if (action.job_id, action.attempt) in self._probes:
            self._call(lambda: self._probes.end(action))
            return
        number = number_of(action.job_id)
        if number is None:
            raise BackendError(f"{action.action_id}: {action.job_id} is not a Slurm job")
        job = self._known().jobs.get(number)
        refusal = why_not(job, self._consents.known(job)) if job is not None else ""
        if refusal and action.why is not StopReason.CANCEL:
            raise BackendError(f"{action.action_id}: {action.job_id} is not moved: {refusal}")
        self._call(lambda: self._moves.stop(action, number, job))

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        snapshot = self._known()
        held = set(holding)
        now = time.monotonic()
        self._holding = frozenset(job_id for job_id, _ in held)
        events: list[Event] = []
        for job_id, attempt in held:
            events += self._events_of(snapshot, job_id, attempt)
        for job in list(snapshot.jobs.values()):
            key = job_id_of(job.number), job.restarts
            if not job.runs or key in held or not self._consents.is_known(job):
                continue
            if now - self._reported.get(key, float("-inf")) > REPORT_AGAIN_SECONDS:
                self._reported[key] = now
                found = external_job(job, self._consents.known(job), snapshot.nodes)
                events += [found] if found is not None else []
        while self._events:
            events.append(self._events.popleft())
        if (queue := host_waits(snapshot.jobs.values(), self._audited.touched.moving)) != self._queue_reported:
            self._queue_reported = queue
            events.append(queue)
        events += self._pending_verdicts.free(self._holding, self._listed_seconds, now)
        return events

    # --- verdicts ----------------------------------------------------------------------------------------------------

    def translate_events(self, events: Sequence[Event]) -> list[Event]:
        """Return, with the cycle's job names, the detector results that need no newer snapshot.

        Verdicts and results of unknown gangs are held; ``observe`` returns them after a later snapshot.
        """
        ready = self._pending_verdicts.take(events, self._holding, time.monotonic())
        if self._pending_verdicts.waiting:
            self._scan_soon()
        return ready

    def job_of(self, gang: str) -> str:
        number = number_of(gang)
        return gang if number is None else job_id_of(number)

    def attest(self, node: str, gang: str, received_ns: int) -> Placed | Refusal | None:
        """Return whether the node may report a gang. Slurm lists a job's nodes, but not which rank runs on which.

        received_ns: when the report arrived. A job that an older snapshot lacks may have started since.
        """
        number = number_of(gang)
        if number is None:
            return None
        snapshot = self._snapshot
        job = snapshot.jobs.get(number) if snapshot is not None else None
        if job is not None and node in job.nodes:
            return Placed(job.restarts, None) if job.runs or job.completing else Refusal.ENDED
        if snapshot is None or snapshot.at_ns <= received_ns:
            return Refusal.NOT_KNOWN_YET
        if job is None:
            return Refusal.UNKNOWN if snapshot.is_gone(number) else Refusal.NOT_KNOWN_YET
        return Refusal.NOT_PLACED if job.runs else Refusal.ENDED

    def attest_data(self, node: str) -> object:
        # A node that may report a job's ranks may do so until the job is listed otherwise.
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.jobs_of(node)

    # --- metrics -----------------------------------------------------------------------------------------------------

    def measures(self) -> list[Sample]:
        desired, touched = self._desired, self._audited.touched
        age = time.monotonic() - self._newest_seconds if self._snapshot is not None else float("inf")
        return [
            ("gangwatch_slurm_requests_total", (), float(self._commands.requests)),
            ("gangwatch_slurm_look_age_seconds", (), age),
            ("gangwatch_slurm_nodes_drained", (), float(len(touched.drained))),
            *(
                ("gangwatch_slurm_records_refused_total", (("kind", kind),), float(count))
                for kind, count in sorted(self._refusals.counts.items())
            ),
            *(
                ("gangwatch_slurm_actions_total", (("action", action), ("outcome", outcome)), float(count))
                for (action, outcome), count in sorted(self._audit.counts.items())
            ),
            *(
                ("gangwatch_slurm_advice", (("action", "drain"), ("target", name)), 1.0)
                for name in sorted(desired.advice)
            ),
            *(
                ("gangwatch_slurm_advice", (("action", "requeue"), ("target", job_id)), 1.0)
                for job_id in sorted(desired.moves)
            ),
        ]

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def _known(self) -> Snapshot:
        """Return the newest snapshot. Raises BackendError while Slurm does not respond, because the snapshot may be
        too old.
        """
        if self._trouble or self._snapshot is None:
            raise BackendError(self._trouble)
        return self._snapshot

    def _events_of(self, snapshot: Snapshot, job_id: str, attempt: int) -> list[Event]:
        if (job_id, attempt) in self._probes:
            return self._probes.events_of(job_id, attempt)
        number = number_of(job_id)
        if number is None:
            return [AttemptUnknown(job_id, attempt)]  # a probe of an earlier controller; its node is released
        job = snapshot.jobs.get(number)
        if job is None and not snapshot.is_gone(number):
            return []
        if job is None:
            return [AttemptEnded(job_id, attempt, (), reason="Slurm no longer has this job")]
        if job.completing or (job.runs and job.restarts == attempt):
            return []
        if job.restarts > attempt or job.waits:
            return [AttemptEnded(job_id, attempt, (), reason="Slurm has requeued it")]
        ended = f"{job.state.lower()}, according to Slurm"
        code = 0 if job.state == "COMPLETED" else job.exit_code or None
        return [AttemptEnded(job_id, attempt, (), reason=ended, all_exited_with=code)]

    def _call(self, work: Callable[[], None]) -> None:
        """Run `work` in the event loop. Raises BackendError if the loop's thread has ended."""
        if self._loop is None or self._stopping or not self._thread.is_alive():
            raise BackendError("the Slurm backend's thread is not running")
        self._loop.call_soon_threadsafe(work)
        self._wake_up()

    def _scan_soon(self) -> None:
        self._early = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._loop is not None and self._wake is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._wake.set)

    # --- the loop's thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._trouble = f"a bug ended the Slurm backend's thread: {type(error).__name__}: {error}"
            _log.critical("the Slurm backend's thread has ended: this is a bug, please report it", exc_info=error)

    async def _run(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        while not self._stopping:
            await self._round()
            try:
                await asyncio.wait_for(self._wake.wait(), ROUND_SECONDS)
            except TimeoutError:
                pass
            self._wake.clear()
        self._moves.end()
        self._probes.leave()

    async def _round(self) -> None:
        before = self._desired
        self._desired = await self._cycle.asked(desired_state_of, before)
        now = time.monotonic()
        changed = before != self._desired
        attentive = bool(self._desired.nodes or self._desired.advice or self._moves or self._probes)
        if attentive:
            self._due_seconds = min(self._due_seconds, self._newest_seconds + self._settings.attentive_seconds)
        if (self._early or changed) and not self._trouble:
            self._due_seconds = min(self._due_seconds, self._newest_seconds + SHORTEST_INTERVAL_SECONDS)
        if now < self._due_seconds:
            return
        self._early = False
        try:
            await self._scan(now)
            if self._cycle.ask is not None:
                self._moves.take_up()
                self._probes.take_up()
                await self._change()
        except BackendError as error:
            if str(error) != self._trouble:
                _log.error("%s. Nothing is changed in Slurm until it responds", error)
            self._trouble = str(error)
            self._due_seconds = now + RETRY_SECONDS

    async def _change(self) -> None:
        """Apply the desired state, and report to the cycle the nodes that operators have resumed."""
        assert self._snapshot is not None
        for name in await self._updater.keep(self._desired, self._snapshot):
            self._events.append(NodeCommanded(name, NodeCommand.RELEASE, "the operator who resumed it in Slurm"))

    # --- scans -------------------------------------------------------------------------------------------------------

    async def _scan(self, now: float) -> None:
        """Take a new snapshot. If this raises BackendError, the old snapshot stays in use."""
        began_ns = self._clock.monotonic_ns()
        listed_nodes = await self._commands.nodes()
        listing = await self._commands.running()
        pending = self._desired.nodes or self._audited.touched.excluded or self._pending_verdicts.wants_queue
        if listing != self._listing or self._snapshot is None or pending or self._unread:
            listed_seconds = time.monotonic()
            listed = await self._commands.jobs()
            self._refusals.note(listed.refused)
            jobs, unread = listed.records, unreadable(listed)
            complete = all(one.key is not None for one in listed.refused)
            self._unread = bool(listed.unread)
        else:
            listed_seconds, jobs = self._listed_seconds, self._snapshot.jobs
            unread, complete = self._snapshot.unreadable, self._snapshot.complete
        self._refusals.note(listed_nodes.refused)
        nodes = self._with_those_known(listed_nodes)
        self._early |= await self._consents.learn(jobs.values()) or self._unread
        if self._trouble:
            _log.info("Slurm responds: %d nodes, %d jobs", len(nodes), len(jobs))
        self._snapshot = Snapshot(began_ns, nodes, jobs, unread, complete).after(self._snapshot)
        self._listing, self._trouble = listing, ""
        self._listed_seconds = listed_seconds
        self._newest_seconds, self._due_seconds = now, now + self._settings.idle_seconds
        if self._agents is not None:
            self._agents.write(nodes)
        self._reported = {key: at for key, at in self._reported.items() if now - at < HELD_BACK_SECONDS}
        self._scanned.set()

    def _with_those_known(self, listed: Nodes) -> dict[str, SlurmNode]:
        """Return the listed nodes, and the last known record of each node whose new record was refused."""
        before = self._snapshot.nodes if self._snapshot is not None else {}
        kept = {one.key: before[one.key] for one in listed.refused if isinstance(one.key, str) and one.key in before}
        return {**kept, **listed.records}

    def _job_read(self, number: int, job: SlurmJob | None) -> None:
        """Replace one job of the snapshot after this job alone was read from Slurm."""
        if self._snapshot is not None:
            jobs = dict(self._snapshot.jobs)
            jobs.pop(number, None)
            if job is not None:
                jobs[number] = job
            self._snapshot = replace(self._snapshot, jobs=jobs, unreadable=self._snapshot.unreadable - {number})
