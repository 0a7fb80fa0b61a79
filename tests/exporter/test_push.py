"""Push to a receiver that decodes OTLP with OpenTelemetry's classes, to a real Prometheus, and to broken receivers."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from agent.schema.catalog import BY_NAME
from agent.schema.errors import ConfigError
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from exporter.otlp.conventions import CONVENTIONS, attribute_names
from exporter.otlp.http_protocol import partial_success
from exporter.otlp.otlp_metrics import Otlp
from exporter.otlp.resource import resource_of_node
from exporter.prometheus.exposition import EVERYTHING, Settings, expose
from exporter.push import push
from exporter.push.push import Pusher
from exporter.push.remote_write import RemoteWrite
from exporter.push.sinks import SINKS
from exporter.push.target import PushTarget
from tests import needs
from tests.exporter.certificates import Authority
from tests.exporter.sample_frames import exposed, frame_of, small_frame, small_layout
from tests.exporter.test_exposition import series_of
from tests.ports import held_port

WALL_NS = 1_700_000_000_000_000_000


class Source:
    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or small_layout()
        self.listeners: list[Callable[[Layout, Frame], None]] = []

    def newest(self) -> tuple[Layout, Frame] | None:
        return None

    def add_listener(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def make(self, seq: int, wall_ns: int = WALL_NS) -> Frame:
        """Publish the frame with number `seq`, whose time is `seq` seconds after `wall_ns`."""
        one = small_frame(self.layout, seq)
        at_ns = seq * 1_000_000_000
        frame = Frame(
            *(one.node, one.boot_id, one.agent_id, seq, one.layout_id, wall_ns + at_ns, at_ns, one.tier_ns * 0 + at_ns),
            *(one.gauges, one.counters, one.counters_valid),
        )
        for listener in list(self.listeners):
            listener(self.layout, frame)
        return frame


class Receiver:
    """HTTP server that keeps the posted bodies. It sends the responses in `answers`: (status, headers, body)."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.header_names: list[list[str]] = []
        self.paths: list[str] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.hold.wait(30)
                status, headers, answer = outer.answers.pop(0) if outer.answers else (200, {}, b"")
                outer.paths.append(self.path)
                outer.header_names.append([name.lower() for name in self.headers.keys()])  # noqa: SIM118 - with duplicates
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.bodies.append(body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        scheme = "https" if context is not None else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/v1/metrics"

    def requests(self) -> list[ExportMetricsServiceRequest]:
        return [ExportMetricsServiceRequest.FromString(gzip.decompress(body)) for body in self.bodies]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BACKOFF_LEAST_SECONDS", 0.02)
    monkeypatch.setattr(push, "BACKOFF_MOST_SECONDS", 0.1)


@pytest.fixture(params=["own", "sdk"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Pusher]]:
    running: list[Pusher] = []

    def begin(source: Source, target: PushTarget, settings: Settings = EVERYTHING) -> Pusher:
        pusher = Pusher(Otlp(PushTarget("")), replace(target, exporter=request.param), source, settings)
        pusher.start()
        running.append(pusher)
        return pusher

    yield begin
    for pusher in running:
        pusher.stop()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the condition was not true within 30 s"
        time.sleep(0.005)


def points_of(request: ExportMetricsServiceRequest) -> dict[tuple[str, tuple[tuple[str, str], ...]], NumberDataPoint]:
    """Return every data point by metric name and attributes. Fail if two points have the same."""
    points: dict[tuple[str, tuple[tuple[str, str], ...]], NumberDataPoint] = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, str(kind)).data_points:
                    attributes = tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))
                    assert (metric.name, attributes) not in points
                    points[metric.name, attributes] = point
    return points


def number(point: NumberDataPoint) -> float:
    return float(point.as_int) if point.WhichOneof("value") == "as_int" else point.as_double


# --- OTLP ------------------------------------------------------------------------------------------------------------


