"""Reader of the agents' frame streams, independent of the controller.

The demo's report takes step times from these streams, so that its checks do not depend on the controller.
"""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from agent.schema.errors import FrameError
from agent.schema.frame import Frame, Layout, StepRecord
from agent.schema.wire import MessageSplitter, decode


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One finished step of one rank, from an agent's stream. Durations are in seconds."""

    gang: str
    attempt: int
    rank: int
    step: int
    ended_wall_ns: int
    """Wall time in ns at which the step ended."""
    duration_seconds: float
    wait_seconds: float | None


class Listener:
    """Reader of the frame streams of several agents, with one thread per agent, until closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[SeenStep] = []
        self._connections: list[http.client.HTTPConnection] = []
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def listen(self, url: str) -> None:
        """Subscribe to the agent at `url` (http://127.0.0.1:PORT), and receive only its step records."""
        netloc = urllib.parse.urlsplit(url).netloc
        self.listen_with(url, lambda: http.client.HTTPConnection(netloc, timeout=10))

    def listen_with(self, name: str, connect: Callable[[], http.client.HTTPConnection]) -> None:
        """Subscribe to an agent through connections that `connect` makes. It may raise OSError; it is called again."""
        thread = threading.Thread(target=self._read, args=(connect,), name=f"listener {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, connect: Callable[[], http.client.HTTPConnection]) -> None:
        while not self._closed.wait(0.2):
            try:
                connection = connect()
            except OSError:
                continue
            with self._lock:
                self._connections.append(connection)
            try:
                connection.request("GET", "/frames?metrics=gangwatch_rank_step")
                response = connection.getresponse()
                splitter = MessageSplitter()
                while data := response.read1(65536):
                    for message in splitter.feed(data):
                        self._take(decode(message))
            except (OSError, http.client.HTTPException, FrameError, AttributeError, ValueError):
                # The agent restarted or the stream broke. http.client raises AttributeError or ValueError if close()
                # below shuts down the socket during a read.
                continue
            finally:
                connection.close()

    def _take(self, message: Layout | Frame) -> None:
        if isinstance(message, Layout):
            return
        offset_ns = message.wall_ns - message.monotonic_ns
        seen = [
            SeenStep(
                record.member.gang,
                record.member.attempt,
                record.member.rank,
                record.step,
                record.start_ns + record.duration_ns + offset_ns,
                record.duration_ns / 1e9,
                None if record.wait_ns is None else record.wait_ns / 1e9,
            )
            for record in message.records
            if isinstance(record, StepRecord)
        ]
        with self._lock:
            self._steps += seen

    def steps(self) -> list[SeenStep]:
        """Return all finished steps that the agents have reported to this reader."""
        with self._lock:
            return list(self._steps)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                try:
                    connection.sock.shutdown(2)
                except OSError:
                    pass
        for thread in self._threads:
            thread.join(timeout=2)
