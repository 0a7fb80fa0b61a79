"""Why a gang cannot be scheduled yet: pods or claims that are missing, or a group that does not exist. No I/O.

A mistyped label or a wrong number of pods would otherwise leave pods pending without any explanation. Owners create
pods one by one, and some create the group last, so a gang counts as incomplete only after a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.objects.declared_keys import declared_keys
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import GROUP_LABEL, Gang, is_complete, least_of

INCOMPLETE_SECONDS = 5.0
"""Seconds for which a gang must be incomplete before this is published. Owners create thousands of pods in less."""


def what_is_missing(gang: Gang, group: PodGroup, scheduler: str) -> str:
    """Return what an unscheduled gang of this group waits for; '' if it is complete, or may be another scheduler's.

    scheduler: schedulerName of its pods. A group without such pods is gangwatch's if its user wrote labels or
    annotations of gangwatch on it.
    """
    if gang.spec is not None or gang.refused or not gang.grouped:
        return ""
    if not gang.pods and not declared_keys(group.metadata):
        return ""
    if len(gang.pods) < (least := least_of(group)):
        needs = f"each needs schedulerName {scheduler} and the label {GROUP_LABEL}: {group.metadata.name}"
        return f"{len(gang.pods)} of {least} pods exist; {needs}"
    held = next((pod for pod in gang.pods if not is_complete(pod)), None)
    if held is None:
        return ""
    if held.spec.scheduling_gates:
        return f"pod {held.metadata.name} has a scheduling gate, which another controller must remove"
    return f"pod {held.metadata.name} waits for a ResourceClaim that does not exist"


def why_not_running(pods: Iterable[Pod]) -> str:
    """Return what the pods of a starting gang wait for on their nodes; '' if one has no node yet, or all run."""
    pods = [pod for pod in pods if not pod.over and not pod.metadata.deletion_timestamp]
    waiting = [pod for pod in pods if pod.status.phase != "Running"]
    if not waiting or not all(pod.spec.node_name for pod in pods):
        return ""
    reasons = {pod.metadata.name: _container_reason(pod) for pod in waiting}
    named = next((name for name, why in reasons.items() if why not in ("", "ContainerCreating")), next(iter(reasons)))
    reason = reasons[named] or "its containers have not started"
    return f"all pods have nodes; {len(waiting)} of {len(pods)} do not run yet: pod {named}: {reason}"


def _container_reason(pod: Pod) -> str:
    waits = (status.state.waiting for status in pod.status.container_statuses or ())
    return next((one.reason for one in waits if one is not None and one.reason), "")


def without_group(cache: InformerCache) -> list[tuple[Pod, str]]:
    """Return the unbound pods whose group does not exist, each with the reason."""
    found: list[tuple[Pod, str]] = []
    with cache.lock:
        for key in cache.groups_of_pods():
            if key not in cache.groups and key not in cache.pods:
                name = key.partition("/")[2]
                why = f"PodGroup {name}, which the pod names as its group, does not exist in its namespace"
                found += [(pod, why) for pod in cache.pods_of(key) if not pod.spec.node_name and not pod.over]
    return found


class Since:
    """Times since which keys have been present without a gap, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def keys(self) -> set[str]:
        """Return the keys that are present."""
        return set(self._since)

    def lasting(self, keys: Iterable[str], now: float) -> set[str]:
        """Return those of the present keys that have been present for INCOMPLETE_SECONDS."""
        self._since = {key: self._since.get(key, now) for key in keys}
        return {key for key, since in self._since.items() if now - since >= INCOMPLETE_SECONDS}
