"""Authentication: determines the user (principal) of a request.

A request proves its user in one of three ways, tried in this order:

1. ``Authorization: Bearer``: a token of gangwatch (tokens.py), an ID token of the configured provider (oidc.py), or any
   token that the Kubernetes API server accepts (token_review.py). The web configuration handles Basic.
2. A session's cookie (sessions.py). The credential that opened the session is checked again, so that a revoked token
   ends it.
3. The unix socket in the state folder: the kernel names the peer's uid (SO_PEERCRED). This is not possible on loopback:
   the peer's port in /proc/net/tcp gives the uid of a forwarder (ssh -L, kubectl port-forward, any proxy), gives 0 for
   a socket that has just been closed, and covers only this network namespace.

A wrong proof is refused, not ignored: otherwise a client would mistake a response without private fields for the
complete response.
"""

from __future__ import annotations

import os
import pwd
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.schema.sample import Sample
from scheduler_feedback.api.access.attempts import Attempts
from scheduler_feedback.api.access.oidc import Issuer, Oidc
from scheduler_feedback.api.access.oidc_login import CodeFlow, fetch
from scheduler_feedback.api.access.principal import LOG_IN, AccessError, Principal, Role
from scheduler_feedback.api.access.sessions import Session, Sessions
from scheduler_feedback.api.access.tokens import Tokens

if TYPE_CHECKING:  # of the extras `oidc` and `kubernetes`
    import aiohttp

    from scheduler_feedback.api.access.token_review import Reviewing, TokenReviews

MOST_BEARER_BYTES = 16 * 1024
MOST_COOKIE_BYTES = 8 * 1024
CSRF_HEADER = "x-gangwatch-csrf"
UNIX_PEER = "uid:"
"""Prefix of the name of a peer on the unix socket. No address of a TCP peer begins with it."""

LOGIN_PATHS = ("/login/oidc", "/static/")
"""Paths that the login page needs. Their responses contain nothing about jobs."""

