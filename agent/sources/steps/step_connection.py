"""One connection of a training process: its message, its memory file, and its registration."""

from __future__ import annotations

import array
import os
import socket
from typing import NamedTuple

from agent.schema.errors import ReporterError
from agent.schema.frame import Member
from agent.sources.steps.closers import Closer
from agent.sources.steps.rings import Ring
from agent.sources.steps.step_messages import (
    LENGTH_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_REPORT_BYTES,
    QUESTION,
    BlockedReport,
    Claim,
    Peer,
    Place,
    parse_claim,
    parse_later,
    take_message,
)
from agent.sources.steps.tenants import Tenant

MAX_PLACES = 16
"""Maximum number of times that a process may report its position in the job's parallelism. Every change makes a new
layout of the node's frames. The position is known only after the job has created its process groups."""

_MAX_DESCRIPTORS = 253
"""Maximum number of descriptors in one message (SCM_MAX_FD, unix(7)). The buffer has room for this number. The kernel
closes descriptors that do not fit, and such a close could block this thread."""


class Admission(NamedTuple):
    """Result of an accepted registration: the rank that the process reports, and the tenant whose limits apply."""

    member: Member
    tenant: Tenant


class Registered:
    """Training process whose registration was accepted.

    closed: True after its connection has ended; its ring can still be read. place: last reported position of `member`
    in the job's parallelism (for example its pipeline stage).
    """

    __slots__ = ("claim", "closed", "member", "peer", "place", "ring", "tenant")

    def __init__(self, peer: Peer, claim: Claim, admission: Admission, ring: Ring) -> None:
        self.peer = peer
        self.claim = claim
        self.member, self.tenant = admission
        self.ring = ring
        self.place = claim.place
        self.closed = False


class Connection:
    """Connection of one client: the received part of its message and, after its admission, its registration."""

    __slots__ = (
        "ask_at",
        "asks",
        "begun",
        "claim",
        "message",
        "owes_report",
        "peer",
        "places",
        "registered",
        "ring",
        "socket",
        "tenant",
    )

    def __init__(self, connection: socket.socket, peer: Peer, tenant: Tenant, begun: float) -> None:
        self.socket = connection
        self.peer = peer
        self.tenant = tenant
        self.begun = begun
        self.message = bytearray()
        self.ring: Ring | None = None
        self.claim: Claim | None = None
        self.registered: Registered | None = None
        self.ask_at = 0.0
        self.asks = 0
        self.places = 0
        self.owes_report = False

    def receive(self, closer: Closer) -> bool:
        """Receive available data. Return False if the client has closed the connection.

        Received descriptors other than the step ring go to `closer`. Raise ReporterError for data that no client may
        send.
        """
        data, ancillary, flags, _ = self.socket.recvmsg(
            MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if descriptors or flags & socket.MSG_CTRUNC:
            self._take_ring(list(descriptors), closer)
        self.message += data
        if len(self.message) > 2 * self._most_bytes:
            raise ReporterError(f"incomplete message of {len(self.message)} bytes, at most {self._most_bytes}")
        return bool(data)

    @property
    def _most_bytes(self) -> int:
        return MAX_REPORT_BYTES if self.owes_report else MAX_MESSAGE_BYTES

    def ask(self) -> None:
        """Ask the process where it is blocked, without waiting. Do nothing if it has not answered the last question.

        A process that does not read has a full socket, and gets no question. Then it gives no answer either.
        """
        if self.owes_report:
            return
        self.owes_report = self.send(QUESTION)

    def send(self, message: bytes) -> bool:
        """Send a message to the process, without waiting. Return whether it was sent."""
        try:
            self.socket.send(len(message).to_bytes(LENGTH_BYTES, "big") + message, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def _take_ring(self, descriptors: list[int], closer: Closer) -> None:
        """Keep the descriptor of the step ring, which must be the only one.

        Raise ReporterError for other descriptors.
        """
        if len(descriptors) == 1 and self.ring is None and self.registered is None:
            try:
                self.ring = Ring.of_descriptor(descriptors[0])
            except ReporterError:
                closer.put(descriptors[0], self.tenant)
                raise
            os.close(descriptors[0])  # closing a memory file does not block
            return
        for descriptor in descriptors:
            closer.put(descriptor, self.tenant)
        raise ReporterError(
            "too many descriptors: send exactly one, of the memory file, with the registration", "descriptors"
        )

    def parse_registration(self) -> bool:
        """Parse the claimed identity. Return whether it and the step ring have arrived.

        Raise ReporterError if they are invalid.
        """
        if self.claim is None:
            message = take_message(self.message)
            if message is None:
                return False
            claim = parse_claim(message)
            if self.ring is None:
                raise ReporterError("registration without a memory file: attach its descriptor (SCM_RIGHTS)", "ring")
            self.claim = claim
        return True

    def take_updates(self) -> BlockedReport | None:
        """Parse what a registered process has sent. Store its new positions, and return its answer to a question.

        Raise ReporterError if a message is invalid, or is an answer without a question.
        """
        report = None
        while self.registered is not None and (message := take_message(self.message, self._most_bytes)) is not None:
            update = parse_later(message)
            if isinstance(update, Place):
                self.places += 1
                if self.places > MAX_PLACES:
                    raise ReporterError(f"more than {MAX_PLACES} updates of its place")
                self.registered.place = update
            elif self.owes_report:
                self.owes_report = False
                report = update
            else:
                raise ReporterError("report about a blocked rank without a question")
        return report
