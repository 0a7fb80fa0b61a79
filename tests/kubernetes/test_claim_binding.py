"""Allocations written into claims before a gang is bound, step by step, against an in-memory API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import UnreachableError
from scheduler_feedback.backends.kubernetes.attempts import attempt_lifecycle, claim_binding
from scheduler_feedback.backends.kubernetes.attempts.attempt_lifecycle import AttemptLifecycle
from scheduler_feedback.backends.kubernetes.attempts.claim_binding import Reservation, release_all, reserve_all
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Phase
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.core.events import ActionFailed
from tests.kubernetes.device_driver import class_body, first_available, gpu, request, slice_body
from tests.kubernetes.little_api import LittleApi, refused
from tests.kubernetes.makers import pod
from tests.kubernetes.test_attempt_lifecycle import PODS, Scene, attempt_of, bindings, bound, slots, start
from tests.kubernetes.test_device_cache import Site, results, user

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
LOST = UnreachableError("a request: no answer")
MINE = {"resource": "pods", "name": "a", "uid": "u-a"}
OTHER = {"resource": "pods", "name": "b", "uid": "u-b"}
ALLOCATION = results(("n1", "gpu-0"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(claim_binding, name, 0.0)
    monkeypatch.setattr(attempt_lifecycle, "PODS_SECONDS", 0.2)
    monkeypatch.setattr(attempt_lifecycle, "FREED_SECONDS", 0.2)
    monkeypatch.setattr(attempt_lifecycle, "_LOOK_SECONDS", 0.005)
    yield


def api(**status: Any) -> LittleApi:
    metadata = {"name": "c", "namespace": "default", "uid": "u-c", "resourceVersion": "7"}
    return LittleApi({f"{CLAIMS}/c": {"metadata": metadata, "spec": {}, "status": status}})


def status_of(server: LittleApi) -> dict[str, Any]:
    found: dict[str, Any] = server.objects[f"{CLAIMS}/c"]["status"]
    return found


def reserve(server: LittleApi, allocation: Any = ALLOCATION, uid: str = "u-a", *, still: bool = True) -> list[str]:
    wanted = [Reservation("default/c", uid[-1], uid, allocation)]
    return asyncio.run(asyncio.wait_for(reserve_all(server, wanted, lambda: still), 10))


def release(server: LittleApi, *uids: str) -> list[str]:
    return asyncio.run(asyncio.wait_for(release_all(server, [("default/c", uid) for uid in uids]), 10))


def test_a_claim_gets_its_finalizer_then_devices_and_pod_in_one_update() -> None:
    server = api()
    assert reserve(server) == []
    assert server.done == [("PATCH", f"{CLAIMS}/c"), ("PATCH", f"{CLAIMS}/c/status")]
    first, second = server.bodies
    assert first["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert first["metadata"]["resourceVersion"] == "7", "the server refuses it if the claim has changed"
    assert second["metadata"]["resourceVersion"] == "101"
    assert status_of(server) == {"allocation": ALLOCATION, "reservedFor": [MINE]}


def test_a_request_without_response_is_repeated_and_a_conflict_read_again() -> None:
    server = api()
    server.fails[("PATCH", f"{CLAIMS}/c/status")] = [LOST, refused(409, "Conflict"), None]
    assert reserve(server) == []
    assert status_of(server) == {"allocation": ALLOCATION, "reservedFor": [MINE]}
    again = api(allocation=ALLOCATION, reservedFor=[MINE])
    assert reserve(again) == []
    assert again.done == [], "an earlier request has written it"


def test_a_pod_joins_a_claim_that_has_these_devices_or_any() -> None:
    server = api(allocation=ALLOCATION, reservedFor=[OTHER])
    assert reserve(server, None) == []
    assert status_of(server) == {"allocation": ALLOCATION, "reservedFor": [OTHER, MINE]}


@pytest.mark.parametrize(
    ("status", "allocation", "words"),
    [
        ({"allocation": results(("n2", "gpu-0"))}, ALLOCATION, "allocated by another scheduler in the meantime"),
        ({}, None, "it has lost its devices"),
    ],
)
def test_a_claim_that_has_changed_is_not_written(status: dict[str, Any], allocation: Any, words: str) -> None:
    server = api(**status)
    (why,) = reserve(server, allocation)
    assert words in why
    assert why.startswith("pod a: claim c: ")
    assert server.done == []


def test_a_refusal_and_a_cancelled_start_are_errors() -> None:
    server = api()
    server.fails[("PATCH", f"{CLAIMS}/c/status")] = [refused(403, "Forbidden", "resourceclaims/binding")]
    assert reserve(server) == ["pod a: claim c: resourceclaims/binding"]
    assert "the start was cancelled" in reserve(api(), still=False)[0]
    server.objects.clear()
    assert reserve(server) == ["pod a: claim c: NotFound"]


def test_the_last_pod_of_a_claim_frees_its_devices() -> None:
    server = api(allocation=ALLOCATION, reservedFor=[OTHER, MINE])
    assert release(server, "u-a") == []
    assert status_of(server) == {"allocation": ALLOCATION, "reservedFor": [OTHER]}
    assert release(server, "u-a") == []
    assert release(server, "u-b") == []
    assert status_of(server) == {}
    server.objects.clear()
    assert release(server, "u-b") == [], "it is gone"


# --- in the start of a gang ------------------------------------------------------------------------------------------


class ClaimScene(Scene):
    """A gang of two lone pods' worth of claims on node n1, with two GPUs in a slice."""

    def __init__(self) -> None:
        super().__init__()
        site = Site("n1")
        self.cache = site.cache
        self.site = site

    def add(self, name: str, *requests: dict[str, Any]) -> None:
        one = self.site.pod(name, *requests)
        self.api.objects[f"{PODS}/{name}"] = msgspec.to_builtins(one)
        claim = self.cache.devices.claims[f"default/{name}-claim"]
        self.api.objects[f"{CLAIMS}/{name}-claim"] = msgspec.to_builtins(claim)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects[f"{CLAIMS}/{name}-claim"].get("status", {})
        return found


