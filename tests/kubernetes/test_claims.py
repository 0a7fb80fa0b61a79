"""Resource claims of gangs on a real API server, with the claim controller of the real kube-controller-manager.

The test publishes ResourceSlices as a driver does. Nodes have no extended resources: their GPUs are only in slices.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.kubernetes import device_driver as driver
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for

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
