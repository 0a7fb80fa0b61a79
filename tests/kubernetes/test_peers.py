"""Objects and times of the comparison with other schedulers (``python -m benchmarks.kubernetes``)."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from benchmarks.kubernetes import watching
from benchmarks.kubernetes.__main__ import Run
from benchmarks.kubernetes.measurements import Bed
from benchmarks.kubernetes.peers import (
    COSCHEDULING,
    GANGS,
    KAI,
    KUEUE,
    KUEUE_QUEUE,
    OURS,
    PLAIN,
    SPINE,
    VOLCANO,
    hyper_nodes,
    queue_sizes,
)
from benchmarks.kubernetes.queueing_peers import kueue_objects
from benchmarks.kubernetes.watching import LIMIT_SECONDS, Load, NotInTimeError
from scheduler_feedback.backends.kubernetes.api_server.client import UnreachableError


def test_the_same_gang_in_the_words_of_each_scheduler() -> None:
    assert OURS.group("g", 512, one_spine=True) == COSCHEDULING.group("g", 512, one_spine=True)
    ours, upstream = OURS.group("g", 512, one_spine=True), GANGS.group("g", 512, one_spine=True)
    assert ours["spec"] == {"minMember": 512}
    assert ours["metadata"]["annotations"] == {"gangwatch.io/required-topology": "spine"}
    assert upstream["apiVersion"] in GANGS.groups
    assert upstream["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 512}},
        "schedulingConstraints": {"topology": [{"key": SPINE}]},
    }
    assert "schedulingConstraints" not in GANGS.group("g", 3)["spec"]
    volcano = VOLCANO.group("g", 512, one_spine=True)["spec"]
    assert volcano["minMember"] == 512
    (spine,) = hyper_nodes(["s0"])
    assert spine["spec"]["tier"] <= volcano["networkTopology"]["highestTierAllowed"]
    assert spine["spec"]["members"][0]["selector"] == {"labelMatch": {"matchLabels": {SPINE: "s0"}}}


def test_pods_name_their_group_and_their_scheduler() -> None:
    for peer in (OURS, PLAIN, COSCHEDULING):
        pod = peer.pod("g-0", "g", 2)
        assert pod["metadata"]["labels"] == {"scheduling.x-k8s.io/pod-group": "g"}
        assert pod["spec"]["schedulerName"] == peer.scheduler
    pod = GANGS.pod("g-0", "g", 2, nodeSelector={"pool": "none"})
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert pod["spec"]["nodeSelector"] == {"pool": "none"}
    assert pod["metadata"]["labels"] == {}, "gangwatch and coscheduling do not take it as theirs"
    pod = VOLCANO.pod("g-0", "g", 2)
    assert pod["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": "g"}
    assert (pod["spec"]["schedulerName"], pod["metadata"]["labels"]) == ("volcano", {})


def test_kueue_and_kai_get_the_same_gang() -> None:
    assert KUEUE.makes_groups and not KAI.makes_groups
    pod = KUEUE.pod("g-0", "g", 512, one_spine=True)["metadata"]
    assert pod["labels"] == {"kueue.x-k8s.io/queue-name": KUEUE_QUEUE, "kueue.x-k8s.io/pod-group-name": "g"}
    assert pod["annotations"] == {
        "kueue.x-k8s.io/pod-group-total-count": "512",
        "kueue.x-k8s.io/podset-required-topology": SPINE,
    }
    assert set(KUEUE.pod("g-0", "g", 2)["metadata"]["annotations"]) == {"kueue.x-k8s.io/pod-group-total-count"}
    queue = {path.rpartition("/")[2]: body["spec"] for path, body in kueue_objects(10, 8)}["clusterqueues"]
    quotas = {one["name"]: one["nominalQuota"] for one in queue["resourceGroups"][0]["flavors"][0]["resources"]}
    assert quotas == {"cpu": 640, "memory": "5120Gi", "nvidia.com/gpu": 80}, "the whole cluster"
    group = KAI.group("g", 512, one_spine=True)["spec"]
    assert (group["minMember"], group["topologyConstraint"]["requiredTopologyLevel"]) == (512, SPINE)
    assert "topologyConstraint" not in KAI.group("g", 2)["spec"]
    made = KAI.pod("g-0", "g", 2)
    assert made["metadata"]["annotations"] == {"pod-group-name": "g"}
    assert made["spec"]["schedulerName"] == "kai-scheduler"


def test_only_conditions_about_scheduling_count() -> None:
    def seen(kind: str, status: str) -> bool:
        body = {"metadata": {"name": "g"}, "status": {"conditions": [{"type": kind, "status": status}]}}
        return watching._unschedulable(msgspec.convert(body, watching._PartialObject))

    assert seen("QuotaReserved", "False") and seen("Unschedulable", "True")
    assert not seen("PodsReady", "False") and not seen("Scheduled", "True") and not seen("Unschedulable", "False")


class EndedProcess:
    def poll(self) -> int:
        return 3


def test_a_scheduler_that_ended_is_named_at_once() -> None:
    bed = Bed.__new__(Bed)
    bed.seen = SimpleNamespace(bound={"default/a": "n1"})  # type: ignore[assignment]
    with pytest.raises(NotInTimeError, match="ended with code 3: 1 of 2 bound"):
        bed._until_bound(2, EndedProcess())  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "most", "gangs"), [(4000, 200, 200), (1200, 200, 120), (4, 200, 1), (4000, 5, 5)])
def test_the_queue_fits_into_three_quarters_of_the_cluster(gpus: int, most: int, gangs: int) -> None:
    sizes = queue_sizes(gpus, most)
    assert len(sizes) == gangs
    assert sum(sizes) <= gpus * 0.75
    assert set(sizes) <= {2, 4, 8, 16}


class FakeClient:
    """Client whose server is busy at the first request, and whose responses take 50 ms."""

    sent: ClassVar[list[float]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.05)  # closing takes time too

    async def create(self, _path: str, _body: Any) -> bytes:
        FakeClient.sent.append(time.monotonic())
        if len(FakeClient.sent) == 1:
            raise UnreachableError("busy")
        await asyncio.sleep(0.05)
        return b"{}"


def test_times_run_from_the_request_and_not_from_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that sets a condition within 10 ms once had a time of 12 µs, because time ran from the end of the
    creation."""
    monkeypatch.setattr(watching, "Client", FakeClient)
    FakeClient.sent = []
    sent = Load(None).create("/pods", [{}, {}, {}])  # type: ignore[arg-type]
    assert len(FakeClient.sent) == 4
    assert sent <= FakeClient.sent[-1]
    assert FakeClient.sent[-1] - sent < 0.04


