"""Login of a browser at an OpenID provider: the authorisation code flow, with PKCE, state and nonce.

RFC 6749, 4.1; RFC 7636; OpenID Connect Core 1.0, 3.1; RFC 9700 (best current practice). A login under way is kept here
and not in the browser: its state is random, is bound to the browser by a cookie, counts once, and for ten minutes.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from scheduler_feedback.access.oidc import FETCH_SECONDS, MOST_DOCUMENT_BYTES, Identity, Oidc
from scheduler_feedback.access.principal import AccessError

UNDER_WAY_SECONDS = 600.0
MOST_UNDER_WAY = 1000
"""Logins begun and not ended; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A login that the provider has still to answer."""

    browser: str = field(repr=False)
    """What the browser's cookie has to be."""
    verifier: str = field(repr=False)
    nonce: str = field(repr=False)
    next: str
    began: float


class _Tokens(msgspec.Struct):
    id_token: str


class CodeFlow:
    """Logins by one provider. Used in one event loop."""

    def __init__(
        self, oidc: Oidc, session: Callable[[], aiohttp.ClientSession], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._oidc = oidc
        self._session = session
        self._clock = clock
        self._under_way: OrderedDict[str, UnderWay] = OrderedDict()

    async def begin(self, following: str) -> tuple[str, str]:
        """Where to send the browser, and the cookie that it has to bring back. following: where it goes in the end."""
        issuer, metadata = self._oidc.issuer, await self._oidc.metadata()
        if not metadata.authorization_endpoint or not metadata.token_endpoint:
            raise AccessError(503, f"the identity provider {issuer.issuer} offers no login for browsers")
        state, browser, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        now = self._clock()
        self._under_way[state] = UnderWay(browser, verifier, nonce, following, now)
        while (
            len(self._under_way) > MOST_UNDER_WAY
            or now - next(iter(self._under_way.values())).began > UNDER_WAY_SECONDS
        ):
            self._under_way.popitem(last=False)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": issuer.client_id,
            "redirect_uri": issuer.redirect_url,
            "scope": " ".join(issuer.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        joined = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{joined}{urlencode(query)}", browser

    async def end(self, state: str, code: str, browser: str) -> tuple[Identity, str]:
        """Who logged in, and where to go. browser: the cookie. Raises AccessError."""
        begun = self._under_way.pop(state, None)
        if begun is None or self._clock() - begun.began > UNDER_WAY_SECONDS:
            raise AccessError(401, "this login is not under way any more: begin again at /login")
        if not compare_digest(begun.browser.encode(), browser.encode("utf-8", "surrogateescape")):
            raise AccessError(401, "this login was begun by another browser: begin again at /login")
        token = await self._redeem(code, begun.verifier)
        return await self._oidc.check(token, begun.nonce), begun.next

    async def _redeem(self, code: str, verifier: str) -> str:
        """The ID token for the code."""
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
            raise AccessError(503, f"the identity provider can't be reached: {type(error).__name__}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise AccessError(503, "the identity provider's answer has no ID token") from None


async def bounded(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises OSError where it is too long."""
    body = await response.content.read(MOST_DOCUMENT_BYTES + 1)
    while len(body) <= MOST_DOCUMENT_BYTES and (more := await response.content.read(MOST_DOCUMENT_BYTES)):
        body += more
    if len(body) > MOST_DOCUMENT_BYTES:
        raise OSError(f"{response.url.host}: an answer of more than {MOST_DOCUMENT_BYTES} bytes")
    return body


async def fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """The document at the URL. Raises OSError or TimeoutError."""
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise OSError(f"{url}: answered with {response.status}")
            return await bounded(response)
    except aiohttp.ClientError as error:
        raise OSError(f"{url}: {error or type(error).__name__}") from None
