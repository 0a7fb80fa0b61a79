"""Gangs on a real API server: all pods are bound or none, in order; reasons for waiting; and later events."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access, RefusedError
from scheduler_feedback.backends.kubernetes.objects.translate import NETWORK_CLASS, RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Policy
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for
from tests.kubernetes.makers import pod_body

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]


def test_with_room_for_two_of_three_gangs_the_third_waits_completely_and_follows(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3", "n4")
    for name in ("a", "b", "c"):
        cluster.add_gang(name, 2)
    with running(access, folder) as it:
        wait_for("two gangs are bound", lambda: sum(cluster.bound(name) == 2 for name in "abc") == 2)
        (waiting,) = (name for name in "abc" if not cluster.bound(name))
        other = next(name for name in "abc" if name != waiting)
        condition = wait_for("the third says why", lambda: cluster.condition(waiting))
        assert condition["status"] == "False"
        assert condition["reason"] not in ("", "Waits")
        assert "expected to start at" in condition["message"]
        wait_for("they run", lambda: it.jobs()[other].state is JobState.RUNNING)
        assert cluster.bound(waiting) == 0
        cluster.finish(other)
        wait_for("the third follows", lambda: cluster.bound(waiting) == 2)
        assert wait_for("and says so", lambda: cluster.condition(waiting).get("status") == "True")
        assert it.jobs()[other].state is JobState.COMPLETED


def test_a_small_gang_is_backfilled_if_it_does_not_delay_the_reserved_one(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("long", 1, annotations={TIME_LIMIT: "3600"})
    with running(access, folder) as it:
        wait_for("it runs", lambda: "long" in it.jobs() and it.jobs()["long"].state is JobState.RUNNING)
        cluster.add_gang("wide", 2, annotations={TIME_LIMIT: "600"})
        wait_for("a place is kept", lambda: it.controller.cycle.ask(lambda state: state.reserved_for).result(9))
        cluster.add_gang("short", 1, annotations={TIME_LIMIT: "600"})
        cluster.add_gang("endless", 1, annotations={TIME_LIMIT: "7200"})
        wait_for("the short one is let ahead", lambda: cluster.bound("short") == 1)
        wait_for("the others say why not", lambda: cluster.condition("endless") and cluster.condition("wide"))
        assert cluster.bound("wide") == cluster.bound("endless") == 0


def test_impossible_and_too_large_gangs_have_a_reason(cluster: Cluster, access: Access, folder: Path) -> None:
    cluster.add_nodes("n1", gpus=8)
    cluster.add_gang("too-large", 2)
    cluster.add_gang("elsewhere", 1, nodeSelector={"pool": "none"})
    cluster.add_gang("affine", 1, affinity={
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}
    })  # fmt: skip
    with running(access, folder):
        conditions = {}
        for name in ("too-large", "elsewhere", "affine"):
            conditions[name] = wait_for(f"{name} says why", partial(cluster.condition, name))
        assert conditions["too-large"]["reason"] == "Capacity"
        assert "needs 16 slots" in conditions["too-large"]["message"]
        assert conditions["elsewhere"]["reason"] == "Capacity"
        assert conditions["affine"]["reason"] == "Refused"
        assert "anti-affinity" in conditions["affine"]["message"]
        events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
        assert {event["involvedObject"]["name"] for event in events} >= set(conditions)
        cluster.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"pool": "none"}}})
        wait_for("once a node has the label it is bound", lambda: cluster.bound("elsewhere") == 1)
        assert cluster.bound("too-large") == cluster.bound("affine") == 0


def test_labels_and_taints_of_nodes_are_respected_and_other_schedulers_pods_count(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("tainted", "foreign", "free")
    cluster.api.patch("/api/v1/nodes/tainted", {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    other = {"schedulerName": "other", "nodeName": "foreign"}
    cluster.add_pods("others", 1, 6, **other)
    cluster.add_gang("mine", 1)
    cluster.add_gang("small", 1, gpus=2)
    with running(access, folder):
        wait_for("both are bound", lambda: cluster.bound("mine") == cluster.bound("small") == 1)
        assert list(cluster.nodes_of("mine").values()) == ["free"]
        assert list(cluster.nodes_of("small").values()) == ["foreign"]


def test_cpu_used_by_others_keeps_a_gang_off_a_node_with_free_gpus(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("a", "b")
    hungry = [{"name": "m", "image": "none", "resources": {"requests": {"cpu": "63500m"}}}]
    cluster.add_pods("others", 1, 0, schedulerName="other", nodeName="a", containers=hungry)
    cluster.add_gang("mine", 1)
    with running(access, folder):
        wait_for("it is bound", lambda: cluster.bound("mine") == 1)
        assert list(cluster.nodes_of("mine").values()) == ["b"]


def test_a_gated_pod_holds_its_gang_back(cluster: Cluster, access: Access, folder: Path) -> None:
    cluster.add_nodes("n1", "n2")
    cluster.add_group("gated", 2)
    cluster.add_pods("gated", 2, schedulingGates=[{"name": "example.org/data"}])
    cluster.add_gang("other", 1)
    with running(access, folder):
        wait_for("the other runs", lambda: cluster.bound("other") == 1)
        assert cluster.bound("gated") == 0
        cluster.finish("other")
        for number in range(2):
            path = f"/api/v1/namespaces/default/pods/gated-{number}"
            cluster.api.patch(path, {"spec": {"schedulingGates": []}})
        wait_for("both are bound", lambda: cluster.bound("gated") == 2)


def test_a_manually_deleted_pod_is_recreated_in_its_place(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_job("train", 2)
    with running(access, folder) as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        before = cluster.nodes_of("train")
        victim, place = sorted(before.items())[0]
        cluster.api.delete(f"/api/v1/namespaces/default/pods/{victim}")
        wait_for("another pod is bound", lambda: victim not in (now := cluster.nodes_of("train")) and len(now) == 2)
        after = cluster.nodes_of("train")
        assert sorted(after.values()) == sorted(before.values())
        (new,) = set(after) - set(before)
        assert after[new] == place
        assert it.jobs()["train"].attempt == 1


def test_a_kubelet_rejection_rolls_the_gang_back_and_it_starts_elsewhere(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane, kubelet: FakeKubelet
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2")
    kubelet.rejects["n2"] = "UnexpectedAdmissionError"
    cluster.add_job("train", 2, backoffLimit=100)
    with running(access, folder) as it:
        wait_for("it was tried again", lambda: "train" in it.jobs() and it.jobs()["train"].attempt >= 2)
        kubelet.rejects.clear()
        wait_for("it runs", lambda: it.jobs()["train"].state is JobState.RUNNING)
        wait_for("on both nodes", lambda: sorted(cluster.nodes_of("train").values()) == ["n1", "n2"])


def test_a_gang_whose_pod_fails_before_all_pods_run_starts_again_at_once(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane, kubelet: FakeKubelet
) -> None:
    """Seen when a kubelet was killed while it started a container. Before, the other pods ran alone for 15 minutes."""
    needs_manager(plane)
    cluster.add_nodes("n1", "n2")
    kubelet.pulls.add("n2")
    kubelet.exits = lambda pod: 128 if pod.spec.node_name == "n1" and kubelet.pulls else None
    cluster.add_job("train", 2, annotations={RESTARTABLE: "true"}, backoffLimit=100)
    with running(access, folder) as it:
        wait_for(
            "one failed and the gang was stopped", lambda: "train" in it.jobs() and it.jobs()["train"].retries == 1
        )
        kubelet.pulls.clear()
        wait_for("it runs", lambda: it.jobs()["train"].state is JobState.RUNNING, 60)
        assert it.jobs()["train"].attempt == 2


def test_an_api_server_crash_during_binding_leaves_no_gang_partly_bound(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    nodes = [f"n{number}" for number in range(12)]
    cluster.add_nodes(*nodes)
    with running(access, folder) as it:
        for name in ("a", "b"):
            cluster.add_gang(name, 6)
        wait_for("the first pod is bound", lambda: cluster.bound("a") + cluster.bound("b"))
        plane.kill_server()
        plane.start_server()
        wait_for("all are bound", lambda: cluster.bound("a") == cluster.bound("b") == 6)
        wait_for("and run", lambda: {job.state for job in it.jobs().values()} == {JobState.RUNNING})
        taken = [*cluster.nodes_of("a").values(), *cluster.nodes_of("b").values()]
        assert sorted(taken) == sorted(nodes)


def test_an_mpi_launcher_without_gpus_is_on_a_node_of_its_workers(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_group("mpi", 3)
    cluster.add_pods("mpi", 2)
    body = pod_body("mpi-launcher", 0, "mpi")
    body["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
    cluster.api.create("/api/v1/namespaces/default/pods", body)
    with running(access, folder):
        wait_for("all three are bound", lambda: cluster.bound("mpi") == 3)
        places = cluster.nodes_of("mpi")
        assert places["mpi-launcher"] in {places["mpi-0"], places["mpi-1"]}


def test_pods_beyond_a_gang_s_minimum_start_when_there_is_room(
    cluster: Cluster, access: Access, folder: Path, tmp_path: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_group("elastic", 2)
    cluster.add_pods("elastic", 1)
    with running(access, folder) as it:
        wait_for("it is known", lambda: "default/elastic" in {gang.key for gang in it.backend.gangs()})
        assert cluster.bound("elastic") == 0
        more = [pod_body(f"elastic-{number}", 8, "elastic") for number in (1, 2, 3)]
        cluster.api.create_all("/api/v1/namespaces/default/pods", more)
        wait_for("three are bound", lambda: cluster.bound("elastic") == 3)
        waits = ({f"elastic-{number}" for number in range(4)} - set(cluster.nodes_of("elastic"))).pop()

        def why() -> str:
            conditions = cluster.api.get(f"/api/v1/namespaces/default/pods/{waits}")["status"].get("conditions", [])
            return "".join(one.get("message", "") for one in conditions if one["type"] == "PodScheduled")

        assert "Capacity" in wait_for("the fourth says why", why) or "slots" in why()
        wait_for("the gang runs", lambda: it.jobs()["elastic"].state is JobState.RUNNING)
        assert len(it.jobs()["elastic"].ranks) == 16
    with running(access, tmp_path / "another") as it:
        wait_for("it is taken up", lambda: "elastic" in it.jobs() and it.jobs()["elastic"].state is JobState.RUNNING)
        assert {job.attempt for job in it.jobs().values() if job.state is JobState.RUNNING} == {1}
        one = next(name for name in cluster.nodes_of("elastic") if f"elastic+{name}" in it.jobs())
        cluster.api.delete(f"/api/v1/namespaces/default/pods/{one}")
        wait_for("the fourth follows", lambda: waits in cluster.nodes_of("elastic"))
        assert it.jobs()["elastic"].state is JobState.RUNNING
        assert cluster.bound("elastic") == 3


def test_an_array_runs_no_more_members_than_its_limit(
    cluster: Cluster, access: Access, folder: Path, plane: ControlPlane
) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_array("sweep", 3, parallel=1)
    with running(access, folder) as it:

        def alone() -> str:
            found = cluster.running_of("sweep")
            return found[0] if len(found) == 1 and len(it.jobs()) == 3 and found[0] not in over else ""

        over: list[str] = []
        while len(over) < 3:
            over.append(wait_for("one runs", alone))
            states = [job.state for job in it.jobs().values()]
            assert states.count(JobState.PENDING) == 3 - len(over)
            path = f"/api/v1/namespaces/default/pods/{over[-1]}/status"
            cluster.api.patch(path, {"status": {"phase": "Succeeded"}})
        wait_for("all have", lambda: {job.state for job in it.jobs().values()} == {JobState.COMPLETED})


def test_a_pod_runs_where_its_bound_volume_is_reachable_and_an_unbound_claim_is_reported(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
    cluster.add_volume("data", {"required": {"nodeSelectorTerms": [term]}})
    cluster.add_claim("data", "data")
    cluster.add_claim("later", "")
    for name in ("data", "later", "absent"):
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        cluster.add_gang(name, 1, volumes=volumes)
    with running(access, folder):
        wait_for("it is bound", lambda: list(cluster.nodes_of("data").values()) == ["n2"])
        wait_for("the others are refused", lambda: cluster.condition("later") and cluster.condition("absent"))
        assert "claim later is not bound" in cluster.condition("later")["message"]
        assert "claim absent does not exist" in cluster.condition("absent")["message"]
        cluster.add_volume("anywhere", None)
        cluster.bind_claim("later", "anywhere")
        wait_for("bound by its provisioner, it is let in", lambda: cluster.bound("later") == 1)


def test_ranks_are_placed_in_the_order_of_the_racks(cluster: Cluster, access: Access, folder: Path) -> None:
    for number in range(4):
        rack: dict[str, Any] = {"topology.gangwatch.io/rack": f"r{number % 2}"}
        cluster.add_nodes(f"n{number}", **rack)
    cluster.add_gang("train", 4)
    with running(access, folder):
        wait_for("it is bound", lambda: cluster.bound("train") == 4)
        places = cluster.nodes_of("train")
        racks = [int(places[f"train-{rank}"][1:]) % 2 for rank in range(4)]
        assert racks in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_pods_of_a_gang_in_several_racks_have_the_class_of_its_traffic(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    for number in range(4):
        rack: dict[str, Any] = {"topology.gangwatch.io/rack": f"r{number % 2}"}
        cluster.add_nodes(f"n{number}", **rack)
    cluster.add_gang("wide", 3)
    policy = Policy(retry_backoff_seconds=0.5, probe_command=(), uplink_slowdown=0.1, network_classes=8)
    with running(access, folder, policy):
        wait_for("it is bound", lambda: cluster.bound("wide") == 3)
        assert {pod["metadata"]["annotations"][NETWORK_CLASS] for pod in cluster.pods("wide")} == {"3"}
        cluster.add_gang("lone", 1)
        wait_for("a gang on one node is bound", lambda: cluster.bound("lone") == 1)
        assert NETWORK_CLASS not in cluster.pods("lone")[0]["metadata"]["annotations"]


def test_a_deleted_group_releases_everything(cluster: Cluster, access: Access, folder: Path) -> None:
    cluster.add_nodes("n1")
    cluster.add_gang("first", 1)
    with running(access, folder) as it:
        wait_for("it is bound", lambda: cluster.bound("first") == 1)
        cluster.add_gang("second", 1)
        wait_for("the second waits", lambda: cluster.condition("second"))
        cluster.api.delete("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/first")
        cluster.api.delete("/api/v1/namespaces/default/pods/first-0")
        wait_for("the second is bound", lambda: cluster.bound("second") == 1)
        assert it.jobs()["first"].state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("least", "words"), [(0, "minMember.*greater than or equal to 1"), ("two", "minMember.*integer")]
)
def test_an_invalid_group_is_refused_by_the_api_server(cluster: Cluster, least: Any, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        cluster.add_group("g", least)
    assert caught.value.code == 422


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"weight": 0}, "weight"),
        ({"quota": -1}, "quota"),
        ({"quota": 8, "limit": 4}, "quota must not be more than limit"),
        ({"borrow": "yes"}, "borrow"),
    ],
)
def test_an_invalid_queue_is_refused_by_the_api_server(cluster: Cluster, spec: dict[str, Any], words: str) -> None:
    body = {"apiVersion": "gangwatch.io/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec}
    with pytest.raises(RefusedError, match=words) as caught:
        cluster.api.create("/apis/gangwatch.io/v1alpha1/queues", body)
    assert caught.value.code == 422


def test_a_gang_leaves_a_drained_node(cluster: Cluster, access: Access, folder: Path, plane: ControlPlane) -> None:
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3", gpus=2)
    cluster.add_job("train", 4, gpus=1, annotations={RESTARTABLE: "true"})
    with running(access, folder):
        wait_for("it is bound", lambda: cluster.bound("train") == 4)
        drained = next(iter(cluster.nodes_of("train").values()))
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        cluster.api.patch(f"/api/v1/nodes/{drained}", {"spec": {"unschedulable": True, "taints": [taint]}})
        victim = next(name for name, node in cluster.nodes_of("train").items() if node == drained)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim, "namespace": "default"}}
        cluster.api.create(f"/api/v1/namespaces/default/pods/{victim}/eviction", eviction)
        wait_for(
            "all pods are bound elsewhere",
            lambda: cluster.bound("train") == 4 and drained not in cluster.nodes_of("train").values(),
        )
