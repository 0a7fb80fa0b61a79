"""Feed of the controller with TLS: passwords, client certificates, and refused agents."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bcrypt
import pytest

from agent.schema.clock import SystemClock
from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Layout
from agent.schema.wire import with_length
from exporter.security.security import Security
from exporter.server import ThreadedServer, agent_app
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed.credentials import Credentials
from scheduler_feedback.feed.stream_connection import Connection, EndedError, SharedBuffers
from tests.exporter.certificates import Authority
from tests.exporter.sample_frames import small_frame, small_layout

NAMES = "DNS:n0.node.gangwatch.internal,DNS:localhost,IP:127.0.0.1"


def follow(folder: Path, url: str, credentials: Credentials | None, until: Callable[[Feed, int], bool]) -> int:
    """Receive frames of the agent at the URL until the condition holds. Return their number."""
    got: list[int] = []
    (folder / "n0.json").write_text(json.dumps({"pid": 1, "start_time": 1, "node": "n0", "url": url}))
    feed = Feed(folder, lambda _layout, frame, _ns: got.append(frame.seq), (), SystemClock(), credentials)

    async def run() -> None:
        running = asyncio.ensure_future(feed.run())
        try:
            async with asyncio.timeout(60):
                while not until(feed, len(got)):
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            # TLS closes after the session (aiohttp's documentation, "Graceful Shutdown").
            await asyncio.sleep(0.25)

    with warnings.catch_warnings():
        # asyncio 3.11 leaves the transport of a refused handshake to the garbage collector, which then warns.
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(run())
        gc.collect()
    return len(got)


def served(file: Path) -> ThreadedServer:
    layout = small_layout()
    made: tuple[Layout, Frame] = (layout, small_frame(layout))
    return ThreadedServer(agent_app(lambda: made, lambda _: lambda: None), security=Security(file))


def refused(feed: Feed, _count: int) -> bool:
    return bool(feed.streams["n0"].complaint) if "n0" in feed.streams else False


def arrived(_feed: Feed, count: int) -> bool:
    return count > 0


def test_a_password_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server", NAMES)
    file, password, agents = tmp_path / "web.yml", tmp_path / "password", tmp_path / "agents"
    agents.mkdir()
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    file.write_text(
        f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\nbasic_auth_users: {{c: {hashed}}}\n"
    )
    password.write_text("secret\n")
    with served(file) as server:
        right = Credentials(ca_file=authority.certificate, username="c", password_file=password)
        assert follow(agents, server.url, right, arrived)
        assert follow(agents, server.url, Credentials(ca_file=authority.certificate), refused) == 0
        assert follow(agents, server.url, None, refused) == 0, "no authority for the agent's certificate"
    assert right.headers("http://n0:9400") == {}, "a password is sent over TLS only"


def test_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server", NAMES)
    own, own_key = authority.sign("controller")
    file, agents = tmp_path / "web.yml", tmp_path / "agents"
    agents.mkdir()
    file.write_text(
        f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
        f"  client_ca_file: {authority.certificate}\n  client_auth_type: RequireAndVerifyClientCert\n"
    )
    with served(file) as server:
        right = Credentials(ca_file=authority.certificate, cert_file=own, key_file=own_key)
        assert follow(agents, server.url, right, arrived)
        assert follow(agents, server.url, Credentials(ca_file=authority.certificate), refused) == 0


def test_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"feed\.ca_file: /absent: No such file"):
        Feed(tmp_path, lambda *_: None, (), SystemClock(), Credentials(ca_file=Path("/absent")))
    with pytest.raises(ConfigError, match=r"feed\.cert_file: /absent: No such file"):
        Credentials(cert_file=Path("/absent")).read()


@contextmanager
def speaking(context: ssl.SSLContext, records: list[list[bytes]]) -> Iterator[int]:
    """Serve several agents on one port, in the order of connections. Yield the port.

    records: for each agent, the byte strings that it sends, one per write.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as open_ones:

        def serve() -> None:
            for parts in records:
                peer = open_ones.enter_context(server.accept()[0])
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = context.wrap_bio(incoming, outgoing, server_side=True)
                while True:
                    try:
                        tls.do_handshake()
                        tls.read(1 << 14)
                        break
                    except ssl.SSLWantReadError:
                        peer.sendall(outgoing.read())
                        incoming.write(peer.recv(1 << 14))
                for part in parts:
                    tls.write(part)
                encrypted = outgoing.read()
                encrypted = encrypted[:-1] + b"?" if parts[-1] == SPOILT else encrypted
                for start in range(0, len(encrypted), 100):
                    peer.sendall(encrypted[start : start + 100])

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(30)


SPOILT = b"bytes that cannot be decrypted"


def test_connections_with_shared_buffers_are_independent(tmp_path: Path) -> None:
    """TLS records of several streams arrive in parts, in turn. One of them cannot be decrypted."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server", NAMES))
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    expected = [[with_length(bytes([65 + one]) * 3000) for _ in range(20)] for one in range(3)]
    expected[1] = [*expected[1][:10], SPOILT]
    client = Credentials(ca_file=authority.certificate).read().context
    buffers = SharedBuffers()
    buffers.buffer = buffers.buffer[:70]  # less than a record
    received: list[list[bytes]] = [[], [], []]
    with speaking(context, [[head, *parts] for parts in expected]) as port:
        streams = [Connection(socket.AF_INET, ("127.0.0.1", port), "n0", b"GET", buffers, client) for _ in range(3)]
        ended: set[int] = set()
        while len(ended) < 3:
            for one, stream in enumerate(streams):
                if one in ended:
                    continue
                try:
                    if stream.writes:
                        select.select([], [stream], [], 10)
                        stream.push()
                    received[one] += stream.take()
                except ssl.SSLError:
                    assert one == 1
                    ended.add(one)
                except EndedError:
                    ended.add(one)
                assert not buffers.incoming.pending
                assert not buffers.outgoing.pending
                if len(received[one]) == 20:
                    ended.add(one)
        for stream in streams:
            stream.close()
    assert [len(of) for of in received] == [20, 10, 20]
    assert all(set(message) == {65 + one} for one, of in enumerate(received) for message in of)
