"""Faults between a controller and the API server: a paused leader, a cut or slow connection, a stopped etcd."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server import client as client_module
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.lease import LEASE_SECONDS
from scheduler_feedback.backends.kubernetes.attempts import gang_stop
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Member
from scheduler_feedback.core.events import CancelRequested, FreezeSet
from scheduler_feedback.core.job import JobState
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Cluster, running, wait_for
from tests.kubernetes.test_leadership import bound_once, controllers, holder, measured

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]


def test_a_client_writes_nothing_while_it_does_not_lead(cluster: Cluster, access: Access) -> None:
    """Its requests wait: a process that has lost its lease ends, and one that renews it late continues."""
    leads = [True]
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fenced"}, "data": {"by": "one"}}
    path = "/api/v1/namespaces/default/configmaps"

    async def write() -> None:
        async with Client(access, may_write=lambda: leads[0]) as client:
            await client.create(path, body)
            leads[0] = False
            asked = [
                asyncio.create_task(client.create(path, {**body, "metadata": {"name": "other"}})),
                asyncio.create_task(client.patch(f"{path}/fenced", {"data": {"by": "two"}})),
                asyncio.create_task(client.replace(f"{path}/fenced", {**body, "data": {"by": "two"}})),
                asyncio.create_task(client.delete(f"{path}/fenced")),
            ]
            done, _ = await asyncio.wait(asked, timeout=1)
            assert not done
            assert await client.get(f"{path}/fenced", msgspec.json.Decoder(Any)), "reads do not wait"
            assert cluster.api.find(f"{path}/other") is None
            assert cluster.api.find(f"{path}/fenced")["data"] == {"by": "one"}
            for ended in asked[1:]:
                ended.cancel()
            leads[0] = True
            await asyncio.wait_for(asked[0], 10)

    asyncio.run(write())
    assert cluster.api.find(f"{path}/other") is not None
    cluster.api.delete(f"{path}/fenced")
    cluster.api.delete(f"{path}/other")


def test_starts_in_progress_continue_after_a_late_renewal_of_the_lease(
    cluster: Cluster,
    access: Access,
    folder: Path,
    kubelet: FakeKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow API server delays the renewal while a queue is bound. Requests in progress must wait until the renewal.

    Before, their gangs kept their slots without being bound, until the start's timeout of 15 minutes.
    """
    monkeypatch.setattr(client_module, "_AT_ONCE", 1)  # so that requests wait for others
    gangs = [f"g{number}" for number in range(12)]
    cluster.add_nodes(*(f"n{number}" for number in range(24)))
    left = [10**6]  # number of checks until the leader may not act
    renewed = threading.Event()

    def may_act() -> bool:
        left[0] -= 1
        return left[0] > 0 or renewed.is_set()

    def bound() -> int:
        return sum(cluster.bound(gang) for gang in gangs)

    with running(access, folder, may_act=may_act) as it:
        it.controller.cycle.request(lambda _: FreezeSet(True, "test")).result(30)
        for gang in gangs:
            cluster.add_gang(gang, 2)
        wait_for("the cycle has all gangs", lambda: len(it.jobs()) == len(gangs))
        left[0] = 40
        it.controller.cycle.request(lambda _: FreezeSet(False, "test")).result(30)
        wait_for("the leader may not act", lambda: left[0] <= 0)
        time.sleep(1.0)
        assert bound() < 2 * len(gangs), "requests wait"
        renewed.set()
        wait_for("all are bound", lambda: bound() == 2 * len(gangs), 60)
        assert {job.attempt for job in it.jobs().values()} == {1}
    assert bound_once(kubelet)


