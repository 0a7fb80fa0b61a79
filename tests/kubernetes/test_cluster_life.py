"""gangwatch in the life of a real cluster: monitoring, restarts of kubelet and containerd, drains and upgrades.

All tests share one cluster of three nodes with others (conftest.py), and leave it as they found it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.kubernetes import claimed_devices as claimed
from tests.kubernetes.harness import Api, wait_for
from tests.kubernetes.real_kubelets import NAMESPACE, Samples, scrape
from tests.kubernetes.real_site import NODES, SCRAPE_SECONDS, Prometheus, Site, running_prometheus

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(900), pytest.mark.slow]

COMPONENT = "app.kubernetes.io/component"
UP = 'up{component="agent"} == 1'
SCRAPED_TWICE = 'sum by (node) (sum_over_time(up{component="agent"}[1m])) > 1'
IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


@pytest.fixture(scope="module")
def prometheus(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(site, tmp_path_factory.mktemp("prometheus")) as started:
        yield started


@pytest.fixture
def gang(site: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a gang for the test, which is deleted afterwards. The test creates it."""
    name = re.sub("[^a-z]+", "-", request.node.name)[-20:].strip("-")
    yield name
    site.clear(name)


def pods(api: Api, component: str) -> list[dict[str, Any]]:
    found = api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return [pod for pod in found if pod["metadata"]["labels"].get(COMPONENT) == component]


# --- installation and monitoring -------------------------------------------------------------------------------------


def test_the_chart_runs_on_three_real_kubelets_and_its_agents_are_scraped(site: Site) -> None:
    api = site.api
    infos = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in api.get("/api/v1/nodes")["items"]}
    assert infos.keys() == set(NODES)
    assert all(info["containerRuntimeVersion"].startswith("containerd://") for info in infos.values())
    agents = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in pods(api, "agent")}
    assert agents.keys() == set(NODES)
    for node, address in agents.items():
        agent_is_served(api, node, address)
    controllers = [pod["status"]["podIP"] for pod in pods(api, "controller")]
    wait_for("the leader receives frames of all agents", lambda: receives_frames(api, controllers))


def agent_is_served(api: Api, node: str, address: str) -> None:
    """Check that an agent serves all metrics of its node, including the kubelet's, and only with the password."""
    name = f"{node}.node.gangwatch.internal"
    assert scrape(api, name, address, 9400, password=False)[0] == 401

    def kubelet_is_read() -> bool:
        status, samples = scrape(api, name, address, 9400)
        assert status == 200
        hosted = Counter(pod["spec"].get("nodeName") for pod in api.get("/api/v1/pods")["items"])
        success = value(samples, "gangwatch_collector_success", collector="kubelet", node=node)
        return success == 1 and value(samples, "gangwatch_kubelet_pods", node=node) == hosted[node]

    wait_for(f"{node}'s agent reads the pods of the kubelet", kubelet_is_read)


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def receives_frames(api: Api, addresses: list[str]) -> bool:
    """Return whether the leader, one of these controllers, receives frames of all agents."""
    for address in addresses:
        try:
            _, samples = scrape(api, "controller.gangwatch.internal", address, 9402)
        except ConnectionRefusedError:
            continue  # only the leader listens
        if all((value(samples, "gangwatch_feed_frames_total", node=node) or 0) > 0 for node in NODES):
            return True
    return False


def test_prometheus_discovers_agents_and_controllers_by_their_pods(prometheus: Prometheus) -> None:
    wait_for("Prometheus scrapes every agent over TLS", lambda: prometheus.nodes(UP) == set(NODES))
    wait_for("and the controllers", lambda: prometheus.query("sum(gangwatch_leads) == 1"))
    wait_for("their series have the node", lambda: prometheus.nodes("gangwatch_kubelet_pods > 0") == set(NODES))


# --- restarts of a node's programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_a_restart_of(program: str, site: Site, gang: str) -> None:
    """A gang runs on without a new attempt, and later gangs use the node again."""
    site.add_job(gang, 3)
    wait_for("it runs", lambda: len(site.running(gang)) == 3)
    before = site.running(gang)
    node = next(iter(before.values()))
    ended = site.kill(node, program)
    wait_for(f"{program} runs again", lambda: site.pid_of(node, program) not in (0, ended))
    wait_for("the node is ready, with its GPUs", lambda: site.is_ready(node) and site.allocatable(node) == "3")
    site.add_job(f"{gang}-2", 6)
    try:
        wait_for("another gang fills all nodes", lambda: len(site.running(f"{gang}-2")) == 6)
        assert site.running(gang) == before, "the same pods run on the same nodes"
        assert attempts(site, gang) == {1}
    finally:
        site.clear(f"{gang}-2")


