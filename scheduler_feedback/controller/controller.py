"""The controller: one state folder's cycle, feed and detectors, put together and kept apart.

Three kinds of thread: the cycle's (loop.py) owns state, store and backend; the feed's (feed/) reads the agents' streams
and, between two turns, has fleet and detectors look (watch.py); the event loop of whoever serves the API answers. They
share nothing but queues. Killed at any moment the controller loses nothing that it had acted on, and no job notices.

A bug outside of the cycle ends nothing: it costs the part that has it (part_failures.py), and scheduling goes on. A bug
in the cycle or the journal ends the controller, which must not go on deciding.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from starlette.applications import Starlette
from starlette.routing import Route

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ConfigError, GangwatchError, StateFolderBusyError, StoreError
from agent.schema.frame import AnyLayout, Frame
from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.tokens import OWN_TOKENS, Tokens
from scheduler_feedback.api.app import create_api
from scheduler_feedback.api.reading.desk import Desk
from scheduler_feedback.api.subscribers import MOST_STREAMS, MOST_STREAMS_EACH, Subscribers
from scheduler_feedback.backends import Backend
from scheduler_feedback.controller.cycle_thread import SNAPSHOT_SECONDS, CycleThread, Hooks
from scheduler_feedback.controller.detection_thread import Watch
from scheduler_feedback.controller.freeze_switch import Gate
from scheduler_feedback.controller.progress import STUCK_SECONDS
from scheduler_feedback.core.events import AttemptEnded, Event, FreezeSet, PolicySet
from scheduler_feedback.core.fabric import Fabric
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.core.telemetry.column_subscription import WANTED
from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.core.telemetry.pace import MOST_ROWS, Pace, Speed
from scheduler_feedback.core.telemetry.placements import Attest, Placements
from scheduler_feedback.detectors import Detector, make_all
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed.agent_reporting import Hearing, hearing_of
from scheduler_feedback.feed.credentials import Credentials
from scheduler_feedback.journal.format_needs import UNCHANGED
from scheduler_feedback.journal.recovery import recover
from scheduler_feedback.journal.store import NumberedEntry, Retention, Store
from scheduler_feedback.part_failures import PartFailures
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics

STOP_SECONDS = 2.0

FEED_PAUSE_SECONDS, FEED_PAUSE_MOST_SECONDS = 1.0, 60.0
"""After a bug has ended the feed's thread it is begun anew after 1, 2, 4, ... 60 s."""

FEED_PROVEN_SECONDS = 30.0
"""A feed that has run for so long is in service again: every agent's stream was opened and read by then."""

SPEEDS_SECONDS = 0.5
"""Speeds are as old as the newest look of the detectors anyway, which look twice a second."""

_log = logging.getLogger(__name__)


