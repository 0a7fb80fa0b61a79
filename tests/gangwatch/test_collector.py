"""Push of metrics by agents and the controller to a real OpenTelemetry Collector and a real Prometheus 3."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from agent.schema.span import Span
from exporter.otlp.conventions import CONVENTIONS
from exporter.otlp.environment import otlp_target
from exporter.otlp.otlp_metrics import Otlp
from exporter.otlp.otlp_spans import OtlpSpans
from exporter.otlp.signals import METRICS, TRACES, Signal
from exporter.prometheus.exposition import EVERYTHING, expose
from exporter.push import push
from exporter.push.push import Outbox, Pusher
from exporter.push.target import Exporter, PushTarget
from tests import needs
from tests.exporter.certificates import Authority
from tests.exporter.collector import Collector, wait_until
from tests.exporter.sample_frames import small_frame
from tests.exporter.test_exposition import series_of
from tests.exporter.test_push import Source
from tests.gangwatch.front_door import front_door
from tests.ports import held_port

WAYS = ("own", "sdk", "grpc")
"""gangwatch's own exporter over HTTP, the SDK's over HTTP, and the SDK's over gRPC."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BACKOFF_LEAST_SECONDS", 0.05)
    monkeypatch.setattr(push, "BACKOFF_MOST_SECONDS", 0.2)


@pytest.fixture
def run() -> Iterator[Callable[[Collector], Collector]]:
    started: list[Collector] = []

    def begin(collector: Collector) -> Collector:
        started.append(collector)
        return collector.start()

    yield begin
    for collector in started:
        collector.stop()


def variables(collector: Collector, way: str) -> dict[str, str]:
    if way == "grpc":
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.http, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def target_of(signal: Signal, environ: dict[str, str], way: str, headers_file: Path | None = None) -> PushTarget:
    exporter: Exporter = "own" if way == "own" else "sdk" if way == "sdk" else "auto"
    target = otlp_target(
        PushTarget("", protocol="", exporter=exporter, interval_seconds=1.0, headers_file=headers_file), signal, environ
    )
    assert target is not None
    return target


def pusher_to(target: PushTarget, source: Source) -> Pusher:
    pusher = Pusher(Otlp(target), target, source, EVERYTHING)
    pusher.start()
    return pusher


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["http", "grpc"])
def test_variables_alone_send_everything_to_a_real_collector(
    tmp_path: Path, run: Callable[[Collector], Collector], way: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("client")
    collector = run(Collector(tmp_path, authority, is_mutual=True, token="Bearer abc="))
    with front_door(tmp_path) as door:
        door.environment |= variables(collector, way) | {
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc%3D",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.certificate),
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificate),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key),
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod%2Ceu,k8s.cluster.name=c1",
            "OTEL_SERVICE_NAME": "gpus",
        }
        door.up()
        job = door.submit("--name", "brief", "--ranks", "2", "--time-limit", "60", "--", "true")
        door.wait_for(job, "completed")

        def everything() -> bool:
            spans = {"queued", "placed", "running", "job brief"}
            metrics = {"gangwatch_host_load1", "gangwatch_host_memory_total_bytes", "gangwatch_cycles_total"}
            return spans <= collector.spans() and metrics <= collector.metrics()

        wait_until(everything, lambda: f"{collector.spans()}\n{collector.metrics()}\n{door.logs()}")
        resources = collector.resources()
    assert all(one["service.name"] == "gpus" for one in resources)
    assert all(one["deployment.environment"] == "prod,eu" and one["k8s.cluster.name"] == "c1" for one in resources)
    assert {one["service.instance.id"] for one in resources} == {"controller", "node-0", "node-1"}
    assert all(one["host.name"] and one["host.arch"] and one["os.type"] == "linux" for one in resources)


@pytest.mark.parametrize("way", WAYS)
def test_a_rotated_headers_file_is_used_without_a_restart(
    tmp_path: Path, run: Callable[[Collector], Collector], way: str
) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer one\n")
    collector = run(Collector(tmp_path, token="Bearer one"))
    source = Source()
    pusher = pusher_to(target_of(METRICS, variables(collector, way), way, headers), source)
    try:
        source.make(1)
        wait_until(lambda: pusher.sent == 1, collector.text)
        collector.set_token("Bearer two")
        source.make(2)
        wait_until(lambda: pusher.refused == 1, collector.text)
        rotated = tmp_path / "new"
        rotated.write_text("Authorization: Bearer two\n")
        rotated.replace(headers)
        source.make(3)
        wait_until(lambda: pusher.sent == 2, collector.text)
    finally:
        pusher.stop()
    assert (pusher.sent, pusher.failures, pusher.refused, pusher.dropped_full) == (2, 1, 1, 0)


