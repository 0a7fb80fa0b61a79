"""Kubelet plug-in of a DRA driver that prepares fake GPUs for claims over the kubelet's gRPC interfaces, as NVIDIA's.

Source: k8s.io/kubelet 0.37, pkg/apis/dra/v1/api.proto and pkg/apis/pluginregistration/v1/api.proto, and
https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/ for the folder of sockets. The
CDI files have the form of https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from tests.kubernetes.device_driver import API, GPU_CLASS, gpu, slice_body
from tests.kubernetes.harness import Api
from tests.kubernetes.little_protobuf import field, fields

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
VERSION = "v1.DRAPlugin"
"""Name of the service at the registration (k8s.io/kubelet/pkg/apis/dra/v1/types.go, DRAPluginService)."""
CDI_KIND = "k8s.gpu.nvidia.com/claim"
"""Vendor and class of the CDI devices of NVIDIA's driver, which makes one for each claim."""
KUBELET = Path("/var/lib/kubelet")
Handler = Callable[[bytes, Any], bytes]


class DraPlugin:
    """Driver's plug-in on one node. Inside the ``with`` it is registered, and its devices are published.

    node_folder: root of the node's own files, which has its /var/lib and /run. prepared: devices by the uid of the
    claim, from the preparation of the claim until its end.
    """

    def __init__(self, api: Api, node: str, node_folder: Path, devices: int, driver: str = GPU_CLASS) -> None:
        self.prepared: dict[str, tuple[str, ...]] = {}
        self.unprepared: list[str] = []
        self._api, self._node, self._driver = api, node, driver
        self._devices = [gpu(number) for number in range(devices)]
        self._cdi = node_folder / "run/cdi"  # /var/run, where containerd looks for it, is a link to /run
        kubelet = node_folder / KUBELET.relative_to("/")
        self._socket = kubelet / "plugins" / driver / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{driver}-reg.sock"
        self._servers: list[Any] = []
        self._slice = slice_body(node, self._devices, driver)

    def __enter__(self) -> DraPlugin:
        self._cdi.mkdir(parents=True, exist_ok=True)
        prepare: dict[str, Handler] = {
            "NodePrepareResources": self._prepare,
            "NodeUnprepareResources": self._unprepare,
        }
        register: dict[str, Handler] = {"GetInfo": self._information, "NotifyRegistrationStatus": self._registered}
        self._serve(self._socket, SERVICE, prepare)
        self._serve(self._registration, "pluginregistration.Registration", register)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            server.stop(0).wait()
        for socket in (self._registration, self._socket):
            socket.unlink(missing_ok=True)
        self._api.delete(f"{API}/resourceslices/{self._slice['metadata']['name']}")

    def _serve(self, socket: Path, service: str, methods: dict[str, Handler]) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server: Any = grpc.server(ThreadPoolExecutor(2))
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        self._servers.append(server)

    # --- registration ------------------------------------------------------------------------------------------------

    def _information(self, _request: bytes, _context: Any) -> bytes:
        endpoint = KUBELET / "plugins" / self._driver / self._socket.name  # as the kubelet sees it
        return field(1, "DRAPlugin") + field(2, self._driver) + field(3, str(endpoint)) + field(4, VERSION)

    def _registered(self, status: bytes, _context: Any) -> bytes:
        """Publish the devices: before the registration, the kubelet would delete slices of an earlier run."""
        if status[:1] != b"\x08":  # plugin_registered, which is left out if it is false
            raise RuntimeError(f"the kubelet refused the plug-in: {status!r}")
        if self._api.find(f"{API}/resourceslices/{self._slice['metadata']['name']}") is None:
            self._api.create(f"{API}/resourceslices", self._slice)
        return b""

    # --- claims ------------------------------------------------------------------------------------------------------

    def _prepare(self, request: bytes, _context: Any) -> bytes:
        answer = b""
        for claim in fields(request, 1):
            (namespace,), (uid,), (name,) = (fields(claim, number) for number in (1, 2, 3))
            try:
                result = self._prepared(namespace.decode(), name.decode(), uid.decode())
            except Exception as error:  # the kubelet reports it in an event of the pod
                result = field(2, str(error))
            answer += field(1, field(1, uid) + field(2, result))
        return answer

    def _prepared(self, namespace: str, name: str, uid: str) -> bytes:
        """Write the claim's CDI file. Return its NodePrepareResourceResponse."""
        claim = self._api.get(f"{API}/namespaces/{namespace}/resourceclaims/{name}")
        if claim["metadata"]["uid"] != uid:
            raise ValueError(f"claim {name} has another uid")
        results = claim["status"]["allocation"]["devices"]["results"]
        mine = [one for one in results if (one["driver"], one["pool"]) == (self._driver, self._node)]
        names = tuple(one["device"] for one in mine)
        self._write_cdi(uid, names)
        self.prepared[uid] = names
        return b"".join(
            field(1, _device(one["request"], one["pool"], one["device"], f"{CDI_KIND}={uid}")) for one in mine
        )

    def _write_cdi(self, uid: str, devices: Sequence[str]) -> None:
        """Describe what a container with the claim gets: a variable, and a device file for each GPU."""
        nodes = [{"path": f"/dev/nvidia{one.rpartition('-')[2]}", "hostPath": "/dev/null"} for one in devices]
        edits = {"env": [f"NVIDIA_VISIBLE_DEVICES={','.join(devices)}"], "deviceNodes": nodes}
        spec = {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": [{"name": uid, "containerEdits": edits}]}
        new = self._cdi / f".{uid}.new"
        new.write_text(json.dumps(spec))
        new.rename(self._file_of(uid))

    def _file_of(self, uid: str) -> Path:
        return self._cdi / f"{self._driver}-{uid}.json"

    def _unprepare(self, request: bytes, _context: Any) -> bytes:
        answer = b""
        for claim in fields(request, 1):
            (uid,) = fields(claim, 2)
            self._file_of(uid.decode()).unlink(missing_ok=True)
            self.prepared.pop(uid.decode(), None)
            self.unprepared.append(uid.decode())
            answer += field(1, field(1, uid) + field(2, b""))
        return answer


def _device(request: str, pool: str, device: str, cdi: str) -> bytes:
    return field(1, request) + field(2, pool) + field(3, device) + field(4, cdi)
