"""The demo's sequence on the cluster: install the chart, start gangs, slow one pod, wait for the reactions."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_demo import manifests
from benchmarks.kubernetes_demo.cpu_quota import CpuQuota, group_of, use_seconds
from benchmarks.kubernetes_demo.manifests import GPU, NAMESPACE, Training
from benchmarks.kubernetes_demo.observer import Observer, SeenPod, listen
from gangwatch.demo.listener import Listener, SeenStep
from gangwatch.demo.play import HEAD_RANKS, TRAINING_RANKS, DemoError, Play, Schedule, example
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata
from scheduler_feedback.backends.kubernetes.objects.translate import job_id_of
from scheduler_feedback.backends.kubernetes.published.marks import STATE
from tests.deploy.test_chart import one, render
from tests.kubernetes.device_plugin import DevicePlugin
from tests.kubernetes.harness import Api
from tests.kubernetes.real_kubelets import NAMESPACE as RELEASE
from tests.kubernetes.real_kubelets import RealCluster

NODES = 3
GPUS = 3
"""GPUs of a node. The training and the short gang fill two nodes, so that they fit when the third is in quarantine."""
LEFT = 0.4
"""Share of its CPU use that the fault leaves to a pod."""
RESTART_SECONDS = 25.0
"""Seconds of work that the training gets in addition: a restart in containers takes longer than one of processes."""

LIGHT = 16
"""Samples of a rank and step of the backfilled gang. All nodes are one machine: a gang that computes as much as the
training would slow it down, and gangwatch would rightly report that."""

CONFIGURATION = """\
# Minutes of production shortened to seconds, as in `gangwatch demo`.
[policy]
quarantine_seconds = {quarantine}
suspect_seconds = {quarantine}
probation_seconds = 5
"""


class Conductor:
    """One run of the demo on a cluster that has started. ``perform`` returns the record of the run."""

    def __init__(
        self,
        folder: Path,
        play: Play,
        batch: int,
        schedule: Schedule,
        cluster: RealCluster,
        api: Api,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.play, self.batch, self.schedule = folder, play, batch, schedule
        self.cluster, self.api, self.say = cluster, api, say
        self.listener = Listener()
        self.observer = Observer(api.get)
        self.image = ""
        self._fault: CpuQuota | None = None
        self._victim: SeenPod | None = None
        self._share = 0.0  # of a processor, which the victim uses
        self._nodes = [f"node-{index}" for index in range(1, NODES + 1)]

    def perform(self, disturbed: bool) -> Play:
        """Run the whole demo. The cluster runs on when this method returns or raises."""
        with ExitStack() as stack:
            stack.callback(self.listener.close)
            stack.callback(self.observer.close)
            for node in self._nodes:
                folder = self.cluster.folder / node / "var/lib/kubelet/device-plugins"
                stack.enter_context(DevicePlugin(folder, [f"GPU-{node}-{index}" for index in range(GPUS)]))
            stack.callback(self._end_fault)
            self._install()
            self._open()
            if disturbed:
                self._disturb()
            else:
                self.say("no disturbance: gangwatch must report no verdict")
                time.sleep(self.schedule.after)
            self._close()
            self._copy_journal()
        return self.play

    def steps(self) -> list[SeenStep]:
        """Return all steps that the agents have reported, with the names of their gangs."""
        return self.observer.named(self.listener.steps(), self.play.job_ids)

    # --- cluster -----------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        """Install the chart with the steps of pods and the probes of nodes enabled, and what the jobs share."""
        api = self.api
        api.create("/api/v1/namespaces", manifests.namespace())
        values: dict[str, Any] = {
            "agent": {"features": {"steps": True}},
            "steps": {"namespaces": [NAMESPACE]},
            "controller": {"replicas": 1, "config": CONFIGURATION.format(quarantine=self.schedule.after + 2)},
        }
        # Jobs and probes have the controller's image, whose name the chart composes.
        controllers = one(render(), "Deployment", "gangwatch-controller")
        self.image = controllers["spec"]["template"]["spec"]["containers"][0]["image"]
        values["controller"]["probeImage"] = self.image
        self.cluster.install(values)
        shared = self.folder / "shared"
        for path in (shared, *(shared / name for name in ("training", "head", "short"))):
            path.mkdir()
            path.chmod(0o777)  # the containers' user is not ours
        api.create("/api/v1/persistentvolumes", manifests.volume(str(shared)))
        self._create("/api/v1", "persistentvolumeclaims", manifests.claim())
        self._create("/api/v1", "configmaps", manifests.program(example("train_dp.py").read_text()))
        self.wait_until("every node has its GPUs", self._have_gpus, 60)
        agents = self._pods_of("agent")
        secret = api.get(f"/api/v1/namespaces/{RELEASE}/secrets/gangwatch-tls")["data"]
        addresses = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in agents}
        listen(self.listener, addresses, secret, self.folder / "certificates")

    def _have_gpus(self) -> bool:
        nodes = self.api.get("/api/v1/nodes")["items"]
        return all(node["status"]["allocatable"].get(GPU) == str(GPUS) for node in nodes)

    def _pods_of(self, component: str) -> list[dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{RELEASE}/pods")["items"]
        label = "app.kubernetes.io/component"
        return [
            pod
            for pod in found
            if pod["metadata"]["labels"].get(label) == component and "deletionTimestamp" not in pod["metadata"]
        ]

    def _create(self, api: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.api.create(f"{api}/namespaces/{NAMESPACE}/{kind}", body)
        return made

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(
        self, name: str, ranks: int, steps: int, time_limit: float, batch: int | None = None, **annotations: str
    ) -> None:
        """Create a training job: group, service and Job. batch: samples of a rank and step; None: those of the demo."""
        play = self.play
        prefixed = {f"gangwatch.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        job = Training(name, ranks, steps, play.pace_seconds, play.seed, time_limit, prefixed, batch or self.batch)
        group = self._create("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups", manifests.group(job))
        play.job_ids[name] = job_id_of(Metadata(name=name, namespace=NAMESPACE, uid=group["metadata"]["uid"]))
        self._create("/api/v1", "services", manifests.service(job))
        self._create("/apis/batch/v1", "jobs", manifests.training(job, self.image))

    def runs(self, name: str, ranks: int, attempt: int = 1) -> bool:
        pods = [pod for pod in self.observer.pods(name) if pod.running and pod.attempt >= attempt]
        return len(pods) == ranks

    def ended(self, name: str) -> str:
        """Return 'Complete' or 'Failed' if the Job has ended, else ''."""
        job = self.api.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")
        conditions = [one["type"] for one in job["status"].get("conditions", ()) if one["status"] == "True"]
        return next((end for end in ("Complete", "Failed") if end in conditions), "")

    def steps_done(self, name: str, attempt: int = 1) -> int:
        """Return the number of different steps of the job that the agents have reported, from this attempt on."""
        gang = self.play.job_ids[name]
        return len({step.step for step in self.steps() if step.gang == gang and step.attempt >= attempt})

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        if not self.happened(condition, seconds):
            raise DemoError(f"timed out after {seconds:.0f} s, waiting until {what}")

    def happened(self, condition: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    # --- sequence ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the training, queue a gang of six ranks, and measure undisturbed step times."""
        play, limit = self.play, 4 * self.play.steps * self.play.step_seconds  # users overestimate run times
        self.submit("training", TRAINING_RANKS, play.steps, limit, restartable="true", restart_cost_seconds="3")
        self.wait_until("the training runs", lambda: self.runs("training", TRAINING_RANKS), 60)
        self.submit("head", HEAD_RANKS, 20, 60.0)
        self.say(f"training ({TRAINING_RANKS} pods) runs; head ({HEAD_RANKS} pods) is pending")
        self.wait_until("the training makes steps", lambda: self.steps_done("training") > 3, 60)
        time.sleep(self.schedule.warm_up)
        pods = self.observer.pods("training")
        self._victim = pods[play.seed % len(pods)]
        group = group_of(self._victim.uid)
        if group is None:
            raise DemoError(f"pod {self._victim.name} has no control group on this machine")
        used, play.steady_from_ns = use_seconds(group), time.time_ns()
        time.sleep(self.schedule.steady)
        self._share = (use_seconds(group) - used) / self.schedule.steady

    def _disturb(self) -> None:
        """Limit the CPU of one pod, wait for verdict, move and backfill; then end the fault and wait for the node."""
        schedule, play = self.schedule, self.play
        assert self._victim is not None
        victim = self._victim
        play.target = {"job": play.job_ids["training"], "rank": victim.rank, "node": victim.node}
        share = self._share * LEFT
        self._fault = CpuQuota(victim.uid, lambda: self.observer.on(victim.node), share, play.disturbance_lines)
        self._fault.begin()
        self.say(
            f"pod {victim.name} on {victim.node} used {self._share * 100:.1f} % of a processor; "
            f"now it gets {share * 100:.1f} %"
        )
        if not self.happened(self._moved, schedule.detect_at_most):
            self.say("gangwatch did not move the gang in time; the demo ends here")
            self._end_fault()
            return
        self.say("gangwatch reported the rank and moves the training; now submitting short (2 pods) to backfill")
        self.submit("short", 2, self._steps_in(schedule.after + 6), schedule.after * 3, LIGHT)
        self.wait_until("the training makes steps again", lambda: self.steps_done("training", 2) > 0, 90)
        self.say("the training runs again")
        self.wait_until("short is backfilled", lambda: self.runs("short", 2) or bool(self.ended("short")), 60)
        time.sleep(2.0)
        play.after_from_ns = time.time_ns()
        time.sleep(schedule.after / 2)
        self.say("removing the quota")
        self._end_fault()
        time.sleep(schedule.after / 2)
        play.after_until_ns = time.time_ns()
        if self.happened(lambda: self._node_state(victim.node) == "", 90):
            self.say(f"{victim.node} passed its probe and its probation: healthy again")

    def _moved(self) -> bool:
        """Return whether the training was evicted and is bound again."""
        return any(pod.attempt > 1 for pod in self.observer.pods("training"))

    def _node_state(self, node: str) -> str:
        """Return the state that gangwatch wrote on the node; '' for a healthy node."""
        labels = self.api.get(f"/api/v1/nodes/{node}")["metadata"].get("labels", {})
        return str(labels.get(STATE, ""))

    def _steps_in(self, seconds: float) -> int:
        return max(10, round(seconds / self.play.step_seconds))

    def _end_fault(self) -> None:
        if self._fault is not None:
            self._fault.end()

    def _close(self) -> None:
        """Wait until the training and then the head of the queue have ended."""
        self.wait_until("the training ends", lambda: bool(self.ended("training")), 240)
        self.wait_until("the head of the queue has run", lambda: bool(self.ended("head")), 90)
        for name in ("training", "head"):
            if self.ended(name) != "Complete":
                raise DemoError(f"Job {name} ended as {self.ended(name)}")

    def _copy_journal(self) -> None:
        """Copy the leader's journal and the training's result to where the report reads them."""
        (leader,) = self._pods_of("controller")
        volumes = self.cluster.folder / leader["spec"]["nodeName"] / "var/lib/kubelet/pods" / leader["metadata"]["uid"]
        journal = volumes / "volumes/kubernetes.io~empty-dir/state/controller/store.sqlite"
        self.play.state_folder.mkdir()
        source, copy = sqlite3.connect(journal), sqlite3.connect(self.play.state_folder / "store.sqlite")
        try:
            source.backup(copy)
        finally:
            source.close()
            copy.close()
        own = self.play.state_folder.parent / "training"
        own.mkdir()
        result = json.loads((self.folder / "shared" / "training" / "result.json").read_text())
        (own / "result.json").write_text(json.dumps(result))
