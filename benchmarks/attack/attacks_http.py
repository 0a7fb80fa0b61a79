"""Attacks on the HTTP servers of controller and agent, measured by the delays of other clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.attack.http_bed import (
    BedError,
    Daemon,
    agent,
    attacker,
    controller,
    first_line,
    for_seconds,
    percentile,
    scrape,
    write,
)

SECONDS = 8.0
"""Duration of each measurement in seconds."""

HALF_OPEN = r"""
port, count = int(sys.argv[1]), int(sys.argv[2])
def begin():
    one = socket.socket()
    one.settimeout(3)
    try:
        one.connect(("127.0.0.1", port))
        one.send(b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-a: " % port)
        return one
    except OSError:
        one.close()
held = [begin() for _ in range(count)]
print("begun", flush=True)
while True:
    time.sleep(0.5)
    for place, one in enumerate(held):
        try:
            one.send(b"a")
        except (OSError, AttributeError):
            held[place] = begin()
"""

CONNECTS = r"""
port = int(sys.argv[1])
print("begun", flush=True)
while True:
    try:
        one = socket.socket()
        one.settimeout(1)
        one.connect(("127.0.0.1", port))
        one.close()
    except OSError:
        pass
"""

READERS = r"""
port, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def read():
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while True:
        try:
            client.request("GET", path)
            client.getresponse().read()
        except (OSError, http.client.HTTPException):
            client.close()
            time.sleep(0.05)
for _ in range(count):
    threading.Thread(target=read, daemon=True).start()
print("begun", flush=True)
time.sleep(3600)
"""

STREAMS = r"""
port, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
held = []
for _ in range(count):
    one = socket.socket()
    one.settimeout(3)
    one.connect(("127.0.0.1", port))
    one.send(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path.encode(), port))
    held.append(one)
print("begun", flush=True)
time.sleep(3600)
"""

BODIES = r"""
port, count = int(sys.argv[1]), int(sys.argv[2])
held = []
for _ in range(count):
    one = socket.socket()
    one.settimeout(3)
    one.connect(("127.0.0.1", port))
    one.send(b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
             b"Content-Length: 1000000\r\n\r\n{" % port)
    held.append(one)
print("begun", flush=True)
while True:
    time.sleep(1)
    for one in held:
        try:
            one.send(b" ")
        except OSError:
            pass
"""

MALFORMED = r"""
port = int(sys.argv[1])
chance = random.Random(7)
base = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n"
print("begun", flush=True)
while True:
    data = bytearray(base)
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    kind = chance.randrange(6)
    if kind == 0:
        data = chance.randbytes(300)
    elif kind == 1:
        data = b"GET / HTTP/1.1\r\nX: " + b"a" * 70000 + b"\r\n\r\n"
    elif kind == 2:
        data = (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                b"GET /x HTTP/1.1\r\n\r\n")
    try:
        one = socket.socket()
        one.settimeout(0.05)
        one.connect(("127.0.0.1", port))
        one.sendall(data)
        one.recv(64)
    except OSError:
        pass
    one.close()
