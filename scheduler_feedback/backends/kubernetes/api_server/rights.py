"""Rights of a controller in the cluster, and a review of them by the API server.

The server evaluates its own authorizers (SubjectAccessReview and SelfSubjectAccessReview,
https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access). It reads no objects, so a
review also works for kinds that the cluster does not serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client

Right = tuple[str, str, str]
"""A permission: (API group, resource with its subresource after a slash, verb)."""

RIGHTS: tuple[Right, ...] = (
    *(("", "nodes", verb) for verb in ("list", "watch", "patch")),
    ("", "nodes/status", "patch"),
    *(("", "pods", verb) for verb in ("list", "watch", "get", "delete")),
    *(("", kind, verb) for kind in ("persistentvolumeclaims", "persistentvolumes") for verb in ("list", "watch")),
    *(("resource.k8s.io", kind, verb) for kind in ("resourceslices", "deviceclasses") for verb in ("list", "watch")),
    *(("resource.k8s.io", "resourceclaims", verb) for verb in ("get", "list", "watch", "patch")),
    *(("resource.k8s.io", f"resourceclaims/{part}", "patch") for part in ("status", "binding")),
    *(("k8s.cni.cncf.io", "network-attachment-definitions", verb) for verb in ("list", "watch")),
    ("", "pods/binding", "create"),
    ("", "pods/eviction", "create"),
    ("", "pods/status", "patch"),
    ("", "events", "create"),
    *(("scheduling.x-k8s.io", "podgroups", verb) for verb in ("list", "watch", "patch")),
    ("scheduling.x-k8s.io", "podgroups/status", "patch"),
    *(("gangwatch.io", "queues", verb) for verb in ("list", "watch")),
    *(("batch", "jobs", verb) for verb in ("get", "list", "patch")),
    ("policy", "poddisruptionbudgets", "list"),
)
"""Cluster-wide permissions that a controller needs to schedule pods. A controller that only advises needs fewer."""

_UPSTREAM = "scheduling.k8s.io"
_ADVISOR = (
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("", "nodes", "patch"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
)
_ESSENTIAL_WRITES = (("", "nodes", "patch"), ("", "pods", "delete"), ("", "pods/binding", "create"))


def essential_rights(*, advise: bool, upstream_groups: bool) -> tuple[Right, ...]:
    """Return the permissions without which a leader does not start or can start or stop no gang.

    It lists and watches every kind in its informer cache before its first cycle.
    """
    if advise:
        return _ADVISOR
    watched = [(group, resource) for group, resource, verb in RIGHTS if verb == "watch"]
    reads = [(*kind, verb) for kind in watched for verb in ("list", "watch")]
    upstream = [(_UPSTREAM, "podgroups", verb) for verb in ("list", "watch")] if upstream_groups else []
    return (*reads, *upstream, *_ESSENTIAL_WRITES)


def in_words(rights: Iterable[Right]) -> list[str]:
    """Return each right as verb, resource and API group, in the form of ``kubectl auth can-i``."""
    return [f"{verb} {resource}{f'.{group}' if group else ''}" for group, resource, verb in rights]


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_reviews = msgspec.json.Decoder(_Review)


async def missing_rights(client: Client, rights: Iterable[Right], user: str = "") -> list[Right]:
    """Return those of `rights` that the user does not have.

    user: '' for the user of the client, who may always ask; only administrators may ask about others. Raises
    RefusedError if the server refuses the review, BackendError if its response is unusable.
    """
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    missing: list[Right] = []
    for group, resource, verb in rights:
        name, _, subresource = resource.partition("/")
        attributes = {"group": group, "resource": name, "subresource": subresource, "verb": verb}
        spec: dict[str, Any] = {"resourceAttributes": attributes, **({"user": user} if user else {})}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
        try:
            allowed = _reviews.decode(await client.create(path, body)).status.allowed
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BackendError(f"{path}: cannot decode the response: {error}") from error
        if not allowed:
            missing.append((group, resource, verb))
    return missing
