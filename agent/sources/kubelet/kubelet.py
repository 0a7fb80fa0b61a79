"""Client of the kubelet's pod-resources socket, with gRPC over HTTP/2 (h2) and a time limit for each call.

Each call opens a connection, so a restart of the kubelet needs no special handling. gRPC over HTTP/2:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.kubelet.pod_resources import SOCKET, Pod, parse_allocatable, parse_list

SERVICE = "/v1.PodResourcesLister/"

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of a response in bytes. The kubelet has the same limit. gRPC's default of 4 MiB is too little for nodes
with many CPUs and pods."""

DEADLINE_SECONDS = 2.0

_T = TypeVar("_T")

_WINDOW_BYTES = 1 << 20
_READ_BYTES = 65536
_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "gangwatch"),
)

_OK = "0"
_UNIMPLEMENTED = "12"
_CODES = {
    "4": "deadline exceeded",
    "5": "not found",
    "7": "permission denied",
    "8": "resource exhausted (the kubelet's rate limit)",
    "9": "failed precondition (the kubelet is starting)",
    _UNIMPLEMENTED: "unimplemented",
    "13": "internal",
    "14": "unavailable",
}


class Kubelet:
    """Client of one kubelet. Every call raises SourceError, which names the socket, if it gets no response in time."""

    def __init__(self, path: str = SOCKET, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.path = path
        self._deadline_seconds = deadline_seconds
        self._listed: tuple[bytes, tuple[Pod, ...]] = (b"", ())

    def list(self) -> tuple[Pod, ...]:
        """Return the pods of the node with their devices.

        It is the same tuple as before if the response is unchanged.
        """
        answer = self._call("List")
        if answer != self._listed[0]:
            self._listed = (answer, self._parsed(parse_list, "List", answer))
        return self._listed[1]

    def allocatable(self) -> tuple[tuple[str, str], ...]:
        """Return the (resource name, device id) of every device that the node can give to pods.

        Needs Kubernetes 1.23.
        """
        return self._parsed(parse_allocatable, "GetAllocatableResources", self._call("GetAllocatableResources"))

    def get(self, namespace: str, name: str) -> Pod | None:
        """Return one pod; None if the response contains no pod.

        Raise UnsupportedError before Kubernetes 1.27, or if the kubelet's feature gate for this call is off.
        """
        pod, space = name.encode(), namespace.encode()
        if max(len(pod), len(space)) > 253:
            # The limit of a DNS subdomain (RFC 1123). It also ensures that lengths fit in two bytes.
            raise ValueError(f"{namespace}/{name} is not a valid pod name")
        request = b"\x0a" + _length(pod) + pod + b"\x12" + _length(space) + space
        pods = self._parsed(parse_list, "Get", self._call("Get", request))
        return pods[0] if pods else None

    def _parsed(self, parse: Callable[[bytes], _T], method: str, answer: bytes) -> _T:
        try:
            return parse(answer)
        except SourceError as error:
            raise SourceError(f"{self.path}: {method}: {error}") from None

    def _call(self, method: str, request: bytes = b"") -> bytes:
        """Call a method of the kubelet and return the response message.

        Raise UnsupportedError if the kubelet does not implement the method, SourceError for other failures.
        """
        deadline = time.monotonic() + self._deadline_seconds
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(self._deadline_seconds)
                connection.connect(self.path)
                return _Call(connection, f"{SERVICE}{method}", self._deadline_seconds).run(request, deadline)
            except SourceError as error:
                raise type(error)(f"{self.path}: {method}: {error}") from None
            except TimeoutError:
                raise SourceError(f"{self.path}: {method}: no response within {self._deadline_seconds:g} s") from None
            except OSError as error:
                raise SourceError(f"{self.path}: {method}: {error.strerror or error}") from None
            except (h2.exceptions.H2Error, ValueError) as error:
                # hpack and h2 raise ValueError for some invalid bytes.
                raise SourceError(f"{self.path}: {method}: {type(error).__name__}: {error}") from None


def _length(content: bytes) -> bytes:
    """Return the content preceded by its length, a varint of one or two bytes."""
    size = len(content)
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


class _Call:
    """One gRPC call with one request and one response, on its own connection."""

    def __init__(self, connection: socket.socket, path: str, deadline_seconds: float) -> None:
        self._socket = connection
        self._path = path
        self._timeout = f"{max(1, round(deadline_seconds * 1000))}m"
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._body = bytearray()
        self._status: str | None = None
        self._message = ""
        self._ended = False

    def run(self, request: bytes, deadline: float) -> bytes:
        """Send the request and return the response message. Raise SourceError, or exceptions of socket and h2."""
        self._h2.initiate_connection()
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.increment_flow_control_window(_WINDOW_BYTES)
        stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, [(":path", self._path), *_HEADERS, ("grpc-timeout", self._timeout)])
        self._h2.send_data(stream, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        while not self._ended:
            if pending := self._h2.data_to_send():
                self._socket.sendall(pending)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise SourceError("the connection was closed before the end of the response")
            for event in self._h2.receive_data(data):
                self._handle(event, stream)
        return self._answer()

    def _handle(self, event: h2.events.Event, stream: int) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            raise SourceError(f"the connection was terminated (HTTP/2 error {event.error_code})")
        if getattr(event, "stream_id", None) != stream:
            return
        if isinstance(event, h2.events.DataReceived):
            self._body += event.data
            if len(self._body) > MAX_ANSWER_BYTES + 5:
                raise SourceError(f"response of over {MAX_ANSWER_BYTES} bytes")
            if event.flow_controlled_length:
                self._h2.acknowledge_received_data(event.flow_controlled_length, stream)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            for name, value in event.headers or ():
                if name == b":status" and value != b"200":
                    raise SourceError(f"HTTP status {value.decode('latin-1')}")
                if name == b"grpc-status":
                    self._status = value.decode("latin-1")
                elif name == b"grpc-message":
                    self._message = unquote(value.decode("latin-1"))[:200]
        elif isinstance(event, h2.events.StreamReset):
            raise SourceError(f"the call was reset (HTTP/2 error {event.error_code})")
        elif isinstance(event, h2.events.StreamEnded):
            self._ended = True

    def _answer(self) -> bytes:
        """Return the response message of a successful call."""
        if self._status != _OK:
            status = "no status" if self._status is None else _CODES.get(self._status, f"status {self._status}")
            error = f"{status}: {self._message}" if self._message else status
            raise UnsupportedError(error) if self._status == _UNIMPLEMENTED else SourceError(error)
        body = self._body
        if len(body) < 5:
            raise SourceError(f"response of {len(body)} bytes without a message")
        if body[0]:
            raise SourceError("unexpected compressed response")
        length = int.from_bytes(body[1:5], "big")
        if length != len(body) - 5:
            raise SourceError(f"message of {length} bytes in a response of {len(body)} bytes")
        return bytes(body[5:])
