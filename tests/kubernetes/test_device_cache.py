"""Claims of gangs in the informer cache: amounts, nodes on which they fit, and who has the devices. No API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import DoesNotFitError, assign
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.translate import Gang, TopologyLabels, slots_of
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import Slot
from tests.kubernetes.device_driver import (
    GPU_CLASS,
    MIG_CLASS,
    claim_body,
    claiming,
    class_body,
    first_available,
    gpu,
    partitionable,
    profile,
    request,
    slice_body,
)
from tests.kubernetes.makers import group, node, pod, uid
from tests.kubernetes.test_attempt import add, cache_of, seen

NIC = "nic.example.com"
CHANNEL = "compute-domain-default-channel.nvidia.com"


class Site:
    """An informer cache with nodes that have GPUs and NICs only in slices."""

    def __init__(self, *names: str, gpus: int = 2, nics: int = 0) -> None:
        self.cache = cache_of(*names, gpus=0)
        for name in (GPU_CLASS, NIC, CHANNEL):
            self.cache.class_changed(name, None, msgspec.convert(class_body(name), DeviceClass))
        for name in names:
            self.publish(name, [gpu(number) for number in range(gpus)])
            if nics:
                self.publish(name, [{"name": f"vf-{number}"} for number in range(nics)], NIC)
        self.cache.take_dirty()

    def publish(self, name: str, devices: list[dict[str, Any]], driver: str = GPU_CLASS) -> None:
        one = msgspec.convert(slice_body(name, devices, driver), ResourceSlice)
        self.cache.slice_changed(one.metadata.name, None, one)

    def claim(self, name: str, *requests: dict[str, Any], owner: str = "", **status: Any) -> ResourceClaim:
        """Add a claim. owner: uid of the pod for which it was made; status: its status."""
        body = claim_body(name, *requests)
        body["metadata"] |= {"uid": uid(), "resourceVersion": "1"}
        if owner:
            reference = {"kind": "Pod", "name": name, "uid": owner, "controller": True}
            body["metadata"]["ownerReferences"] = [reference]
        one = msgspec.convert({**body, "status": status}, ResourceClaim)
        self.change(one)
        return one

    def change(self, one: ResourceClaim) -> None:
        key = one.metadata.key
        self.cache.device_claim_changed(key, self.cache.devices.claims.get(key), one)

    def pod(self, name: str, *requests: dict[str, Any], group: str = "", made: bool = True, **spec: Any) -> Pod:
        """Add a pod with a claim of its own for these requests. made: whether the claim controller has made it."""
        one = pod(name, 0, group, **claiming(template="t"), **spec)
        if made:
            self.claim(f"{name}-claim", *requests, owner=one.metadata.uid)
            self.name_claim(one)
        add(self.cache, one)
        return self.cache.pods[one.metadata.key]

    def name_claim(self, one: Pod) -> None:
        made = [{"name": "devices", "resourceClaimName": f"{one.metadata.name}-claim"}]
        one.status = msgspec.convert({"phase": "Pending", "resourceClaimStatuses": made}, type(one.status))

    def sharing(self, name: str, claim: str, gpus: int = 0, group: str = "", **spec: Any) -> Pod:
        """Add a pod that uses an existing claim."""
        fields = claiming(claim=claim)
        if gpus:
            fields["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = str(gpus)
        one = pod(name, 0, group, **fields, **spec)
        add(self.cache, one)
        return self.cache.pods[one.metadata.key]

    def gang(self, key: str) -> Gang:
        found = self.cache.gang(key)
        assert found is not None
        return found

    def want(self, key: str) -> Gang:
        gang = self.gang(key)
        assert gang.constraint is not None, gang.refused
        self.cache.want(gang.constraint, min(count for one in gang.pods if (count := slots_of(one))))
        return gang


def results(*devices: tuple[str, str], driver: str = GPU_CLASS) -> dict[str, Any]:
    """Return an allocation of these devices (node, name)."""
    made = [{"request": "gpu", "driver": driver, "pool": where, "device": name} for where, name in devices]
    field = {"key": "metadata.name", "operator": "In", "values": [devices[0][0]]}
    return {"devices": {"results": made}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def user(one: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": one.metadata.name, "uid": one.metadata.uid}


# --- what a pod's claims count for -----------------------------------------------------------------------------------


def test_devices_of_a_slot_class_are_the_slots_of_nodes_and_pods() -> None:
    site = Site("n1", "n2", gpus=4)
    assert {name: (one.slots, one.present) for name, one in seen(site.cache).items()} == {
        "n1": (4, True),
        "n2": (4, True),
    }
    one = site.pod("a", request(count=3))
    assert slots_of(one) == 3
    spec = site.gang("default/a").spec
    assert spec is not None
    assert spec.ranks == 3
    assert ("resource.k8s.io/device", 3) in spec.requests


def test_a_class_can_be_declared_to_be_no_slots() -> None:
    site = Site("n1")
    labels = {"gangwatch.io/slots": "false"}
    changed = msgspec.convert(class_body(labels=labels), DeviceClass)
    site.cache.class_changed(GPU_CLASS, None, changed)
    assert seen(site.cache)["n1"].slots == 0
    site.pod("a", request())
    assert "none of its pods requests a GPU" in site.gang("default/a").refused
    labels = {"gangwatch.io/slots": "true"}
    site.cache.class_changed(GPU_CLASS, changed, msgspec.convert(class_body(labels=labels), DeviceClass))
    site.cache.take_dirty()
    assert site.gang("default/a").refused == ""


def test_a_gang_waits_until_each_claim_has_been_made_from_its_template() -> None:
    site = Site("n1")
    one = site.pod("a", made=False)
    assert (site.gang("default/a").spec, site.gang("default/a").refused) == (None, "")
    made = msgspec.convert(msgspec.to_builtins(one), Pod)
    site.name_claim(made)
    add(site.cache, made)
    assert site.gang("default/a").spec is None, "the watch of claims lags behind that of pods"
    site.claim("a-claim", request(), owner=one.metadata.uid)
    assert site.gang("default/a").spec is not None


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (
            [request("r", GPU_CLASS, "device.driver.foo()")],
            "pod a: claim a-claim: request r: cannot evaluate 'device.driver.foo()': undeclared reference to 'foo'",
        ),
        ([request("r", "absent")], "pod a: claim a-claim: request r: device class absent does not exist"),
        ([{"name": "r", "firstAvailable": []}], "request r: it is of a kind that is not implemented"),
        ([request("r", derivedAttributes=[{}])], "request r: derived attributes are not implemented"),
        ([request("r", capacity={"requests": {"memory": "x"}})], "request r: capacity memory: 'x' is not a quantity"),
        (
            [first_available("r", request("big", count=1), request("small", count=2))],
            "request r: its alternatives ask for different numbers of devices (1, 2), so the number of the gang's "
            "ranks would depend on the nodes",
        ),
        (
            [first_available("r", request("gpu"), request("nic", NIC))],
            "request r: some of its alternatives are slots (GPUs) and others are not",
        ),
        (
            [first_available("r", request("all", allocationMode="All"))],
            "request r: allocation mode All is not implemented in firstAvailable",
        ),
        ([request("r", adminAccess=True)], "none of its pods requests a GPU"),
    ],
)
def test_an_unsupported_claim_is_refused_with_its_reason(requests: list[dict[str, Any]], words: str) -> None:
    site = Site("n1")
    site.pod("a", *requests)
    gang = site.gang("default/a")
    assert gang.spec is None
    assert words in gang.refused


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "1"}}}]},
            "uses counters that its pool does not have",
        ),
        ({"allowMultipleAllocations": True}, "can be allocated to several claims (consumable capacity)"),
    ],
)
def test_a_claim_that_only_unsupported_devices_match_is_refused(fields: dict[str, Any], why: str) -> None:
    """It would otherwise wait for ever, because nodes have no device that matches."""
    site = Site("n1", gpus=0)
    site.pod("a", request("r"))
    assert site.gang("default/a").refused == "", "a driver may publish devices later"
    site.publish("n1", [{**gpu(0), **fields}])
    site.cache.take_dirty()
    words = f"request r: only devices of class {GPU_CLASS} match that gangwatch does not allocate: each {why}"
    assert words in site.gang("default/a").refused
    site.cache.node_changed("n2", None, node("n2", 0))
    site.publish("n2", [gpu(0)])
    site.cache.take_dirty()
    assert site.gang("default/a").refused == "", "another node has a device"


class MigSite(Site):
    """Nodes with GPUs that a driver divides on demand."""

    def __init__(self, *names: str, gpus: int = 1) -> None:
        super().__init__(*names, gpus=0)
        body = class_body(MIG_CLASS, f'device.attributes["{GPU_CLASS}"].type == "mig"')
        self.cache.class_changed(MIG_CLASS, None, msgspec.convert(body, DeviceClass))
        body = class_body(GPU_CLASS, f'device.attributes["{GPU_CLASS}"].type == "gpu"')
        self.cache.class_changed(GPU_CLASS, None, msgspec.convert(body, DeviceClass))
        devices, sets = partitionable(gpus)
        for name in names:
            whole = slice_body(name, devices, count=2)
            counters = slice_body(name, [], count=2)
            counters["metadata"]["name"] += "-counters"
            counters["spec"]["sharedCounters"] = sets
            for body in (whole, counters):
                one = msgspec.convert(body, ResourceSlice)
                self.cache.slice_changed(one.metadata.name, None, one)
        self.cache.take_dirty()

    def mig(self, name: str, kind: str) -> Pod:
        found = self.pod(name, request("mig", MIG_CLASS, profile(kind)))
        self.want(f"default/{name}")
        return found

    def room(self, one: Pod, place: str = "n1") -> int:
        """Return how many devices like the pod's the node has left."""
        (name,) = (key for key in requests_of(one) if key.startswith("deviceclass/"))
        return self.cache.free_of(place).get(name, 0)


