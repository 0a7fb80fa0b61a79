"""Limits on the number of wrong credentials, for each client (peer) and for all clients together."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

PER_SECOND, AT_ONCE = 1.0, 10
"""Maximum number of wrong credentials from one peer, per second and in a burst. This is enough for a user who mistypes,
and allows an attacker 86,400 guesses a day."""

ALL_PER_SECOND, ALL_AT_ONCE = 20.0, 100
"""Maximum number of wrong credentials from all peers, per second and in a burst. An attacker may use many addresses."""

MOST_PEERS = 4096
"""Maximum number of peers with a counter. The least recently used counter is dropped first."""


class _Bucket:
    __slots__ = ("_at", "_burst", "_per_second", "_tokens")

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._tokens, self._at = float(burst), now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_second)
        self._at = now

    def empty(self, now: float) -> bool:
        self._fill(now)
        return self._tokens < 1.0

    def take(self, now: float) -> None:
        self._fill(now)
        self._tokens = max(0.0, self._tokens - 1.0)


class Attempts:
    """Counters of wrong credentials by peer. All addresses of an IPv6 /64 network are one peer. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(ALL_PER_SECOND, ALL_AT_ONCE, clock())

    def exhausted(self, peer: str) -> bool:
        """Return whether the peer, or all peers together, have used up their attempts."""
        with self._lock:
            now = self._clock()
            bucket = self._peers.get(_network(peer))
            return self._all.empty(now) or (bucket is not None and bucket.empty(now))

    def wrong(self, peer: str) -> None:
        """Count a wrong credential of the peer."""
        with self._lock:
            now, network = self._clock(), _network(peer)
            bucket = self._peers.get(network)
            if bucket is None:
                bucket = self._peers[network] = _Bucket(PER_SECOND, AT_ONCE, now)
                if len(self._peers) > MOST_PEERS:
                    self._peers.popitem(last=False)
            self._peers.move_to_end(network)
            bucket.take(now)
            self._all.take(now)


def _network(peer: str) -> str:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
