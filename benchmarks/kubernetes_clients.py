"""Cost of gangwatch's Kubernetes client and of the official one: ``python -m benchmarks.kubernetes_clients --json``.

A real API server has pods of a usual size. Each client runs as a program of its own, and lists all pods several times.
The figures are the CPU time of a list, and the largest resident memory of the program. Needs ``make components``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api

ROOT = Path(__file__).resolve().parents[1]
OFFICIAL = "kubernetes==37.0.2"
PODS, LISTS = 2000, 5

_MEASURED = """
import json, resource, time
{setup}
began = time.process_time()
for _ in range({lists}):
    found = {call}
used = time.process_time() - began
print(json.dumps({{"pods": found, "cpu_ms_a_list": round(1e3 * used / {lists}, 1),
                   "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}}))
"""

_OURS = """
import asyncio, sys, msgspec
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
class Pods(msgspec.Struct):
    items: list[Pod]
decoder = msgspec.json.Decoder(Pods)
access = Access(sys.argv[1], token=sys.argv[2], ca=open(sys.argv[3]).read())
loop = asyncio.new_event_loop()
client = Client(access, agent="benchmark")
loop.run_until_complete(client.__aenter__())
"""
_OURS_CALL = 'len(loop.run_until_complete(client.get("/api/v1/pods", decoder)).items)'

_THEIRS = """
import sys
from kubernetes import client
configuration = client.Configuration(host=sys.argv[1])
configuration.ssl_ca_cert = sys.argv[3]
configuration.api_key = {"authorization": "Bearer " + sys.argv[2]}
api = client.CoreV1Api(client.ApiClient(configuration))
"""
_THEIRS_CALL = "len(api.list_pod_for_all_namespaces().items)"


def official_python() -> Path:
    """Return a Python with the official client, which the first call installs. Raises RuntimeError if that fails."""
    folder = ROOT / ".cache" / "peers" / OFFICIAL.replace("==", "-")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        done = subprocess.run([folder / "bin" / "pip", "install", "-q", OFFICIAL], capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeError(f"{OFFICIAL} can't be installed: {done.stderr.strip()[-400:]}")
    return python


def pod(index: int) -> dict[str, Any]:
    """Return a pod with the environment and labels of a training's worker."""
    env = [{"name": f"VARIABLE_{at}", "value": f"value-{at}-of-worker-{index}"} for at in range(30)]
    container = {"name": "main", "image": "registry.example/training:1", "env": env}
    labels = {"team": "vision", "job": f"job-{index // 8}", "index": str(index % 8)}
    spec = {"nodeName": f"node-{index // 8}", "containers": [container]}
    return {"metadata": {"name": f"worker-{index}", "labels": labels}, "spec": spec}


def measure(pods: int, lists: int) -> dict[str, Any]:
    """Return the figures of both clients, and ours divided by those of the official client."""
    theirs = official_python()
    programs = {
        "gangwatch": (Path(sys.executable), _OURS, _OURS_CALL),
        "official": (theirs, _THEIRS, _THEIRS_CALL),
    }
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="gangwatch-benchmark-") as folder,
        ControlPlane(Path(folder), manager=False) as plane,
    ):
        access = plane.access()
        api = Api(access)
        api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for first in range(0, pods, 200):
            api.create_all("/api/v1/namespaces/default/pods", [pod(at) for at in range(first, min(first + 200, pods))])
        api.close()
        arguments = [plane.url, access.token, str(plane.folder / "ca.crt")]
        for name, (python, setup, call) in programs.items():
            text = _MEASURED.format(setup=setup, call=call, lists=lists)
            environment = {**os.environ, "PYTHONPATH": str(ROOT)} if name == "gangwatch" else dict(os.environ)
            command = [str(python), "-c", text, *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name}: {done.stderr.strip()[-800:]}")
            found[name] = json.loads(done.stdout)
    ours, peer = found["gangwatch"], found["official"]
    if ours["pods"] != peer["pods"]:
        raise RuntimeError(f"the clients list {ours['pods']} and {peer['pods']} pods")
    found["ratios"] = {key: round(ours[key] / peer[key], 3) for key in ("cpu_ms_a_list", "rss_mib")}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes_clients", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--pods", type=int, default=PODS, help=f"number of pods (default {PODS})")
    arguments = parser.parse_args()
    found = measure(arguments.pods, LISTS)
    load = [round(one, 1) for one in os.getloadavg()]
    found["machine"] = {"processors": os.cpu_count(), "python": platform.python_version(), "load_average": load}
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for name, figures in found.items():
            print(name, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
