"""Login with a token, with an identity provider and with Kubernetes; and attacks on each."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from exporter.security.security import Security
from exporter.serving.asgi import create_server
from scheduler_feedback.api.access.attempts import AT_ONCE, MOST_PEERS, Attempts
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.oidc import MOST_TOKEN_BYTES, Issuer
from scheduler_feedback.api.access.principal import Role
from scheduler_feedback.api.access.sessions import MOST_OF_ONE, MOST_SESSIONS, Sessions
from scheduler_feedback.api.access.tokens import OWN_TOKENS, Tokens, make_token
from scheduler_feedback.api.web.login import following
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.state import Policy
from tests.cluster.memory_backend import MemoryBackend, World
from tests.exporter.certificates import Authority
from tests.security.asking import JOB, Browser, People, people
from tests.security.provider import CLIENT, Provider, raw_token


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with people(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture
def site(module_site: People) -> People:
    module_site.reset_wrong_tokens()
    return module_site


@pytest.fixture
def browser(site: People) -> Browser:
    return Browser(site.site.port)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_login_sets_an_http_only_same_site_cookie(site: People, browser: Browser) -> None:
    answer = browser.log_in(site.tokens["ana"], "/jobs?state=running")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs?state=running")
    (cookie,) = browser.set_cookies
    parts = {part.strip().partition("=")[0].lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite", "path", "max-age"} <= parts and "domain" not in parts
    assert "SameSite=strict" in cookie and "Path=/" in cookie and "Secure" not in cookie, "this site has no TLS"
    assert site.tokens["ana"] not in cookie
    assert "ana (submitter)" in browser.load("/") and "Log out" in browser.load("/")


def test_without_a_login_the_page_shows_only_public_data(site: People, browser: Browser) -> None:
    job = site.submit("ana", command=["python", "--key=abc"], working_directory="/home/ana")
    for path in (f"/jobs/{job}", f"/live/jobs/{job}"):
        text = _begin(browser, path)
        assert job in text or path.startswith("/live")
        assert "--key=abc" not in text and "/home/ana" not in text and "shown to its user and to operators" in text
    assert "Log in" in browser.load(f"/jobs/{job}") and browser.csrf == ""
    for name, sees in (("vic", False), ("bob", False), ("ana", True), ("boss", True)):
        other = Browser(site.site.port)
        other.log_in(site.tokens[name])
        for path in (f"/jobs/{job}", f"/live/jobs/{job}"):
            assert ("--key=abc" in _begin(other, path)) is sees, (name, path)


def _begin(browser: Browser, path: str) -> str:
    """Return a page; of a stream, the data until it pauses."""
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    response = connection.getresponse()
    content = b""
    assert connection.sock is not None
    connection.sock.settimeout(0.5)
    try:
        while piece := response.read1(1 << 20):
            content += piece
    except TimeoutError:
        pass
    finally:
        connection.close()
    return content.decode()


def test_actions_of_the_page_are_recorded_for_the_logged_in_user(site: People, browser: Browser) -> None:
    own, other = site.submit("ana"), site.submit("bob")
    browser.log_in(site.tokens["ana"])
    assert browser.post(f"/api/jobs/{own}/cancel", {"by": "boss"}).status == 200
    assert "by ana" in site.ask("", "GET", f"/api/jobs/{own}/story").document[-1]["text"]
    refused = browser.post(f"/api/jobs/{other}/cancel")
    assert refused.status == 403 and "you are ana (submitter)" in refused.error
    line = next(one for one in reversed(site.audit()) if one["path"] == f"/api/jobs/{own}/cancel")
    assert (line["user"], line["means"]) == ("ana", "token ana-laptop, by the page")


def test_a_cross_site_request_changes_nothing(site: People, browser: Browser) -> None:
    """A browser sends its cookie with requests from other sites, unless SameSite prevents it."""
    browser.log_in(site.tokens["boss"])
    job = site.submit("ana")
    path, evil = f"/api/jobs/{job}/cancel", "http://evil.example"
    attacks: list[dict[str, str | None]] = [
        {"X-Gangwatch-Csrf": None},
        {"X-Gangwatch-Csrf": ""},
        {"X-Gangwatch-Csrf": "guess"},
        {"X-Gangwatch-Csrf": None, "Origin": evil, "Sec-Fetch-Site": "cross-site"},
        {"X-Gangwatch-Csrf": None, "Origin": "null"},
        {"Origin": evil},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{site.site.port + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Gangwatch-Csrf": None, "Content-Type": "text/plain"},
        {"X-Gangwatch-Csrf": None, "Content-Type": "application/x-www-form-urlencoded", "Origin": None},
    ]
    for headers in attacks:
        assert browser.post(path, **headers).status == 403, headers
    other = Browser(site.site.port)
    other.log_in(site.tokens["boss"])
    assert browser.post(path, **{"X-Gangwatch-Csrf": other.csrf}).status == 403, "the token is of another session"
    assert site.ask("", "GET", f"/api/jobs/{job}").document["state"] != "cancelled"
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
        assert browser.ask(method, path).status in (403, 405)
    assert browser.post(path).status == 200


def test_another_site_cannot_log_a_user_in(site: People, browser: Browser) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None, "Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ):
        assert browser.log_in(site.tokens["ana"], **headers).status == 403, headers
    assert browser.cookies == {}
    assert browser.ask("GET", f"/login?token={site.tokens['ana']}").status == 200 and browser.cookies == {}


def test_a_planted_session_is_not_taken_over_by_a_login(site: People, browser: Browser) -> None:
    """Session fixation: an attacker who plants a cookie must not share the victim's session."""
    name = f"gangwatch-{site.site.port}"
    browser.cookies = {name: "planted"}
    browser.log_in(site.tokens["ana"])
    assert browser.cookies[name] != "planted"
    first = browser.cookies[name]
    browser.log_in(site.tokens["boss"])
    assert browser.cookies[name] != first
    old = Browser(site.site.port)
    old.cookies = {name: first}
    assert "ana (submitter)" not in old.load("/"), "the earlier session has ended"


