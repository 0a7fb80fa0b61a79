"""Additional networks of pods (Multus), and the virtual functions that they need. No I/O.

A pod names its networks in an annotation: 'NAMESPACE/NAME@INTERFACE, ...', or a JSON list of objects. A network
(NetworkAttachmentDefinition, k8s.cni.cncf.io/v1) may name the extended resource whose devices it attaches, one for each
mention. Multus' network resources injector adds these amounts to the pod's requests. Source:
https://github.com/k8snetworkplumbingwg/multi-net-spec (v1.3) and
https://github.com/k8snetworkplumbingwg/network-resources-injector
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part, Pod

API = "k8s.cni.cncf.io/v1"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Annotation of a pod that names its networks."""

RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
"""Annotation of a network that names the extended resource of its devices."""

MOST_NETWORKS = 64
"""Maximum number of networks of a pod that are counted: more than the interfaces of a node with eight rails."""


class NetworkAttachment(Part):
    """A network that pods can use in addition to that of the cluster (NetworkAttachmentDefinition)."""

    metadata: Metadata

    @property
    def resource(self) -> str:
        """Name of the extended resource of its devices; '' if it needs none."""
        return self.metadata.annotation(RESOURCE)


class _Selected(msgspec.Struct):
    name: str
    namespace: str = ""


_selections = msgspec.json.Decoder(list[_Selected])


def networks_of(pod: Pod) -> list[str]:
    """Return 'NAMESPACE/NAME' of each network in the annotation; none if it is malformed, as Multus rejects it."""
    text, own = pod.metadata.annotation(NETWORKS).strip(), pod.metadata.namespace
    if text.startswith("["):
        try:
            found = [(one.namespace, one.name) for one in _selections.decode(text)]
        except (msgspec.MsgspecError, RecursionError):
            return []
    else:
        names = (part.strip().partition("@")[0] for part in text.split(","))
        found = [(space, name) for space, _, name in (one.rpartition("/") for one in names if one)]
    return [f"{namespace or own}/{name}" for namespace, name in found[:MOST_NETWORKS]]


def amounts_of(pod: Pod, networks: Mapping[str, NetworkAttachment]) -> dict[str, int]:
    """Return how many devices of each extended resource the pod's networks need."""
    total: dict[str, int] = {}
    for key in networks_of(pod):
        known = networks.get(key)
        if known is not None and known.resource:
            total[known.resource] = total.get(known.resource, 0) + 1
    return total
