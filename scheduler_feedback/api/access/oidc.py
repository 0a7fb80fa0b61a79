"""OpenID Connect: ID tokens as bearer tokens, checked with PyJWT against the issuer's keys.

Checks (OpenID Connect Core 1.0, 3.1.3.7; RFC 8725): the size; an asymmetric algorithm that the configuration allows,
whatever the token says; the signature, only with a key of the issuer's JWKS (never with a key or an address in the
token); issuer, audience, authorised party, expiry, not-before; and the type, so that an access token is not accepted as
an identity. Keys are fetched on first use and every KEYS_SECONDS, but at most once in AGAIN_SECONDS: tokens with
unknown keys cause no load on the issuer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.schema.errors import ConfigError, ExtraMissingError
from scheduler_feedback.api.access.principal import AccessError, Role
from scheduler_feedback.core.plain_text import misleading

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric algorithms (RFC 7518, 3.1; RFC 8037). 'none' and HS* are excluded: with HS* the public key would be the
secret, and with 'none' there is no signature."""

MOST_TOKEN_BYTES = 16 * 1024
"""Maximum size of a token. Groups make tokens long: the largest from Entra ID, with 200 groups, has about 10 KiB."""

MOST_DOCUMENT_BYTES, MOST_KEYS = 1024 * 1024, 100
KEYS_SECONDS, AGAIN_SECONDS, STALE_SECONDS = 600.0, 30.0, 86_400.0
"""Times for the issuer's keys: age at which they are fetched again, minimum interval between two fetches, and age up to
which they are used if the issuer does not respond."""

FETCH_SECONDS = 5.0
LEEWAY_SECONDS = 30.0
"""Tolerated difference between the clocks of issuer and controller."""

LEAST_RSA_BITS = 2048  # RFC 7518, 3.3

_log = logging.getLogger(__name__)
Fetch = Callable[[str], Awaitable[bytes]]
"""Function that returns the content of a URL. Raises OSError or TimeoutError."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Configuration of an identity provider."""

    issuer: str
    client_id: str
    roles: Mapping[str, Role]
    """Role of the members of a group, by the name of the group in the token."""
    default_role: Role = Role.ANONYMOUS
    """Role of users who are in none of the groups. ANONYMOUS means that they are refused."""
    user_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: Sequence[str] = ("RS256", "ES256")
    client_secret_file: Path | None = field(default=None, repr=False)
    redirect_url: str = ""
    """Address to which the provider redirects the browser: https://HOST/login/oidc/callback. '': no browser login."""
    scopes: Sequence[str] = ("openid", "profile", "groups")

    def check(self) -> None:
        """Raise ConfigError with the name of the invalid key if the configuration is invalid."""
        for key, url in (("issuer", self.issuer), ("redirect_url", self.redirect_url)):
            if url and not is_safe(url):
                raise ConfigError(f"oidc.{key}: {url!r} is neither https nor a loopback address with http")
        if unknown := [one for one in self.algorithms if one not in ALGORITHMS]:
            raise ConfigError(f"oidc.algorithms: {unknown[0]!r} is not one of {', '.join(ALGORITHMS)}")
        if not self.client_id:
            raise ConfigError("oidc.client_id: missing; without it tokens for other applications would be accepted")
        if not self.roles and self.default_role is Role.ANONYMOUS:
            raise ConfigError("oidc.roles: no group has a role and oidc.default_role is not set: no user could log in")


def is_safe(url: str) -> bool:
    """Return whether the URL uses TLS or this machine's loopback."""
    address = urlsplit(url)
    return address.scheme == "https" or (
        address.scheme == "http" and address.hostname in ("127.0.0.1", "::1", "localhost")
    )


