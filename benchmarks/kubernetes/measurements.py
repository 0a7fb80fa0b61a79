"""The measurements of the benchmark, on a cluster of node objects on a real API server."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.kubernetes import contenders
from benchmarks.kubernetes.contenders import memory_mib, processor_seconds
from benchmarks.kubernetes.peers import (
    KUEUE_WORKLOADS,
    OUR_GROUPS,
    OURS,
    POOL,
    SPINE,
    UPSTREAM,
    UPSTREAM_GROUPS,
    VOLCANO_API,
    Peer,
    hyper_nodes,
    queue_sizes,
)
from benchmarks.kubernetes.watching import Load, NotInTimeError, Seen, until
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, PLACEMENT, RANK, SLOTS
from scheduler_feedback.controller.cycle_thread import SNAPSHOT_SECONDS
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, install_crds
from tests.kubernetes.makers import group_body, node_body, pod_body

GPUS = 8
SINGLES = 4000
GANGS = 1000
QUEUED_GANGS = 200
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

PODS = "/api/v1/namespaces/default/pods"
Figures = dict[str, Any]
Start = Callable[[], AbstractContextManager[subprocess.Popen[bytes]]]


class Bed:
    """A cluster of `count` node objects on a real API server, with the measurements of the benchmark."""

    def __init__(
        self, plane: ControlPlane, folder: Path, count: int, say: Callable[[str], None], volcano: Path | None = None
    ) -> None:
        """volcano: folder of Volcano's definitions, to be installed; None if it does not run."""
        self.plane, self.folder, self.count, self.say, self.volcano = plane, folder, count, say, volcano
        self.load = Load(plane.access())
        groups = [f"/apis/{group}/podgroups" for group in ("scheduling.x-k8s.io/v1alpha1", UPSTREAM)]
        groups += [f"/apis/{VOLCANO_API}/podgroups"] if volcano else []
        self.seen = Seen(plane.access(), groups)
        self.spines = 0
        """Number of spines that contain the pods of the last gangs."""
        self.others: Mapping[str, int] = {}
        """Process ids of further programs of the measured scheduler, by name."""
        self.finalized = False
        """Whether the measured scheduler adds finalizers to pods."""
        self._pods: list[str] = []

    def prepare(self) -> None:
        api = Api(self.plane.access())
        install_crds(api)
        if self.volcano is not None:
            install_crds(api, self.volcano)
            api.create("/api/v1/namespaces", {"metadata": {"name": "volcano-system"}})
            self.load.create(
                "/apis/topology.volcano.sh/v1alpha1/hypernodes",
                hyper_nodes(sorted({spine_of(name_of(number)) for number in range(self.count)})),
            )
        api.close()
        bodies = []
        for number in range(self.count):
            labels: dict[str, Any] = {
                SPINE: spine_of(name_of(number)),
                "topology.gangwatch.io/rack": f"r{number // 16}",
                POOL: "all",
            }
            bodies.append(node_body(name_of(number), GPUS, **labels))
        self.load.create("/api/v1/nodes", bodies)  # a node may be created with its status
        self.say(f"{self.count} nodes made")

    def create_pods(self, bodies: list[Any]) -> float:
        """Create pods. Return the monotonic time at which the last request was sent."""
        self._pods += [body["metadata"]["name"] for body in bodies]
        return self.load.create(PODS, bodies)

    def delete_groups(self, peer: Peer, names: Iterable[str]) -> None:
        """Delete groups. No controller runs that removes the finalizer of Kubernetes' own PodGroups, and Kueue keeps
        its own."""
        paths = [f"{peer.groups}/{name}" for name in names]
        if peer.groups in (UPSTREAM_GROUPS, KUEUE_WORKLOADS):
            self.load.patch(paths, {"metadata": {"finalizers": None}})
        self.load.delete(paths)

    def clear(self) -> None:
        """Delete all pods."""
        paths = [f"{PODS}/{name}" for name in self._pods]
        if self.finalized:
            self.load.patch(paths, {"metadata": {"finalizers": None}})
        self.load.delete(paths)
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
        pods = self.singles(OURS.scheduler)
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

    def gangs(self, peer: Peer, process: subprocess.Popen[bytes]) -> Figures:
        gangs = {f"gang-{number}": 3 for number in range(min(GANGS, self.count * GPUS // 3))}
        last, first, processor = self._run(peer, gangs, process)
        return {"gang_ms": last * 1000 / len(gangs), "gang_all_ms": first * 1000 / len(gangs), **_of("gang", processor)}

    def gang512(self, peer: Peer, process: subprocess.Popen[bytes]) -> Figures:
        last, first, processor = self._run(peer, {"wide": 512}, process, one_spine=True)
        figures = {"gang512_seconds": last, "gang512_all_seconds": first, "gang512_spines": self.spines}
        return {**figures, **_of("gang512", processor)}

    def queue(self, peer: Peer, process: subprocess.Popen[bytes]) -> Figures:
        sizes = queue_sizes(self.count * GPUS, QUEUED_GANGS)
        gangs = {f"queued-{number}": size for number, size in enumerate(sizes)}
        last, first, processor = self._run(peer, gangs, process)
        figures = {
            "queue_seconds": last,
            "queue_all_seconds": first,
            "queue_gangs": len(sizes),
            "queue_pods": sum(sizes),
        }
        return {**figures, **_of("queue", processor)}

    def _run(
        self, peer: Peer, gangs: Mapping[str, int], process: subprocess.Popen[bytes], *, one_spine: bool = False
    ) -> tuple[float, float, Figures]:
        """Create gangs, and wait until all of their pods are bound.

        gangs: number of pods of each gang. process: the scheduler. Return the seconds since the request that created
        the last pod and since the one that created the first, and the processor seconds of the scheduler and of the
        API server since then. Raises NotInTimeError with the number of bound pods if they are not bound in time, or if
        the scheduler has ended. A time from the response, or from the return of `create_pods`, would be too short: a
        fast scheduler binds a pod before.
        """
        if not peer.makes_groups:
            self.load.create(peer.groups, [peer.group(name, size, one_spine=one_spine) for name, size in gangs.items()])
        bodies = [
            peer.pod(f"{name}-{rank}", name, size, one_spine=one_spine)
            for name, size in gangs.items()
            for rank in range(size)
        ]
        processes = {"scheduler": process.pid, "server": self.plane.process_id("kube-apiserver"), **self.others}
        before = {name: processor_seconds(one) for name, one in processes.items()}
        began = time.monotonic()
        try:
            sent = self.create_pods(bodies)
            self._until_bound(len(bodies), process)
            self.spines = len({spine_of(node) for node in self.seen.bound.values()})
            ended = self.seen.last
            used = {name: processor_seconds(one) - before[name] for name, one in processes.items()}
        finally:
            self.clear()
            self.delete_groups(peer, gangs)
        return ended - sent, ended - began, used

    def _until_bound(self, pods: int, process: subprocess.Popen[bytes]) -> None:
        try:
            until("all are bound", lambda: len(self.seen.bound) == pods or process.poll() is not None)
        except NotInTimeError as error:
            raise NotInTimeError(f"{error}: {len(self.seen.bound)} of {pods}") from error
        if len(self.seen.bound) != pods:
            raise NotInTimeError(
                f"the scheduler ended with code {process.poll()}: {len(self.seen.bound)} of {pods} bound"
            )

    def unschedulable(self, peer: Peer, _process: subprocess.Popen[bytes]) -> Figures:
        seconds = sorted(self._unschedulable_seconds(peer) for _ in range(UNSCHEDULABLE_GANGS))
        return {"unschedulable_seconds": statistics.median(seconds), "unschedulable_most_seconds": seconds[-1]}

    def _unschedulable_seconds(self, peer: Peer) -> float:
        if not peer.makes_groups:
            self.load.create(peer.groups, [peer.group("never", 10)])
        names = [f"never-{number}" for number in range(10)]
        pods = {f"default/{name}" for name in names}
        keys = {"default/never"} if peer.group_condition else pods
        seen = self.seen
        try:
            sent = self.create_pods([peer.pod(name, "never", 10, nodeSelector={"pool": "none"}) for name in names])
            until("the condition is set", lambda: keys <= seen.unschedulable.keys() and pods <= seen.added.keys())
            seconds = max(seen.unschedulable[key] for key in keys) - sent
        finally:
            self.clear()
            self.delete_groups(peer, ["never"])
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
        self.load.create(OUR_GROUPS, groups)
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


def spine_of(node: str) -> str:
    """Return the spine of a node: each has 250 nodes."""
    return f"s{int(node[1:]) // 250}"


def _of(part: str, processor: Figures) -> Figures:
    """Return processor seconds under the names that the results have."""
    return {f"{part}_{name}_processor_seconds": seconds for name, seconds in processor.items()}
