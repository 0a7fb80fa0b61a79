"""Training of N ranks that synchronize over TCP. One rank gets stuck in a step: ``stuck_training.py PORT HOW AFTER``.

HOW: "sleep" (the rank sleeps in load_batch), or "lock" (a C call holds Python's interpreter lock). The stuck rank
writes the time at which it gets stuck to the file in the environment variable STUCK.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from pathlib import Path

from gangwatch import steps

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PORT, HOW, AFTER = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def connect() -> list[socket.socket]:
    if RANK == 0:
        listener = socket.create_server(("127.0.0.1", PORT))
        return [listener.accept()[0] for _ in range(RANKS - 1)]
    while True:
        try:
            return [socket.create_connection(("127.0.0.1", PORT))]
        except OSError:
            time.sleep(0.05)


def all_reduce(peers: list[socket.socket]) -> None:
    if RANK == 0:
        for peer in peers:
            peer.recv(1)
    for peer in peers:
        peer.sendall(b"x")
    if RANK != 0:
        peers[0].recv(1)


def load_batch(step: int) -> None:
    if RANK == 1 and step == AFTER:
        Path(os.environ["STUCK"]).write_text(str(time.time()))
        if HOW == "sleep":
            time.sleep(600.0)
        else:
            ctypes.PyDLL(None).sleep(600)  # PyDLL does not release the lock
    time.sleep(0.1)


def main() -> None:
    peers = connect()
    reporter = steps.reporter()
    for step in range(10_000):
        with reporter.step():
            load_batch(step)
            with reporter.wait():
                all_reduce(peers)


main()
