"""The claims of a pod: which requests they have, and how much of the plan's resources they use.

The claim controller makes a claim from a template for each pod, and writes its name in the pod's status. A claim that a
user made may be shared by several pods: its devices count for the first of them, and the others follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.devices.allocation import (
    ALL,
    MOST_DEVICES,
    Choice,
    ClaimRequests,
    Classes,
    Request,
)
from scheduler_feedback.backends.kubernetes.devices.device_objects import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
)
from scheduler_feedback.backends.kubernetes.devices.selectors import SelectorError, compiled
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS, is_accelerator
from scheduler_feedback.backends.kubernetes.objects.objects import NodeTerm, Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import DEVICES, parse_quantity

SLOTS_LABEL = f"{OURS}slots"
"""Label of a DeviceClass, 'true' or 'false': whether its devices are slots, as GPUs are."""

SLOT_CLASSES = frozenset({"gpu.nvidia.com", "mig.nvidia.com"})
"""Classes whose devices are slots without a label: those of NVIDIA's driver
(https://github.com/NVIDIA/k8s-dra-driver-gpu, deployments/helm)."""

CHANNEL_CLASSES = frozenset({"compute-domain-default-channel.nvidia.com", "compute-domain-channel.nvidia.com"})
"""Classes of the channels of a ComputeDomain. NVIDIA's driver makes claims of the first one (source as above)."""


class PodClaim(msgspec.Struct, frozen=True):
    """A claim of a pod."""

    key: str
    """'NAMESPACE/NAME' of the claim."""
    requests: ClaimRequests
    counted: bool
    """Whether the devices count for this pod, not for another one that shares the claim."""
    reach: tuple[NodeTerm, ...] | None = None
    """Nodes that can use the devices which the claim already has for other pods; None: not restricted."""


def claims_of_pod(pod: Pod) -> dict[str, str] | None:
    """Return the key ('NAMESPACE/NAME') of each claim of the pod, by its name in the pod.

    None: the claim controller has not yet made a claim from its template.
    """
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    found: dict[str, str] = {}
    for one in pod.spec.resource_claims or ():
        if one.resource_claim_name:
            name: str | None = one.resource_claim_name
        elif one.name in made:
            name = made[one.name]
        else:
            return None
        if name is not None:  # the controller decided that the pod needs no claim
            found[one.name] = f"{pod.metadata.namespace}/{name}"
    return found


def is_slot_class(declared: DeviceClass) -> bool:
    """Return whether devices of the class are slots, so that each has a rank."""
    label = declared.metadata.label(SLOTS_LABEL)
    if label:
        return label == "true"
    return declared.metadata.name in SLOT_CLASSES or is_accelerator(declared.spec.extended_resource_name)


def requests_in(claim: ResourceClaim, classes: Classes) -> ClaimRequests:
    """Return the requests of a claim. Raises BackendError with the reason if gangwatch does not support them."""
    devices = claim.spec.devices
    requests = tuple(_request(one, classes) for one in devices.requests or ())
    match = []
    for constraint in devices.constraints or ():
        if not constraint.match_attribute or constraint.distinct_attribute:
            raise BackendError("a constraint other than matchAttribute is not implemented")
        match.append((constraint.match_attribute, tuple(sorted(constraint.requests or ()))))
    return ClaimRequests(requests, tuple(match))


def _request(one: DeviceRequest, classes: Classes) -> Request:
    if one.exactly is not None:
        return _exactly(one.name, one.exactly, classes)
    if not one.first_available:
        raise BackendError(f"request {one.name}: it is of a kind that is not implemented")
    alternatives = tuple(_exactly(f"{one.name}/{other.name}", other, classes) for other in one.first_available)
    names = "|".join(dict.fromkeys(other.device_class for other in alternatives))
    counts = {other.count for other in alternatives}
    if ALL in counts:
        raise BackendError(f"request {one.name}: allocation mode All is not implemented in firstAvailable")
    slots = {_is_slot(other, classes) for other in alternatives}
    if len(slots) > 1:
        raise BackendError(f"request {one.name}: some of its alternatives are slots (GPUs) and others are not")
    if slots == {True} and len(counts) > 1:
        raise BackendError(
            f"request {one.name}: its alternatives ask for different numbers of devices "
            f"({', '.join(map(str, sorted(counts)))}), so the number of the gang's ranks would depend on the nodes"
        )
    return Request(one.name, names, count=min(counts), alternatives=alternatives)


def _is_slot(request: Request, classes: Classes) -> bool:
    declared = classes.get(request.device_class)
    return declared is not None and is_slot_class(declared)


def _exactly(name: str, asked: ExactRequest, classes: Classes) -> Request:
    if asked.derived_attributes:
        raise BackendError(f"request {name}: derived attributes are not implemented")
    if asked.allocation_mode not in ("ExactCount", "All"):
        raise BackendError(f"request {name}: allocation mode {asked.allocation_mode} is not implemented")
    if asked.allocation_mode == "ExactCount" and not 1 <= asked.count <= MOST_DEVICES:
        raise BackendError(f"request {name}: {asked.count} is no number of devices from 1 to {MOST_DEVICES}")
    declared = classes.get(asked.device_class_name)
    if declared is None:
        raise BackendError(f"request {name}: device class {asked.device_class_name} does not exist")
    _check(f"class {asked.device_class_name}", declared.spec.selectors or ())
    _check(f"request {name}", asked.selectors or ())
    capacity = tuple(sorted((asked.capacity.requests or {}).items())) if asked.capacity is not None else ()
    for what, amount in capacity:
        try:
            parse_quantity(amount)
        except BackendError as error:
            raise BackendError(f"request {name}: capacity {what}: {error}") from error
    count = ALL if asked.allocation_mode == "All" else asked.count
    expressions = tuple(selector.expression for selector in asked.selectors or ())
    tolerations = tuple(asked.tolerations or ())
    return Request(
        name, asked.device_class_name, expressions, count, tolerations, capacity, admin=bool(asked.admin_access)
    )


def _check(where: str, selectors: Iterable[DeviceSelector]) -> None:
    for selector in selectors:
        if not selector.expression:
            raise BackendError(f"{where}: a selector without a CEL expression is not implemented")
        try:
            compiled(selector.expression)
        except SelectorError as error:
            raise BackendError(f"{where}: cannot evaluate {selector.expression!r}: {error}") from error


def amounts_of(claims: Iterable[ClaimRequests], classes: Classes, of_all: Callable[[Request], int]) -> dict[str, int]:
    """Return how many devices the claims take, by signature, and how many of these are slots (`quantities.DEVICES`).

    Requests for administration take none. of_all: returns the number of devices that a request for all devices gets;
    may raise BackendError.
    """
    total: dict[str, int] = {}
    for claim in claims:
        for request in claim.requests:
            if request.admin:
                continue
            count = of_all(request) if request.count == ALL else request.count
            total[request.signature] = total.get(request.signature, 0) + count
            if _is_slot(request.alternatives[0] if request.alternatives else request, classes):
                total[DEVICES] = total.get(DEVICES, 0) + count
    return total


def needs_one_clique(claims: Iterable[PodClaim]) -> bool:
    """Return whether one of the claims asks for a channel of a ComputeDomain, whose nodes share an NVLink domain."""
    return any(
        one.device_class in CHANNEL_CLASSES
        for claim in claims
        for request in claim.requests.requests
        for one in request.alternatives or (request,)
        if not one.admin
    )


def allocation_body(claim: ResourceClaim, choices: Iterable[Choice], classes: Classes) -> dict[str, Any]:
    """Return the claim's `status.allocation` for these devices, with the configuration of classes and claim."""
    chosen = list(choices)
    results = []
    for one in chosen:
        driver, pool, device = one.device.id
        result: dict[str, Any] = {"request": one.request.name, "driver": driver, "pool": pool, "device": device}
        if one.request.tolerations:
            result["tolerations"] = msgspec.to_builtins(one.request.tolerations)
        if one.request.admin:
            result["adminAccess"] = True
        results.append(result)
    body: dict[str, Any] = {"devices": {"results": results}}
    if config := _configuration(claim, [one.request for one in chosen], classes):
        body["devices"]["config"] = config
    if (selector := _node_selector(chosen)) is not None:
        body["nodeSelector"] = selector
    return body


def _configuration(
    claim: ResourceClaim, chosen: Iterable[Request], classes: Mapping[str, DeviceClass]
) -> list[dict[str, Any]]:
    """Return the configuration of each class once, with its requests, then that of the claim.

    chosen: the requests that were fulfilled; of those with alternatives, only the one that was used. No names of
    requests mean all of them. The claim's configuration for other alternatives is left out.
    """
    fulfilled = {request.name: request for request in chosen}
    names: dict[str, list[str]] = {}
    for name, request in fulfilled.items():
        names.setdefault(request.device_class, []).append(name)
    found = []
    for name, requests in names.items():
        for one in (classes[name].spec.config if name in classes else None) or ():
            found.append({**one, "source": "FromClass", "requests": requests})
    for one in claim.spec.devices.config or ():
        concerned = one.get("requests")
        if not concerned or any(request.is_one_of(concerned) for request in fulfilled.values()):
            found.append({**one, "source": "FromClaim"})
    return [
        {**one, "requests": []}
        if all(request.is_one_of(one.get("requests") or ()) for request in fulfilled.values())
        else one
        for one in found
    ]


def _node_selector(chosen: Iterable[Choice]) -> dict[str, Any] | None:
    """Return the nodes that can use the devices: that of a device of one node, else those of all; None: all nodes."""
    terms: dict[str, list[Any]] = {}
    for one in chosen:
        if one.device.node:
            field = {"key": "metadata.name", "operator": "In", "values": [one.device.node]}
            return {"nodeSelectorTerms": [{"matchFields": [field]}]}
        for term in one.device.selector.node_selector_terms[:1] if one.device.selector is not None else ():
            for key, parts in (("matchExpressions", term.match_expressions), ("matchFields", term.match_fields)):
                for part in msgspec.to_builtins(parts or []):
                    if part not in terms.setdefault(key, []):
                        terms[key].append(part)
    terms = {key: parts for key, parts in terms.items() if parts}
    return {"nodeSelectorTerms": [terms]} if terms else None
