"""TLS, client certificates and passwords, tested with curl; and their reload at run time."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import pytest

from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Layout
from exporter.prometheus.exposition import Settings
from exporter.publisher import Publisher
from exporter.security import security
from exporter.security.security import TRIES_AT_ONCE, Bucket, Passwords, Security
from exporter.server import ThreadedServer, agent_app
from exporter.serving.http_messages import Request
from tests import needs
from tests.exporter.certificates import Authority
from tests.exporter.sample_frames import small_frame, small_layout


def hash_of(password: str) -> str:
    """Return a hash like `htpasswd -nBC 4`, with the lowest cost so that the test is fast."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")


HASH = hash_of("secret")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(autouse=True)
def check_files_at_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CHECK_SECONDS", 0.0)


def web_file(folder: Path, authority: Authority, tls: str = "", more: str = "", name: str = "server") -> Path:
    certificate, key = authority.sign(name)
    file = folder / "web.yml"
    file.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n{tls}{more}")
    return file


USERS = f"basic_auth_users:\n  prometheus: {HASH}\n"


class Served:
    """Agent's server with a web configuration, and curl as its client."""

    def __init__(self, file: Path) -> None:
        self._layout, self._seq = small_layout(), 0
        self.server = Publisher(self, "127.0.0.1", 0, file, Settings(), {})
        security = self.server.security
        assert security is not None
        self.security = security

    def newest(self) -> tuple[Layout, Frame]:
        # Return a new frame each time, because a frame is rendered only once, together with the exporter's own series.
        self._seq += 1
        return self._layout, small_frame(self._layout, self._seq)

    def add_listener(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        return lambda: None

    def curl(self, path: str, *options: str) -> tuple[int, str]:
        """Return curl's exit code, and one text with the HTTP status and the body."""
        program = needs.component("curl", "curl")
        asked = subprocess.run(
            [program, "-sS", "--max-time", "30", "-w", "%{http_code}", *options, f"{self.server.url}{path}"],
            capture_output=True,
            text=True,
        )
        return asked.returncode, asked.stdout + asked.stderr


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Served]]:
    running: list[Served] = []

    def start(file: Path) -> Served:
        one = Served(file)
        one.server.start()
        running.append(one)
        return one

    yield start
    for one in running:
        one.server.stop()


# --- by curl ---------------------------------------------------------------------------------------------------------


def test_requests_need_tls_and_a_password(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    served = serve(web_file(tmp_path, authority, more=USERS))
    known = ("--cacert", str(authority.certificate))
    assert served.server.url.startswith("https://127.0.0.1:")
    code, said = served.curl("/metrics", *known, "-u", "prometheus:secret")
    assert code == 0 and said.endswith("200") and "gangwatch_host_load1" in said
    for wrong in (("-u", "prometheus:wrong"), ("-u", "nobody:secret"), ("-u", "prometheus:"), ()):
        code, said = served.curl("/metrics", *known, *wrong)
        assert code == 0 and said.endswith("401") and "gangwatch_" not in said, wrong
    code, said = served.curl("/metrics", *known, "-D", "-")
    assert "WWW-Authenticate: Basic\n" in said
    # 503 because the frame is old: probes need no password.
    assert served.curl("/healthz", *known)[1].endswith("s old\n503")
    assert served.curl("/metrics", "-u", "prometheus:secret")[0] == 60, "curl does not know the CA"
    counted = served.curl("/metrics", *known, "-u", "prometheus:secret")[1]
    assert 'gangwatch_exporter_requests_refused_total{node="n0",status="401"} 5' in counted


def test_requests_need_a_client_certificate(
    tmp_path: Path, authority: Authority, stranger: Authority, serve: Callable[[Path], Served]
) -> None:
    tls = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.certificate}\n"
    served = serve(web_file(tmp_path, authority, tls))
    known = ("--cacert", str(authority.certificate))

    def with_certificate(signed: tuple[Path, Path]) -> tuple[str, ...]:
        return (*known, "--cert", str(signed[0]), "--key", str(signed[1]))

    code, said = served.curl("/metrics", *with_certificate(authority.sign("client")))
    assert code == 0 and said.endswith("200")
    for refused in (
        known,
        with_certificate(stranger.sign("client")),
        with_certificate(authority.sign("late", days=-1)),
    ):
        code, said = served.curl("/metrics", *refused)
        assert code != 0 and "gangwatch_" not in said


