"""Choice of devices for the claims of one pod on one node.

As in Kubernetes, each request takes the first devices that match its class and selectors, and earlier choices are
revised if a later request or constraint fails. Source:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, DeviceTaint, DeviceToleration
from scheduler_feedback.backends.kubernetes.devices.inventory import DeviceId, Published
from scheduler_feedback.backends.kubernetes.devices.selectors import attribute_of

ALL = 0
"""Count of a request for all devices that match."""

MOST_STEPS = 10_000
"""Maximum number of devices that one search tries. Without constraints, a search needs one step a device."""

MOST_DEVICES = 32
"""Maximum number of devices of one claim (resource/v1 types.go, AllocationResultsMaxSize)."""

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})

Classes = Mapping[str, DeviceClass]


class Request(msgspec.Struct, frozen=True):
    """A request of a claim for devices of one class."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    """CEL expressions that a device must fulfil in addition to those of its class."""
    count: int = 1
    """Number of devices; `ALL` for every device of the node that matches."""
    tolerations: tuple[DeviceToleration, ...] = ()

    @property
    def signature(self) -> str:
        """Name of the set of devices that match: requests with equal signatures compete for the same devices."""
        name = f"deviceclass/{self.device_class}"
        if not self.selectors and not self.tolerations:
            return name
        encoded = msgspec.json.encode((self.selectors, self.tolerations))
        return f"{name}#{hashlib.sha256(encoded).hexdigest()[:6]}"


class ClaimRequests(msgspec.Struct, frozen=True):
    """What a claim asks for, without its name."""

    requests: tuple[Request, ...]
    match: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Attributes that must be equal for all devices of the named requests; no names: of all requests."""


class Choice(msgspec.Struct, frozen=True):
    """A device that is chosen for a request of a claim. claim: index of the claim."""

    claim: int
    request: Request
    device: Published


def fulfils(request: Request, published: Published, classes: Classes) -> bool:
    """Return whether the device matches the request. Raises SelectorError if an expression is not supported."""
    declared = classes.get(request.device_class)
    if declared is None:
        return False
    expressions = (*(one.expression for one in declared.spec.selectors or ()), *request.selectors)
    return all(map(published.fulfils, expressions)) and not any(
        _keeps_away(taint, request.tolerations) for taint in published.device.taints or ()
    )


def _keeps_away(taint: DeviceTaint, tolerations: Sequence[DeviceToleration]) -> bool:
    if taint.effect not in _KEEPS_AWAY:
        return False
    return not any(
        (not one.effect or one.effect == taint.effect)
        and (
            (not one.key or one.key == taint.key)
            if one.operator == "Exists"
            else (one.key, one.value) == (taint.key, taint.value)
        )
        for one in tolerations
    )


def allocate(
    claims: Sequence[ClaimRequests], devices: Sequence[Published], taken: Collection[DeviceId], classes: Classes
) -> list[Choice] | str:
    """Return the devices for all claims of a pod, or why they cannot all be allocated, in one sentence.

    devices: those that the pod's node can use. taken: devices that other claims have. A device goes to one request.
    """
    wanted: list[tuple[int, Request, list[Published]]] = []
    for number, claim in enumerate(claims):
        for request in claim.requests:
            fitting = [one for one in devices if fulfils(request, one, classes)]
            free = [one for one in fitting if one.id not in taken]
            count = len(fitting) if request.count == ALL else request.count
            if not fitting:
                return f"request {request.name}: the node has no device that matches {_named(request)}"
            if len(free) < count:
                return (
                    f"request {request.name}: {count} devices of {_named(request)} are requested, "
                    f"{len(free)} of {len(fitting)} are free"
                )
            if count > MOST_DEVICES:
                return f"request {request.name}: {count} devices are more than the {MOST_DEVICES} that a claim may have"
            wanted += [(number, request, free)] * count
    search = _Search(claims, wanted)
    if (found := search.run()) is not None:
        return found
    if search.steps >= MOST_STEPS:
        return f"no combination of devices was found in {MOST_STEPS} steps that fulfils all requests and constraints"
    return "the free devices do not fulfil all requests and constraints of the claims together"


def _named(request: Request) -> str:
    return f"class {request.device_class}{' and the selectors' if request.selectors else ''}"


class _Search:
    """Search for one device for each wanted one, with backtracking."""

    def __init__(
        self, claims: Sequence[ClaimRequests], wanted: Sequence[tuple[int, Request, Sequence[Published]]]
    ) -> None:
        self._claims, self._wanted = claims, wanted
        self._chosen: list[Choice] = []
        self._used: set[DeviceId] = set()
        self.steps = 0

    def run(self) -> list[Choice] | None:
        """Return a choice for each wanted device; None if there is none, or none within the number of steps."""
        candidates: list[Iterator[Published]] = []
        while len(self._chosen) < len(self._wanted):
            if len(candidates) == len(self._chosen):
                candidates.append(iter(self._candidates()))
            number, request, _ = self._wanted[len(self._chosen)]
            for device in candidates[-1]:
                self.steps += 1
                if self.steps > MOST_STEPS:
                    return None
                if device.id not in self._used and self._meets(number, request, device):
                    self._chosen.append(Choice(number, request, device))
                    self._used.add(device.id)
                    break
            else:
                candidates.pop()
                if not self._chosen:
                    return None
                self._used.discard(self._chosen.pop().device.id)
        return self._chosen

    def _candidates(self) -> Sequence[Published]:
        """Return the devices to try next. Equal wanted ones take devices in order, so no combination is tried twice."""
        number, request, free = self._wanted[len(self._chosen)]
        if self._chosen and (last := self._chosen[-1]).claim == number and last.request is request:
            after = next(n for n, one in enumerate(free) if one is last.device)
            return free[after + 1 :]
        return free

    def _meets(self, number: int, request: Request, device: Published) -> bool:
        """Return whether the device agrees with those already chosen for the claim."""
        for attribute, names in self._claims[number].match:
            if names and request.name not in names:
                continue
            value = _attribute(device, attribute)
            if value is None:
                return False
            for other in self._chosen:
                concerned = other.claim == number and (not names or other.request.name in names)
                if concerned and _attribute(other.device, attribute) != value:
                    return False
        return True


def _attribute(device: Published, name: str) -> tuple[str, Any] | None:
    return attribute_of(device.id.driver, device.device, name)
