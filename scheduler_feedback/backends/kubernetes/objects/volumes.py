"""Volumes: from which nodes a pod's persistent volumes can be reached. Pure.

A claim that is bound says which volume it is bound to, and the volume says where it can be reached; such a pod goes to
a node of those. A claim that waits for its first pod (WaitForFirstConsumer) would have us choose its volume, too, which
is not implemented: its pod is refused until somebody binds the claim.
Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Pod, Reach, StoredVolume

_ONE_POD = "ReadWriteOncePod"


def claims_of(pod: Pod) -> list[str]:
    """Keys, 'NAMESPACE/NAME', of the claims that the pod names."""
    return [
        f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"
        for volume in pod.spec.volumes or ()
        if volume.persistent_volume_claim is not None
    ]


def reached(pod: Pod, claims: Mapping[str, Claim], volumes: Mapping[str, StoredVolume]) -> Pod:
    """The pod, with what is known of where its volumes can be reached written into it."""
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
        return Reach(f"there is no claim {name}")
    if claim.status.phase != "Bound" or not claim.spec.volume_name:
        return Reach(f"claim {name} is not bound, and to choose its volume is not implemented")
    if _ONE_POD in (claim.spec.access_modes or ()):
        return Reach(f"claim {name} is {_ONE_POD}, which is not implemented")
    volume = volumes.get(claim.spec.volume_name)
    if volume is None:
        return Reach(f"claim {name} is bound to {claim.spec.volume_name}, which does not exist")
    required = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
    return Reach(terms=None if required is None else required.node_selector_terms)


def users_of(volume: str, claims: Iterable[tuple[str, Claim]]) -> set[str]:
    """Keys of the claims that are bound to the volume."""
    return {key for key, claim in claims if claim.spec.volume_name == volume}
