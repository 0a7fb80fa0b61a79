"""Attacks on the controller's HTTP server: incomplete, slow, malformed or too much input affects only its sender."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.schema.peer_quota import NoPlaceError, Places
from benchmarks.fuzz import http_requests as fuzz
from exporter.security.security import Security
from exporter.serving import limits, peers
from exporter.serving.limits import Limits
from exporter.serving.peers import UNKNOWN_LOCAL, Peers
from tests import needs
from tests.exporter.certificates import Authority
from tests.security.serving import Served, read_response, read_until_closed, served, short_deadlines, until

__all__ = ["short_deadlines"]

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: "
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WAITS = b"GET /wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


# --- too slow ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("begun", [b"", b"GET", HALF], ids=["nothing", "a word", "half a head"])
def test_an_unfinished_head_times_out(begun: bytes) -> None:
    with served() as site:
        client = site.connect(begun)
        began = time.monotonic()
        while True:  # sending single bytes does not keep it open longer
            try:
                client.sendall(b"a" if begun else b"")
                time.sleep(0.05)
                client.setblocking(False)
                if client.recv(1):
                    client.setblocking(True)
                    break
            except BlockingIOError:
                client.setblocking(True)
            except OSError:
                break
            assert time.monotonic() - began < 10
        client.close()
        until(lambda: site.open() == 0)
        assert site.refused["late head"] == 1
        assert site.ask() == 200


@pytest.mark.usefixtures("short_deadlines")
def test_an_idle_connection_stays_open_and_half_a_request_does_not() -> None:
    with served() as site:
        client = site.connect(WHOLE)
        assert read_response(client).startswith(b"HTTP/1.1 200")
        time.sleep(1.0)  # longer than the deadline of a head
        client.sendall(WHOLE)
        assert read_response(client).startswith(b"HTTP/1.1 200")
        client.sendall(HALF)
        assert read_until_closed(client).startswith(b"HTTP/1.1 408")


@pytest.mark.usefixtures("short_deadlines")
def test_an_unfinished_body_times_out() -> None:
    with served() as site:
        client = site.connect(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nab")
        assert read_until_closed(client).startswith(b"HTTP/1.1 408")
        until(lambda: site.open() == 0)
        assert site.refused["late body"] == 1


@pytest.mark.usefixtures("short_deadlines")
def test_an_unread_body_is_accepted_only_briefly() -> None:
    with served() as site:
        client = site.connect(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        try:
            while sent < 64 * 1024 * 1024:
                client.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
        client.close()
        assert sent < 32 * 1024 * 1024, "the server read all of it"
        until(lambda: site.open() == 0)
        assert site.ask() == 200


@pytest.mark.usefixtures("short_deadlines")
def test_an_unread_response_times_out_and_a_slowly_read_one_does_not() -> None:
    with served() as site:
        client = site.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until(lambda: site.refused.get("late send") == 1)
        until(lambda: site.open() == 0)
        client.close()

        slow = site.connect(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        received = 0
        while data := slow.recv(262_144):
            received += len(data)
            time.sleep(0.03)
        slow.close()
        assert received > 8_000_000


@pytest.mark.usefixtures("short_deadlines")
def test_an_unfinished_handshake_and_plain_bytes_on_a_tls_port_are_closed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    file = tmp_path / "web.yml"
    file.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n")
    with served(security=Security(file, proves=lambda _: False)) as site:
        silent = [site.connect(b"\x16\x03\x01\x02\x00\x01") for _ in range(5)]
        plain = site.connect(WHOLE)
        read_until_closed(plain)
        for client in silent:
            assert read_until_closed(client) == b""
        until(lambda: site.open() == 0)
        assert site.refused["handshake"] == 6
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", site.port, timeout=20, context=context)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


def test_only_clients_with_allowed_certificate_names_get_a_response(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    file = tmp_path / "web.yml"
    file.write_text(
        f"tls_server_config: {{cert_file: {certificate}, key_file: {key}, client_ca_file: {authority.certificate}, "
        "client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [prometheus.example]}\n"
    )

    def ask(name: str, port: int) -> int:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(*authority.sign(name, f"DNS:{name}"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status
        finally:
            connection.close()

    with served(security=Security(file)) as site:
        assert ask("prometheus.example", site.port) == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            ask("tenant.example", site.port)


# --- too many ---------------------------------------------------------------------------------------------------------


def test_half_requests_of_a_peer_are_displaced_by_its_next_request() -> None:
    with served(Limits(connections=100, connections_each=10)) as site:
        halves = [site.connect(HALF) for _ in range(30)]
        until(lambda: site.refused.get("displaced") == 20)
        assert site.open() == 10
        for _ in range(20):
            assert site.ask() == 200
        for client in halves:
            client.close()


def test_an_active_request_is_not_displaced_by_a_flood_of_its_peer() -> None:
    with served(Limits(connections=100, connections_each=10, answering_each=8)) as site:
        waiting = [site.connect(WAITS) for _ in range(8)]
        until(lambda: _answering(site) == 8)
        halves = [site.connect(HALF) for _ in range(30)]
        refused = site.connect(WAITS)
        assert refused.recv(65536).startswith(b"HTTP/1.1 429")
        assert _answering(site) == 8
        assert site.ask(token=True) == 200
        for client in (*waiting, *halves, refused):
            client.close()


def _answering(site: Served) -> int:
    return int(next(value for name, _, value in site.server.measures() if name == "gangwatch_http_answering"))


def test_frequent_requests_are_delayed_except_with_the_token() -> None:
    with served(Limits(requests_per_second=10)) as site:
        client = site.connect()
        began = time.monotonic()
        for _ in range(25):  # a burst of 20, then ten per second
            client.sendall(WHOLE)
            assert read_response(client).startswith(b"HTTP/1.1 200")
        assert 0.4 < time.monotonic() - began < 5
        began = time.monotonic()
        for _ in range(30):
            assert site.ask(token=True) == 200
        assert time.monotonic() - began < 5
        client.close()


def test_requests_over_the_rate_limit_get_retry_after() -> None:
    with served(Limits(requests_per_second=1, most_wait_seconds=1.5)) as site:
        clients = [site.connect(WHOLE) for _ in range(8)]
        answers = [client.recv(65536) for client in clients]
        for client in clients:
            client.close()
        assert sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) == 3
        late = next(answer for answer in answers if answer.startswith(b"HTTP/1.1 429"))
        assert b"retry-after: 2" in late
        assert site.ask(token=True) == 200


def test_a_request_with_a_too_large_length_is_refused_before_its_body() -> None:
    with served() as site:
        assert site.ask("/", method="POST", body=b"x" * limits.BODY_BYTES) == 200
        client = site.connect(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1048577\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 413")
        client.close()
        assert site.refused["length"] == 1


def test_connections_of_other_users_are_rate_limited() -> None:
    needs.root("to act as another user")
    program = (
        "import os, socket, sys; ''.encode('idna'); os.setuid(65534)\n"
        "n = 0\n"
        "for _ in range(100):\n"
        "    s = socket.socket(); s.connect(('127.0.0.1', int(sys.argv[1]))); s.settimeout(10)\n"
        "    try:\n"
        "        s.sendall(b'GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'); n += s.recv(12) == b'HTTP/1.1 200'\n"
        "    except OSError: pass\n"
        "print(n)"
    )
    with served(Limits(connects_per_second=5)) as site:
        done = subprocess.run([sys.executable, "-S", "-c", program, str(site.port)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert 10 <= int(done.stdout) < 60
        assert site.refused["rate"] >= 40
        for _ in range(30):
            assert site.ask() == 200, "our own user has no rate limit, because it could end the server anyway"


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("by_file", [False, True], ids=["sock_diag", "/proc/net/tcp"])
def test_a_local_peer_is_identified_by_user(
    family: socket.AddressFamily, by_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MOST_FILE_READS_PER_SECOND", 1000)
    found = Peers()
    found._diag_works = not by_file
    with socket.socket(family) as listener:
        try:
            listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        except OSError:
            needs.absent("the loopback interface has no IPv6 address: sysctl net.ipv6.conf.lo.disable_ipv6=0")
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, address = listener.accept()
        assert found.of(accepted, address) == f"uid {os.geteuid()}"
        client.shutdown(socket.SHUT_WR)  # a half-closed connection still has an owner
        assert found.of(accepted, address) == f"uid {os.geteuid()}"
        client.close()
        assert found.of(accepted, address) == UNKNOWN_LOCAL, "never root, which the kernel reports in this state"
        accepted.close()
    found.close()


def test_a_local_peer_of_another_user_is_identified_as_that_user() -> None:
    needs.root("to act as another user")
    found = Peers()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = (
            "import os, socket, sys; ''.encode('idna'); os.setuid(65534)\n"
            "s = socket.socket(); s.connect(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
        )
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-S", "-c", program, port], stdin=subprocess.PIPE) as process:
            accepted, address = listener.accept()
            assert found.of(accepted, address) == "uid 65534"
            accepted.close()
            assert process.stdin is not None
            process.stdin.close()
    found.close()


def test_a_remote_peer_is_identified_by_address() -> None:
    assert peers.of_address(peers.plain("10.1.2.3")) == "10.1.2.3"
    assert peers.of_address(peers.plain("::ffff:10.1.2.3")) == "10.1.2.3"
    assert peers.of_address(peers.plain("2001:db8:1:2:aaaa::1%eth0")) == "2001:db8:1:2::/64"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Peers().of(ours, "") == f"uid {os.geteuid()}"


# --- connection limits ------------------------------------------------------------------------------------------------


def test_connections_are_shared_by_max_min_fairness() -> None:
    """A peer with fewer connections than the largest peer can always open one, and is never closed in favour of a
    larger."""
    chance = random.Random(18)
    for _ in range(50):
        most, each = chance.randrange(2, 20), chance.randrange(1, 12)
        places: Places[int] = Places(most, each, worth_own=9, worth_others=9)
        of: dict[int, str] = {}
        for holder in range(300):
            peer = chance.choice("abcd" if holder % 3 else "a")
            before = {name: places.held(name) for name in "abcd"}
            try:
                displaced = places.take(peer, holder, 0.0, chance.randrange(3))
            except NoPlaceError:
                assert len(places) == most
                assert before[peer] == 0 and max(before.values()) <= 1, "each other peer has one place, this one none"
                continue
            of[holder] = peer
            if displaced is not None:
                assert before[of[displaced]] >= before[peer], "the displaced peer has at least as many places"
                assert displaced not in places
            assert len(places) <= most and places.held(peer) <= each
            if chance.random() < 0.3:
                places.drop(chance.choice(list(places)))


# --- malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_deadlines")
def test_malformed_requests_end_only_their_connection(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(7)
    statuses: set[int] = set()
    bounds = Limits(connects_per_second=1e5, requests_per_second=1e5, requests_per_second_all=1e5)
    with served(bounds) as site:
        for count in range(600):
            client = site.connect(fuzz.request(chance))
            client.settimeout(0.02 if count % 8 else 5)
            try:
                if count % 2:
                    client.shutdown(socket.SHUT_WR)
                answer = client.recv(65536)
                if answer:
                    assert answer.startswith(b"HTTP/1.1 ")
                    statuses.add(int(answer[9:12]))
            except (TimeoutError, ConnectionError):
                pass
            client.close()
        assert site.ask() == 200
        until(lambda: site.open() == 0)
        assert site.refused["malformed"] > 50
    assert 500 not in statuses and {200, 400} <= statuses
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert len([record for record in caplog.records if record.name != "asyncio"]) < 5, "not one line per request"


@pytest.mark.usefixtures("short_deadlines")
def test_pipelined_requests_are_answered_in_order_until_garbage() -> None:
    with served() as site:
        client = site.connect(WHOLE * 3 + b"\x00garbage\r\n\r\n" + WHOLE)
        answer = read_until_closed(client)
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.count(b"HTTP/1.1 400") == 1


def test_server_statistics_are_metrics_of_the_catalogue() -> None:
    from agent.schema.catalog import BY_NAME

    with served() as site:
        site.ask()
        for name, labels, _ in site.server.measures():
            assert {label for label, _ in labels} == set(BY_NAME[name].labels), name
        json.dumps(site.refused)
