"""A gang with claims on the real cluster: its driver, what its containers see, and what the agent reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent.collectors.host.kubelet_pods import KubeletCollector, PodTable
from agent.collectors.host.owners import OwnerCollector
from agent.gpu_inventory import GpuDevice, Inventory
from agent.rank_attribution import Attribution
from agent.sources.kubelet.kubelet import Kubelet
from tests.kubernetes import device_driver as driver
from tests.kubernetes.dra_plugin import DraPlugin
from tests.kubernetes.real_site import IMAGE, Site

TEMPLATE = "one-gpu"
GPU_UUID = "GPU-00000000-2222-3333-4444-555555555555"
ENDS = "/tmp/end"
WORK = f"echo visible=$NVIDIA_VISIBLE_DEVICES; ls /dev/nvidia0; until [ -e {ENDS} ]; do sleep 0.1; done"
"""What a pod of the gang does: it prints what it sees, and ends when it gets this file."""
PRINTED = ["visible=gpu-0", "/dev/nvidia0"]


@contextmanager
def drivers(site: Site, *nodes: str) -> Iterator[dict[str, DraPlugin]]:
    """Run the driver with one GPU on each node, and create its class and a template. Removes all of it at the end."""
    api = site.api
    paths = {
        f"{driver.API}/deviceclasses": driver.class_body(),
        f"{driver.API}/namespaces/default/resourceclaimtemplates": driver.template_body(TEMPLATE, driver.request()),
    }
    for path, body in paths.items():
        api.create(path, body)
    try:
        with ExitStack() as stack:
            yield {node: stack.enter_context(DraPlugin(api, node, site.real.folder / node, 1)) for node in nodes}
    finally:
        for path, body in paths.items():
            api.delete(f"{path}/{body['metadata']['name']}")


def add_gang(site: Site, name: str, members: int) -> None:
    """Create a gang of pods that each claim a GPU."""
    spec = driver.claiming(template=TEMPLATE)
    (container,) = spec["containers"]
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", WORK]}
    container["resources"] = {"requests": {"cpu": "10m", "memory": "8Mi"}, "claims": container["resources"]["claims"]}
    site.gangs.add_gang(name, members, gpus=0, restartPolicy="Never", enableServiceLinks=False, **spec)


def owners(folder: Path) -> list[dict[str, Any]]:
    """Return the labels of the node's GPU owners that the agent's collectors read. folder: of the node's own files."""
    table, inventory = PodTable(), Inventory()
    inventory.gpus = (GpuDevice(GPU_UUID, 0, 0),)
    socket = str(folder / "var/lib/kubelet/pod-resources/kubelet.sock")
    KubeletCollector(socket, table, kubelet=Kubelet(socket, 10.0)).collect()
    attribution = Attribution(None, "/proc", pod_logs=str(folder / "var/log/pods"))
    block = OwnerCollector(attribution, table, inventory).collect()
    found = (column for column in block.gauge_columns if column.metric == "gangwatch_gpu_owner_info")
    return [{key: value for key, value in column.labels if value} for column in found]
