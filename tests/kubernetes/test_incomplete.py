"""Reasons of gangs that are incomplete, and of pods whose group does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.objects.declared_keys import ANNOTATIONS, without_effect
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import GROUP_LABEL, QUEUE, RESTARTABLE, gang_of
from scheduler_feedback.backends.kubernetes.published import incomplete
from scheduler_feedback.backends.kubernetes.published.incomplete import (
    INCOMPLETE_SECONDS,
    Since,
    what_is_missing,
    why_not_running,
)
from tests.kubernetes.harness import Cluster, running, wait_for
from tests.kubernetes.makers import group, pod, pod_body

LABEL = GROUP_LABEL
ROOT = Path(__file__).parents[2]


def missing(least: int, *pods: Any) -> str:
    return missing_of(group("train", least), *pods)


def missing_of(made: PodGroup, *pods: Pod) -> str:
    return what_is_missing(gang_of(made, pods), made, "gangwatch")


def test_the_number_of_pods_and_what_each_needs_are_named() -> None:
    assert missing(3, pod("a", 1, "train")) == (
        f"1 of 3 pods exist; each needs schedulerName gangwatch and the label {LABEL}: train"
    )
    assert missing(1, pod("a", 1, "train")) == "", "it is complete"
    assert missing(3) == "", "without a pod the group may be another scheduler's"
    assert missing(1, pod("a", 0, "train")) == "", "it is refused, which has a reason of its own"


def test_a_gate_is_named_with_its_pod() -> None:
    gated = pod("b", 1, "train", schedulingGates=[{"name": "example.com/wait"}])
    assert missing(2, pod("a", 1, "train"), gated) == (
        "pod b has a scheduling gate, which another controller must remove"
    )


def test_a_group_without_pods_is_reported_if_its_user_wrote_keys_of_gangwatch() -> None:
    words = f"0 of 2 pods exist; each needs schedulerName gangwatch and the label {LABEL}: train"
    assert missing_of(group("train", 2, {RESTARTABLE: "true"})) == words
    labelled = group("train", 2)
    labelled.metadata.labels = {QUEUE: "research"}
    assert missing_of(labelled) == words
    assert missing_of(group("train", 2, {"gangwatch.io/placement": "{}", "example.com/x": "y"})) == ""


def test_what_bound_pods_wait_for_is_named() -> None:
    def on_node(name: str, phase: str, reason: str = "", **more: Any) -> Pod:
        one = pod(name, 1, "train", **{"nodeName": "n1"} | more)
        waiting = [{"state": {"waiting": {"reason": reason}}}] if reason else []
        one.status = msgspec.convert({"phase": phase, "containerStatuses": waiting}, type(one.status))
        return one

    creating = on_node("a", "Pending", "ContainerCreating")
    assert why_not_running([creating, on_node("b", "Pending", "ImagePullBackOff"), on_node("c", "Running")]) == (
        "all pods have nodes; 2 of 3 do not run yet: pod b: ImagePullBackOff"
    )
    assert why_not_running([creating]).endswith("pod a: ContainerCreating")
    assert why_not_running([on_node("a", "Pending")]).endswith("pod a: its containers have not started")
    assert why_not_running([on_node("c", "Running")]) == ""
    assert why_not_running([creating, on_node("d", "Pending", nodeName="")]) == "", "it is still being bound"


@pytest.mark.parametrize(
    ("labels", "annotations", "words"),
    [
        (
            {},
            {"gangwatch.io/restartble": "true"},
            "annotation gangwatch.io/restartble is unknown and has no effect; ",
        ),
        ({}, {"gangwatch.io/colour": "red"}, "annotation gangwatch.io/colour is unknown and has no effect"),
        ({}, {QUEUE: "research"}, f"annotation {QUEUE} has no effect: write a label"),
        ({RESTARTABLE: "true"}, {}, f"label {RESTARTABLE} has no effect: write an annotation"),
        ({QUEUE: "research"}, {RESTARTABLE: "true", "gangwatch.io/placement": "{}", "example.com/queue": "x"}, ""),
    ],
)
def test_keys_without_effect_are_named(labels: dict[str, str], annotations: dict[str, str], words: str) -> None:
    made = group("train", 1, annotations)
    made.metadata.labels = labels
    assert without_effect(made.metadata).startswith(words)
    assert bool(without_effect(made.metadata)) is bool(words)


def test_all_documented_annotations_are_known() -> None:
    """Otherwise a correct gang would get a warning."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    table = page[page.index("| annotation of the PodGroup") : page.index("The label `gangwatch.io/queue`")]
    named = set(re.findall(r"gangwatch\.io/[a-z-]+", table))
    assert len(named) > 9 and named == set(ANNOTATIONS)


def test_only_what_lasts_is_reported_and_a_gap_starts_again() -> None:
    since = Since()
    assert since.lasting(["a"], 0.0) == set()
    assert since.lasting(["a", "b"], INCOMPLETE_SECONDS) == {"a"}
    assert since.lasting(["b"], INCOMPLETE_SECONDS + 1) == set()
    assert since.lasting(["a", "b"], 2 * INCOMPLETE_SECONDS) == {"b"}
    assert since.keys() == {"a", "b"}


@pytest.mark.xdist_group("kubernetes")
@pytest.mark.timeout(300)
def test_incomplete_gangs_and_absent_groups_have_a_reason_until_they_are_complete(
    cluster: Cluster, access: Access, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incomplete, "INCOMPLETE_SECONDS", 0.5)
    cluster.add_nodes("n1", "n2", "n3")
    cluster.add_group("few", 2)
    cluster.add_pods("few", 1)
    pods = "/api/v1/namespaces/default/pods"
    cluster.api.create(pods, pod_body("lost", 8, "mistyped"))

    def condition(name: str) -> dict[str, str]:
        found = cluster.api.get(f"{pods}/{name}")["status"].get("conditions") or []
        return next((one for one in found if one["type"] == "PodScheduled"), {})

    with running(access, folder):
        found = wait_for("the group says why", lambda: cluster.condition("few"))
        assert (found["status"], found["reason"]) == ("False", "Incomplete")
        assert found["message"].startswith("1 of 2 pods exist; each needs schedulerName gangwatch and the label")
        found = wait_for("the pod says why", lambda: condition("lost"))
        words = "NoGroup: PodGroup mistyped, which the pod names as its group, does not exist in its namespace"
        assert (found["status"], found["reason"], found["message"]) == ("False", "Unschedulable", words)
        cluster.api.create(pods, pod_body("few-1", 8, "few"))
        cluster.add_group("mistyped", 1)
        wait_for("both run", lambda: cluster.bound("few") == 2 and cluster.bound("mistyped") == 1)
        wait_for("the reason is gone", lambda: cluster.condition("few")["status"] == "True")
        assert condition("lost")["status"] == "True"