def test_claims_are_written_before_the_pod_is_bound() -> None:
    scene = ClaimScene()
    scene.add("a", request())
    attempt = attempt_of("default/a")
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))))
    assert [path.rpartition("/")[2] for _, path in scene.api.done] == ["a-claim", "status", "binding"]
    assert scene.status("a")["allocation"] == ALLOCATION
    assert attempt.phase is Phase.BOUND


def test_a_pod_that_cannot_be_bound_gives_its_devices_back() -> None:
    scene = ClaimScene()
    scene.add("a", request())
    scene.api.fails[("POST", f"{PODS}/a/binding")] = [refused(403, "Forbidden", "no")]
    scene.do(lambda carrier: carrier.start(attempt_of("default/a"), start(*slots("n1", 0))))
    assert scene.said == [ActionFailed("act", "j", "pod a: no")]
    assert scene.status("a") == {}
    assert scene.cache.devices.assumed("default/a-claim") is None
    assert scene.cache.free_of("n1")["resource.k8s.io/device"] == 2


def test_no_pod_is_bound_if_a_claim_cannot_be_written() -> None:
    scene = ClaimScene()
    scene.add("a", request())
    scene.api.fails[("PATCH", f"{CLAIMS}/a-claim/status")] = [refused(403, "Forbidden", "no right")]
    scene.do(lambda carrier: carrier.start(attempt_of("default/a"), start(*slots("n1", 0))))
    assert bindings(scene) == []
    assert scene.said == [ActionFailed("act", "j", "pod a: claim a-claim: no right")]


def test_abandoned_claims_of_a_pod_that_was_bound_in_the_meantime_are_kept() -> None:
    """The cache does not have the binding yet, which an earlier leader requested."""
    scene = ClaimScene()
    for name in "ab":
        scene.add(name, request())
        status = {"allocation": ALLOCATION, "reservedFor": [user(scene.cache.pods[f"default/{name}"])]}
        scene.api.objects[f"{CLAIMS}/{name}-claim"]["status"] = status
    scene.api.objects[f"{PODS}/b"]["spec"]["nodeName"] = "n1"
    claims = [(f"default/{name}-claim", scene.cache.pods[f"default/{name}"].metadata.uid) for name in "ab"]
    scene.do(lambda carrier: carrier.release_abandoned(claims))
    assert scene.status("a") == {}
    assert scene.status("b")["allocation"] == ALLOCATION
    del scene.api.objects[f"{PODS}/b"]
    scene.do(lambda carrier: carrier.release_abandoned(claims))
    assert scene.status("b") == {}, "it is gone"


def test_no_pod_is_bound_while_its_claim_is_released() -> None:
    """A new leader has begun to release the claims of an interrupted start, which it then continues."""
    scene = ClaimScene()
    scene.add("a", request())
    one = scene.cache.pods["default/a"]
    status = {"allocation": ALLOCATION, "reservedFor": [user(one)]}
    scene.site.claim("a-claim", request(), **status)
    scene.api.objects[f"{CLAIMS}/a-claim"]["status"] = status
    abandoned = scene.cache.abandoned_claims()
    assert abandoned == [("default/a-claim", one.metadata.uid)]
    attempt = attempt_of("default/a", 1, bound(one, "n1", bound=False))

    async def release_late(carrier: AttemptLifecycle) -> None:
        await asyncio.sleep(0.05)
        await carrier.release_abandoned(abandoned)

    async def go_on(carrier: AttemptLifecycle) -> None:
        carrier.hold(attempt)
        assert scene.cache.assume(one, "n1", adopts=True) == ""
        await carrier.bind(attempt)

    scene.do(go_on, release_late)
    assert bindings(scene) == [], "it has no devices any more"
    assert scene.said == [ActionFailed("act", "j", "pod a: claim a-claim: it has lost its devices")]
    assert not scene.cache.devices.releasing


