"""Kubernetes: bearer tokens that the API server reviews (TokenReview), and roles that it grants (SubjectAccessReview).

The cluster's RBAC grants a role as the verb 'use' on the resource 'roles' of the group gangwatch.io, by name. No such
resource needs to exist::

    rules: [{apiGroups: [gangwatch.io], resources: [roles], resourceNames: [submitter], verbs: [use]}]

Without SubjectAccessReview, the configuration grants roles by the names of users and groups. Reviews are cached for a
minute: a withdrawn token ends soon, and a page with a request per second causes no load on the API server.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.api.access.principal import AccessError, Role
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.core.plain_text import misleading

GROUP, RESOURCE, VERB = "gangwatch.io", "roles", "use"

YES_SECONDS, NO_SECONDS = 60.0, 10.0
"""Seconds for which the review of a valid token, and of an invalid token, is cached."""

MOST_KEPT, MOST_ASKED = 4096, 32
"""Maximum number of cached reviews, and of reviews that run at the same time."""

MOST_TOKEN_BYTES = 16 * 1024

_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Reviewing:
    """Configuration of the review of tokens by the Kubernetes API server."""

    access: Access = field(repr=False)
    audiences: Sequence[str] = ()
    """Audiences for which a token must have been issued; (): the audience of the API server."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Roles that the configuration grants, by the name of a user or group."""
    access_review: bool = True
    """Whether the RBAC of the Kubernetes cluster also grants roles."""


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Reviewed(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _Reviewed = _Reviewed()


class _Allowed(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Allowed = _Allowed()


_T = TypeVar("_T")
_TOKEN_REVIEW = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW = msgspec.json.Decoder(_AccessReview)


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Result of a review: the user and role of a token. The user is '' if the token is not valid."""

    user: str
    role: Role


class TokenReviews:
    """Reviews of tokens by the Kubernetes API server, with a cache. Use it in one event loop."""

    def __init__(self, reviewing: Reviewing, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviewing = reviewing
        self._clock = clock
        # Two caches: a flood of wrong tokens must not evict the right ones.
        self._right: OrderedDict[bytes, tuple[float, Reviewed]] = OrderedDict()
        self._wrong: OrderedDict[bytes, tuple[float, Reviewed]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Reviewed]] = {}
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    async def close(self) -> None:
        await self._stack.aclose()
        self._client = None

    def knows(self, token: str) -> bool:
        """Return whether the last review of this token found it valid."""
        return _digest(token) in self._right

    async def check(self, token: str) -> Reviewed:
        """Return the user of the token. Raises AccessError (503) if the API server does not review it."""
        if len(token) > MOST_TOKEN_BYTES:
            raise AccessError(401, f"the token is longer than {MOST_TOKEN_BYTES} bytes")
        digest = _digest(token)
        kept = self._right.get(digest) or self._wrong.get(digest)
        if kept is not None and kept[0] > self._clock():
            return kept[1]
        task = self._asking.get(digest)
        if task is None:
            if len(self._asking) >= MOST_ASKED:
                raise AccessError(503, f"the API server is already reviewing {MOST_ASKED} tokens; try again soon")
            task = self._asking[digest] = asyncio.ensure_future(self._ask(token))
            task.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(task)

    def _answered(self, digest: bytes, task: asyncio.Task[Reviewed]) -> None:
        self._asking.pop(digest, None)
        if task.cancelled() or task.exception() is not None:
            return
        reviewed = task.result()
        self._right.pop(digest, None)
        kept, seconds = (self._right, YES_SECONDS) if reviewed.user else (self._wrong, NO_SECONDS)
        kept[digest] = self._clock() + seconds, reviewed
        kept.move_to_end(digest)
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)

    async def _ask(self, token: str) -> Reviewed:
        reviewing = self._reviewing
        spec: dict[str, object] = {"token": token}
        if reviewing.audiences:
            spec["audiences"] = list(reviewing.audiences)
        try:
            client = await self._open()
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
            status = _decoded(await client.create(_REVIEWS, review), _TOKEN_REVIEW).status
            if not status.authenticated or not 0 < len(status.user.username) <= 200:
                return Reviewed("", Role.ANONYMOUS)
            # A server without audiences returns none; its answer then means itself only (API reference).
            if reviewing.audiences and not set(reviewing.audiences) & set(status.audiences):
                return Reviewed("", Role.ANONYMOUS)
            if misleading("user", status.user.username) is not None:
                return Reviewed("", Role.ANONYMOUS)
            return Reviewed(status.user.username, await self._role(client, status.user))
        except RefusedError as error:
            raise AccessError(503, f"the API server refused the token review: {error}") from None
        except BackendError as error:
            raise AccessError(503, f"the API server did not answer the token review: {error}") from None

    async def _role(self, client: Client, user: _User) -> Role:
        """Return the highest role that the configuration or the cluster's RBAC grants to the user."""
        configured = self._reviewing.roles
        role = max(
            (configured.get(one, Role.ANONYMOUS) for one in (user.username, *user.groups)), default=Role.ANONYMOUS
        )
        if not self._reviewing.access_review:
            return role
        for wanted in (Role.OPERATOR, Role.SUBMITTER, Role.VIEWER):
            if wanted <= role:
                break
            spec = {
                "user": user.username,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {name: list(values) for name, values in user.extra.items()},
                "resourceAttributes": {"group": GROUP, "resource": RESOURCE, "name": wanted.word, "verb": VERB},
            }
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            if _decoded(await client.create(_ACCESS, review), _ACCESS_REVIEW).status.allowed:
                return wanted
        return role

    async def _open(self) -> Client:
        if self._client is None:
            self._client = await self._stack.enter_async_context(
                Client(self._reviewing.access, agent="gangwatch-access")
            )
        return self._client


def _decoded(body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackendError(f"the API server's response cannot be decoded: {error}") from error


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
