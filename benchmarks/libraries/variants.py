"""Variants of the agent: each replaces one part before the agent starts, by a library or by our own code.

``python -m benchmarks.libraries.variants NAME ARGUMENTS...`` runs ``gangwatch ARGUMENTS...`` as the variant NAME.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.libraries import servers, without_psutil

PYROUTE2 = "pyroute2==0.9.7"

GRPC_OPTIONS = (("grpc.enable_http_proxy", 0),)


def _replace(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a class or module. It raises AttributeError if there is none of this name."""
    getattr(owner, name)
    setattr(owner, name, value)


def _replace_module(name: str, module: Any) -> None:
    """Make later imports of a module return another one; with None they fail."""
    sys.modules[name] = module


def shipped() -> None:
    """Change nothing."""


def pynvml_functions() -> None:
    """Read NVML fields with pynvml's function, which makes an array for each call and an object for each field."""
    import pynvml

    from agent.sources.nvml import nvml_fields

    kept = nvml_fields.FieldArray.read

    def read(array: Any) -> bool:
        state = array.__dict__
        if "_keys" not in state:  # the first read finds what the GPU supports
            state["_keys"] = [(int(field), int(scope)) for field, scope in array.view[["field", "scope"]].tolist()]
            return kept(array)
        device = array.queries[0]._device
        pynvml.nvmlLib = device.library._library
        for at, entry in enumerate(pynvml.nvmlDeviceGetFieldValues(device.handle, state["_keys"])):
            array.view["value"][at], array.view["code"][at] = entry.value.ullVal, entry.nvmlReturn
        return True

    _replace(nvml_fields.FieldArray, "read", read)


def own_host_files() -> None:
    """Read the host's figures with the parsers that psutil replaced, and without psutil."""
    _replace_module("agent.sources.proc.host_figures", without_psutil)


def psutil_processes() -> None:
    """Read the processes of ranks with psutil, except for the time that threads waited, which it lacks."""
    from agent.collectors.host import rank_processes
    from benchmarks.libraries.with_psutil import PsutilProcess

    _replace(rank_processes, "KeptProcess", PsutilProcess)


def library_renderer() -> None:
    """Render every frame with prometheus_client, and compress it with the library's gzip."""
    from exporter.prometheus.exposition import Exposition
    from exporter.prometheus.frame_collector import FrameCollector
    from exporter.prometheus.library_format import family_text

    def body(exposition: Any, layout: Any, frame: Any, compress: bool = False, more: bytes = b"") -> bytes:
        collector = exposition.__dict__.setdefault("_collector", FrameCollector(lambda: None, exposition._settings))
        collector._newest = lambda: (layout, frame)
        text = family_text(collector.collect(), exposition._open_metrics) + more
        return gzip.compress(text) if compress else text

    _replace(Exposition, "body", body)
    _replace(Exposition, "prepare", lambda *_: None)


def no_prometheus_client() -> None:
    """Serve the frame without the metrics of the process and of plug-ins, and without prometheus_client."""

    class Plugins:
        def __init__(self, *_: object) -> None: ...

        def text(self, *_: object) -> bytes:
            return b""

        def start(self) -> None: ...

        stop, use = start, __init__

    module: Any = types.ModuleType("exporter.plugins.plugins")
    module.Plugins = Plugins
    sys.modules[module.__name__] = module


def _with(*modules: str) -> Callable[[], None]:
    """Return a variant that also imports modules, and so shows the memory that they take in a running agent."""

    def load() -> None:
        for name in modules:
            importlib.import_module(name)

    return load


def with_pyroute2() -> None:
    """Import pyroute2's sockets for netlink, which has neither RDMA statistics nor ethtool's (decision 15)."""
    folder = Path(__file__).resolve().parents[2] / ".cache" / "peers" / PYROUTE2.replace("==", "-")
    sys.path.append(str(folder))
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, PYROUTE2], check=True)
    importlib.import_module("pyroute2")


def grpc_kubelet() -> None:
    """Call the kubelet with grpcio, on one permanent channel, in place of h2."""
    import grpc

    from agent.sources.kubelet.kubelet import MAX_ANSWER_BYTES, SERVICE, Kubelet

    options = (*GRPC_OPTIONS, ("grpc.max_receive_message_length", MAX_ANSWER_BYTES))
    channel = functools.cache(lambda path: grpc.insecure_channel(f"unix:{path}", options=options))

    def call(kubelet: Any, method: str, request: bytes = b"") -> bytes:
        found: bytes = channel(kubelet.path).unary_unary(f"{SERVICE}{method}")(request, timeout=2.0)
        return found

    _replace(Kubelet, "_call", call)


def uvicorn_server() -> None:
    """Serve with uvicorn in place of our threads."""
    from exporter import publisher

    _replace(publisher, "ThreadedServer", servers.UvicornServer)


def library_server() -> None:
    """Serve with the HTTP server of the standard library, which prometheus_client uses too."""
    from exporter import publisher

    _replace(publisher, "ThreadedServer", servers.StandardServer)


VARIANTS: dict[str, Callable[[], None]] = {
    "shipped": shipped,
    "nvidia-ml-py: its function for fields": pynvml_functions,
    "psutil: replaced host parsers": own_host_files,
    "psutil: processes of ranks": psutil_processes,
    "prometheus-client: renders the frame": library_renderer,
    "prometheus-client: absent": no_prometheus_client,
    "PyYAML: imported": _with("yaml"),
    "bcrypt: imported": _with("bcrypt"),
    "cramjam: imported": _with("cramjam"),
    "opentelemetry-proto: imported": _with("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"),
    "pyroute2: imported": with_pyroute2,
    "h2: grpcio instead": grpc_kubelet,
    "http: uvicorn instead": uvicorn_server,
    "http: http.server instead": library_server,
}
"""Function that changes the agent, by variant. The name is the library and what differs."""


def main() -> None:
    name, *arguments = sys.argv[1:]
    VARIANTS[name]()
    from gangwatch.__main__ import main as run

    sys.argv = ["gangwatch", *arguments]
    run()


if __name__ == "__main__":
    main()
