"""Identity of nodes: which certificates the authority signs, which node each one identifies, and revocation."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bcrypt
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agent.schema.certificate_file import validity
from agent.schema.clock import SystemClock
from agent.schema.errors import ConfigError
from agent.schema.frame import make_layout
from agent.schema.identity import (
    CONTROLLER,
    Certificate,
    Revocations,
    of_node,
    read_certificate,
    read_revocations,
    speaks_for,
)
from agent.schema.sample import expanded
from exporter.security.frame_readers import FrameReaders
from exporter.security.security import Security
from exporter.server import ThreadedServer, agent_app
from gangwatch.certificates.authority import Authority, new_key, new_request, read, requested
from gangwatch.certificates.folder import AuthorityFolder, write_pair
from gangwatch.cli import cli
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed.credentials import Credentials
from tests.exporter.certificates import Authority as OpenSsl
from tests.exporter.sample_frames import small_frame, small_layout
from tests.feed.test_feed_over_tls import follow

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def certificate(*names: str, made: datetime = NOW) -> Certificate:
    return Certificate(frozenset(names), "AB", made.timestamp(), (made + timedelta(days=90)).timestamp())


# --- which node a certificate identifies ------------------------------------------------------------------------------


def test_a_certificate_identifies_only_its_own_node() -> None:
    mine = certificate(of_node("n1"), "gangwatch-agents.gangwatch.svc")
    assert speaks_for(mine, "n1", "10-0-0-5.gangwatch-agents.gangwatch.svc")
    assert speaks_for(mine, "N1", "10.0.0.5"), "host names are not case-sensitive"
    assert not speaks_for(mine, "n2", "10-0-0-5.gangwatch-agents.gangwatch.svc")
    for names in (
        ("*.node.gangwatch.internal",), ("*.gangwatch-agents.gangwatch.svc",), ("gangwatch-agents.gangwatch.svc",),
        ("10-0-0-5.gangwatch-agents.gangwatch.svc",), (CONTROLLER,), ("n1.evil.org",), (), ("*",), ("n11",),
    ):  # fmt: skip
        assert not speaks_for(certificate(*names), "n1", "10-0-0-5.gangwatch-agents.gangwatch.svc"), names


def test_certificates_with_host_names_identify_their_host() -> None:
    assert speaks_for(certificate("gpu1"), "gpu1", "gpu1")
    assert speaks_for(certificate("gpu1.example.org"), "gpu1", "gpu1.example.org")
    assert not speaks_for(certificate("gpu1.example.org"), "gpu1", "gpu1"), "the dialled name differs"
    assert not speaks_for(certificate("gpu1.example.org"), "gpu11", "gpu1.example.org")
    assert not speaks_for(certificate("*.example.org"), "gpu1", "gpu1.example.org")


@pytest.mark.parametrize("node", ["", "*", "n*", " n", "n.", "ü", "n\n", "x" * 240])
def test_node_names_that_no_certificate_can_contain_are_refused(node: str) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        of_node(node)


# --- revocation -------------------------------------------------------------------------------------------------------


def test_revocation_covers_certificates_issued_before_it() -> None:
    revoked = Revocations().revoking(of_node("n1"), NOW, "stolen")
    again = read_revocations(revoked.encode(), "f")
    assert again == revoked
    assert "stolen" in again.refuses(certificate(of_node("n1"), "host", made=NOW - timedelta(days=1)))
    assert again.refuses(certificate(of_node("n1"), made=NOW)) == ""
    assert again.refuses(certificate(of_node("n2"), made=NOW - timedelta(days=1))) == ""
    assert again.bars(of_node("n1"))
    admitted = again.admitting(of_node("n1"))
    assert not admitted.bars(of_node("n1"))
    assert admitted.refuses(certificate(of_node("n1"), made=NOW - timedelta(days=1))), (
        "the old certificate stays revoked"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"revoked": 5}', '{"revoked": [{"name": "x"}]}', '{"revoked": [{"name": "x", "before": "soon"}]}',
        '{"revoked": [{"name": "x", "before": "2026-11-23T12:00:00"}]}', '{"revokd": []}', "\xff", "[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_revocation_list_is_refused_and_never_treated_as_empty(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^revoked\.json"):
        read_revocations(text.encode("latin-1"), "revoked.json")


# --- the authority ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make(now=NOW)


def test_the_authority_decides_the_contents_of_a_certificate(authority: Authority) -> None:
    request = new_request(new_key(), (CONTROLLER, "everything.example.org"))
    made = authority.issue(request, (of_node("n1"),), 30, NOW)
    assert made.names == (of_node("n1"),)
    assert made.not_after - NOW == timedelta(days=30)
    assert made.not_before < NOW, "a node's clock may be behind"


@pytest.mark.parametrize(
    "request_", [b"", b"x", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
)
def test_an_invalid_signing_request_is_refused(request_: bytes) -> None:
    with pytest.raises(ConfigError, match="not a certificate signing request"):
        requested(request_)


def test_a_request_whose_names_were_changed_after_it_was_signed_is_refused() -> None:
    lines = new_request(new_key(), (of_node("n1"),)).decode().splitlines()
    body = bytearray(base64.b64decode("".join(lines[1:-1])))
    at = body.rindex(b"n1.node")
    body[at : at + 2] = b"n2"
    changed = base64.encodebytes(bytes(body)).decode()
    with pytest.raises(ConfigError, match="not signed with its own key"):
        requested(f"{lines[0]}\n{changed}{lines[-1]}\n".encode())


def test_a_request_for_more_than_names_is_refused() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    wants_all = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    with pytest.raises(ConfigError, match=r"2\.5\.29\.19"):
        requested(wants_all.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    weak = ec.generate_private_key(ec.SECP192R1()) if hasattr(ec, "SECP192R1") else None
    if weak is not None:
        with pytest.raises(ConfigError, match="curve"):
            requested(builder.sign(weak, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_an_authority_that_ends_first_signs_nothing(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="expires on 2036"):
        authority.issue(new_request(new_key(), ("x",)), ("x",), 90, NOW + timedelta(days=3600))
    Authority(authority.certificate, authority.key).check()
    with pytest.raises(ConfigError, match="does not match"):
        Authority(authority.certificate, new_key()).check()
    leaf = authority.issue(new_request(new_key(), ("x",)), ("x",), 90, NOW)
    with pytest.raises(ConfigError, match="not that of an authority"):
        Authority(leaf.certificate, new_key()).check()


# --- a folder ---------------------------------------------------------------------------------------------------------


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["certificates", arguments[0], "--folder", str(folder), *arguments[1:]])
    if code and isinstance(result.exception, ConfigError):
        return str(result.exception)
    assert result.exit_code == code, f"{result.output} {result.exception!r}"
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    run(tmp_path / "ca", "authority")
    yield tmp_path / "ca"


def test_an_authority_is_created_once_and_its_key_is_private(folder: Path) -> None:
    assert "already" in run(folder, "authority", code=1)
    assert stat.S_IMODE((folder / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "authority.key").chmod(0o644)
    assert "chmod 0600" in run(folder, "issue", "n1", code=1)


def test_each_node_of_a_host_list_gets_its_own_certificate_and_key(folder: Path) -> None:
    printed = run(folder, "issue", "--controller", "--client", "prometheus", "gpu[01-03]")
    assert "node gpu02" in printed
    keys = {(folder / "nodes" / f"gpu{n:02}" / "tls.key").read_bytes() for n in (1, 2, 3)}
    assert len(keys) == 3
    made = read((folder / "nodes" / "gpu02" / "tls.crt").read_bytes())
    assert made.names == (of_node("gpu02"), "gpu02")
    assert read((folder / "controller" / "tls.crt").read_bytes()).names == (CONTROLLER,)
    assert (folder / "nodes" / "gpu02" / "ca.crt").read_bytes() == (folder / "authority.crt").read_bytes()
    assert "authority.key" not in {file.name for file in (folder / "nodes" / "gpu02").iterdir()}
    documents = json.loads(run(folder, "list", "--json"))["certificates"]
    assert [one["kind"] for one in documents] == ["authority", "controller", "node", "node", "node", "client"]
    assert len((folder / "issued.jsonl").read_text().splitlines()) == 5
    # OpenSSL accepts them for each of their uses.
    context = ssl.create_default_context(cafile=str(folder / "authority.crt"))
    context.load_cert_chain(folder / "controller" / "tls.crt", folder / "controller" / "tls.key")


def test_only_due_certificates_are_renewed_and_no_revoked_ones(folder: Path) -> None:
    run(folder, "issue", "n1", "n2")
    before = (folder / "nodes" / "n1" / "tls.crt").read_bytes()
    run(folder, "renew")
    assert (folder / "nodes" / "n1" / "tls.crt").read_bytes() == before
    run(folder, "revoke", "n2", "--reason", "its disk was stolen")
    assert "n1" in run(folder, "renew", "--left", "1")
    assert (folder / "nodes" / "n1" / "tls.crt").read_bytes() != before
    assert "revoked: its disk was stolen" in run(folder, "list")
    assert "admit" in run(folder, "issue", "n2", code=1)
    run(folder, "admit", "n2")
    run(folder, "issue", "n2")
    known = AuthorityFolder(folder)
    (entry,) = [one for one in known.entries() if one.name == "n2"]
    renewed = Certificate(frozenset(entry.issued.names), "", entry.issued.not_before.timestamp(), 0.0)
    assert known.revocations().refuses(renewed) == "", "a certificate issued afterwards is valid at once"
    assert "not revoked" in run(folder, "admit", "n1", code=1)


def test_a_nodes_own_request_is_signed_without_its_key(folder: Path, tmp_path: Path) -> None:
    key = new_key()
    (tmp_path / "n1.csr").write_bytes(new_request(key, (of_node("someone-else"),)))
    run(folder, "sign", "n1", str(tmp_path / "n1.csr"))
    assert read((folder / "nodes" / "n1" / "tls.crt").read_bytes()).names == (of_node("n1"), "n1")
    assert not (folder / "nodes" / "n1" / "tls.key").exists()
    result = CliRunner().invoke(cli, ["certificates", "renew", "--folder", str(folder), "--left", "1"])
    assert "sign a new request" in str(result.exception)


@pytest.mark.parametrize("node", ["../n1", "a/b", "..", "*"])
def test_no_node_name_escapes_the_folder(folder: Path, node: str) -> None:
    run(folder, "issue", "--", node, code=1)
    assert not (folder / "nodes").exists() or not list((folder / "nodes").iterdir())


def test_without_an_authority_the_error_names_the_command_that_creates_one(tmp_path: Path) -> None:
    assert "gangwatch certificates authority" in run(tmp_path / "none", "issue", "n1", code=1)
    (tmp_path / "empty").mkdir()
    assert "gangwatch certificates authority" in run(tmp_path / "empty", "issue", "n1", code=1)


def test_times_of_a_peers_certificate_are_read_as_openssl_writes_them() -> None:
    fields = {"subjectAltName": (("DNS", "N1"), ("IP Address", "::1")), "notAfter": "Jan  5 09:34:43 2038 GMT"}
    found = read_certificate(fields)
    assert found.names == {"n1"}
    assert found.not_after == datetime(2038, 1, 5, 9, 34, 43, tzinfo=UTC).timestamp()
    assert read_certificate({}).names == frozenset()


# --- the feed and agents ----------------------------------------------------------------------------------------------


class Site:
    """Certificate authority, and an agent of node n0 behind TLS that counts its requests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.agents = folder, folder / "agents"
        self.agents.mkdir(parents=True)
        self.authority = AuthorityFolder(folder / "ca")
        self.authority.make(3650)
        self.asked: list[str] = []
        self.log = folder / "log"

    def issue(self, kind: str, name: str = "", **more: Any) -> Path:
        return self.authority.issue(kind, name, **more).path.parent

    def web_config(self, shown: Path, client_auth: str = "VerifyClientCertIfGiven") -> Path:
        hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        file = self.folder / "web.yml"
        file.write_text(
            f"tls_server_config:\n  cert_file: {shown}/tls.crt\n  key_file: {shown}/tls.key\n"
            f"  client_ca_file: {self.authority.path}/authority.crt\n  client_auth_type: {client_auth}\n"
            f"basic_auth_users: {{scraper: {hashed}}}\n"
        )
        return file

    def agent(self, shown: Path, revoked: Path | None = None, **more: Any) -> ThreadedServer:
        """Return an agent's server with the certificate `shown`."""
        layout = structs.replace(small_layout(), node="n0")
        layout = make_layout("n0", layout.tiers, layout.gauges, layout.counters)
        made = layout, structs.replace(small_frame(layout), node="n0", layout_id=layout.layout_id)
        app = agent_app(lambda: made, lambda _: lambda: None)
        readers = FrameReaders((CONTROLLER,), revoked)
        return ThreadedServer(app, security=Security(self.web_config(shown, **more), readers=readers))

    def credentials(self, own: Path | None, **more: Any) -> Credentials:
        files = (own / "tls.crt", own / "tls.key") if own is not None else (None, None)
        return Credentials(self.authority.path / "authority.crt", *files, **more)

    def ask(self, server: ThreadedServer, path: str, own: Path | None = None, password: str = "") -> int:
        """Return the status of a request with the certificate `own`; 0 if the TLS handshake is refused."""
        context = ssl.create_default_context(cafile=str(self.authority.path / "authority.crt"))
        context.check_hostname = False
        if own is not None:
            context.load_cert_chain(own / "tls.crt", own / "tls.key")
        port = urlsplit(server.url).port
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        headers = {"Accept-Encoding": "identity"}
        if password:
            headers["Authorization"] = "Basic " + base64.b64encode(f"scraper:{password}".encode()).decode()
        try:
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return 0
        finally:
            connection.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_frames_require_the_controllers_certificate(site: Site) -> None:
    controller, other, scraper = site.issue("controller"), site.issue("node", "n1"), site.issue("client", "prometheus")
    with site.agent(site.issue("node", "n0")) as server:
        assert site.ask(server, "/frame", controller) == 200
        for path in ("/frame", "/frames", "/frames?metrics=gangwatch_gpu_*"):
            assert site.ask(server, path) == 403
            assert site.ask(server, path, password="secret") == 403, "the scrapers' password gives no access"
            assert site.ask(server, path, scraper, "secret") == 403, "a scraper's certificate gives no access"
            assert site.ask(server, path, other) == 0, "an agent's certificate is not for clients"
        assert site.ask(server, "/metrics", password="secret") == 200
        assert site.ask(server, "/metrics", password="wrong") == 401
        assert site.ask(server, "/metrics", scraper) == 401, "the web configuration requires the password"
        refused = {dict(labels)["status"]: count for name, labels, count in server.measures() if "refused" in name}
        assert refused["403"] == 9
        ends = [value for name, _, value in server.measures() if name == "gangwatch_certificate_expiry_seconds"]
        assert ends[0] - time.time() > 89 * 86400


