"""Gangs of PyTorchJobs with the real controller of Kubeflow's training operator, on a real API server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import LEAST_MEMBERS, MOST_MEMBERS
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.job import JobState
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, Running, running, wait_for
from tests.kubernetes.makers import pod_body
from tests.kubernetes.test_feedback import POLICY, accuse
from tests.kubernetes.training_operator import JOBS, pytorch_job, training_operator

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

MARKS = {RESTARTABLE: "true", TIME_LIMIT: "36000"}


def conditions(cluster: Cluster) -> dict[str, str]:
    found = cluster.api.get(f"{JOBS}/train").get("status", {}).get("conditions", [])
    return {one["type"]: one["status"] for one in found}


def test_a_pytorchjob_is_started_as_a_gang_moved_and_finished(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path, tmp_path: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_group("train", 2, MARKS)
    with training_operator(plane, cluster.api, tmp_path / "operator"), running(access, folder, POLICY) as it:
        cluster.api.create(JOBS, pytorch_job("train", 2, worker()))
        first = wait_for("it runs", lambda: running_job(it))
        wait_for("the operator reports it", lambda: conditions(cluster).get("Running") == "True")
        assert cluster.bound("train") == 2
        before = {pod["metadata"]["uid"] for pod in cluster.pods("train")}
        slow = sorted(cluster.nodes_of("train").values())[1]
        accuse(it, "train", slow)
        again = wait_for("it runs again", lambda: running_job(it, first))
        assert first is not None and again is not None
        assert again == (first[0], 2)
        assert set(cluster.nodes_of("train").values()) == {"n1", "n2", "n3"} - {slow}
        assert not before & {pod["metadata"]["uid"] for pod in cluster.pods("train")}
        job = cluster.api.get(f"{JOBS}/train")
        assert job["spec"]["runPolicy"]["suspend"] is False
        assert "gangwatch.io/suspended" not in job["metadata"].get("labels", {})
        assert not job["status"]["replicaStatuses"]["Worker"].get("failed"), "the move is no failure"
        cluster.finish("train")
        wait_for("the operator reports its end", lambda: conditions(cluster).get("Succeeded") == "True")
        wait_for("it has ended", lambda: it.jobs()["train"].state is JobState.COMPLETED)


def test_an_elastic_pytorchjob_starts_small_and_grows(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path, tmp_path: Path
) -> None:
    """The operator deletes the workers for which there are no slots yet, and adds them when another gang has ended."""
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("other", 1, annotations={TIME_LIMIT: "600"})
    bounds = {LEAST_MEMBERS: "1", MOST_MEMBERS: "2", "gangwatch.io/restart-cost-seconds": "0.1"}
    policy = replace(POLICY, min_run_seconds=0.0, migration_cooldown_seconds=0.0, migration_margin=0.0)
    with training_operator(plane, cluster.api, tmp_path / "operator"), running(access, folder, policy) as it:
        wait_for("the other gang is bound", lambda: cluster.bound("other") == 1)
        cluster.add_group("train", 2, {**MARKS, **bounds})
        elastic = pytorch_job("train", 2, worker())
        elastic["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2}
        cluster.api.create(JOBS, elastic)
        wait_for("it runs with one worker", lambda: running_job(it))
        wait_for("the other worker is deleted", lambda: [*cluster.nodes_of("train")] == ["train-worker-0"])
        assert replicas(cluster) == 1
        cluster.finish("other")
        wait_for("it has grown", lambda: set(cluster.nodes_of("train").values()) == {"n1", "n2"})
        wait_for("it runs again", lambda: running_job(it) and len(it.jobs()["train"].ranks) == 16)
        assert replicas(cluster) == 2


def replicas(cluster: Cluster) -> int:
    found: int = cluster.api.get(f"{JOBS}/train")["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    return found


def running_job(it: Running, before: tuple[str, int] | None = None) -> tuple[str, int] | None:
    """Return the id and the attempt of the gang's job; None if it does not run, or is still that of `before`."""
    job = it.jobs().get("train")
    if job is None or job.state is not JobState.RUNNING or (job.job_id, job.attempt) == before:
        return None
    return job.job_id, job.attempt


def worker() -> dict[str, Any]:
    """Return the specification of a worker with eight GPUs. The operator requires the container's name."""
    spec: dict[str, Any] = pod_body("", 8)["spec"]
    spec["containers"][0]["name"] = "pytorch"
    return spec