def test_partitions_of_a_gpu_are_allocated_as_far_as_its_counters_go() -> None:
    site = MigSite("n1")
    assert seen(site.cache)["n1"].slots == 7, "the most instances that are possible together"
    small, large = [site.mig(f"small-{n}", "1g") for n in range(8)], [site.mig(f"large-{n}", "3g") for n in range(3)]
    whole = site.pod("whole", request("gpu"))
    assert (site.room(small[0]), site.room(large[0]), site.room(whole)) == (7, 2, 1)
    assert site.cache.assume(large[0], "n1") == ""
    assert (site.room(small[0]), site.room(large[0]), site.room(whole)) == (4, 1, 0)
    assert "0 of 1 are free" in site.cache.assume(whole, "n1")
    assert [site.cache.assume(one, "n1") for one in small[:4]] == [""] * 4
    assert (site.room(small[0]), site.room(large[0])) == (0, 0)
    assert "are free" in site.cache.assume(small[4], "n1") and "are free" in site.cache.assume(large[1], "n1")
    site.cache.unassume(large[0].metadata.uid)
    assert (site.room(small[0]), site.room(large[0])) == (3, 1), "four instances of 1g remain"
    assert site.cache.assume(large[1], "n1") == ""
    for one in (large[1], *small[:4]):
        site.cache.unassume(one.metadata.uid)
    assert site.cache.assume(whole, "n1") == ""
    assert (site.room(small[0]), site.room(large[0])) == (0, 0)