def test_only_clients_with_allowed_names_are_accepted(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    tls = (
        f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.certificate}\n"
        "  client_allowed_sans: [prometheus.example]\n"
    )
    served = serve(web_file(tmp_path, authority, tls))
    for names, answered in (("DNS:prometheus.example", True), ("DNS:other.example", False)):
        certificate, key = authority.sign("named", names)
        options = ("--cacert", str(authority.certificate), "--cert", str(certificate), "--key", str(key))
        code, said = served.curl("/metrics", *options)
        assert (code == 0 and said.endswith("200")) is answered


def test_a_client_rejects_an_expired_server_certificate(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    certificate, key = authority.sign("expired", days=-1)
    file = tmp_path / "web.yml"
    file.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n{USERS}")
    code, said = serve(file).curl("/metrics", "--cacert", str(authority.certificate), "-u", "prometheus:secret")
    assert code == 60 and "expired" in said


def test_only_the_configured_tls_versions_are_accepted(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    served = serve(web_file(tmp_path, authority, "  min_version: TLS13\n", USERS))
    options = ("--cacert", str(authority.certificate), "-u", "prometheus:secret")
    assert served.curl("/metrics", *options)[0] == 0
    assert served.curl("/metrics", *options, "--tls-max", "1.2")[0] != 0


def test_a_client_without_tls_gets_no_response_and_affects_no_other(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    served = serve(web_file(tmp_path, authority, more=USERS))
    address = urlsplit(served.server.url)
    assert address.port is not None
    with socket.create_connection(("127.0.0.1", address.port), timeout=30) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        try:
            while data := plain.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        assert b"HTTP/" not in received
    options = ("--cacert", str(authority.certificate), "-u", "prometheus:secret")
    assert served.curl("/metrics", *options)[1].endswith("200")


def test_configured_headers_are_in_every_response(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    more = "http_server_config:\n  headers: {X-Content-Type-Options: nosniff, X-Frame-Options: deny}\n"
    served = serve(web_file(tmp_path, authority, more=USERS + more))
    for options in (("-u", "prometheus:secret"), ()):
        said = served.curl("/metrics", "--cacert", str(authority.certificate), "-D", "-", *options)[1]
        assert "X-Content-Type-Options: nosniff\n" in said and "X-Frame-Options: deny\n" in said


# --- reload at run time ----------------------------------------------------------------------------------------------


def test_a_new_certificate_and_new_users_are_loaded(
    tmp_path: Path, authority: Authority, stranger: Authority, serve: Callable[[Path], Served]
) -> None:
    file = web_file(tmp_path, authority, more=USERS)
    served = serve(file)
    first, second = ("--cacert", str(authority.certificate)), ("--cacert", str(stranger.certificate))
    assert served.curl("/metrics", *first, "-u", "prometheus:secret")[1].endswith("200")
    before = file.read_text()
    file.write_text(web_file(tmp_path, stranger).read_text() + f"basic_auth_users: {{other: {hash_of('new')!r}}}\n")
    assert served.curl("/metrics", *first, "-u", "prometheus:secret")[0] == 60
    assert served.curl("/metrics", *second, "-u", "prometheus:secret")[1].endswith("401"), (
        "the cached password is dropped"
    )
    assert served.curl("/metrics", *second, "-u", "other:new")[1].endswith("200")
    file.write_text(before)
    assert served.curl("/metrics", *first, "-u", "prometheus:secret")[1].endswith("200")


def test_a_connection_closes_after_its_certificate_is_replaced(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    file = web_file(tmp_path, authority, more=USERS)
    served = serve(file)
    address = urlsplit(served.server.url)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=30, context=client)
    headers = {"Authorization": "Basic " + base64.b64encode(b"prometheus:secret").decode()}

    def ask() -> http.client.HTTPResponse:
        connection.request("GET", "/readyz", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer

    # The status is 503 because the frame is old; the test checks only the connection.
    assert not ask().will_close
    web_file(tmp_path, authority, more=USERS)
    assert ask().will_close
    connection.close()


@pytest.mark.parametrize("wrong", ["tls_server_config: {", "basic_auth_user: {}\n", "basic_auth_users: {}\n", ""])
def test_an_invalid_change_keeps_the_old_configuration(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served], wrong: str
) -> None:
    file = web_file(tmp_path, authority, more=USERS)
    served = serve(file)
    right = file.read_text()
    options = ("--cacert", str(authority.certificate), "-u", "prometheus:secret")
    file.write_text(wrong)
    code, said = served.curl("/metrics", *options)
    assert code == 0 and said.endswith("200")
    assert 'gangwatch_exporter_web_config_in_force{node="n0"} 0\n' in said
    assert served.security.failure.startswith(str(file))
    with pytest.raises(ConfigError):
        served.security.reload()
    file.write_text(right)
    assert 'gangwatch_exporter_web_config_in_force{node="n0"} 1\n' in served.curl("/metrics", *options)[1]


def test_half_of_a_new_key_pair_is_not_loaded(
    tmp_path: Path, authority: Authority, serve: Callable[[Path], Served]
) -> None:
    certificate, key = authority.sign("pair")
    file = tmp_path / "web.yml"
    file.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n{USERS}")
    served = serve(file)
    options = ("--cacert", str(authority.certificate), "-u", "prometheus:secret")
    certificate.write_bytes(authority.sign("pair-2")[0].read_bytes())
    assert served.curl("/metrics", *options)[1].endswith("200")
    assert "KEY_VALUES_MISMATCH" in served.security.failure


# --- passwords -------------------------------------------------------------------------------------------------------


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_bcrypt_runs_once_for_a_correct_password() -> None:
    passwords = Passwords(lambda: 0.0)
    users = {"a": HASH}
    for _ in range(1000):
        assert passwords.check(users, basic("a", "secret"), "10.0.0.1") is True
    assert passwords.hashed == 1
    assert passwords.check({"a": hash_of("another")}, basic("a", "secret"), "10.0.0.1") is False


def test_wrong_passwords_are_rate_limited_by_address() -> None:
    now = 0.0
    passwords = Passwords(lambda: now)
    users = {"a": HASH}
    assert passwords.check(users, basic("a", "secret"), "good") is True
    tried = [passwords.check(users, basic("a", f"guess {number}"), "bad") for number in range(50)]
    assert tried == [False] * TRIES_AT_ONCE + [None] * (50 - TRIES_AT_ONCE)
    assert passwords.check(users, basic("a", "secret"), "bad") is True, "a cached password is not an attempt"
    assert passwords.check(users, basic("a", "other"), "good") is False, "another address has its own limit"
    now = 1.0
    assert passwords.check(users, basic("a", "guess"), "bad") is False


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Bearer abc", "Basic " + base64.b64encode(b"a").decode(), basic("a", "secret\0x"),
     basic("", "secret"), basic("b", "secret"), "Basic \xff"],
)  # fmt: skip
def test_invalid_credentials_are_rejected(header: str) -> None:
    assert Passwords().check({"a": HASH}, header, "x") is False


def test_only_72_bytes_of_a_password_count_as_in_bcrypt() -> None:
    long = "p" * 80
    hashed = bcrypt.hashpw(long.encode()[:72], bcrypt.gensalt(4)).decode()
    assert Passwords().check({"a": hashed}, basic("a", long), "x") is True


def test_a_token_bucket_refills_up_to_its_capacity() -> None:
    bucket = Bucket(2.0, 3, 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(2.0), bucket.take(2.0)] == [True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_the_configured_rate_limit_applies(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("rate_limit: {interval: 100ms, burst: 2}\n")
    now = 0.0
    guard = Security(file, lambda: now)
    request = Request("GET", "/metrics", "", {"host": "localhost"})
    assert [guard.refusal(request) is None for _ in range(3)] == [True, True, False]
    now = 0.1
    assert guard.refusal(request) is None


# --- off loopback ----------------------------------------------------------------------------------------------------


def test_off_loopback_the_server_requires_tls_and_authentication(tmp_path: Path, authority: Authority) -> None:
    app = agent_app(lambda: None, lambda _: lambda: None)
    file = tmp_path / "web.yml"
    file.write_text(USERS)
    with pytest.raises(ConfigError, match=r"has no tls_server_config.*--web-config"):
        ThreadedServer(app, "0.0.0.0", 0, Security(file))
    with pytest.raises(ConfigError, match="has neither basic_auth_users nor client_auth_type"):
        ThreadedServer(app, "0.0.0.0", 0, Security(web_file(tmp_path, authority)))
    with ThreadedServer(app, "0.0.0.0", 0, Security(web_file(tmp_path, authority, more=USERS))) as server:
        assert server.url.startswith("https://127.0.0.1:"), "reached from this machine"


def test_a_reload_cannot_remove_the_protection(tmp_path: Path, authority: Authority) -> None:
    file = web_file(tmp_path, authority, more=USERS)
    guard = Security(file)
    time.sleep(0.01)
    web_file(tmp_path, authority)
    with pytest.raises(ConfigError, match="a reload can't take protection away"):
        guard.reload()
    assert guard.protects() == ""
