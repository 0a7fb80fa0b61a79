"""Why a gang cannot be scheduled yet: pods or claims that are missing, or a group that does not exist. No I/O.

A mistyped label or a wrong number of pods would otherwise leave pods pending without any explanation. Owners create
pods one by one, and some create the group last, so a gang counts as incomplete only after a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import GROUP_LABEL, Gang, is_complete

INCOMPLETE_SECONDS = 5.0
"""Seconds for which a gang must be incomplete before this is published. Owners create thousands of pods in less."""


def what_is_missing(gang: Gang, least: int) -> str:
    """Return what an unscheduled gang of a group waits for; '' if it is complete, or has no pod of this scheduler.

    least: number of pods that the group needs. A group without such pods may belong to another scheduler.
    """
    if gang.spec is not None or gang.refused or not gang.grouped or not gang.pods:
        return ""
    if len(gang.pods) < least:
        group, scheduler = gang.key.partition("/")[2], gang.pods[0].spec.scheduler_name
        needs = f"each needs schedulerName {scheduler} and the label {GROUP_LABEL}: {group}"
        return f"{len(gang.pods)} of {least} pods exist; {needs}"
    held = next((pod for pod in gang.pods if not is_complete(pod)), None)
    if held is None:
        return ""
    if held.spec.scheduling_gates:
        return f"pod {held.metadata.name} has a scheduling gate, which another controller must remove"
    return f"pod {held.metadata.name} waits for a ResourceClaim that does not exist"


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
