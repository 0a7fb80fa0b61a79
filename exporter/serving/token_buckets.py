"""Token buckets for rate limits with bursts. Pure."""

from __future__ import annotations

from collections import OrderedDict

MOST_BUCKETS = 4096
"""Maximum number of peers with a bucket; the least recently used is dropped first."""


class Bucket:
    """A token bucket, which limits a rate: each request takes a token. It holds at most `burst` tokens.

    One token is added every `seconds` seconds.
    """

    __slots__ = ("_at", "_burst", "_seconds", "_tokens")

    def __init__(self, seconds: float, burst: int, now: float) -> None:
        self._seconds, self._burst = seconds, max(1, burst)
        self._tokens, self._at = float(self._burst), now

    def take(self, now: float) -> bool:
        """Take a token if there is one; return whether there was. now: monotonic seconds."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until a token is available; 0 if one is available now.

        If tokens were taken in advance (``owe``), the time includes their replacement.
        """
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) * self._seconds)

    def owe(self) -> None:
        """Take a token, in advance if none is available.

        The caller must delay its request by the seconds that ``wait_seconds`` returned before this call.
        """
        self._tokens -= 1.0

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) / self._seconds)
        self._at = now


class Buckets:
    """Token buckets of the peers that have sent requests recently, one per peer."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, peer: str, now_s: float) -> Bucket:
        """Return the peer's bucket. Its burst is the number of tokens that are added in two seconds."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            bucket = self._buckets[peer] = Bucket(1 / self._per_second, int(2 * self._per_second), now_s)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(peer)
        return bucket
