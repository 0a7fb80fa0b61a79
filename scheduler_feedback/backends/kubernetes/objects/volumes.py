"""Volumes: nodes from which a pod's persistent volumes can be reached. No I/O.

A bound claim names its volume, and the volume names the nodes from which it can be reached; the pod goes to one of
those. For a claim that waits for its first pod (WaitForFirstConsumer) the scheduler would have to choose the volume,
too, which is not implemented: its pod is refused until the claim is bound. Source:
https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Pod, Reach, StoredVolume

_ONE_POD = "ReadWriteOncePod"


def claims_of(pod: Pod) -> list[str]:
    """Return the keys, 'NAMESPACE/NAME', of the persistent volume claims that the pod uses."""
    return [
        f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"
        for volume in pod.spec.volumes or ()
        if volume.persistent_volume_claim is not None
    ]


def reached(pod: Pod, claims: Mapping[str, Claim], volumes: Mapping[str, StoredVolume]) -> Pod:
    """Return the pod with the nodes that can reach each of its volumes."""
    if not claims_of(pod):
        return pod
    found = []
    for volume in pod.spec.volumes or ():
        source = volume.persistent_volume_claim
        if source is not None:
            claim = claims.get(f"{pod.metadata.namespace}/{source.claim_name}")
            volume = msgspec.structs.replace(volume, reach=_reach(source.claim_name, claim, volumes))
        found.append(volume)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=found))


def _reach(name: str, claim: Claim | None, volumes: Mapping[str, StoredVolume]) -> Reach:
    if claim is None:
        return Reach(f"claim {name} does not exist")
    if claim.status.phase != "Bound" or not claim.spec.volume_name:
        return Reach(f"claim {name} is not bound, and choosing its volume is not implemented")
    if _ONE_POD in (claim.spec.access_modes or ()):
        return Reach(f"claim {name} is {_ONE_POD}, which is not implemented")
    volume = volumes.get(claim.spec.volume_name)
    if volume is None:
        return Reach(f"claim {name} is bound to {claim.spec.volume_name}, which does not exist")
    required = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
    return Reach(terms=None if required is None else required.node_selector_terms)


def users_of(volume: str, claims: Iterable[tuple[str, Claim]]) -> set[str]:
    """Return the keys of the claims that are bound to the volume."""
    return {key for key, claim in claims if claim.spec.volume_name == volume}