def test_a_started_stop_is_not_finished_after_the_lease_is_lost(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping a gang repeats its requests until the API server answers; by then another controller may be the
    leader."""
    leads = [True]
    cluster.add_nodes("n1", "n2")
    cluster.add_gang("kept", 2)
    with running(access, folder, may_act=lambda: leads[0]) as it:
        wait_for("it runs", lambda: [job for job in it.jobs().values() if job.state is JobState.RUNNING])
        job = it.jobs()["kept"]
        evict, tries = gang_stop._evict, [0]

        async def evict_without_a_server(client: Client, member: Member) -> None:
            tries[0] += 1
            if tries[0] == 1:
                plane.kill_server()
            await evict(client, member)

        monkeypatch.setattr(gang_stop, "_evict", evict_without_a_server)
        try:
            it.controller.cycle.request(lambda _: CancelRequested(job.job_id, "ann")).result(30)
            wait_for("it tries again and again", lambda: tries[0] > 4)
            leads[0] = False
        finally:
            plane.start_server()
        time.sleep(4.0)  # the longest pause between two attempts is 2 s
        assert cluster.bound("kept") == 2, "only the next leader may stop its pods"
        leads[0] = True


@pytest.mark.slow
def test_a_resumed_former_leader_takes_no_action_and_stands_by_again(
    cluster: Cluster, plane: ControlPlane, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    with controllers() as start:
        first = start(plane, tmp_path / "first")
        wait_for("the first leads", lambda: holder(cluster))
        leader = holder(cluster)
        other = start(plane, tmp_path / "second")
        wait_for("the second is on standby", lambda: "gangwatch_leads 0.0" in measured(tmp_path / "second"))
        standby = descriptors(other.pid) + 2  # requests of the moment
        cluster.add_gang("before", 1)
        wait_for("a gang is bound", lambda: cluster.bound("before") == 1)
        os.kill(first.pid, signal.SIGSTOP)
        wait_for("another leads", lambda: holder(cluster) not in ("", leader), 3 * LEASE_SECONDS)
        second = holder(cluster)
        cluster.add_gang("during", 1)
        wait_for("the second binds", lambda: cluster.bound("during") == 1)
        # Both controllers know two gangs for which there is no room; both see at the same time when room becomes free.
        cluster.add_gang("contested", 2)
        time.sleep(2)
        os.kill(first.pid, signal.SIGCONT)
        cluster.add_nodes("n3", "n4")
        wait_for("it is bound", lambda: cluster.bound("contested") == 2)
        wait_for("the first is a standby", lambda: "gangwatch_leads 0.0" in measured(tmp_path / "first"))
        assert first.poll() is None, "its process has not ended"
        assert "gangwatch_lost_leases_total 1.0" in measured(tmp_path / "first")
        assert "no longer leads" in (tmp_path / "first" / "log" / "controller.log").read_text()
        assert descriptors(first.pid) <= standby, "none of the old term is left"
        assert holder(cluster) == second
        assert cluster.bound("before") == 1
        assert bound_once(kubelet)
        assert len(kubelet.binds) == 4

        os.kill(other.pid, signal.SIGKILL)
        cluster.add_nodes("n5")
        cluster.add_gang("later", 1)
        wait_for("the first leads again", lambda: holder(cluster) == leader, 3 * LEASE_SECONDS)
        wait_for("and binds", lambda: cluster.bound("later") == 1)
        wait_for("it says that it leads", lambda: "gangwatch_leads 1.0" in measured(tmp_path / "first"))
        assert first.poll() is None
        assert len(kubelet.binds) == 5 and bound_once(kubelet)
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def etcd(plane: ControlPlane, number: signal.Signals) -> None:
    os.kill(plane.process_id("etcd"), number)


def test_after_an_etcd_outage_nothing_is_lost_or_bound_twice(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path, kubelet: FakeKubelet
) -> None:
    """While etcd is stopped, the API server gives no response, or only 'etcdserver: request timed out'."""
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_gang("before", 1)
    with running(access, folder) as it:
        wait_for("it runs", lambda: [job for job in it.jobs().values() if job.state is JobState.RUNNING])
        before = it.jobs()
        etcd(plane, signal.SIGSTOP)
        try:
            time.sleep(20)  # longer than the timeout of a request
            assert {job.job_id: job.attempt for job in it.jobs().values()} == {
                job.job_id: job.attempt for job in before.values()
            }
            alive, why = it.controller.alive()
            assert alive, why
        finally:
            etcd(plane, signal.SIGCONT)
        wait_for("the server answers", lambda: answered(cluster))
        cluster.add_gang("after", 2)
        wait_for("it is bound", lambda: cluster.bound("after") == 2, 120)
        assert cluster.bound("before") == 1
        assert {job.attempt for job in it.jobs().values()} == {1}
    assert bound_once(kubelet)


def answered(cluster: Cluster) -> bool:
    try:
        found: Any = cluster.api.find("/api/v1/namespaces/default")
    except RefusedError:
        return False
    except Exception as error:  # only a response in time ends the wait
        if "Unreachable" in type(error).__name__:
            return False
        raise
    return found is not None


def test_a_slow_api_server_only_delays_binding(
    cluster: Cluster, access: Access, plane: ControlPlane, folder: Path, kubelet: FakeKubelet
) -> None:
    """The API server is stopped for about a third of every second."""
    nodes = [f"n{number}" for number in range(8)]
    cluster.add_nodes(*nodes)
    server = plane.process_id("kube-apiserver")
    with running(access, folder) as it:
        for number in range(4):
            cluster.add_gang(f"g{number}", 2)
            for _ in range(3):
                os.kill(server, signal.SIGSTOP)
                time.sleep(0.4)
                os.kill(server, signal.SIGCONT)
                time.sleep(0.6)
        wait_for("all are bound", lambda: all(cluster.bound(f"g{number}") == 2 for number in range(4)), 120)
        assert {job.attempt for job in it.jobs().values()} == {1}
    assert bound_once(kubelet)
    assert len(kubelet.binds) == 8
