"""Helpers for tests with a control plane: administrator's requests, a controller in this process, and waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Policy
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.makers import group_body, node_body, pod_body
from tests.needs import absent

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "gangwatch" / "crds"
WAIT_SECONDS = 60.0
_T = TypeVar("_T")
_anything = msgspec.json.Decoder()


def wait_for(what: str, look: Callable[[], _T], seconds: float = WAIT_SECONDS) -> _T:
    """Call `look` until its result is true, and return the result. After `seconds`, fail with `what` and the last
    result."""
    until = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"not in {seconds:g} s: {what}; now: {answer!r}")
        time.sleep(0.05)


class Api:
    """Client of the API server that sends one request after another with the given access."""

    def __init__(self, access: Access) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api", daemon=True)
        self._thread.start()
        self._client = Client(access, agent="test")
        self._do(self._client.__aenter__())

    def close(self) -> None:
        self._do(self._client.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def get(self, path: str) -> Any:
        return self._do(self._client.get(path, _anything))

    def find(self, path: str) -> Any:
        """Return the object; None if it does not exist."""
        try:
            return self.get(path)
        except RefusedError as error:
            if error.code != 404:
                raise
            return None

    def create(self, path: str, body: Any) -> Any:
        return _anything.decode(self._do(self._client.create(path, body)))

    def create_all(self, path: str, bodies: Sequence[Any]) -> None:
        async def work() -> None:
            await asyncio.gather(*(self._client.create(path, body) for body in bodies))

        self._do(work())

    def patch(self, path: str, body: Any, kind: str = "application/merge-patch+json") -> Any:
        return _anything.decode(self._do(self._client.patch(path, body, kind)))

    def delete(self, path: str, body: Any = None) -> None:
        try:
            self._do(self._client.delete(path, body))
        except RefusedError as error:
            if error.code != 404:
                raise


def install_crds(api: Api, folder: Path = CRDS) -> None:
    """Create the definitions in the folder, by default the chart's, and wait until their objects are served."""
    for file in sorted(folder.glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
        name = body["metadata"]["name"]
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        group, version = body["spec"]["group"], body["spec"]["versions"][0]["name"]
        plural = body["spec"]["names"]["plural"]
        wait_for(f"{name} is served", partial(api.find, f"/apis/{group}/{version}/{plural}"))


class Cluster:
    """Cluster with helpers that create, read and end its jobs."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def add_nodes(self, *names: str, gpus: int = 8, **labels: Any) -> None:
        for name in names:
            body = node_body(name, gpus, **labels)
            self.api.create("/api/v1/nodes", body)
            self.api.patch(f"/api/v1/nodes/{name}/status", {"status": body["status"]})

    def add_gang(
        self, name: str, members: int, gpus: int = 8, annotations: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """Create a PodGroup and its pods. The pods have no owner, so no controller recreates them."""
        self.add_group(name, members, annotations)
        self.add_pods(name, members, gpus, **spec)

    def add_group(
        self,
        name: str,
        members: int,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        body = group_body(name, members, **(annotations or {}))
        body["metadata"]["labels"] = labels or {}
        self.api.create("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups", body)

    def add_pods(self, name: str, members: int, gpus: int = 8, **spec: Any) -> None:
        bodies = [pod_body(f"{name}-{number}", gpus, name, **spec) for number in range(members)]
        self.api.create_all("/api/v1/namespaces/default/pods", bodies)

    def add_job(
        self,
        name: str,
        members: int,
        gpus: int = 8,
        annotations: dict[str, str] | None = None,
        pod: dict[str, Any] | None = None,
        pod_annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create a PodGroup, and an indexed Job that creates and recreates its pods."""
        self.add_group(name, members, annotations)
        template = pod_body("", gpus, name, restartPolicy="Never", **(pod or {}))
        template["metadata"]["annotations"] = pod_annotations or {}
        del template["apiVersion"], template["kind"], template["metadata"]["name"], template["metadata"]["namespace"]
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "completions": members,
                "parallelism": members,
                "completionMode": "Indexed",
                "template": template,
                **spec,
            },
        }
        self.api.create("/apis/batch/v1/namespaces/default/jobs", body)

    def add_array(self, name: str, members: int, parallel: int, gpus: int = 8) -> None:
        """Create an indexed Job whose pods are separate gangs of one rank. parallel: most pods that run at a time."""
        template = pod_body("", gpus, restartPolicy="Never")
        annotations = {"gangwatch.io/array-parallel": str(parallel)}
        template = {"metadata": {"labels": {"array": name}, "annotations": annotations}, "spec": template["spec"]}
        spec = {"completions": members, "parallelism": members, "completionMode": "Indexed", "template": template}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
        self.api.create("/apis/batch/v1/namespaces/default/jobs", body)

    def add_volume(self, name: str, affinity: dict[str, Any] | None) -> None:
        spec: dict[str, Any] = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/data"},
        }
        if affinity is not None:
            spec["nodeAffinity"] = affinity
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.api.create("/api/v1/persistentvolumes", body)

    def add_claim(self, name: str, volume: str) -> None:
        """Create a PersistentVolumeClaim that is bound to this volume; unbound if `volume` is ''."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
        metadata = {"name": name, "namespace": "default"}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        self.api.create("/api/v1/namespaces/default/persistentvolumeclaims", body)
        if volume:
            self.bind_claim(name, volume)

    def bind_claim(self, name: str, volume: str) -> None:
        path = f"/api/v1/namespaces/default/persistentvolumeclaims/{name}"
        self.api.patch(path, {"spec": {"volumeName": volume}})
        self.api.patch(f"{path}/status", {"status": {"phase": "Bound"}})

    def running_of(self, array: str) -> list[str]:
        """Return the names of the running pods of an indexed Job."""
        found = self.api.get(f"/api/v1/namespaces/default/pods?labelSelector=array%3D{array}")
        return [pod["metadata"]["name"] for pod in found["items"] if pod["status"].get("phase") == "Running"]

    def pods(self, gang: str) -> list[Any]:
        found = self.api.get(f"/api/v1/namespaces/default/pods?labelSelector=scheduling.x-k8s.io/pod-group%3D{gang}")
        return list(found["items"])

    def nodes_of(self, gang: str) -> dict[str, str]:
        """Return {pod: node} for the gang's bound pods that are not being deleted."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods(gang)
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        }

    def bound(self, gang: str) -> int:
        return len(self.nodes_of(gang))

    def condition(self, gang: str) -> dict[str, str]:
        """Return the condition in the gang's PodGroup; {} if there is none."""
        found = self.api.get(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/{gang}")
        conditions = found.get("status", {}).get("conditions", [])
        return dict(conditions[0]) if conditions else {}

    def finish(self, gang: str, phase: str = "Succeeded") -> None:
        """Set all pods of the gang to this final phase, as a kubelet does."""
        for pod in self.pods(gang):
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
            self.api.patch(path, {"status": {"phase": phase}})

    def clear(self) -> None:
        """Delete all objects that tests have created."""
        for path in (
            "/apis/batch/v1/namespaces/default/jobs",
            "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups",
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            "/apis/gangwatch.io/v1alpha1/queues",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            "/api/v1/namespaces/default/configmaps",
        ):
            self.api.delete(path, {"propagationPolicy": "Background"})
        self.api.delete("/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
        self.api.delete("/api/v1/nodes")
        self._clear_volumes()
        for kind in ("resourceslices", "deviceclasses", "namespaces/default/resourceclaimtemplates"):
            self.api.delete(f"/apis/resource.k8s.io/v1/{kind}")
        self._clear_finalized("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims")
        wait_for("all pods are gone", lambda: not self.api.get("/api/v1/pods")["items"])

    def _clear_volumes(self) -> None:
        """Remove the finalizers of volumes and claims, because no controller runs that would do so."""
        for path in ("/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"):
            self._clear_finalized(path)

    def _clear_finalized(self, path: str) -> None:
        for item in self.api.get(path)["items"]:
            one = f"{path}/{item['metadata']['name']}"
            self.api.delete(one)
            with suppress(RefusedError):  # a controller may have removed them, and the object, in the meantime
                self.api.patch(one, {"metadata": {"finalizers": None}})


class Running:
    """Controller that runs in this process."""

    def __init__(self, backend: KubernetesBackend, controller: Controller) -> None:
        self.backend, self.controller = backend, controller

    def jobs(self) -> dict[str, Job]:
        """Return the current jobs by the name of their gang."""
        found = self.controller.cycle.ask(lambda state: [replace(job) for job in state.jobs.values()]).result(30)
        return {job.spec.name: job for job in found}


@contextmanager
def running(
    access: Access,
    folder: Path,
    policy: Policy | None = None,
    *,
    fresh: bool = True,
    watching: bool = False,
    probes: Probes | None = None,
    memory: tuple[str, str] | None = None,
    upstream: bool = False,
    may_act: Callable[[], bool] = lambda: True,
) -> Iterator[Running]:
    """Run a controller with its backend.

    fresh: whether it rebuilds the state from the API's objects instead of from the journal in the folder. watching:
    whether it reads the agents that are announced in its folder, with all detectors. probes: how it measures nodes.
    memory: namespace and name of the ConfigMap for its state. upstream: whether it also reads Kubernetes' own
    PodGroups. may_act: returns whether the controller holds the Lease.
    """
    policy = policy or Policy(retry_backoff_seconds=0.5, probe_command=())
    settings = KubernetesSettings(
        access, may_act=may_act, rebuilds=fresh, memory=memory, probes=probes, upstream_groups=upstream
    )
    backend = KubernetesBackend(folder, settings)
    detectors = None if watching else ()
    with Controller(folder, backend, policy, ControllerSettings(detectors=detectors)) as controller:
        with reading(controller) if watching else nullcontext():
            yield Running(backend, controller)
        if controller.failure is not None:
            raise controller.failure


@contextmanager
def reading(controller: Controller) -> Iterator[None]:
    """Let the controller read its agents, in a separate event loop."""
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with controller.serving(over.set):
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="serving", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def needs_manager(plane: ControlPlane) -> None:
    """Skip the test if no kube-controller-manager runs, which recreates pods and counts disruption budgets."""
    if not plane.has_manager:
        absent("kube-controller-manager is absent: packaging/kubernetes/build.sh builds it (needs go)")


__all__ = ["Api", "Cluster", "Running", "install_crds", "needs_manager", "running", "wait_for"]
