"""TLS and basic auth with a web configuration that is read again whenever one of its files changes.

A bcrypt check takes tens of milliseconds. Therefore a correct password is cached as an HMAC with a key of this
process, while its hash is in the file. Wrong passwords are not cached; attempts per address are limited.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import bcrypt

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError
from agent.schema.identity import Certificate, read_certificate
from agent.schema.sample import Sample
from exporter.security.frame_readers import PATHS as FRAME_PATHS
from exporter.security.frame_readers import FrameReaders
from exporter.security.loopback import LoopbackOnly
from exporter.security.web_config import WebConfig, load_web_config, make_context, names_of
from exporter.serving.http_messages import Answer, Request, text_answer
from exporter.serving.token_buckets import Bucket

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""The files of the web configuration are checked for changes at most once in this number of seconds. A check calls
stat(2) on each file."""

PLAIN = "GANGWATCH_PLAIN_HTTP"
"""Environment variable: 'yes' allows other hosts without TLS and passwords, for networks that are protected by other
means. It is not a configuration key because configuration files are shared between machines."""

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths without authentication: they reveal nothing about the machine, and a kubelet's probe has no password."""

TRIES_PER_SECOND = 1.0
TRIES_AT_ONCE = 10
"""Maximum number of passwords that one address may try in one burst. Requests with a cached password do not count."""

MOST_ADDRESSES = 1024
MOST_REMEMBERED = 128
"""Maximum number of correct passwords in the cache; the oldest is dropped first."""

BCRYPT_BYTES = 72
"""Number of bytes of a password that bcrypt uses. This library rejects longer passwords; others cut them."""

_NOBODY = "$2b$10$fDyuMbrq81RUIpjWpyOdmeV1ThN7Bbpg0DYx8.YNSt0VsGoro2BEK"
"""Hash of discarded random bytes. It is checked for an unknown user, so that the check takes as long as for a known
user."""


