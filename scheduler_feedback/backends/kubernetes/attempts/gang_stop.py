"""Stop of a gang so that its owner restarts it: by suspending and resuming the owner, or by eviction.

Disruption budgets are checked first for all pods together, because a gang is stopped whole or not at all: a budget may
allow each eviction alone and still not all of them. A Job, JobSet or other object with a flag `suspend`
(``objects.owner_kinds``) is suspended, and resumed once its pods are gone. An evicted pod would count as a failure, for
which a Job gives up after backoffLimit, unless its podFailurePolicy ignores disruptions. Even then, each evicted pod
doubles the time that the Job controller waits before it creates new pods: 10 s for one pod, 80 s for four, 10 minutes
from seven on. The pods of a Job are evicted only if it belongs to a controller that cannot be suspended, and ignores
disruptions. Pods of a StatefulSet, such as those of a LeaderWorkerSet, are evicted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Member
from scheduler_feedback.backends.kubernetes.attempts.repetition import until_done
from scheduler_feedback.backends.kubernetes.attempts.suspension import suspendable
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS, meets
from scheduler_feedback.backends.kubernetes.objects.objects import (
    Condition,
    Metadata,
    OwnerReference,
    Part,
    Pod,
    Requirement,
)
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import KINDS, kind_at, path_of

_log = logging.getLogger(__name__)

SUSPENDED = f"{OURS}suspended"
"""Label of a Job or other owner that we have suspended and that the current leader must resume."""

_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 2.0


class PodCondition(Part):
    type: str = ""
    status: str = ""


class FailureRule(Part):
    action: str = ""
    on_pod_conditions: list[PodCondition] | None = None


class FailurePolicy(Part):
    rules: list[FailureRule] | None = None


class JobSpec(Part):
    pod_failure_policy: FailurePolicy | None = None


class JobStatus(Part):
    conditions: list[Condition] | None = None


class Job(Part):
    """A Job (batch/v1), which owns pods and recreates them."""

    metadata: Metadata
    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)

    @property
    def over(self) -> str:
        """'Complete' or 'Failed' if the Job has ended, else ''."""
        ends = [one.type for one in self.status.conditions or () if one.status == "True"]
        return next((end for end in ends if end in ("Complete", "Failed")), "")

    @property
    def ignores_disruptions(self) -> bool:
        """Whether the Job ignores disruptions, so that an eviction does not count as a failure."""
        rules = (self.spec.pod_failure_policy.rules if self.spec.pod_failure_policy is not None else None) or ()
        return any(
            rule.action == "Ignore"
            and any(one.type == "DisruptionTarget" and one.status != "False" for one in rule.on_pod_conditions or ())
            for rule in rules
        )


class Selector(Part):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class BudgetSpec(Part):
    selector: Selector | None = None


class BudgetStatus(Part):
    disruptions_allowed: int = 0


class Budget(Part):
    """A PodDisruptionBudget (policy/v1), which limits evictions."""

    metadata: Metadata
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class BudgetList(Part):
    items: list[Budget]


class Owned(Part):
    """An object of any kind."""

    metadata: Metadata


class OwnedList(Part):
    items: list[Owned]


_jobs = msgspec.json.Decoder(Job)
_owned_lists = msgspec.json.Decoder(OwnedList)
_budget_lists = msgspec.json.Decoder(BudgetList)
_anything = msgspec.json.Decoder(dict[str, Any])


def job_path(namespace: str, name: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


async def owner_has_ended(client: Client, pods: Sequence[Pod]) -> str:
    """Return how the Job that owns the pods ended, or that it was deleted; '' if it continues or is not a Job."""
    for namespace, owner in _owners(pods):
        if owner.kind != "Job":
            continue
        try:
            job = await client.get(job_path(namespace, owner.name), _jobs)
        except RefusedError as error:
            return "deleted" if error.code == 404 else ""
        except UnreachableError:
            return ""
        if job.metadata.uid != owner.uid:
            return "deleted"
        if job.over:
            return job.over
    return ""


def _owners(pods: Iterable[Pod]) -> list[tuple[str, OwnerReference]]:
    found: dict[str, tuple[str, OwnerReference]] = {}
    for pod in pods:
        if pod.owner is not None:
            found[pod.owner.uid] = (pod.metadata.namespace, pod.owner)
    return list(found.values())


async def stop(client: Client, members: Sequence[Member], pods: Sequence[Pod]) -> list[str]:
    """Stop these pods of a gang in a way that their owners tolerate. pods: newest copies of these pods, from the cache.

    Return the paths of the suspended objects, which must be resumed. Raises BackendError with the reason if a
    disruption budget forbids the stop or an owner would count it as a failure; then nothing is stopped.
    """
    living = [member for member in members if member.uid and not member.over]
    suspended: dict[str, str] = {}
    for namespace, owner in _owners(pods):
        found = await suspendable(client, namespace, owner, pods)
        if found.path:
            suspended[owner.uid] = found.path
        elif found.why:
            await _may_be_evicted(client, namespace, owner, found.why)
    uids = {member.uid for member in living}
    evicted = [pod for pod in pods if pod.metadata.uid in uids]
    for namespace in sorted({pod.metadata.namespace for pod in evicted}):
        budgets = await client.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", _budget_lists)
        if why := forbidden(evicted, budgets.items):
            raise BackendError(why)
    paths = list(dict.fromkeys(suspended.values()))
    left_to_owner = {pod.metadata.uid for pod in pods if pod.owner is not None and pod.owner.uid in suspended}
    done: list[str] = []
    try:
        for path in paths:
            await _suspend(client, path)
            done.append(path)
        await asyncio.gather(*(_evict_at_last(client, member) for member in living if member.uid not in left_to_owner))
    except BackendError:
        for path in done:
            await resume(client, path)
        raise
    return paths


async def _may_be_evicted(client: Client, namespace: str, owner: OwnerReference, why: str) -> None:
    """Raise BackendError if the owner of the pods would count their eviction as a failure.

    why: why neither the owner nor its controllers can be suspended.
    """
    if owner.kind != "Job":
        raise BackendError(why)
    job = await client.get(job_path(namespace, owner.name), _jobs)
    if not job.ignores_disruptions:
        raise BackendError(
            f"stopping it would count as a failure of Job {owner.name}, which cannot be suspended: {why}; "
            "give the Job a podFailurePolicy that ignores DisruptionTarget"
        )


async def _suspend(client: Client, path: str) -> None:
    """Suspend the object at this path. Raises BackendError if its definition lacks the flag.

    The API server drops a field that an object's definition does not have. An operator of that version would never stop
    the pods. A request without a response may have taken effect, so it is repeated. Without a result, the
    controller would not resume the owner later.
    """
    kind, pause = kind_at(path), _PAUSE_SECONDS
    body = {"metadata": {"labels": {SUSPENDED: "true"}}, "spec": kind.suspend(True)}
    while True:
        try:
            answer = await client.patch(path, body)
        except UnreachableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            break
    if not kind.is_suspended(_anything.decode(answer).get("spec") or {}):
        await resume(client, path)
        raise BackendError(f"{path} cannot be suspended: the installed version of its operator does not support it")


async def suspend_owners(client: Client, pods: Sequence[Pod]) -> dict[str, str]:
    """Suspend the owners of these pods, if they can be suspended. Return the suspended object's path by pods' owner.

    The keys are the uids of the pods' own owners. A suspended Job deletes its pods and counts none of them. If others
    delete a pod that ends with code 0 at SIGTERM, the Job may count its index as completed, and never creates it again.
    """
    suspended: dict[str, str] = {}
    for namespace, owner in _owners(pods):
        try:
            found = await suspendable(client, namespace, owner, pods)
            if found.path and found.path not in suspended.values():
                await _suspend(client, found.path)
        except BackendError as error:
            _log.warning("%s %s cannot be suspended: %s", owner.kind, owner.name, error)
        else:
            if found.path:
                suspended[owner.uid] = found.path
    return suspended


def forbidden(pods: Iterable[Pod], budgets: Iterable[Budget]) -> str:
    """Return which budget forbids the eviction of all these pods; '' if none does."""
    pods = list(pods)
    for budget in budgets:
        selector = budget.spec.selector
        if selector is None:  # selects nothing (policy/v1)
            continue
        covered = sum(
            1
            for pod in pods
            if pod.metadata.namespace == budget.metadata.namespace
            and all(pod.metadata.label(key) == value for key, value in (selector.match_labels or {}).items())
            and all(meets(one, pod.metadata.labels or {}) for one in selector.match_expressions or ())
        )
        if covered > budget.status.disruptions_allowed:
            allowed = budget.status.disruptions_allowed
            return f"disruption budget {budget.metadata.name} allows {allowed} evictions now; the gang needs {covered}"
    return ""


async def _evict(client: Client, member: Member) -> None:
    """Request the eviction of one pod, if it still exists. Raises RefusedError if a budget forbids it."""
    namespace, _, name = member.name.partition("/")
    body: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": member.uid}},
    }
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
    except RefusedError as error:
        if error.code not in (404, 409):
            raise


async def _evict_at_last(client: Client, member: Member) -> None:
    """Evict a pod, and retry while a budget forbids it, because other pods of its gang are already evicted."""
    pause = _PAUSE_SECONDS
    while True:
        try:
            await _evict(client, member)
        except UnreachableError:
            pass
        except RefusedError as error:
            if error.code != 429:
                raise
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def resume(client: Client, path: str) -> None:
    """Resume an object that gangwatch suspended. Does nothing if it is gone.

    A refused request is repeated: the pods of an object that stays suspended never come back.
    """

    async def once() -> None:
        try:
            await client.patch(path, {"metadata": {"labels": {SUSPENDED: None}}, "spec": kind_at(path).suspend(False)})
        except RefusedError as error:
            if error.code != 404:
                raise

    await until_done(once, f"{path}: the resumption")


async def left_suspended(client: Client) -> list[str]:
    """Return the paths of objects that an earlier leader suspended and did not resume.

    Kinds that the server does not serve, or that gangwatch may not list, are skipped.
    """
    paths: list[str] = []
    for (group, name), kind in KINDS.items():
        for version in kind.versions:
            try:
                found = await client.get(
                    f"/apis/{version}/{kind.plural}", _owned_lists, labelSelector=f"{SUSPENDED}=true"
                )
            except RefusedError as error:
                if error.code == 404 or (error.code == 403 and group != "batch"):
                    continue
                raise
            paths += [
                path_of(OwnerReference(name, one.metadata.name, "", version), one.metadata.namespace, kind)
                for one in found.items
            ]
            break  # every version lists the same objects
    return paths