@given(exposed())
def test_any_frame_arrives_with_the_values_of_the_text(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    request = ExportMetricsServiceRequest.FromString(
        gzip.decompress(Otlp(PushTarget("")).encode(layout, frame, lambda _: True))
    )
    ours = {
        (name, labels): number(point)
        for (name, labels), point in points_of(request).items()
        if name.startswith("gangwatch_")
    }
    text = {
        (name, tuple(sorted(attribute_names(dict(pair for pair in labels if pair[0] != "node")).items()))): value
        for (name, labels), value in series_of(expose(layout, frame)).items()
        if name not in CONVENTIONS
    }
    assert ours.keys() == text.keys()
    assert all(math.isclose(ours[key], text[key], rel_tol=1e-15) for key in text)


def test_metrics_of_a_gpu_and_a_port_have_opentelemetry_names() -> None:
    gpu, port = ("gpu", "GPU-1"), (("device", "mlx5_0"), ("port", "1"))
    info = dict.fromkeys(BY_NAME["gangwatch_gpu_info"].labels, "")
    info |= {"gpu": "GPU-1", "model": "NVIDIA H100 80GB HBM3", "driver": "550.54"}
    gauges = [
        (Column("gangwatch_gpu_info", tuple(sorted(info.items()))), 1.0),
        (Column("gangwatch_gpu_utilization_ratio", (gpu,)), 0.93),
        (Column("gangwatch_gpu_memory_used_bytes", (gpu,)), 2.0**36),
        (Column("gangwatch_gpu_power_watts", (gpu,)), 612.5),
        (Column("gangwatch_rdma_port_state", port), 4.0),
        (Column("gangwatch_rdma_port_rate_bytes_per_second", port), 5e10),
        (Column("gangwatch_host_load1"), 0.5),
    ]
    counters = [
        (Column("gangwatch_gpu_energy_joules_total", (gpu,)), 123_456),
        (Column("gangwatch_rdma_port_receive_bytes_total", port), 10),
    ]
    layout = make_layout("n0", [Tier("any", 1.0)], [column for column, _ in gauges], [column for column, _ in counters])
    frame = frame_of(layout, [value for _, value in gauges], [value for _, value in counters])
    request = ExportMetricsServiceRequest.FromString(
        gzip.decompress(Otlp(PushTarget("")).encode(layout, frame, lambda _: True))
    )
    (resource,) = request.resource_metrics
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes} == resource_of_node("n0")
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    found = {name: (number(point), dict(labels)) for (name, labels), point in points_of(request).items()}
    model = {"hw.model": "NVIDIA H100 80GB HBM3", "hw.driver_version": "550.54", "hw.vendor": "NVIDIA"}
    of_gpu = {"hw.id": "GPU-1", "hw.type": "gpu", **model}
    of_port = {"hw.id": "mlx5_0/1", "hw.name": "mlx5_0", "hw.type": "network"}
    assert found["hw.gpu.utilization"] == (0.93, {**of_gpu, "hw.gpu.task": "general"})
    assert found["hw.gpu.memory.usage"] == (2.0**36, of_gpu)
    assert found["hw.power"] == (612.5, of_gpu)
    assert found["hw.energy"] == (123.456, of_gpu)
    assert found["hw.network.up"] == (1.0, of_port)
    assert found["hw.network.bandwidth.limit"] == (5e10, of_port)
    assert found["hw.network.io"] == (40.0, {**of_port, "network.io.direction": "receive"})
    assert found["gangwatch_host_load1"] == (0.5, {})
    assert metrics["hw.energy"].sum.is_monotonic and metrics["hw.energy"].unit == "J"
    assert metrics["hw.energy"].sum.aggregation_temporality == 2
    assert not metrics["hw.gpu.memory.usage"].sum.is_monotonic and metrics["hw.gpu.memory.usage"].unit == "By"
    assert metrics["hw.gpu.utilization"].WhichOneof("data") == "gauge"


def test_every_convention_belongs_to_an_existing_metric() -> None:
    assert CONVENTIONS.keys() <= BY_NAME.keys()
    for name, convention in CONVENTIONS.items():
        assert convention.monotonic or convention.is_sum
        assert (BY_NAME[name].kind == "counter") <= convention.is_sum


