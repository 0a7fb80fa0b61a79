"""Who may ask: TLS and basic auth by a web configuration that is read again whenever one of its files changes.

bcrypt is slow on purpose: tens of milliseconds, more than all else that an agent does in a second. A password that was
right is remembered, as an HMAC under a key that this process alone knows, for as long as its hash stands in the file;
one that was wrong is not, and one address gets few tries a second.
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

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError
from agent.schema.identity import Certificate, read_certificate
from exporter.prometheus.text_format import Sample
from exporter.security.frame_readers import PATHS as FRAME_PATHS
from exporter.security.frame_readers import FrameReaders
from exporter.security.loopback import LoopbackOnly
from exporter.security.web_config import WebConfig, load_web_config, make_context, names_of
from exporter.serving.http_messages import Answer, Request, text_answer
from exporter.serving.token_buckets import Bucket

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often, at most, the files are looked at: a stat each."""

PLAIN = "GANGWATCH_PLAIN_HTTP"
"""In the environment, 'yes' has others answered without TLS and password. It is for networks that are walled in by
other means, and stands in no file that is shared between machines."""

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered without a password: they say nothing of the machine, and a kubelet's probe has none."""

TRIES_PER_SECOND = 1.0
TRIES_AT_ONCE = 10
"""Passwords that bcrypt is asked about, for each address. A client whose password is remembered isn't counted."""

MOST_ADDRESSES = 1024
MOST_REMEMBERED = 128
"""Bounds of what is kept in memory; the oldest goes first."""

BCRYPT_BYTES = 72
"""bcrypt looks at no more of a password; the library refuses longer ones, where others cut them."""

_NOBODY = "$2b$10$fDyuMbrq81RUIpjWpyOdmeV1ThN7Bbpg0DYx8.YNSt0VsGoro2BEK"
"""The hash of random bytes that were thrown away: an unknown user takes as long as a known one."""


class Passwords:
    """Checks basic auth against bcrypt hashes, and remembers what was right. May be asked from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._tries: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()
        # One at a time: a flood of wrong passwords takes one processor, never all.
        self._hashing = threading.Lock()
        self.hashed = 0

    def check(self, users: dict[str, str], header: str, peer: str) -> bool | None:
        """Whether an Authorization header names a user with the right password; None where too many were tried."""
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        name = user.decode("utf-8", "replace")
        hashed = users.get(name)
        if not colon or b"\0" in password:  # which bcrypt's C form ends a password at
            return False
        # The hash is part of what is remembered: a changed file forgets by itself.
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
        import bcrypt

        with self._hashing:
            self.hashed += 1
            return bcrypt.checkpw(password[:BCRYPT_BYTES], hashed.encode())


class Security:
    """A web configuration in force. Changed files are taken over; a wrong change is logged and the old stays.

    proves: says of a request that it carries a proof which the app behind checks, and refuses where it is wrong (a
    bearer token, a session's cookie), or that it is on its way to a login; None where the app checks nothing. readers:
    who may read frames, whatever else admits to metrics; None: whoever may read those.
    """

    def __init__(
        self,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        proves: Callable[[Request], bool] | None = None,
        readers: FrameReaders | None = None,
    ) -> None:
        """Raises ConfigError for a file that can't be used."""
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
        """Why the newest change is not in force; '' where it is."""

    @property
    def config(self) -> WebConfig:
        return self._config

    def measures(self) -> Iterator[Sample]:
        """When the certificate that is shown ends; nothing without one."""
        if self._ends is not None:
            yield "gangwatch_certificate_expiry_seconds", (("use", "server"),), self._ends

    @property
    def has_frame_readers(self) -> bool:
        """Whether anybody can prove to be a reader of frames: clients' certificates are asked for and verified."""
        tls = self._config.tls
        return self._readers is None or tls is None or tls.client_ca is not None

    def _files(self) -> tuple[Path, ...]:
        return (*self._config.files(), *(() if self._readers is None else self._readers.files()))

    @property
    def hashed(self) -> int:
        """How often bcrypt was asked."""
        return self._passwords.hashed

    def protects(self) -> str:
        """What is missing for a server that others can reach; '' where nothing is, or nothing is wanted."""
        if os.environ.get(PLAIN) == "yes":
            return ""
        if self._config.tls is None:
            return f"{self._config.file} has no tls_server_config"
        if not self._config.authenticates and self._proves is None:
            return f"{self._config.file} has neither basic_auth_users nor client_auth_type: RequireAndVerifyClientCert"
        return ""

    def reload(self) -> None:
        """Read everything again now. Raises ConfigError where it can't be used; what was in force stays."""
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
        """Take over what changed, at most once in CHECK_SECONDS."""
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
                log.info("%s is in force as it now stands", self._config.file)
            except ConfigError as error:
                log.error("the change is not taken over: %s", error)

    # --- as a server's transport -------------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext | None:
        self._look()
        return self._context

    def admits(self, connection: ssl.SSLSocket) -> Certificate | None:
        tls = self._config.tls
        told = connection.getpeercert() or {}
        if tls is not None and tls.client_names and not names_of(told) & tls.client_names:
            return None
        return read_certificate(told)

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
    """When the server's certificate ends; None where that can't be told: the context has read it all the same."""
    tls = config.tls
    if tls is None:
        return None
    try:
        pem = tls.certificate.read_bytes() if isinstance(tls.certificate, Path) else tls.certificate.encode()
        return validity(pem)[1]
    except (OSError, ConfigError) as error:
        log.warning("%s: when its certificate ends can't be told: %s", config.file, error)
        return None


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when a file does, also where a link in its path now leads elsewhere (as Kubernetes does it)."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)
