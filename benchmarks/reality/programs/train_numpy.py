# mypy: ignore-errors
"""A data-parallel training in numpy with a ring of sockets. It reports through gangwatch.steps."""

import os
import re
import socket
import threading
import time

import numpy as np
from job import Job

from gangwatch import steps

SIDE = 192
PORTS = 30_000


class Ring:
    """Averages an array over all ranks: each rank sends to the next and receives from the one before."""

    def __init__(self, job):
        self.rank, self.size = job.rank, job.size
        addresses = os.environ["REALITY_ADDRESSES"].split(",")
        port = int(os.environ.get("REALITY_PORT", PORTS + 16 * int(re.sub(r"\D", "", os.environ["GANGWATCH_JOB"]))))
        with socket.create_server(("0.0.0.0", port + self.rank)) as listener:
            following = (self.rank + 1) % self.size
            until = time.monotonic() + 60
            while True:
                try:
                    self.to = socket.create_connection((addresses[following], port + following), 5)
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
            self.of, _ = listener.accept()
        for one in (self.to, self.of):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _exchange(self, sent, received):
        sender = threading.Thread(target=self.to.sendall, args=(memoryview(sent).cast("B"),))
        sender.start()
        view = memoryview(received).cast("B")
        while len(view):
            count = self.of.recv_into(view)
            if not count:
                os._exit(1)  # a rank has ended
            view = view[count:]
        sender.join()

    def average(self, array):
        """Average the array in place: reduce-scatter, then all-gather, in chunks."""
        chunks = np.array_split(array, self.size)
        for turn in range(self.size - 1):
            incoming = np.empty_like(chunks[(self.rank - turn - 1) % self.size])
            self._exchange(chunks[(self.rank - turn) % self.size], incoming)
            chunks[(self.rank - turn - 1) % self.size] += incoming
        for turn in range(self.size - 1):
            self._exchange(chunks[(self.rank + 1 - turn) % self.size], chunks[(self.rank - turn) % self.size])
        array /= self.size


def main():
    job = Job()
    reporter = steps.reporter()
    ring = Ring(job)
    random = np.random.default_rng(job.plan["seed"])
    weights = random.standard_normal((SIDE, SIDE), np.float32) * 0.05
    gradient = np.zeros(job.plan["gradient_floats"], np.float32)
    content = random.bytes(1 << 22)
    going = True
    while going:
        with reporter.step():
            batch = job.load()
            work(weights, gradient, batch)
            job.device(batch / job.plan["work"])
            job.collect()
            with reporter.wait():
                ring.average(gradient)
            weights += 1e-6 * gradient[: SIDE * SIDE].reshape(SIDE, SIDE)
        if job.due("evaluation"):
            work(weights, gradient, job.own["batches"] * batch)
            job.device(job.own["batches"] / 3)
        if job.due("checkpoint-synchronous") and job.rank == 0:
            for _ in range(job.own["times"]):
                job.save(content)
        if job.due("checkpoint-asynchronous") and job.rank == 0:
            job.save_later(content)
        going = job.ended()


def work(weights, gradient, batch):
    """Compute one batch."""
    value = np.full((SIDE, SIDE), 0.01, np.float32)
    for _ in range(batch):
        value = np.tanh(value @ weights)
    gradient[: SIDE * SIDE] = value.ravel()


if __name__ == "__main__":
    main()