def test_a_point_has_the_time_of_its_tier(receiver: Receiver) -> None:
    layout = make_layout(
        "n0",
        [Tier("fast", 1.0), Tier("slow", 10.0)],
        [Column("gangwatch_host_load1", (), 0), Column("gangwatch_host_cpus", (), 1)],
        [],
    )
    one = frame_of(layout, [1.0, 2.0], [])
    frame = Frame(
        *(one.node, one.boot_id, one.agent_id, 1, one.layout_id, WALL_NS, 100_000_000_000),
        *(one.tier_ns * 0 + [99_500_000_000, 93_000_000_000], one.gauges, one.counters, one.counters_valid),
    )
    request = ExportMetricsServiceRequest.FromString(
        gzip.decompress(Otlp(PushTarget("")).encode(layout, frame, lambda _: True))
    )
    points = points_of(request)
    assert points["gangwatch_host_load1", ()].time_unix_nano == WALL_NS - 500_000_000
    assert points["gangwatch_host_cpus", ()].time_unix_nano == WALL_NS - 7_000_000_000


def test_a_counter_starts_with_its_first_point_and_after_each_decrease() -> None:
    """OTLP's rule for streams with unknown start: the first point must not be taken for an increase."""
    port = (("device", "mlx5_0"), ("port", "1"))
    energy, packets = (
        ("gangwatch_gpu_energy_joules_total", (("gpu", "G"),)),
        ("gangwatch_rdma_port_link_downed_total", port),
    )
    otlp = Otlp(PushTarget(""))

    def points_at(seconds: int, joules: int, downed: int, more: bool = False) -> dict[str, tuple[int, int, float]]:
        """Return (start, time, value) of each point, both times in seconds after the first frame."""
        columns = [Column(*energy), Column(*packets), *([Column(packets[0], (("device", "b"), ("port", "1")))] * more)]
        layout = make_layout("n0", [Tier("any", 1.0)], [], columns)
        one = frame_of(layout, [], [joules, downed, 7][: 2 + more])
        frame = Frame(
            *(one.node, one.boot_id, one.agent_id, 1, one.layout_id, WALL_NS + seconds * 10**9, one.monotonic_ns),
            *(one.tier_ns * 0, one.gauges, one.counters, one.counters_valid),
        )
        request = ExportMetricsServiceRequest.FromString(gzip.decompress(otlp.encode(layout, frame, lambda _: True)))
        return {
            name + dict(labels).get("device", ""): (
                (point.start_time_unix_nano - WALL_NS) // 10**9,
                (point.time_unix_nano - WALL_NS) // 10**9,
                number(point),
            )
            for (name, labels), point in points_of(request).items()
        }

    downed = packets[0] + "mlx5_0"
    assert points_at(0, 5000, 3) == {"hw.energy": (0, 0, 5.0), downed: (0, 0, 3)}
    assert points_at(15, 6000, 3) == {"hw.energy": (0, 15, 6.0), downed: (0, 15, 3)}
    assert points_at(30, 100, 4)["hw.energy"] == (15, 30, 0.1), "the driver was reloaded after the previous point"
    after = points_at(45, 200, 1, more=True)
    assert after["hw.energy"] == (15, 45, 0.2), "another layout is not a new start"
    assert after[downed] == (30, 45, 1) and after[packets[0] + "b"] == (45, 45, 7)
    assert points_at(-100, 300, 1)["hw.energy"] == (-100, -100, 0.3), (
        "the clock was set back: the start is never after the point"
    )
    assert points_at(-85, 400, 1)["hw.energy"] == (-100, -85, 0.4)