def test_the_feed_accepts_an_agent_with_its_own_nodes_certificate(site: Site) -> None:
    credentials = site.credentials(site.issue("controller"))
    ends: list[float] = []

    def arrived(feed: Feed, count: int) -> bool:
        ends[:] = [
            value for name, _, value in expanded(feed.measures()) if name == "gangwatch_feed_certificate_expiry_seconds"
        ]
        return bool(count and ends)

    with site.agent(site.issue("node", "n0")) as server:
        assert follow(site.agents, server.url, credentials, arrived)
    assert ends[0] - time.time() > 89 * 86400


@pytest.mark.parametrize(
    "whose", ["n1", "strangers", "*.node.gangwatch.internal", "gangwatch-agents.gangwatch.svc", "localhost", CONTROLLER]
)
def test_the_feed_exchanges_nothing_with_a_wrong_certificate(site: Site, whose: str) -> None:
    """The feed must refuse even if the frames name the node that it has dialled."""
    controller = site.issue("controller")
    credentials = site.credentials(controller)
    if whose == "n1":
        shown = site.issue("node", "n1")
    elif whose == "strangers":
        shown = Site(site.folder / "elsewhere").issue("node", "n0")
    else:  # of a trusted authority that also issues other certificates
        trusted = OpenSsl(site.folder)
        certificate, key = trusted.sign("shown", f"DNS:{whose}")
        shown = site.folder / "shown"
        write_pair(shown, key.read_bytes(), certificate.read_bytes(), trusted.certificate.read_bytes())
        credentials = Credentials(trusted.certificate)
    refused: list[float] = []

    def complained(feed: Feed, count: int) -> bool:
        assert not count
        stream = feed.streams.get("n0")
        refused[:] = [
            value for name, _, value in expanded(feed.measures()) if name == "gangwatch_feed_identity_refused_total"
        ]
        return stream is not None and bool(stream.complaint)

    with site.agent(shown) as server:
        assert follow(site.agents, server.url, credentials, complained) == 0
    assert refused == [0.0 if whose == "strangers" else 1.0], "OpenSSL itself refuses a stranger's certificate"


