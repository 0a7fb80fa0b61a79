"""``python -m benchmarks.ingest.generator``: simulated agents, which send streams of frames over TLS.

One process simulates thousands of agents; the request's path names the node. Agents send their frames at different
times within the second, as real agents do.

Some agents may misbehave: `slow` agents send one byte at a time, `silent` agents nothing, `malformed` agents invalid
data, and `flooding` agents frames without pause.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import ssl
import sys
import time
from dataclasses import dataclass, field

from agent.schema.wire import with_length
from benchmarks.ingest.frames import Agents, Job, jobs
from benchmarks.ingest.timeline import Plan, Timeline
from exporter.serving.agent_http import UNSENT_BYTES
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED

SLOTS = 50
"""Phases of a second."""

SERVED_A_TURN = 16
"""Handshakes served between two readings of the clock. The limit bounds the delay of other agents' frames, because real
agents do their handshakes on their own machines."""

RECORD_BYTES = 16384
MISBEHAVIOURS = ("slow", "silent", "malformed", "flooding")
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.gangwatch.frame\r\nGangwatch-Every: 100\r\n"
    b"Gangwatch-Samples: 16\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(message: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(message), message)


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection. node: index of the requested agent; -1 before the request has arrived."""

    socket: socket.socket
    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    node: int = -1
    asked: bytes = b""
    shaken: bool = False
    waits: bool = False
    unsent: bytes = field(default=b"", repr=False)
    with_samples: bool = False
    """Whether the reader can read earlier samples."""
    every: int = 1
    """The agent sends one message for `every` frames, as the reader has requested (exporter/server.py)."""
    apart: int = 1
    """Of the frames that are not sent, the agent keeps the values of each `apart`-th one for the next message."""

    due: bool = False
    """Whether the agent sends its next frame as soon as the reader has read the one before."""

    def holds(self, seq: int) -> bool:
        """Return whether the agent does not send frame `seq`, because it was not requested or the reader is late."""
        self.due = self.due or seq % self.every == self.node % self.every
        return not self.due or bool(self.unsent)

    def keeps(self, seq: int) -> bool:
        """Return whether the values of frame `seq` are kept if it is not sent."""
        return self.with_samples and seq % self.apart == self.node % self.apart


