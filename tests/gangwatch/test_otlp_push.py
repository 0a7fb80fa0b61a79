"""OTLP push of the controller to a receiver that decodes it with OpenTelemetry's own classes."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from agent.schema.catalog import BY_NAME
from agent.schema.errors import ConfigError
from exporter.otlp.resource import resource_of_controller
from exporter.push import push as push_module
from exporter.push.target import PushTarget
from gangwatch.configuration.config_file import load
from gangwatch.daemons import otlp_push as otlp_push_module
from gangwatch.daemons.controller_daemon import otlp_push_of
from gangwatch.daemons.otlp_push import OtlpPush
from scheduler_feedback.api.job_spans import root_id, trace_id
from scheduler_feedback.controller import cycle_thread as loop_module
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.actions import Entry
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy
from scheduler_feedback.journal.store import NumberedEntry
from tests.cluster.memory_backend import MemoryBackend, World
from tests.exporter.test_push import Receiver
from tests.web.findings import straggler


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_push_module, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(push_module, "BACKOFF_LEAST_SECONDS", 0.02)
    monkeypatch.setattr(push_module, "BACKOFF_MOST_SECONDS", 0.1)
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def submission(controller: Controller, ranks: int, name: str) -> str:
    spec = JobSpec(name, ("true",), ranks, time_limit_seconds=60)
    event = controller.cycle.request(lambda _: Submitted(controller.cycle.new_job_id(), spec)).result(20)
    assert isinstance(event, Submitted)
    return event.job_id


def spans_of(receiver: Receiver) -> list[ProtoSpan]:
    found = []
    for body in list(receiver.bodies):
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
        (resource,) = request.resource_spans
        assert {one.key: one.value.string_value for one in resource.resource.attributes} == {
            "host.name": "h",
        }
        found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


def test_a_job_arrives_as_a_trace_linked_to_the_job_that_delayed_it(tmp_path: Path, receiver: Receiver) -> None:
    world = World()
    push = OtlpPush(None, PushTarget(receiver.url), {"host.name": "h"})
    with Controller(
        tmp_path, MemoryBackend(world), Policy(), ControllerSettings(detectors=()), on_entries=push.add_entries
    ) as controller:
        push.start(controller)
        try:
            first, second = (submission(controller, ranks=4, name=name) for name in ("first", "second"))
            until(lambda: (first, 1) in world.attempts)
            controller.cycle.report([straggler(first)])
            until(lambda: bool(controller.cycle.ask(lambda state: len(state.verdicts)).result()))
            world.end(first)
            until(lambda: (second, 1) in world.attempts)
            world.end(second, exit_code=3)
            until(lambda: sum(span.name.startswith("job ") for span in spans_of(receiver)) == 2)
            submitted = controller.cycle.ask(
                lambda state: {job_id: job.submitted_ns for job_id, job in state.jobs.items()}
            ).result()
            measured = {name: value for name, _, value in push.measures()}
        finally:
            push.stop()
    spans = spans_of(receiver)
    of_first, of_second = (
        {span.name: span for span in spans if span.trace_id == trace_id(job, submitted[job])} for job in (first, second)
    )
    accused = f"verdict: rank 0 of {first} on n0 is a straggler (suspended)"
    assert set(of_first) == {"queued", "placed", "running", accused, "job first"}
    assert of_first[accused].parent_span_id == of_first["running"].span_id
    assert {one.key for one in of_first[accused].attributes} >= {"verdict", "evidence run time", "step_seconds_now"}
    (link,) = of_second["queued"].links
    assert (link.trace_id, link.span_id) == (trace_id(first, submitted[first]), root_id(first, submitted[first]))
    assert of_second["queued"].end_time_unix_nano >= of_first["running"].end_time_unix_nano
    assert (of_first["job first"].status.code, of_second["job second"].status.code) == (1, 2)
    assert "exited with 3" in of_second["job second"].status.message
    assert not of_second["job second"].parent_span_id
    assert measured["gangwatch_push_failures_total"] == 0
    assert measured["gangwatch_push_sent_total"] >= 1


def test_spans_that_end_just_before_the_stop_are_delivered(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_push_module, "GATHER_SECONDS", 60.0)
    world = World()
    push = OtlpPush(None, PushTarget(receiver.url), {"host.name": "h"})
    with Controller(
        tmp_path, MemoryBackend(world), Policy(), ControllerSettings(detectors=()), on_entries=push.add_entries
    ) as controller:
        push.start(controller)
        job = submission(controller, ranks=4, name="brief")
        until(lambda: (job, 1) in world.attempts)
        world.end(job)
        until(lambda: controller.cycle.ask(lambda state: state.jobs[job].ended_ns is not None).result())
        push.stop()
    assert "job brief" in {span.name for span in spans_of(receiver)}


def test_the_controllers_series_keep_their_names(tmp_path: Path, receiver: Receiver) -> None:
    push = OtlpPush(PushTarget(receiver.url, interval_seconds=0.05), None, {"host.name": "h"})
    with Controller(
        tmp_path, MemoryBackend(World()), Policy(), ControllerSettings(detectors=()), on_entries=push.add_entries
    ) as controller:
        push.start(controller)
        until(lambda: len(receiver.bodies) >= 3)
        push.stop()
    request = ExportMetricsServiceRequest.FromString(gzip.decompress(receiver.bodies[-1]))
    found = {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"gangwatch_nodes", "gangwatch_slots", "gangwatch_frozen", "gangwatch_cycles_total"} <= set(found)
    assert "gangwatch_push_sent_total" in found
    for name, metric in found.items():
        assert metric.WhichOneof("data") == ("sum" if BY_NAME[name].kind == "counter" else "gauge")
    slots = {one.attributes[0].value.string_value: one.as_double for one in found["gangwatch_slots"].gauge.data_points}
    assert slots == {"free": 4.0, "unavailable": 0.0, "used": 0.0}
    cycles = found["gangwatch_cycles_total"].sum
    assert cycles.is_monotonic
    assert 0 < cycles.data_points[0].start_time_unix_nano < cycles.data_points[0].time_unix_nano


def test_a_missing_or_refusing_receiver_is_reported_and_affects_no_job(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp_push_module, "MOST_BATCHES", 2)
    monkeypatch.setattr(otlp_push_module, "MOST_SPANS", 1)
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 1
    partial.partial_success.error_message = "too old"
    receiver.answers = [(503, {}, b"busy"), (400, {}, b"no"), (200, {}, partial.SerializeToString())]
    receiver.hold.clear()
    world = World()
    push = OtlpPush(None, PushTarget(receiver.url), {"host.name": "h"})
    with Controller(
        tmp_path, MemoryBackend(world), Policy(), ControllerSettings(detectors=()), on_entries=push.add_entries
    ) as controller:
        push.start(controller)
        jobs = [submission(controller, ranks=1, name=f"n{n}") for n in range(4)]
        for job in jobs:
            until(lambda job=job: (job, 1) in world.attempts)  # jobs start although the receiver does not respond
            world.end(job)

        def dropped(reason: str) -> float:
            return sum(
                v for n, labels, v in push.measures() if n.endswith("dropped_total") and ("reason", reason) in labels
            )

        until(lambda: dropped("queue full") > 0)
        receiver.hold.set()
        until(lambda: len(receiver.bodies) >= 3 and dropped("refused") == 1)
        assert controller.ready() == (True, "")
        push.stop()
    log_text = caplog.text
    for words in ("the queue is full", "status 503: busy", "status 400: no", "1 spans refused: too old"):
        assert words in log_text


def test_the_push_queue_is_bounded_and_dropped_entries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_push_module, "MOST_ENTRIES", 10)
    push = OtlpPush(None, PushTarget("http://127.0.0.1:1/v1/traces"), {})
    push.add_entries([NumberedEntry(n, 1, Entry(1, "j", "waits", "")) for n in range(25)])
    lost = {labels: value for name, labels, value in push.measures() if name == "gangwatch_push_dropped_total"}
    assert lost[(("reason", "queue full"), ("sink", "otlp_traces"))] == 15


def test_variables_alone_configure_the_controllers_push(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/v1/metrics"))
    monkeypatch.setenv("OTEL_SERVICE_NAME", "scheduler")
    file = tmp_path / "gangwatch.toml"
    file.write_text("")
    push, world = otlp_push_of(load(file), "h"), World()
    with Controller(
        tmp_path, MemoryBackend(world), Policy(), ControllerSettings(detectors=()), on_entries=push.add_entries
    ) as controller:
        push.start(controller)
        job = submission(controller, ranks=4, name="brief")
        until(lambda: (job, 1) in world.attempts)
        world.end(job)
        until(lambda: {"/v1/metrics", "/v1/traces"} <= set(receiver.paths))
        push.stop()
    decoders = {
        "/v1/metrics": lambda body: ExportMetricsServiceRequest.FromString(body).resource_metrics,
        "/v1/traces": lambda body: ExportTraceServiceRequest.FromString(body).resource_spans,
    }
    for path, body in zip(receiver.paths, receiver.bodies, strict=True):
        (resource,) = decoders[path](gzip.decompress(body))
        assert {one.key: one.value.string_value for one in resource.resource.attributes} == {
            **resource_of_controller("h"),
            "service.name": "scheduler",
        }


def test_nothing_is_pushed_without_a_configured_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "gangwatch.toml"
    file.write_text("")
    assert list(otlp_push_of(load(file), "h").measures()) == []
    file.write_text('[otlp]\nendpoint = "http://a:4318/v1/metrics"\ntraces_endpoint = "http://b:4318/v1/traces"\n')
    sinks = {dict(labels)["sink"] for _, labels, _ in otlp_push_of(load(file), "h").measures()}
    assert sinks == {"otlp", "otlp_traces"}
    file.write_text('[otlp]\ntraces_endpoint = "tempo:4318"\n')
    with pytest.raises(ConfigError, match=r"otlp\.traces_endpoint: 'tempo:4318' is not an http or https URL"):
        otlp_push_of(load(file), "h")
