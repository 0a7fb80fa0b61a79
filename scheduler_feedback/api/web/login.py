"""Login pages: a form for a token, a link to an identity provider, and logout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import parse_qs, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from scheduler_feedback.api.access.authentication import Authentication, cookie_name, session_id
from scheduler_feedback.api.access.middleware import credentials_of, note, refusal, sensitive, signed
from scheduler_feedback.api.access.oidc_login import UNDER_WAY_SECONDS
from scheduler_feedback.api.access.principal import LOG_IN, AccessError, Principal
from scheduler_feedback.api.requests import check_origin
from scheduler_feedback.api.web import elements
from scheduler_feedback.api.web.markup import tag
from scheduler_feedback.api.web.page_responses import HEADERS as PAGE_HEADERS
from scheduler_feedback.api.web.page_responses import visitor_of

MOST_FORM_BYTES = 64 * 1024
"""Maximum size of the login form's body in bytes. A token has at most 16 KiB."""

_LOCAL = re.compile(r"/(?![/\\])[^\s\\\x00-\x1f]{0,500}")
"""Pattern of a path on this server. Browsers treat '//host' and '/\\host' as addresses of another server."""


class LoginSource(Protocol):
    """Attributes of a controller that the login uses."""

    access: Authentication


class Login:
    """Routes for login and logout."""

    def __init__(self, source: LoginSource) -> None:
        self._access = source.access

    def routes(self) -> Iterator[Route]:
        yield Route("/login", self._form, methods=["GET"])
        yield Route("/login", self._log_in, methods=["POST"])
        yield Route("/logout", self._log_out, methods=["POST"])
        yield Route("/login/oidc", self._to_provider, methods=["GET"])
        yield Route("/login/oidc/callback", self._from_provider, methods=["GET"])

    # --- by a token ---------------------------------------------------------------------------------------------------

    async def _form(self, request: Request) -> Response:
        check_origin(request)
        return self._page(request, following(request.query_params.get("next", "")))

    async def _log_in(self, request: Request) -> Response:
        """Log in with the form, or with {"token": ...} as JSON.

        A login always opens a new session, so that an attacker's session is not used.
        """
        check_origin(request)
        # Another site must not log its visitor in under an account of its choice. Browsers send this header with every
        # POST; a request without it does not come from a browser.
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise AccessError(403, "another site started this login; open /login here and log in again")
        token, goes_on, by_form = await _given(request)
        credentials = credentials_of(request.scope)
        try:
            principal, source, key = await self._access.credential(token, credentials.peer, credentials.source)
        except AccessError as error:
            refusal(request, str(error))
            if by_form:
                return self._page(request, goes_on, str(error).removesuffix(f": {LOG_IN}"), error.status)
            raise
        self._close_former(request)
        answer: Response
        if by_form:
            answer = RedirectResponse(goes_on, 303)
        else:
            answer = Response(
                msgspec.json.encode({"user": principal.user, "role": principal.role.word}),
                media_type="application/json",
            )
        return self._with_session(request, answer, principal, source, key)

    async def _log_out(self, request: Request) -> Response:
        check_origin(request)
        self._close_former(request)
        answer = RedirectResponse("/", 303)
        name, secure = _cookie_of(request)
        answer.set_cookie(name, "", 0, path="/", secure=secure, httponly=True, samesite="strict")
        return answer

    # --- by a provider ------------------------------------------------------------------------------------------------

    async def _to_provider(self, request: Request) -> Response:
        check_origin(request)
        if self._access.code_flow is None:
            raise AccessError(404, "no identity provider is configured: set issuer and redirect_url in [oidc]")
        where, cookie = await self._access.code_flow.begin(following(request.query_params.get("next", "")))
        answer = RedirectResponse(where, 303)
        # Lax: the provider redirects the browser back from its own site, where it does not send a Strict cookie.
        name, secure = _login_cookie(request)
        answer.set_cookie(name, cookie, max_age=int(UNDER_WAY_SECONDS), secure=secure, httponly=True, samesite="lax")
        return answer

    async def _from_provider(self, request: Request) -> Response:
        if self._access.code_flow is None:
            raise AccessError(404, "no identity provider is configured: set issuer and redirect_url in [oidc]")
        query, peer = request.query_params, credentials_of(request.scope).peer
        sensitive(request)
        try:
            if "error" in query:
                raise AccessError(401, f"the identity provider refused the login: {_plain(query['error'])}")
            identity, goes_on = await self._access.code_flow.end(
                query.get("state", ""), query.get("code", ""), request.cookies.get(_login_cookie(request)[0], "")
            )
        except AccessError as error:
            refusal(request, str(error))
            if error.status == 401:
                self._access.attempts.wrong(peer)
            return self._page(request, "/", str(error), error.status)
        principal = Principal(identity.user, identity.role, "OpenID Connect", peer)
        self._close_former(request)
        # Not a redirect: after a redirect from the provider's site the browser would not send the Strict cookie.
        refresh = tag("meta", http_equiv="refresh", content=f"0;url={goes_on}")
        link = tag("a", "Continue", href=goes_on)
        text = f"<!doctype html><html lang=en><title>gangwatch</title>{refresh}{link}</html>"
        answer = Response(text, headers={**HEADERS, "cache-control": "no-store"}, media_type="text/html")
        name, secure = _login_cookie(request)
        answer.set_cookie(name, "", 0, secure=secure, httponly=True, samesite="lax")
        return self._with_session(request, answer, principal, "oidc", str(identity.expires))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _with_session(
        self, request: Request, answer: Response, principal: Principal, source: str, key: str
    ) -> Response:
        identifier, _ = self._access.open_session(principal, source, key)
        name, secure = _cookie_of(request)
        life = int(self._access.sessions.life_seconds)
        answer.set_cookie(name, identifier, life, path="/", secure=secure, httponly=True, samesite="strict")
        answer.headers["cache-control"] = "no-store"
        signed(request, principal)
        note(request, login=principal.name)
        return answer

    def _close_former(self, request: Request) -> None:
        if (identifier := session_id(credentials_of(request.scope))) is not None:
            self._access.sessions.close(identifier)

    def _page(self, request: Request, goes_on: str, wrong: str = "", status: int = 200) -> Response:
        provider = f"/login/oidc?next={quote(goes_on, safe='')}" if self._access.code_flow is not None else ""
        main = tag(
            "section",
            tag("h1", "Log in"),
            tag("p", wrong, role="alert", class_="answer") if wrong else None,
            tag("p", tag("a", "Log in with the identity provider", href=provider, class_="primary"))
            if provider
            else None,
            tag(
                "form",
                tag("input", type="hidden", name="next", value=goes_on),
                tag(
                    "label",
                    "Token",
                    tag("input", name="token", type="password", autocomplete="current-password", required=True),
                ),
                tag(
                    "p",
                    "A token of ",
                    tag("code", "gangwatch token create"),
                    ", or the file ",
                    tag("code", "token"),
                    " in the state folder.",
                    class_="hint",
                ),
                tag("button", "Log in", type="submit", class_="primary"),
                method="post",
                action="/login",
                id="login",
            ),
            class_="panel login",
        )
        headers = {**HEADERS, "cache-control": "no-store"}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        page = elements.page("Log in", "", "", main, visitor=visitor_of(request, self._access))
        return Response(page, status, headers, media_type="text/html")