class Generator:
    """Server of the simulated agents first, ..., first + count - 1. It runs until its standard input ends."""

    def __init__(
        self,
        first: int,
        count: int,
        misbehaving: int,
        all_jobs: list[Job],
        certificate: str,
        key: str,
        interval_seconds: float,
        timeline: Timeline | None = None,
    ) -> None:
        self._timeline, self._first = timeline, first
        self._slots = max(1, round(SLOTS * interval_seconds))
        self._agents = Agents(first, all_jobs[first : first + count], WANTED)
        self._count = count
        self._place = {name: index for index, name in enumerate(self._agents.names)}
        step = count // misbehaving if misbehaving else 0
        self._misbehaves = {
            index * step: MISBEHAVIOURS[index % len(MISBEHAVIOURS)] for index in range(misbehaving) if step
        }
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.num_tickets = 0  # as exporter/security/web_config.py
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._speaking: dict[int, Connection] = {}
        self._buffer = memoryview(bytearray(RECORD_BYTES))
        self.port = self._listener.getsockname()[1]

    def names(self) -> list[tuple[str, str]]:
        """Return (node, misbehaviour) of each simulated agent; '' for none."""
        return [(name, self._misbehaves.get(index, "")) for index, name in enumerate(self._agents.names)]

    def run(self) -> None:
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        slot = int(time.monotonic() * SLOTS)
        while True:
            due = (slot + 1) / SLOTS - time.monotonic()
            for descriptor, mask in self._epoll.poll(max(0.0, due), SERVED_A_TURN):
                if descriptor == sys.stdin.fileno():
                    return
                if descriptor == self._listener.fileno():
                    self._accept()
                elif (connection := self._connections.get(descriptor)) is not None:
                    self._serve(connection, mask)
            late = int(time.monotonic() * SLOTS) - slot
            if late > self._slots:
                # This machine is too slow for that many agents: they skip frames.
                slot += late // self._slots * self._slots
            # One slot, then sockets again: if sending takes longer than a slot, connections must still be accepted.
            if slot < int(time.monotonic() * SLOTS):
                slot += 1
                self._change_jobs()
                self._send_frames(slot)

    def _change_jobs(self) -> None:
        """Send the layouts of the nodes on which another job has started."""
        for run in () if self._timeline is None else self._timeline.advance(time.monotonic_ns()):
            for node in range(run.first_node, run.first_node + run.nodes):
                index = node - self._first
                if not 0 <= index < self._count:
                    continue
                self._agents.change_job(index, run.job_on(node))
                connection = self._speaking.get(index)
                if connection is None or self._misbehaves.get(index) not in (None, "flooding"):
                    continue
                try:
                    self._send(connection, self._agents.layout_message(index))
                    self._flush(connection)
                except OSError:
                    self._close(connection)

    def _accept(self) -> None:
        for _ in range(SERVED_A_TURN):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)  # as a real agent
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = self._context.wrap_bio(incoming, outgoing, server_side=True)
            self._connections[accepted.fileno()] = Connection(accepted, tls, incoming, outgoing)
            self._epoll.register(accepted.fileno(), select.EPOLLIN)

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self._flush(connection)
            if mask & ~select.EPOLLOUT:
                count = connection.socket.recv_into(self._buffer)
                if not count:
                    raise ConnectionResetError
                connection.incoming.write(self._buffer[:count])
                self._listen(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)

    def _listen(self, connection: Connection) -> None:
        try:
            if not connection.shaken:
                connection.tls.do_handshake()
                connection.shaken = True
            connection.asked += connection.tls.read(RECORD_BYTES)
        except ssl.SSLWantReadError:
            pass
        if connection.node >= 0 and connection.asked.endswith(b"\n"):
            asked = connection.asked.split(b"\n")[-2].split()  # every 8 samples 4
            connection.every = int(asked[1])
            connection.apart = connection.every // (int(asked[3]) if len(asked) > 2 else 1)
            connection.asked = b""
        if connection.node < 0 and connection.asked.endswith(b"\r\n\r\n"):
            node = connection.asked.split(b"/", 2)[1].decode()
            connection.node = self._place[node]
            self._agents.as_tables = b"records=table" in connection.asked
            self._agents.with_samples = connection.with_samples = b"samples=" in connection.asked
            connection.asked = b""
            connection.tls.write(HEAD)
            self._speaking[connection.node] = connection
            behaviour = self._misbehaves.get(connection.node)
            if behaviour in (None, "flooding"):
                self._send(connection, self._agents.layout_message(connection.node))
        self._flush(connection)

    def _send_frames(self, total: int) -> None:
        """Send the next frame of every agent that sends at this time slot within the second. total: time slots since
        the clock's start."""
        slot = total % self._slots
        nodes = slice(slot * self._count // self._slots, (slot + 1) * self._count // self._slots)
        held = {
            index
            for index in range(nodes.start, nodes.stop)
            if (connection := self._speaking.get(index)) is not None and connection.holds(self._agents.seq(index) + 1)
        }
        kept = {index for index in held if self._speaking[index].keeps(self._agents.seq(index) + 1)}
        self._agents.advance(nodes, time.time_ns(), time.monotonic_ns(), held, kept)
        for index in range(nodes.start, nodes.stop):
            connection = self._speaking.get(index)
            if connection is None or index in held:
                continue
            connection.due = False
            try:
                self._say(connection, self._misbehaves.get(index, ""))
            except OSError:
                self._close(connection)

    def _say(self, connection: Connection, behaviour: str) -> None:
        if behaviour == "silent":
            return
        if behaviour == "slow":
            connection.tls.write(b"f")
        elif behaviour == "malformed":
            self._send(connection, with_length(b"\x00 no frame of anybody"))
        else:
            message = self._agents.frame_message(connection.node)
            for _ in range(200 if behaviour == "flooding" else 1):
                self._send(connection, message)
        self._flush(connection)

    def _send(self, connection: Connection, message: bytes) -> None:
        connection.tls.write(chunk(message))

    def _flush(self, connection: Connection) -> None:
        if connection.outgoing.pending:
            connection.unsent += connection.outgoing.read()
        if not connection.unsent:
            return
        try:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except BlockingIOError:
            pass
        if bool(connection.unsent) != connection.waits:
            connection.waits = bool(connection.unsent)
            events = select.EPOLLIN | (select.EPOLLOUT if connection.waits else 0)
            self._epoll.modify(connection.socket.fileno(), events)

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        if connection.node >= 0 and self._speaking.get(connection.node) is connection:
            del self._speaking[connection.node]
        self._epoll.unregister(connection.socket.fileno())
        connection.socket.close()


def main() -> None:
    """Serve the simulated agents that the command-line argument describes (processes.py). Print the port and the
    agents."""
    settings = json.loads(sys.argv[1])
    first, count = settings["first"], settings["count"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    timeline = None if settings["jobs"] is None else Timeline(Plan(**settings["jobs"]))
    if timeline is None:
        all_jobs = list(jobs(settings["nodes"], settings["seed"]))
    else:
        all_jobs = [run.job_on(run.first_node + n) for run in timeline.running for n in range(run.nodes)]
    generator = Generator(
        first, count, settings["misbehaving"], all_jobs, settings["certificate"], settings["key"],
        settings["interval_seconds"], timeline,
    )  # fmt: skip
    print(json.dumps({"port": generator.port, "nodes": generator.names()}), flush=True)
    generator.run()


if __name__ == "__main__":
    main()
