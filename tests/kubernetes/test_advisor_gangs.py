"""Recognition and observation of gangs of other schedulers, from pods as each scheduler leaves them. No API server."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import ExternalGangs, gang_of
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels
from scheduler_feedback.core.events import AttemptEnded, Event, Hosted
from scheduler_feedback.core.job import JobKind
from tests.kubernetes.makers import node, pod_body

_uids = itertools.count(1)


def pod(name: str, node_name: str = "n1", phase: str = "Running", gpus: int = 4, **metadata: Any) -> Pod:
    spec = metadata.pop("spec", {})
    body = pod_body(name, gpus, nodeName=node_name, schedulerName="another", **spec)
    body["metadata"].update({"uid": f"uid-{next(_uids)}", "labels": {}, **metadata})
    body["status"] = {"phase": phase}
    return msgspec.convert(body, Pod)


def owned(kind: str, name: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": "o", "controller": True}]}


@pytest.mark.parametrize(
    ("metadata", "gang"),
    [
        ({"annotations": {"pod-group-name": "pg-train-1"}, **owned("Job", "train")}, "default.pg-train-1.kai"),
        ({"annotations": {"scheduling.k8s.io/group-name": "podgroup-1"}}, "default.podgroup-1.volcano"),
        ({"labels": {"kueue.x-k8s.io/pod-group-name": "group"}}, "default.group.kueue"),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "train"}, **owned("Job", "x")}, "default.train.podgroup"),
        ({"labels": {"pod-group.scheduling.sigs.k8s.io": "old"}}, "default.old.podgroup"),
        ({"spec": {"schedulingGroup": {"podGroupName": "up"}}}, "default.up.podgroup"),
        ({"labels": {"jobset.sigs.k8s.io/jobset-name": "set"}, **owned("Job", "set-0")}, "default.set.jobset"),
        ({"labels": {"training.kubeflow.org/job-name": "torch"}, **owned("PyTorchJob", "t")}, "default.torch.kubeflow"),
        (owned("Job", "plain"), "default.plain.job"),
        (owned("ReplicaSet", "serves-5d"), "default.a.pod"),
        ({}, "default.a.pod"),
    ],
)
def test_each_scheduler_s_mark_names_the_gang(metadata: dict[str, Any], gang: str) -> None:
    assert gang_of(pod("a", **metadata)) == gang


class Scene:
    """Informer cache with two nodes of eight GPUs, and a clock."""

    def __init__(self) -> None:
        self.cache = InformerCache("\0", TopologyLabels())
        for name in ("n1", "n2"):
            self.cache.node_changed(name, None, node(name))
        self.external = ExternalGangs(self.cache, 3.0)
        self.now = 100.0
        self.held: dict[str, int] = {}
        self._pods: dict[str, Pod] = {}

    def update(self, *pods: Pod) -> None:
        for after in pods:
            before = self._pods.get(after.metadata.key)
            self._pods[after.metadata.key] = after
            self.cache.pod_changed(after.metadata.key, before, after)
            self.external.pod_changed(before, after, self.now)

    def gone(self, *pods: Pod) -> None:
        for before in pods:
            del self._pods[before.metadata.key]
            self.cache.pod_changed(before.metadata.key, before, None)
            self.external.pod_changed(before, None, self.now)

    def after(self, seconds: float) -> list[Event]:
        """Advance the clock, and return the new events after the core has applied them."""
        self.now += seconds
        events = self.external.events(list(self.held.items()), self.now)
        for event in events:
            if isinstance(event, Hosted):
                assert event.attempt > self.held.get(event.job_id, 0)
                self.held[event.job_id] = event.attempt
            elif isinstance(event, AttemptEnded):
                assert self.held.pop(event.job_id) == event.attempt
        return events


def gang(*names: str, nodes: tuple[str, ...] = ("n1", "n2"), **more: Any) -> list[Pod]:
    annotations = {"scheduling.k8s.io/group-name": "train"}
    return [pod(name, where, annotations=annotations, **more) for name, where in zip(names, nodes, strict=True)]


def phase(before: Pod, to: str) -> Pod:
    after = msgspec.convert(msgspec.to_builtins(before), Pod)
    after.status.phase = to
    return after


def test_a_gang_is_followed_once_all_of_it_runs_and_keeps_its_attempt_for_a_while() -> None:
    scene = Scene()
    first, second = gang("train-0", "train-1")
    scene.update(phase(first, "Pending"), second)
    assert scene.after(10) == []
    scene.update(first)
    assert scene.after(1) == []
    (hosted,) = scene.after(3)
    assert isinstance(hosted, Hosted)
    assert (hosted.job_id, hosted.attempt, hosted.spec.kind) == ("default.train.volcano", 1, JobKind.EXTERNAL)
    assert not hosted.spec.restartable and not hosted.spec.preemptible
    assert [slot.node for slot in hosted.placement] == ["n1"] * 4 + ["n2"] * 4
    place = scene.cache.place_of(second.metadata.uid)
    assert place is not None and (place.gang, place.attempt, place.ranks) == (hosted.job_id, 1, range(4, 8))
    assert scene.after(100) == []


def test_a_replaced_pod_starts_another_attempt_and_none_is_followed_meanwhile() -> None:
    scene = Scene()
    first, second = gang("train-0", "train-1")
    scene.update(first, second)
    scene.after(3)
    scene.gone(second)
    (ended,) = scene.after(0)
    assert isinstance(ended, AttemptEnded) and {exit.exit_code for exit in ended.exits} == {None}
    assert scene.cache.place_of(first.metadata.uid) is not None  # its slots are still taken,
    assert scene.cache.place_of(first.metadata.uid).gang == ""  # type: ignore[union-attr]  # by no gang that is watched
    (substitute,) = gang("train-1", nodes=("n1",))
    scene.update(substitute)
    (hosted,) = scene.after(3)
    assert isinstance(hosted, Hosted) and hosted.attempt == 2
    assert {slot.node for slot in hosted.placement} == {"n1"}
    assert sorted(slot.slot for slot in hosted.placement) == list(range(8))


def test_a_gang_that_ends_pod_by_pod_ends_once_with_success() -> None:
    scene = Scene()
    pods = gang("train-0", "train-1")
    scene.update(*pods)
    scene.after(3)
    scene.update(phase(pods[0], "Succeeded"))
    assert scene.after(10) == []
    scene.update(phase(pods[1], "Succeeded"))
    (ended,) = scene.after(0)
    assert isinstance(ended, AttemptEnded) and {exit.exit_code for exit in ended.exits} == {0}
    scene.gone(*pods)
    assert scene.after(10) == [] and scene.external.concerned("", "n1") == []


def test_added_pods_start_another_attempt_of_the_larger_gang() -> None:
    scene = Scene()
    (first,) = gang("train-0", nodes=("n1",))
    scene.update(first)
    scene.after(3)
    scene.update(*gang("train-1", nodes=("n2",)))
    ended, hosted = scene.after(3)
    assert isinstance(ended, AttemptEnded) and isinstance(hosted, Hosted)
    assert (hosted.attempt, hosted.spec.ranks) == (2, 8)


def test_a_node_keeps_its_slots_when_their_user_changes_and_slot_numbers_are_reused() -> None:
    scene = Scene()
    lone, other = pod("a", "n1", gpus=6), pod("b", "n1", gpus=2)
    scene.update(lone, other)
    assert {seen.node: seen.slots for seen in scene.cache.seen()} == {"n1": 8, "n2": 8}
    scene.gone(lone)
    scene.update(later := pod("c", "n1", gpus=6))
    hosted = [event for event in scene.after(3) if isinstance(event, Hosted)]
    assert {event.job_id for event in hosted} == {"default.b.pod", "default.c.pod"}
    assert sorted(slot.slot for event in hosted for slot in event.placement) == list(range(8))
    assert scene.external.concerned("", "n1") == [other, later]


def test_an_attempt_of_another_controller_is_ended_and_observed_again() -> None:
    scene = Scene()
    scene.held = {"default.train.volcano": 4}
    scene.update(*gang("train-0", "train-1"))
    (ended,) = scene.after(0)
    assert isinstance(ended, AttemptEnded) and ended.attempt == 4
    (hosted,) = scene.after(3)
    assert isinstance(hosted, Hosted) and hosted.attempt == 5


def test_pods_without_gpus_are_ignored() -> None:
    scene = Scene()
    scene.update(pod("web", gpus=0))
    assert scene.after(10) == [] and scene.external.concerned("", "n1") == []
