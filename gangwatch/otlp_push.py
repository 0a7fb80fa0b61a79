"""What the controller pushes by OTLP: its own series, and each job's life as a trace.

Nothing waits for it: the cycle puts its entries in a bounded queue, a thread here makes spans of them once a second,
and an outbox (exporter/push/push.py) sends them. What is lost is counted, and harms nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Protocol, TypeVar

from agent.schema.errors import GangwatchError
from agent.schema.span import Span
from exporter.otlp.otlp_samples import OtlpSamples, Scrape, scrape
from exporter.otlp.otlp_spans import OtlpSpans
from exporter.prometheus.text_format import Sample
from exporter.push.push import Outbox, PushTarget
from scheduler_feedback.api.job_spans import MOST_LINKS, About, Traces
from scheduler_feedback.core.actions import Entry
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import explain

if TYPE_CHECKING:
    from scheduler_feedback.controller.cycle_thread import CycleThread
    from scheduler_feedback.journal.store import NumberedEntry, Reader

GATHER_SECONDS = 1.0
"""Spans of so long go in one request."""

MOST_ENTRIES = 65_536
"""Entries that wait to be made spans of: minutes of a busy controller's."""

MOST_BATCHES = 1000
"""Requests of spans that wait while the receiver is away: a quarter of an hour in which something ends every second."""

MOST_SPANS = 512
"""In a request: what OpenTelemetry's own SDKs put in one (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)."""

ASK_SECONDS = 5.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Told(Protocol):
    """What is pushed of a controller."""

    cycle: CycleThread

    @property
    def store(self) -> Reader: ...

    def measures(self) -> Iterable[Sample]: ...


class OtlpPush:
    """Pushes until stopped. metrics, traces: where to; None: not at all. resource: attributes of this controller.

    Raises ConfigError for an endpoint or a file that can't be used.
    """

    def __init__(self, metrics: PushTarget | None, traces: PushTarget | None, resource: dict[str, str]) -> None:
        self._interval_seconds = metrics.interval_seconds if metrics is not None else 0.0
        samples, spans = OtlpSamples(resource, time.time_ns()), OtlpSpans(resource)
        self._metrics: Outbox[Scrape] | None = None
        self._spans: Outbox[Sequence[Span]] | None = None
        if metrics is not None:
            self._metrics = Outbox(samples, metrics, samples.encode, metrics.queue_frames)
        if traces is not None:
            self._spans = Outbox(spans, traces, spans.encode, MOST_BATCHES, "otlp", "traces_endpoint")
        self._entries: deque[NumberedEntry] = deque(maxlen=MOST_ENTRIES)
        self._told = self._taken = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def told(self, entries: Sequence[NumberedEntry]) -> None:
        """Entries of a cycle, on its thread. Never waits."""
        if self._spans is not None:
            self._told += len(entries)
            self._entries.extend(entries)

    def start(self, controller: Told) -> None:
        for outbox in (self._metrics, self._spans):
            if outbox is not None:
                outbox.start()
        self._thread = threading.Thread(target=self._run, args=(controller,), name="otlp", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, once what has been told is on its way: what waits is sent as ``Outbox.stop`` does."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(ASK_SECONDS)
        for outbox in (self._metrics, self._spans):
            if outbox is not None:
                outbox.stop()

    def measures(self) -> Iterator[Sample]:
        """Its own series."""
        if self._metrics is not None:
            yield from self._metrics.measures()
        if self._spans is not None:
            lost = max(self._told - self._taken - len(self._entries), 0)
            for name, labels, value in self._spans.measures():
                is_lost = name == "gangwatch_push_dropped_total" and ("reason", "queue full") in labels
                yield name, labels, value + lost if is_lost else value

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, controller: Told) -> None:
        asking = _Asking(controller)
        traces = Traces(asking.about, asking.earlier, asking.held_up_by)
        due_s = time.monotonic()
        stopping = False
        while not stopping:
            stopping = self._stop.wait(GATHER_SECONDS)
            try:
                self._fold(traces)
                if self._metrics is not None and time.monotonic() >= due_s:
                    due_s = max(due_s + self._interval_seconds, time.monotonic())
                    self._metrics.put(scrape(time.time_ns(), [*controller.measures(), *self.measures()]))
            except Exception:
                # A bug of ours in what people look at: the controller goes on, and so does the next round.
                _log.exception("push otlp: a round was left out; it is a bug, please report it")

    def _fold(self, traces: Traces) -> None:
        ended: list[Span] = []
        for _ in range(len(self._entries)):
            numbered = self._entries.popleft()
            self._taken += 1
            ended += traces.take(numbered.entry_id, numbered.entry)
        if self._spans is not None:
            for first in range(0, len(ended), MOST_SPANS):
                self._spans.put(ended[first : first + MOST_SPANS])


class _Asking:
    """What traces ask of a controller. Nothing is known where it doesn't answer: it is stopping, or busy for long."""

    def __init__(self, controller: Told) -> None:
        self._controller = controller

    def about(self, job_id: str) -> About | None:
        def asked(state: State) -> About | None:
            job = state.jobs.get(job_id)
            return None if job is None else _about(job)

        return self._ask(asked, None)

    def held_up_by(self, job_id: str) -> Sequence[str]:
        def asked(state: State) -> list[str]:
            explained = explain(state, job_id)
            return [] if explained is None else [one.job_id for one in explained.waits_for[:MOST_LINKS]]

        return self._ask(asked, [])

    def earlier(self, job_id: str, entry_id: int) -> Sequence[Entry]:
        try:
            entries = self._controller.store.entries_of(job_id)
        except GangwatchError as error:
            _log.warning("push otlp: the trace of %s begins late: %s", job_id, error)
            return ()
        return [numbered.entry for numbered in entries if numbered.entry_id < entry_id]

    def _ask(self, question: Callable[[State], _T], otherwise: _T) -> _T:
        try:
            return self._controller.cycle.ask(question).result(ASK_SECONDS)
        except (GangwatchError, FutureTimeoutError):
            return otherwise


def _about(job: Job) -> About:
    spec = job.spec
    attributes = (
        ("gangwatch.kind", spec.kind.value),
        ("gangwatch.queue", spec.queue),
        ("gangwatch.ranks", spec.ranks),
        ("gangwatch.user", spec.user),
    )
    return About(spec.name, job.submitted_ns, attributes)
