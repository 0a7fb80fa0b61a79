"""Inventory of devices, and choice of devices for claims; compared with a search over all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.backends.kubernetes.devices import allocation
from scheduler_feedback.backends.kubernetes.devices.allocation import (
    ALL,
    Choice,
    ClaimRequests,
    Request,
    allocate,
    fulfils,
)
from scheduler_feedback.backends.kubernetes.devices.counters import CounterKey, Left
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, DeviceToleration, ResourceSlice
from scheduler_feedback.backends.kubernetes.devices.inventory import DeviceId, Inventory, Published
from tests.kubernetes.device_driver import class_body, gpu, slice_body
from tests.kubernetes.makers import node

GPU, NIC = "gpu.nvidia.com", "nic.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
CLASSES = {name: msgspec.convert(class_body(name), DeviceClass) for name in (GPU, NIC)}


def a_slice(*arguments: Any, **options: Any) -> ResourceSlice:
    return msgspec.convert(slice_body(*arguments, **options), ResourceSlice)


def inventory(*slices: ResourceSlice) -> Inventory:
    made = Inventory()
    for one in slices:
        made.change(one.metadata.key, None, one)
    return made


def devices(*roots: str, driver: str = GPU, **more: Any) -> list[Published]:
    """Return devices of one node, with these PCIe roots."""
    bodies = [{**gpu(n, **{ROOT: {"string": root}}), **more} for n, root in enumerate(roots)]
    return inventory(a_slice("n1", bodies, driver)).devices_on(node("n1", 0))


def names(found: list[Choice] | str) -> list[tuple[int, str, str]]:
    assert not isinstance(found, str), found
    return [(one.claim, one.request.name, one.device.id.device) for one in found]


# --- inventory -------------------------------------------------------------------------------------------------------


def test_only_the_newest_complete_generation_of_a_pool_counts() -> None:
    old, first = a_slice("n1", [gpu(0)]), a_slice("n1", [gpu(1)], generation=2, count=2)
    second = a_slice("n1", [gpu(2)], generation=2, count=2)
    second.metadata.name = "second"
    made, place = inventory(old), node("n1", 0)
    assert [one.id for one in made.devices_on(place)] == [DeviceId(GPU, "n1", "gpu-0")]
    assert made.change("first", None, first) == {"n1"}
    assert made.devices_on(place) == [], "its second slice is missing"
    assert made.updating_on(place) == "n1"
    made.change("second", None, second)
    assert [one.id.device for one in made.devices_on(place)] == ["gpu-1", "gpu-2"]
    assert made.updating_on(place) == ""
    for key, one in (("first", first), ("second", second), (old.metadata.key, old)):
        made.change(key, one, None)
    assert not made
    assert made.devices_on(place) == []


def test_devices_of_several_nodes_are_those_of_the_selected_nodes() -> None:
    rack = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]}
    made = inventory(
        a_slice("pool-a", [gpu(0)], nodeSelector=rack),
        a_slice("pool-b", [gpu(1)], allNodes=True),
        a_slice("n1", [gpu(2)]),
    )
    assert [one.id.pool for one in made.devices_on(node("n1", 0, rack="a"))] == ["n1", "pool-a", "pool-b"]
    assert [one.id.pool for one in made.devices_on(node("n2", 0, rack="b"))] == ["pool-b"]
    assert made.change("x", None, a_slice("pool-c", [gpu(3)], allNodes=True)) == {""}, "all nodes have changed"


def test_devices_that_are_not_allocated_as_a_whole_are_left_out_with_the_reason() -> None:
    uses = [{"counterSet": "gpu-1", "counters": {"slices": {"value": "1"}}}]
    partition = {**gpu(1), "consumesCounters": uses}
    malformed = {**gpu(6), "consumesCounters": [{"counterSet": "gpu-1", "counters": {"slices": {"value": "one"}}}]}
    shared, attached = {**gpu(2), "allowMultipleAllocations": True}, {**gpu(3), "bindingConditions": ["ready"]}
    cpu = {**gpu(4), "nodeAllocatableResources": {"cpu": {}}}
    first = a_slice("n1", [gpu(0), partition, shared, attached, cpu, malformed])
    apart = a_slice("pool", [gpu(5)], perDeviceNodeSelection=True)
    sets = [{"name": "gpu-1", "counters": {"slices": {"value": "7"}}}]
    wide = a_slice("wide", [{**gpu(7), "consumesCounters": uses}], allNodes=True, sharedCounters=sets)
    made, place = inventory(first, apart, wide), node("n1", 0)
    assert [one.id.device for one in made.devices_on(place)] == ["gpu-0"]
    assert [one.id.device for one in made.usable()] == ["gpu-0"]
    reasons = {one.id.device: why for one, why in made.unusable()}
    assert reasons == {
        "gpu-1": "uses counters that its pool does not have",
        "gpu-2": "can be allocated to several claims (consumable capacity)",
        "gpu-3": "is attached only after its allocation (binding conditions)",
        "gpu-4": "represents CPU or memory of its node",
        "gpu-5": "selects nodes of its own (perDeviceNodeSelection)",
        "gpu-6": "uses counters that cannot be read: 'one' is not a quantity",
        "gpu-7": "shares counters with others, and several nodes can use it",
    }
    made.change(first.metadata.key, first, None)
    assert [one.id.device for one, _ in made.unusable()] == ["gpu-5", "gpu-7"]


# --- allocation ------------------------------------------------------------------------------------------------------


def test_each_request_takes_the_first_free_devices() -> None:
    have = devices("a", "a", "b")
    claims = [ClaimRequests((Request("one", GPU),)), ClaimRequests((Request("more", GPU, count=2),))]
    assert names(allocate(claims, have, (), CLASSES)) == [
        (0, "one", "gpu-0"),
        (1, "more", "gpu-1"),
        (1, "more", "gpu-2"),
    ]
    found = allocate(claims, have, {have[0].id}, CLASSES)
    assert found == "the free devices do not fulfil all requests and constraints of the claims together"
    found = allocate(claims, have, {have[0].id, have[1].id}, CLASSES)
    assert found == "request more: 2 devices of class gpu.nvidia.com are requested, 1 of 3 are free"


def test_a_request_for_all_devices_needs_every_one() -> None:
    have = devices("a", "a")
    claims = [ClaimRequests((Request("all", GPU, count=ALL),))]
    assert names(allocate(claims, have, (), CLASSES)) == [(0, "all", "gpu-0"), (0, "all", "gpu-1")]
    found = allocate(claims, have, {have[1].id}, CLASSES)
    assert found == "request all: 2 devices of class gpu.nvidia.com are requested, 1 of 2 are free"
    found = allocate([ClaimRequests((Request("all", NIC, count=ALL),))], have, (), CLASSES)
    assert found == "request all: the node has no device that matches class nic.example.com"


def test_selectors_restrict_the_devices_of_the_class() -> None:
    have = devices("a", "b", "c")
    second = Request("r", GPU, ('device.attributes["gpu.nvidia.com"].uuid == "GPU-1"',))
    assert names(allocate([ClaimRequests((second,))], have, (), CLASSES)) == [(0, "r", "gpu-1")]
    none = Request("r", GPU, ('device.attributes["gpu.nvidia.com"].uuid == "GPU-9"',))
    found = allocate([ClaimRequests((none,))], have, (), CLASSES)
    assert found == "request r: the node has no device that matches class gpu.nvidia.com and the selectors"


def test_a_tainted_device_needs_a_toleration() -> None:
    have = devices("a", taints=[{"key": "sick", "value": "yes", "effect": "NoSchedule"}])
    asked = Request("r", GPU)
    assert isinstance(allocate([ClaimRequests((asked,))], have, (), CLASSES), str)
    for toleration in (
        DeviceToleration("sick", "Exists"),
        DeviceToleration("sick", "Equal", "yes", "NoSchedule"),
        DeviceToleration(operator="Exists"),
    ):
        tolerant = msgspec.structs.replace(asked, tolerations=(toleration,))
        assert len(allocate([ClaimRequests((tolerant,))], have, (), CLASSES)) == 1
    for toleration in (DeviceToleration("sick", "Equal", "no"), DeviceToleration("sick", "Exists", effect="NoExecute")):
        tolerant = msgspec.structs.replace(asked, tolerations=(toleration,))
        assert isinstance(allocate([ClaimRequests((tolerant,))], have, (), CLASSES), str)


def test_earlier_choices_are_revised_for_a_constraint() -> None:
    """The first GPU has no NIC on its PCIe root."""
    have = [*devices("a", "b", "b"), *devices("b", "c", driver=NIC)]
    claim = ClaimRequests((Request("gpu", GPU), Request("nic", NIC)), ((ROOT, ()),))
    assert names(allocate([claim], have, (), CLASSES)) == [(0, "gpu", "gpu-1"), (0, "nic", "gpu-0")]
    apart = ClaimRequests((Request("gpu", GPU, count=2), Request("nic", NIC)), ((ROOT, ("gpu",)),))
    assert names(allocate([apart], have, (), CLASSES))[:2] == [(0, "gpu", "gpu-1"), (0, "gpu", "gpu-2")]


def test_a_search_ends_after_a_number_of_steps(monkeypatch: Any) -> None:
    monkeypatch.setattr(allocation, "MOST_STEPS", 200)
    have = devices(*(str(number) for number in range(24)))
    claim = ClaimRequests((Request("gpu", GPU, count=12),), ((ROOT, ()),))
    assert isinstance(allocate([claim], have, (), CLASSES), str), "no two devices have an equal root"
    pairs = devices(*("ab" * 15))
    hard = ClaimRequests(tuple(Request(f"r{n}", GPU) for n in range(16)), ((ROOT, ()),))
    found = allocate([hard], pairs, (), CLASSES)
    assert found == "no combination of devices was found in 200 steps that fulfils all requests and constraints"


def alternatives(*requests: Request, name: str = "any") -> Request:
    named = tuple(msgspec.structs.replace(one, name=f"{name}/{one.name}") for one in requests)
    return Request(name, "|".join(one.device_class for one in named), count=named[0].count, alternatives=named)


def test_the_first_alternative_that_can_be_allocated_is_used() -> None:
    have = [*devices("a", "b"), *devices("c", "d", driver=NIC)]
    asked = alternatives(Request("gpus", GPU, count=2), Request("nics", NIC, count=2))
    claim = ClaimRequests((asked,))
    assert names(allocate([claim], have, (), CLASSES)) == [(0, "any/gpus", "gpu-0"), (0, "any/gpus", "gpu-1")]
    found = allocate([claim], have, {have[0].id}, CLASSES)
    assert names(found) == [(0, "any/nics", "gpu-0"), (0, "any/nics", "gpu-1")]
    found = allocate([claim], have, {have[0].id, have[2].id}, CLASSES)
    assert found == "request any/nics: 2 devices of class nic.example.com are requested, 1 of 2 are free"
    assert fulfils(asked, have[0], CLASSES)
    assert fulfils(asked, have[2], CLASSES)


def test_a_later_request_revises_the_alternative_of_an_earlier_one() -> None:
    have = [*devices("a"), *devices("b", driver=NIC)]
    either = alternatives(Request("gpu", GPU), Request("nic", NIC))
    claim = ClaimRequests((either, Request("gpu", GPU)))
    assert names(allocate([claim], have, (), CLASSES)) == [(0, "any/nic", "gpu-0"), (0, "gpu", "gpu-0")]


def test_a_constraint_names_a_request_or_one_of_its_alternatives() -> None:
    have = [*devices("a"), *devices("b", driver=NIC)]
    either = alternatives(Request("gpu", GPU), Request("nic", NIC))
    for of, allowed in ((("any", "other"), False), (("any/gpu", "other"), False), (("any/nic", "other"), True)):
        claim = ClaimRequests((either, Request("other", NIC)), ((ROOT, of),))
        assert isinstance(allocate([claim], have, (), CLASSES), list) is allowed, of


def test_combinations_of_alternatives_are_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(allocation, "MOST_COMBINATIONS", 2)
    three = alternatives(Request("a", NIC), Request("b", NIC), Request("c", GPU))
    assert isinstance(allocate([ClaimRequests((three,))], devices("a"), (), CLASSES), str)
    monkeypatch.setattr(allocation, "MOST_COMBINATIONS", 3)
    assert isinstance(allocate([ClaimRequests((three,))], devices("a"), (), CLASSES), list)


def test_requests_for_administration_get_devices_that_others_have_and_take_none() -> None:
    have = devices("a", "b")
    every = {one.id for one in have}
    watching = ClaimRequests((Request("watch", GPU, count=ALL, admin=True),))
    assert names(allocate([watching], have, every, CLASSES)) == [(0, "watch", "gpu-0"), (0, "watch", "gpu-1")]
    work = ClaimRequests((Request("work", GPU, count=2),))
    assert len(names(allocate([watching, work], have, (), CLASSES))) == 4
    both = ClaimRequests((Request("work", GPU), Request("watch", GPU, count=2, admin=True)))
    assert isinstance(allocate([both], have, (), CLASSES), str), "a claim lists each device once"


def test_a_device_must_have_the_capacity_that_is_requested() -> None:
    have = devices("a", "b")
    for capacity, fits in (
        ((("memory", "141Gi"),), True),
        ((("memory", "142Gi"),), False),
        ((("cores", "1"),), False),
        ((("memory", "1"), ("cores", "1")), False),
    ):
        found = allocate([ClaimRequests((Request("r", GPU, capacity=capacity),))], have, (), CLASSES)
        assert isinstance(found, list) is fits, capacity
    assert found == (
        "request r: the node has no device that matches class gpu.nvidia.com and the capacity memory=1 cores=1"
    )
    broken = devices("a", capacity={"memory": {"value": "no number"}})
    one = Request("r", GPU, capacity=(("memory", "1"),))
    assert isinstance(allocate([ClaimRequests((one,))], broken, (), CLASSES), str)


def test_requests_for_other_devices_have_other_signatures() -> None:
    plain = Request("r", GPU)
    asked = [
        plain,
        Request("r", GPU, ("true",)),
        Request("r", GPU, tolerations=(DeviceToleration("sick", "Exists"),)),
        Request("r", GPU, capacity=(("memory", "1Gi"),)),
        Request("r", GPU, capacity=(("memory", "2Gi"),)),
        alternatives(plain, Request("n", NIC)),
        alternatives(Request("n", NIC), plain),
    ]
    assert len({one.signature for one in asked}) == len(asked)
    assert plain.signature == Request("other", GPU, count=2).signature == "deviceclass/gpu.nvidia.com"


SINGLE = st.builds(
    Request,
    st.sampled_from(["x", "y"]),
    st.sampled_from([GPU, NIC]),
    capacity=st.sampled_from([(), (("memory", "100Gi"),), (("memory", "200Gi"),)]),
    admin=st.booleans(),
)
EITHER = st.builds(
    lambda first, second: alternatives(*(msgspec.structs.replace(one, admin=False) for one in (first, second))),
    SINGLE,
    SINGLE,
)


def first_exists(claims: Sequence[ClaimRequests], have: Sequence[Published], taken: set[DeviceId]) -> list[str] | None:
    """Return the names of the requests of the first combination of alternatives that fits, by trying all devices."""
    wanted = [(number, request) for number, claim in enumerate(claims) for request in claim.requests]
    for combination in itertools.product(*(request.alternatives or (request,) for _, request in wanted)):
        pairs = [(number, request) for (number, _), request in zip(wanted, combination, strict=True)]
        for chosen in itertools.product(have, repeat=len(pairs)):
            used = list(zip(pairs, chosen, strict=True))
            right = all(
                request.device_class == one.id.driver
                and all(amount == "100Gi" for _, amount in request.capacity)
                and (request.admin or one.id not in taken)
                for (_, request), one in used
            )
            clash = any(
                one is other and (number == its or not (request.admin or asked.admin))
                for ((number, request), one), ((its, asked), other) in itertools.combinations(used, 2)
            )
            if right and not clash:
                return [request.name for _, request in pairs]
    return None


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_alternatives_capacity_and_administration_are_allocated_as_a_full_search_does(data: st.DataObject) -> None:
    have = [
        *devices(*"ab"[: data.draw(st.integers(0, 2))]),
        *devices(*"ab"[: data.draw(st.integers(0, 2))], driver=NIC),
    ]
    either = st.one_of(SINGLE, EITHER)
    claims = [
        ClaimRequests(tuple(data.draw(st.lists(either, min_size=1, max_size=2, unique_by=lambda one: one.name))))
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    taken = {one.id for one in have if data.draw(st.integers(0, 3)) == 0}
    found, expected = allocate(claims, have, taken, CLASSES), first_exists(claims, have, taken)
    assert (None if isinstance(found, str) else [one.request.name for one in found]) == expected


def test_two_claims_may_match_different_values() -> None:
    have = [*devices("a", "b"), *devices("a", "b", driver=NIC)]
    one = ClaimRequests((Request("gpu", GPU), Request("nic", NIC)), ((ROOT, ()),))
    found = allocate([one, one], have, set(), CLASSES)
    assert not isinstance(found, str)
    assert len({choice.device.id for choice in found}) == 4


REQUESTS = st.builds(Request, st.sampled_from(["x", "y"]), st.sampled_from([GPU, NIC]), st.just(()), st.integers(1, 2))


COUNTER = CounterKey(GPU, "n1", "set", "memory")


def exists(claims: Sequence[ClaimRequests], have: Sequence[Published], taken: set[DeviceId], total: int = 0) -> bool:
    """Return whether any assignment of distinct free devices fulfils the claims, by trying all of them.

    total: amount of the counter that all devices share.
    """
    left = total - sum(used for one in have if one.id in taken for _, used in one.uses)
    wanted = [
        (n, request) for n, claim in enumerate(claims) for request in claim.requests for _ in range(request.count)
    ]
    free = [one for one in have if one.id not in taken]

    def root(one: Published) -> str | None:
        return (one.device.attributes or {})[ROOT].text

    for chosen in itertools.permutations(free, len(wanted)):
        pairs = list(zip(wanted, chosen, strict=True))
        if any(request.device_class != one.id.driver for (_, request), one in pairs):
            continue
        if chosen and any(one.uses for one in chosen) and sum(used for one in chosen for _, used in one.uses) > left:
            continue
        if all(
            len({root(one) for (n, request), one in pairs if n == number and (not of or request.name in of)}) <= 1
            for number, claim in enumerate(claims)
            for _, of in claim.match
        ):
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_allocation_is_found_exactly_if_one_exists(data: st.DataObject) -> None:
    roots = st.lists(st.sampled_from("abc"), max_size=4)
    have = [*devices(*data.draw(roots)), *devices(*data.draw(roots), driver=NIC)]
    have = [replace(one, uses=((COUNTER, used),)) if (used := data.draw(st.integers(0, 2))) else one for one in have]
    total = data.draw(st.integers(0, 4))
    claims = [
        ClaimRequests(
            tuple(data.draw(st.lists(REQUESTS, min_size=1, max_size=2, unique_by=lambda one: one.name))),
            ((ROOT, data.draw(st.sampled_from([(), ("x",), ("x", "y")]))),) if data.draw(st.booleans()) else (),
        )
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    taken = {one.id for one in have if data.draw(st.integers(0, 3)) == 0}
    left = Left({COUNTER: total}, [one for one in have if one.id in taken])
    found = allocate(claims, have, taken, CLASSES, left)
    assert isinstance(found, str) is not exists(claims, have, taken, total), found
    assert allocate(claims, have, taken, CLASSES, left) == found, "a search leaves the counters unchanged"
    if not isinstance(found, str):
        ids = [one.device.id for one in found]
        assert len(set(ids)) == len(ids)
        assert not set(ids) & taken
        assert all(one.device.id.driver == one.request.device_class for one in found)
