"""The controller of one state folder: cycle, feed, detectors and API, in separate threads.

There are three kinds of threads. The cycle's thread (cycle_thread.py) owns state, store and backend. The feed's thread
(feed/) reads the agents' streams, and runs detection in between (detection_thread.py). The server's event loop
handles API requests. They share only queues. A controller that is killed loses nothing that it acted on, and jobs keep
running.

A bug outside of the cycle disables the part that has it (part_failures.py), and scheduling continues. A bug in the
cycle or the journal ends the controller, because it must not continue to decide.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType

from starlette.applications import Starlette
from starlette.routing import Route

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ConfigError, GangwatchError, StoreError
from agent.schema.frame import AnyLayout, Frame
from agent.schema.sample import AnySample
from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.tokens import OWN_TOKENS, Tokens
from scheduler_feedback.api.app import create_api
from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.subscribers import Subscribers
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.controller import state_files
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.controller.cycle_hooks import CycleHooks
from scheduler_feedback.controller.cycle_thread import CycleThread
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.controller.freeze_switch import FreezeSwitch
from scheduler_feedback.controller.hang_files import HangFile, HangFiles, what_hangs
from scheduler_feedback.controller.progress import STUCK_SECONDS
from scheduler_feedback.controller.reports import power_reports, time_shift_reports
from scheduler_feedback.controller.reports.latencies import Latencies
from scheduler_feedback.controller.reports.power_reports import PowerReports
from scheduler_feedback.controller.reports.shared_speeds import SharedSpeeds
from scheduler_feedback.controller.reports.time_shift_reports import TimeShiftReports
from scheduler_feedback.controller.restarting_feed import RestartingFeed
from scheduler_feedback.core.events import AttemptEnded, Event, FreezeSet, PolicySet
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.core.telemetry.placements import Placements
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.steps.pace import MOST_ROWS, Pace, Speed
from scheduler_feedback.core.verdict import Abstention, Verdict
from scheduler_feedback.detectors import make_all
from scheduler_feedback.feed import Feed, power_orders, shift_orders
from scheduler_feedback.feed.agent_reporting import AgentStatuses
from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.journal.recovery import Recovered, recover
from scheduler_feedback.journal.store import NumberedEntry, Store
from scheduler_feedback.part_failures import PartFailures, in_words
from scheduler_feedback.policies.power.power_metrics import power_metrics
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics

STOP_SECONDS = 2.0

SPEEDS_SECONDS = 0.5
"""Seconds for which readers share one result of ``speeds``. Detection runs twice a second."""

_log = logging.getLogger(__name__)


class Controller:
    """One controller of one state folder.

    ::

        with Controller(folder, backend, policy) as controller:
            app = Starlette(routes=[Mount("/", controller.api())], lifespan=lambda _: controller.serving(on_failure))
            ... serve app; once it listens, controller.announce(url)

    The controller starts the backend and stops it. reload: reads the configuration again and returns its policy; may
    raise ConfigError. on_entries: called with the entries of each cycle, on its thread; must not block. Entering raises
    StateFolderBusyError if the folder already has a controller, StoreError if its journal is unusable, and BackendError
    if the backend cannot connect.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        policy: Policy,
        settings: ControllerSettings | None = None,
        *,
        reload: Callable[[], Policy] | None = None,
        on_entries: Callable[[Sequence[NumberedEntry]], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        self.backend = backend
        self._settings = settings = settings or ControllerSettings()
        self.access = settings.access or Authentication(Tokens(folder / "token", own_file=folder / OWN_TOKENS))
        self.audit = settings.audit or Audit(folder / "audit" / "audit.jsonl")
        self.submit_with = backend.submit_with
        self.subscribers = Subscribers(*settings.streams)
        self.failure: BaseException | None = None
        self._policy, self._reload = policy, reload
        self._clock = clock or SystemClock()
        detectors = tuple(make_all() if settings.detectors is None else settings.detectors)
        self.failures = PartFailures(detector.name for detector in detectors)
        self._placements = Placements(backend.attest, backend.attest_data)
        self._detection = DetectionThread(
            detectors, self._report_results, self._clock,
            fabric=settings.fabric, failures=self.failures, placements=self._placements, job_of=backend.job_of,
        )  # fmt: skip
        self._power_orders = LeasedOrders(power_orders.WORD)
        self._power = PowerReports(self._power_orders, self._detection.measure_again)
        self._shift_orders = LeasedOrders(shift_orders.WORD)
        self._shifts = TimeShiftReports(self._shift_orders, backend.job_of, self._detection.measure_again)
        self._feed = RestartingFeed(self._make_feed, self.failures)
        self._freeze_switch = FreezeSwitch(folder / "frozen")
        self._hang_files = HangFiles(folder / "hangs", self._clock, self.failures)
        self._on_entries = on_entries
        self._on_failure: Callable[[], None] | None = None
        self._served_ns: int | None = None  # when the loop that serves the API last ran
        self._opened = ExitStack()  # undone by leaving the context
        self._speeds: tuple[float, asyncio.Task[dict[str, Speed]]] | None = None

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Controller:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as opened:
            opened.callback(os.close, state_files.hold(self.folder / "lock"))
            state_files.make_token(self.folder / "token")
            journal = self.folder / "store.sqlite"
            state_files.refuse_emptied(journal, self.folder / "jobs")
            opened.callback(self.backend.stop)
            self.backend.start()
            policy = self.backend.effective_policy(self._policy)
            self._rebuild(journal, policy)
            self.store = Store(journal, self._settings.retention)
            try:
                recovered = recover(self.store)
            except BaseException:
                self.store.close()
                raise
            _log.info("state of cycle %d, %d cycles replayed", recovered.state.cycle, recovered.cycles)
            self._detection.restore(recovered.detectors)
            self.backend.resume(recovered.state)
            self.cycle = self._make_cycle(recovered, policy)
            self.snapshot_reader = SnapshotReader(self.cycle.snapshots)
            opened.callback(self._stop)
            self.audit.begin()
            self._detection.start()
            self.cycle.start()
            self.backend.attach(self.cycle, self.failures)
            self._opened = opened.pop_all()
        return self

    def _rebuild(self, journal: Path, policy: Policy) -> None:
        """Replace the journal if the backend rebuilds the state from its system."""
        now_ns = self._clock.wall_ns()
        state = self.backend.rebuild_state(policy, now_ns)
        if state is not None:
            state_files.replace_journal(journal, state, now_ns)

    def _make_cycle(self, recovered: Recovered, policy: Policy) -> CycleThread:
        hooks = CycleHooks(
            written=self._written,
            baselines=self._detection.snapshots,
            measures=lambda state: (*measure(state), *queue_metrics(state), *power_metrics(state)),
            died=self._died,
            failed=self.failures.report,
            placed=self._placements.follow,
            shared=(
                SharedSpeeds(self._detection.step_seconds).measure,
                Latencies(self._detection.requests).measure,
                self._power.measure,
                self._shifts.measure,
            ),
        )
        return CycleThread(
            self.store, recovered, self.backend, self._freeze_switch, policy, self._clock, hooks,
            self._settings.snapshot_seconds,
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop within two seconds, with a snapshot. Jobs keep running."""
        self._opened.close()

    def _stop(self) -> None:
        self.backend.detach()
        self._detection.stop()
        self._hang_files.close()
        self.snapshot_reader.close()
        if self.cycle.stop(STOP_SECONDS):
            self.store.close()
        else:
            _log.error("the cycle's thread is still busy after %.0f s; exiting without it", STOP_SECONDS)
        (self.folder / "controller.json").unlink(missing_ok=True)
        self.audit.close()

    def announce(self, url: str, certificate: str = "") -> None:
        """Write controller.json with the controller's address. certificate: file of the TLS certificate; '' for
        none."""
        record = {"pid": os.getpid(), "start_time": state_files.start_time(), "url": url, "certificate": certificate}
        state_files.write_atomically(self.folder / "controller.json", json.dumps(record).encode())

    @asynccontextmanager
    async def serving(self, on_failure: Callable[[], None]) -> AsyncIterator[None]:
        """Read agents' streams, and reload on SIGHUP, while the context is active. Use it in the API's event loop.

        on_failure: called in the loop when a bug has ended the cycle's thread; `failure` then holds the exception. A
        bug in the feed's thread only restarts the feed.
        """
        loop = asyncio.get_running_loop()
        reloads: set[asyncio.Task[None]] = set()

        def hang_up() -> None:
            task = loop.create_task(self._reload_and_log())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        def feed_ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.critical("the feed has ended: this is a bug, please report it", exc_info=error)
                self.failure = self.failure or error
                on_failure()

        def from_thread() -> None:
            loop.call_soon_threadsafe(on_failure)

        self._on_failure = from_thread
        if self.failure is not None:
            on_failure()
        takes_signals = threading.current_thread() is threading.main_thread()
        if takes_signals:
            loop.add_signal_handler(signal.SIGHUP, hang_up)
        feed = loop.create_task(self._feed.run(), name="feed")
        feed.add_done_callback(feed_ended)
        answering = loop.create_task(self._record_liveness(), name="answering")
        try:
            yield
        finally:
            answering.cancel()
            self._served_ns = None
            self._on_failure = None
            if takes_signals:
                loop.remove_signal_handler(signal.SIGHUP)
            self.end_streams()
            feed.cancel()
            await asyncio.gather(feed, answering, *reloads, return_exceptions=True)
            await self.access.close()

    async def _record_liveness(self) -> None:
        while True:
            self._served_ns = self._clock.monotonic_ns()
            await asyncio.sleep(1.0)

    def _make_feed(self) -> Feed:
        limited = (power_reports.LIMIT,) if self._policy.power_budget_watts else ()
        shifted = time_shift_reports.WANTED if self._policy.time_shifts else ()
        feed = FeedWithReaders(
            self.folder / "agents", self._take, (*WANTED, *power_reports.WANTED, *limited, *shifted),
            self._clock,
            self._settings.credentials,
            self._detection.between, self.failures.report, self._placements.reached, self._detection.watched_nodes,
            lambda: self._detection.ticks_ns, processes=self._settings.feed_processes,
        )  # fmt: skip
        feed.orders = self._power_orders, self._shift_orders
        return feed

    def end_streams(self) -> None:
        """End the API's event streams, so that its server can stop. Call it in the loop that serves them."""
        self.subscribers.close()

    def api(self, more: Sequence[Route] = ()) -> Starlette:
        """Return the API's application. more: routes to add, with the same login."""
        return create_api(self, more)

    @property
    def token(self) -> str:
        """The state folder's token, as its file contains it now."""
        return self.access.tokens.state_token()

    # --- reading ------------------------------------------------------------------------------------------------------

    def measures(self) -> list[AnySample]:
        """Return the metrics of all parts, from any thread. A part whose metrics raise an exception is left out."""
        found: list[AnySample] = []
        inner = (self.cycle, self._detection, self._feed.feed, self.backend)
        parts = (*inner, self.snapshot_reader, self.subscribers, self.access, self.audit)
        for part in parts:
            try:
                found += list(part.measures())
            except Exception as error:
                self.failures.report("metrics", error, type(part).__name__)
        return found

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None:
        """Return at most `most` recent step times of the gang, those with sequence numbers above `sequence`.

        May be called from any thread, and may wait briefly.
        """
        return self._detection.pace_of(gang, sequence, most)

    def agent_statuses(self) -> AgentStatuses:
        """Return the status of each node's agent, by node. May be called from any thread."""
        return AgentStatuses(self._feed.feed.streams, self._clock.monotonic_ns(), self._clock.wall_ns())

    def speeds(self) -> dict[str, Speed]:
        """Return the current speed of each gang. May be called from any thread, and may wait briefly."""
        return self._detection.speeds()

    def troubles(self) -> list[str]:
        """Return a sentence for each failed part, and one if detection is late. May be called from any thread."""
        late = self._detection.late()
        return [*map(in_words, self.failures.troubles()), *([late] if late else [])]

    def alive(self) -> tuple[bool, str]:
        """Return whether the cycle's thread and the API's loop run, and if not, what is stuck.

        Restart a controller that is not alive. A controller that is alive but not ready may be waiting for a disk or
        an API server, and a restart would not help.
        """
        stuck = self.cycle.progress.stuck()
        served_ns = self._served_ns
        if not stuck and served_ns is not None:
            served_seconds = (self._clock.monotonic_ns() - served_ns) / 1e9
            if served_seconds > STUCK_SECONDS:
                stuck = f"the API's thread has been stuck for {served_seconds:.0f} s"
        return not stuck, stuck

    async def shared_speeds(self) -> Mapping[str, Speed]:
        """Return the result of ``speeds``, at most half a second old. Call it in the loop that serves the API."""
        now_s = asyncio.get_running_loop().time()
        kept = self._speeds
        if kept is None or now_s - kept[0] > SPEEDS_SECONDS:
            task = asyncio.ensure_future(asyncio.to_thread(self.speeds))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            kept = self._speeds = now_s, task
        return await asyncio.shield(kept[1])

    def scheduling(self) -> tuple[bool, str]:
        """Return whether jobs are scheduled, and if not, why."""
        if self.failure is not None:
            return False, f"a bug ended a part of the controller: {type(self.failure).__name__}: {self.failure}"
        return self.cycle.ready()

    def ready(self) -> tuple[bool, str]:
        """Return whether jobs are scheduled and monitored, and if not, why."""
        ready, reason = self.scheduling()
        broken = self.failures.out_of_service()
        return (ready and not broken), reason or broken

    # --- requests of operators ----------------------------------------------------------------------------------------

    async def freeze(self, by: str) -> str:
        """Block all actions from now on. Return a warning if the journal does not have the freeze yet, else ''.

        Raises StoreError if the freeze would not survive a restart.
        """
        await asyncio.to_thread(self._freeze_switch.turn_on)
        try:
            await self._perform(FreezeSet(True, by))
        except StoreError as error:
            # A concurrent thaw may have reset the switch meanwhile.
            await asyncio.to_thread(self._freeze_switch.turn_on)
            return f"frozen; not in the journal until that is writable: {error}"
        return ""

    async def thaw(self, by: str) -> None:
        """Allow actions again. Raises StoreError if the journal is not writable: the freeze then stays."""
        await self._perform(FreezeSet(False, by))

    async def reload(self, by: str) -> None:
        """Read the configuration again and apply its policy. Raises ConfigError, and changes nothing, if the
        configuration is invalid.
        """
        if self._reload is None:
            raise ConfigError("this controller was started without a configuration file to reload")
        policy = await asyncio.to_thread(self._reload)
        await self._perform(PolicySet(self.backend.effective_policy(policy), by))

    async def _reload_and_log(self) -> None:
        try:
            await self.reload("SIGHUP")
        except GangwatchError as error:
            _log.error("reload refused, the former configuration stays: %s", error)
        else:
            _log.info("reloaded")

    async def _perform(self, event: Event) -> None:
        await asyncio.wrap_future(self.cycle.request(lambda _: event))

    # --- from the threads ---------------------------------------------------------------------------------------------

    def _take(self, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        translated = self.backend.translate_frame(layout, frame)
        if self._power.enabled:
            self._power.take(layout.node, *translated, received_ns)
        if self._shifts.enabled:
            self._shifts.take(layout, *translated)
        self._detection.offer(*translated, received_ns)

    def _report_results(self, events: Sequence[Event]) -> None:
        try:
            translated = self._shifts.with_delays(self.backend.translate_events(events))
        except Exception as error:
            self.failures.report("verdicts", error, f"{len(events)} lost")
            return
        try:
            self._save_hangs(events)
        except Exception as error:
            self.failures.report("verdicts", error, "the stacks of a hang are not saved")
        self.cycle.report(translated)

    def _save_hangs(self, events: Sequence[Event]) -> None:
        """Save where the ranks of hanging jobs are blocked, before the scheduler can restart a job."""
        for event in events:
            if (text := what_hangs(event)) is not None:
                assert isinstance(event, Verdict | Abstention)
                self._hang_files.save(event.gang, event.attempt, text, self._detection.blocked_of(event.gang))

    def hang_of(self, job_id: str, attempt: int) -> HangFile | None:
        """Return where the ranks of this attempt were blocked when it hung; None if nothing was saved. Reads a file."""
        return self._hang_files.read(job_id, attempt)

    def _written(self, events: Sequence[Event], entries: Sequence[NumberedEntry]) -> None:
        for event in events:
            if isinstance(event, AttemptEnded):
                self._detection.forget(event.job_id)
                self._shifts.forget(event.job_id)
        if entries:
            self.subscribers.wrote(entries)
            if self._on_entries is not None:
                self._on_entries(entries)

    def _died(self, error: BaseException) -> None:
        self.failure = self.failure or error
        if (notify := self._on_failure) is not None:
            notify()
