"""OpenTelemetry's environment variables: their effect, their precedence over the configuration, and invalid values."""

from __future__ import annotations

import gzip
import re
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from agent.schema.errors import ConfigError
from agent.schema.span import Span
from exporter.otlp import choice
from exporter.otlp.choice import uses_sdk
from exporter.otlp.environment import otlp_target
from exporter.otlp.otlp_metrics import Otlp, OtlpSamples
from exporter.otlp.otlp_spans import OtlpSpans
from exporter.otlp.resource import resource_of_node
from exporter.otlp.sdk_delivery import SdkDelivery
from exporter.otlp.signals import METRICS, TRACES
from exporter.prometheus.exposition import EVERYTHING
from exporter.push import push
from exporter.push.delivery import HttpDelivery
from exporter.push.push import Outbox, Pusher
from exporter.push.sender import Sender
from exporter.push.target import PushTarget
from tests.exporter.certificates import Authority
from tests.exporter.test_push import Receiver, Source, wait_until

NO_FILE = PushTarget("")
BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
NO_CERTIFICATE = Path(__file__).parent / "absent.pem"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def send_one(target: PushTarget, receiver: Receiver) -> bytes:
    """Push one frame. Return the request's body as the receiver got it."""
    source = Source()
    pusher = Pusher(Otlp(target), target, source, EVERYTHING)
    pusher.start()
    try:
        source.make(1)
        wait_until(lambda: pusher.sent + pusher.refused + pusher.failures)
    finally:
        pusher.stop()
    return receiver.bodies[-1]


def resource_of(body: bytes) -> dict[str, str]:
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    return {one.key: one.value.string_value for one in resource.resource.attributes}


def test_variables_alone_configure_a_push_of_metrics_and_traces(receiver: Receiver) -> None:
    environ = {
        BASE: receiver.url.removesuffix("v1/metrics") + "tenant/",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc%3D, X-Scope=a ,",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Basic%20x",
        "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "none",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod%2Ceu,service.name=other,k8s.cluster.name=c1",
        "OTEL_SERVICE_NAME": "gpus",
    }
    metrics, traces = (otlp_target(NO_FILE, signal, environ) for signal in (METRICS, TRACES))
    assert metrics is not None and traces is not None
    sent = resource_of(send_one(metrics, receiver))
    assert sent == {
        **resource_of_node("n0"),
        "service.name": "gpus",
        "deployment.environment": "prod,eu",
        "k8s.cluster.name": "c1",
    }
    spans = OtlpSpans(traces.resource, traces.compression)
    outbox: Outbox[Sequence[Span]] = Outbox(spans.delivery(traces), traces, 1)
    outbox.start()
    outbox.put([Span(b"t" * 16, b"s" * 8, b"", "job", 1, 2)])
    wait_until(lambda: len(receiver.bodies) == 2)
    outbox.stop()
    assert receiver.paths == ["/tenant/v1/metrics", "/tenant/v1/traces"]
    of_metrics, of_traces = receiver.headers
    assert (of_metrics["authorization"], of_metrics["x-scope"]) == ("Bearer abc=", "a")
    assert "content-encoding" not in of_metrics
    assert of_traces["authorization"] == "Basic x" and "x-scope" not in of_traces
    assert of_traces["content-encoding"] == "gzip" and gzip.decompress(receiver.bodies[1])


