"""The server: an agent's frames over HTTP, and what any ASGI app of ours is served with.

    /metrics   Prometheus text                 /healthz  200 while frames are made (or the first is awaited)
    /frame     the newest frame                /readyz   200 once there is a frame that is not old
    /frames    frames as they are made, one long-lived response

Everything is read-only (GET and HEAD). Until there is TLS and a token the server listens on loopback only, and answers
only requests whose Host names loopback: a web page whose name was rebound to 127.0.0.1 gets nothing.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Layout, Selection, encode_frame, encode_layout, select, with_length
from exporter.frames import FRAME_TYPE, JSON_TYPE, frame_json, frame_messages, wanted_metrics
from exporter.prometheus import CONTENT_TYPE, expose

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Newest = Callable[[], tuple[Layout, Frame] | None]
Listener = Callable[[Layout, Frame], None]
AddListener = Callable[[Listener], Callable[[], None]]

OLD_INTERVALS = 5
OLD_SECONDS = 10.0
"""The newest frame is old, and the agent not healthy, after OLD_INTERVALS intervals, and not before OLD_SECONDS."""

STREAM_FRAMES = 16
"""Frames that wait for one slow reader of /frames; it loses the oldest beyond that and sees the gap in ``seq``."""

MOST_STREAMS = 64
"""Readers of /frames at one time: a controller, its standby, people; the bound keeps a mistake from eating memory."""

STOP_SECONDS = 2
"""How long stopping waits for responses that are under way."""

_TEXT = "text/plain; charset=utf-8"
_PATHS = ("/metrics", "/frame", "/frames", "/healthz", "/readyz")


# --- the agent's app -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _text(status: int, text: str, *headers: tuple[bytes, bytes]) -> _Answer:
    return _Answer(status, _TEXT, f"{text}\n".encode(), headers)


class _Stream:
    """What waits to be sent to one reader of /frames."""

    __slots__ = ("frames", "newest_seq", "wake")

    def __init__(self) -> None:
        self.frames: deque[tuple[Layout, Frame]] = deque(maxlen=STREAM_FRAMES)
        self.newest_seq = 0
        self.wake = asyncio.Event()

    def put(self, layout: Layout, frame: Frame) -> None:
        # A frame made while the stream is opened comes twice: as the newest and by the listener.
        if frame.seq > self.newest_seq:
            self.newest_seq = frame.seq
            self.frames.append((layout, frame))
            self.wake.set()


class AgentApp:
    """The agent's endpoints as a bare ASGI app. Make it with ``agent_app``; ``close`` ends its streams."""

    def __init__(self, newest: Newest, add_listener: AddListener, clock: Clock) -> None:
        self._newest = newest
        self._add_listener = add_listener
        self._clock = clock
        self._streams: set[_Stream] = set()
        self._remove_listener: Callable[[], None] | None = None
        self._closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            answer = self._answer(scope)
            if answer is None:
                await self._stream(scope, receive, send)
            else:
                await _send_answer(answer, scope["method"], send)

    def close(self) -> None:
        """End every stream and refuse new ones. Called in the loop that serves them."""
        self._closing = True
        for stream in self._streams:
            stream.wake.set()

    def _answer(self, scope: Scope) -> _Answer | None:
        """The whole answer; None where the request is for a stream."""
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return _text(405, f"{scope['method']} {path}: only GET and HEAD", (b"allow", b"GET, HEAD"))
        if path == "/frames":
            try:
                _patterns(scope)
            except ValueError as error:
                return _text(400, str(error))
            if self._closing or len(self._streams) >= MOST_STREAMS:
                return _text(503, "stopping" if self._closing else f"{MOST_STREAMS} streams are open already")
            return None
        if path == "/healthz":
            why = self._why_not_ready()
            return _text(503, why) if why is not None and self._newest() is not None else _text(200, "ok")
        if path == "/readyz":
            why = self._why_not_ready()
            return _text(200, "ok") if why is None else _text(503, why)
        if path not in _PATHS:
            return _text(404, f"no {path} here; there are {' '.join(_PATHS)}")
        newest = self._newest()
        if newest is None:
            return _text(503, "no frame has been made yet", (b"retry-after", b"1"))
        if path == "/metrics":
            return _Answer(200, CONTENT_TYPE, expose(*newest))
        if FRAME_TYPE in _header(scope, b"accept"):
            return _Answer(200, FRAME_TYPE, frame_messages(*newest))
        return _Answer(200, JSON_TYPE, frame_json(*newest))

    def _why_not_ready(self) -> str | None:
        newest = self._newest()
        if newest is None:
            return "no frame has been made yet"
        layout, frame = newest
        interval_seconds = layout.tiers[0].interval_seconds if layout.tiers else 0.0
        age_seconds = (self._clock.monotonic_ns() - frame.monotonic_ns) / 1e9
        if age_seconds > max(OLD_SECONDS, OLD_INTERVALS * interval_seconds):
            return f"the newest frame is {age_seconds:.1f} s old"
        return None

    # --- streams -----------------------------------------------------------------------------------------------------

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The newest frame, then every frame until the reader goes or the app closes. A layout precedes its frames."""
        patterns = _patterns(scope)
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", FRAME_TYPE.encode("ascii"))]}
        )
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        stream = self._open_stream()
        gone = asyncio.ensure_future(_until_disconnected(receive, stream.wake))
        selection: Selection | None = None
        source_id = ""
        try:
            while not gone.done() and not self._closing:
                while stream.frames and not gone.done():
                    layout, frame = stream.frames.popleft()
                    body = b""
                    if selection is None or layout.layout_id != source_id:
                        selection, source_id = select(layout, patterns), layout.layout_id
                        body = with_length(encode_layout(selection.layout))
                    body += with_length(encode_frame(selection.apply(frame)))
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                stream.wake.clear()
                if not stream.frames and not gone.done() and not self._closing:
                    await stream.wake.wait()
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._close_stream(stream)

    def _open_stream(self) -> _Stream:
        stream = _Stream()
        self._streams.add(stream)
        if self._remove_listener is None:
            loop = asyncio.get_running_loop()

            def from_node(layout: Layout, frame: Frame) -> None:
                try:
                    loop.call_soon_threadsafe(self._fan_out, layout, frame)
                except RuntimeError:
                    # The loop has closed; its streams ended with it, and the last took this listener away.
                    pass

            self._remove_listener = self._add_listener(from_node)
        newest = self._newest()
        if newest is not None:
            stream.put(*newest)
        return stream

    def _close_stream(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None

    def _fan_out(self, layout: Layout, frame: Frame) -> None:
        for stream in self._streams:
            stream.put(layout, frame)


def agent_app(newest: Newest, add_listener: AddListener, clock: Clock | None = None) -> AgentApp:
    """The agent's endpoints over a node: ``agent_app(node.newest, node.add_listener)``.

    newest: the newest frame and its layout, None before the first. add_listener: calls back with every frame, from any
    thread, and returns what takes the callback away. clock: the one that frames were stamped with.
    """
    return AgentApp(newest, add_listener, clock or SystemClock())


async def _until_disconnected(receive: Receive, wake: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _send_answer(answer: _Answer, method: str, send: Send) -> None:
    headers = [
        (b"content-type", answer.content_type.encode("ascii")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


def _header(scope: Scope, name: bytes) -> str:
    values: Iterable[bytes] = (value for key, value in scope["headers"] if key == name)
    return b",".join(values).decode("latin-1")


def _patterns(scope: Scope) -> tuple[str, ...]:
    """The ``metrics`` parameter. Raises ValueError for any other parameter and for a pattern that matches nothing."""
    parameters = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if unknown := sorted(parameters.keys() - {"metrics"}):
        raise ValueError(f"/frames knows the parameter 'metrics', not {', '.join(unknown)}")
    return wanted_metrics(",".join(parameters.get("metrics", ())))


# --- serving ---------------------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether a name or address, with no port, can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class LoopbackOnly:
    """An ASGI app around another that answers only requests whose Host names loopback (against DNS rebinding)."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = _header(scope, b"host")
            name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if not is_loopback(name):
                answer = _text(403, f"Host {host!r}: this server answers as localhost, 127.0.0.1 or [::1] only")
                await _send_answer(answer, scope["method"], send)
                return
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn's server that first ends the app's endless responses when it stops: otherwise it waits for them."""

    def __init__(self, config: uvicorn.Config, closing: Sequence[Callable[[], None]]) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for close in self._closing:
            close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a loopback address; port 0 takes a free one. Raises ConfigError where that cannot be."""
    if not is_loopback(host):
        raise ConfigError(
            f"host {host!r}: not a loopback address. There is no TLS and no token yet, so the server listens on "
            "127.0.0.1 or ::1 only; reach it from elsewhere through ssh -L or a proxy that authenticates"
        )
    address = "127.0.0.1" if host.lower() == "localhost" else host.removeprefix("[").removesuffix("]")
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"the port is in use; stop what listens there (ss -ltnp 'sport = :{port}'), or take another port"
        elif isinstance(error, OSError) and error.errno == errno.EACCES:
            reason = "ports below 1024 need a privilege; take another port"
        raise ConfigError(f"cannot listen on host {host!r}, port {port}: {reason}") from None
    return listener


