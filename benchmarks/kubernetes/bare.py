"""``python -m benchmarks.kubernetes.bare KUBECONFIG NODES GPUS``: binds all pending pods of scheduler 'bare'."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from benchmarks.kubernetes.contenders import BARE
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.api_server.kubeconfig import from_kubeconfig
from scheduler_feedback.backends.kubernetes.objects.objects import Part, Pod

AT_ONCE = 64


class _Pods(Part):
    items: list[Pod]


async def main(kubeconfig: Path, nodes: int, gpus: int) -> None:
    async with Client(from_kubeconfig(kubeconfig), agent=BARE) as client:
        pods = (await client.get("/api/v1/pods", msgspec.json.Decoder(_Pods))).items
        waiting = iter(enumerate(pod for pod in pods if pod.spec.scheduler_name == BARE and not pod.spec.node_name))

        async def bind() -> None:
            for number, pod in waiting:
                assert number < nodes * gpus, "more pods than slots"
                name = pod.metadata.name
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": name, "namespace": "default", "uid": pod.metadata.uid},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": f"n{number // gpus:05}"},
                }
                await client.create(f"/api/v1/namespaces/default/pods/{name}/binding", body)

        await asyncio.gather(*(bind() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
