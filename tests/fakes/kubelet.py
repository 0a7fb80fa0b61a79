"""Pod-resources socket of a kubelet, on gRPC's server and Google's protocol buffers, without the agent's code.

    python -m tests.fakes.kubelet SOCKET [NAMESPACE/POD/CONTAINER=DEVICE ...]

serves until it is stopped. `FakeKubelet` serves inside a test, which can make it hang, fail, restart or send garbage.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from agent.sources.kubelet.pod_resources import Pod

_STRING, _MESSAGE, _INT64, _UINT64 = 9, 11, 3, 4  # FieldDescriptorProto.Type
_OPTIONAL, _REPEATED = 1, 3  # FieldDescriptorProto.Label

_MESSAGES: dict[str, tuple[tuple[str, int, int, str, bool], ...]] = {
    # name: (field, number, type, message, repeated) of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto
    "NUMANode": (("ID", 1, _INT64, "", False),),
    "TopologyInfo": (("nodes", 1, _MESSAGE, "NUMANode", True),),
    "CDIDevice": (("name", 1, _STRING, "", False),),
    "ClaimResource": (
        ("cdi_devices", 1, _MESSAGE, "CDIDevice", True),
        ("driver_name", 2, _STRING, "", False),
        ("pool_name", 3, _STRING, "", False),
        ("device_name", 4, _STRING, "", False),
    ),
    "DynamicResource": (
        ("class_name", 1, _STRING, "", False),
        ("claim_name", 2, _STRING, "", False),
        ("claim_namespace", 3, _STRING, "", False),
        ("claim_resources", 4, _MESSAGE, "ClaimResource", True),
    ),
    "ContainerMemory": (
        ("memory_type", 1, _STRING, "", False),
        ("size", 2, _UINT64, "", False),
        ("topology", 3, _MESSAGE, "TopologyInfo", False),
    ),
    "ContainerDevices": (
        ("resource_name", 1, _STRING, "", False),
        ("device_ids", 2, _STRING, "", True),
        ("topology", 3, _MESSAGE, "TopologyInfo", False),
    ),
    "ContainerResources": (
        ("name", 1, _STRING, "", False),
        ("devices", 2, _MESSAGE, "ContainerDevices", True),
        ("cpu_ids", 3, _INT64, "", True),
        ("memory", 4, _MESSAGE, "ContainerMemory", True),
        ("dynamic_resources", 5, _MESSAGE, "DynamicResource", True),
    ),
    "PodResources": (
        ("name", 1, _STRING, "", False),
        ("namespace", 2, _STRING, "", False),
        ("containers", 3, _MESSAGE, "ContainerResources", True),
        ("cpu_ids", 4, _INT64, "", True),
        ("memory", 5, _MESSAGE, "ContainerMemory", True),
    ),
    "ListPodResourcesResponse": (("pod_resources", 1, _MESSAGE, "PodResources", True),),
    "AllocatableResourcesResponse": (
        ("devices", 1, _MESSAGE, "ContainerDevices", True),
        ("cpu_ids", 2, _INT64, "", True),
        ("memory", 3, _MESSAGE, "ContainerMemory", True),
    ),
    "GetPodResourcesRequest": (("pod_name", 1, _STRING, "", False), ("pod_namespace", 2, _STRING, "", False)),
    "GetPodResourcesResponse": (("pod_resources", 1, _MESSAGE, "PodResources", False),),
}


def _make_classes() -> dict[str, Any]:
    """Return Google's classes for the messages above, built from descriptors without a compiler."""
    file = descriptor_pb2.FileDescriptorProto(name="podresources/v1/api.proto", package="v1", syntax="proto3")
    for name, own in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in own:
            label = _REPEATED if repeated else _OPTIONAL
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if of:
                made.type_name = f".v1.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES}


CLASSES = _make_classes()


def encode_pod(pod: Pod) -> Any:
    """Return the pod as Google's message, with the CPUs, memory and topology that a kubelet also sends."""
    message = CLASSES["PodResources"](name=pod.name, namespace=pod.namespace)
    for container in pod.containers:
        encoded = message.containers.add(name=container.name, cpu_ids=range(4, 12))
        memory = encoded.memory.add(memory_type="memory", size=2**34)
        memory.topology.nodes.add(ID=1)
        for resource, device in container.devices:
            devices = encoded.devices.add(resource_name=resource, device_ids=[device])
            devices.topology.nodes.add(ID=0)
        for claimed in container.claimed:
            claim = encoded.dynamic_resources.add(claim_name=claimed.claim, claim_namespace=pod.namespace)
            claim.claim_resources.add(
                driver_name=claimed.driver,
                pool_name=claimed.pool,
                device_name=claimed.device,
                cdi_devices=[CLASSES["CDIDevice"](name=name) for name in claimed.cdi],
            )
    return message


def encode_list(pods: Iterable[Pod]) -> bytes:
    return bytes(CLASSES["ListPodResourcesResponse"](pod_resources=map(encode_pod, pods)).SerializeToString())


class FakeKubelet:
    """Kubelet that serves on a unix socket inside the ``with``. A test may change its attributes at any time.

    pods: the listed pods. allocatable: (resource, device) pairs. hanging: calls block while it is set. failure:
    (status, message) instead of a response. rubbish: bytes to send instead of a response message.
    """

    def __init__(self, path: Path | str, pods: Iterable[Pod] = ()) -> None:
        self.path = str(path)
        self.pods: list[Pod] = list(pods)
        self.allocatable: list[tuple[str, str]] = []
        self.hanging = threading.Event()
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.rubbish: bytes | None = None
        self.calls = 0
        self._released = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Listen on the socket; replace one that an earlier kubelet left behind."""
        Path(self.path).unlink(missing_ok=True)
        self._released.clear()
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
        handlers = {
            "List": grpc.unary_unary_rpc_method_handler(self._answer(lambda _: encode_list(self.pods))),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._answer(self._allocatable)),
            "Get": grpc.unary_unary_rpc_method_handler(self._answer(self._get)),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
        server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop at once and leave the socket file behind, like a killed kubelet."""
        self._released.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def __enter__(self) -> FakeKubelet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, make: Callable[[bytes], bytes]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls += 1
            while self.hanging.is_set() and context.is_active() and not self._released.wait(0.02):
                pass
            if self.failure is not None:
                context.abort(*self.failure)
            return make(request) if self.rubbish is None else self.rubbish

        return answer

    def _allocatable(self, _: bytes) -> bytes:
        message = CLASSES["AllocatableResourcesResponse"](cpu_ids=range(64))
        for resource, device in self.allocatable:
            message.devices.add(resource_name=resource, device_ids=[device])
        return bytes(message.SerializeToString())

    def _get(self, request: bytes) -> bytes:
        asked = CLASSES["GetPodResourcesRequest"].FromString(request)
        for pod in self.pods:
            if (pod.namespace, pod.name) == (asked.pod_namespace, asked.pod_name):
                message = CLASSES["GetPodResourcesResponse"](pod_resources=encode_pod(pod))
                return bytes(message.SerializeToString())
        return b""


def main(arguments: list[str]) -> None:
    """Serve the pods in the arguments until the process is stopped."""
    from agent.sources.kubelet.pod_resources import Container

    pods = []
    for argument in arguments[1:]:
        name, _, device = argument.partition("=")
        namespace, pod, container = name.split("/")
        pods.append(Pod(namespace, pod, (Container(container, (("nvidia.com/gpu", device),)),)))
    with FakeKubelet(arguments[0], pods):
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