@pytest.mark.parametrize("value", ["x", "A" * 43, "A" * 7000, '"quoted"', "%00", "a=b", "é".encode().decode("latin-1")])
def test_a_forged_cookie_opens_no_session(site: People, value: str) -> None:
    forged = Browser(site.site.port)
    forged.cookies = {f"gangwatch-{site.site.port}": value}
    assert "Log in" in forged.load("/")
    assert forged.ask("GET", "/api/whoami").document["role"] == "nobody"
    refused = forged.post("/api/freeze", **{"X-Gangwatch-Csrf": "x"})
    assert refused.status == 401 and "log in" in refused.error
    two = forged.ask("GET", "/api/whoami", Cookie=f"gangwatch-{site.site.port}=x; gangwatch-{site.site.port}=y")
    assert two.document["role"] == "nobody"


def test_a_logout_ends_the_session_and_its_streams(site: People, browser: Browser) -> None:
    job = site.submit("ana", command=["python", "--key=abc"])
    browser.log_in(site.tokens["ana"])
    kept = dict(browser.cookies)
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)
    connection.request("GET", f"/live/jobs/{job}", headers={"Cookie": "; ".join(f"{k}={v}" for k, v in kept.items())})
    stream = connection.getresponse()
    assert b"retry" in stream.read1(100)
    assert browser.ask("POST", "/logout").status == 403, "another site must not be able to log a user out"
    assert browser.post("/logout").status == 303
    assert browser.cookies == {}
    while stream.read1(1 << 16):  # until the server ends it or the time is over
        pass
    connection.close()
    browser.cookies = kept
    assert browser.post("/api/freeze").status == 401
    assert browser.ask("GET", "/api/whoami").document["role"] == "nobody"


