"""The cycle's thread, which owns the state, the store and the backend.

One pass::

    1  receive messages: answer questions at once, turn requests and verdicts into events
    2  observe the backend
    3  in one transaction: write the events, run the cycle, write its decisions       (commit: fsync)
    4  answer the requests: they are durable
    5  carry out the actions unless frozen; write their outcomes

A cycle that cannot be stored has no effect. The inputs are written before the cycle runs, so a full disk is usually
noticed before the state changes. If only the commit fails, the state is rebuilt from the store. While the store fails
no cycle runs: observations and verdicts are queued, requests are refused, and a small write is tried once a second.

Cycles without a change are not journalled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from agent.schema.clock import Clock
from agent.schema.errors import StoreError
from agent.schema.sample import AnySample
from scheduler_feedback.api.reading.state_snapshots import Snapshots
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.controller.backend_calls import BackendCalls
from scheduler_feedback.controller.cycle_hooks import CycleHooks
from scheduler_feedback.controller.freeze_switch import FreezeSwitch
from scheduler_feedback.controller.inbox import Inbox, Question, StoppedError, UserRequest
from scheduler_feedback.controller.progress import Progress
from scheduler_feedback.controller.state_samples import StateSamples
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.events import ActionFailed, Event, FreezeSet, PolicySet, Tick
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.cycle import run
from scheduler_feedback.journal.recovery import Recovered, recover
from scheduler_feedback.journal.store import Store

POLL_SECONDS = 0.15
TICK_SECONDS = 1.0
SNAPSHOT_SECONDS = 60.0

RETRY_SECONDS = 1.0
"""Seconds between two attempts to write to a failing store."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class CycleThread:
    """The thread that runs cycles until stopped. Its public methods may be called from any thread."""

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        backend: Backend,
        freeze_switch: FreezeSwitch,
        policy: Policy,
        clock: Clock,
        hooks: CycleHooks,
        snapshot_seconds: float = SNAPSHOT_SECONDS,
    ) -> None:
        self._store = store
        self._state = recovered.state
        self._backend = BackendCalls(backend)
        self._freeze_switch = freeze_switch
        self._clock, self._hooks = clock, hooks
        self._snapshot_seconds = snapshot_seconds
        self._inbox = Inbox()
        self.progress = Progress(clock)
        self.snapshots = Snapshots(recovered.state, clock, self._inbox.wake)
        self._thread = threading.Thread(target=self._main, name="cycle", daemon=True)
        self._stop = False
        self._job_number = store.job_number
        self._observed: list[Event] = []
        if self._state.policy != policy:
            self._observed.append(PolicySet(policy, "configuration"))
        self._unrecorded: list[tuple[str, str]] = []
        self._observe_ns = self._nodes_ns = self._tick_ns = self._retry_ns = 0
        self._snapshot_ns = clock.monotonic_ns()
        self._ready = False
        self._store_trouble = ""
        self._counters = {
            "gangwatch_store_failures_total": 0,
            "gangwatch_replay_mismatches_total": recovered.mismatches,
        }
        self._state_is_ahead = False  # of the store: a commit failed after the cycle had run
        self._cycle_seconds = 0.0
        self._samples = StateSamples(hooks.measures, hooks.failed, clock)
        self._baselines: Mapping[str, bytes] = recovered.detectors
        self._place()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """Finish the current pass, write a snapshot and end. Return whether the thread ended in time."""
        self._stop = True
        self._inbox.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def ask(self, question: Callable[[State], _T]) -> Future[_T]:
        """Run `question` on the state between two cycles. It must not change the state, or keep parts of the state."""
        answer: Future[_T] = Future()
        self._inbox.put(Question(question, answer))
        return answer

    def request(self, make: Callable[[State], Event]) -> Future[Event]:
        """Process a user request. `make` builds the event from the current state, or raises if the request is invalid.

        The future returns the event once it is durable, or raises what `make` raised, or StoreError.
        """
        answer: Future[Event] = Future()
        self._inbox.put(UserRequest(make, answer))
        return answer

    def report(self, events: Sequence[Event]) -> None:
        """Queue observations and detector results for the next cycle."""
        self._inbox.report(events)

    def cycles(self) -> int:
        """Return the number of finished cycles."""
        return self.progress.cycles

    def new_job_id(self) -> str:
        """Return a new job id. Only for use on the thread, inside a request."""
        self._job_number += 1
        return f"j-{self._job_number:06d}"

    def ready(self) -> tuple[bool, str]:
        """Return whether cycles run, and if not, why."""
        trouble = self._store_trouble or self._backend.obstacle()
        if not self._inbox.open:
            return False, "the controller is stopping or has failed"
        if trouble or (trouble := self.progress.late()):
            return False, trouble
        return self._ready, "" if self._ready else "starting"

    def measures(self) -> list[AnySample]:
        """Return the thread's own metrics, and those of the state at the last tick."""
        return [
            *self._samples.newest,
            *((name, (), float(value)) for name, value in self._counters.items()),
            ("gangwatch_backend_failures_total", (), float(self._backend.failures)),
            ("gangwatch_cycles_total", (), float(self.progress.cycles)),
            ("gangwatch_cycle_duration_seconds", (), self._cycle_seconds),
            ("gangwatch_cycle_age_seconds", (), self.progress.cycle_age_seconds()),
            ("gangwatch_snapshot_duration_seconds", (), self.snapshots.seconds),
        ]

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self.progress.begin()
        try:
            self._carry_out_again()
            while not self._stop:
                self._pass()
                self.progress.pass_finished()
            if not self._store_trouble:
                self._snapshot()
        except BaseException as error:
            _log.critical("the cycle's thread has ended: this is a bug, please report it", exc_info=error)
            self._hooks.died(error)
        finally:
            self._inbox.close()
            self.snapshots.close()

    def _pass(self) -> None:
        wait_seconds = POLL_SECONDS if self._state_is_ahead else self.snapshots.wait_seconds(POLL_SECONDS)
        self.progress.doing("waiting for events")
        arrived = self._inbox.take(wait_seconds)
        self.progress.doing("answering questions about the state")
        self._observed += arrived.events
        for question in arrived.questions:
            question.put_to(self._state)
        now_ns = self._clock.monotonic_ns()
        if self._store_trouble and not self._try_store(now_ns):
            _refuse(arrived.requests, StoreError(self._store_trouble))
            if not self._state_is_ahead:
                self.snapshots.publish(self._state)
            return
        self._observe(now_ns)
        due = now_ns - self._tick_ns >= TICK_SECONDS * 1e9
        if arrived.requests or self._observed or due:
            try:
                self._cycle(arrived.requests)
            except BaseException as error:
                _refuse(arrived.requests, StoppedError(f"a bug ended the controller: {type(error).__name__}"))
                raise
        if due:
            self._tick_ns = now_ns
            self._samples.update(self._state)
            self._measure_shared(now_ns)
            if self._freeze_switch.set_by_hand(self._state.frozen):
                self._observed.append(self._freeze_switch.event())
        if not self._state_is_ahead:
            self.snapshots.publish(self._state)
        if self._unrecorded:
            self._record_outcomes()
        if now_ns - self._snapshot_ns >= self._snapshot_seconds * 1e9 and not self._store_trouble:
            self._snapshot()

    # --- 2: what happened ---------------------------------------------------------------------------------------------

    def _observe(self, now_ns: int) -> None:
        if now_ns - self._observe_ns < POLL_SECONDS * 1e9:
            return
        self._observe_ns = now_ns
        self.progress.doing("reading from the backend")
        with_nodes = now_ns - self._nodes_ns >= TICK_SECONDS * 1e9
        if with_nodes:
            self._nodes_ns = now_ns
        self._observed += self._backend.observe(self._state, self._observed, with_nodes=with_nodes)

    def _measure_shared(self, now_ns: int) -> None:
        """Add measured speeds and latencies of jobs that share slots to the observations of the next cycle."""
        for measure in self._hooks.shared:
            try:
                self._observed += measure(self._state, now_ns)
            except Exception as error:
                self._hooks.failed("speeds", error)

    # --- 3: the cycle -------------------------------------------------------------------------------------------------

    def _cycle(self, requests: Sequence[UserRequest]) -> None:
        granted: list[tuple[UserRequest, Event]] = []
        for request in requests:
            if request.answer.set_running_or_notify_cancel():
                try:
                    granted.append((request, request.make(self._state)))
                except Exception as error:  # invalid, or a bug in it: the state is unchanged
                    request.answer.set_exception(error)
        events = [*self._observed, *(event for _, event in granted)] or [Tick()]
        now_ns = max(self._clock.wall_ns(), self._state.now_ns)
        began_ns = self._clock.monotonic_ns()
        ran = False
        self.progress.doing("deciding, and writing the journal to disk")
        try:
            with self._store.cycle(self._state.cycle + 1, now_ns, events) as record:
                ran = True
                outcome = run(self._state, events, now_ns)
                if outcome.changed:
                    record.decided(outcome.actions, outcome.entries)
                else:
                    record.discard()
        except StoreError as error:
            self._store_failed(error, ran)
            _refuse((request for request, _ in granted), error)
            return
        self._observed = []
        if outcome.changed:
            self._place()
        self._ready = self._backend.responded
        self.progress.cycle_finished()
        self._cycle_seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
        self.snapshots.changed(answered=bool(granted))
        switch_error = self._set_switch(events)
        for request, event in granted:
            if switch_error is not None and isinstance(event, FreezeSet):
                request.answer.set_exception(switch_error)
            else:
                request.answer.set_result(event)
        try:
            self._hooks.written(events, record.entries)
        except Exception as error:
            self._hooks.failed("entries", error)
        self.snapshots.publish(self._state, needed=bool(granted))  # before the actions, which may take long
        for action in outcome.actions:
            self._carry_out(action)
            # A backend that is slow with many actions is not stuck.
            self.progress.pass_finished()

    def _place(self) -> None:
        try:
            self._hooks.placed(self._state.jobs.values())
        except Exception as error:
            self._hooks.failed("placement", error)

    # --- freeze -------------------------------------------------------------------------------------------------------

    def _set_switch(self, events: Sequence[Event]) -> StoreError | None:
        """If these journalled events change the freeze, set the freeze switch. Return the error if that fails, else
        None.
        """
        if any(isinstance(event, FreezeSet) for event in events):
            try:
                self._freeze_switch.follow(self._state.frozen)
            except StoreError as error:
                _log.error("%s", error)
                return error
        return None

    def _store_failed(self, error: StoreError, ran: bool) -> None:
        self._counters["gangwatch_store_failures_total"] += 1
        if not self._store_trouble:
            _log.error("journal: %s. No cycle runs until it is writable again; jobs keep running", error)
        self._store_trouble = str(error)
        self._retry_ns = self._clock.monotonic_ns()
        self._state_is_ahead |= ran
        if self._state_is_ahead:
            self._go_back()

    def _go_back(self) -> None:
        """Rebuild the state from the store. This drops the changes that were not written."""
        try:
            recovered = recover(self._store)
        except StoreError as error:
            _log.error("journal: the state cannot be rebuilt yet: %s", error)
        else:
            self._state = recovered.state
            self._place()
            self._state_is_ahead = False
            self.snapshots.changed()
            self._counters["gangwatch_replay_mismatches_total"] += recovered.mismatches

    def _try_store(self, now_ns: int) -> bool:
        if now_ns - self._retry_ns < RETRY_SECONDS * 1e9:
            return False
        self._retry_ns = now_ns
        self.progress.doing("testing whether the journal is writable again")
        try:
            self._store.probe()
        except StoreError as error:
            self._store_failed(error, ran=False)
            return False
        if self._state_is_ahead:
            self._go_back()
            if self._state_is_ahead:
                return False
        _log.info("journal: writable again")
        self._store_trouble = ""
        return True

    # --- 5: actions ---------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        # A freeze blocks gangwatch's decisions, but not a user's cancellation of a job.
        cancel = isinstance(action, StopGang) and action.why is StopReason.CANCEL
        if self._freeze_switch.is_on() and not cancel:
            outcome = "withheld: frozen"
            # The next cycle knows of the freeze, and does not decide the same again.
            self._observed.append(self._freeze_switch.event())
            self._observed.append(ActionFailed(action.action_id, action.job_id, "all actions are frozen"))
        else:
            outcome = self._apply(action)
        self._unrecorded.append((action.action_id, outcome))

    def _apply(self, action: Action) -> str:
        self.progress.doing(f"carrying out {action.action_id} of {action.job_id}")
        error = self._backend.apply(action)
        if error is None:
            return "applied"
        self._observed.append(ActionFailed(action.action_id, action.job_id, str(error)))
        return f"failed: {error}"

    def _carry_out_again(self) -> None:
        """Carry out again the actions whose outcome was not recorded before the restart.

        A repeated action has no further effect. During a freeze, starts of gangs are not repeated; ``observe`` then
        detects whether the gang was started before the restart.
        """
        for action in self._store.open_actions():
            self.progress.pass_finished()
            job = self._state.jobs.get(action.job_id)
            if job is None or job.attempt != action.attempt or not job.state.holds_slots:
                self._unrecorded.append((action.action_id, "superseded"))
            elif isinstance(action, StartGang) and (self._freeze_switch.is_on() or self._state.frozen):
                self._unrecorded.append((action.action_id, "withheld: frozen at a restart"))
            else:
                self._carry_out(action)
        if self._unrecorded:
            _log.info("%d actions without a recorded outcome were settled", len(self._unrecorded))

    def _record_outcomes(self) -> None:
        self.progress.doing("writing the outcomes of actions to disk")
        try:
            self._store.outcomes(self._unrecorded, self._clock.wall_ns())
        except StoreError as error:
            self._store_failed(error, ran=False)
        else:
            self._unrecorded = []

    def _snapshot(self) -> None:
        self._snapshot_ns = self._clock.monotonic_ns()
        self.progress.doing("writing a snapshot to disk")
        living = [job.job_id for job in self._state.jobs.values() if not job.state.ended]
        try:
            self._baselines = self._hooks.baselines()
        except Exception as error:
            self._hooks.failed("baselines", error)
        try:
            self._store.snapshot(self._state.cycle, self._state.now_ns, self._state, self._baselines, living)
        except StoreError as error:
            self._store_failed(error, ran=False)


def _refuse(requests: Iterable[UserRequest], error: Exception) -> None:
    for request in requests:
        request.refuse(error)
