"""Kubernetes quantities, and the resources that a pod requests of its node.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ and
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.objects import Container, Pod

_FORM = re.compile(r"([+-]?[0-9]*\.?[0-9]+|[+-]?[0-9]+\.)(e[+-]?[0-9]+|E[+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?\Z")
_SCALE = {
    "": Decimal(1),
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
MOST_CHARACTERS = 64
"""Maximum length of a quantity. The API server's canonical form is shorter."""

MOST_EXPONENT = 40
"""Maximum exponent of ten in a quantity. The API server caps amounts at 2^63 - 1 and rounds up to 1e-9
(resource.Quantity)."""

MOST = 2**63 - 1

THOUSANDTHS = 1000
"""CPU is counted in thousandths, as in the kubelet; all else in units."""


DEVICES = "resource.k8s.io/device"
"""Name under which devices of claims are counted as slots. It is no resource of Kubernetes."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Decimal:
    """Parse a quantity such as '500m', '2Gi' or '1e3'. Raises BackendError for malformed text."""
    match = _FORM.match(text) if len(text) <= MOST_CHARACTERS else None
    if match is None:
        raise BackendError(f"{text[:MOST_CHARACTERS]!r} is not a quantity")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _SCALE:
        return number * _SCALE[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > MOST_EXPONENT:
        raise BackendError(f"{text!r} is not a quantity: its exponent is beyond {MOST_EXPONENT}")
    return number.scaleb(exponent)


@lru_cache(maxsize=4096)
def amount(resource: str, text: str) -> int:
    """Return the amount, rounded up, in thousandths of CPU or units of any other resource."""
    number = parse_quantity(text) * (THOUSANDTHS if resource == "cpu" else 1)
    return max(-MOST, min(int(number.to_integral_value(ROUND_CEILING)), MOST))


def amounts(quantities: Mapping[str, str] | None) -> dict[str, int]:
    return {resource: amount(resource, text) for resource, text in (quantities or {}).items()}


def requests_of(pod: Pod) -> Mapping[str, int]:
    """Return the resources that the pod requests; pods with equal requests share one mapping.

    For each resource this is the larger of two amounts, plus the overhead of the runtime class: the sum of all
    containers; and the peak of any init container with the sidecars (init containers that always restart) started
    before it. Devices of its claims and networks are included once they are resolved (``PodSpec.devices`` and
    ``networks``); the requests may already include those of networks.
    """
    if pod.spec.asked is None:
        pod.spec.asked = _one_for_all(tuple(_asked(pod).items()))
    return pod.spec.asked


@lru_cache(maxsize=4096)
def _one_for_all(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)


def _asked(pod: Pod) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, _wanted(container))
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        wanted = _wanted(container)
        if container.restart_policy == "Always":
            _add(sidecars, wanted)
            wanted = {}
        for resource in {*wanted, *sidecars}:
            peak = wanted.get(resource, 0) + sidecars.get(resource, 0)
            most[resource] = max(most.get(resource, 0), peak)
    _add(total, sidecars)
    for resource, peak in most.items():
        total[resource] = max(total.get(resource, 0), peak)
    _add(total, amounts(pod.spec.overhead))
    total["pods"] = 1
    for resource, count in (pod.spec.networks or {}).items():
        total[resource] = max(total.get(resource, 0), count)
    if pod.spec.devices is not None:
        _add(total, pod.spec.devices.amounts)
    return {resource: count for resource, count in total.items() if count}


def _wanted(container: Container) -> dict[str, int]:
    """Return the container's requests, and the limit of each resource without a request (the API server usually sets
    it).
    """
    resources = container.resources
    if resources is None:
        return {}
    return (
        {**amounts(resources.limits), **amounts(resources.requests)} if resources.requests or resources.limits else {}
    )


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, count in more.items():
        total[resource] = total.get(resource, 0) + count


def summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the total amount of each resource in all mappings."""
    total: dict[str, int] = {}
    for part in parts:
        _add(total, part)
    return total
