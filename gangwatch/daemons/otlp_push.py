"""Push of the controller's own metrics, and of each job's lifecycle as a trace, by OTLP.

The cycle appends its journal entries to a bounded queue, which never blocks it. Once a second, a thread converts
them to spans of a trace, and an outbox (exporter/push/push.py) sends the spans. Lost entries are counted.
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
from agent.schema.sample import AnySample, Sample, expanded
from agent.schema.span import Span
from exporter.otlp.otlp_metrics import OtlpSamples
from exporter.otlp.otlp_spans import OtlpSpans
from exporter.otlp.sample_metrics import Scrape, scrape
from exporter.push.push import Outbox
from exporter.push.target import PushTarget
from scheduler_feedback.api.job_spans import MOST_LINKS, About, Traces
from scheduler_feedback.core.actions import Entry
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import explain

if TYPE_CHECKING:
    from scheduler_feedback.controller.cycle_thread import CycleThread
    from scheduler_feedback.journal.store import NumberedEntry, Reader

GATHER_SECONDS = 1.0
"""Interval in seconds at which queued entries are turned into spans (the parts of a trace)."""

MOST_ENTRIES = 65_536
"""Maximum number of queued journal entries. A busy controller needs minutes to write this number of entries."""

MOST_BATCHES = 1000
"""Maximum number of requests with spans that wait to be sent: a quarter of an hour at one request per second."""

MOST_SPANS = 512
"""Maximum number of spans per request, as in OpenTelemetry's SDKs (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)."""

ASK_SECONDS = 5.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class PushedController(Protocol):
    """Interface of the controller that the push uses: its cycle, its journal and its metrics."""

    cycle: CycleThread

    @property
    def store(self) -> Reader: ...

    def measures(self) -> Iterable[AnySample]: ...


class OtlpPush:
    """Thread that pushes the controller's metrics and traces, until it is stopped.

    metrics, traces: targets; None disables the push of metrics or of traces. resource: attributes of this controller.
    Raises ConfigError for an endpoint or a file that can't be used.
    """

    def __init__(self, metrics: PushTarget | None, traces: PushTarget | None, resource: dict[str, str]) -> None:
        self._interval_seconds = metrics.interval_seconds if metrics is not None else 0.0
        self._metrics: Outbox[Scrape] | None = None
        self._spans: Outbox[Sequence[Span]] | None = None
        if metrics is not None:
            samples = OtlpSamples({**resource, **metrics.resource}, time.time_ns(), metrics.compression)
            self._metrics = Outbox(samples.delivery(metrics), metrics, metrics.queue_frames)
        if traces is not None:
            spans = OtlpSpans({**resource, **traces.resource}, traces.compression)
            self._spans = Outbox(spans.delivery(traces), traces, MOST_BATCHES)
        self._entries: deque[NumberedEntry] = deque(maxlen=MOST_ENTRIES)
        self._added = self._taken = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_entries(self, entries: Sequence[NumberedEntry]) -> None:
        """Add the journal entries of a cycle to the queue.

        The cycle's thread calls this function, which never blocks.
        """
        if self._spans is not None:
            self._added += len(entries)
            self._entries.extend(entries)

    def start(self, controller: PushedController) -> None:
        for outbox in (self._metrics, self._spans):
            if outbox is not None:
                outbox.start()
        self._thread = threading.Thread(target=self._run, args=(controller,), name="otlp", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after it has converted the queued entries to spans, and send the remaining spans."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(ASK_SECONDS)
        for outbox in (self._metrics, self._spans):
            if outbox is not None:
                outbox.stop()

    def measures(self) -> Iterator[Sample]:
        """Yield metrics about the push, for example the number of entries that were lost."""
        if self._metrics is not None:
            yield from self._metrics.measures()
        if self._spans is not None:
            lost = max(self._added - self._taken - len(self._entries), 0)
            for name, labels, value in self._spans.measures():
                is_lost = name == "gangwatch_push_dropped_total" and ("reason", "queue full") in labels
                yield name, labels, value + lost if is_lost else value

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, controller: PushedController) -> None:
        queries = _Queries(controller)
        traces = Traces(queries.about, queries.earlier, queries.held_up_by)
        due_s = time.monotonic()
        stopping = False
        while not stopping:
            stopping = self._stop.wait(GATHER_SECONDS)
            try:
                self._fold(traces)
                if self._metrics is not None and time.monotonic() >= due_s:
                    due_s = max(due_s + self._interval_seconds, time.monotonic())
                    self._metrics.put(scrape(time.time_ns(), [*expanded(controller.measures()), *self.measures()]))
            except Exception:
                # A bug in the push must not stop the controller; the next round may work.
                _log.exception("push otlp: a round failed and was skipped; this is a bug, please report it")

    def _fold(self, traces: Traces) -> None:
        ended: list[Span] = []
        for _ in range(len(self._entries)):
            numbered = self._entries.popleft()
            self._taken += 1
            ended += traces.take(numbered.entry_id, numbered.entry)
        if self._spans is not None:
            for first in range(0, len(ended), MOST_SPANS):
                self._spans.put(ended[first : first + MOST_SPANS])


class _Queries:
    """Queries to the controller about jobs, for traces.

    A result is empty if the controller does not respond in time.
    """

    def __init__(self, controller: PushedController) -> None:
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
            _log.warning("push otlp: the trace of %s lacks its earlier entries: %s", job_id, error)
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