def test_revoking_a_token_ends_its_sessions(site: People, browser: Browser) -> None:
    browser.log_in(site.tokens["boss"])
    entries = site.entries
    site.entries = [entry for entry in entries if entry.owner != "boss"]
    site.write()
    try:
        assert browser.post("/api/freeze").status == 401
        assert browser.ask("GET", "/api/whoami").document["role"] == "nobody"
    finally:
        site.entries = entries
        site.write()
    assert browser.ask("GET", "/api/whoami").document["role"] == "nobody", "the session stays ended"


def test_a_session_expires_by_age_and_by_inactivity() -> None:
    now = 0.0
    sessions = Sessions(life_seconds=100.0, idle_seconds=10.0, clock=lambda: now)
    identifier, session = sessions.open("ana", "token", "key", "test", 2)
    for now in (9.0, 18.0, 27.0):  # noqa: B007 - the clock reads it
        assert sessions.find(identifier) is session
    now = 37.0
    assert sessions.find(identifier) is None and len(sessions) == 0
    identifier, _ = sessions.open("ana", "token", "key", "test", 2)
    for step in range(1, 12):
        now = 37.0 + 9.5 * step
        assert (sessions.find(identifier) is not None) is (9.5 * step < 100)


def test_sessions_are_bounded_and_no_user_displaces_another() -> None:
    sessions = Sessions()
    other, _ = sessions.open("bob", "token", "key", "test", 2)
    own = [sessions.open("ana", "token", "key", "test", 2)[0] for _ in range(200)]
    assert len(sessions) == MOST_OF_ONE + 1
    assert sessions.find(other) is not None and sessions.find(own[-1]) is not None and sessions.find(own[0]) is None
    assert MOST_SESSIONS >= 1000
    assert len(set(own)) == len(own) and all(len(one) >= 43 for one in own)


