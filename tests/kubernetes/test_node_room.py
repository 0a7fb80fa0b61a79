"""CPU, memory and other resources of nodes as limits of placement, on a real API server.

Each node has 8 GPUs and 64 processors, so that gangs with few GPUs and many processors fill it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.job import JobState
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for
from tests.kubernetes.makers import node_body
from tests.kubernetes.test_feedback import POLICY, accuse

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]


def container(gpus: int, cpu: int) -> list[dict[str, Any]]:
    resources = {"cpu": str(cpu), "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    return [{"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}]


def test_a_gang_is_spread_over_nodes_if_its_processors_do_not_fit_on_one(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("wide", 2, containers=container(1, 40))
    with running(access, folder):
        wait_for("it is bound", lambda: cluster.bound("wide") == 2, 30)
        assert set(cluster.nodes_of("wide").values()) == {"n1", "n2"}


def test_a_gang_that_waits_for_processors_is_not_overtaken_by_longer_gangs(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1")
    cluster.add_gang("runs", 1, annotations={TIME_LIMIT: "600"}, containers=container(4, 40))
    with running(access, folder) as it:
        wait_for("the first is bound", lambda: cluster.bound("runs") == 1)
        cluster.add_gang("head", 1, annotations={TIME_LIMIT: "600"}, containers=container(4, 40))
        wait_for("slots are reserved", lambda: it.controller.cycle.ask(lambda state: state.reserved_for).result(9))
        for number in range(4):
            cluster.add_gang(f"later-{number}", 1, annotations={TIME_LIMIT: "7200"}, containers=container(1, 6))
        condition = wait_for("the head says why", lambda: cluster.condition("head"))
        assert condition["reason"] != "Capacity", "it fits once the first has ended"
        wait_for("the last one says why", lambda: cluster.condition("later-3"))
        cluster.finish("runs")
        wait_for("the head is bound when the processors are free", lambda: cluster.bound("head") == 1)


def test_long_gangs_on_free_slots_leave_the_processors_that_the_head_needs(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    cluster.add_nodes("n1")
    cluster.add_gang("runs", 1, annotations={TIME_LIMIT: "600"}, containers=container(4, 30))
    with running(access, folder) as it:
        wait_for("the first is bound", lambda: cluster.bound("runs") == 1)
        cluster.add_gang("head", 1, annotations={TIME_LIMIT: "600"}, containers=container(4, 40))
        wait_for("slots are reserved", lambda: it.controller.cycle.ask(lambda state: state.reserved_for).result(9))
        later = [f"later-{number}" for number in range(3)]
        for name in later:  # two fit now, beside the first; one fits beside the head
            cluster.add_gang(name, 1, annotations={TIME_LIMIT: "7200"}, containers=container(1, 16))
        wait_for("one is backfilled", lambda: sum(cluster.bound(name) for name in later) == 1)
        wait_for("the last one says why", lambda: cluster.condition(later[-1]))
        assert sum(cluster.bound(name) for name in later) == 1
        cluster.finish("runs")
        wait_for("the head is bound when the first has ended", lambda: cluster.bound("head") == 1)


def test_two_gangs_of_one_cycle_do_not_both_get_the_processors_of_a_node(
    cluster: Cluster, access: Access, folder: Path
) -> None:
    """Each gang fits on either node, and not both on one. Before, the second one failed to bind and waited again."""
    cluster.add_nodes("n1", "n2")
    names = [f"gang-{number}" for number in range(2)]
    for name in names:  # before the controller starts, so that its first cycle has both
        cluster.add_gang(name, 1, containers=container(1, 40))
    with running(access, folder) as it:
        for name in names:
            wait_for(f"{name} is bound", lambda name=name: cluster.bound(name) == 1, 30)
        assert {node for name in names for node in cluster.nodes_of(name).values()} == {"n1", "n2"}
        assert {job.attempt for job in it.jobs().values()} == {1}, "no start has failed"


def test_a_gang_moves_off_a_slow_node_and_keeps_the_other_one_whose_processors_it_uses(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    """Each node has room for one pod. Before, the healthy node counted as full because of the gang's own pod."""
    needs_manager(plane)
    cluster.add_nodes("n1", "n2", "n3")
    annotations = {RESTARTABLE: "true", TIME_LIMIT: "36000"}
    cluster.add_job("train", 2, annotations=annotations, pod={"containers": container(1, 40)})
    with running(access, folder, POLICY) as it:
        wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
        before = set(cluster.nodes_of("train").values())
        (spare,) = {"n1", "n2", "n3"} - before
        slow = sorted(cluster.nodes_of("train").items())[1][1]
        accuse(it, "train", slow)
        wait_for("it runs again", lambda: it.jobs()["train"].attempt == 2, 60)
        wait_for("with both pods", lambda: cluster.bound("train") == 2)
        assert set(cluster.nodes_of("train").values()) == {spare, *(before - {slow})}


def test_gangs_with_different_mig_profiles_share_a_node(cluster: Cluster, access: Access, folder: Path) -> None:
    """Each profile has its own number of instances. Before, only the most frequent profile of the node was usable."""
    body = node_body("n1", 2, "nvidia.com/mig-3g.40gb")
    body["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "4"
    cluster.api.create("/api/v1/nodes", body)
    cluster.api.patch("/api/v1/nodes/n1/status", {"status": body["status"]})

    def instances(profile: str) -> list[dict[str, Any]]:
        resources = {"cpu": "1", f"nvidia.com/mig-{profile}": "1"}
        return [{"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}]

    for name, profile, members in (("large", "3g.40gb", 2), ("small", "1g.10gb", 3), ("third", "3g.40gb", 1)):
        cluster.add_gang(name, members, containers=instances(profile))
    with running(access, folder) as it:
        wait_for("both are bound", lambda: (cluster.bound("large"), cluster.bound("small")) == (2, 3), 30)
        assert {it.jobs()[name].attempt for name in ("large", "small")} == {1}, "no start has failed"
        wait_for("the third waits for a large instance", lambda: cluster.condition("third"))
        assert cluster.bound("third") == 0
        cluster.finish("large")
        wait_for("the third is bound", lambda: cluster.bound("third") == 1, 30)