REASONS = ("token", "session", "intent", "attempts")
"""Reasons of refusals: wrong token; ended session; cookie without the page's CSRF token; too many wrong tokens."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110, 9.2.1


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """Headers and connection data of a request, from which its user is determined."""

    method: str
    headers: Mapping[str, str]
    """Headers of the request: values by lower-case name."""
    peer: str
    secure: bool
    """Whether the connection uses TLS."""
    port: int
    source: str = ""
    """Name under which the request's wrong tokens are counted. On loopback it is the user of the connection. '': they
    are counted under the name of the peer."""


def cookie_name(secure: bool, port: int) -> str:
    """Return the name of the session's cookie. It contains the port, because controllers of one host share cookies.

    With TLS its prefix makes the browser enforce Secure, Path=/ and no Domain (RFC 6265bis, 4.1.3.2).
    """
    return f"__Host-gangwatch-{port}" if secure else f"gangwatch-{port}"


class Authentication:
    """Authentication of requests. Use it in one event loop. Its tokens and sessions may be used from any thread."""

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions | None = None,
        issuer: Issuer | None = None,
        reviewing: Reviewing | None = None,
        clock: Callable[[], float] = time.monotonic,
        closed: bool = False,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare the ways to log in.

        closed: refuse requests without a login. trust: certificate authorities of the identity provider.

        Raises ConfigError if [oidc] is invalid.
        """
        self._closed, self._trust = closed, trust
        self.tokens = tokens
        self.sessions = sessions or Sessions()
        self.attempts = Attempts(clock)
        self.refused: Counter[str] = Counter()
        """Number of refused requests, by reason (see REASONS)."""
        self._session: aiohttp.ClientSession | None = None
        self.oidc = Oidc(issuer, self._fetch) if issuer is not None else None
        by_page = self.oidc is not None and self.oidc.issuer.redirect_url
        self.code_flow = CodeFlow(self.oidc, self._http) if self.oidc is not None and by_page else None
        self.reviews: TokenReviews | None = None
        if reviewing is not None:
            from scheduler_feedback.api.access.token_review import TokenReviews

            self.reviews = TokenReviews(reviewing)

    async def close(self) -> None:
        """Close the connections to identity providers."""
        if self.reviews is not None:
            await self.reviews.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def measures(self) -> Iterator[Sample]:
        for reason in REASONS:
            yield "gangwatch_access_refused_total", (("reason", reason),), float(self.refused[reason])
        yield "gangwatch_access_sessions", (), float(len(self.sessions))
        yield "gangwatch_access_token_file_failures", (), float(len(self.tokens.failures()))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def identify(self, credentials: RequestCredentials) -> Principal:
        """Return the user of the request. Raises AccessError for a wrong credential."""
        scheme, _, given = credentials.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return (await self.credential(given.strip(), credentials.peer, credentials.source))[0]
        if (identifier := session_id(credentials)) is not None:
            return await self._by_session(credentials, identifier)
        if credentials.peer.startswith(UNIX_PEER):
            return _by_uid(credentials.peer)
        return Principal(peer=credentials.peer)

    async def credential(self, token: str, peer: str, source: str = "") -> tuple[Principal, str, str]:
        """Return (user of the token, kind of the token, key). A session stores kind and key to check the token again.

        Argument source: name under which a wrong token is counted; '' for the name of the peer. Raises AccessError: 401
        for a wrong token, 403 for a user without a role, 429 after too many wrong tokens, 503 if the token cannot be
        checked now.
        """
        over = self.attempts.exhausted(source or peer)
        # A right token of gangwatch is accepted while others at the address guess: 256 bits cannot be guessed.
        may_be = len(token) <= MOST_BEARER_BYTES and not (over and self.tokens.guessable(token))
        if may_be and (known := self.tokens.find(token)) is not None:
            return Principal(known.user, known.role, known.means, peer), "token", known.key
        try:
            return await self._by_provider(token, peer, over)
        except AccessError as error:
            if error.status == 401:
                self.attempts.wrong(source or peer)
                self.refused["attempts" if over else "token"] += 1
                if over:
                    raise AccessError(
                        429, "too many wrong tokens came from this address: try again in ten seconds"
                    ) from None
            raise

    async def _by_provider(self, token: str, peer: str, over: bool) -> tuple[Principal, str, str]:
        if len(token) > MOST_BEARER_BYTES:
            raise AccessError(401, f"the token is longer than {MOST_BEARER_BYTES} bytes")
        if self.oidc is not None and self.oidc.claims_issuer(token):
            identity = await self.oidc.check(token)
            principal = Principal(identity.user, identity.role, "OpenID Connect", peer)
            return principal, "oidc", str(identity.expires)
        if self.reviews is not None and (not over or self.reviews.knows(token)):
            reviewed = await self.reviews.check(token)
            if reviewed.user and reviewed.role is Role.ANONYMOUS:
                raise AccessError(403, f"{reviewed.user} has no role: {_GRANT}")
            if reviewed.user:
                return Principal(reviewed.user, reviewed.role, "Kubernetes", peer), "kubernetes", token
        raise AccessError(401, f"the token is not known here, was revoked or has expired: {LOG_IN}")

    def proves(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether the request contains a credential (which is checked later), or is part of a login."""
        if path == "/login" or path.startswith(LOGIN_PATHS):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and given.strip():
            return True
        names = ((part.strip().partition("=")) for part in headers.get("cookie", "")[:MOST_COOKIE_BYTES].split(";"))
        return any(
            name.removeprefix("__Host-").startswith("gangwatch-") and self.sessions.find(value) is not None
            for name, _, value in names
        )

    def is_operators(self, authorization: str) -> bool:
        """Return whether an Authorization header contains an operator's token. Such requests are not rate limited."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(given) > MOST_BEARER_BYTES:
            return False
        known = self.tokens.find(given.strip())
        return known is not None and known.role >= Role.OPERATOR

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open_session(self, principal: Principal, source: str, key: str) -> tuple[str, Session]:
        """Open a session after a login. Return the session id, for the cookie, and the session."""
        return self.sessions.open(principal.user, source, key, principal.means, principal.role)

    def session_of(self, credentials: RequestCredentials) -> Session | None:
        """Return the session of the request's cookie; None if there is none or it has ended."""
        identifier = session_id(credentials)
        return self.sessions.find(identifier) if identifier is not None else None

    async def _by_session(self, credentials: RequestCredentials, identifier: str) -> Principal:
        session = self.sessions.find(identifier)
        principal = await self._current(session, credentials.peer) if session is not None else None
        if session is None or principal is None:
            self.sessions.close(identifier)
            self.refused["session"] += 1
            if credentials.method in SAFE_METHODS and not self._closed:
                return Principal(means=ENDED, peer=credentials.peer)
            raise AccessError(401, "this login has ended: log in again at /login")
        if credentials.method not in SAFE_METHODS:
            self._require_intent(credentials, session)
        return principal

    def _require_intent(self, credentials: RequestCredentials, session: Session) -> None:
        """Raise AccessError if another web site may have sent the request, because browsers always add the cookie.

        The request needs the session's CSRF token, which only pages of gangwatch contain, in a header, which no form
        can send. If the browser names the site of origin, it must be this one.
        """
        site = credentials.headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or not self.sessions.intends(
            session, credentials.headers.get(CSRF_HEADER, "")
        ):
            self.refused["intent"] += 1
            raise AccessError(
                403, f"a change with a login cookie needs the page's {CSRF_HEADER} header: reload the page"
            )

    async def _current(self, session: Session, peer: str) -> Principal | None:
        """Return the session's user; None if the credential that opened it is no longer valid."""
        if session.source == "token":
            known = self.tokens.current(session.key)
            if known is None:
                return None
            return Principal(known.user, known.role, f"{known.means}, by the page", peer, by_cookie=True)
        role = Role(session.role)
        if session.source == "kubernetes":
            assert self.reviews is not None, "it opened the session"
            reviewed = await self.reviews.check(session.key)
            if not reviewed.user or reviewed.role is Role.ANONYMOUS:
                return None
            role = reviewed.role
        return Principal(session.user, role, f"{session.means}, by the page", peer, by_cookie=True)

    # --- connections --------------------------------------------------------------------------------------------------

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp  # of the extra `oidc`

        if self._session is None:
            # No cookies and no proxy settings: the documents are public, and the addresses are configured.
            connector = aiohttp.TCPConnector(ssl=self._trust if self._trust is not None else True)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def _fetch(self, url: str) -> bytes:
        return await fetch(self._http(), url)


ENDED = "login ended"
"""Value of `means` for a principal whose session has ended."""

_GRANT = (
    "grant it in [token_review] roles, or in the cluster by RBAC: verb use, apiGroup gangwatch.io, resource roles, "
    "resourceName viewer, submitter or operator"
)


def session_id(credentials: RequestCredentials) -> str | None:
    """Return the session id in the request's cookie; None if there is none."""
    text = credentials.headers.get("cookie", "")
    name = cookie_name(credentials.secure, credentials.port)
    if name not in text or len(text) > MOST_COOKIE_BYTES:
        return None
    for part in text.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name and value:
            return value
    return None


def _by_uid(peer: str) -> Principal:
    """Return the user of a unix socket connection. root and the controller's own user are operators."""
    uid = int(peer.removeprefix(UNIX_PEER))
    if uid not in (0, os.geteuid()):
        return Principal(means=f"local socket, uid {uid}", peer=peer)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return Principal(user, Role.OPERATOR, f"local socket, uid {uid}", peer)