@pytest.mark.parametrize(
    ("given", "goes_to"),
    [
        ("/jobs/j-1", "/jobs/j-1"),
        ("/jobs?state=x&page=2", "/jobs?state=x&page=2"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/a\r\nSet-Cookie: x=y", "/"),
        ("/login?next=/login", "/"),
        ("/logout", "/"),
        ("", "/"),
        ("/" + "a" * 1000, "/"),
    ],
)
def test_a_login_redirects_to_no_other_site(given: str, goes_to: str) -> None:
    assert following(given) == goes_to


def test_a_login_without_a_valid_form_is_refused_with_a_message(site: People, browser: Browser) -> None:
    cases: tuple[tuple[str, str, int], ...] = (
        ("{}", "text/plain", 415),
        ("[1]", "application/json", 400),
        ('{"token": 5}', "application/json", 400),
        ("[" * 30_000, "application/json", 400),
        ("&".join(f"a{index}=1" for index in range(20)), "application/x-www-form-urlencoded", 400),
        ("token=" + "x" * 100_000, "application/x-www-form-urlencoded", 413),
        ("token=%ff%fe", "application/x-www-form-urlencoded", 401),
        ("token=", "application/x-www-form-urlencoded", 401),
        ("", "application/x-www-form-urlencoded", 401),
    )
    for body, kind, status in cases:
        site.reset_wrong_tokens()
        assert browser.ask("POST", "/login", body, **{"Content-Type": kind}).status == status, (body[:40], kind)
    answer = browser.ask(
        "POST", "/login", json.dumps({"token": site.tokens["vic"]}), **{"Content-Type": "application/json"}
    )
    assert (answer.status, answer.document) == (200, {"user": "vic", "role": "viewer"})


# --- guesses ----------------------------------------------------------------------------------------------------------


def test_guesses_are_limited_without_locking_users_out(site: People, browser: Browser) -> None:
    """A client gets ten answers to wrong tokens, then one per second. A valid token is always accepted."""
    statuses = [browser.log_in(make_token()).status for _ in range(40)]
    assert statuses[:AT_ONCE] == [401] * AT_ONCE and statuses.count(401) <= AT_ONCE + 2
    refused = browser.log_in("wrong")
    assert refused.status == 429 and b"too many wrong tokens" in refused.content
    bearer = site.ask("", "GET", "/api/jobs", Authorization=f"Bearer {make_token()}")
    assert bearer.status == 429 and bearer.headers["retry-after"] == "10"
    assert browser.log_in(site.tokens["ana"]).status == 303
    assert site.ask("boss", "GET", "/api/whoami").status == 200
    assert site.site.controller.access.refused["attempts"] >= 20


def test_a_guessable_token_is_not_checked_beyond_the_limit(site: People, browser: Browser) -> None:
    """If the token in the state folder is short, the limit on attempts also applies to correct tokens."""
    file, before = site.folder / "token", site.site.token
    file.write_text("hunter2")
    try:
        assert site.ask("", "GET", "/api/whoami", Authorization="Bearer hunter2").status == 200
        for number in range(30):
            browser.log_in(f"hunter{number + 10}")
        assert browser.log_in("hunter2").status == 429
        site.reset_wrong_tokens()
        assert browser.log_in("hunter2").status == 303
    finally:
        file.write_text(before)


def test_login_attempts_are_bounded_in_memory_and_counted_by_network() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for index in range(AT_ONCE):
        attempts.wrong(f"2001:db8::{index:x}")
    assert attempts.exhausted("2001:db8::ffff") and not attempts.exhausted("2001:db8:0:1::1")
    attempts.wrong("::ffff:10.0.0.1")
    now = 100.0
    assert not attempts.exhausted("2001:db8::1")
    for index in range(3 * MOST_PEERS):
        attempts.wrong(f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}")
    assert len(attempts._peers) <= MOST_PEERS
    assert attempts.exhausted("10.9.9.9"), "all addresses together have a limit too"


# --- TLS --------------------------------------------------------------------------------------------------------------


@contextmanager
def behind_tls(folder: Path, web: str = "") -> Iterator[tuple[People, Callable[..., tuple[int, Any, bytes]]]]:
    """Run a controller behind TLS where every request must authenticate."""
    state = folder / "state"
    authority = Authority(folder)
    certificate, key = authority.sign("server")
    file = folder / "web.yml"
    file.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n{web}")
    access = Authentication(Tokens(state / "token", own_file=state / OWN_TOKENS), closed=True)
    security = Security(file, proves=lambda request: access.proves(request.path, request.headers))
    with Controller(
        state, MemoryBackend(World()), Policy(), ControllerSettings(detectors=(), access=access)
    ) as controller:

        def metrics(_request: Request) -> Response:
            return Response("secret 1\n")

        app = Starlette(
            routes=[Mount("/", controller.api([Route("/metrics", metrics)]))],
            lifespan=lambda _: controller.serving(lambda: None),
        )
        server, listener = create_server(app, "127.0.0.1", 0, (controller.end_streams,), security)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        port = listener.getsockname()[1]
        trust = ssl.create_default_context(cafile=str(authority.certificate))

        def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Any, bytes]:
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=20)
            connection.request(method, path, body, {name.replace("_", "-"): one for name, one in headers.items()})
            response = connection.getresponse()
            result = response.status, response.headers, response.read()
            connection.close()
            return result

        class _Site:
            token = property(lambda _: controller.token)

        site = _Site()
        site.controller, site.port = controller, port  # type: ignore[attr-defined]
        try:
            deadline = time.monotonic() + 20
            while ask("GET", "/readyz")[0] != 200:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield People(site, state), ask  # type: ignore[arg-type]
        finally:
            server.should_exit = True
            thread.join()
            listener.close()


READS = ("/api/jobs", "/api/overview", "/api/events", "/metrics", "/", "/jobs", "/live/", "/api/whoami")


