"""Leader election and recovery: two controllers, one killed at a random moment; a broken watch; uninstallation."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from agent.schema.clock import ManualClock
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.api_server.lease import (
    ACTING_SECONDS,
    IDLE_RENEWALS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Leadership,
)
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import PROBE
from scheduler_feedback.core.events import NodeCommand, NodeCommanded
from scheduler_feedback.core.job import JobState
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Cluster, running, wait_for
from tests.kubernetes.makers import pod_body

KILLS = int(os.environ.get("GANGWATCH_KILLS", "5"))
"""Kills of the controller, at random moments. GANGWATCH_KILLS=50 is the long form."""

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300 + 20 * KILLS)]

TAKEOVER_SECONDS = 15.0


@contextmanager
def controllers() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a controller as a separate process. All end after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(plane: ControlPlane, folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "gangwatch", "kubernetes", "controller", "--state", str(folder),
                    "--kubeconfig", str(plane.kubeconfig()), "--port", "0",
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


def leading(start: Callable[[], subprocess.Popen[bytes]], folder: Path) -> subprocess.Popen[bytes]:
    """Start a controller, and return its process when it leads.

    A controller that could not renew its lease in time exits; start it again, as its Deployment does.
    """
    began = [start()]

    def look() -> bool:
        if began[-1].poll() is not None:
            began.append(start())
        return (folder / "controller.json").exists()

    wait_for("it leads", look, 300)
    return began[-1]


def lease(cluster: Cluster) -> Any:
    return cluster.api.find("/apis/coordination.k8s.io/v1/namespaces/default/leases/gangwatch")


def holder(cluster: Cluster) -> str:
    found = lease(cluster)
    return "" if found is None else str(found["spec"].get("holderIdentity", ""))


def measured(folder: Path) -> list[str]:
    """Return the lines of the controller's /metrics.

    The address is in the leader's state file, but a standby only logs it.
    """
    record, log = folder / "controller.json", folder / "log" / "controller.log"
    if record.exists():
        url = json.loads(record.read_text())["url"]
    elif log.exists() and (found := re.findall(r"metrics at (\S+)/metrics", log.read_text())):
        url = found[-1]
    else:
        return []
    try:
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            lines: list[str] = answer.read().decode().splitlines()
    except OSError:  # between standby and leadership nothing listens
        return []
    return [line for line in lines if not line.startswith("#")]


def bound_once(kubelet: FakeKubelet) -> bool:
    """Return whether each pod was bound to one node only."""
    places: dict[str, set[str]] = {}
    for _, uid, node in kubelet.binds:
        places.setdefault(uid, set()).add(node)
    return all(len(nodes) == 1 for nodes in places.values())


@pytest.mark.slow
def test_one_of_two_controllers_acts_and_the_other_takes_over_in_time(
    cluster: Cluster, plane: ControlPlane, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    with controllers() as start:
        first = start(plane, tmp_path / "first")
        wait_for("the first leads", lambda: holder(cluster))
        leader = holder(cluster)
        start(plane, tmp_path / "second")
        standby = wait_for("the second is a standby", lambda: measured(tmp_path / "second"))
        assert standby == [
            "gangwatch_leads 0.0",
            "gangwatch_missing_rights 0.0",
            "gangwatch_lost_leases_total 0.0",
        ]
        wait_for("the first says that it leads", lambda: "gangwatch_leads 1.0" in measured(tmp_path / "first"))
        cluster.add_gang("a", 1)
        wait_for("a gang is bound", lambda: cluster.bound("a") == 1)
        first.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        cluster.add_gang("b", 1)
        wait_for("another leads", lambda: holder(cluster) not in ("", leader))
        took = time.monotonic() - killed
        wait_for("it goes on", lambda: cluster.bound("b") == 1)
        wait_for("it says that it leads", lambda: "gangwatch_leads 1.0" in measured(tmp_path / "second"))
        assert took < TAKEOVER_SECONDS
        assert cluster.bound("a") == 1
        assert len(kubelet.binds) == 2
        assert bound_once(kubelet)


@pytest.mark.slow
def test_a_controller_killed_repeatedly_binds_every_gang_once_and_completely(
    cluster: Cluster, plane: ControlPlane, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """Each new controller randomly gets its old journal or an empty folder."""
    chance = random.Random(7)
    nodes = [f"n{number}" for number in range(16)]
    cluster.add_nodes(*nodes)
    folder = tmp_path / "state-0"
    made = 0
    with controllers() as start:
        for kill in range(KILLS):
            process = leading(partial(start, plane, folder), folder)
            if made < 8:
                cluster.add_gang(f"g{made}", 2)
                made += 1
            time.sleep(chance.uniform(0.0, 1.5))
            process.kill()
            process.wait()
            (folder / "controller.json").unlink(missing_ok=True)
            if chance.random() < 0.25:
                folder = tmp_path / f"state-{kill + 1}"
                cluster.api.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/gangwatch")
        start(plane, folder)
        names = [f"g{number}" for number in range(made)]
        wait_for("all are bound", lambda: all(cluster.bound(name) == 2 for name in names), 90)
        taken = [node for name in names for node in cluster.nodes_of(name).values()]
        assert len(set(taken)) == 2 * made
        assert bound_once(kubelet)


def test_a_changed_queue_counts_at_once(cluster: Cluster, plane: ControlPlane, tmp_path: Path) -> None:
    path = "/apis/gangwatch.io/v1alpha1/queues"
    body = {"apiVersion": "gangwatch.io/v1alpha1", "kind": "Queue", "metadata": {"name": "small"}, "spec": {"limit": 8}}
    cluster.api.create(path, body)
    cluster.add_nodes("n1", "n2")
    for name in ("a", "b"):
        cluster.add_group(name, 1, labels={"gangwatch.io/queue": "small"})
        cluster.add_pods(name, 1)
    with controllers() as start:
        start(plane, tmp_path / "state")
        wait_for("one runs", lambda: cluster.bound("a") + cluster.bound("b") == 1)
        waiting = "b" if cluster.bound("a") else "a"
        assert wait_for("the other says why", lambda: cluster.condition(waiting))["reason"] == "Limit"
        cluster.api.patch(f"{path}/small", {"spec": {"limit": 16}})
        wait_for("it is let in", lambda: cluster.bound(waiting) == 1)
        memory = "/api/v1/namespaces/default/configmaps/gangwatch-memory"
        assert "queue_use" in wait_for("what it uses is kept", lambda: cluster.api.find(memory))["data"]["memory.json"]


def test_a_leader_that_cannot_renew_stops_before_another_may_act(
    cluster: Cluster, access: Access, plane: ControlPlane
) -> None:
    assert ACTING_SECONDS + RENEW_SECONDS < LEASE_SECONDS
    clock, lost = ManualClock(), threading.Event()
    one = Leadership(access, "default", "gangwatch", "one", clock=clock, lost=lost.set)
    one.start()
    try:
        assert one.wait(30)
        renewed = lease(cluster)["spec"]["renewTime"]
        wait_for("it renews", lambda: lease(cluster)["spec"]["renewTime"] != renewed)
        plane.kill_server()
        assert one.may_act()
        clock.advance(ACTING_SECONDS + RENEW_SECONDS)
        assert not one.may_act()
        assert lost.wait(30)
    finally:
        plane.start_server()
        one.stop()


def test_a_leader_without_finished_cycles_lets_its_lease_expire(
    cluster: Cluster, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_feedback.backends.kubernetes.api_server.lease.RENEW_SECONDS", 0.2)
    finished, lost = [0], threading.Event()
    one = Leadership(access, "default", "gangwatch", "one", lost=lost.set)
    one.start()
    try:
        assert one.wait(30)
        time.sleep(IDLE_RENEWALS * 0.2 + 1)
        assert one.may_act(), "it leads before its first cycle"
        one.follow(lambda: finished[0])
        for _ in range(IDLE_RENEWALS):  # slow cycles still finish
            finished[0] += 1
            time.sleep(0.8)
        assert one.may_act()
        assert lost.wait(IDLE_RENEWALS * 2 + 10), "the disk hangs, the process continues"
        assert not one.may_act()
        held = lease(cluster)["spec"]
        assert held["holderIdentity"] == "one", "not released: its requests may still be executed"
        time.sleep(1)
        assert lease(cluster)["spec"]["renewTime"] == held["renewTime"]
    finally:
        one.stop()


def test_an_ending_leader_releases_its_lease(cluster: Cluster, access: Access) -> None:
    one = Leadership(access, "default", "gangwatch", "one")
    one.start()
    assert one.wait(30)
    other = Leadership(access, "default", "gangwatch", "other")
    other.start()
    assert not other.wait(1)
    one.stop()
    assert not one.may_act()
    try:
        assert other.wait(LEASE_SECONDS / 2)
        assert other.before == "one"
    finally:
        other.stop()


def test_an_interrupted_watch_loses_and_repeats_no_change(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path, kubelet: FakeKubelet
) -> None:
    cluster.add_nodes("n1", "n2", "n3", "n4")
    cluster.add_gang("before", 1)
    with running(access, folder) as it:
        wait_for("it runs", lambda: "before" in it.jobs() and it.jobs()["before"].state is JobState.RUNNING)
        for gang in ("during", "after"):
            plane.kill_server()
            plane.start_server()
            cluster.add_gang(gang, 1)
            wait_for("it is bound", partial(cluster.bound, gang))
        wait_for("all run", lambda: {job.state for job in it.jobs().values()} == {JobState.RUNNING})
        assert {job.attempt for job in it.jobs().values()} == {1}
        assert sum(watch.reconnects for watch in it.backend.watches.values()) > 0
    assert len(kubelet.binds) == len({uid for _, uid, _ in kubelet.binds}) == 3


def test_after_an_expired_version_a_new_list_reports_deletions(
    cluster: Cluster, access: Access, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_feedback.backends.kubernetes.api_server.watch._PAGE", "1")
    cluster.add_nodes("n1", "n2")
    with running(access, folder) as it:
        wait_for("both are known", lambda: len(it.backend.cache.nodes) == 2)
        watch = it.backend.watches["nodes"]
        lists = watch.lists

        def too_old(line: bytes) -> None:
            expected = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}'
            take(expected if watch.lists == lists else line)

        take = watch._take
        watch._take = too_old  # type: ignore[method-assign] # what a server says inside of a stream of 200
        cluster.api.delete("/api/v1/nodes/n1")
        wait_for("it lists again", lambda: watch.lists > lists)
        wait_for("the node is gone", lambda: set(it.backend.cache.nodes) == {"n2"})


def test_uninstalling_leaves_no_object_of_gangwatch(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("train", 1)
    cluster.add_gang("too-large", 3)
    cluster.api.create(
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gangwatch"}, "spec": {}},
    )
    with running(access, folder, memory=("default", "gangwatch-memory")) as it:
        it.controller.cycle.report([NodeCommanded("n2", NodeCommand.QUARANTINE, "ada", "fan")])
        wait_for("it runs", lambda: cluster.condition("train").get("status") == "True")
        wait_for("the other waits", lambda: cluster.condition("too-large"))
        probe = pod_body("probe-n2-1-1", 8, nodeName="n2")
        probe["metadata"]["labels"] = {PROBE: "probe-n2-1"}
        wait_for("n2 is marked", lambda: "gangwatch.io/" in str(cluster.api.get("/api/v1/nodes/n2")))
    cluster.api.create("/api/v1/namespaces/default/pods", probe)
    done = subprocess.run(
        [sys.executable, "-m", "gangwatch", "kubernetes", "uninstall", "--kubeconfig", str(plane.kubeconfig())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for path in ("/api/v1/nodes", "/api/v1/pods", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"):
        for item in cluster.api.get(path)["items"]:
            if "deletionTimestamp" in item["metadata"]:
                continue
            item["metadata"].pop("managedFields", None)
            assert "gangwatch.io/" not in str(item), path
            assert "Gangwatch" not in str(item), path
            if path.endswith("podgroups"):
                assert not item.get("status")
    assert lease(cluster) is None
    assert cluster.api.find("/api/v1/namespaces/default/configmaps/gangwatch-memory") is None
    wait_for("the probe is gone", lambda: cluster.api.find("/api/v1/namespaces/default/pods/probe-n2-1-1") is None)
    assert cluster.bound("train") == 1
