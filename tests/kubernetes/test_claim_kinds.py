"""Claims of every kind on a real API server: alternatives, admin access, capacity, partitions, ComputeDomains; and
networks of Multus.

The API server validates what gangwatch writes into the claims. Kinds that gangwatch does not allocate are refused with
their reason in the condition of the gang. Objects of NVIDIA's driver and of Multus are made as their public source and
documentation describe them; the programs themselves do not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.kubernetes import device_driver as driver
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, install_crds, needs_manager, running, wait_for

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

OTHER = "gpu.example.com"
NIC = "nic.example.com"
CHANNEL = "compute-domain-default-channel.nvidia.com"
CLIQUE = "nvidia.com/gpu.clique"
CLAIMS = f"{driver.API}/namespaces/default/resourceclaims"
TEMPLATES = f"{driver.API}/namespaces/default/resourceclaimtemplates"


def add_class(api: Api, *names: str, slots: bool = False) -> None:
    for name in names:
        labels = {"gangwatch.io/slots": "true"} if slots else {}
        api.create(f"{driver.API}/deviceclasses", driver.class_body(name, labels=labels))


def refused(cluster: Cluster, gang: str) -> str:
    """Wait until the gang is refused, and return the message of its condition. Fails if no event has it, too."""
    found = wait_for("it says why", lambda: cluster.condition(gang))
    assert found["reason"] == "Refused", found

    def told() -> bool:
        events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
        return any(one["involvedObject"]["name"] == gang and found["message"] in one["message"] for one in events)

    wait_for("an event has the message", told)
    return found["message"]


def devices_of(api: Api) -> dict[str, tuple[str, str]]:
    """Return the request and the device of each claim that has exactly one device."""
    found = {}
    for claim in driver.claims(api):
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        found[claim["metadata"]["name"]] = (result["request"], result["device"])
    return found


def test_pods_of_a_gang_get_the_alternatives_that_their_nodes_have(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    """Neither class has enough devices for the gang. kube-controller-manager makes the claims."""
    needs_manager(plane)
    api = cluster.api
    add_class(api, driver.GPU_CLASS)
    add_class(api, OTHER, slots=True)
    cluster.add_nodes("n1", "n2", gpus=0)
    driver.publish(api, "n1", [driver.gpu(0)])
    driver.publish(api, "n2", [driver.gpu(0)], OTHER)
    either = driver.first_available("gpu", driver.request("nvidia"), driver.request("other", OTHER))
    api.create(TEMPLATES, driver.template_body("either", either))
    cluster.add_gang("gang", 2, gpus=0, **driver.claiming(template="either"))
    with running(access, folder) as it:
        wait_for("it is bound", lambda: cluster.bound("gang") == 2, 30)
        assert sorted(devices_of(api).values()) == [("gpu/nvidia", "gpu-0"), ("gpu/other", "gpu-0")]
        assert {job.attempt for job in it.jobs().values()} == {1}, "no start has failed"


def test_alternatives_of_different_sizes_are_refused(cluster: Cluster, access: Access, folder: Path) -> None:
    api = cluster.api
    add_class(api, driver.GPU_CLASS)
    cluster.add_nodes("n1", gpus=0)
    driver.publish(api, "n1", [driver.gpu(0)])
    either = driver.first_available("gpu", driver.request("one"), driver.request("two", count=2))
    api.create(CLAIMS, driver.claim_body("mine", either))
    cluster.add_gang("gang", 1, gpus=0, **driver.claiming(claim="mine"))
    with running(access, folder):
        assert refused(cluster, "gang").startswith(
            "pod gang-0: claim mine: request gpu: its alternatives ask for different numbers of devices (1, 2)"
        )


def test_a_claim_with_admin_access_gets_devices_that_others_have(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    """The namespace must allow admin access. The gang's own GPU is its only slot."""
    api = cluster.api
    add_class(api, driver.GPU_CLASS, NIC)
    cluster.add_nodes("n1", gpus=0)
    driver.publish(api, "n1", [driver.gpu(number) for number in range(2)])
    driver.publish(api, "n1", [{"name": "vf-0"}], NIC)
    labels = "/api/v1/namespaces/default"
    api.patch(labels, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    try:
        for name in ("first", "second"):
            watching = driver.request("watch", driver.GPU_CLASS, allocationMode="All", adminAccess=True)
            nic = driver.request("nic", NIC, adminAccess=True)
            wanted = driver.claim_body(name, driver.request("work"))
            api.create(CLAIMS, wanted)
            api.create(CLAIMS, driver.claim_body(f"{name}-admin", watching, nic))
            spec = driver.claiming(claim=name)
            spec["resourceClaims"].append({"name": "admin", "resourceClaimName": f"{name}-admin"})
            cluster.add_gang(name, 1, gpus=0, **spec)
        with running(access, folder):
            for name in ("first", "second"):
                wait_for(f"{name} is bound", lambda name=name: cluster.bound(name) == 1, 30)
        found = {claim["metadata"]["name"]: claim["status"]["allocation"]["devices"] for claim in driver.claims(api)}
        for name in ("first-admin", "second-admin"):
            results = found[name]["results"]
            assert [(one["device"], one["adminAccess"]) for one in results] == [
                ("gpu-0", True),
                ("gpu-1", True),
                ("vf-0", True),
            ]
        assert {found[name]["results"][0]["device"] for name in ("first", "second")} == {"gpu-0", "gpu-1"}
    finally:
        api.patch(labels, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": None}}})


def test_a_request_for_a_capacity_gets_a_device_that_has_it(cluster: Cluster, access: Access, folder: Path) -> None:
    api = cluster.api
    add_class(api, driver.GPU_CLASS)
    cluster.add_nodes("n1", "n2", gpus=0)
    driver.publish(api, "n1", [{**driver.gpu(0), "capacity": {"memory": {"value": "80Gi"}}}])
    driver.publish(api, "n2", [driver.gpu(0)])
    large = driver.request("gpu", capacity={"requests": {"memory": "100Gi"}})
    api.create(CLAIMS, driver.claim_body("large", large))
    cluster.add_gang("gang", 1, gpus=0, **driver.claiming(claim="large"))
    with running(access, folder):
        wait_for("it is bound", lambda: cluster.bound("gang") == 1, 30)
        assert set(cluster.nodes_of("gang").values()) == {"n2"}


RANGE = {"default": "10Gi", "validRange": {"min": "10Gi", "max": "80Gi", "step": "10Gi"}}


def test_devices_that_serve_several_claims_are_refused(cluster: Cluster, access: Access, folder: Path) -> None:
    """The API server of this release has them. A driver that publishes whole devices later is enough."""
    api = cluster.api
    add_class(api, driver.GPU_CLASS)
    cluster.add_nodes("n1", gpus=0)
    device = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi", "requestPolicy": RANGE}}}
    driver.publish(api, "n1", [{**driver.gpu(0), **device}])
    half = driver.request("gpu", capacity={"requests": {"memory": "40Gi"}})
    api.create(CLAIMS, driver.claim_body("half", half))
    cluster.add_gang("gang", 1, gpus=0, **driver.claiming(claim="half"))
    with running(access, folder):
        assert refused(cluster, "gang") == (
            f"pod gang-0: claim half: request gpu: only devices of class {driver.GPU_CLASS} match that gangwatch does "
            "not allocate: each can be allocated to several claims (consumable capacity)"
        )
        cluster.add_nodes("n2", gpus=0)
        driver.publish(api, "n2", [driver.gpu(0)])
        wait_for("it is bound", lambda: cluster.bound("gang") == 1, 30)


def test_gangs_get_instances_of_gpus_that_are_divided_on_demand(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path
) -> None:
    """The API server accepts the slices of a driver with dynamic MIG. No GPU is divided into more than it has."""
    needs_manager(plane)
    api = cluster.api
    kind = f'device.attributes["{driver.GPU_CLASS}"].type'
    for name, value in ((driver.GPU_CLASS, "gpu"), (driver.MIG_CLASS, "mig")):
        api.create(f"{driver.API}/deviceclasses", driver.class_body(name, f'{kind} == "{value}"'))
    cluster.add_nodes("n1", "n2", gpus=0)
    for node in ("n1", "n2"):
        devices, sets = driver.partitionable(1)
        driver.publish(api, node, devices, count=2)
        counters = driver.slice_body(node, [], count=2)
        counters["metadata"]["name"] = f"{node}-counters"
        del counters["spec"]["devices"]
        api.create(f"{driver.API}/resourceslices", {**counters, "spec": {**counters["spec"], "sharedCounters": sets}})
    templates = f"{driver.API}/namespaces/default/resourceclaimtemplates"
    for profile in driver.MIG:
        wanted = driver.request("mig", driver.MIG_CLASS, driver.profile(profile))
        api.create(templates, driver.template_body(f"mig-{profile}", wanted))
    api.create(templates, driver.template_body("whole", driver.request("gpu")))
    with running(access, folder):
        cluster.add_gang("large", 3, gpus=0, **driver.claiming(template="mig-3g"))
        wait_for("the large instances are allocated", lambda: cluster.bound("large") == 3, 60)
        cluster.add_gang("small", 4, gpus=0, **driver.claiming(template="mig-1g"))
        wait_for("the small instances are allocated", lambda: cluster.bound("small") == 4, 60)
        cluster.add_gang("whole", 1, gpus=0, **driver.claiming(template="whole"))
        wait_for("a whole GPU waits", lambda: cluster.condition("whole"))
        used: dict[str, list[int]] = {"n1": [0, 0], "n2": [0, 0]}
        for pool, device in driver.allocated(api):
            compute, memory, _ = driver.MIG[device.split("-")[3]]
            used[pool] = [used[pool][0] + compute, used[pool][1] + memory]
        assert all(compute <= 7 and memory <= 8 for compute, memory in used.values()), used
        assert cluster.bound("whole") == 0
        for name in [f"{gang}-{n}" for gang, count in (("large", 3), ("small", 4)) for n in range(count)]:
            api.delete(f"/api/v1/namespaces/default/pods/{name}")
        wait_for("the whole GPU is allocated", lambda: cluster.bound("whole") == 1, 60)


# --- objects of NVIDIA's driver and of Multus ------------------------------------------------------------------------


def definition(folder: Path, group: str, version: str, kind: str, plural: str) -> Path:
    """Write a definition without a schema of its own, and return its folder."""
    schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    body: Mapping[str, Any] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }
    made = folder.parent / "definitions"
    made.mkdir()
    (made / "one.yaml").write_text(yaml.safe_dump(dict(body)))
    return made


def test_a_gang_with_a_compute_domain_lies_in_one_clique(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    """Two NVLink domains of two nodes. A gang of four would fit only across both, so it waits."""
    needs_manager(plane)
    api = cluster.api
    made = definition(folder, "resource.nvidia.com", "v1beta1", "ComputeDomain", "computedomains")
    install_crds(api, made)
    try:
        add_class(api, driver.GPU_CLASS, CHANNEL)
        for number in range(4):
            cluster.add_nodes(f"n{number}", gpus=0, **{CLIQUE: f"domain.{number // 2}"})
            driver.publish(api, f"n{number}", [driver.gpu(0)])
            driver.publish(api, f"n{number}", [{"name": "channel-0"}], CHANNEL)
        for name in ("large", "small"):
            domain = {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
            metadata = {"name": name, "namespace": "default"}
            body = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": metadata}
            path = "/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains"
            uid = api.create(path, {**body, "spec": domain})["metadata"]["uid"]
            # What NVIDIA's controller makes from it:
            parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}
            opaque = {"driver": CHANNEL, "parameters": {**parameters, "domainID": uid}}
            config = [{"requests": ["channel"], "opaque": opaque}]
            template = driver.template_body(f"{name}-channel", driver.request("channel", CHANNEL), config=config)
            api.create(TEMPLATES, template)
        api.create(TEMPLATES, driver.template_body("one-gpu", driver.request()))
        for name, members in (("large", 4), ("small", 2)):
            spec = driver.claiming(template="one-gpu")
            spec["resourceClaims"].append({"name": "channel", "resourceClaimTemplateName": f"{name}-channel"})
            spec["containers"][0]["resources"]["claims"].append({"name": "channel"})
            cluster.add_gang(name, members, gpus=0, **spec)
        with running(access, folder):
            wait_for("the small gang is bound", lambda: cluster.bound("small") == 2, 30)
            assert sorted(cluster.nodes_of("small").values()) in (["n0", "n1"], ["n2", "n3"])
            condition = wait_for("the large gang says why", lambda: cluster.condition("large"))
            assert "island" in condition["message"], condition
            assert cluster.bound("large") == 0
        channels = [claim for claim in driver.claims(api) if "channel" in claim["metadata"]["name"]]
        configured = [claim["status"]["allocation"]["devices"]["config"] for claim in channels if claim.get("status")]
        assert len(configured) == 2
        for (config,) in configured:
            assert config["source"] == "FromClaim"
            assert config["opaque"]["parameters"]["kind"] == "ComputeDomainChannelConfig"
    finally:
        api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/computedomains.resource.nvidia.com")


def test_virtual_functions_of_multus_networks_are_planned_and_an_absent_network_is_refused(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    """Each node has GPUs for both gangs, and one virtual function."""
    api = cluster.api
    group, plural = "k8s.cni.cncf.io", "network-attachment-definitions"
    install_crds(api, definition(folder, group, "v1", "NetworkAttachmentDefinition", plural))
    path = f"/apis/{group}/v1/namespaces/default/{plural}"

    def add_network(name: str) -> None:
        resource = {"k8s.v1.cni.cncf.io/resourceName": "example.com/vf"}
        spec = {"config": '{"cniVersion": "0.3.1", "type": "sriov", "name": "rail"}'}
        body = {"apiVersion": f"{group}/v1", "kind": "NetworkAttachmentDefinition", "spec": spec}
        api.create(path, {**body, "metadata": {"name": name, "annotations": resource}})

    def add_gang(name: str, members: int, networks: str) -> None:
        cluster.add_group(name, members)
        for rank in range(members):
            body = driver.pod_body(f"{name}-{rank}", 1, name)
            body["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": networks}
            api.create("/api/v1/namespaces/default/pods", body)

    try:
        cluster.add_nodes("n1", "n2")
        for name in ("n1", "n2"):
            body = {"status": {"allocatable": {"example.com/vf": "1"}, "capacity": {"example.com/vf": "1"}}}
            api.patch(f"/api/v1/nodes/{name}/status", body)
        add_network("rail-0")
        add_gang("spread", 2, "rail-0")
        add_gang("absent", 1, "rail-1")
        with running(access, folder):
            wait_for("it is bound", lambda: cluster.bound("spread") == 2, 30)
            assert set(cluster.nodes_of("spread").values()) == {"n1", "n2"}
            words = "pod absent-0: its network default/rail-1 (NetworkAttachmentDefinition) does not exist"
            assert refused(cluster, "absent") == words
            add_network("rail-1")
            wait_for("it waits for a function", lambda: cluster.condition("absent").get("reason") != "Refused")
            assert cluster.bound("absent") == 0
            cluster.finish("spread")
            wait_for("it is bound when a function is free", lambda: cluster.bound("absent") == 1, 30)
    finally:
        api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")
