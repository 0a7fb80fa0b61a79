"""Login of a browser at an OpenID provider: the authorisation code flow, with PKCE, state and nonce.

RFC 6749, 4.1; RFC 7636; OpenID Connect Core 1.0, 3.1; RFC 9700 (best current practice). The data of an unfinished login
(state, nonce, verifier, next path) is in a cookie of the browser, signed with an HMAC and valid for ten minutes. The
controller stores nothing, so a million unfinished logins do not affect other users. The provider redeems a code once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from scheduler_feedback.api.access.oidc import FETCH_SECONDS, MOST_DOCUMENT_BYTES, Identity, Oidc
from scheduler_feedback.api.access.principal import AccessError

if TYPE_CHECKING:
    import aiohttp

UNDER_WAY_SECONDS = 600.0
"""Time after which an unfinished login expires: enough for a user to enter a password and a second factor."""


class _UnderWay(msgspec.Struct, frozen=True):
    """Data of a login that has begun at the provider and has not finished."""

    state: str
    nonce: str
    verifier: str
    following: str
    until: float
    """Time at which the unfinished login expires, in seconds since the epoch."""


_under_way = msgspec.json.Decoder(_UnderWay)


class _Tokens(msgspec.Struct):
    id_token: str


class CodeFlow:
    """Browser logins at one identity provider. Use it in one event loop."""

    def __init__(
        self, oidc: Oidc, session: Callable[[], aiohttp.ClientSession], wall: Callable[[], float] = time.time
    ) -> None:
        self._oidc = oidc
        self._session = session
        self._wall = wall
        self._key = secrets.token_bytes(32)

    async def begin(self, following: str) -> tuple[str, str]:
        """Return the address to which the browser is redirected, and the cookie that the browser must send back.

        following: path to open after the login.
        """
        issuer, metadata = self._oidc.issuer, await self._oidc.metadata()
        if not metadata.authorization_endpoint or not metadata.token_endpoint:
            raise AccessError(503, f"the identity provider {issuer.issuer} does not support browser logins")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = _UnderWay(state, nonce, verifier, following, self._wall() + UNDER_WAY_SECONDS)
        query = {
            "response_type": "code",
            "client_id": issuer.client_id,
            "redirect_uri": issuer.redirect_url,
            "scope": " ".join(issuer.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": _encoded(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{joint}{urlencode(query)}", self._sealed(begun)

    async def end(self, state: str, code: str, cookie: str) -> tuple[Identity, str]:
        """Finish a login. Return the user, and the path to open next. cookie: from ``begin``. Raises AccessError."""
        begun = self._opened(cookie)
        if begun is None or not compare_digest(begun.state.encode(), state.encode("utf-8", "surrogateescape")):
            raise AccessError(401, "this browser did not start this login, or too long ago: start again at /login")
        token = await self._redeem(code, begun.verifier)
        return await self._oidc.check(token, begun.nonce), begun.following

    def _sealed(self, begun: _UnderWay) -> str:
        body = _encoded(msgspec.json.encode(begun))
        return f"{body}.{_encoded(hmac.digest(self._key, body.encode(), 'sha256'))}"

    def _opened(self, cookie: str) -> _UnderWay | None:
        """Return the unfinished login that a cookie contains; None if it has expired or the cookie is not valid."""
        body, _, seal = cookie.partition(".")
        right = _encoded(hmac.digest(self._key, body.encode("utf-8", "surrogateescape"), "sha256"))
        if not compare_digest(right.encode(), seal.encode("utf-8", "surrogateescape")):
            return None
        begun = _under_way.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return begun if self._wall() <= begun.until else None

    async def _redeem(self, code: str, verifier: str) -> str:
        """Exchange the code of a finished login for an ID token, and return the token."""
        import aiohttp  # of the extra `oidc`

        issuer, metadata = self._oidc.issuer, await self._oidc.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": issuer.redirect_url,
            "client_id": issuer.client_id,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        try:
            if issuer.client_secret_file is not None:
                secret = issuer.client_secret_file.read_text(encoding="utf-8").strip()
                # RFC 6749, 2.3.1: both parts are form-encoded before Basic joins them.
                pair = f"{quote(issuer.client_id, safe='')}:{quote(secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
            async with self._session().post(
                metadata.token_endpoint, data=form, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                body = await bounded(response)
                if response.status != 200:
                    raise AccessError(401, f"the identity provider refused the login ({response.status})")
                return msgspec.json.decode(body, type=_Tokens).id_token
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AccessError(503, f"the identity provider cannot be reached: {type(error).__name__}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise AccessError(503, "the identity provider's response has no ID token") from None


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


async def bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body of a response. Raises OSError if the body is too long."""
    body = await response.content.read(MOST_DOCUMENT_BYTES + 1)
    while len(body) <= MOST_DOCUMENT_BYTES and (more := await response.content.read(MOST_DOCUMENT_BYTES)):
        body += more
    if len(body) > MOST_DOCUMENT_BYTES:
        raise OSError(f"{response.url.host}: a response of more than {MOST_DOCUMENT_BYTES} bytes")
    return body


async def fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """Return the content of the document at the URL. Raises OSError or TimeoutError."""
    import aiohttp  # of the extra `oidc`

    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise OSError(f"{url}: responded with status {response.status}")
            return await bounded(response)
    except aiohttp.ClientError as error:
        raise OSError(f"{url}: {error or type(error).__name__}") from None
