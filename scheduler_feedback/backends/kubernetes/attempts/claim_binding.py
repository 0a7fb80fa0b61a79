"""Writing of allocations into ResourceClaims before a gang is bound, and their release if it is not.

As kube-scheduler does, each claim first gets the finalizer that protects an allocated claim, then in one update of its
status the allocation and the pod in `reservedFor`. Every write names the version of the claim that was read. Once a
pod has ended, the claim controller removes it and frees the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.devices.device_objects import FINALIZER, ResourceClaim, claim_path

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_CONFLICT = 409
_claims = msgspec.json.Decoder(ResourceClaim)


class Reservation(msgspec.Struct, frozen=True):
    """A claim that a pod needs before it is bound."""

    claim: str
    """'NAMESPACE/NAME' of the claim."""
    pod: str
    """Name of the pod."""
    uid: str
    """Uid of the pod."""
    allocation: dict[str, Any] | None
    """Value of `status.allocation`; None if the claim must already have one."""


async def reserve_all(client: Client, wanted: Iterable[Reservation], still_wanted: Callable[[], bool]) -> list[str]:
    """Write these allocations and reservations; return the error of each that could not be written.

    Reservations of one claim are written one after the other. still_wanted: returns whether the pods are still to be
    bound.
    """
    by_claim: dict[str, list[Reservation]] = {}
    for one in wanted:
        by_claim.setdefault(one.claim, []).append(one)
    found = await asyncio.gather(*(_reserve_in_turn(client, ones, still_wanted) for ones in by_claim.values()))
    return [why for why in found if why]


async def _reserve_in_turn(client: Client, wanted: list[Reservation], still_wanted: Callable[[], bool]) -> str:
    for one in wanted:
        if why := await _repeated(partial(_reserve, client, one), still_wanted):
            return f"pod {one.pod}: claim {one.claim.partition('/')[2]}: {why}"
    return ""


async def _reserve(client: Client, wanted: Reservation) -> str:
    """Write one allocation and reservation; return '' or why that is not possible."""
    path = claim_path(wanted.claim)
    claim = await client.get(path, _claims)
    if claim.metadata.deletion_timestamp:
        return "it is being deleted"
    if wanted.uid in claim.consumers and claim.status.allocation is not None:
        return ""  # an earlier request, which got no response, or an earlier leader has written it
    status: dict[str, Any] = {"reservedFor": [*_reserved_for(claim), _consumer(wanted)]}
    if claim.status.allocation is None:
        if wanted.allocation is None:
            return "it has lost its devices"
        claim = await _protected(client, path, claim)
        status["allocation"] = wanted.allocation
    elif wanted.allocation is not None and not _equal(claim, wanted.allocation):
        return "it was allocated by another scheduler in the meantime"
    await client.patch(f"{path}/status", {"metadata": _version(claim), "status": status})
    return ""


async def _protected(client: Client, path: str, claim: ResourceClaim) -> ResourceClaim:
    """Return the claim with the finalizer of allocated claims."""
    finalizers = claim.metadata.finalizers or []
    if FINALIZER in finalizers:
        return claim
    body = {"metadata": {**_version(claim), "finalizers": [*finalizers, FINALIZER]}}
    return _claims.decode(await client.patch(path, body))


async def release_all(client: Client, claims: Iterable[tuple[str, str]]) -> list[str]:
    """Remove each pod from its claim, and free the devices of a claim that no other consumer has.

    claims: (key of the claim, uid of the pod). Return the error of each claim that could not be released.
    """
    by_claim: dict[str, list[str]] = {}
    for key, uid in claims:
        by_claim.setdefault(key, []).append(uid)

    async def one(key: str, uids: list[str]) -> str:
        why = await _repeated(partial(_release, client, key, uids), lambda: True)
        return f"claim {key}: {why}" if why else ""

    found = await asyncio.gather(*(one(key, uids) for key, uids in by_claim.items()))
    return [why for why in found if why]


async def _release(client: Client, key: str, uids: list[str]) -> str:
    path = claim_path(key)
    try:
        claim = await client.get(path, _claims)
    except RefusedError as error:
        if error.code == 404:
            return ""
        raise
    kept = [one for one in _reserved_for(claim) if one["uid"] not in uids]
    if len(kept) == len(claim.consumers):
        return ""
    status: dict[str, Any] = {"reservedFor": kept or None, **({} if kept else {"allocation": None, "devices": None})}
    await client.patch(f"{path}/status", {"metadata": _version(claim), "status": status})
    return ""


async def _repeated(work: Callable[[], Awaitable[str]], still_wanted: Callable[[], bool]) -> str:
    """Run the work until the server has responded without a conflict; return its result, or the server's refusal."""
    pause = _PAUSE_SECONDS
    while still_wanted():
        try:
            return await work()
        except UnreachableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except RefusedError as error:
            if error.code != _CONFLICT:
                return error.message or error.reason
        except BackendError as error:
            return str(error)
    return "the start was cancelled"


def _version(claim: ResourceClaim) -> dict[str, str]:
    return {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}


def _consumer(wanted: Reservation) -> dict[str, str]:
    return {"resource": "pods", "name": wanted.pod, "uid": wanted.uid}


def _reserved_for(claim: ResourceClaim) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(claim.status.reserved_for or [])
    return found


def _equal(claim: ResourceClaim, allocation: dict[str, Any]) -> bool:
    """Return whether the claim has the devices of this allocation."""
    have = claim.status.allocation.devices.results if claim.status.allocation is not None else None
    wanted = {(one["request"], one["driver"], one["pool"], one["device"]) for one in allocation["devices"]["results"]}
    return {(one.request, one.driver, one.pool, one.device) for one in have or ()} == wanted