def test_partitions_that_a_claim_of_others_has_are_not_left() -> None:
    site = MigSite("n1", gpus=2)
    small = site.mig("small", "1g")
    other = {"resource": "pods", "name": "theirs", "uid": "u-theirs"}
    add(site.cache, msgspec.structs.replace(pod("theirs", 0, schedulerName="another", nodeName="n1")))
    theirs = site.cache._usage.pods("n1")
    status = {"allocation": results(("n1", "gpu-0")), "reservedFor": [{**other, "uid": next(iter(theirs))}]}
    claim = msgspec.convert({**claim_body("theirs", request()), "status": status}, ResourceClaim)
    site.change(claim)
    assert site.room(small) == 7
    assert seen(site.cache)["n1"].slots == 7
    site.change(msgspec.convert(claim_body("theirs", request()), ResourceClaim))
    assert site.room(small) == 14


def test_one_pod_with_several_partitions_gets_them_from_what_is_left() -> None:
    """The first choices are revised: two instances of 3g leave no room for two of 1g on a GPU, but two GPUs do."""
    site = MigSite("n1", gpus=2)
    large = request("large", MIG_CLASS, profile("3g"), count=4)
    small = request("small", MIG_CLASS, profile("1g"), count=2)
    assert site.cache.assume(site.pod("a", large), "n1") == ""
    assert "request" in site.cache.assume(site.pod("b", small), "n1"), "their memory is used"
    site = MigSite("n1")
    both = (request("large", MIG_CLASS, profile("3g"), count=2), request("small", MIG_CLASS, profile("1g")))
    assert "together" in site.cache.assume(site.pod("a", *both), "n1")
    either = first_available("either", both[0], request("one", MIG_CLASS, profile("1g"), count=2))
    assert site.cache.assume(site.pod("b", either, both[1]), "n1") == "", "the second alternative leaves enough"
    site = MigSite("n1", gpus=2)
    large = request("large", MIG_CLASS, profile("3g"), count=3)
    assert site.cache.assume(site.pod("a", large, small), "n1") == ""
    body = site.cache.devices.assumed("default/a-claim")
    assert body is not None
    names = [one["device"] for one in body["devices"]["results"]]
    assert len(names) == len(set(names)) == 5


