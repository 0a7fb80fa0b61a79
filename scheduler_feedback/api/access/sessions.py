"""Sessions: logins of browsers. The cookie holds a random id; all other data stays in the controller's memory.

A session ends at logout, after IDLE_SECONDS without a request, after LIFE_SECONDS at the latest, when its credential is
no longer valid (a revoked token), and when the controller's process ends.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest

LIFE_SECONDS, IDLE_SECONDS = 12 * 3600.0, 2 * 3600.0
"""Maximum age of a session, and maximum time without a request, in seconds. OWASP's Session Management Cheat Sheet
recommends idle times of 15 to 30 minutes for applications of low risk, and some hours in all. A page on a wall display
sends a request every second and is never idle."""

MOST_SESSIONS, MOST_OF_ONE = 10_000, 32
"""Maximum number of sessions: in all, and of one credential or user. The oldest session is dropped first."""


@dataclass(slots=True)
class Session:
    """One login of a browser. source and key identify the credential, which is checked again at each request."""

    user: str
    source: str
    key: str = field(repr=False)
    csrf: str = field(repr=False)
    opened: float
    used: float
    means: str = ""
    role: int = 0


class Sessions:
    """All open sessions. Thread-safe. clock: returns monotonic seconds."""

    def __init__(
        self,
        life_seconds: float = LIFE_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.life_seconds, self.idle_seconds = life_seconds, idle_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._by_id: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, user: str, source: str, key: str, means: str, role: int) -> tuple[str, Session]:
        """Open a session. Return its id, for the cookie, and the session.

        Each login has a new id, which prevents session fixation.
        """
        identifier, now = secrets.token_urlsafe(32), self._clock()
        session = Session(user, source, key, secrets.token_urlsafe(32), now, now, means, role)
        with self._lock:
            self._forget(now)
            alike = [one for one, other in self._by_id.items() if (other.source, other.user) == (source, user)]
            for one in alike[: max(0, len(alike) - MOST_OF_ONE + 1)]:
                del self._by_id[one]
            while len(self._by_id) >= MOST_SESSIONS:
                self._by_id.popitem(last=False)
            self._by_id[_digest(identifier)] = session
        return identifier, session

    def find(self, identifier: str) -> Session | None:
        """Return the session with this id, and record that it is in use; None if there is none or it has ended."""
        now = self._clock()
        with self._lock:
            # Look up the hash: neither timing nor a copy of the keys in memory reveals an id.
            digest = _digest(identifier)
            session = self._by_id.get(digest)
            if session is None:
                return None
            if self._over(session, now):
                del self._by_id[digest]
                return None
            session.used = now
            return session

    def close(self, identifier: str) -> None:
        with self._lock:
            self._by_id.pop(_digest(identifier), None)

    def intends(self, session: Session, proof: str) -> bool:
        """Return whether `proof` is the session's CSRF token."""
        return compare_digest(session.csrf.encode(), proof.encode("utf-8", "surrogateescape"))

    def _over(self, session: Session, now: float) -> bool:
        return now - session.opened >= self.life_seconds or now - session.used >= self.idle_seconds

    def _forget(self, now: float) -> None:
        for one in [one for one, session in self._by_id.items() if self._over(session, now)]:
            del self._by_id[one]


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode("utf-8", "surrogateescape")).digest()