def test_revoking_a_certificate_ends_its_open_stream(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "CREDENTIALS_SECONDS", 0.1)
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    revoked = site.authority.path / "revoked.json"
    credentials = site.credentials(site.issue("controller"), revoked_file=revoked)

    def revoke_then_see(feed: Feed, count: int) -> bool:
        if count and not revoked.exists():
            site.authority.revoke("node", "n0", "its disk was stolen")
        return "its disk was stolen" in getattr(feed.streams.get("n0"), "complaint", "")

    with site.agent(site.issue("node", "n0")) as server:
        follow(site.agents, server.url, credentials, revoke_then_see)
        assert follow(site.agents, server.url, credentials, lambda feed, _: bool(
            feed.streams["n0"].identity_refused if "n0" in feed.streams else 0)) == 0  # fmt: skip
    site.authority.admit("node", "n0")
    with site.agent(site.issue("node", "n0")) as server:
        assert follow(site.agents, server.url, credentials, lambda _, count: count > 0), "the new certificate is valid"


def test_a_revoked_controller_certificate_gets_no_frames(site: Site) -> None:
    revoked = site.authority.path / "revoked.json"
    controller = site.issue("controller")
    with site.agent(site.issue("node", "n0"), revoked) as server:
        assert site.ask(server, "/frame", controller) == 200
        site.authority.revoke("controller", "", "left a laptop in a train")
        deadline = time.monotonic() + 20
        while site.ask(server, "/frame", controller) != 403:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        site.authority.admit("controller", "")
        assert site.ask(server, "/frame", site.issue("controller")) == 200


