"""Delivery of one item to a receiver: the result of an attempt, and the delivery of encoded items over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from exporter.push.sender import Sender
from exporter.push.target import PushTarget

LATER = frozenset({408, 429, 502, 503, 504})
"""HTTP status codes that cause a retry: OTLP's list, and 408. For remote write, all other 5xx codes also cause a
retry."""

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one attempt to deliver an item."""

    accepted: bool
    reason: str = ""
    """Reason of a failure. If the item was accepted: text about the parts that the receiver refused, '' for none."""
    again: bool = False
    """Whether to try again after a failure."""
    wait_seconds: float = 0.0
    """Minimum pause before the next attempt, as the receiver has asked."""


class Delivery(Protocol[T_contra]):
    """Encoder and connection to one receiver. One thread uses it."""

    name: str
    """Name of the sink in metrics and logs."""

    def deliver(self, item: T_contra) -> Outcome:
        """Send one item and wait for the response. An exception other than OSError is a bug in the encoder."""

    def close(self) -> None:
        """Close the connection."""


class Language(Protocol):
    """Protocol of a receiver over HTTP: headers of requests, and meaning of responses."""

    name: str

    def headers(self) -> Mapping[str, str]:
        """Return the headers of every request."""

    def again(self, status: int) -> bool:
        """Return whether to retry after this status."""

    def complaint(self, answer: bytes) -> str:
        """Return a text about the items that a successful response reports as refused; '' if there are none."""


def outcome_of(language: Language, status: int, answer: bytes, wait_seconds: float) -> Outcome:
    """Return the meaning of an HTTP response."""
    if 200 <= status < 300:
        return Outcome(True, language.complaint(answer))
    reason = f"status {status}: {answer[:200].decode('utf-8', 'replace').strip()}"
    return Outcome(False, reason, language.again(status), wait_seconds)


class HttpDelivery(Generic[T]):
    """Delivery of items as POST requests over one connection. encode: returns the body for one item."""

    def __init__(
        self,
        language: Language,
        target: PushTarget,
        encode: Callable[[T], bytes],
        section: str = "",
        key: str = "endpoint",
    ) -> None:
        """Read the files and check the endpoint. Raises ConfigError if a file or the endpoint can't be used.

        section, key: configuration key of the endpoint.
        """
        self.name = language.name
        self._language, self._encode = language, encode
        self._sender = Sender(target, language.headers(), section or language.name, key)

    def deliver(self, item: T) -> Outcome:
        body = self._encode(item)
        try:
            return outcome_of(self._language, *self._sender.send(body))
        except ValueError as error:
            raise OSError(f"{type(error).__name__}: {error}") from None  # of http.client, for example for a header

    def close(self) -> None:
        self._sender.close()
