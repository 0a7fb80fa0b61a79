"""Connections that lose the data of one direction: from a controller to its agents, and to the API server."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.core.job import JobState
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Cluster, running, wait_for
from tests.kubernetes.test_leadership import bound_once
from tests.security.relay import Relay


def telemetry_of(door: FrontDoor, node: str) -> dict[str, Any]:
    (listed,) = (one for one in door.json("nodes") if one["node"] == node)
    return dict(listed["agent"] or {"silent": False, "words": ""})


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
@pytest.mark.timeout(300)
def test_an_agent_behind_a_half_cut_line_is_reported_and_received_again(tmp_path: Path) -> None:
    with front_door(tmp_path) as door:
        door.up()
        job = door.submit("--ranks", "4", "--", sys.executable, "-I", "-c", "import time; time.sleep(3600)")
        door.wait_for(job, "running")
        record = door.state.agent("node-1")
        assert record is not None
        port = urlsplit(record.url).port
        assert port is not None
        with Relay(port) as relay:
            moved = msgspec.structs.replace(record, url=f"http://127.0.0.1:{relay.port}")
            door.state.agent_file("node-1").write_bytes(msgspec.json.encode(moved))
            time.sleep(2)
            wait_until(lambda: telemetry_of(door, "node-1")["words"] == "fresh", door.logs)
            with relay.cut(answers=True):  # the agent's data is lost; data to it arrives
                wait_until(lambda: telemetry_of(door, "node-1")["silent"], door.logs)
                time.sleep(12)  # the stream was closed and reopened several times
                assert telemetry_of(door, "node-1")["silent"]
                assert not telemetry_of(door, "node-0")["silent"]
            wait_until(lambda: telemetry_of(door, "node-1")["words"] == "fresh", door.logs)
            with relay.cut(requests=True):  # the open stream needs no request
                time.sleep(8)
                assert telemetry_of(door, "node-1")["words"] == "fresh"
            (listed,) = (one for one in door.json("jobs") if one["job"] == job)
            assert (listed["state"], listed["attempt"]) == ("running", 1)
            assert door.json("verdict", "list") == []
            assert {one["node"]: one["state"] for one in door.json("nodes")} == {
                "node-0": "healthy",
                "node-1": "healthy",
            }


@pytest.mark.xdist_group("kubernetes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_bindings_with_lost_responses_are_made_once(
    cluster: Cluster, access: Access, folder: Path, kubelet: FakeKubelet, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server binds the pod and its response is lost. The controller must neither repeat nor undo the
    binding."""
    monkeypatch.setattr("scheduler_feedback.backends.kubernetes.api_server.watch._SILENCE_SECONDS", 8.0)
    chance = random.Random(seed)
    port = urlsplit(access.url).port
    assert port is not None
    gangs = [f"g{number}" for number in range(4)]
    cluster.add_nodes(*(f"n{number}" for number in range(8)))
    with Relay(port) as relay:
        cut_access = replace(access, url=f"https://127.0.0.1:{relay.port}")
        with running(cut_access, folder) as it:
            for gang in gangs:
                cluster.add_gang(gang, 2)
                time.sleep(chance.uniform(0.05, 0.6))  # just before or after the binding requests
                with relay.cut(answers=True):
                    time.sleep(chance.uniform(2.0, 6.0))
            wait_for("all are bound", lambda: all(cluster.bound(gang) == 2 for gang in gangs), 120)
            wait_for("all run", lambda: {job.state for job in it.jobs().values()} == {JobState.RUNNING}, 120)
            assert len(it.jobs()) == len(gangs)
            assert {job.attempt for job in it.jobs().values()} == {1}
    assert bound_once(kubelet)
    assert len(kubelet.binds) == 2 * len(gangs)


@pytest.mark.xdist_group("kubernetes")
@pytest.mark.timeout(300)
def test_a_watch_without_data_is_reopened_while_requests_pass(
    cluster: Cluster, access: Access, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a firewall that dropped its state: neither side closes the connection, and no data arrives."""
    monkeypatch.setattr("scheduler_feedback.backends.kubernetes.api_server.watch._SILENCE_SECONDS", 8.0)
    port = urlsplit(access.url).port
    assert port is not None
    cluster.add_nodes("n1", "n2")
    with Relay(port) as relay:
        cut_access = replace(access, url=f"https://127.0.0.1:{relay.port}")
        with running(cut_access, folder) as it:
            with relay.cut(requests=True, answers=True):
                cluster.add_gang("meanwhile", 2)
                time.sleep(5)
                assert cluster.bound("meanwhile") == 0
            wait_for("it is bound", lambda: cluster.bound("meanwhile") == 2, 60)
            alive, why = it.controller.alive()
            assert alive, why
