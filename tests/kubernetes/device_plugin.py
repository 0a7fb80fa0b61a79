"""Device plug-in that registers fake GPUs at a real kubelet over the kubelet's gRPC interface, as NVIDIA's does.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto, and
https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from tests.kubernetes.little_protobuf import field, fields

RESOURCE = "nvidia.com/gpu"
_PLUGIN, _REGISTRATION = "v1beta1.DevicePlugin", "/v1beta1.Registration/Register"
_LOOK_SECONDS = 0.2


class DevicePlugin:
    """Device plug-in of one node. Inside the ``with`` its devices are registered, also after the kubelet restarts.

    folder: the kubelet's device-plugins folder, as seen by this process. environment: variables of a container with
    these devices; NVIDIA_VISIBLE_DEVICES is added. allocated: the devices of each started container.
    """

    def __init__(self, folder: Path, devices: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.environment = folder, dict(environment or {})
        self.allocated: list[list[str]] = []
        self._healthy = dict.fromkeys(devices, True)
        self._changed = threading.Condition()
        self._version = 0
        self._ended = threading.Event()
        self._server: Any = None
        self._watcher = threading.Thread(target=self._watch, name="device plug-in", daemon=True)

    def __enter__(self) -> DevicePlugin:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        self._watcher.join(timeout=10)
        if self._server is not None:
            self._server.stop(0).wait()

    def set_health(self, device: str, healthy: bool) -> None:
        """Report a device as healthy or unhealthy. The kubelet then updates the node's allocatable devices."""
        with self._changed:
            self._healthy[device] = healthy
            self._version += 1
            self._changed.notify_all()

    def _watch(self) -> None:
        """Register the devices, and again each time that a new kubelet has removed the plug-in's socket."""
        own = self.folder / "gangwatch-tests.sock"
        while not self._ended.wait(_LOOK_SECONDS):
            if (self.folder / "kubelet.sock").exists() and not own.exists():
                try:
                    self._serve(own)
                    self._register(own.name)
                except (grpc.RpcError, RuntimeError, OSError):  # the kubelet is starting: try again
                    own.unlink(missing_ok=True)

    def _serve(self, own: Path) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
        self._server = grpc.server(ThreadPoolExecutor(8))
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_PLUGIN, handlers),))
        self._server.add_insecure_port(f"unix://{own}")
        self._server.start()

    def _register(self, endpoint: str) -> None:
        request = field(1, "v1beta1") + field(2, endpoint) + field(3, RESOURCE) + field(4, b"")
        with grpc.insecure_channel(f"unix://{self.folder}/kubelet.sock") as channel:
            channel.unary_unary(_REGISTRATION)(request, timeout=5)

    def _list_and_watch(self, _request: bytes, context: Any) -> Iterator[bytes]:
        sent = -1
        while context.is_active() and not self._ended.is_set():
            with self._changed:
                if sent == self._version:
                    self._changed.wait(0.5)
                    continue
                sent = self._version
                states = {name: "Healthy" if healthy else "Unhealthy" for name, healthy in self._healthy.items()}
            yield b"".join(field(1, field(1, name) + field(2, state)) for name, state in states.items())

    def _allocate(self, request: bytes, _context: Any) -> bytes:
        answer = b""
        for container in fields(request, 1):
            devices = [device.decode() for device in fields(container, 1)]
            self.allocated.append(devices)
            variables = self.environment | {"NVIDIA_VISIBLE_DEVICES": ",".join(devices)}
            answer += field(
                1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in variables.items())
            )
        return answer
