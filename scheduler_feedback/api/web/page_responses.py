"""Responses for pages: HTML with security headers, and static files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.middleware import credentials_of, principal_of
from scheduler_feedback.api.requests import RefusedError, check_origin
from scheduler_feedback.api.web import elements
from scheduler_feedback.api.web.markup import Markup

HEADERS = {
    # No inline script or style, nothing from other servers, and no embedding in a frame.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_FOLDER = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def visitor_of(request: Request, access: Authentication) -> elements.Visitor:
    """Return the user who requests the page, for display on the page."""
    principal = principal_of(request)
    session = access.session_of(credentials_of(request.scope)) if principal.by_cookie else None
    name = principal.name if principal.logged_in else ""
    return elements.Visitor(name, session.csrf if session is not None else "", request.url.path)


def html(markup: Markup, status: int = 200) -> Response:
    """Return the page as a response that must not be cached."""
    return Response(markup, status, {**HEADERS, "cache-control": "no-store"}, media_type="text/html")


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return (content, content type, ETag) of every file that a page may load, by file name."""
    found = {}
    for folder in ("static", "vendored"):
        for path in (_FOLDER / folder).iterdir():
            if path.suffix in _TYPES:
                content = path.read_bytes()
                found[path.name] = content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


async def static_file(request: Request) -> Response:
    """Return the script, style or picture that the path names. Raises RefusedError if there is no such file."""
    check_origin(request)
    file = _files().get(request.path_params["name"])
    if file is None:
        raise RefusedError(404, "no such file")
    content, kind, mark = file
    headers = {**HEADERS, "cache-control": "no-cache", "etag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