class Passwords:
    """Checker of basic auth against bcrypt hashes, with a cache of correct passwords. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._tries: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()
        # One check at a time, so that a flood of wrong passwords uses only one processor.
        self._hashing = threading.Lock()
        self.hashed = 0

    def check(self, users: dict[str, str], header: str, peer: str) -> bool | None:
        """Return whether an Authorization header has a user with the right password; None after too many attempts."""
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        name = user.decode("utf-8", "replace")
        hashed = users.get(name)
        if not colon or b"\0" in password:  # bcrypt's C code ends a password at NUL
            return False
        # The hash is part of the cache key, so a changed file invalidates the entry.
        known = hmac.new(self._key, b"\0".join((user, (hashed or "").encode(), password)), hashlib.sha256).digest()
        with self._lock:
            if hashed is not None and known in self._right:
                self._right.move_to_end(known)
                return True
            if not self._may_try(peer):
                return None
        right = self._verify(password, hashed or _NOBODY) and hashed is not None
        if right:
            with self._lock:
                self._right[known] = None
                if len(self._right) > MOST_REMEMBERED:
                    self._right.popitem(last=False)
        return right

    def _may_try(self, peer: str) -> bool:
        now = self._clock()
        bucket = self._tries.get(peer)
        if bucket is None:
            bucket = self._tries[peer] = Bucket(1 / TRIES_PER_SECOND, TRIES_AT_ONCE, now)
            if len(self._tries) > MOST_ADDRESSES:
                self._tries.popitem(last=False)
        self._tries.move_to_end(peer)
        return bucket.take(now)

    def _verify(self, password: bytes, hashed: str) -> bool:
        with self._hashing:
            self.hashed += 1
            return bcrypt.checkpw(password[:BCRYPT_BYTES], hashed.encode())


class Security:
    """An active web configuration. Changed files are reloaded; an invalid change is logged and ignored.

    proves: returns whether a request needs no password, because the application authenticates it (bearer token,
    session cookie or login); None if all requests need one. readers: clients that may read frames; None: all clients
    that may read metrics.
    """

    def __init__(
        self,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        proves: Callable[[Request], bool] | None = None,
        readers: FrameReaders | None = None,
    ) -> None:
        """Read the web configuration and its files. Raises ConfigError if one of them can't be used."""
        self._clock = clock
        self._proves = proves
        self._readers = readers
        self._passwords = Passwords(clock)
        self._loopback = LoopbackOnly()
        self.refused = self._loopback.refused
        self._lock = threading.Lock()
        self._limit: Bucket | None = None
        self._seen = _stamps((file,))
        self._config = load_web_config(file)
        self._seen = _stamps(self._files())
        self._context = make_context(self._config)
        self._ends = _end_of(self._config)
        self._checked = clock()
        self._set_limit()
        self.failure = ""
        """Why the latest change was not applied; '' if it was."""

    @property
    def config(self) -> WebConfig:
        return self._config

    def measures(self) -> Iterator[Sample]:
        """Yield the expiry of the server's certificate, if there is one."""
        if self._ends is not None:
            yield "gangwatch_certificate_expiry_seconds", (("use", "server"),), self._ends

    @property
    def has_frame_readers(self) -> bool:
        """Whether some client can read frames. If only named readers may, client certificates must be requested and
        verified."""
        tls = self._config.tls
        return self._readers is None or tls is None or tls.client_ca is not None

    def _files(self) -> tuple[Path, ...]:
        return (*self._config.files(), *(() if self._readers is None else self._readers.files()))

    @property
    def hashed(self) -> int:
        """Number of password checks with bcrypt."""
        return self._passwords.hashed

    def protects(self) -> str:
        """Return what the server lacks to be reachable from other hosts (TLS, authentication); '' if it lacks
        nothing."""
        if os.environ.get(PLAIN) == "yes":
            return ""
        if self._config.tls is None:
            return f"{self._config.file} has no tls_server_config"
        if not self._config.authenticates and self._proves is None:
            return f"{self._config.file} has neither basic_auth_users nor client_auth_type: RequireAndVerifyClientCert"
        return ""

    def reload(self) -> None:
        """Read all files again. If it raises ConfigError because one of them can't be used, nothing has changed."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        seen = _stamps(self._files())
        try:
            config = load_web_config(self._config.file)
            context = make_context(config)
            ends = _end_of(config)
            if self._readers is not None:
                self._readers.read()
            was_protected = not self.protects()
            previous, self._config = self._config, config
            if was_protected and (missing := self.protects()):
                self._config = previous
                raise ConfigError(f"{missing}: a reload can't take protection away; restart for that")
        except ConfigError as error:
            self._seen, self.failure = seen, str(error)
            raise
        self._context, self._ends, self._seen, self.failure = context, ends, _stamps(self._files()), ""
        self._set_limit()

    def _set_limit(self) -> None:
        seconds = self._config.rate_seconds
        self._limit = Bucket(seconds, self._config.burst, self._clock()) if seconds else None

    def _look(self) -> None:
        """Reload the web configuration if one of its files has changed. Check this at most once in CHECK_SECONDS."""
        now = self._clock()
        if now - self._checked < CHECK_SECONDS:
            return
        with self._lock:
            if now - self._checked < CHECK_SECONDS:
                return
            self._checked = now
            if _stamps(self._files()) == self._seen:
                return
            try:
                self._read()
                log.info("reloaded %s", self._config.file)
            except ConfigError as error:
                log.error("invalid change, the old web configuration stays active: %s", error)

    # --- as a server's transport -------------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext | None:
        self._look()
        return self._context

    def admits(self, connection: ssl.SSLSocket) -> Certificate | None:
        tls = self._config.tls
        shown = connection.getpeercert() or {}
        if tls is not None and tls.client_names and not names_of(shown) & tls.client_names:
            return None
        return read_certificate(shown)

    def headers(self) -> tuple[tuple[str, str], ...]:
        return self._config.headers

    def refusal(self, request: Request) -> Answer | None:
        self._look()
        answer = self._refusal(request)
        if answer is not None and (answer.status not in (303, 403) or request.path in FRAME_PATHS):
            self.refused[answer.status] += 1
        return answer

    def _refusal(self, request: Request) -> Answer | None:
        if self._limit is not None:
            with self._lock:
                limited = not self._limit.take(self._clock())
            if limited:
                return text_answer(429, "more requests than rate_limit allows", ("Retry-After", "1"))
        if self._readers is not None and self._config.tls is not None and request.path in FRAME_PATHS:
            return self._readers.refusal(request)
        if self._proves is not None and self._proves(request):
            return None
        if not self._config.authenticates and not (self._proves is not None and self._config.tls is not None):
            return self._loopback.refusal(request)
        if request.path in OPEN_PATHS:
            return None
        if not self._config.users:
            if self._config.authenticates:
                return None
            if self._proves is not None and "text/html" in request.headers.get("accept", ""):
                where = quote(request.path, safe="/")[:500]
                return text_answer(303, "log in at /login", ("Location", f"/login?next={where}"))
            return text_answer(401, "a token is needed, or a login at /login", ("WWW-Authenticate", "Bearer"))
        right = self._passwords.check(dict(self._config.users), request.headers.get("authorization", ""), request.peer)
        if right is None:
            return text_answer(429, "too many passwords were tried", ("Retry-After", "10"))
        if not right:
            needed = "a user and a password, or a token," if self._proves is not None else "a user and a password"
            return text_answer(401, f"{needed} are needed", ("WWW-Authenticate", "Basic"))
        return None


def _end_of(config: WebConfig) -> float | None:
    """Return the expiry of the server's certificate; None without TLS, or if the certificate can't be parsed."""
    tls = config.tls
    if tls is None:
        return None
    try:
        pem = tls.certificate.read_bytes() if isinstance(tls.certificate, Path) else tls.certificate.encode()
        return validity(pem)[1]
    except (OSError, ConfigError) as error:
        log.warning("%s: can't read the expiry of its certificate: %s", config.file, error)
        return None


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value for each file that differs after a change of the file, also if a symbolic link in its path has
    changed (as in Kubernetes volumes)."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)
