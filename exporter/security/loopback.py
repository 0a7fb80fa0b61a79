"""Guard of a server without TLS and passwords: it serves only clients on this machine."""

from __future__ import annotations

import ipaddress
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from agent.schema.identity import Certificate
from exporter.serving.http_messages import Answer, Request, text_answer

if TYPE_CHECKING:
    import ssl  # two megabytes, which an agent on loopback never needs


@lru_cache(maxsize=16)  # a scraper sends the same header at every scrape
def is_loopback(host: str) -> bool:
    """Return whether a name or address, without a port, always means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the name or address in a Host header, without its port."""
    return header.partition("]")[0] if header.startswith("[") else header.partition(":")[0]


class LoopbackOnly:
    """Guard that admits only requests whose Host is loopback (against DNS rebinding).

    refused: number of refused requests by status.
    """

    def __init__(self) -> None:
        self.refused: Counter[int] = Counter()

    def context(self) -> ssl.SSLContext | None:
        return None

    def admits(self, connection: ssl.SSLSocket) -> Certificate | None:  # noqa: ARG002 - there are no such connections
        return None

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def refusal(self, request: Request) -> Answer | None:
        host = request.headers.get("host", "")
        if is_loopback(host_of(host)):
            return None
        self.refused[403] += 1
        return text_answer(403, f"Host {host!r}: this server answers as localhost, 127.0.0.1 or [::1] only")