class RecordingLoad:
    """Load that records patched and deleted paths."""

    def __init__(self) -> None:
        self.done: list[tuple[str, list[str]]] = []

    def patch(self, paths: list[str], body: Any) -> None:
        assert body == {"metadata": {"finalizers": None}}
        self.done.append(("patch", paths))

    def delete(self, paths: list[str]) -> None:
        self.done.append(("delete", paths))


def test_groups_of_kubernetes_lose_their_finalizer_before_they_are_deleted() -> None:
    """Otherwise the next group of the same name cannot be created: no controller runs that removes it."""
    bed = Bed.__new__(Bed)
    load = bed.load = RecordingLoad()  # type: ignore[assignment]
    bed.delete_groups(GANGS, ["never"])
    bed.delete_groups(OURS, ["never"])
    theirs, ours = [f"{GANGS.groups}/never"], [f"{OURS.groups}/never"]
    assert load.done == [("patch", theirs), ("delete", theirs), ("delete", ours)]


class StuckBed:
    """Bed whose parts all end in time, but the queue."""

    def gang512(self, *_: Any) -> dict[str, float]:
        return {"gang512_seconds": 1.0}

    def queue(self, *_: Any) -> dict[str, float]:
        raise NotInTimeError("not in 200 s: all are bound")


def test_a_peer_that_is_stuck_has_a_figure_that_shows_it_and_our_own_fails_the_run() -> None:
    said: list[str] = []
    run = Run(StuckBed(), ["gang512", "queue"], said.append)  # type: ignore[arg-type]
    run.of_gangs(GANGS, None)  # type: ignore[arg-type]
    assert run.found == {"kube_scheduler_gangs": {"gang512_seconds": 1.0, "queue_not_in_seconds": LIMIT_SECONDS}}
    with pytest.raises(NotInTimeError):
        run.of_gangs(OURS, None)  # type: ignore[arg-type]
    assert run.found["gang512_seconds"] == 1.0, "our own figures have no key of their own"