def test_a_start_waits_for_devices_of_ended_pods_and_says_so_in_the_end() -> None:
    scene = ClaimScene()
    scene.add("a", request(count=2))
    old = scene.site.claim("old", request(), allocation=ALLOCATION, reservedFor=[MINE])

    async def free(_: Any) -> None:
        await asyncio.sleep(0.05)
        scene.site.change(msgspec.structs.replace(old, status=type(old.status)()))

    attempt = attempt_of("default/a")
    attempt.placement = slots("n1", 0, 1)
    scene.do(lambda carrier: carrier.start(attempt, start(*attempt.placement)), free)
    assert attempt.phase is Phase.BOUND
    scene = ClaimScene()
    scene.add("a", request(count=2))
    scene.site.claim("old", request(), allocation=ALLOCATION, reservedFor=[MINE])
    attempt = attempt_of("default/a")
    attempt.placement = slots("n1", 0, 1)
    scene.do(lambda carrier: carrier.start(attempt, start(*attempt.placement)))
    (failed,) = scene.said
    assert isinstance(failed, ActionFailed)
    assert "request gpu: 2 devices of class gpu.nvidia.com are requested, 1 of 2 are free" in failed.reason


def test_the_configuration_of_class_and_claim_is_part_of_the_allocation() -> None:
    """As kube-scheduler writes it: that of a class with its requests, then that of the claim."""
    scene = ClaimScene()
    scene.add("a", request("gpu"), request("second"), request("nic", "nic.example.com"))
    scene.site.publish("n1", [{"name": "vf-0"}], "nic.example.com")
    opaque = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}
    body = class_body()
    body["spec"]["config"] = [opaque]
    scene.cache.class_changed("gpu.nvidia.com", None, msgspec.convert(body, DeviceClass))
    claim = msgspec.to_builtins(scene.cache.devices.claims["default/a-claim"])
    claim["spec"]["devices"]["config"] = [{**opaque, "requests": ["second"]}]
    scene.site.change(msgspec.convert(claim, ResourceClaim))
    assert scene.cache.assume(scene.cache.pods["default/a"], "n1") == ""
    allocation = scene.cache.devices.assumed("default/a-claim")
    assert allocation is not None
    assert allocation["devices"]["config"] == [
        {**opaque, "source": "FromClass", "requests": ["gpu", "second"]},
        {**opaque, "source": "FromClaim", "requests": ["second"]},
    ]
    claim["spec"]["devices"]["requests"].pop()
    scene.cache.unassume(scene.cache.pods["default/a"].metadata.uid)
    scene.site.change(msgspec.convert(claim, ResourceClaim))
    assert scene.cache.assume(scene.cache.pods["default/a"], "n1") == ""
    allocation = scene.cache.devices.assumed("default/a-claim")
    assert allocation is not None
    assert allocation["devices"]["config"][0] == {**opaque, "source": "FromClass", "requests": []}, "it is for all"


def test_only_the_configuration_of_the_chosen_alternative_is_part_of_the_allocation() -> None:
    """The class of an alternative that was not used may be that of another driver."""
    nic = "nic.example.com"
    scene = ClaimScene()
    scene.add("a", request("gpu"), first_available("any", request("nic", nic), request("vf", nic)))
    scene.site.publish("n1", [{"name": "vf-0"}], nic)
    opaque = {"opaque": {"driver": nic, "parameters": {}}}
    claim = msgspec.to_builtins(scene.cache.devices.claims["default/a-claim"])
    concerned = (["any/vf"], ["any/nic"], ["any"], ["gpu", "any/nic"])
    claim["spec"]["devices"]["config"] = [{**opaque, "requests": one} for one in concerned]
    scene.site.change(msgspec.convert(claim, ResourceClaim))
    body = class_body(nic)
    body["spec"]["config"] = [opaque]
    scene.cache.class_changed(nic, None, msgspec.convert(body, DeviceClass))
    assert scene.cache.assume(scene.cache.pods["default/a"], "n1") == ""
    allocation = scene.cache.devices.assumed("default/a-claim")
    assert allocation is not None
    assert [one["request"] for one in allocation["devices"]["results"]] == ["gpu", "any/nic"]
    assert [(one["source"], one["requests"]) for one in allocation["devices"]["config"]] == [
        ("FromClass", ["any/nic"]),
        ("FromClaim", ["any/nic"]),
        ("FromClaim", ["any"]),
        ("FromClaim", []),
    ]


def test_devices_of_several_nodes_keep_the_slice_s_selector() -> None:
    scene = ClaimScene()
    term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}
    body = slice_body("wide", [gpu(7)], "nic.example.com", nodeSelector={"nodeSelectorTerms": [term]})
    scene.cache.slice_changed("wide", None, msgspec.convert(body, ResourceSlice))
    place = scene.cache.nodes["n1"]
    place.metadata.labels = {"rack": "a"}
    scene.add("a", request("nic", "nic.example.com"))
    assert scene.cache.assume(scene.cache.pods["default/a"], "n1") == ""
    allocation = scene.cache.devices.assumed("default/a-claim")
    assert allocation is not None
    assert allocation["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert scene.cache.assume(pod("plain", 0), "n1") == ""
