"""Objects of `make demo-kubernetes` and its steps, without kubelets. test_demo_kubernetes.py runs the whole demo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kubernetes_demo import __main__ as demonstration
from benchmarks.kubernetes_demo import manifests
from benchmarks.kubernetes_demo.cpu_quota import PERIOD_US, CpuQuota, group_of, limit
from benchmarks.kubernetes_demo.manifests import NAMESPACE, Training
from benchmarks.kubernetes_demo.observer import Observer
from gangwatch.demo.account import Account
from gangwatch.demo.listener import SeenStep
from gangwatch.demo.play import LOAD, RANKS_AT_ONCE, Play
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata
from scheduler_feedback.backends.kubernetes.objects.translate import job_id_of
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for
from tests.kubernetes.test_feedback import POLICY, accuse

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GROUPS = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/podgroups"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
TRAINING = Training("training", 4, 100, 0.1, 0, 600.0, {"gangwatch.io/restartable": "true"})


@pytest.fixture
def demo(cluster: Cluster, plane: ControlPlane) -> Iterator[Cluster]:
    """Cluster with three nodes and the objects that all jobs of the demo use, without a volume controller."""
    needs_manager(plane)
    api = cluster.api
    cluster.add_nodes("node-1", "node-2", "node-3", gpus=3)
    if api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        api.create("/api/v1/namespaces", manifests.namespace())
    api.create("/api/v1/persistentvolumes", manifests.volume("/data"))
    for name in ("checkpoints", "gangwatch-steps"):
        body = manifests.claim()
        body["metadata"]["name"] = name
        api.create(CLAIMS, body)
        api.patch(f"{CLAIMS}/{name}/status", {"status": {"phase": "Bound"}})
    yield cluster
    for path in (JOBS, GROUPS):
        api.delete(path, {"propagationPolicy": "Background"})
    api.delete(PODS, {"gracePeriodSeconds": 0})
    wait_for("its pods are gone", lambda: not api.get(PODS)["items"])
    for name in ("checkpoints", "gangwatch-steps"):
        api.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        api.delete(f"{CLAIMS}/{name}")


def test_the_training_is_admitted_bound_and_moved_without_a_failure_of_its_job(
    demo: Cluster, access: Access, folder: Path
) -> None:
    demo.api.create(GROUPS, manifests.group(TRAINING))
    demo.api.create(JOBS, manifests.training(TRAINING, "none"))
    observer = Observer(demo.api.get)
    try:
        with running(access, folder, POLICY) as it:
            wait_for("all four run", lambda: len([p for p in observer.pods("training") if p.running]) == 4)
            before = observer.pods("training")
            assert [pod.rank for pod in before] == [0, 1, 2, 3], "one gang, although its volumes changed"
            assert [pod.name.rsplit("-", 1)[0] for pod in before] == [f"training-{rank}" for rank in range(4)]
            victim = before[0]
            accuse(it, "training", victim.node)
            moved = wait_for("it is moved", lambda: [p for p in observer.pods("training") if p.attempt == 2])
            wait_for("whole", lambda: len([p for p in observer.pods("training") if p.attempt == 2 and p.running]) == 4)
            assert victim.node not in {pod.node for pod in observer.pods("training")}, moved
            assert not demo.api.get(f"{JOBS}/training")["status"].get("failed"), (
                "its failures would end it: backoffLimit is 0"
            )
    finally:
        observer.close()


def answer(*pods: dict[str, Any]) -> Any:
    return lambda _path: {"items": list(pods)}


def seen_pod(uid: str, rank: int, attempt: int, node: str = "node-1") -> dict[str, Any]:
    annotations = {"gangwatch.io/attempt": str(attempt), "gangwatch.io/rank": str(rank)}
    labels = {"scheduling.x-k8s.io/pod-group": "training"}
    metadata = {"uid": uid, "name": f"training-{rank}", "annotations": annotations, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def test_steps_of_pods_get_the_gang_attempt_and_rank_that_gangwatch_wrote() -> None:
    unbound = {"metadata": {"uid": "u9", "name": "x", "labels": {}}, "spec": {}, "status": {}}
    observer = Observer(answer(seen_pod("u1", 3, 2), unbound))
    try:
        wait_for("the pod is seen", lambda: observer.pods("training"))
        steps = [SeenStep("pod-u1", 0, 0, 7, 100, 0.5, None), SeenStep("pod-u2", 0, 0, 7, 100, 0.5, None)]
        (step,) = observer.named(steps, {"training": "demo.training.1"})
        assert (step.gang, step.attempt, step.rank, step.step) == ("demo.training.1", 2, 3, 7)
        assert observer.on("node-1") == {"u1"} and observer.on("node-2") == set()
    finally:
        observer.close()


@pytest.mark.parametrize("version", [1, 2])
def test_the_fault_limits_its_pod_and_later_pods_of_the_node_and_removes_all_limits(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.kubernetes_demo.cpu_quota.GROUPS", tmp_path)
    hierarchy = tmp_path / "cpu" if version == 1 else tmp_path
    files = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"} if version == 1 else {"cpu.max": "max 100000"}

    def add(uid: str) -> Path:
        group = hierarchy / "gangwatch-cluster" / "node-1" / "kubepods" / "burstable" / f"pod{uid}"
        group.mkdir(parents=True)
        for name, text in files.items():
            (group / name).write_text(text)
        return group

    def limits(*groups: Path) -> list[str]:
        return [(group / next(iter(files))).read_text() for group in groups]

    victim, other = add("victim"), add("other")
    assert group_of("victim") == victim and group_of("nobody") is None
    present = {"victim", "other"}
    lines: list[dict[str, Any]] = []
    fault = CpuQuota("victim", lambda: present, 0.07, lines)
    fault.begin()
    slow, free = ("7000", "-1") if version == 1 else ("7000 100000", "max 100000")
    assert limits(victim, other) == [slow, free]
    later = add("later")
    present = {"other", "later"}
    wait_for("a later pod is slowed", lambda: limits(later) == [slow])
    fault.end()
    assert limits(victim, other, later) == [free] * 3
    assert [line["act"] for line in lines] == ["began", "holds", "holds", "ended"]
    limit(other, None)


def test_the_delay_of_the_head_is_read_from_the_journal(demo: Cluster, access: Access, folder: Path) -> None:
    observer = Observer(demo.api.get)

    def submit(name: str, ranks: int, seconds: float, **annotations: str) -> str:
        job = Training(
            name, ranks, 100, 0.1, 0, seconds, {f"gangwatch.io/{key}": text for key, text in annotations.items()}
        )
        group = demo.api.create(GROUPS, manifests.group(job))
        demo.api.create(JOBS, manifests.training(job, "none"))
        return job_id_of(Metadata(name=name, namespace=NAMESPACE, uid=group["metadata"]["uid"]))

    def run(name: str, ranks: int, attempt: int = 1) -> bool:
        return len([pod for pod in observer.pods(name) if pod.running and pod.attempt >= attempt]) == ranks

    def end(name: str) -> None:
        for pod in observer.pods(name):
            demo.api.patch(f"{PODS}/{pod.name}/status", {"status": {"phase": "Succeeded"}})

    try:
        with running(access, folder, POLICY) as it:
            submit("training", 4, 200.0, restartable="true")
            wait_for("the training runs", lambda: run("training", 4))
            head = submit("head", 6, 60.0)
            wait_for("slots are reserved", lambda: it.controller.cycle.ask(lambda state: state.reserved_for).result(9))
            accuse(it, "training", observer.pods("training")[0].node)
            wait_for("it is moved", lambda: run("training", 4, 2))
            short = submit("short", 2, 36.0)
            wait_for("short is backfilled", lambda: run("short", 2))
            end("short")
            end("training")
            wait_for("the head runs", lambda: run("head", 6))
    finally:
        observer.close()
    play = Play(folder, 0, job_ids={"head": head, "short": short})
    account = Account(play, [], None)
    delay = account.head_delay_seconds(head, short)
    assert delay is not None and delay <= 1.0


@pytest.mark.parametrize("microseconds", [2, 40, 500], ids=["fast", "ordinary", "slow"])
def test_every_rank_works_enough_for_a_quota_to_slow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, microseconds: int
) -> None:
    def alone(folder: Path, steps: int, seed: int, ranks: int, batch: int) -> dict[str, Any]:
        return {"step_seconds": batch * microseconds / 1e6}

    monkeypatch.setattr(demonstration, "alone", alone)
    batch, pause, step = demonstration.pace(tmp_path / "calibration", 0)
    least = demonstration.LEAST_WORK_SECONDS
    assert least <= step - pause
    assert batch == manifests.BATCH or step - pause < 1.2 * least, "no larger than it has to be"
    assert step >= 2 * PERIOD_US / 1e6
    assert RANKS_AT_ONCE * (step - pause) <= LOAD * len(os.sched_getaffinity(0)) * step * 1.001
