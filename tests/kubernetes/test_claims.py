"""Resource claims of gangs on a real API server, with the claim controller of the real kube-controller-manager.

The test publishes ResourceSlices as a driver does. Nodes have no extended resources: their GPUs are only in slices.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.attempts import attempt_lifecycle, claim_binding
from scheduler_feedback.backends.kubernetes.attempts.claim_binding import Reservation
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.job import JobState
from tests.kubernetes import device_driver as driver
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for
from tests.kubernetes.test_feedback import POLICY, accuse

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]


def add_gpu_nodes(cluster: Cluster, *names: str, gpus: int = 2) -> None:
    cluster.add_nodes(*names, gpus=0)
    for name in names:
        driver.publish(cluster.api, name, [driver.gpu(number) for number in range(gpus)])


def test_a_gang_gets_devices_and_gives_them_back(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    """Each pod's claim is made from a template. A second gang waits until the first has ended."""
    needs_manager(plane)
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    template = driver.template_body("one-gpu", driver.request())
    api.create(f"{driver.API}/namespaces/default/resourceclaimtemplates", template)
    add_gpu_nodes(cluster, "n1", "n2")
    cluster.add_gang("first", 4, gpus=0, **driver.claiming(template="one-gpu"))
    with running(access, folder):
        wait_for("the first is bound", lambda: cluster.bound("first") == 4, 30)
        assert set(driver.allocated(api)) == {(node, f"gpu-{n}") for node in ("n1", "n2") for n in range(2)}
        pods = {pod["metadata"]["uid"]: pod for pod in cluster.pods("first")}
        for claim in driver.claims(api):
            (user,) = claim["status"]["reservedFor"]
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            pod = pods[user["uid"]]
            assert (user["resource"], user["name"]) == ("pods", pod["metadata"]["name"])
            assert result["pool"] == pod["spec"]["nodeName"], "the device is on the pod's node"
        cluster.add_gang("second", 2, gpus=0, **driver.claiming(template="one-gpu"))
        wait_for("the second says why it waits", lambda: cluster.condition("second"))
        assert cluster.bound("second") == 0
        cluster.finish("first")
        wait_for("the second is bound", lambda: cluster.bound("second") == 2, 30)
        driver.allocated(api)