def test_over_tls_reading_requires_a_login_and_the_cookie_is_secure(tmp_path: Path) -> None:
    with behind_tls(tmp_path) as (site, ask):
        name = f"__Host-gangwatch-{site.site.port}"
        for path in READS:
            assert ask("GET", path)[0] == 401, path
            assert ask("GET", path, Authorization="Bearer wrong")[0] in (401, 429), path
            for forged in (f"{name}=x", f"gangwatch-{site.site.port}=x", f"__Host-gangwatch-1={'A' * 43}"):
                assert ask("GET", path, Cookie=forged)[0] == 401, (path, forged)
        status, headers, _ = ask("GET", "/jobs", Accept="text/html")
        assert (status, headers["location"]) == (303, "/login?next=/jobs")
        assert ask("GET", "/login")[0] == 200 and ask("GET", "/static/page.css")[0] == 200
        form = urlencode({"token": site.tokens["vic"]})
        kind = "application/x-www-form-urlencoded"
        site.reset_wrong_tokens()
        status, headers, _ = ask(
            "POST", "/login", form, Content_Type=kind, Origin=f"https://127.0.0.1:{site.site.port}"
        )
        assert status == 303
        cookie = headers["set-cookie"]
        assert (
            cookie.startswith(f"{name}=")
            and "Secure" in cookie
            and "HttpOnly" in cookie
            and "SameSite=strict" in cookie
        )
        value = cookie.partition(";")[0]
        for path in ("/api/jobs", "/metrics", "/", "/api/whoami"):
            assert ask("GET", path, Cookie=value)[0] == 200, path
        assert ask("GET", "/api/jobs", Authorization=f"Bearer {site.tokens['ana']}")[0] == 200
        site.site.controller.access.sessions._by_id.clear()
        assert ask("GET", "/api/jobs", Cookie=value)[0] == 401, "ended"
        assert ask("GET", "/login/oidc")[0] == 404 and ask("GET", "/login/oidc/callback?code=x&state=y")[0] == 404


def test_a_password_for_reading_gives_no_role(tmp_path: Path) -> None:
    import base64

    import bcrypt

    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    with behind_tls(tmp_path, f"basic_auth_users: {{reader: {hashed!r}}}\n") as (site, ask):
        basic = "Basic " + base64.b64encode(b"reader:secret").decode()
        assert ask("GET", "/api/jobs", Authorization=basic)[0] == 200
        assert json.loads(ask("GET", "/api/whoami", Authorization=basic)[2])["role"] == "nobody"
        assert ask("POST", "/api/freeze", "{}", Authorization=basic, Content_Type="application/json")[0] == 401
        assert ask("GET", "/api/journal", Authorization=basic)[0] == 401
        assert ask("GET", "/api/jobs", Cookie=f"__Host-gangwatch-{site.site.port}=x")[0] == 401


# --- OpenID Connect ---------------------------------------------------------------------------------------------------

CALLBACK = "https://gangwatch.example/login/oidc/callback"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as made:
        yield made