def create_server(
    app: App, host: str, port: int, closing: Sequence[Callable[[], None]] = ()
) -> tuple[uvicorn.Server, socket.socket]:
    """A server of `app`, not yet running, and its socket, which is bound already: its port is known.

    Run it with ``server.run(sockets=[socket])`` or, in a running loop, ``await server.serve(sockets=[socket])``; in the
    main thread either takes SIGINT and SIGTERM while it runs, and raises them again once it has stopped. ``closing`` is
    called in the loop when it begins to stop; an ``AgentApp`` is closed without being named. Raises ConfigError as
    ``listen`` does.
    """
    listener = listen(host, port)
    if isinstance(app, AgentApp):
        closing = (app.close, *closing)
    config = uvicorn.Config(
        LoopbackOnly(app),
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return _Server(config, closing), listener


def url_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ThreadedServer:
    """An app served from a thread of its own while the ``with`` lasts; ``url`` says where."""

    def __init__(self, app: App, host: str = "127.0.0.1", port: int = 0) -> None:
        """Raises ConfigError as ``listen`` does."""
        self._server, self._listener = create_server(app, host, port)
        self.url = url_of(self._listener)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name=f"server {self.url}", daemon=True
        )

    def start(self) -> None:
        """Begin to serve. Requests that come before the loop runs wait in the socket's backlog."""
        self._thread.start()

    def stop(self) -> None:
        """End streams, let answers under way finish for STOP_SECONDS, and close the socket."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def __enter__(self) -> ThreadedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