def test_a_claim_that_cannot_be_evaluated_is_refused_with_its_expression(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    odd = driver.request("odd", driver.GPU_CLASS, "isURL(device.driver)")
    api.create(f"{driver.API}/namespaces/default/resourceclaims", driver.claim_body("mine", odd))
    add_gpu_nodes(cluster, "n1")
    cluster.add_gang("gang", 1, gpus=0, **driver.claiming(claim="mine"))
    with running(access, folder):
        condition = wait_for("it says why", lambda: cluster.condition("gang"))
        assert condition["reason"] == "Refused"
        where = "pod gang-0: claim mine: request odd"
        why = f"{where}: cannot evaluate 'isURL(device.driver)': undeclared reference to 'isURL'"
        assert condition["message"].startswith(why)


def test_gpu_and_nic_of_one_pcie_root_for_each_pod(cluster: Cluster, access: Access, folder: Path) -> None:
    """Each node has two GPUs, and a NIC only at the root of one of them. Two gangs start in one cycle."""
    api = cluster.api
    for name in (driver.GPU_CLASS, "nic.example.com"):
        api.create(f"{driver.API}/deviceclasses", driver.class_body(name))
    root = "resource.kubernetes.io/pcieRoot"
    cluster.add_nodes("n1", "n2", gpus=0)
    for node in ("n1", "n2"):
        driver.publish(api, node, [driver.gpu(n, **{root: {"string": f"root-{n}"}}) for n in range(2)])
        nic = {"name": "nic-1", "attributes": {root: {"string": "root-1"}}}
        driver.publish(api, node, [nic], "nic.example.com")
    for gang in ("left", "right"):
        wanted = (driver.request("gpu"), driver.request("nic", "nic.example.com"))
        claim = driver.claim_body(gang, *wanted, constraints=[{"matchAttribute": root}])
        api.create(f"{driver.API}/namespaces/default/resourceclaims", claim)
        cluster.add_gang(gang, 1, gpus=0, **driver.claiming(claim=gang))
    with running(access, folder) as it:
        for gang in ("left", "right"):
            wait_for(f"{gang} is bound", lambda gang=gang: cluster.bound(gang) == 1, 30)
        assert set(driver.allocated(api)) == {(node, name) for node in ("n1", "n2") for name in ("gpu-1", "nic-1")}
        assert {job.attempt for job in it.jobs().values()} == {1}, "no start has failed"


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_start_that_is_interrupted_after_the_claims_are_written_is_finished(
    plane: ControlPlane,
    cluster: Cluster,
    access: Access,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fresh: bool,
    grouped: bool,
) -> None:
    """The next controller has only the API's objects (fresh), or the journal, too."""
    needs_manager(plane)
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    template = driver.template_body("one-gpu", driver.request())
    api.create(f"{driver.API}/namespaces/default/resourceclaimtemplates", template)
    add_gpu_nodes(cluster, "n1", gpus=1)
    if grouped:
        add_gpu_nodes(cluster, "n2", gpus=1)
        cluster.add_gang("gang", 2, gpus=0, **driver.claiming(template="one-gpu"))
    else:
        api.create("/api/v1/namespaces/default/pods", driver.pod_with_claim("gang-0", template="one-gpu"))
    pods = 2 if grouped else 1

    async def never(*_: object) -> list[str]:
        await asyncio.Event().wait()
        return []

    with monkeypatch.context() as patched:
        patched.setattr(attempt_lifecycle, "bind_all", never)
        with running(access, folder):
            wait_for("all claims are written", lambda: len(driver.allocated(api)) == pods, 30)
    path = "/api/v1/namespaces/default/pods"

    def nodes() -> list[str]:
        return [pod["spec"]["nodeName"] for pod in api.get(path)["items"] if pod["spec"].get("nodeName")]

    assert nodes() == []
    with running(access, folder / "next" if fresh else folder, fresh=fresh):
        wait_for("it is bound", lambda: len(nodes()) == pods, 30)
        assert {node for node, _ in driver.allocated(api)} == set(nodes())


def test_a_start_that_is_interrupted_while_claims_are_written_is_finished(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the claims have devices. The next controller has the journal, keeps them and writes the rest."""
    needs_manager(plane)
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    template = driver.template_body("one-gpu", driver.request())
    api.create(f"{driver.API}/namespaces/default/resourceclaimtemplates", template)
    add_gpu_nodes(cluster, "n1", "n2")
    cluster.add_gang("gang", 4, gpus=0, **driver.claiming(template="one-gpu"))
    reserve = claim_binding._reserve

    async def half(client: Client, wanted: Reservation) -> str:
        if wanted.pod in ("gang-0", "gang-3"):
            await asyncio.Event().wait()
        return await reserve(client, wanted)

    with monkeypatch.context() as patched:
        patched.setattr(claim_binding, "_reserve", half)
        with running(access, folder):
            wait_for("two claims are written", lambda: len(driver.allocated(api)) == 2, 30)
    with running(access, folder, fresh=False) as it:
        wait_for("it is bound", lambda: cluster.bound("gang") == 4, 30)
        assert len(driver.allocated(api)) == 4
        assert it.jobs()["gang"].attempt == 1, "the start was continued"


def test_devices_of_an_interrupted_start_are_freed_if_the_gang_cannot_start(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_manager(plane)
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    template = driver.template_body("one-gpu", driver.request())
    api.create(f"{driver.API}/namespaces/default/resourceclaimtemplates", template)
    add_gpu_nodes(cluster, "n1")
    cluster.add_gang("gang", 2, gpus=0, **driver.claiming(template="one-gpu"))

    async def never(*_: object) -> list[str]:
        await asyncio.Event().wait()
        return []

    with monkeypatch.context() as patched:
        patched.setattr(attempt_lifecycle, "bind_all", never)
        with running(access, folder):
            wait_for("all claims are written", lambda: len(driver.allocated(api)) == 2, 30)
    api.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    api.patch("/api/v1/nodes/n1", {"spec": {"taints": [taint]}})
    with running(access, folder / "next"):
        wait_for("no claim has devices", lambda: not driver.allocated(api), 30)
        assert all("reservedFor" not in claim.get("status", {}) for claim in driver.claims(api))
        assert cluster.bound("gang") == 0


def test_a_gang_with_claims_is_moved_off_a_slow_node(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    needs_manager(plane)
    api = cluster.api
    api.create(f"{driver.API}/deviceclasses", driver.class_body())
    template = driver.template_body("one-gpu", driver.request())
    api.create(f"{driver.API}/namespaces/default/resourceclaimtemplates", template)
    add_gpu_nodes(cluster, "n1", "n2", "n3", gpus=1)
    annotations = {RESTARTABLE: "true", TIME_LIMIT: "36000"}
    cluster.add_job("train", 2, gpus=0, annotations=annotations, pod=driver.claiming(template="one-gpu"))
    with running(access, folder, POLICY) as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        before = set(cluster.nodes_of("train").values())
        (spare,) = {"n1", "n2", "n3"} - before
        slow = sorted(cluster.nodes_of("train").items())[1][1]
        accuse(it, "train", slow)
        wait_for("it runs again", lambda: it.jobs()["train"].attempt == 2, 60)
        wait_for("with both pods", lambda: cluster.bound("train") == 2)
        assert set(cluster.nodes_of("train").values()) == {spare, *(before - {slow})}
        wait_for(
            "with their devices", lambda: {node for node, _ in driver.allocated(api)} == {spare, *(before - {slow})}
        )
