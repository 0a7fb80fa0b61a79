"""Choice of devices for the claims of one pod on one node.

As in Kubernetes, each request takes the first devices that match its class and selectors, and earlier choices are
revised if a later request or constraint fails. Source:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.devices.counters import Left
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, DeviceTaint, DeviceToleration
from scheduler_feedback.backends.kubernetes.devices.inventory import DeviceId, Published
from scheduler_feedback.backends.kubernetes.devices.selectors import attribute_of, has_capacity

ALL = 0
"""Count of a request for all devices that match."""

MOST_STEPS = 10_000
"""Maximum number of devices that one search tries. Without constraints, a search needs one step a device."""

MOST_DEVICES = 32
"""Maximum number of devices of one claim (resource/v1 types.go, AllocationResultsMaxSize)."""

MOST_COMBINATIONS = 256
"""Maximum number of combinations of alternatives (`firstAvailable`) that are tried for the claims of one pod."""

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})

Classes = Mapping[str, DeviceClass]


class Request(msgspec.Struct, frozen=True):
    """A request of a claim for devices of one class."""

    name: str
    """Name in the claim; of an alternative, `REQUEST/ALTERNATIVE`."""
    device_class: str
    """Class of the devices; of a request with alternatives, all of their classes, separated by `|`."""
    selectors: tuple[str, ...] = ()
    """CEL expressions that a device must fulfil in addition to those of its class."""
    count: int = 1
    """Number of devices; `ALL` for every device of the node that matches. With alternatives, the least of theirs."""
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    """Least amount (a quantity) of each named capacity that the device must have."""
    admin: bool = False
    """Whether the request is for administration: it gets devices that others have, and takes none."""
    alternatives: tuple[Request, ...] = ()
    """Requests of which the first one that can be fulfilled is used (`firstAvailable`)."""

    @property
    def signature(self) -> str:
        """Name of the set of devices that match: requests with equal signatures compete for the same devices."""
        name = f"deviceclass/{self.device_class}"
        details: list[Any] = [self.selectors, self.tolerations]
        details += [self.capacity] if self.capacity else []
        details += [[one.signature for one in self.alternatives]] if self.alternatives else []
        if not any(details):
            return name
        return f"{name}#{hashlib.sha256(msgspec.json.encode(details)).hexdigest()[:6]}"

    def is_one_of(self, names: Collection[str]) -> bool:
        """Return whether a constraint or configuration for requests with these names concerns this one."""
        return self.name in names or self.name.partition("/")[0] in names


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
    if request.alternatives:
        return any(fulfils(one, published, classes) for one in request.alternatives)
    declared = classes.get(request.device_class)
    if declared is None or not has_capacity(published.device, request.capacity):
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
    claims: Sequence[ClaimRequests],
    devices: Sequence[Published],
    taken: Collection[DeviceId],
    classes: Classes,
    counters: Left | None = None,
) -> list[Choice] | str:
    """Return the devices for all claims of a pod, or why they cannot all be allocated, in one sentence.

    devices: those that the pod's node can use. taken: devices that other claims have. A device goes to one request, and
    in addition to any number of requests for administration. Of requests with alternatives, the first combination that
    can be allocated is used; the sentence is about the last one. counters: what is left of those that devices share.
    """
    counters = counters or Left({})
    wanted = [(number, request) for number, claim in enumerate(claims) for request in claim.requests]
    found: list[Choice] | str = []
    steps = MOST_STEPS
    combinations = itertools.product(*(request.alternatives or (request,) for _, request in wanted))
    for chosen in itertools.islice(combinations, MOST_COMBINATIONS):
        numbered = [(number, request) for (number, _), request in zip(wanted, chosen, strict=True)]
        found, used = _allocate_exactly(claims, numbered, devices, taken, classes, counters, steps)
        steps -= used
        if not isinstance(found, str) or steps <= 0:
            return found
    return found


def _allocate_exactly(
    claims: Sequence[ClaimRequests],
    requests: Sequence[tuple[int, Request]],
    devices: Sequence[Published],
    taken: Collection[DeviceId],
    classes: Classes,
    counters: Left,
    steps: int,
) -> tuple[list[Choice] | str, int]:
    """Return what ``allocate`` returns for requests without alternatives, and the number of steps that it took.

    requests: each with the index of its claim. steps: maximum number of devices to try.
    """
    wanted: list[tuple[int, Request, list[Published]]] = []
    for number, request in requests:
        fitting = [one for one in devices if fulfils(request, one, classes)]
        free = [one for one in fitting if request.admin or (one.id not in taken and counters.has(one))]
        count = len(fitting) if request.count == ALL else request.count
        if not fitting:
            return f"request {request.name}: the node has no device that matches {_named(request)}", 0
        if len(free) < count:
            why = f"{count} devices of {_named(request)} are requested, {len(free)} of {len(fitting)} are free"
            return f"request {request.name}: {why}", 0
        if count > MOST_DEVICES:
            why = f"{count} devices are more than the {MOST_DEVICES} that a claim may have"
            return f"request {request.name}: {why}", 0
        wanted += [(number, request, free)] * count
    search = _Search(claims, wanted, counters, steps)
    if (found := search.run()) is not None:
        return found, search.steps
    if search.steps >= steps:
        why = f"no combination of devices was found in {MOST_STEPS} steps that fulfils all requests and constraints"
        return why, search.steps
    return "the free devices do not fulfil all requests and constraints of the claims together", search.steps


def _named(request: Request) -> str:
    parts = [f"class {request.device_class}"]
    parts += ["the selectors"] if request.selectors else []
    parts += [f"the capacity {' '.join(f'{name}={amount}' for name, amount in request.capacity)}"] * bool(
        request.capacity
    )
    return " and ".join(parts)


_ANY_CLAIM = -1


def _used_by(claim: int, request: Request, device: Published) -> tuple[tuple[DeviceId, int], ...]:
    """Return what a choice uses: the device in its claim, and unless it is for administration, in any claim."""
    own = (device.id, claim)
    return (own,) if request.admin else (own, (device.id, _ANY_CLAIM))


class _Search:
    """Search for one device for each wanted one, with backtracking."""

    def __init__(
        self,
        claims: Sequence[ClaimRequests],
        wanted: Sequence[tuple[int, Request, Sequence[Published]]],
        counters: Left,
        most: int,
    ) -> None:
        """wanted: each device, with the index of its claim, its request and the devices to try. counters: what is left
        of them, unchanged after the search. most: number of steps after which the search ends."""
        self._claims, self._wanted, self._most = claims, wanted, most
        self._counters = counters
        self._chosen: list[Choice] = []
        self._used: set[tuple[DeviceId, int]] = set()
        """Each chosen device with the index of its claim, and with `_ANY_CLAIM` unless it is for administration."""
        self.steps = 0

    def run(self) -> list[Choice] | None:
        """Return a choice for each wanted device; None if there is none, or none within the number of steps."""
        found = self._run()
        for choice in self._chosen:
            self._give_back(choice)
        return found

    def _run(self) -> list[Choice] | None:
        candidates: list[Iterator[Published]] = []
        while len(self._chosen) < len(self._wanted):
            if len(candidates) == len(self._chosen):
                candidates.append(iter(self._candidates()))
            number, request, _ = self._wanted[len(self._chosen)]
            for device in candidates[-1]:
                self.steps += 1
                if self.steps > self._most:
                    return None
                used = _used_by(number, request, device)
                if not self._used.isdisjoint(used) or not self._meets(number, request, device):
                    continue
                if request.admin or self._counters.has(device):
                    self._chosen.append(Choice(number, request, device))
                    self._used.update(used)
                    if not request.admin:
                        self._counters.take(device)
                    break
            else:
                candidates.pop()
                if not self._chosen:
                    return None
                last = self._chosen.pop()
                self._used.difference_update(_used_by(last.claim, last.request, last.device))
                self._give_back(last)
        return self._chosen

    def _give_back(self, choice: Choice) -> None:
        if not choice.request.admin:
            self._counters.give_back(choice.device)

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
            if names and not request.is_one_of(names):
                continue
            value = _attribute(device, attribute)
            if value is None:
                return False
            for other in self._chosen:
                concerned = other.claim == number and (not names or other.request.is_one_of(names))
                if concerned and _attribute(other.device, attribute) != value:
                    return False
        return True


def _attribute(device: Published, name: str) -> tuple[str, Any] | None:
    return attribute_of(device.id.driver, device.device, name)