def following(text: str) -> str:
    """Return the path to open after the login: `text` if it is a path on this server, else the overview."""
    return text if _LOCAL.fullmatch(text) and not text.startswith(("/login", "/logout")) else "/"


def _cookie_of(request: Request) -> tuple[str, bool]:
    credentials = credentials_of(request.scope)
    return cookie_name(credentials.secure, credentials.port), credentials.secure


def _login_cookie(request: Request) -> tuple[str, bool]:
    """Return (name of the cookie for an unfinished login, whether the cookie requires TLS)."""
    name, secure = _cookie_of(request)
    return f"{name}-login", secure


async def _given(request: Request) -> tuple[str, str, bool]:
    """Return (token, path to open next, whether a form was sent). Raise AccessError for any other body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MOST_FORM_BYTES:
            raise AccessError(413, f"the body is longer than {MOST_FORM_BYTES} bytes")
    try:
        if kind == "application/x-www-form-urlencoded":
            fields = parse_qs(content.decode("ascii"), max_num_fields=10)
            return fields.get("token", [""])[0].strip(), following(fields.get("next", [""])[0]), True
        if kind == "application/json":
            document = msgspec.json.decode(bytes(content), type=dict[str, str])
            return document.get("token", "").strip(), "/", False
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise AccessError(400, 'the body is neither a form nor JSON of the form {"token": "..."}') from None
    raise AccessError(415, "Content-Type must be application/x-www-form-urlencoded or application/json")


def _plain(text: str) -> str:
    """Return the text if it is an error's name (RFC 6749, 4.1.2.1), else 'an error'."""
    return text if re.fullmatch(r"[a-z_]{1,60}", text) else "an error"


HEADERS = {
    **PAGE_HEADERS,
    # With the pages' policy a browser sends no origin with the form, and the form is then refused as another site's.
    "referrer-policy": "same-origin",
}