def test_frames_are_pushed_at_their_interval_over_one_connection(
    receiver: Receiver, start: Callable[..., Pusher]
) -> None:
    source = Source()
    pusher = start(source, PushTarget(receiver.url, interval_seconds=10.0))
    for seq in range(1, 42):
        source.make(seq)
    wait_until(lambda: pusher.sent == 5)
    times = [next(iter(points_of(request).values())).time_unix_nano for request in receiver.requests()]
    assert [(one - WALL_NS) // 1_000_000_000 for one in times] == [1, 11, 21, 31, 41]
    assert all(one["content-type"] == "application/x-protobuf" for one in receiver.headers)
    assert source.listeners and (pusher.stop(), source.listeners)[1] == []


def test_queued_frames_are_sent_at_stop_if_the_receiver_accepts_them(
    receiver: Receiver, start: Callable[..., Pusher]
) -> None:
    receiver.hold.clear()
    source = Source()
    pusher = start(source, PushTarget(receiver.url, interval_seconds=1.0))
    for seq in range(1, 6):
        source.make(seq)
    threading.Timer(0.2, receiver.hold.set).start()
    pusher.stop()
    assert (pusher.sent, pusher.failures) == (5, 0)


def test_series_excluded_by_profile_or_lists_are_not_pushed(receiver: Receiver, start: Callable[..., Pusher]) -> None:
    source = Source()
    start(source, PushTarget(receiver.url), Settings(deny=("*_watts",)))
    source.make(1)
    wait_until(lambda: receiver.bodies)
    names = {name for name, _ in points_of(receiver.requests()[0])}
    assert "gangwatch_host_load1" in names and "hw.power" not in names


def test_frames_in_the_queue_survive_an_outage_of_the_receiver(
    receiver: Receiver, start: Callable[..., Pusher]
) -> None:
    receiver.answers = [(503, {}, b"later"), (429, {"Retry-After": "0"}, b""), (502, {}, b"")]
    source = Source()
    pusher = start(source, PushTarget(receiver.url, interval_seconds=1.0))
    for seq in (1, 2, 3):
        source.make(seq)
    wait_until(lambda: pusher.sent == 3)
    assert pusher.failures == 3 and pusher.refused == pusher.dropped_full == 0
    first, *again = map(gzip.decompress, receiver.bodies[:4])  # the SDK's gzip header has the time of the attempt
    assert again == [first] * 3


def test_permanently_rejected_frames_are_dropped_and_counted(receiver: Receiver, start: Callable[..., Pusher]) -> None:
    receiver.answers = [(400, {}, b"malformed")]
    source = Source()
    pusher = start(source, PushTarget(receiver.url, interval_seconds=1.0))
    source.make(1)
    source.make(2)
    wait_until(lambda: pusher.sent == 1)
    assert (pusher.failures, pusher.refused) == (1, 1)
    measures = {(name, labels): value for name, labels, value in pusher.measures()}
    assert measures["gangwatch_push_dropped_total", (("reason", "refused"), ("sink", "otlp"))] == 1


def test_a_full_queue_drops_the_oldest_frames_and_logs_it(
    receiver: Receiver, start: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.hold.clear()
    source = Source()
    pusher = start(source, PushTarget(receiver.url, interval_seconds=1.0, queue_frames=5))
    for seq in range(1, 21):
        source.make(seq)
    assert "the queue is full" in caplog.text
    measures = {(name, labels): value for name, labels, value in pusher.measures()}
    assert measures["gangwatch_push_queue_frames", (("sink", "otlp"),)] == 5
    assert measures["gangwatch_push_dropped_total", (("reason", "queue full"), ("sink", "otlp"))] == 15
    receiver.hold.set()
    wait_until(lambda: not pusher._queue)
    wait_until(lambda: len(receiver.bodies) >= 5)
    times = [next(iter(points_of(request).values())).time_unix_nano for request in receiver.requests()]
    assert [(one - WALL_NS) // 1_000_000_000 for one in times][-5:] == [16, 17, 18, 19, 20]


def test_partial_success_is_reported(
    receiver: Receiver, start: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    reply = ExportMetricsServiceResponse()
    reply.partial_success.rejected_data_points = 3
    reply.partial_success.error_message = "too old"
    assert partial_success(reply.SerializeToString()) == "3 points refused: too old"
    assert partial_success(ExportMetricsServiceResponse().SerializeToString()) == ""
    receiver.answers = [(200, {}, reply.SerializeToString())]
    source = Source()
    pusher = start(source, PushTarget(receiver.url))
    source.make(1)
    wait_until(lambda: pusher.sent == 1)
    wait_until(lambda: "3 points refused: too old" in caplog.text)


@given(st.binary(max_size=60))
def test_arbitrary_responses_of_a_receiver_cause_no_error(answer: bytes) -> None:
    partial_success(answer)


def test_frames_are_pushed_over_tls_with_a_token(
    tmp_path: Path, start: Callable[..., Pusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "BACKOFF_LEAST_SECONDS", 30.0)  # one attempt is enough
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("collector"))
    receiver = Receiver(context)
    headers = tmp_path / "headers"
    headers.write_text("# of the collector\nAuthorization: Bearer abc\n\n")
    try:
        source = Source()
        known = start(source, PushTarget(receiver.url, headers_file=headers, ca_file=authority.certificate))
        unknown = start(source, PushTarget(receiver.url))
        source.make(1)
        wait_until(lambda: known.sent == 1 and unknown.failures)
        assert receiver.headers[0]["authorization"] == "Bearer abc"
        assert len(receiver.bodies) == 1, "nothing is sent to an unverified receiver"
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (PushTarget("collector:4318"), r"otlp\.endpoint: 'collector:4318' is not an http or https URL"),
        (PushTarget("http://a:b/"), "is not an http or https URL"),
        (PushTarget("https://user:word@host/"), "a password in a URL would appear in logs"),
        (PushTarget("https://host/", headers_file=Path("/absent")), r"otlp\.headers_file: /absent: No such file"),
        (PushTarget("https://host/", ca_file=Path("/absent")), r"otlp\.ca_file: /absent: No such file"),
    ],
)
def test_the_error_names_an_unusable_target(target: PushTarget, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Pusher(Otlp(PushTarget("")), target, Source(), EVERYTHING)


def test_sinks_have_the_names_of_their_sections() -> None:
    assert [make(PushTarget("")).name for make in SINKS.values()] == list(SINKS) == ["otlp", "remote_write"]


# --- remote write ----------------------------------------------------------------------------------------------------


def test_a_real_prometheus_accepts_remote_write(tmp_path: Path) -> None:
    program = needs.component("prometheus", "prometheus")
    address = f"127.0.0.1:{held_port()}"
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    process = subprocess.Popen(
        [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address={address}", "--web.enable-remote-write-receiver", "--log.level=error"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(address, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    try:
        wait_until(lambda: ask("/-/ready")[0] == 200)
        source = Source()
        target = PushTarget(f"http://{address}/api/v1/write", interval_seconds=1.0)
        pusher = Pusher(RemoteWrite(PushTarget(address)), target, source, EVERYTHING)
        pusher.start()
        now_ns = time.time_ns() - 10_000_000_000
        for seq in (1, 2, 3):
            source.make(seq, now_ns)
            wait_until(lambda seq=seq: pusher.sent + pusher.failures >= seq)  # type: ignore[misc]
        assert (pusher.sent, pusher.failures) == (3, 0)
        _, body = ask("/api/v1/query?query=" + quote('{__name__=~"gangwatch_.+"}') + f"&time={now_ns / 1e9 + 4}")
        written = {
            (one["metric"].pop("__name__"), tuple(sorted(one["metric"].items()))): float(one["value"][1])
            for one in json.loads(body)["data"]["result"]
        }
        assert written == series_of(expose(source.layout, small_frame(source.layout)))
        _, body = ask(
            "/api/v1/query?query=" + quote("count_over_time(gangwatch_host_load1[1m])") + f"&time={now_ns / 1e9 + 4}"
        )
        assert json.loads(body)["data"]["result"][0]["value"][1] == "3"
        # The clock was set back: the samples are out of order, and Prometheus rejects them permanently.
        source.make(4, now_ns - 60_000_000_000)
        wait_until(lambda: pusher.refused == 1)
        pusher.stop()
    finally:
        process.terminate()
        process.wait(30)
