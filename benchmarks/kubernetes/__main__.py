"""Speed of gang scheduling on a real API server: `python -m benchmarks.kubernetes --json`.

For each number of nodes, starts a control plane on loopback (etcd on disk, kube-apiserver, no audit log) and creates
node objects without kubelets. Then runs three schedulers, one after the other, on the same pods: our controller with
its journal on disk; kube-scheduler, which has no gangs; and a loop that only binds pods, as the upper limit of the API
server. Results come from a watch of the API server.

    binds_per_second      single pods that all fit at once, bound per second. Our controller is frozen while they are
                          created, and time runs from its thaw; the others are started after the creation, and time
                          runs from the first bound pod
    gang_ms               1,000 gangs of 3: milliseconds a gang, from the last pod's creation to all bound
    gang_all_ms           the same from the first pod's creation, including the server's time to create them
    gang512_seconds       a 512-pod gang, all of it inside one spine (kube-scheduler: anywhere): from the last pod's
                          creation to all bound; gang512_all_seconds from the first's
    unschedulable_seconds a gang of 10 that fits no node: from its last pod to its condition (kube-scheduler: to the
                          condition of all ten pods), both as the watch delivers them; median of five gangs, and
                          unschedulable_most_seconds, the longest
    cordon_nodes_per_second  500 nodes reported as broken by verdicts: from the verdicts to the taint on the last node
    rss_mib               a controller that takes over a cluster with ten pods a node, eight of them ours in running
                          gangs of eight: resident once it has settled and has written a snapshot; rss_most_mib: at most
    *_processor_ms        processor time of a bind, by process

`kube_scheduler` and `server` contain the same keys for kube-scheduler and the binding loop.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kubernetes import contenders
from benchmarks.kubernetes.contenders import memory_mib, processor_seconds
from benchmarks.kubernetes.watching import Load, Seen, until
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, PLACEMENT, RANK, SLOTS
from scheduler_feedback.controller.cycle_thread import SNAPSHOT_SECONDS
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, install_crds
from tests.kubernetes.makers import group_body, node_body, pod_body

GPUS = 8
SINGLES = 4000
GANGS = 1000
CORDONED = 500
UNSCHEDULABLE_GANGS = 5
SETTLE_SECONDS = 2.0
"""Seconds to wait until the last pods have reached a frozen controller, or a new leader has seen all running pods."""

RUNNING: Any = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ],
    "containerStatuses": [
        {
            "name": "main",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "ready": True,
            "restartCount": 0,
            "image": "none",
            "imageID": "none",
        }
    ],
}
"""Status of a running pod, as a kubelet would write it."""

PARTS = ("binds", "gangs", "gang512", "unschedulable", "cordon", "memory")
WHO = ("gangwatch", "kube-scheduler", "server")
PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
Figures = dict[str, Any]
Start = Callable[[], AbstractContextManager[subprocess.Popen[bytes]]]


class Bed:
    """A cluster of `count` node objects on a real API server, with the measurements of the benchmark."""

    def __init__(self, plane: ControlPlane, folder: Path, count: int, say: Callable[[str], None]) -> None:
        self.plane, self.folder, self.count, self.say = plane, folder, count, say
        self.load = Load(plane.access())
        self.seen = Seen(plane.access())
        self._pods: list[str] = []

    def prepare(self) -> None:
        api = Api(self.plane.access())
        install_crds(api)
        api.close()
        bodies = []
        for number in range(self.count):
            labels: dict[str, Any] = {
                "topology.gangwatch.io/spine": f"s{number // 250}",
                "topology.gangwatch.io/rack": f"r{number // 16}",
            }
            bodies.append(node_body(name_of(number), GPUS, **labels))
        self.load.create("/api/v1/nodes", bodies)  # a node may be created with its status
        self.say(f"{self.count} nodes made")

    def create_pods(self, bodies: list[Any]) -> None:
        self.load.create(PODS, bodies)
        self._pods += [body["metadata"]["name"] for body in bodies]

    def clear(self) -> None:
        """Delete all pods."""
        self.load.delete([f"{PODS}/{name}" for name in self._pods])
        self._pods = []
        until("no pod is bound", lambda: not self.seen.bound)

    # --- the parts ---------------------------------------------------------------------------------------------------

    def singles(self, scheduler: str) -> int:
        """Create pods without gangs for this scheduler, and return their number."""
        names = [f"single-{number}" for number in range(min(self.count * GPUS, SINGLES))]
        self.create_pods([pod_body(name, 1, schedulerName=scheduler) for name in names])
        self.seen.forget()
        return len(names)

    def _all_bound(self, pods: int, began: float | None, who: int) -> Figures:
        """Wait until `pods` pods are bound, and return the figures.

        The measured time starts at `began`, or at the first bound pod if `began` is None. who: process id of the
        scheduler.
        """
        names = {
            "kube-apiserver": self.plane.process_id("kube-apiserver"),
            "etcd": self.plane.process_id("etcd"),
            "binder": who,
            "watch": os.getpid(),
        }
        before = {name: processor_seconds(pid) for name, pid in names.items()}
        until("all are bound", lambda: len(self.seen.bound) == pods)
        first = began if began is not None else self.seen.first
        assert first is not None, "a bound pod was seen"
        found: Figures = {"binds_per_second": pods / (self.seen.last - first)}
        for name, pid in names.items():
            found[f"{name.replace('-', '_')}_processor_ms"] = (processor_seconds(pid) - before[name]) * 1000 / pods
        return found

    def binds_of_ours(self, state: Path, process: subprocess.Popen[bytes]) -> Figures:
        contenders.ask(state, "freeze")
        pods = self.singles(contenders.OURS)
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        contenders.ask(state, "thaw")
        return self._all_bound(pods, began, process.pid)

    def binds_of(self, scheduler: str, start: Start) -> Figures:
        """Measure the binding of pods by a scheduler that starts after their creation. start: starts the scheduler."""
        pods = self.singles(scheduler)
        with start() as process:
            # A finished loop stays a zombie process until it is waited for, so its CPU times can still be read.
            return self._all_bound(pods, None, process.pid)

    def gangs(self, scheduler: str) -> Figures:
        gangs = [f"gang-{number}" for number in range(min(GANGS, self.count * GPUS // 3))]
        members = [f"{gang}-{rank}" for gang in gangs for rank in range(3)]
        self.load.create(GROUPS, [group_body(gang, 3) for gang in gangs])
        bodies = [pod_body(name, 1, name.rpartition("-")[0], schedulerName=scheduler) for name in members]
        last, first = self._run(bodies)
        self.load.delete([f"{GROUPS}/{gang}" for gang in gangs])
        return {"gang_ms": last * 1000 / len(gangs), "gang_all_ms": first * 1000 / len(gangs)}

    def gang512(self, scheduler: str) -> Figures:
        self.load.create(GROUPS, [group_body("wide", 512, **{"gangwatch.io/required-topology": "spine"})])
        bodies = [pod_body(f"wide-{rank}", 1, "wide", schedulerName=scheduler) for rank in range(512)]
        last, first = self._run(bodies)
        self.load.delete([f"{GROUPS}/wide"])
        return {"gang512_seconds": last, "gang512_all_seconds": first}

    def _run(self, bodies: list[Any]) -> tuple[float, float]:
        """Create pods and wait until all are bound. Return the seconds since the creation of the last and of the first
        pod."""
        began = time.monotonic()
        self.create_pods(bodies)
        created = time.monotonic()
        until("all are bound", lambda: len(self.seen.bound) == len(bodies))
        self.clear()
        return max(self.seen.last - created, 0.0), self.seen.last - began

    def unschedulable(self, scheduler: str) -> Figures:
        seconds = sorted(self._unschedulable_seconds(scheduler) for _ in range(UNSCHEDULABLE_GANGS))
        return {"unschedulable_seconds": statistics.median(seconds), "unschedulable_most_seconds": seconds[-1]}

    def _unschedulable_seconds(self, scheduler: str) -> float:
        self.load.create(GROUPS, [group_body("never", 10)])
        names = [f"never-{number}" for number in range(10)]
        body = {"nodeSelector": {"pool": "none"}, "schedulerName": scheduler}
        self.create_pods([pod_body(name, 1, "never", **body) for name in names])
        pods = {f"default/{name}" for name in names}
        keys = {"default/never"} if scheduler == contenders.OURS else pods
        seen = self.seen
        until("the condition is set", lambda: keys <= seen.unschedulable.keys() and pods <= seen.added.keys())
        # Not from the return of create_pods: closing its connections takes longer than a fast scheduler.
        seconds = max(seen.unschedulable[key] for key in keys) - max(seen.added[pod] for pod in pods)
        self.load.delete([f"{GROUPS}/never"])
        self.clear()
        until("pods and conditions are gone", lambda: not seen.unschedulable and not pods & seen.added.keys())
        return seconds

    def cordon(self) -> Figures:
        victims = [name_of(number) for number in range(0, self.count, max(self.count // CORDONED, 1))][:CORDONED]
        with contenders.verdicts(self.plane, self.folder / "verdicts") as process:
            assert process.stdin is not None
            began = time.monotonic()
            process.stdin.write(f"{' '.join(victims)}\n".encode())
            process.stdin.flush()
            ended = until("all are tainted", lambda: len(self.seen.tainted) == len(victims))
            return {"cordon_nodes_per_second": len(victims) / (ended - began), "cordoned": len(victims)}

    def memory(self) -> Figures:
        """Measure a controller that takes over a cluster in which every node runs ten pods.

        On each node, eight pods are in a gang that the previous controller started, and two belong to no gang.
        """
        groups, pods = [], []
        for number in range(self.count):
            node, gang = name_of(number), f"runs-{number}"
            names = [f"{gang}-{rank}" for rank in range(GPUS)]
            placed = {name: [node, rank, [rank]] for rank, name in enumerate(names)}
            written = json.dumps({"attempt": 1, "pods": placed}, separators=(",", ":"))
            groups.append(group_body(gang, GPUS, **{PLACEMENT: written}))
            for rank, name in enumerate(names):
                body = pod_body(name, 1, gang, nodeName=node)
                body["metadata"]["annotations"] = {ATTEMPT: "1", SLOTS: str(rank), RANK: str(rank)}
                pods.append(body)
            pods += [pod_body(f"other-{number}-{n}", 0, nodeName=node, schedulerName="another") for n in range(2)]
        self.load.create(GROUPS, groups)
        self.create_pods(pods)
        self.load.patch([f"{PODS}/{body['metadata']['name']}/status" for body in pods], {"status": RUNNING})
        self.say(f"{len(pods)} pods run")
        state = self.folder / "memory" / "state"
        with contenders.controller(self.plane, state) as process:
            began, quiet = time.monotonic(), [0.0] * 3
            # Wait until three samples agree: the size has settled.
            while max(quiet) - min(quiet) > 0.5 or time.monotonic() - began < SNAPSHOT_SECONDS + 2 * SETTLE_SECONDS:
                time.sleep(SETTLE_SECONDS)
                quiet = [*quiet[1:], memory_mib(process.pid)]
            most = memory_mib(process.pid, "VmHWM")
            return {"rss_mib": quiet[-1], "rss_most_mib": most, "pods": len(pods)}


def name_of(number: int) -> str:
    return f"n{number:05}"


def measure(count: int, folder: Path, parts: list[str], who: list[str], say: Callable[[str], None]) -> Figures:
    """Return the figures for a cluster of this many nodes."""
    found: Figures = {}
    with ControlPlane(folder / "plane", manager=False) as plane:
        bed = Bed(plane, folder, count, say)
        bed.prepare()
        with bed.seen:

            def add(to: Figures, name: str, figures: Figures) -> None:
                to.update(figures)
                say(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in figures.items())}")

            if "server" in who and "binds" in parts:
                bare = partial(contenders.bare, plane, folder / "bare", count, GPUS)
                add(found.setdefault("server", {}), "server", bed.binds_of(contenders.BARE, bare))
                bed.clear()
            if "kube-scheduler" in who:
                other = found.setdefault("kube_scheduler", {})
                start = partial(contenders.kube_scheduler, plane, folder / "other")
                if "binds" in parts:
                    add(other, "kube-scheduler", bed.binds_of(contenders.KUBE_SCHEDULER, start))
                    bed.clear()
                with start():
                    for name in ("gangs", "gang512", "unschedulable"):
                        if name in parts:
                            add(other, "kube-scheduler", getattr(bed, name)(contenders.KUBE_SCHEDULER))
            if "gangwatch" in who:
                state = folder / "ours" / "state"
                with contenders.controller(plane, state) as process:
                    if "binds" in parts:
                        add(found, "gangwatch", bed.binds_of_ours(state, process))
                        bed.clear()
                    for name in ("gangs", "gang512", "unschedulable"):
                        if name in parts:
                            add(found, "gangwatch", getattr(bed, name)(contenders.OURS))
                for name in ("cordon", "memory"):
                    if name in parts:
                        add(found, "gangwatch", getattr(bed, name)())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 5000], help="numbers of nodes, one run each")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measurements to make")
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO), help="schedulers to measure")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder to keep all logs in")
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # so that all started processes are stopped

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found: dict[str, Figures] = {}
    for count in arguments.nodes:
        with tempfile.TemporaryDirectory(prefix="gangwatch-kubernetes-") as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep / str(count)
            try:
                found[str(count)] = measure(count, folder, arguments.parts, arguments.who, say)
            except BaseException:
                for log in sorted(folder.glob("*/*.log")):
                    if log.parent.name != "plane":
                        say(f"{log.name}: {log.read_text()[-3000:]}")
                raise
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, figures in found.items():
            print(f"{name} nodes on {os.cpu_count()} processors: {figures}")


if __name__ == "__main__":
    main()
