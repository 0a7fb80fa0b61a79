"""Feedback over a real API server: a verdict marks a node and moves a gang; also budgets, preemption and queues."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes, is_probe
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import PREEMPTIBLE, RESTARTABLE, TIME_LIMIT
from scheduler_feedback.backends.kubernetes.published.marks import CONDITION, MEMORY, STATE
from scheduler_feedback.backends.kubernetes.published.state_config_map import StateWriter
from scheduler_feedback.core import state as core
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import NodeCommand, NodeCommanded
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Estimates, Order, Policy, State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Cluster, Running, needs_manager, running, wait_for

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

POLICY = Policy(
    retry_backoff_seconds=0.5,
    probe_command=(),
    migration_cooldown_seconds=1.0,
    quarantine_seconds=3.0,
    probation_seconds=2.0,
    suspect_seconds=2.0,
)


def accuse(it: Running, gang: str, node: str, slowdown: float = 3.0) -> None:
    """Publish a verdict that the gang's rank on the node is slow because of the node."""
    job = it.jobs()[gang]
    rank = next(record.rank for record in job.ranks if record.slot.node == node)
    verdict = Verdict(
        verdict_id=f"{job.job_id}-{job.attempt}-{rank}",
        kind=Kind.STRAGGLER,
        gang=job.job_id,
        attempt=job.attempt,
        rank=rank,
        node=node,
        cause=Cause.GPU,
        confidence=0.99,
        slowdown=slowdown,
        step_seconds_before=1.0,
        step_seconds_now=slowdown,
        first_wall_ns=job.attempt_started_ns or 0,
        last_wall_ns=job.attempt_started_ns or 0,
    )
    it.controller.cycle.report([verdict])


def node_state(it: Running, node: str) -> NodeState:
    return it.controller.cycle.ask(lambda state: state.nodes[node].state).result(30)


def object_of(cluster: Cluster, node: str) -> Any:
    return cluster.api.get(f"/api/v1/nodes/{node}")


def taints(cluster: Cluster, node: str) -> dict[str, str]:
    return {taint["key"]: taint["effect"] for taint in object_of(cluster, node)["spec"].get("taints", [])}


def condition_of(cluster: Cluster, node: str) -> str:
    """Return the message of gangwatch's condition on the node; '' if there is none."""
    found = object_of(cluster, node)["status"]["conditions"]
    return next((str(one["message"]) for one in found if one["type"] == CONDITION), "")