def test_renewed_certificates_are_loaded_without_a_restart(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "CREDENTIALS_SECONDS", 0.1)
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    node, controller = site.issue("node", "n0"), site.issue("controller")
    credentials = site.credentials(controller)
    shown: list[float] = []

    def renew_then_see(feed: Feed, count: int) -> bool:
        measures = {name: value for name, _, value in expanded(feed.measures())}
        own = measures.get("gangwatch_certificate_expiry_seconds", 0.0)
        shown.append(own)
        if count and len(set(shown)) == 1:
            site.authority.renew(1.0, days=30)
        return len(set(shown)) == 2

    with site.agent(node) as server:
        follow(site.agents, server.url, credentials, renew_then_see)
        assert shown[-1] < shown[0] - 50 * 86400, "the feed uses its renewed certificate"
        time.sleep(1.1)  # the agent's server checks its files once per second
        ends: list[float] = []

        def arrived(feed: Feed, count: int) -> bool:
            ends[:] = [
                value
                for name, _, value in expanded(feed.measures())
                if name == "gangwatch_feed_certificate_expiry_seconds"
            ]
            return bool(count and ends)

        follow(site.agents, server.url, credentials, arrived)
        assert ends[0] - time.time() < 31 * 86400, "the agent uses its renewed certificate"