def test_each_pod_gets_the_alternative_that_its_node_has() -> None:
    """Nodes of one cluster have GPUs of different classes, and the gang takes both."""
    other = "gpu.amd.com"
    site = Site("n1", "n2", gpus=0)
    body = class_body(other, labels={"gangwatch.io/slots": "true"})
    site.cache.class_changed(other, None, msgspec.convert(body, DeviceClass))
    site.publish("n1", [gpu(0)])
    site.publish("n2", [gpu(0)], other)
    site.cache.take_dirty()
    either = first_available("gpu", request("nvidia"), request("amd", other))
    pods = [site.pod(name, either, group="g") for name in ("a", "b")]
    site.cache.group_changed("default/g", None, group("g", 2))
    site.want("default/g")
    assert {name: (one.slots, one.refuses) for name, one in seen(site.cache).items()} == {
        "n1": (1, ()),
        "n2": (1, ()),
    }
    assert [site.cache.assume(one, place) for one, place in zip(pods, ("n1", "n2"), strict=True)] == ["", ""]
    bodies = [site.cache.devices.assumed(f"default/{name}-claim") for name in ("a", "b")]
    names = [one["devices"]["results"][0]["request"] for one in bodies if one is not None]
    assert names == ["gpu/nvidia", "gpu/amd"]


def test_a_pod_with_admin_access_takes_no_devices() -> None:
    site = Site("n1")
    one = site.pod("a", request("work", count=2), request("watch", NIC, adminAccess=True))
    site.publish("n1", [{"name": "vf-0"}], NIC)
    site.claim("other", request("nic", NIC), allocation=results(("n1", "vf-0"), driver=NIC))
    site.want("default/a")
    assert seen(site.cache)["n1"].refuses == ()
    assert site.cache.assume(one, "n1") == ""
    body = site.cache.devices.assumed("default/a-claim")
    assert body is not None
    assert [(one["device"], one.get("adminAccess")) for one in body["devices"]["results"]] == [
        ("gpu-0", None),
        ("gpu-1", None),
        ("vf-0", True),
    ]


def test_an_unsupported_expression_of_a_class_is_named() -> None:
    site = Site("n1")
    body = class_body("odd", "device.attributes['x'].y.isSorted()")
    site.cache.class_changed("odd", None, msgspec.convert(body, DeviceClass))
    site.pod("a", request("r", "odd"))
    assert "claim a-claim: class odd: cannot evaluate" in site.gang("default/a").refused
    assert seen(site.cache)["n1"].slots == 2, "other classes work"


def test_claims_are_refused_by_an_api_server_without_them() -> None:
    site = Site("n1")
    site.pod("a", request())
    site.cache.set_served(devices=False, networks=False)
    site.cache.take_dirty()
    assert "from Kubernetes 1.34 on" in site.gang("default/a").refused
    site.cache.set_served(devices=True, networks=False)
    assert "default/a" in site.cache.take_dirty()
    assert site.gang("default/a").refused == ""


def test_a_request_for_all_devices_counts_those_of_a_node() -> None:
    site = Site("n1", "n2", gpus=4)
    assert slots_of(site.pod("a", request(allocationMode="All"))) == 4
    site.publish("n3", [gpu(0)])
    site.cache.take_dirty()
    assert "of which nodes have different numbers: 1, 4" in site.gang("default/a").refused


def test_a_shared_claim_counts_for_its_first_pod() -> None:
    site = Site("n1")
    site.claim("both", request())
    site.cache.group_changed("default/g", None, group("g", 2))
    first, second = site.sharing("g-0", "both", group="g"), site.sharing("g-1", "both", group="g")
    assert [slots_of(site.cache.pods[one.metadata.key]) for one in (first, second)] == [1, 0]
    gang = site.want("default/g")
    assert gang.spec is not None
    assert gang.spec.ranks == 1
    members = assign(site.cache, gang.pods, [Slot("n1", 0)])
    assert [member.node for member in members] == ["n1", "n1"]
    assert site.cache.free_of("n1")["deviceclass/gpu.nvidia.com"] == 1
    site.cache.pod_changed(first.metadata.key, site.cache.pods[first.metadata.key], None)
    assert slots_of(site.cache.pods[second.metadata.key]) == 1, "it is the only one now"


