"""TCP relay that can drop all data of one direction without an error for the sender."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

_READ_BYTES = 65536


class Relay:
    """Relay of TCP connections to a port of this machine. It listens on `port` inside the ``with``.

    requests, answers: whether data to the server, or from it, is delivered. While one is off, connections stay open and
    new ones are accepted, so neither side gets an error. A connection that has lost data in a direction delivers
    nothing more in that direction, like behind a firewall that has dropped its state.
    """

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self.requests = self.answers = True

    def __enter__(self) -> Relay:
        thread = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    @contextlib.contextmanager
    def cut(self, *, requests: bool = False, answers: bool = False) -> Iterator[None]:
        """Drop data of the named directions inside the ``with``."""
        self.requests, self.answers = not requests, not answers
        try:
            yield
        finally:
            self.requests = self.answers = True

    def _accept(self) -> None:
        while not self._stopping:
            if not select.select([self._listener], [], [], 0.2)[0]:
                continue
            client, _ = self._listener.accept()
            thread = threading.Thread(target=self._pass, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._to, timeout=10)
            except OSError:
                return
            requests = answers = True
            with server:
                while not self._stopping:
                    ready = select.select([client, server], [], [], 0.2)[0]
                    try:
                        for source in ready:
                            data = source.recv(_READ_BYTES)
                            if not data:
                                return
                            if source is client:
                                requests &= self.requests
                            else:
                                answers &= self.answers
                            if requests if source is client else answers:
                                (server if source is client else client).sendall(data)
                    except OSError:
                        return