def attempts(site: Site, gang: str) -> set[int]:
    return {int(pod["metadata"]["annotations"]["gangwatch.io/attempt"]) for pod in site.gangs.pods(gang)}


def test_a_gang_runs_again_after_a_reboot_of_one_of_its_nodes(site: Site, gang: str) -> None:
    """All containers of the node end at once. Its pods fail, so that the whole gang is stopped and started again."""
    site.add_job(gang, 4)
    wait_for("it runs", lambda: len(site.running(gang)) == 4)
    before = site.running(gang)
    node = least_used(before)
    boot_ids = {one: boot_id(site.api, one) for one in NODES}
    rebooted = site.real.command("reboot", node)
    assert rebooted.returncode == 0, rebooted.stderr + site.real.logs()
    changed = {one for one in NODES if boot_id(site.api, one) != boot_ids[one]}
    assert changed == {node}
    wait_for("the node has its GPUs", lambda: site.allocatable(node) == "3")
    after = wait_for("it runs again", lambda: whole(site.running(gang, 2), 4), 120)
    assert not before.keys() & after.keys(), "no rank of the stopped attempt is left"
    assert max(attempts(site, gang)) == 2, "it was started again once"
    wait_for("the node's agent runs again", lambda: node in running_agents(site))
    site.add_job(f"{gang}-2", 5)
    try:
        wait_for("all GPUs of the node are used again", lambda: len(site.running(f"{gang}-2")) == 5)
    finally:
        site.clear(f"{gang}-2")


def least_used(running: dict[str, str]) -> str:
    """Return the node with the fewest of these pods.

    The Job controller makes new pods 10 s after one failure, and 40 s after three at the same time.
    """
    return Counter(running.values()).most_common()[-1][0]


def boot_id(api: Api, node: str) -> str:
    found: str = api.get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"]["bootID"]
    return found


def running_agents(site: Site) -> set[str]:
    """Return the nodes whose agent is ready."""
    return {
        pod["spec"]["nodeName"]
        for pod in pods(site.api, "agent")
        if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    }


# --- devices of a DRA driver -----------------------------------------------------------------------------------------


def test_a_driver_prepares_the_devices_of_a_gang_which_are_free_again_afterwards(site: Site, gang: str) -> None:
    """The GPUs of two nodes are only in ResourceSlices. The kubelet calls the driver for each pod's claim."""
    nodes = ("node-2", "node-3")
    with site.without_plugin(*nodes), claimed.drivers(site, *nodes) as drivers:
        try:
            devices_are_prepared(site, gang, drivers)
            devices_are_freed(site, gang, drivers)
        finally:
            for one in (f"{gang}-2", gang):  # the kubelet removes a pod only when the driver has unprepared its claim
                site.clear(one)


def devices_are_prepared(site: Site, gang: str, drivers: dict[str, claimed.DraPlugin]) -> None:
    """Start a gang on the nodes of the drivers. Check what its containers see, and what the agents read."""
    claimed.add_gang(site, gang, 2)
    wait_for("it runs", lambda: len(site.running(gang)) == 2)
    assert set(site.running(gang).values()) == drivers.keys()
    assert {device for one in drivers.values() for device in one.prepared.values()} == {("gpu-0",)}
    for pod in site.gangs.pods(gang):
        name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"]
        wait_for("its container has the device", lambda name=name: printed(site, name) == claimed.PRINTED)
        owner = {"namespace": "default", "pod": name, "container": "main", "gang": f"pod-{uid}"}
        assert claimed.owners(site.real.folder / node) == [{"gpu": claimed.GPU_UUID, **owner}]
    wait_for("the installed agents read the claims", lambda: agents_with_devices(site) == drivers.keys())


def devices_are_freed(site: Site, gang: str, drivers: dict[str, claimed.DraPlugin]) -> None:
    """Let a second gang wait for the devices of the first one, get them, and end."""
    second = f"{gang}-2"
    claimed.add_gang(site, second, 2)
    wait_for("another gang waits for the devices", lambda: site.gangs.condition(second))
    assert not site.gangs.bound(second)
    end(site, gang)
    wait_for("it gets the devices", lambda: len(site.running(second)) == 2)
    end(site, second)
    wait_for("no claim has a device", lambda: not claimed.driver.allocated(site.api))
    wait_for("all claims are unprepared", lambda: not any(one.prepared for one in drivers.values()))
    assert [len(one.unprepared) for one in drivers.values()] == [2, 2]