# --- where a gang fits -----------------------------------------------------------------------------------------------


def test_other_devices_limit_the_pods_of_a_node() -> None:
    site = Site("n1", gpus=4, nics=2)
    site.pod("a", request(), request("nic", NIC))
    gang = site.want("default/a")
    (limit,) = seen(site.cache)["n1"].limits
    assert gang.constraint is not None
    assert (limit.constraint, limit.pods, limit.most_pods) == (gang.constraint.name, 2, 2)
    assert dict(seen(site.cache)["n1"].free)["deviceclass/nic.example.com"] == 2


def test_gpus_alone_limit_nothing_more_than_slots_do() -> None:
    site = Site("n1", gpus=4)
    site.pod("a", request())
    site.want("default/a")
    assert seen(site.cache)["n1"].limits == ()


def test_all_pods_of_a_gang_get_devices_or_none_does() -> None:
    site = Site("n1", gpus=2)
    site.cache.group_changed("default/g", None, group("g", 3))
    for number in range(3):
        site.pod(f"g-{number}", request(), group="g")
    gang = site.want("default/g")
    with pytest.raises(DoesNotFitError, match=r"pod g-2 does not fit on n1: deviceclass/gpu\.nvidia\.com: 1 "):
        assign(site.cache, gang.pods, [Slot("n1", number) for number in range(3)])
    assert site.cache.free_of("n1")["deviceclass/gpu.nvidia.com"] == 2
    assert all(site.cache.devices.assumed(f"default/g-{number}-claim") is None for number in range(3))


def test_devices_are_chosen_before_the_claims_are_written_and_not_twice() -> None:
    site = Site("n1", gpus=2)
    one, two = site.pod("a", request()), site.pod("b", request())
    for each in (one, two):
        assert site.cache.assume(each, "n1") == ""
    chosen = [site.cache.devices.assumed(f"default/{name}-claim") for name in "ab"]
    assert chosen == [results(("n1", "gpu-0")), results(("n1", "gpu-1"))]
    three = site.pod("c", request())
    assert "1 devices of class gpu.nvidia.com are requested, 0 of 2 are free" in site.cache.assume(three, "n1")
    site.cache.unassume(one.metadata.uid)
    assert site.cache.assume(three, "n1") == ""
    assert site.cache.devices.assumed("default/c-claim") == results(("n1", "gpu-0"))


def test_a_device_of_several_nodes_is_not_chosen_on_two_of_them() -> None:
    site = Site("n1", "n2")
    body = slice_body("wide", [{"name": "wide-0"}], NIC, allNodes=True)
    site.cache.slice_changed("wide", None, msgspec.convert(body, ResourceSlice))
    one, two = site.pod("a", request(), request("nic", NIC)), site.pod("b", request(), request("nic", NIC))
    assert site.cache.assume(one, "n1") == ""
    assert "request nic: 1 devices of class nic.example.com are requested, 0 of 1 are free" in site.cache.assume(
        two, "n2"
    )
    site.cache.unassume(one.metadata.uid)
    assert site.cache.assume(two, "n2") == ""


def test_pods_of_others_take_slots_and_ended_pods_do_not() -> None:
    site = Site("n1", gpus=4)
    other = pod("other", 0, schedulerName="x", nodeName="n1")
    add(site.cache, other)
    site.claim("theirs", request(), allocation=results(("n1", "gpu-0")), reservedFor=[user(other)])
    assert seen(site.cache)["n1"].slots == 3
    site.cache.pod_changed(other.metadata.key, other, None)
    site.claim("theirs", request(), allocation=results(("n1", "gpu-0")), reservedFor=[user(other)])
    assert seen(site.cache)["n1"].slots == 4, "the claim controller is about to free the device"
    mine = site.pod("a", request(count=4))
    assert site.cache.is_releasing(mine, "n1")
    assert "3 of 4 are free" in site.cache.assume(mine, "n1"), "until then no other claim gets it"
    site.claim("theirs", request())
    assert not site.cache.is_releasing(mine, "n1")
    assert site.cache.assume(mine, "n1") == ""