class Controller:
    """One controller of one state folder.

    ::

        with Controller(folder, backend, policy) as controller:
            app = Starlette(routes=[Mount("/", controller.api())], lifespan=lambda _: controller.serving(on_failure))
            ... serve app; once it listens, controller.announce(url)

    reload: reads the configuration again and gives the policy in it; may raise ConfigError. detectors: those that look
    at the fleet. fabric: which switch each node stands below. attest: says of gangs that the cycle did not place on
    which nodes they run. heard: what detectors found passes through it on its way
    to the cycle: a backend may know a gang under another name than the agents do. told: given the entries of each
    cycle, on its thread, and may not wait. elsewhere: how jobs are submitted where another scheduler starts them; ''
    where this one does. access: says who makes a request; by default the tokens of the folder do. audit: where it is
    written down who did what. Entering raises StateFolderBusyError where the folder has a controller, StoreError where
    its journal can't be used.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        policy: Policy,
        *,
        reload: Callable[[], Policy] | None = None,
        detectors: Iterable[Detector] | None = None,
        clock: Clock | None = None,
        snapshot_seconds: float = SNAPSHOT_SECONDS,
        retention: Retention | None = None,
        credentials: Credentials | None = None,
        fabric: Fabric | None = None,
        named: Callable[[AnyLayout, Frame], tuple[AnyLayout, Frame]] | None = None,
        attest: Attest | None = None,
        heard: Callable[[Sequence[Event]], Sequence[Event]] | None = None,
        told: Callable[[Sequence[NumberedEntry]], None] | None = None,
        elsewhere: str = "",
        streams: tuple[int, int] = (MOST_STREAMS, MOST_STREAMS_EACH),
        access: Authentication | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.folder = folder
        self.access = access or Authentication(Tokens(folder / "token", own_file=folder / OWN_TOKENS))
        self.audit = audit or Audit(folder / "audit" / "audit.jsonl")
        self.elsewhere = elsewhere
        self.subscribers = Subscribers(*streams)
        self.failure: BaseException | None = None
        self._backend = backend
        self._policy = policy
        self._reload = reload
        self._heard = heard
        self._clock = clock or SystemClock()
        self._snapshot_seconds = snapshot_seconds
        self._retention = retention or Retention()
        looking = tuple(make_all() if detectors is None else detectors)
        self.failures = PartFailures(detector.name for detector in looking)
        self._placements = Placements(attest)
        self._watch = Watch(
            looking, self._found, self._clock, fabric=fabric, failures=self.failures, placements=self._placements
        )
        self._named = named
        self._credentials = credentials
        self._feed = self._make_feed()
        self._gate = Gate(folder / "frozen")
        self._told = told
        self._on_failure: Callable[[], None] | None = None
        self._served_ns: int | None = None  # when the loop that serves the API last took its turn
        self._lock: int | None = None
        self._speeds: tuple[float, asyncio.Task[dict[str, Speed]]] | None = None
        self._hearing: tuple[float, dict[str, Hearing]] | None = None

    # --- coming and going ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Controller:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _hold(self.folder / "lock")
        try:
            _make_token(self.folder / "token")
            _refuse_emptied(self.folder / "store.sqlite", self.folder / "jobs")
            self.store = Store(self.folder / "store.sqlite", self._retention)
            try:
                recovered = recover(self.store)
            except BaseException:
                self.store.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        _log.info("state of cycle %d, %d cycles replayed", recovered.state.cycle, recovered.cycles)
        self._watch.restore(recovered.detectors)
        hooks = Hooks(
            self._written,
            self._watch.snapshots,
            lambda state: (*measure(state), *queue_metrics(state)),
            self._died,
            self.failures.report,
            self._placements.follow,
        )
        self.cycle = CycleThread(
            self.store, recovered, self._backend, self._gate, self._policy, self._clock, hooks, self._snapshot_seconds
        )
        self.desk = Desk(self.cycle.snapshots)
        self.audit.begin()
        self._watch.start()
        self.cycle.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop within two seconds, with a snapshot; jobs go on."""
        assert self._lock is not None
        self._watch.stop()
        self.desk.close()
        if self.cycle.stop(STOP_SECONDS):
            self.store.close()
        else:
            _log.error("the cycle's thread is still busy after %.0f s; it is left behind", STOP_SECONDS)
        (self.folder / "controller.json").unlink(missing_ok=True)
        self.audit.close()
        os.close(self._lock)

    def announce(self, url: str, certificate: str = "") -> None:
        """Write controller.json: the controller listens at `url`. certificate: the file of the one it shows, if any."""
        record = {"pid": os.getpid(), "start_time": _start_time(), "url": url, "certificate": certificate}
        _write_atomically(self.folder / "controller.json", json.dumps(record).encode())

    @asynccontextmanager
    async def serving(self, on_failure: Callable[[], None]) -> AsyncIterator[None]:
        """While it lasts, in the loop that serves the API: agents are read, SIGHUP reloads.

        on_failure: called in the loop when a bug has ended the cycle's thread; `failure` then holds what was raised. A
        bug that ends the feed's thread ends nothing else: the feed is begun anew.
        """
        loop = asyncio.get_running_loop()
        reloads: set[asyncio.Task[None]] = set()

        def hang_up() -> None:
            task = loop.create_task(self._reload_and_log())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        def feed_ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.critical("the feed ends: this is a bug, please report it", exc_info=error)
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
        feed = loop.create_task(self._follow_agents(), name="feed")
        feed.add_done_callback(feed_ended)
        answering = loop.create_task(self._note_that_it_answers(), name="answering")
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

    async def _note_that_it_answers(self) -> None:
        while True:
            self._served_ns = self._clock.monotonic_ns()
            await asyncio.sleep(1.0)

    async def _follow_agents(self) -> None:
        """Read the agents' streams until cancelled. After a bug, begin anew, ever more rarely while it goes on."""
        pause_seconds = FEED_PAUSE_SECONDS
        while True:
            reading = asyncio.create_task(self._feed.run(), name="feed")
            try:
                done, _ = await asyncio.wait({reading}, timeout=FEED_PROVEN_SECONDS)
                if not done:
                    pause_seconds = FEED_PAUSE_SECONDS
                    self.failures.back("feed")
                await reading
            except Exception as error:
                self.failures.report("feed", error, f"read again in {pause_seconds:.0f} s", out=True)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, FEED_PAUSE_MOST_SECONDS)
            try:
                self._feed = self._make_feed()
            except GangwatchError as error:
                _log.error("the feed's credentials: %s", error)  # the old feed's are tried again

    def _make_feed(self) -> Feed:
        take = self._watch.offer if self._named is None else self._take
        return Feed(
            self.folder / "agents", take, WANTED, self._clock, self._credentials, self._watch.between,
            self.failures.report, self._placements.reached,
        )  # fmt: skip

    def end_streams(self) -> None:
        """End the API's endless answers, so that its server can stop. In the loop that serves them."""
        self.subscribers.close()

    def api(self, more: Sequence[Route] = ()) -> Starlette:
        """The API's app, for the front door to mount. more: routes beside its own, behind the same login."""
        return create_api(self, more)

    @property
    def token(self) -> str:
        """The state folder's token, as its file has it now."""
        return self.access.tokens.state_token()

    # --- what others see ----------------------------------------------------------------------------------------------

    def measures(self) -> list[Sample]:
        """Samples of the catalogue: of state, cycle, store, watch and feed; from any thread. A part whose samples can't
        be taken because of a bug has none."""
        found: list[Sample] = []
        parts = (self.cycle, self._watch, self._feed, self.desk, self.subscribers, self.access, self.audit)
        for part in parts:
            try:
                found += list(part.measures())
            except Exception as error:
                self.failures.report("metrics", error, type(part).__name__)
        return found

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None:
        """How fast the gang has gone lately, after the row of this sequence; from any thread, may wait a moment."""
        return self._watch.pace_of(gang, sequence, most)

    def hearing(self) -> dict[str, Hearing]:
        """Of each node's agent whether it is heard, by node; from any thread."""
        return hearing_of(list(self._feed.streams.values()), self._clock.monotonic_ns(), self._clock.wall_ns())

    def speeds(self) -> dict[str, Speed]:
        """How fast each gang runs now, by gang; from any thread, may wait a moment."""
        return self._watch.speeds()

    def alive(self) -> tuple[bool, str]:
        """Whether the cycle's thread takes its turns and the API's loop answers, and if not, what is stuck.

        A controller that is not alive is to be started anew; one that is not ready may be waiting for a disk or an API
        server, which a new start does not bring back.
        """
        stuck = self.cycle.progress.stuck()
        served_ns = self._served_ns
        if not stuck and served_ns is not None:
            served_seconds = (self._clock.monotonic_ns() - served_ns) / 1e9
            if served_seconds > STUCK_SECONDS:
                stuck = f"the API's thread has been stuck for {served_seconds:.0f} s"
        return not stuck, stuck

    async def shared_speeds(self) -> Mapping[str, Speed]:
        """``speeds``, of this half second: readers at one time share one look. In the loop that serves the API."""
        now_s = asyncio.get_running_loop().time()
        kept = self._speeds
        if kept is None or now_s - kept[0] > SPEEDS_SECONDS:
            task = asyncio.ensure_future(asyncio.to_thread(self.speeds))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            kept = self._speeds = now_s, task
        return await asyncio.shield(kept[1])

    def shared_hearing(self) -> Mapping[str, Hearing]:
        """``hearing``, of this half second: readers at one time share it. From any thread."""
        now_s = time.monotonic()
        kept = self._hearing
        if kept is None or now_s - kept[0] > SPEEDS_SECONDS:
            kept = self._hearing = now_s, self.hearing()
        return kept[1]

    def scheduling(self) -> tuple[bool, str]:
        """Whether jobs are scheduled, and if not, why."""
        if self.failure is not None:
            return False, f"a bug ended a part of the controller: {type(self.failure).__name__}: {self.failure}"
        return self.cycle.ready()

    def ready(self) -> tuple[bool, str]:
        """Whether jobs are scheduled and watched, and if not, why."""
        ready, reason = self.scheduling()
        broken = self.failures.out_of_service()
        return (ready and not broken), reason or broken

    # --- operators' wishes that concern the whole ---------------------------------------------------------------------

    async def freeze(self, by: str) -> str:
        """Let no action pass from now on; a warning where that is not in the journal yet, else ''.

        Raises StoreError where it would not outlast this process.
        """
        await asyncio.to_thread(self._gate.shut)
        try:
            await self._wish(FreezeSet(True, by))
        except StoreError as error:
            # A thaw that was under way may have opened the gate meanwhile.
            await asyncio.to_thread(self._gate.shut)
            return f"frozen; the journal will hold it once it can be written: {error}"
        return ""

    async def thaw(self, by: str) -> None:
        """Let actions pass again. Raises StoreError where that can't be journalled: everything stays frozen then."""
        await self._wish(FreezeSet(False, by))

    async def reload(self, by: str) -> None:
        """Read the configuration again and go by its policy. Raises ConfigError, and nothing changes then."""
        if self._reload is None:
            raise ConfigError("this controller was given no configuration that could be read again")
        policy = await asyncio.to_thread(self._reload)
        await self._wish(PolicySet(policy, by))

    async def _reload_and_log(self) -> None:
        try:
            await self.reload("SIGHUP")
        except GangwatchError as error:
            _log.error("reload refused, everything stays as it was: %s", error)
        else:
            _log.info("reloaded")

    async def _wish(self, event: Event) -> None:
        await asyncio.wrap_future(self.cycle.wish(lambda _: event))

    # --- from the threads ---------------------------------------------------------------------------------------------

    def _take(self, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        assert self._named is not None, "frames pass through it"
        self._watch.offer(*self._named(layout, frame), received_ns)

    def _found(self, events: Sequence[Event]) -> None:
        try:
            heard = events if self._heard is None else self._heard(events)
        except Exception as error:
            self.failures.report("verdicts", error, f"{len(events)} lost")
            return
        self.cycle.tell(heard)

    def _written(self, events: Sequence[Event], entries: Sequence[NumberedEntry]) -> None:
        for event in events:
            if isinstance(event, AttemptEnded):
                self._watch.forget(event.job_id)
        if entries:
            self.subscribers.wrote(entries)
            if self._told is not None:
                self._told(entries)

    def _died(self, error: BaseException) -> None:
        self.failure = self.failure or error
        if (tell := self._on_failure) is not None:
            tell()


# --- files of the state folder ----------------------------------------------------------------------------------------


def _hold(path: Path) -> int:
    """Lock the file for as long as the descriptor is open, with this pid in it. Raises StateFolderBusyError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateFolderBusyError(f"a controller (pid {holder}) already runs for {path.parent}") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _refuse_emptied(journal: Path, jobs: Path) -> None:
    """Raise StoreError where the journal has no byte left though attempts of jobs are recorded beside it."""
    if journal.exists() and not journal.stat().st_size and jobs.is_dir() and any(jobs.iterdir()):
        raise StoreError(
            f"{journal}: it is empty, but {jobs} has records of jobs: it was truncated. {UNCHANGED}. Put back a copy "
            "made by `gangwatch backup`. Only where there is none, remove it to begin with an empty journal: that one "
            "knows no job, and ends what runs"
        )


def _make_token(path: Path) -> None:
    """The API's token; made at the first start. A finished file is linked: nobody ever reads half of one."""
    if not path.exists():
        temporary = path.with_name(f".token.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_urlsafe(32).encode())
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.close(descriptor)
            temporary.unlink()


def _write_atomically(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _start_time() -> int:
    """Start of this process in clock ticks since boot (field 22 of /proc/PID/stat; names may hold anything)."""
    return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