@pytest.fixture(scope="module")
def federated_site(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder = tmp_path_factory.mktemp("state")
    roles = {"researchers": Role.SUBMITTER, "admins": Role.OPERATOR}
    issuer = Issuer(provider.issuer, CLIENT, roles, redirect_url=CALLBACK)
    access = Authentication(Tokens(folder / "token", own_file=folder / OWN_TOKENS), issuer=issuer)
    with people(folder, access) as made:
        yield made


@pytest.fixture
def federated(federated_site: People) -> People:
    federated_site.reset_wrong_tokens()
    return federated_site


def whoami(site: People, token: str) -> tuple[int, Any]:
    answer = site.ask("", "GET", "/api/whoami", Authorization=f"Bearer {token}")
    return answer.status, answer.document


def test_claims_of_an_identity_token_give_user_and_role(federated: People, provider: Provider) -> None:
    status, who = whoami(federated, provider.token())
    assert (status, who["user"], who["role"], who["means"]) == (200, "ana", "submitter", "OpenID Connect")
    assert whoami(federated, provider.token(sub="root", groups=["x", "admins", "researchers"]))[1]["role"] == "operator"
    for claims in (
        {"groups": ["visitors"]},
        {"groups": None},
        {"groups": []},
        {"groups": {"admins": 1}},
        {"groups": [["admins"]]},
    ):
        status, who = whoami(federated, provider.token(**claims))
        assert status == 403 and "in no group with a role" in who["error"]
    job = federated.ask("", "POST", "/api/jobs", JOB | {"user": "bob"}, Authorization=f"Bearer {provider.token()}")
    assert federated.ask("", "GET", f"/api/jobs/{job.document['job']}").document["user"] == "ana"
    now = int(time.time())
    many = provider.token(groups=[f"group-{index}" for index in range(500)] + ["researchers"])
    assert whoami(federated, many)[0] == 200 and len(many) < MOST_TOKEN_BYTES
    curve = raw_signed(provider, {"alg": "ES256", "kid": "curve"}, provider.body())
    assert whoami(federated, curve)[0] == 200
    assert whoami(federated, provider.token(exp=now - 5))[0] == 200, "clocks may differ by seconds"


def raw_signed(provider: Provider, header: dict[str, Any], body: dict[str, Any]) -> str:
    import jwt

    return jwt.encode(body, provider.curve, header["alg"], headers=header)


def forged_tokens(provider: Provider, stranger: Provider) -> dict[str, str]:
    """Return tokens that must be refused, by what is wrong with them."""
    import hashlib
    import hmac

    now = int(time.time())
    body = provider.body(groups=["admins"])
    pem = provider.public_pem()

    def confused(secret: bytes, algorithm: str = "HS256", **header: Any) -> str:
        unsigned = raw_token({"alg": algorithm, "typ": "JWT", "kid": "first"} | header, body).rpartition(".")[0]
        digest = hmac.new(secret, unsigned.encode(), hashlib.sha256).digest()
        return f"{unsigned}.{raw_token({}, {}, digest).rpartition('.')[2]}"

    good = provider.token(groups=["admins"])
    head, claims, signature = good.split(".")
    other_claims = raw_token({}, body | {"sub": "root"}).split(".")[1]
    return {
        "alg none": raw_token({"alg": "none", "typ": "JWT"}, body),
        "alg None": raw_token({"alg": "nOnE", "kid": "first"}, body),
        "alg none with the signature left": raw_token({"alg": "none", "kid": "first"}, body) + signature,
        "no alg": raw_token({"kid": "first"}, body, b"x" * 256),
        "alg is a list": raw_token({"alg": ["RS256"], "kid": "first"}, body, b"x" * 256),
        "public key as a shared secret": confused(pem),
        "public key as a shared secret, stripped": confused(pem.strip()),
        "empty secret": confused(b""),
        "published shared secret": confused(b"secret", kid="shared"),
        "RS256 by a shared secret": confused(pem, "RS256"),
        "no signature": f"{head}.{claims}.",
        "another's signature": f"{head}.{other_claims}.{signature}",
        "a stranger's key": stranger.token(iss=provider.issuer, groups=["admins"]),
        "a key that the token brings": stranger.token(
            header={"jwk": stranger.published()[0]}, iss=provider.issuer, groups=["admins"]
        ),
        "an address of keys that the token brings": stranger.token(
            header={"jku": f"{stranger.issuer}/keys", "x5u": stranger.issuer}, iss=provider.issuer, groups=["admins"]
        ),
        "unknown key": provider.token(header={"kid": "../../../etc/passwd"}, groups=["admins"]),
        "key for encryption": provider.token(header={"kid": "encryption"}, groups=["admins"]),
        "curve's key for RSA": provider.token(header={"kid": "curve"}, groups=["admins"]),
        "PS256, which is not allowed": provider.token(algorithm="PS256", groups=["admins"]),
        "wrong audience": provider.token(aud="another", groups=["admins"]),
        "no audience": provider.token(aud=None, groups=["admins"]),
        "audience of many without a party": provider.token(aud=["another", CLIENT], groups=["admins"]),
        "another party": provider.token(aud=["another", CLIENT], azp="another", groups=["admins"]),
        "party that is not the audience": provider.token(azp="another", groups=["admins"]),
        "wrong issuer": provider.token(iss="https://evil.example", groups=["admins"]),
        "issuer with a slash": provider.token(iss=f"{provider.issuer}/", groups=["admins"]),
        "no issuer": provider.token(iss=None, groups=["admins"]),
        "expired": provider.token(exp=now - 60, groups=["admins"]),
        "no expiry": provider.token(exp=None, groups=["admins"]),
        "expiry is text": raw_resigned(provider, exp="never"),
        "expiry is huge": provider.token(exp=10**400, iat=now + 10_000),
        "not yet": provider.token(nbf=now + 3600, groups=["admins"]),
        "issued tomorrow": provider.token(iat=now + 86_400, groups=["admins"]),
        "no subject": provider.token(sub=None, groups=["admins"]),
        "empty subject": provider.token(sub="", groups=["admins"]),
        "subject that turns a line around": provider.token(sub="ana\u202e", groups=["admins"]),
        "long subject": provider.token(sub="a" * 201, groups=["admins"]),
        "access token": provider.token(header={"typ": "at+jwt"}, groups=["admins"]),
        "unknown critical extension": raw_crit(provider),
        "huge": provider.token(groups=["admins", "x" * 20_000]),
        "enormous": "eyJhbGciOiJSUzI1NiJ9." + "A" * 40_000 + ".AAAA",
        "nested": raw_token({"alg": "RS256"}, {}).replace(".", f".{'W1' * 4000}.", 1),
        "not base64": "a!.b!.c!",
        "dots": "..",
        "deep header": _deep(),
    }


def raw_resigned(provider: Provider, **claims: Any) -> str:
    import jwt

    return jwt.api_jws.encode(
        json.dumps(provider.body() | claims).encode(), provider.keys["first"], "RS256", {"kid": "first"}
    )


def raw_crit(provider: Provider) -> str:
    import jwt

    header = {"kid": "first", "crit": ["exotic"], "exotic": True}
    return jwt.api_jws.encode(json.dumps(provider.body()).encode(), provider.keys["first"], "RS256", header)


def _deep() -> str:
    import base64

    return base64.urlsafe_b64encode(b"[" * 9000).decode().rstrip("=") + ".e30.AAAA"


def test_forged_tokens_are_refused(federated: People, provider: Provider) -> None:
    assert whoami(federated, provider.token())[0] == 200
    before = provider.asked["/keys"]
    with Provider() as stranger:
        forged = forged_tokens(provider, stranger)
    for name, token in forged.items():
        federated.reset_wrong_tokens()
        status, answer = whoami(federated, token)
        assert status in (401, 431) and "error" in answer, (name, status, answer)
        assert federated.ask("", "POST", "/api/freeze", {}, Authorization=f"Bearer {token}").status in (
            401,
            429,
            431,
        ), name
    assert not stranger.asked, "an address in a token is never requested"
    assert provider.asked["/keys"] - before <= 1, "unknown keys must not cause repeated requests to the provider"
    assert federated.ask("", "GET", "/api/queue").document["frozen"] is False


def test_new_keys_are_fetched_and_withdrawn_keys_removed(provider: Provider, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa

    folder = tmp_path / "state"
    access = Authentication(
        Tokens(folder / "token", own_file=folder / OWN_TOKENS),
        issuer=Issuer(provider.issuer, CLIENT, {"researchers": Role.VIEWER}),
    )
    assert access.oidc is not None
    now = 0.0
    access.oidc._clock = lambda: now
    with people(folder, access) as site:
        assert whoami(site, provider.token())[0] == 200
        provider.keys["second"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        old = provider.token()
        try:
            assert whoami(site, provider.token("second"))[0] == 401, "the keys were fetched a moment ago"
            now = 31.0
            assert whoami(site, provider.token("second"))[0] == 200
            provider.down = True
            now = 700.0
            assert whoami(site, provider.token("second"))[0] == 200, "the provider is down: its cached keys stay valid"
            now = 90_000.0
            status, answer = whoami(site, provider.token("second"))
            assert status == 503 and "cannot be reached" in answer["error"]
            assert site.ask("boss", "GET", "/api/whoami").status == 200, "gangwatch's own tokens need no provider"
            provider.down = False
            provider.keys, kept = {"second": provider.keys["second"]}, provider.keys
            now = 90_100.0
            assert whoami(site, old)[0] == 401, "withdrawn"
            provider.keys = kept
        finally:
            provider.down = False
            provider.keys.pop("second", None)


def test_a_browser_logs_in_through_the_provider(federated: People, provider: Provider) -> None:
    browser = Browser(federated.site.port)
    assert "/login/oidc?next=" in browser.load("/login?next=/nodes")
    begun = browser.ask("GET", "/login/oidc?next=/nodes")
    assert begun.status == 303 and "code_challenge_method=S256" in begun.headers["location"]
    assert "SameSite=lax" in browser.set_cookies[-1] and "HttpOnly" in browser.set_cookies[-1]
    back = provider.authorize(begun.headers["location"])
    answer = browser.ask("GET", f"/login/oidc/callback?{urlencode(back)}", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200 and b"url=/nodes" in answer.content, "browsers omit Strict cookies after a redirect"
    assert "SameSite=strict" in browser.set_cookies[-1]
    assert "ana (submitter)" in browser.load("/")
    assert browser.post("/api/jobs", JOB).status == 201
    assert browser.post("/api/freeze").status == 403
    again = browser.ask("GET", f"/login/oidc/callback?{urlencode(back)}")
    assert again.status == 401, "a code is valid once"


def test_a_login_started_by_another_browser_is_refused(federated: People, provider: Provider) -> None:
    """Login CSRF: an attacker sends a victim's browser to the callback with the attacker's own code."""
    attacker, victim = Browser(federated.site.port), Browser(federated.site.port)
    begun = attacker.ask("GET", "/login/oidc")
    back = provider.authorize(begun.headers["location"], sub="attacker")
    assert victim.ask("GET", f"/login/oidc/callback?{urlencode(back)}").status == 401
    own = victim.ask("GET", "/login/oidc")
    mixed = {"code": back["code"], "state": provider.authorize(own.headers["location"])["state"]}
    assert victim.ask("GET", f"/login/oidc/callback?{urlencode(mixed)}").status == 401, "the verifier is another one"
    federated.reset_wrong_tokens()
    for query in ({}, {"state": back["state"]}, {"code": "x", "state": "y"}, {"error": "<script>alert(1)</script>"}):
        refused = victim.ask("GET", f"/login/oidc/callback?{urlencode(query)}")
        assert refused.status == 401 and b"<script>alert" not in refused.content
    name = next(iter(victim.cookies))
    for forged in ("x", "x.y", victim.cookies[name][:-2] + "AA", "." * 3000, quote("é")):
        victim.cookies[name] = forged
        assert victim.ask("GET", f"/login/oidc/callback?{urlencode(back)}").status == 401
    assert "Log in" in victim.load("/")


def test_a_response_to_another_login_is_refused(federated: People, provider: Provider) -> None:
    browser = Browser(federated.site.port)
    begun = browser.ask("GET", "/login/oidc")
    back = provider.authorize(begun.headers["location"], nonce="another")
    refused = browser.ask("GET", f"/login/oidc/callback?{urlencode(back)}")
    assert refused.status == 401 and b"nonce" in refused.content