def test_a_running_gang_s_devices_stay_slots_of_its_node() -> None:
    site = Site("n1", gpus=2)
    one = site.pod("a", request(), nodeName="n1")
    site.cache.hold(one.metadata.uid, Place("j", 1, "n1", range(1)))
    claim = site.cache.devices.claims["default/a-claim"]
    status = msgspec.convert({"allocation": results(("n1", "gpu-1")), "reservedFor": [user(one)]}, type(claim.status))
    site.change(msgspec.structs.replace(claim, status=status))
    assert seen(site.cache)["n1"].slots == 2
    assert site.cache.free_of("n1")["resource.k8s.io/device"] == 1
    other = site.pod("b", request())
    assert site.cache.assume(other, "n1") == ""
    assert site.cache.devices.assumed("default/b-claim") == results(("n1", "gpu-0"))


def test_a_pod_that_joins_an_allocated_claim_goes_to_its_node() -> None:
    site = Site("n1", "n2")
    holder = pod("holder", 0, schedulerName="x", nodeName="n2")
    add(site.cache, holder)
    site.claim(
        "shared", request("nic", NIC), allocation=results(("n2", "vf-0"), driver=NIC), reservedFor=[user(holder)]
    )
    for name in ("n1", "n2"):  # and GPUs of a device plug-in
        site.cache.node_changed(name, None, node(name, 8))
    joins = site.sharing("joins", "shared", gpus=1)
    assert slots_of(joins) == 1
    constraint = constraint_of(joins)
    assert "devices that cannot be used there" in site.cache.why_not(constraint, "n1")
    assert site.cache.why_not(constraint, "n2") == ""
    assert site.cache.assume(joins, "n2") == ""
    assert site.cache.devices.assumed("default/shared") is None, "only the reservation is written"


def test_claims_of_unbound_pods_without_an_attempt_are_abandoned() -> None:
    site = Site("n1")
    one, two, bound = site.pod("a", request()), site.pod("b", request()), site.pod("c", request(), nodeName="n1")
    for each in (one, two, bound):
        claim = site.cache.devices.claims[f"default/{each.metadata.name}-claim"]
        body = {"allocation": results(("n1", "gpu-0")), "reservedFor": [user(each)]}
        site.change(msgspec.structs.replace(claim, status=msgspec.convert(body, type(claim.status))))
    site.cache.hold(two.metadata.uid, Place("j", 1, "n1", range(1)))
    assert site.cache.abandoned_claims() == [("default/a-claim", one.metadata.uid)]
    site.cache.release(two.metadata.uid)
    assert sorted(site.cache.abandoned_claims()) == [
        ("default/a-claim", one.metadata.uid),
        ("default/b-claim", two.metadata.uid),
    ], "the attempt has ended"


def test_devices_of_an_interrupted_start_are_kept_only_if_the_start_continues() -> None:
    site = Site("n1")
    one = site.pod("a", request())
    claim = site.cache.devices.claims["default/a-claim"]
    body = {"allocation": results(("n1", "gpu-0")), "reservedFor": [user(one)]}
    site.change(msgspec.structs.replace(claim, status=msgspec.convert(body, type(claim.status))))
    one = site.cache.pods["default/a"]
    assert site.cache.assume(one, "n1") == "claim a-claim still has the devices of an earlier attempt"
    assert site.cache.is_releasing(one, "n1")
    assert site.cache.assume(one, "n1", adopts=True) == ""


def test_a_gang_with_channels_of_a_compute_domain_lies_in_one_clique() -> None:
    """A ComputeDomain connects nodes of one NVLink domain, whose label is nvidia.com/gpu.clique."""
    site = Site("n1")
    site.publish("n1", [{"name": "channel-0"}], CHANNEL)
    site.cache.take_dirty()
    site.pod("a", request(), request("channel", CHANNEL))
    spec = site.gang("default/a").spec
    assert spec is not None
    assert spec.required_level is Level.ISLAND
    assert spec.ranks == 1, "a channel is no slot"
    site.pod("b", request())
    plain = site.gang("default/b").spec
    assert plain is not None
    assert plain.required_level is None


def test_a_pod_with_both_kinds_of_gpu_is_refused() -> None:
    site = Site("n1")
    site.claim("c", request())
    site.sharing("a", "c", gpus=1)
    assert "several kinds of accelerator" in site.gang("default/a").refused


def test_a_cache_without_slices_has_no_devices() -> None:
    cache = InformerCache("gangwatch", TopologyLabels())
    cache.node_changed("n1", None, node("n1", 8))
    assert seen(cache)["n1"].slots == 8
    assert "resource.k8s.io/device" not in cache.free_of("n1")
