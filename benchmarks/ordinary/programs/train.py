"""Small data-parallel training in numpy: in every step, ranks compute, exchange sums, and update their weights.

python train.py PLAN

PLAN is a JSON object: steps, compute_seconds (CPU time per step), rest_seconds (pause per step), report (true:
report steps to gangwatch), saves_every (steps between checkpoints; 0: only on SIGTERM), processor (CPU of the rank
`pinned`, or null). On SIGTERM it writes a checkpoint and exits with 75; the next start resumes. Ranks exchange sums
through rank 0, over TCP.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import evidence  # type: ignore[import-not-found,unused-ignore]
import numpy as np

STOPPED = 75
WAIT_SECONDS = 120.0


class Exchange:
    """Exchange of values among all ranks through rank 0: their sum, and whether any rank raises a flag."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        self.rank, self.size = rank, size
        self._peers: list[socket.socket] = []
        if size == 1:
            return
        if rank == 0:
            with socket.create_server(("127.0.0.1", port), backlog=size) as listener:
                listener.settimeout(WAIT_SECONDS)
                for _ in range(size - 1):
                    peer, _ = listener.accept()
                    self._peers.append(peer)
        else:
            until = time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    self._peers = [socket.create_connection(("127.0.0.1", port), 5.0)]
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
        for peer in self._peers:
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sum(self, value: float, flag: bool) -> tuple[float, bool]:
        """Return the sum of `value`, and whether any rank raised its flag."""
        if self.rank:
            self._peers[0].sendall(struct.pack("<d?", value, flag))
            return self._read(self._peers[0])
        for peer in self._peers:
            theirs, raised = self._read(peer)
            value, flag = value + theirs, flag or raised
        for peer in self._peers:
            peer.sendall(struct.pack("<d?", value, flag))
        return value, flag

    @staticmethod
    def _read(peer: socket.socket) -> tuple[float, bool]:
        data = b""
        while len(data) < 9:
            more = peer.recv(9 - len(data))
            if not more:
                raise ConnectionError("a rank is gone")
            data += more
        value, flag = struct.unpack("<d?", data)
        return float(value), bool(flag)


def main() -> None:
    plan = json.loads(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stop = [False]
    signal.signal(signal.SIGTERM, lambda *_: stop.__setitem__(0, True))
    evidence.write("start", parent=os.getppid())
    if plan.get("processor") is not None and rank == plan.get("pinned", 0):
        os.sched_setaffinity(0, {plan["processor"]})
    saved = Path(os.environ["ORDINARY_TRUTH"]) / f"saved.{os.environ['GANGWATCH_JOB']}"
    first = int(saved.read_text()) if saved.exists() else 0
    reporter = None
    if plan.get("report"):
        from gangwatch import steps

        reporter = steps.reporter()
    exchange = Exchange(rank, size, int(os.environ["MASTER_PORT"]))
    weights = np.ones((64, 64), np.float32) * 0.01
    step = first
    try:
        while step < plan["steps"]:
            if reporter is None:
                weights = work(weights, plan)
                _, stopping = exchange.sum(float(weights[0, 0]), stop[0])
            else:
                with reporter.step():
                    weights = work(weights, plan)
                    with reporter.wait():
                        _, stopping = exchange.sum(float(weights[0, 0]), stop[0])
            step += 1
            if rank == 0 and plan.get("saves_every") and step % plan["saves_every"] == 0:
                saved.write_text(str(step))
            if stopping:
                if rank == 0:
                    saved.write_text(str(step))
                evidence.write("terminated", step=step)
                evidence.end(STOPPED)
    except OSError:
        evidence.end(1)
    evidence.end(0)


def work(weights: np.ndarray, plan: dict[str, float]) -> np.ndarray:
    """Compute for the plan's CPU time per step, sleep for its pause, and return the result."""
    until = time.thread_time() + plan["compute_seconds"]
    while time.thread_time() < until:
        weights = np.tanh(weights @ weights * 0.1 + 0.01)
    if plan.get("rest_seconds"):
        time.sleep(plan["rest_seconds"])
    return weights


if __name__ == "__main__":
    main()
