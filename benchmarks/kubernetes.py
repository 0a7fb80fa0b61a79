"""How fast gangs are scheduled on a real API server: `python -m benchmarks.kubernetes --json`.

For each number of nodes a control plane is started on loopback (etcd, kube-apiserver, no audit log), the nodes are
made (objects alone: no kubelet runs, none renews a lease), and a controller runs as a process of its own, with its
journal on disk. What is done is seen by a watch of the API server.

    binds_per_second      single pods that all fit at once: bound a second, from the thaw of a frozen controller on
    gang_ms               1,000 gangs of 3: milliseconds a gang, from the last pod's creation to all bound
    gang_all_ms           the same from the first pod's creation
    gang512_seconds       a 512-pod gang, all of it inside one spine: from the last pod's creation to all bound
    gang512_all_seconds   the same from the first pod's creation
    unschedulable_seconds a gang of 10 that no node may hold: from the last pod's creation to its condition
    cordon_nodes_per_second  quarantine by an operator's word: from the first request to the taint on the last node
    rss_mib               the controller's resident memory at the end
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from scheduler_feedback.backends.kubernetes.client import Access, Client
from scheduler_feedback.backends.kubernetes.objects import Node, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.watch import Watch
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, install_crds
from tests.kubernetes.makers import group_body, node_body, pod_body

GPUS = 8
LIMIT_SECONDS = 600.0
CORDONED = 500
GANGS = 1000
SETTLE_SECONDS = 2.0
"""For the last pods to have reached the frozen controller."""

_AT_ONCE = 64


class Seen:
    """What a watch of the API server shows, kept by a thread of its own."""

    def __init__(self, access: Access) -> None:
        self.pods: dict[str, str] = {}  # node by the pod's name, of those that are bound
        self.tainted: set[str] = set()
        self.told: set[str] = set()  # groups with a condition
        self._access = access
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._live()), daemon=True)

    def __enter__(self) -> Seen:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        self._loop.close()

    async def _live(self) -> None:
        async with Client(self._access, agent="benchmark-watch") as client:
            watches: list[Watch[Any]] = [
                Watch(client, "/api/v1/pods", Pod, self._pod),
                Watch(client, "/api/v1/nodes", Node, self._node),
                Watch(client, "/apis/scheduling.x-k8s.io/v1alpha1/podgroups", PodGroup, self._group),
            ]
            tasks = [asyncio.create_task(watch.run()) for watch in watches]
            for watch in watches:
                await watch.synced.wait()
            self._ready.set()
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pod(self, key: str, _before: Pod | None, after: Pod | None) -> None:
        if after is None:
            self.pods.pop(key, None)
        elif after.spec.node_name:
            self.pods[key] = after.spec.node_name

    def _node(self, key: str, _before: Node | None, after: Node | None) -> None:
        marked = after is not None and any(taint.key == "gangwatch.io/quarantine" for taint in after.spec.taints or ())
        (self.tainted.add if marked else self.tainted.discard)(key)

    def _group(self, key: str, _before: PodGroup | None, after: PodGroup | None) -> None:
        if after is not None and any(one.status == "False" for one in after.status.conditions or ()):
            self.told.add(key)


class Load:
    """Makes objects, many at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def create(self, path: str, bodies: list[Any]) -> None:
        asyncio.run(self._all(lambda client, body: client.create(path, body), bodies))

    def nodes(self, bodies: list[Any]) -> None:
        async def one(client: Client, body: Any) -> None:
            await client.create("/api/v1/nodes", body)
            await client.patch(f"/api/v1/nodes/{body['metadata']['name']}/status", {"status": body["status"]})

        asyncio.run(self._all(one, bodies))

    def delete(self, paths: list[str]) -> None:
        options = {"gracePeriodSeconds": 0}
        asyncio.run(self._all(lambda client, path: client.delete(path, options), paths))

    async def _all(self, work: Callable[[Client, Any], Any], items: list[Any]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        async with Client(self._access, agent="benchmark-load") as client:

            async def one(item: Any) -> None:
                async with gate:
                    await work(client, item)

            await asyncio.gather(*(one(item) for item in items))


def until(what: str, look: Callable[[], bool]) -> float:
    """When it came true, by the monotonic clock. Raises AssertionError where it does not."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not look():
        if time.monotonic() > limit:
            raise AssertionError(f"not in {LIMIT_SECONDS:g} s: {what}")
        time.sleep(0.005)
    return time.monotonic()


@contextmanager
def controller(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gangwatch", "kubernetes", "controller", "--state", str(folder)]
    with (folder.parent / "controller.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(plane.kubeconfig()), "--port", "0"], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def measure(count: int, folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """The figures for a cluster of so many nodes."""
    found: dict[str, float] = {}
    with ControlPlane(folder / "plane", manager=False) as plane:
        access = plane.access()
        api = Api(access)
        install_crds(api)
        api.close()
        load = Load(access)
        nodes = []
        for number in range(count):
            labels: dict[str, Any] = {
                "topology.gangwatch.io/spine": f"s{number // 250}",
                "topology.gangwatch.io/rack": f"r{number // 16}",
            }
            nodes.append(node_body(f"n{number:05}", GPUS, **labels))
        load.nodes(nodes)
        say(f"{count} nodes made")
        state = folder / "state"
        with Seen(access) as seen, controller(plane, state) as process:
            until("the controller is up", (state / "controller.json").exists)
            pods = "/api/v1/namespaces/default/pods"
            groups = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"

            def run(names: list[str], bodies: list[Any]) -> float:
                """Seconds from the last pod's creation until all of these are bound."""
                load.create(pods, bodies)
                began = time.monotonic()
                keys = [f"default/{name}" for name in names]
                ended = until("all are bound", lambda: all(key in seen.pods for key in keys))
                return ended - began

            def clear(names: list[str]) -> None:
                load.delete([f"{pods}/{name}" for name in names])
                until("they are gone", lambda: not any(f"default/{name}" in seen.pods for name in names))

            names = [f"single-{number}" for number in range(min(count * GPUS, 4000))]
            ask(state, "freeze")
            load.create(pods, [pod_body(name, 1) for name in names])
            time.sleep(SETTLE_SECONDS)
            began = time.monotonic()
            ask(state, "thaw")
            ended = until("all are bound", lambda: len(seen.pods) == len(names))
            found["binds_per_second"] = len(names) / (ended - began)
            say(f"pods bound a second: {found['binds_per_second']:.0f}")
            clear(names)

            gangs = [f"gang-{number}" for number in range(min(GANGS, count * GPUS // 3))]
            members = [f"{gang}-{rank}" for gang in gangs for rank in range(3)]
            load.create(groups, [group_body(gang, 3) for gang in gangs])
            began = time.monotonic()
            seconds = run(members, [pod_body(name, 1, name.rpartition("-")[0]) for name in members])
            found["gang_ms"] = seconds * 1000 / len(gangs)
            found["gang_all_ms"] = (time.monotonic() - began) * 1000 / len(gangs)
            say(f"a gang of 3: {found['gang_ms']:.2f} ms")
            clear(members)
            load.delete([f"{groups}/{gang}" for gang in gangs])

            members = [f"wide-{rank}" for rank in range(512)]
            load.create(groups, [group_body("wide", 512, **{"gangwatch.io/required-topology": "spine"})])
            began = time.monotonic()
            found["gang512_seconds"] = run(members, [pod_body(name, 1, "wide") for name in members])
            found["gang512_all_seconds"] = time.monotonic() - began
            say(f"512 pods, required topology: {found['gang512_seconds']:.2f} s")
            clear(members)

            load.create(groups, [group_body("never", 10)])
            body = {"nodeSelector": {"pool": "none"}}
            load.create(pods, [pod_body(f"never-{number}", 1, "never", **body) for number in range(10)])
            began = time.monotonic()
            found["unschedulable_seconds"] = until("it says so", lambda: "default/never" in seen.told) - began
            say(f"a gang that cannot run: {found['unschedulable_seconds']:.2f} s")

            victims = [f"n{number:05}" for number in range(0, count, max(count // CORDONED, 1))][:CORDONED]
            began = time.monotonic()
            for victim in victims:
                ask(state, f"nodes/{victim}/quarantine", b'{"reason": "benchmark"}')
            marked = until("all are tainted", lambda: len(seen.tainted) == len(victims))
            found["cordon_nodes_per_second"] = len(seen.tainted) / (marked - began)
            found["cordoned"] = len(seen.tainted)
            say(f"nodes cordoned a second: {found['cordon_nodes_per_second']:.0f}")

            found["rss_mib"] = resident_mib(process.pid)
            found["pods"] = len(seen.pods)
    return found


def ask(state: Path, path: str, body: bytes = b"{}") -> None:
    """POST to the controller's API, as the command line does."""
    record = msgspec.json.decode((state / "controller.json").read_bytes())
    headers = {
        "Authorization": f"Bearer {(state / 'token').read_text().strip()}",
        "Content-Type": "application/json",
    }
    request = Request(f"{record['url']}/api/{path}", data=body, headers=headers, method="POST")
    with urlopen(request, timeout=60) as answer:
        answer.read()


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS in /proc/PID/status (proc(5))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--nodes", type=int, nargs="+", default=[500], help="how many, one run each")
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # and nothing that was started is left

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found: dict[str, dict[str, float]] = {}
    for count in arguments.nodes:
        with tempfile.TemporaryDirectory(prefix="gangwatch-kubernetes-") as folder:
            try:
                found[str(count)] = measure(count, Path(folder), say)
            except BaseException:
                log = Path(folder) / "controller.log"
                say(log.read_text()[-3000:] if log.exists() else "no controller was started")
                raise
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, figures in found.items():
            print(f"{name} nodes on {os.cpu_count()} processors: {figures}")


if __name__ == "__main__":
    main()