class Metadata(msgspec.Struct):
    """Fields of the provider's discovery document that gangwatch uses (OpenID Connect Discovery 1.0, 3)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user whom an ID token names."""

    user: str
    role: Role
    expires: float
    """Time at which the token expires, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of the issuer. algorithm: the only signature algorithm for this key; None for any."""

    key: Any
    kind: str
    curve: str
    algorithm: str | None

    def fits(self, algorithm: str) -> bool:
        """Return whether the key can verify a signature of this algorithm (RFC 7518, 3.1; RFC 8037, 3.1)."""
        if self.algorithm not in (None, algorithm):
            return False
        if algorithm[0] in "RP":
            return self.kind == "RSA"
        return (self.kind, self.curve) == _CURVES[algorithm]


_CURVES = {
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}


class Oidc:
    """Verifier of the ID tokens of one issuer. Use it in one event loop."""

    def __init__(
        self,
        issuer: Issuer,
        fetch: Fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the configuration. Raises ConfigError if it is invalid, or if the extra is not installed."""
        try:
            import aiohttp  # noqa: F401 - oidc_login.py and authentication.py need it
            import jwt
        except ImportError:
            raise ExtraMissingError("[oidc]", "oidc") from None
        issuer.check()
        self.issuer = issuer
        self._jwt = jwt
        self._coder = jwt.PyJWT()
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, _Key] = {}
        self._metadata: Metadata | None = None
        self._fetched = self._tried = -float("inf")
        self._fetching = asyncio.Lock()

    def claims_issuer(self, token: str) -> bool:
        """Return whether the token claims to be from this issuer. Nothing is verified yet."""
        if len(token) > MOST_TOKEN_BYTES or token.count(".") != 2:
            return False
        try:
            claims = self._coder.decode(token, options={"verify_signature": False})
        except Exception:  # a malformed token is not from this issuer
            return False
        return claims.get("iss") == self.issuer.issuer

    async def check(self, token: str, nonce: str | None = None) -> Identity:
        """Verify the token and return its user. nonce: the nonce of the login that requested it. Raises AccessError."""
        if len(token) > MOST_TOKEN_BYTES:
            raise AccessError(401, f"the token is longer than {MOST_TOKEN_BYTES} bytes")
        key, algorithm = await self._key_for(token)
        jwt = self._jwt
        try:
            claims = self._coder.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self.issuer.client_id,
                issuer=self.issuer.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise AccessError(401, "the token has expired: get a new one from the identity provider") from None
        except jwt.InvalidAudienceError:
            raise AccessError(
                401, f"the token is not for this controller (oidc.client_id {self.issuer.client_id})"
            ) from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise AccessError(401, f"the token is not valid: {type(error).__name__}") from None
        audience = claims["aud"]
        party = claims.get("azp")
        if (isinstance(audience, list) and len(audience) > 1 and party is None) or party not in (
            None,
            self.issuer.client_id,
        ):
            raise AccessError(401, "the token was issued to another client (azp)")
        if nonce is not None and claims.get("nonce") != nonce:
            raise AccessError(401, "the token belongs to another login (nonce)")
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        user = claims.get(self.issuer.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= 200 or misleading("user", user) is not None:
            raise AccessError(401, f"the token has no usable claim {self.issuer.user_claim!r} (oidc.user_claim)")
        groups = claims.get(self.issuer.groups_claim, ())
        groups = [groups] if isinstance(groups, str) else groups
        named = [one for one in groups if isinstance(one, str)] if isinstance(groups, list | tuple) else []
        role = max((self.issuer.roles.get(one, Role.ANONYMOUS) for one in named), default=Role.ANONYMOUS)
        role = max(role, self.issuer.default_role)
        if role is Role.ANONYMOUS:
            raise AccessError(
                403, f"{user} is in no group with a role (oidc.roles: {', '.join(sorted(self.issuer.roles))})"
            )
        return Identity(user, role, float(claims["exp"]))

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def _key_for(self, token: str) -> tuple[_Key, str]:
        try:
            header = self._jwt.get_unverified_header(token)
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise AccessError(401, "the token is not a JSON Web Token") from None
        algorithm, kind = header.get("alg"), header.get("typ", "JWT")
        if not isinstance(algorithm, str) or algorithm not in self.issuer.algorithms:
            raise AccessError(
                401, f"the token's algorithm is not allowed (oidc.algorithms: {', '.join(self.issuer.algorithms)})"
            )
        if not isinstance(kind, str) or kind.upper() != "JWT":
            raise AccessError(401, "the token is not an ID token (typ)")
        if "crit" in header:
            raise AccessError(401, "the token requires unknown extensions (crit)")
        name = header.get("kid")
        key = self._known(name, algorithm)
        if key is None or self._clock() - self._fetched > KEYS_SECONDS:
            await self._refresh()
            key = self._known(name, algorithm)
        if key is None:
            raise AccessError(401, "the token was signed with a key that the identity provider does not publish")
        return key, algorithm

    def _known(self, name: object, algorithm: str) -> _Key | None:
        if name is None:
            alike = [key for key in self._keys.values() if key.fits(algorithm)]
            return alike[0] if len(alike) == 1 else None
        key = self._keys.get(name) if isinstance(name, str) else None
        return key if key is not None and key.fits(algorithm) else None

    async def _refresh(self) -> None:
        """Fetch the issuer's keys, unless they were requested recently. Raises AccessError (503) if there are none."""
        async with self._fetching:
            now = self._clock()
            if now - self._tried >= AGAIN_SECONDS:
                self._tried = now
                try:
                    metadata = await self._discover()
                    self._keys = self._read_keys(await self._fetch(metadata.jwks_uri))
                    self._fetched = now
                except (OSError, TimeoutError, ConfigError) as error:
                    _log.error("keys of %s not fetched, former keys stay valid: %s", self.issuer.issuer, error)
            if not self._keys or now - self._fetched > STALE_SECONDS:
                raise AccessError(503, f"the identity provider {self.issuer.issuer} cannot be reached; try again soon")

    async def metadata(self) -> Metadata:
        """Return the provider's discovery document with its addresses. Raises AccessError (503) without one."""
        try:
            return await self._discover()
        except (OSError, TimeoutError, ConfigError) as error:
            _log.error("%s: %s", self.issuer.issuer, error)
            raise AccessError(
                503, f"the identity provider {self.issuer.issuer} cannot be reached; try again soon"
            ) from None

    async def _discover(self) -> Metadata:
        if self._metadata is None:
            where = f"{self.issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = msgspec.json.decode(await self._fetch(where), type=Metadata)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigError(f"{where}: {error}") from None
            if found.issuer != self.issuer.issuer:
                raise ConfigError(f"{where}: names another issuer, {found.issuer!r} (Discovery 1.0, 4.3)")
            for url in (found.jwks_uri, found.authorization_endpoint, found.token_endpoint):
                if url and not is_safe(url):
                    raise ConfigError(f"{where}: names {url!r}, which is neither https nor loopback")
            self._metadata = found
        return self._metadata

    def _read_keys(self, content: bytes) -> dict[str, _Key]:
        """Return the keys that can verify signatures, by name. Keys of unknown kinds are skipped."""
        try:
            listed = msgspec.json.decode(content)["keys"]
            if not isinstance(listed, list):
                raise TypeError("keys is not a list")
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"not a key set: {error}") from None
        keys: dict[str, _Key] = {}
        for place, one in enumerate(listed[:MOST_KEYS]):
            # 'oct' is a shared secret: anyone who can check such a signature can also create it.
            if (
                not isinstance(one, dict)
                or one.get("kty") not in ("RSA", "EC", "OKP")
                or one.get("use", "sig") != "sig"
            ):
                continue
            try:
                key = self._jwt.PyJWK(one).key
            except (self._jwt.PyJWTError, ValueError, TypeError, KeyError):
                continue
            if one["kty"] == "RSA" and key.key_size < LEAST_RSA_BITS:
                continue
            keys[str(one.get("kid", f"#{place}"))] = _Key(key, one["kty"], str(one.get("crv", "")), one.get("alg"))
        if not keys:
            raise ConfigError("the provider publishes no usable key")
        return keys