"""


def _measured(
    name: str,
    daemon: Daemon,
    honest: Callable[[Daemon], None],
    program: str,
    *arguments: object,
    user: int | None = None,
) -> dict[str, Any]:
    """Return the outcome of one attack on a running daemon.

    honest: request of an honest client, measured before and during the attack. program, arguments: the attacker.
    """
    daemon.failures = []
    daemon.measured(honest, for_seconds(2.0))
    quiet = percentile(daemon.measured(honest, for_seconds(SECONDS)), 0.99)
    before = daemon.rss_mib()
    as_whom: dict[str, int] = {} if user is None else {"user": user}
    with attacker(program, daemon.port, *arguments, **as_whom) as process:
        first_line(process)
        waits = daemon.measured(honest, for_seconds(SECONDS))
        growth = daemon.rss_mib() - before
    survived = daemon.alive()
    with contextlib.suppress(BedError):
        daemon.ask("GET", "/healthz")
    return {
        "name": name,
        "survived": survived and daemon.alive(),
        "rss_growth_mib": round(growth, 1),
        "p99_ms_of_others": round(percentile(waits, 0.99), 1),
        "p99_ms_of_others_quiet": round(quiet, 1),
        "lost": len(daemon.failures),
        "wrong_actions": 0,
    }


def half_open_heads() -> dict[str, Any]:
    """Send 600 requests whose headers never end, and reopen the connections that the controller closes."""
    with controller() as daemon:
        return _measured("http_half_open_heads", daemon, write, HALF_OPEN, 600)


def half_open_heads_with_300_descriptors() -> dict[str, Any]:
    """Send 600 requests whose headers never end to a controller that may open only 300 files."""
    with controller(nofile=300) as daemon:
        return _measured("http_half_open_heads_300_descriptors", daemon, write, HALF_OPEN, 600)


def half_open_heads_on_an_agent() -> dict[str, Any]:
    """Send requests whose headers never end to an agent that other clients scrape."""
    with agent() as daemon:
        return _measured("http_half_open_heads_agent", daemon, scrape, HALF_OPEN, 600)


def bodies_without_end() -> dict[str, Any]:
    """Send 200 submissions whose bodies never end."""
    with controller() as daemon:
        return _measured("http_bodies_without_end", daemon, write, BODIES, 200)


def connections_without_end() -> dict[str, Any]:
    """Open and close connections as fast as possible."""
    with controller() as daemon:
        return _measured("http_connection_flood", daemon, write, CONNECTS)


def malformed_requests() -> dict[str, Any]:
    """Send malformed requests to the controller."""
    with controller() as daemon:
        return _measured("http_malformed_requests", daemon, write, MALFORMED)


def malformed_requests_to_an_agent() -> dict[str, Any]:
    """Send malformed requests to an agent."""
    with agent() as daemon:
        return _measured("http_malformed_requests_agent", daemon, scrape, MALFORMED)


def _readers(count: int) -> dict[str, Any]:
    with controller(jobs=1000) as daemon:
        return _measured(f"http_readers_{count}", daemon, write, READERS, count, "/api/jobs")


def readers_12() -> dict[str, Any]:
    """Read all of 1,000 jobs from twelve clients without a pause."""
    return _readers(12)


def readers_64() -> dict[str, Any]:
    """Read all of 1,000 jobs from sixty-four clients without a pause."""
    return _readers(64)


def explain_flood() -> dict[str, Any]:
    """Request the explanation of one job of 1,000 from twelve clients without a pause."""
    with controller(jobs=1000) as daemon:
        last = daemon.ask("GET", "/api/queue?limit=1")["waiting"][0]["job"]
        return _measured("http_explain_flood", daemon, write, READERS, 12, f"/api/jobs/{last}/explain")


@contextlib.contextmanager
def _another_stream(daemon: Daemon, path: str) -> Iterator[None]:
    """Open a stream repeatedly as an honest user during the attack. A failure counts as lost."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    try:
        connection.request("GET", path)
        if connection.getresponse().status != 200:
            daemon.failures.append(f"{path} was not opened")
        yield
    except OSError as error:
        daemon.failures.append(f"{path}: {error}")
        yield
    finally:
        connection.close()


def _streams(
    name: str, daemon: Daemon, path: str, honest: Callable[[Daemon], None], pause_seconds: float
) -> dict[str, Any]:
    """Measure the requests of honest clients while the attacker keeps many streams open.

    pause_seconds: time between two streams of the honest reader, since a user may have only a few at a time.
    """

    def opens(one: Daemon) -> None:
        with _another_stream(one, path):
            honest(one)
        time.sleep(pause_seconds)

    return _measured(name, daemon, opens, STREAMS, 64, path)


def idle_event_streams() -> dict[str, Any]:
    """Keep 64 idle event streams of one user open, while another user opens one and an operator sends commands."""
    with controller() as daemon:
        return _streams("http_idle_event_streams", daemon, "/api/events", write, 0.02)


def idle_frame_streams() -> dict[str, Any]:
    """Keep 64 idle frame streams of one user open at an agent, while another user opens one and scrapes."""
    with agent() as daemon:
        return _streams("http_idle_frame_streams", daemon, "/frames", scrape, 0.15)


ATTACKS: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
    ("http_half_open_heads", half_open_heads),
    ("http_half_open_heads_300_descriptors", half_open_heads_with_300_descriptors),
    ("http_half_open_heads_agent", half_open_heads_on_an_agent),
    ("http_bodies_without_end", bodies_without_end),
    ("http_connection_flood", connections_without_end),
    ("http_malformed_requests", malformed_requests),
    ("http_malformed_requests_agent", malformed_requests_to_an_agent),
    ("http_readers_12", readers_12),
    ("http_readers_64", readers_64),
    ("http_explain_flood", explain_flood),
    ("http_idle_event_streams", idle_event_streams),
    ("http_idle_frame_streams", idle_frame_streams),
)