def test_a_slow_node_is_tainted_its_gang_moves_the_hole_is_filled_and_the_node_returns(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_job("train", 2, annotations={RESTARTABLE: "true", TIME_LIMIT: "36000"}, backoffLimit=0)
    with running(access, folder, POLICY) as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        slow = sorted(cluster.nodes_of("train").values())[1]
        (spare,) = {"n1", "n2", "n3"} - set(cluster.nodes_of("train").values())
        accuse(it, "train", slow)
        wait_for("the node is tainted", lambda: "gangwatch.io/quarantine" in taints(cluster, slow))
        wait_for("the gang runs again", lambda: it.jobs()["train"].attempt == 2)
        wait_for("elsewhere", lambda: it.jobs()["train"].state is JobState.RUNNING)
        assert slow not in (places := set(cluster.nodes_of("train").values()))
        assert spare in places
        job = cluster.api.get("/apis/batch/v1/namespaces/default/jobs/train")
        assert job["status"].get("failed", 0) == 0  # the move does not count against its backoffLimit of 0
        assert not job["spec"]["suspend"]
        assert "gangwatch.io/suspended" not in job["metadata"].get("labels", {})
        cluster.add_gang("small", 1, gpus=1)
        wait_for("the node comes back", lambda: node_state(it, slow) in (NodeState.PROBATION, NodeState.HEALTHY))
        wait_for("and is used", lambda: cluster.bound("small") == 1)
        wait_for("it is healthy in the end", lambda: node_state(it, slow) is NodeState.HEALTHY)
        wait_for("and carries no taint", lambda: not taints(cluster, slow))
        assert STATE not in object_of(cluster, slow)["metadata"].get("labels", {})
        wait_for("nor a condition", lambda: not condition_of(cluster, slow))


PROBES = Probes("registry.example/probe", "default", "gangwatch")
MEASURED = replace(POLICY, probe_command=("measure", "--all"), quarantine_seconds=1.0, probe_timeout_seconds=30.0)


def probe_pods(cluster: Cluster) -> list[Any]:
    found = cluster.api.get("/api/v1/namespaces/default/pods?labelSelector=gangwatch.io/probe")
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


def condemn(it: Running, cluster: Cluster) -> str:
    """Accuse a node so that its gang moves away. Return the node, which is then out of use for a time."""
    wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
    slow = sorted(cluster.nodes_of("train").values())[0]
    accuse(it, "train", slow, slowdown=10.0)
    wait_for("it moves", lambda: it.jobs()["train"].attempt == 2)
    return slow


def test_a_pod_measures_a_node_before_it_is_used_again(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane, kubelet: FakeKubelet
) -> None:
    needs_manager(plane)
    results = [1, 0]  # exit codes of the first and the second probe
    measured: list[Any] = []

    def exits(pod: Pod) -> int | None:
        if not is_probe(pod):
            return None
        measured.append(cluster.api.get(f"/api/v1/namespaces/default/pods/{pod.metadata.name}"))
        return results[len(measured) - 1]

    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_job("train", 2, annotations={RESTARTABLE: "true", TIME_LIMIT: "36000"})
    with running(access, folder, MEASURED, probes=PROBES) as it:
        kubelet.exits = exits
        slow = condemn(it, cluster)
        wait_for("it fails its probe, and stays", lambda: len(measured) == 1)
        wait_for("it passes another", lambda: len(measured) == 2)
        wait_for("and is in use again", lambda: node_state(it, slow) in (NodeState.PROBATION, NodeState.HEALTHY))
        spec = measured[0]["spec"]
        assert spec["nodeName"] == slow
        assert spec["containers"][0]["command"] == ["measure", "--all"]
        assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        wait_for("its pods are gone", lambda: not probe_pods(cluster))
        states = {name: job.state for name, job in it.jobs().items() if name.startswith("probe-")}
        assert states == {f"probe-{slow}-1": JobState.FAILED, f"probe-{slow}-2": JobState.COMPLETED}
        assert it.jobs()["train"].state is JobState.RUNNING


def test_a_controller_without_state_deletes_an_unfinished_probe_and_probes_again(
    cluster: Cluster, access: Access, tmp_path: Path, plane: ControlPlane, kubelet: FakeKubelet
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2")
    cluster.add_job("train", 1, annotations={RESTARTABLE: "true", TIME_LIMIT: "36000"})
    with running(access, tmp_path / "first", MEASURED, probes=PROBES) as it:
        slow = condemn(it, cluster)
        (before,) = wait_for("it is measured", lambda: probe_pods(cluster))
        wait_for(
            "the annotation is set", lambda: '"until_ns"' in object_of(cluster, slow)["metadata"]["annotations"][MEMORY]
        )
    with running(access, tmp_path / "second", MEASURED, probes=PROBES) as it:
        kubelet.exits = lambda pod: 0 if is_probe(pod) and pod.metadata.uid != before["metadata"]["uid"] else None
        wait_for("it is in use again", lambda: node_state(it, slow) in (NodeState.PROBATION, NodeState.HEALTHY))
        wait_for("no probe is left", lambda: not probe_pods(cluster))
        assert {job.attempt for name, job in it.jobs().items() if name == "train"} == {2}


def test_an_operator_s_quarantine_is_marked_and_survives_controller_and_folder(
    cluster: Cluster, access: Access, tmp_path: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("train", 1)
    with running(access, tmp_path / "first") as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        (used,) = cluster.nodes_of("train").values()
        (other,) = {"n1", "n2"} - {used}
        it.controller.cycle.report([NodeCommanded(other, NodeCommand.QUARANTINE, "ada", "fan")])
        wait_for("it is tainted", lambda: taints(cluster, other).get("gangwatch.io/quarantine") == "NoSchedule")
        assert "fan" in wait_for("it says why", lambda: condition_of(cluster, other))
        assert MEMORY in object_of(cluster, other)["metadata"]["annotations"]
    with running(access, tmp_path / "second") as it:
        assert node_state(it, other) is NodeState.QUARANTINE
        wait_for("the gang is known", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        assert it.jobs()["train"].attempt == 1
        cluster.add_gang("second", 1)
        wait_for("a new one waits", lambda: cluster.condition("second"))
        assert cluster.bound("second") == 0
        it.controller.cycle.report([NodeCommanded(other, NodeCommand.RELEASE, "ada")])
        wait_for("released, it is used", lambda: cluster.bound("second") == 1)


def test_a_disruption_budget_prevents_moving_a_gang_completely_or_partly(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"scheduling.x-k8s.io/pod-group": "train"}}},
    }
    cluster.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    cluster.add_job("train", 2, annotations={RESTARTABLE: "true", TIME_LIMIT: "36000"})
    with running(access, folder, POLICY) as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/keep"
        wait_for("one may go", lambda: cluster.api.get(path).get("status", {}).get("disruptionsAllowed") == 1)
        before = cluster.nodes_of("train")
        accuse(it, "train", sorted(before.values())[1])

        job_id = it.jobs()["train"].job_id

        def learned_state() -> bool:
            rows = it.controller.cycle.ask(lambda _: it.controller.store.entries_of(job_id)).result(30)
            return any("disruption budget keep allows 1" in row.entry.text for row in rows)

        wait_for("the story says why it stays", learned_state)
        assert cluster.nodes_of("train") == before
        cluster.api.delete(path)
        wait_for("it is moved once nothing forbids it", lambda: it.jobs()["train"].attempt == 2)


def test_a_gang_of_higher_priority_preempts_a_preemptible_one(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    needs_manager(plane)
    for name, value in (("low", 1), ("high", 1000)):
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    cluster.add_nodes("n1")
    declared = {RESTARTABLE: "true", PREEMPTIBLE: "true", TIME_LIMIT: "36000"}
    cluster.add_job("patient", 1, annotations=declared, pod={"priorityClassName": "low"})
    policy = Policy(retry_backoff_seconds=0.5, probe_command=(), preempt=True, replan_seconds=0.0)
    with running(access, folder, policy) as it:
        wait_for("it runs", lambda: "patient" in it.jobs() and it.jobs()["patient"].state is JobState.RUNNING)
        cluster.add_job("urgent", 1, annotations={TIME_LIMIT: "600"}, pod={"priorityClassName": "high"})
        wait_for("the urgent one runs", lambda: cluster.bound("urgent") == 1)
        assert cluster.bound("patient") == 0
        wait_for("the other waits", lambda: it.jobs()["patient"].state is JobState.PENDING)
        cluster.finish("urgent")
        wait_for("and runs again after it", lambda: cluster.bound("patient") == 1)
    for name in ("low", "high"):
        cluster.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def is_in(it: Running, name: str, state: JobState) -> bool:
    job = it.jobs().get(name)
    return job is not None and job.state is state


def test_queue_usage_and_run_times_survive_controller_and_folder(
    cluster: Cluster, access: Access, tmp_path: Path
) -> None:
    cluster.add_nodes("n1")
    memory = ("default", "gangwatch-memory")
    policy = replace(POLICY, queues=(core.Queue("default"),), order=Order.FAIR, estimates=Estimates.HISTORY)

    def learned_state(it: Running) -> tuple[int, float]:
        """Return (start time of the usage count, number of jobs with a known run time)."""

        def of(state: State) -> tuple[int, float]:
            return state.queue_use_ns, sum(state.history.get("", ())) + len(state.recently_ended)

        return it.controller.cycle.ask(of).result(9)

    def used(it: Running) -> float:
        """Return the usage of queue "default" in slot-seconds."""
        return it.controller.cycle.ask(lambda state: state.queue_use.get("default", 0.0)).result(9)

    with running(access, tmp_path / "first", policy, memory=memory) as it:
        for name in ("a", "b"):
            cluster.add_gang(name, 1)
            wait_for("it runs", partial(is_in, it, name, JobState.RUNNING))
            if name == "a":
                cluster.finish(name)
                wait_for("it ends", partial(is_in, it, name, JobState.COMPLETED))
        keeper = StateWriter(it.backend.client, *memory, it.controller.cycle.ask, lambda: True)
        asyncio.run_coroutine_threadsafe(keeper.once(), it.backend.loop).result(30)
        began_ns, learned = learned_state(it)
    assert began_ns
    assert learned == 1
    with running(access, tmp_path / "second", policy, memory=memory) as it:
        wait_for("the gang is known", partial(is_in, it, "b", JobState.RUNNING))
        # Use is counted every half hour. The first time may have been before the gang was known.
        it.controller.cycle.ask(lambda state: setattr(state, "renewed_ns", 0)).result(9)
        time.sleep(1.5)
        cluster.add_nodes("n2")  # an event, for a cycle
        wait_for("what b used since is counted", lambda: used(it) > 8)
        assert learned_state(it)[1] == 1


def test_a_queue_s_limit_holds(cluster: Cluster, access: Access, folder: Path) -> None:
    from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Queue, QueueSpec
    from scheduler_feedback.backends.kubernetes.objects.translate import with_queues

    body = {"apiVersion": "gangwatch.io/v1alpha1", "kind": "Queue", "metadata": {"name": "small"}, "spec": {"limit": 8}}
    cluster.api.create("/apis/gangwatch.io/v1alpha1/queues", body)
    read = cluster.api.get("/apis/gangwatch.io/v1alpha1/queues/small")["spec"]
    assert (read["weight"], read["borrow"]) == (1, True)  # the schema's defaults
    policy = with_queues(POLICY, [Queue(Metadata("small"), QueueSpec(limit=read["limit"]))])
    cluster.add_nodes("n1", "n2")
    for name in ("a", "b"):
        cluster.add_group(name, 1, labels={"gangwatch.io/queue": "small"})
        cluster.add_pods(name, 1)
    with running(access, folder, policy) as it:
        wait_for("one runs", lambda: cluster.bound("a") + cluster.bound("b") == 1)
        waiting = "b" if cluster.bound("a") else "a"
        assert wait_for("the other says why", lambda: cluster.condition(waiting))["reason"] == "Limit"
        cluster.finish("a" if waiting == "b" else "b")
        wait_for("and follows", lambda: cluster.bound(waiting) == 1)
        assert it.jobs()
