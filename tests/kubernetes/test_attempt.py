"""Attempts: which pod gets which slot, missing and replaced pods, ends, and the use of nodes."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import (
    Attempt,
    DoesNotFitError,
    Phase,
    adopt,
    assign,
    ended,
    rejected,
    requests_by_node,
    scan_attempt,
    written,
)
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of
from scheduler_feedback.backends.kubernetes.objects.objects import Container, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, PLACEMENT, RANK, SLOTS, TopologyLabels
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, NodeSeen, RankFailed
from scheduler_feedback.core.job import Slot
from tests.kubernetes.makers import group, node, pod


def cache_of(*names: str, gpus: int = 8) -> InformerCache:
    cache = InformerCache("gangwatch", TopologyLabels())
    for name in names:
        cache.node_changed(name, None, node(name, gpus))
    return cache


def seen(cache: InformerCache) -> dict[str, NodeSeen]:
    return {one.node: one for one in cache.seen()}


def add(cache: InformerCache, *pods: Pod) -> None:
    for one in pods:
        cache.pod_changed(one.metadata.key, cache.pods.get(one.metadata.key), one)


def slots(name: str, count: int, first: int = 0) -> list[Slot]:
    return [Slot(name, number) for number in range(first, first + count)]


def phase(one: Pod, phase: str, code: int | None = None) -> Pod:
    changed = msgspec.convert(msgspec.to_builtins(one), Pod)
    changed.status.phase = phase
    if code is not None:
        state = {"state": {"terminated": {"exitCode": code}}}
        changed.status = msgspec.convert({"phase": phase, "containerStatuses": [state]}, type(one.status))
    return changed


# --- assigning -------------------------------------------------------------------------------------------------------


def test_pods_are_assigned_where_the_core_placed_their_ranks_and_count_as_assumed() -> None:
    cache = cache_of("n1", "n2")
    pods = [pod("w-0", 8, "g"), pod("w-1", 4, "g")]
    members = assign(cache, pods, [*slots("n1", 8), *slots("n2", 4)])
    assert [(m.node, m.ranks, m.slots) for m in members] == [
        ("n1", range(8), tuple(range(8))),
        ("n2", range(8, 12), (0, 1, 2, 3)),
    ]
    assert cache.free_of("n1")["nvidia.com/gpu"] == 0
    assert cache.free_of("n2") == {"cpu": 63_000, "memory": (512 << 30) - (1 << 30), "pods": 109, "nvidia.com/gpu": 4}


def test_if_one_pod_does_not_fit_no_pod_is_assumed() -> None:
    cache = cache_of("n1", "n2")
    hungry = pod("w-1", 8, "g")
    another = msgspec.convert({"name": "x", "resources": {"requests": {"cpu": "63.5"}}}, Container)
    hungry.spec.containers = [*hungry.spec.containers, another]
    before = cache.free_of("n1")
    with pytest.raises(DoesNotFitError, match="w-1 does not fit on n2: cpu: 64500 requested, 64000 free") as caught:
        assign(cache, [pod("w-0", 8, "g"), hungry], [*slots("n1", 8), *slots("n2", 8)])
    assert caught.value.node == "", "the node is not excluded: its next report limits the gang"
    assert cache.free_of("n1") == before


def test_a_pod_without_enough_accelerators_excludes_the_node() -> None:
    cache = cache_of("n1")
    taken = pod("other", 4, schedulerName="x", nodeName="n1")
    cache.pod_changed("default/other", None, taken)
    wide = pod("w-0", 8, "g")
    with pytest.raises(DoesNotFitError, match="gpu: 8 requested, 4 free") as caught:
        assign(cache, [wide], slots("n1", 8))
    assert (caught.value.node, caught.value.constraint) == ("n1", constraint_of(wide).name)


def test_two_pods_that_fit_only_separately_are_not_both_assigned_to_a_node() -> None:
    cache = cache_of("n1")
    wide = [{"name": "m", "resources": {"requests": {"cpu": "40", "nvidia.com/gpu": "1"}}}]
    with pytest.raises(DoesNotFitError, match="24000 free"):
        assign(cache, [pod("a", 1, "g", containers=wide), pod("b", 1, "g", containers=wide)], slots("n1", 2))


def test_a_constraint_refused_while_binding_is_refused_until_the_node_s_use_changes() -> None:
    cache = cache_of("n1")
    waiting = constraint_of(pod("p", 1))
    cache.want(waiting)
    assert seen(cache)["n1"].refuses == ()
    cache.bar(waiting.name, "n1")
    assert seen(cache)["n1"].refuses == (waiting.name,)
    other = pod("other", 1, schedulerName="x", nodeName="n1")
    cache.pod_changed("default/other", None, other)
    assert seen(cache)["n1"].refuses == ()


def test_pods_of_others_take_slots_and_pods_of_an_attempt_do_not() -> None:
    cache = cache_of("n1")
    other = pod("other", 3, schedulerName="x", nodeName="n1")
    cache.pod_changed("default/other", None, other)
    mine = pod("w-0", 2, "g", nodeName="n1")
    add(cache, mine)
    assert seen(cache)["n1"].slots == 3
    cache.hold(mine.metadata.uid, Place("g", 1, "n1", range(2)))
    assert seen(cache)["n1"].slots == 5
    cache.pod_changed("default/other", other, None)
    assert seen(cache)["n1"].slots == 8
    cache.release(mine.metadata.uid)
    assert seen(cache)["n1"].slots == 6


def test_each_change_of_a_node_is_reported_once() -> None:
    cache = cache_of("n1", "n2")
    assert {one.node for one in cache.seen_changes()} == {"n1", "n2"}
    cache.node_changed("n2", None, node("n2"))  # a heartbeat
    assert cache.seen_changes() == []
    other = pod("other", 3, schedulerName="x", nodeName="n1")
    cache.pod_changed("default/other", None, other)
    assert seen(cache)["n1"].slots == 5  # the caller gets all nodes
    assert [(one.node, one.slots) for one in cache.seen_changes()] == [("n1", 5)]
    cache.pod_changed("default/other", other, None)
    cache.node_changed("n1", None, None)
    assert cache.seen_changes() == []


def test_a_later_attempt_keeps_the_pod_when_the_earlier_one_ends() -> None:
    cache = cache_of("n1", "n2")
    mine = pod("w-0", 2, "g")
    first, second = Place("g", 1, "n1", range(2)), Place("g", 2, "n2", range(2))
    cache.hold(mine.metadata.uid, first)
    cache.hold(mine.metadata.uid, second)
    cache.release(mine.metadata.uid, first)
    assert cache.place_of(mine.metadata.uid) == second
    cache.release(mine.metadata.uid, second)
    assert cache.place_of(mine.metadata.uid) is None


def test_a_pod_that_has_ended_holds_no_slot() -> None:
    cache = cache_of("n1")
    running = pod("w-0", 8, schedulerName="x", nodeName="n1")
    cache.pod_changed("default/w-0", None, running)
    assert seen(cache)["n1"].slots == 0
    cache.pod_changed("default/w-0", running, phase(running, "Succeeded"))
    assert seen(cache)["n1"].slots == 8


def test_other_resources_of_a_node_without_a_free_slot_are_not_reported() -> None:
    cache = cache_of("n1")
    waiting = constraint_of(pod("p", 1))
    cache.want(waiting)
    hungry = [{"name": "m", "resources": {"requests": {"cpu": "64", "nvidia.com/gpu": "8"}}}]
    mine = pod("w-0", 8, "g", nodeName="n1", containers=hungry)
    add(cache, mine)
    cache.hold(mine.metadata.uid, Place("g", 1, "n1", range(2)))
    assert seen(cache)["n1"].refuses == ()
    cache.want(constraint_of(pod("q", 1, nodeSelector={"pool": "a"})))
    assert seen(cache)["n1"].refuses == (constraint_of(pod("q", 1, nodeSelector={"pool": "a"})).name,)


# --- ends of attempts ------------------------------------------------------------------------------------------------


def bound(*names: str) -> tuple[Attempt, dict[str, Pod]]:
    cache = cache_of(*(f"n{n}" for n in range(len(names))))
    pods = [pod(name, 1, "g") for name in names]
    attempt = Attempt("j", 1, "default/g", ())
    attempt.members = assign(cache, pods, [Slot(f"n{n}", 0) for n in range(len(names))])
    attempt.phase = Phase.BOUND
    for member in attempt.members:
        member.bound = True
    return attempt, {one.metadata.uid: one for one in pods}


def test_a_gang_runs_once_all_of_its_pods_run_and_this_is_reported_once() -> None:
    attempt, pods = bound("w-0", "w-1")
    first, second = pods
    pods[first] = phase(pods[first], "Running")
    assert scan_attempt(attempt, pods) == []
    pods[second] = phase(pods[second], "Running")
    (event,) = scan_attempt(attempt, pods)
    assert isinstance(event, AttemptRunning)
    assert [(rank.rank, rank.node) for rank in event.ranks] == [(0, "n0"), (1, "n1")]
    assert scan_attempt(attempt, pods) == []


def running(*names: str) -> tuple[Attempt, dict[str, Pod]]:
    attempt, pods = bound(*names)
    pods = {uid: phase(one, "Running") for uid, one in pods.items()}
    scan_attempt(attempt, pods)
    return attempt, pods


def test_a_gang_of_succeeded_pods_has_succeeded_and_a_failed_pod_is_named_with_its_code() -> None:
    attempt, pods = running("w-0", "w-1")
    (event,) = scan_attempt(attempt, {uid: phase(one, "Succeeded") for uid, one in pods.items()})
    assert isinstance(event, AttemptEnded)
    assert [(one.rank, one.exit_code) for one in event.exits] == [(0, 0), (1, 0)]
    attempt, pods = running("w-0", "w-1")
    _, second = pods
    pods[second] = phase(pods[second], "Failed", 137)
    assert scan_attempt(attempt, pods) == [RankFailed("j", 1, 1, 137)]
    assert scan_attempt(attempt, pods) == []


@pytest.mark.parametrize("other", ["Pending", "Running"])
def test_a_pod_that_fails_before_all_pods_run_is_a_failure_at_once(other: str) -> None:
    """A container that cannot be started because containerd or the kubelet ends, or a program that fails early."""
    attempt, pods = bound("w-0", "w-1")
    first, second = pods
    pods[first] = phase(pods[first], other)
    pods[second] = phase(pods[second], "Failed", 128)
    assert scan_attempt(attempt, pods) == [RankFailed("j", 1, 1, 128)]
    assert scan_attempt(attempt, pods) == []
    pods[first] = phase(pods[first], "Failed", 143)
    attempt.phase = Phase.STOPPING
    assert scan_attempt(attempt, pods) == []


@pytest.mark.parametrize("all_over", [True, False])
def test_of_several_failed_pods_the_first_is_named(all_over: bool) -> None:
    attempt, pods = running("w-0", "w-1", "w-2")
    times = {"w-0": "2026-11-28T10:00:05Z", "w-1": "2026-11-28T10:00:04Z", "w-2": "2026-11-28T10:00:06Z"}
    for uid, one in pods.items():
        if all_over or one.metadata.name != "w-2":
            pods[uid] = phase(one, "Failed", 1)
            (status,) = pods[uid].status.container_statuses or ()
            assert status.state.terminated is not None
            status.state.terminated.finished_at = times[one.metadata.name]
    failed, *ends = scan_attempt(attempt, pods)
    assert failed == RankFailed("j", 1, 1, 1)
    assert [type(event) for event in ends] == [AttemptEnded] * all_over


@pytest.mark.parametrize(("end", "code"), [("Succeeded", 0), ("Failed", 3)])
def test_a_gang_that_ended_before_it_was_seen_running_has_run(end: str, code: int) -> None:
    attempt, pods = bound("w-0")
    *failed, event = scan_attempt(attempt, {uid: phase(one, end, code) for uid, one in pods.items()})
    assert isinstance(event, AttemptEnded)
    assert event.started
    assert failed == ([RankFailed("j", 1, 0, code)] if code else [])
    assert [one.exit_code for one in event.exits] == [code]


def test_a_missing_pod_is_a_hole_and_a_gang_without_pods_has_ended() -> None:
    attempt, pods = running("w-0", "w-1")
    first, second = pods
    assert scan_attempt(attempt, {second: pods[second]}) == []
    assert [member.hole for member in attempt.members] == [True, False]
    (event,) = scan_attempt(attempt, {})
    assert event == ended(attempt)
    assert isinstance(event, AttemptEnded)
    assert [one.exit_code for one in event.exits] == [None, None]
    assert first


def test_a_pod_that_ends_because_it_is_deleted_is_a_hole_and_no_failure() -> None:
    attempt, pods = running("w-0", "w-1")
    _, second = pods
    pods[second] = phase(pods[second], "Failed", 143)
    pods[second].metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    assert scan_attempt(attempt, pods) == []
    assert [member.hole for member in attempt.members] == [False, True]


def test_a_kubelets_rejection_is_distinguished_from_a_failure() -> None:
    attempt, pods = bound("w-0")
    (uid,) = pods
    refused = phase(pods[uid], "Failed")
    refused.status.reason, refused.status.message = "OutOfcpu", "Node didn't have enough resource: cpu"
    assert rejected(attempt, {uid: refused}).startswith("n0 rejected pod default/w-0: OutOfcpu")
    assert rejected(attempt, {uid: phase(pods[uid], "Failed", 1)}) == ""


# --- after a restart -------------------------------------------------------------------------------------------------


def placed(number: int = 1) -> tuple[PodGroup, list[Pod]]:
    """Return a PodGroup with its placement annotation, and its pods."""
    attempt, by_uid = bound("w-0", "w-1")
    attempt.number = number
    pods = list(by_uid.values())
    return group("g", 2, {PLACEMENT: written(attempt)}), pods


def bind(one: Pod, name: str, number: int, rank: int) -> None:
    one.spec.node_name = name
    one.metadata.annotations = {ATTEMPT: str(number), SLOTS: "0", RANK: str(rank)}


def test_a_partly_bound_gang_is_continued() -> None:
    declared, pods = placed()
    bind(pods[0], "n0", 1, 0)
    attempt = adopt("j", 1, "default/g", pods, declared)
    assert attempt is not None
    assert attempt.phase is Phase.BINDING
    assert [(m.name, m.node, m.bound) for m in attempt.members] == [
        ("default/w-0", "n0", True),
        ("default/w-1", "n1", False),
    ]
    assert attempt.placement == (Slot("n0", 0), Slot("n1", 0))
    bind(pods[1], "n1", 1, 1)
    attempt = adopt("j", 1, "default/g", pods, declared)
    assert attempt is not None
    assert attempt.phase is Phase.BOUND


def test_a_replacement_is_found_again_and_a_missing_pod_is_a_hole() -> None:
    declared, pods = placed()
    substitute = pod("w-9", 1, "g")
    bind(substitute, "n1", 1, 1)
    attempt = adopt("j", 1, "default/g", [substitute], declared)
    assert attempt is not None
    assert [(m.name, m.hole) for m in attempt.members] == [("default/w-0", True), ("default/w-9", False)]
    assert pods


def test_other_attempts_and_unreadable_annotations_are_not_adopted() -> None:
    declared, pods = placed(number=2)
    assert adopt("j", 1, "default/g", pods, declared) is None
    assert adopt("j", 1, "default/g", pods, group("g", 2, {PLACEMENT: "{"})) is None
    assert adopt("j", 1, "default/g", pods, None) is None


# --- resources of attempts whose pods have no nodes yet --------------------------------------------------------------


def test_a_planned_attempt_counts_in_the_node_s_report_until_its_pods_do() -> None:
    cache = cache_of("n1")
    hungry = [{"name": "m", "resources": {"requests": {"cpu": "20", "nvidia.com/gpu": "1"}}}]
    one = pod("w-0", 1, "g", containers=hungry)
    cache.want(constraint_of(one))
    limit = seen(cache)["n1"].limits[0]
    assert (limit.pods, dict(seen(cache)["n1"].free)["cpu"]) == (3, 64_000)
    cache.plan(("j", 1), requests_by_node([one], slots("n1", 1)))
    limit = seen(cache)["n1"].limits[0]
    assert (limit.pods, limit.most_pods, dict(seen(cache)["n1"].free)["cpu"]) == (2, 3, 44_000)
    assert seen(cache)["n1"].slots == 8, "its slots are those of the cycle's own gang"
    cache.unplan(("j", 1), ["n1"])
    assign(cache, [one], slots("n1", 1))
    cache.hold(one.metadata.uid, Place("j", 1, "n1", range(1)))
    limit = seen(cache)["n1"].limits[0]
    assert (limit.pods, dict(seen(cache)["n1"].free)["cpu"]) == (2, 44_000)


def test_large_pods_that_fit_side_by_side_are_limited_by_slots_alone() -> None:
    cache = cache_of("n1")
    whole = [{"name": "m", "resources": {"requests": {"cpu": "60", "nvidia.com/gpu": "8"}}}]
    constraint = constraint_of(pod("w-0", 8, "g", containers=whole))
    cache.want(constraint, 8)
    assert (seen(cache)["n1"].limits, seen(cache)["n1"].free) == ((), ()), "one pod uses all slots"
    cache.want(constraint, 4)
    assert [one.pods for one in seen(cache)["n1"].limits] == [1], "two pods of four slots need 120 processors"
    cache.want(constraint, 8)
    assert seen(cache)["n1"].limits, "the smallest pod counts"


def test_a_node_without_free_slots_reports_no_amounts() -> None:
    """Each change of its CPU or memory would be a report, although no pod can be placed on it."""
    cache = cache_of("n1", gpus=2)
    hungry = [{"name": "m", "resources": {"requests": {"cpu": "30", "nvidia.com/gpu": "1"}}}]
    large = [{"name": "m", "resources": {"requests": {"cpu": "40", "nvidia.com/gpu": "1"}}}]
    cache.want(constraint_of(pod("w-0", 1, containers=large)))
    for number in range(2):
        running = pod(f"other-{number}", 1, nodeName="n1", containers=hungry)
        add(cache, running)
        assert seen(cache)["n1"].free or number
        cache.hold(running.metadata.uid, Place("j", 1, "n1", range(number, number + 1)))
    assert [(one.pods, one.most_pods) for one in seen(cache)["n1"].limits] == [(1, 1)]
    assert seen(cache)["n1"].free == ()


def test_virtual_functions_limit_the_pods_of_a_node_as_processors_do() -> None:
    """SR-IOV's device plug-in reports the virtual functions of each rail as an extended resource."""
    cache = cache_of("n1")
    rail = "nvidia.com/rail0_vf"
    with_functions = node("n1")
    assert with_functions.status.allocatable is not None
    with_functions.status.allocatable[rail] = "4"
    cache.node_changed("n1", None, with_functions)
    one_each = [{"name": "m", "resources": {"requests": {rail: "1", "nvidia.com/gpu": "1"}}}]
    one = pod("w-0", 1, "g", containers=one_each)
    cache.want(constraint_of(one))
    assert [limit.pods for limit in seen(cache)["n1"].limits] == [4]
    cache.plan(("j", 1), requests_by_node([one] * 3, slots("n1", 3)))
    assert [limit.pods for limit in seen(cache)["n1"].limits] == [1]
    assert dict(seen(cache)["n1"].free)[rail] == 1