@pytest.mark.parametrize("way", WAYS)
def test_frames_arrive_after_a_collector_was_down(
    tmp_path: Path, run: Callable[[Collector], Collector], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    collector = run(Collector(tmp_path))
    source = Source()
    pusher = pusher_to(target_of(METRICS, variables(collector, way), way), source)
    try:
        source.make(1)
        wait_until(lambda: pusher.sent == 1, collector.text)
        collector.stop()
        source.make(2)
        source.make(3)
        wait_until(lambda: pusher.failures >= 2, collector.text)
        assert pusher.sent == 1
        collector.start()
        wait_until(lambda: pusher.sent == 3, collector.text)
    finally:
        pusher.stop()
    assert (pusher.refused, pusher.dropped_full) == (0, 0)
    assert collector.text().count("-> Name: gangwatch_host_load1\n") == 3
    assert "the receiver accepts frames" in caplog.text or caplog.text.count("push otlp to") <= 2


@pytest.mark.parametrize("way", WAYS)
def test_only_a_verified_collector_gets_data_and_certificates_are_rotated(
    tmp_path: Path, run: Callable[[Collector], Collector], way: str
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    collector = run(Collector(tmp_path, authority, is_mutual=True))
    certificate, key = stranger.sign("agent")
    ca_file = tmp_path / "trusted.pem"
    ca_file.write_bytes(stranger.certificate.read_bytes())
    environ = variables(collector, way) | {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(ca_file),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key),
    }
    source = Source()
    pusher = pusher_to(target_of(METRICS, environ, way), source)
    try:
        source.make(1)
        wait_until(lambda: pusher.failures, collector.text)
        assert pusher.sent == 0 and not collector.metrics(), "the collector's certificate is not trusted"
        ca_file.write_bytes(authority.certificate.read_bytes())
        failures = pusher.failures
        wait_until(lambda: pusher.failures > failures + 2, collector.text)
        assert pusher.sent == 0 and not collector.metrics(), "the collector does not trust the client"
        for old, new in zip((certificate, key), authority.sign("agent"), strict=True):
            new.replace(old)
        wait_until(lambda: pusher.sent == 1, collector.text)
    finally:
        pusher.stop()


@pytest.mark.parametrize("way", WAYS)
def test_spans_keep_their_ids_times_and_links(tmp_path: Path, run: Callable[[Collector], Collector], way: str) -> None:
    from agent.schema.span import Link, SpanEvent

    collector = run(Collector(tmp_path))
    target = target_of(TRACES, variables(collector, way), way)
    outbox = Outbox(OtlpSpans({"service.name": "x"}).delivery(target), target, 10)
    outbox.start()
    second_ns = 10**9
    trace, root, child, other = b"t" * 16, b"r" * 8, b"c" * 8, b"o" * 8
    event = SpanEvent(1_700_000_001 * second_ns, "first step", (("seconds", 1.5),))
    link = Link(b"u" * 16, other, (("gangwatch.job", "j-000001"),))
    begin_ns, end_ns = 1_700_000_000 * second_ns, 1_700_000_009 * second_ns
    pairs = (("gangwatch.ranks", 8), ("share", 0.25), ("gangwatch.user", "Zo\u00eb\udc80"))
    try:
        outbox.put(
            [
                Span(trace, root, b"", "job a", begin_ns, end_ns, failed="exited with 3"),
                Span(trace, child, root, "queued", begin_ns, end_ns, pairs, (event,), (link,)),
            ]
        )
        wait_until(lambda: outbox.sent == 1, collector.text)
    finally:
        outbox.stop()
    wait_until(lambda: "Span #1" in collector.text(), collector.text)
    text = collector.text()
    for line in (
        f"Trace ID       : {trace.hex()}",
        "Parent ID      : \n    ID             : " + root.hex(),
        f"Parent ID      : {root.hex()}\n    ID             : {child.hex()}",
        "Start time     : 2023-11-14 22:13:20 +0000 UTC",
        "End time       : 2023-11-14 22:13:29 +0000 UTC",
        "Status code    : Error\n    Status message : exited with 3",
        "Status code    : Ok",
        "-> gangwatch.ranks: Int(8)",
        "-> share: Double(0.25)",
        "-> gangwatch.user: Str(Zo\u00eb?)",
        "-> Name: first step",
        "-> seconds: Double(1.5)",
        f"-> Trace ID: {(b'u' * 16).hex()}",
        f"-> ID: {other.hex()}",
        "-> gangwatch.job: Str(j-000001)",
    ):
        assert line in text, f"{line}\n{text}"


@pytest.mark.parametrize("way", ["own", "sdk"])
def test_a_real_prometheus_receives_otlp_under_the_names_of_the_catalogue(tmp_path: Path, way: str) -> None:
    program = needs.otlp_program("prometheus")
    address = f"127.0.0.1:{held_port()}"
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    process = subprocess.Popen(
        [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address={address}", "--web.enable-otlp-receiver", "--log.level=error"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(path: str) -> str:
        try:
            with urlopen(f"http://{address}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except (URLError, OSError):
            return ""

    try:
        wait_until(lambda: ask("/-/ready"), lambda: "Prometheus does not start", 120.0)
        source = Source()
        environ = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{address}/api/v1/otlp/v1/metrics"}
        pusher = pusher_to(target_of(METRICS, environ, way), source)
        now_ns = time.time_ns() - 10 * 10**9
        for seq in (1, 2, 3):
            source.make(seq, now_ns)
            wait_until(lambda seq=seq: pusher.sent + pusher.failures >= seq, lambda: str(pusher.failures))  # type: ignore[misc]
        pusher.stop()
        assert (pusher.sent, pusher.failures) == (3, 0)
        body = ask("/api/v1/query?query=" + quote('{job="gangwatch"}') + f"&time={now_ns / 1e9 + 4}")
    finally:
        process.terminate()
        process.wait(30)
    written = {
        (one["metric"].pop("__name__"), tuple(sorted(one["metric"].items()))): float(one["value"][1])
        for one in json.loads(body)["data"]["result"]
    }
    extra = (("instance", "n0"), ("job", "gangwatch"))
    expected = {
        (name, tuple(sorted((*(pair for pair in labels if pair[0] != "node"), *extra)))): value
        for (name, labels), value in series_of(expose(source.layout, small_frame(source.layout, 3))).items()
        if name not in CONVENTIONS
    }
    assert {key: value for key, value in written.items() if key[0].startswith("gangwatch_")} == expected
    powers = {dict(labels)["hw_id"]: value for (name, labels), value in written.items() if name == "hw_power_watts"}
    assert powers.keys() == {"GPU-1", "GPU-2"}