def test_a_stream_ends_with_the_certificate_that_opened_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    late: list[float] = [0.0]
    wall_ns = SystemClock.wall_ns
    monkeypatch.setattr(SystemClock, "wall_ns", lambda self: wall_ns(self) + int(late[0] * 1e9))

    def ended(feed: Feed, count: int) -> bool:
        late[0] = 91 * 86400.0 if count else 0.0
        return "has expired" in getattr(feed.streams.get("n0"), "complaint", "")

    with site.agent(site.issue("node", "n0")) as server:
        follow(site.agents, server.url, site.credentials(site.issue("controller")), ended)


def test_a_frame_of_another_node_ends_the_stream(site: Site) -> None:
    site.agents.mkdir(exist_ok=True)
    layout = small_layout()
    layout = make_layout("n1", layout.tiers, layout.gauges, layout.counters)
    frame = structs.replace(small_frame(layout), node="n1")
    app = agent_app(lambda: (layout, frame), lambda _: lambda: None)
    readers = FrameReaders((CONTROLLER,))
    shown = site.issue("node", "n0")
    with ThreadedServer(app, security=Security(site.web_config(shown), readers=readers)) as server:
        credentials = site.credentials(site.issue("controller"))
        seen: list[str] = []

        def complained(feed: Feed, count: int) -> bool:
            seen[:] = [getattr(feed.streams.get("n0"), "complaint", "")]
            return bool(seen[0])

        assert follow(site.agents, server.url, credentials, complained) == 0
        assert "the stream of 'n0' contains a message of" in seen[0]


# --- certificate files ------------------------------------------------------------------------------------------------


def test_the_validity_of_a_certificate_is_read_from_its_file(authority: Authority) -> None:
    for days in (1, 90, 3600):
        made = authority.issue(new_request(new_key(), ("x",)), ("x",), days, NOW)
        assert validity(made.certificate) == (made.not_before.timestamp(), made.not_after.timestamp())
    far = Authority.make(days=20_000, now=NOW)
    assert validity(far.certificate)[1] == read(far.certificate).not_after.timestamp(), (
        "after 2050 years have four digits"
    )
    for wrong in (b"", b"x", made.certificate[:200], b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"):
        with pytest.raises(ConfigError, match="certificate"):
            validity(wrong)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_certificate_file_is_refused_and_raises_nothing_else(data: st.DataObject) -> None:
    lines = KEPT.decode().splitlines()
    body = bytearray(base64.b64decode("".join(lines[1:-1])))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(1, len(body)))]
    try:
        validity(f"{lines[0]}\n{base64.encodebytes(bytes(body)).decode()}{lines[-1]}\n".encode())
    except ConfigError:
        pass


KEPT = Authority.make(now=NOW).certificate