def printed(site: Site, pod: str) -> list[str]:
    return site.kubectl("logs", pod).split()


def end(site: Site, gang: str) -> None:
    """Let the pods of a gang with claims end."""
    for pod in site.gangs.pods(gang):
        site.kubectl("exec", pod["metadata"]["name"], "--", "touch", claimed.ENDS)


def agents_with_devices(site: Site) -> set[str]:
    """Return the nodes whose agent reports a device of a pod. It resolves none: the nodes have no real GPUs."""
    found = set()
    for pod in pods(site.api, "agent"):
        node = pod["spec"]["nodeName"]
        _, samples = scrape(site.api, f"{node}.node.gangwatch.internal", pod["status"]["podIP"], 9400)
        if value(samples, "gangwatch_owner_devices_unresolved", node=node) == 1:
            found.add(node)
    return found


# --- maintenance -----------------------------------------------------------------------------------------------------


def test_a_job_that_ignores_disruptions_is_moved_at_once(site: Site, gang: str) -> None:
    """The Job controller delays new pods after failures, for up to ten minutes with a large gang."""
    site.add_job(gang, 4, podFailurePolicy=IGNORES, backoffLimit=0)
    wait_for("it runs", lambda: len(site.running(gang)) == 4)
    node = next(iter(site.running(gang).values()))
    site.gangwatch("node", "maintenance", node, "--drain", "--timeout=60s", "--reason=test")
    try:
        moved = wait_for("it runs elsewhere", lambda: whole(site.running(gang, 2), 4), 40)
        assert node not in moved.values()
        assert not site.api.get(f"/apis/batch/v1/namespaces/default/jobs/{gang}")["status"].get("failed")
    finally:
        site.gangwatch("node", "release", node)


def whole(running: dict[str, str], ranks: int) -> dict[str, str]:
    return running if len(running) == ranks else {}


def test_kubectl_drain_moves_a_gang_and_the_node_is_used_again(site: Site, gang: str, prometheus: Prometheus) -> None:
    site.add_job(gang, 4)
    wait_for("it runs", lambda: len(site.running(gang)) == 4)
    node = least_used(site.running(gang))
    site.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
    try:
        moved = wait_for("it runs elsewhere", lambda: whole(site.running(gang), 4), 90)
        assert node not in moved.values()
        assert prometheus.nodes(UP) == set(NODES), "its agent still reports"
    finally:
        site.kubectl("uncordon", node)
    site.add_job(f"{gang}-2", 5)
    try:
        wait_for("the node is used again", lambda: node in site.running(f"{gang}-2").values())
    finally:
        site.clear(f"{gang}-2")


# --- upgrades --------------------------------------------------------------------------------------------------------


def test_a_rolling_update_of_the_agents_loses_two_scrapes_at_most(site: Site, prometheus: Prometheus) -> None:
    wait_for("all agents have been scraped twice", lambda: prometheus.nodes(SCRAPED_TWICE) == set(NODES))
    began = time.time()
    before = {pod["metadata"]["uid"] for pod in pods(site.api, "agent")}
    site.real.upgrade({"agent": {"podAnnotations": {"example.org/changed": str(began)}}})
    site.kubectl(f"--namespace={NAMESPACE}", "rollout", "status", "daemonset/gangwatch-agent", "--timeout=120s")
    assert not before & {pod["metadata"]["uid"] for pod in pods(site.api, "agent")}
    since = round(time.time() - began) + 2 * SCRAPE_SECONDS
    expression = f"gangwatch_kubelet_pods[{since + 3 * SCRAPE_SECONDS}s]"
    wait_for("all new agents are scraped", lambda: prometheus.nodes(UP) == set(NODES))
    times: dict[str, set[float]] = defaultdict(set)
    for row in prometheus.query(expression):  # a new pod has another address, and so a series of its own
        times[row["metric"]["node"]] |= {float(sample[0]) for sample in row["values"]}
    gaps = {node: longest_gap(sorted(each)) for node, each in times.items()}
    assert gaps.keys() == set(NODES)
    assert max(gaps.values()) <= 3.2 * SCRAPE_SECONDS, gaps  # two scrapes are missing between two samples


def longest_gap(times: list[float]) -> float:
    """Return the longest time in seconds between two samples."""
    return max((later - earlier for earlier, later in pairwise(times)), default=float("inf"))
