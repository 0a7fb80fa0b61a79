"""gangwatch's marks on nodes: written, read back, and the state that is rebuilt from the API's objects alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.gang_stop import Budget, Job, forbidden
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Attempt, Phase, assign, written
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Node, Taint
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    PLACEMENT,
    RANK,
    SLOTS,
    TopologyLabels,
    job_id_of,
)
from scheduler_feedback.backends.kubernetes.published.marks import (
    CONDITION,
    MEMORY,
    STATE,
    Marks,
    changes,
    marks_of,
    remembered,
)
from scheduler_feedback.backends.kubernetes.published.publish import BEING_BOUND_NS, GangStatus, view_of, worth_writing
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.core import cluster
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job as CoreJob
from scheduler_feedback.core.job import JobSpec, JobState, Slot
from scheduler_feedback.core.state import Policy, State
from tests.kubernetes.makers import group, node, pod

SECOND = 1_000_000_000
BAD = cluster.Node(
    "n1", 8, state=NodeState.QUARANTINE, until_ns=99, backoff=3, reason="slow", accusers=("a", "b"), slowdown=1.4
)


def patched(before: Node, body: dict[str, Any] | None, status: dict[str, Any] | None) -> Node:
    """Return the node as the API server stores it after these patches."""
    after = msgspec.convert(msgspec.to_builtins(before), Node)
    for key, target in (("labels", "labels"), ("annotations", "annotations")):
        values = dict(getattr(after.metadata, target) or {})
        for name, value in (body or {}).get("metadata", {}).get(key, {}).items():
            values.pop(name, None) if value is None else values.update({name: value})
        setattr(after.metadata, target, values)
    if "taints" in (body or {}).get("spec", {}):
        after.spec.taints = msgspec.convert(msgspec.to_builtins((body or {})["spec"]["taints"]), list[Taint] | None)
    for one in (status or {}).get("status", {}).get("conditions", []):
        kept = [condition for condition in after.status.conditions or [] if condition.type != one["type"]]
        after.status.conditions = kept if "$patch" in one else [*kept, msgspec.convert(one, Condition)]
    return after


def test_a_quarantined_node_has_taint_label_condition_and_its_complete_state() -> None:
    before = node("n1")
    before.spec.taints = [Taint("dedicated", "ml", "NoSchedule")]
    after = patched(before, *changes(before, marks_of(BAD)))
    assert after.metadata.label(STATE) == "quarantine"
    assert [(taint.key, taint.effect) for taint in after.spec.taints or []] == [
        ("dedicated", "NoSchedule"),
        ("gangwatch.io/quarantine", "NoSchedule"),
    ]
    assert [one.message for one in after.status.conditions or [] if one.type == CONDITION] == ["slow"]
    memory = remembered(after)
    assert (memory.state, memory.until_ns, memory.backoff, memory.accusers) == (NodeState.QUARANTINE, 99, 3, ("a", "b"))
    assert changes(after, marks_of(BAD)) == (None, None)


@pytest.mark.parametrize("state", list(NodeState))
def test_marks_of_any_state_are_removed_again_and_nothing_else_is(state: NodeState) -> None:
    before = node("n1", pool="a")
    before.spec.taints = [Taint("dedicated", "ml", "NoSchedule")]
    marked = patched(before, *changes(before, marks_of(cluster.Node("n1", 8, state=state, reason="slow", backoff=1))))
    assert marked.metadata.annotation(MEMORY)
    after = patched(marked, *changes(marked, Marks()))
    assert after.metadata.labels == before.metadata.labels
    assert after.metadata.annotations == {}
    assert after.spec == before.spec
    assert after.status == before.status


def test_a_healthy_node_without_history_has_no_marks() -> None:
    assert changes(node("n1"), marks_of(cluster.Node("n1", 8))) == (None, None)
    assert remembered(node("n1")).state is NodeState.HEALTHY


def test_a_change_of_taints_applies_only_to_the_version_that_was_read() -> None:
    before = node("n1")
    before.metadata.resource_version = "7"
    body, _ = changes(before, marks_of(BAD))
    assert body is not None
    assert body["metadata"]["resourceVersion"] == "7"


# --- rebuilding ------------------------------------------------------------------------------------------------------


def test_a_state_is_built_from_objects_alone() -> None:
    cache = InformerCache("gangwatch", TopologyLabels())
    bad = patched(node("n1"), *changes(node("n1"), marks_of(BAD)))
    for one in (bad, node("n2"), node("n3")):
        cache.node_changed(one.metadata.name, None, one)
    pods = [pod("w-0", 8, "g"), pod("w-1", 8, "g")]
    attempt = Attempt("j", 3, "default/g", ())
    placement = [Slot(name, slot) for name in ("n2", "n3") for slot in range(8)]
    attempt.members, attempt.phase = assign(cache, pods, placement), Phase.BOUND
    declared = group("g", 2, {PLACEMENT: written(attempt)})
    declared.metadata.creation_timestamp = "1970-01-01T00:00:05Z"
    cache.group_changed("default/g", None, declared)
    for number, bound in enumerate(pods):
        bound.spec.node_name = placement[8 * number].node
        bound.metadata.annotations = {ATTEMPT: "3", SLOTS: "0,1,2,3,4,5,6,7", RANK: str(8 * number)}
        cache.pod_changed(bound.metadata.key, None, bound)
    fresh = group("fresh", 1)
    cache.group_changed("default/fresh", None, fresh)
    cache.pod_changed("default/f-0", None, pod("f-0", 1, "fresh"))
    state, keys = rebuild(cache, cache.seen(), Policy(), 10 * SECOND)
    assert state.nodes["n1"].state is NodeState.QUARANTINE
    assert (state.nodes["n1"].backoff, state.nodes["n1"].accusers) == (3, ("a", "b"))
    (job,) = state.jobs.values()
    assert keys == {job.job_id: "default/g"}
    assert (job.state, job.attempt, job.submitted_ns) == (JobState.STARTING, 3, 5 * SECOND)
    assert [record.slot for record in job.ranks] == placement
    assert job.attempt_started_ns == 10 * SECOND  # no kubelet has started it: its wait for resources is no late start
    pods[1].status.start_time = "1970-01-01T00:00:07Z"
    (job,) = rebuild(cache, cache.seen(), Policy(), 10 * SECOND)[0].jobs.values()
    assert job.attempt_started_ns == 7 * SECOND


def test_a_gang_with_recreated_pods_is_pending_with_its_last_attempts_number() -> None:
    cache = InformerCache("gangwatch", TopologyLabels())
    cache.node_changed("n1", None, node("n1"))
    pods = [pod("w-0", 8, "g")]
    declared = group("g", 1)
    attempt = Attempt(job_id_of(declared.metadata), 2, "default/g", ())
    attempt.members = assign(cache, pods, [Slot("n1", slot) for slot in range(8)])
    declared.metadata.annotations = {PLACEMENT: written(attempt)}
    cache.group_changed("default/g", None, declared)
    cache.pod_changed("default/w-0x", None, pod("w-0x", 8, "g"))
    state, _ = rebuild(cache, cache.seen(), Policy(), SECOND)
    (job,) = state.jobs.values()
    assert (job.state, job.attempt, job.ranks) == (JobState.PENDING, 2, [])


# --- budgets and Jobs ------------------------------------------------------------------------------------------------


def budget(allowed: int, **selector: Any) -> Budget:
    body = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": selector}}
    return msgspec.convert({**body, "status": {"disruptionsAllowed": allowed}}, Budget)


def test_a_budget_that_allows_each_eviction_but_not_all_prevents_the_eviction_of_the_gang() -> None:
    pods = [pod(f"w-{n}", labels={"app": "t"}) for n in range(3)]
    assert forbidden(pods, [budget(3, matchLabels={"app": "t"})]) == ""
    assert "allows 2 evictions now; the gang needs 3" in forbidden(pods, [budget(2, matchLabels={"app": "t"})])
    assert forbidden(pods, [budget(0, matchLabels={"app": "other"})]) == ""
    assert forbidden(pods, [budget(0)]) != ""  # an empty selector selects all
    exists = {"key": "app", "operator": "Exists"}
    assert forbidden(pods, [budget(0, matchExpressions=[exists])]) != ""


@pytest.mark.parametrize(
    ("rules", "ignores"),
    [
        (None, False),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}], True),
        ([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}], False),
        ([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}], False),
    ],
)
def test_a_job_tolerates_evictions_only_if_its_policy_says_so(rules: Any, ignores: bool) -> None:
    spec = {} if rules is None else {"podFailurePolicy": {"rules": rules}}
    assert msgspec.convert({"metadata": {"name": "j"}, "spec": spec}, Job).ignores_disruptions is ignores


# --- when a change is written ----------------------------------------------------------------------------------------


def test_only_a_slow_start_is_published() -> None:
    job = CoreJob("j", JobSpec("j", ("c",), 1), JobState.STARTING, 0, attempt=1, attempt_started_ns=SECOND)
    state = State(now_ns=2 * SECOND, jobs={"j": job})
    assert view_of(state, ["j"]).statuses == {}
    state.now_ns = SECOND + BEING_BOUND_NS
    assert view_of(state, ["j"]).statuses["j"].reason == "Starting"
    job.attempt_started_ns, state.now_ns = 99 * SECOND, 100 * SECOND
    assert view_of(state, ["j"]).statuses == {}, "it has only just begun, by any clock"
    assert view_of(state, ["j", "unknown"]).started == {"j"}
    job.state = JobState.PENDING
    assert view_of(state, ["j"]).started == set()


def test_a_changing_message_is_not_rewritten_each_time() -> None:
    waits = GangStatus(False, "Slots", "needs 8 slots, 3 are free", 100 * SECOND)
    assert worth_writing(None, waits, 0, 0)
    assert not worth_writing(waits, waits, 0, 1000 * SECOND)
    closer = GangStatus(False, "Slots", "needs 8 slots, 4 are free", 101 * SECOND)
    assert not worth_writing(waits, closer, 0, SECOND)
    assert worth_writing(waits, closer, 0, 60 * SECOND)
    assert worth_writing(waits, GangStatus(False, "Slots", "...", 120 * SECOND), 0, SECOND)
    soon = GangStatus(False, "Slots", "...", 102 * SECOND)
    assert not worth_writing(waits, soon, 0, SECOND)
    assert worth_writing(waits, soon, 90 * SECOND, 91 * SECOND), "two of ten seconds are a large change"
    assert worth_writing(waits, GangStatus(False, "Slots", "...", None), 0, SECOND)
    assert worth_writing(waits, GangStatus(False, "Reservation", "...", 100 * SECOND), 0, SECOND)
    assert worth_writing(waits, GangStatus(True, "Scheduled", "..."), 0, SECOND)
