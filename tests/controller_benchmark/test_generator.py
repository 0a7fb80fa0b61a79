"""The simulated agents of the ingest and controller benchmarks."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ingest.frames import jobs
from benchmarks.ingest.generator import SLOTS, Connection, Generator
from benchmarks.ingest.processes import certificates


def test_a_generator_that_is_too_slow_still_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of agents, sending the frames of one slot takes longer than the slot lasts."""
    ca_file, certificate, key = certificates(tmp_path)
    generator = Generator(0, 4, 0, list(jobs(4, 1)), str(certificate), str(key), 1.0)
    monkeypatch.setattr(generator, "_send_frames", lambda _slot: time.sleep(1.5 / SLOTS))
    read, write = os.pipe()
    with os.fdopen(read) as ended:
        monkeypatch.setattr(sys, "stdin", ended)
        thread = threading.Thread(target=generator.run, daemon=True)
        thread.start()
        time.sleep(0.5)
        context = ssl.create_default_context(cafile=ca_file)
        with (
            socket.create_connection(("127.0.0.1", generator.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            assert connection.version() is not None
        os.close(write)
        thread.join(20)
    assert not thread.is_alive()
    for accepted in generator._connections.values():
        accepted.socket.close()
    generator._listener.close()
    generator._epoll.close()


def test_a_late_agent_sends_its_message_as_soon_as_the_reader_has_read() -> None:
    """As real agents do. A generator that skips a second does not skip the message that was due in it."""
    nothing: Any = None
    connection = Connection(nothing, nothing, nothing, nothing, node=3, every=8, apart=2, with_samples=True)
    sent: list[int] = []
    for seq in range(1, 41):
        connection.unsent = b"x" if 11 <= seq < 14 else b""  # the reader does not read
        if not connection.holds(seq):
            sent.append(seq)
            connection.due = False
    assert sent == [3, 14, 19, 27, 35]
    assert [seq for seq in range(4, 12) if connection.keeps(seq)] == [5, 7, 9, 11]