def test_nothing_is_pushed_without_an_endpoint() -> None:
    assert otlp_target(NO_FILE, METRICS, {"OTEL_SERVICE_NAME": "x", BASE: " "}) is None
    assert otlp_target(NO_FILE, METRICS, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:4318/v1/traces"}) is None


def test_an_endpoint_of_one_signal_is_used_as_it_is() -> None:
    environ = {
        BASE: "http://all:4318",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:9090/api/v1/otlp/v1/metrics?a=b",
    }
    metrics, traces = (otlp_target(NO_FILE, signal, environ) for signal in (METRICS, TRACES))
    assert metrics is not None and metrics.endpoint == "http://m:9090/api/v1/otlp/v1/metrics?a=b"
    assert traces is not None and traces.endpoint == "http://all:4318/v1/traces"


def test_the_configuration_file_wins_key_by_key(tmp_path: Path, receiver: Receiver) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer of-the-file\n")
    ca_file = tmp_path / "ca.pem"
    environ = {
        BASE: "http://variable:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",  # it belongs to the variable's endpoint, which is not used
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20of-the-variable,x-scope=a",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/variable.pem",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
    }
    target = otlp_target(PushTarget(receiver.url, headers_file=headers, ca_file=ca_file), METRICS, environ)
    assert target is not None
    assert (target.endpoint, target.ca_file, target.timeout_seconds) == (receiver.url, ca_file, 2.5)
    send_one(target, receiver)
    assert receiver.headers[0]["authorization"] == "Bearer of-the-file"
    assert receiver.headers[0]["x-scope"] == "a"
    assert receiver.header_names[0].count("authorization") == 1, "names of headers are case-insensitive"


@pytest.mark.parametrize(
    ("environ", "pushed"),
    [
        ({"OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_SDK_DISABLED": "yes"}, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, True),
    ],
)
def test_variables_disable_the_push(environ: dict[str, str], pushed: bool) -> None:
    assert (otlp_target(NO_FILE, METRICS, {BASE: "http://c:4318", **environ}) is not None) == pushed


def test_the_sdks_switch_also_disables_the_push_of_the_file(caplog: pytest.LogCaptureFixture) -> None:
    assert otlp_target(PushTarget("http://c/v1/metrics"), METRICS, {"OTEL_SDK_DISABLED": "true"}) is None
    assert "OTEL_SDK_DISABLED is true: metrics are not pushed to http://c/v1/metrics" in caplog.text


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({BASE: "collector:4317"}, f"{BASE}: 'collector:4317/v1/metrics' is not an http or https URL"),
        ({BASE: "http://[::1"}, f"{BASE}: 'http://[::1' is not an http or https URL"),
        ({BASE: "https://u:secret@c"}, f"{BASE}: a password in a URL would appear in logs"),
        (
            {BASE: "http://c:4317", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"},
            "METRICS_PROTOCOL: gangwatch can't push",
        ),
        ({BASE: "https://c", "OTEL_EXPORTER_OTLP_CERTIFICATE": str(NO_CERTIFICATE)}, "OTLP_CERTIFICATE: /"),
        (
            {BASE: "https://c", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/k"},
            "CLIENT_KEY: /k: a key without a client certificate",
        ),
        ({BASE: "https://c", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/c"}, "CLIENT_CERTIFICATE: can't use /c with"),
    ],
)
def test_an_unusable_target_of_a_variable_is_logged_and_stops_nothing(
    environ: dict[str, str], complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert otlp_target(NO_FILE, METRICS, environ) is None
    assert complaint in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "expected a number of milliseconds above 0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "expected a number of milliseconds above 0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "nan", "expected a number of milliseconds above 0"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "'zstd' is ignored: expected gzip or none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer hush", "HEADERS is ignored: pair 1 has no name or no '='"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=hush%0D%0Ab: c", "the header 'a' is ignored"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=hush%ff", "the value of 'a' is not UTF-8"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,hush", "OTEL_RESOURCE_ATTRIBUTES is ignored: pair 2"),
    ],
)
def test_an_unusable_value_is_logged_and_ignored(
    name: str, value: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = otlp_target(NO_FILE, METRICS, {BASE: "http://c:4318", name: value})
    assert target is not None
    default = PushTarget("")
    assert (target.timeout_seconds, target.compression) == (default.timeout_seconds, default.compression)
    assert not target.headers and not target.resource
    assert complaint in caplog.text and name in caplog.text
    assert "hush" not in caplog.text


def test_a_short_timeout_is_reported_with_its_unit(caplog: pytest.LogCaptureFixture) -> None:
    target = otlp_target(NO_FILE, METRICS, {BASE: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10"})
    assert target is not None and target.timeout_seconds == 0.01
    assert "the timeout is 10 milliseconds, not seconds" in caplog.text


def test_an_unusable_certificate_of_a_variable_is_an_error_if_the_file_sets_the_endpoint() -> None:
    target = otlp_target(PushTarget("https://c/v1/metrics"), METRICS, {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/absent"})
    assert target is not None
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_CERTIFICATE: /absent: No such file"):
        Sender(target, {}, "otlp")


def test_header_values_do_not_appear_in_the_text_of_a_target() -> None:
    target = otlp_target(NO_FILE, METRICS, {BASE: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "a=hush"})
    assert target is not None and target.headers == {"a": "hush"}
    assert "hush" not in repr(target)


def test_the_timeout_applies_to_a_receiver_that_does_not_respond(receiver: Receiver) -> None:
    receiver.hold.clear()
    target = otlp_target(PushTarget(receiver.url), METRICS, {"OTEL_EXPORTER_OTLP_TIMEOUT": "150"})
    assert target is not None
    with pytest.raises(OSError, match="timed out"):
        Sender(target, {}, "otlp").send(b"")


# --- files that are replaced -----------------------------------------------------------------------------------------


def test_a_rotated_token_is_used_without_a_restart(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer one\n")
    sender = Sender(PushTarget(receiver.url, headers_file=headers), {}, "otlp")

    def sent() -> str:
        sender.send(b"")
        return receiver.headers[-1]["authorization"]

    try:
        assert sent() == "Bearer one"
        rotated = tmp_path / "new"
        rotated.write_text("Authorization: Bearer two\n")
        rotated.replace(headers)
        assert sent() == "Bearer two"
        headers.unlink()
        assert sent() == sent() == "Bearer two"
        assert caplog.text.count("the old headers stay active: otlp.headers_file") == 1
        headers.write_text("Authorization: Bearer three\n")
        assert sent() == "Bearer three"
    finally:
        sender.close()


def test_a_client_certificate_is_presented_and_read_again_after_its_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "BACKOFF_LEAST_SECONDS", 30.0)
    authority = Authority(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    stranger = Authority(other, "stranger")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.sign("collector"))
    receiver = Receiver(context)
    certificate, key = stranger.sign("agent")
    environ = {
        BASE: receiver.url.removesuffix("/v1/metrics"),
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key),
    }
    target = otlp_target(NO_FILE, METRICS, environ)
    assert target is not None
    sender = Sender(target, {}, "otlp")
    try:
        with pytest.raises(OSError):
            sender.send(b"")
        for old, new in zip((certificate, key), authority.sign("agent"), strict=True):
            new.replace(old)
        assert sender.send(b"")[0] == 200
    finally:
        sender.close()
        receiver.close()


# --- the SDK's exporters ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make opentelemetry-sdk impossible to import, as if it were not installed."""
    monkeypatch.setattr(choice, "_is_installed", lambda module: False)


GRPC = {BASE: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


@pytest.mark.usefixtures("no_sdk")
def test_grpc_without_its_extra_is_an_error_with_the_command_that_installs_it(caplog: pytest.LogCaptureFixture) -> None:
    wanted = "OTLP over gRPC is not installed: pip install 'gangwatch[otlp-grpc]'"
    assert otlp_target(NO_FILE, METRICS, GRPC) is None
    assert f"OTEL_EXPORTER_OTLP_PROTOCOL: {wanted}" in caplog.text
    target = PushTarget("http://c:4317", protocol="grpc")
    with pytest.raises(ConfigError, match=re.escape(f"otlp.protocol: {wanted}")):
        Otlp(target).delivery(target, lambda _: True)


@pytest.mark.usefixtures("no_sdk")
def test_http_without_the_extra_uses_gangwatchs_own_exporter(receiver: Receiver) -> None:
    target = PushTarget(receiver.url)
    assert isinstance(Otlp(target).delivery(target, lambda _: True), HttpDelivery)
    sdk = PushTarget(receiver.url, exporter="sdk")
    with pytest.raises(ConfigError, match=re.escape("otlp.exporter: opentelemetry-sdk is not installed: pip install")):
        Otlp(sdk).delivery(sdk, lambda _: True)


def test_the_installed_sdk_is_used_by_the_controller_and_on_request_by_agents(receiver: Receiver) -> None:
    rows = (("auto", HttpDelivery, SdkDelivery), ("sdk", SdkDelivery, SdkDelivery), ("own", HttpDelivery, HttpDelivery))
    for exporter, of_agent, of_controller in rows:
        target = PushTarget(receiver.url, exporter=exporter)  # type: ignore[arg-type]
        assert isinstance(Otlp(target).delivery(target, lambda _: True), of_agent)
        assert isinstance(OtlpSamples({}, 0).delivery(target), of_controller)
    with pytest.raises(ConfigError, match=re.escape("otlp.exporter: 'own' has no gRPC")):
        uses_sdk(PushTarget("http://c:4317", protocol="grpc", exporter="own"))


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, "http://c:4317"),
        ({BASE: "c:4317"}, "https://c:4317"),
        ({BASE: "c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://c:4317"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://m:1"}, "https://m:1"),
    ],
)
def test_an_endpoint_of_grpc_has_no_path_and_may_lack_a_scheme(environ: dict[str, str], endpoint: str) -> None:
    target = otlp_target(NO_FILE, METRICS, {**GRPC, **environ})
    assert target is not None and (target.endpoint, target.protocol) == (endpoint, "grpc")


def test_a_protocol_of_one_signal_wins() -> None:
    environ = {**GRPC, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    traces = otlp_target(NO_FILE, TRACES, environ)
    assert traces is not None and (traces.endpoint, traces.protocol) == ("http://c:4317/v1/traces", "http/protobuf")


def test_headers_and_values_of_variables_reach_the_sdk_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK also reads these variables, and would send a header that gangwatch has rejected."""
    environ = {BASE: receiver.url.removesuffix("/v1/metrics"), "OTEL_EXPORTER_OTLP_HEADERS": "a=hush%0D%0Ab: c,x-ok=1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")
    target = otlp_target(NO_FILE, METRICS, environ)
    assert target is not None
    send_one(target, receiver)
    assert receiver.headers[0]["x-ok"] == "1" and "a" not in receiver.headers[0]
    assert receiver.headers[0]["content-encoding"] == "gzip"
