"""Start and stop of attempts, step by step, against an in-memory API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scheduler_feedback.backends.kubernetes.api_server.client import UnreachableError
from scheduler_feedback.backends.kubernetes.attempts import attempt_lifecycle, binding, gang_stop, repetition
from scheduler_feedback.backends.kubernetes.attempts.attempt_lifecycle import AttemptLifecycle
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Attempt, Member, Phase
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.translate import PLACEMENT
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import ActionFailed, AttemptEnded, AttemptUnknown, CancelRequested, Event
from scheduler_feedback.core.job import JobKind, JobSpec, Slot, StopReason
from tests.kubernetes.little_api import LittleApi, refused
from tests.kubernetes.makers import group, pod
from tests.kubernetes.test_attempt import add, cache_of

GPU = "nvidia.com/gpu"
PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LOST = UnreachableError("a request: no answer")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (binding, gang_stop, repetition):
        for name in ("_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS"):
            monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(attempt_lifecycle, "PODS_SECONDS", 0.2)
    monkeypatch.setattr(attempt_lifecycle, "RECREATED_SECONDS", 0.2)
    monkeypatch.setattr(attempt_lifecycle, "_LOOK_SECONDS", 0.005)


class Scene:
    """AttemptLifecycle with two nodes of eight GPUs, and the events that it emits."""

    def __init__(self, *pods: Pod, grouped: bool = False) -> None:
        self.api = LittleApi(lists=(BUDGETS, PODS, "/apis/batch/v1/jobs"))
        self.cache = cache_of("n1", "n2")
        if grouped:
            declared = group("g", len(pods))
            self.cache.group_changed("default/g", None, declared)
            self.api.objects[f"{GROUPS}/g"] = msgspec.to_builtins(declared)
        add(self.cache, *pods)
        for one in pods:
            self.api.objects[f"{PODS}/{one.metadata.name}"] = msgspec.to_builtins(one)
        self.said: list[Event] = []
        self.scanned: list[int] = []
        self.last_pods: dict[str, list[Pod]] = {}
        connection: Any = SimpleNamespace(client=self.api)
        self.make = lambda: AttemptLifecycle(
            connection,
            self.cache,
            self.said.append,
            lambda one: self.scanned.append(one.number),
            self.last_pods,
        )

    def do(self, *work: Callable[[AttemptLifecycle], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            carrier = self.make()
            await asyncio.wait_for(asyncio.gather(*(one(carrier) for one in work)), 10)

        asyncio.run(run())


def attempt_of(key: str = "default/a", number: int = 1, *members: Member) -> Attempt:
    return Attempt("j", number, key, (), members=list(members), action_id="act")


def start(*slots: Slot) -> StartGang:
    return StartGang("act", "j", 1, JobSpec("j", ("c",), len(slots)), slots)


def slots(node: str, *numbers: int) -> tuple[Slot, ...]:
    return tuple(Slot(node, number) for number in numbers)


def bound(one: Pod, node: str, first: int = 0, **fields: Any) -> Member:
    usual = {"bound": True} | fields
    return Member(one.metadata.key, one.metadata.uid, node, range(first, first + 1), (0,), **usual)


def bindings(scene: Scene) -> list[tuple[str, str]]:
    """Return (pod, node) of each binding that was requested."""
    found = zip(scene.api.done, scene.api.bodies, strict=True)
    return [(path.split("/")[-2], body["target"]["name"]) for (_, path), body in found if path.endswith("/binding")]


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_gang_is_bound_to_the_action_s_slots_after_its_placement_is_written() -> None:
    scene = Scene(pod("g-0", 1, "g"), pod("g-1", 1, "g"), grouped=True)
    attempt = attempt_of("default/g")
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 3), *slots("n2", 5))))
    assert scene.api.done[0] == ("PATCH", f"{GROUPS}/g")
    assert PLACEMENT in scene.api.bodies[0]["metadata"]["annotations"]
    assert bindings(scene) == [("g-0", "n1"), ("g-1", "n2")]
    assert (attempt.phase, scene.scanned, scene.said) == (Phase.BOUND, [1], [])
    assert not attempt.beyond
    uid = scene.cache.pods["default/g-1"].metadata.uid
    assert scene.cache.place_of(uid) == Place("j", 1, "n2", range(1, 2))
    assert (scene.cache.free_of("n1")[GPU], scene.cache.free_of("n2")[GPU]) == (7, 7)


def test_a_start_waits_for_missing_pods() -> None:
    scene = Scene()
    attempt = attempt_of()

    async def come(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.05)
        add(scene.cache, pod("a", 1))

    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))), come)
    assert (bindings(scene), attempt.phase) == ([("a", "n1")], Phase.BOUND)


def test_a_start_without_pods_fails_and_reports_how_the_owner_ended() -> None:
    scene = Scene()
    attempt = attempt_of()
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))))
    assert scene.said == [ActionFailed("act", "j", "its pods do not exist yet")]
    owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    body = msgspec.to_builtins(pod("a", 1))
    body["metadata"]["ownerReferences"] = [owner]
    scene.last_pods["j"] = [msgspec.convert(body, Pod)]
    scene.said.clear()
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))))
    assert scene.said == [
        CancelRequested("j", "its owner, a Job that is deleted"),
        ActionFailed("act", "j", "its pods do not exist yet"),
    ]


def test_a_pod_that_is_already_bound_is_not_bound_again() -> None:
    scene = Scene(pod("a", 1, nodeName="n2"))
    scene.do(lambda carrier: carrier.start(attempt_of(), start(*slots("n1", 0))))
    assert bindings(scene) == []
    assert [type(event) for event in scene.said] == [ActionFailed]


def test_a_start_that_is_stopped_binds_and_reports_nothing() -> None:
    scene = Scene()
    attempt = attempt_of()

    async def stop(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.02)
        attempt.phase = Phase.STOPPING
        add(scene.cache, pod("a", 1))

    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))), stop)
    assert (bindings(scene), scene.said) == ([], [])


def test_a_start_stopped_before_its_work_begins_binds_nothing() -> None:
    scene = Scene(pod("a", 1))
    attempt = attempt_of()
    attempt.phase = Phase.STOPPING
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0))))
    assert (bindings(scene), scene.said, attempt.members) == ([], [], [])


def test_a_pod_that_does_not_fit_is_reported_and_its_node_is_excluded() -> None:
    hungry = pod("a", 9)
    scene = Scene(hungry)
    gang = scene.cache.gang("default/a")
    assert gang is not None and gang.constraint is not None
    scene.cache.want(gang.constraint)
    before = scene.cache.free_of("n1")
    scene.do(lambda carrier: carrier.start(attempt_of(), start(*slots("n1", *range(9)))))
    (failed,) = scene.said
    assert isinstance(failed, ActionFailed) and "does not fit on n1: nvidia.com/gpu" in failed.reason
    assert scene.cache.free_of("n1") == before
    assert ("n1", gang.constraint.name) in scene.cache._barred or (gang.constraint.name, "n1") in scene.cache._barred


def test_a_refused_binding_undoes_the_earlier_bindings() -> None:
    scene = Scene(pod("g-0", 1, "g"), pod("g-1", 1, "g"), grouped=True)
    scene.api.fails[("POST", f"{PODS}/g-1/binding")] = [refused(403, "Forbidden", "no")]
    attempt = attempt_of("default/g")
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 0), *slots("n2", 0))))
    assert ("DELETE", f"{PODS}/g-0") in scene.api.done and ("DELETE", f"{PODS}/g-1") not in scene.api.done
    assert scene.said == [ActionFailed("act", "j", "pod g-1: no")]
    assert scene.cache.free_of("n2")[GPU] == 8, "an unbound pod uses no resources"
    assert (attempt.phase, scene.scanned) == (Phase.UNDOING, [])


@pytest.mark.parametrize("way", ["undo", "stop"])
@pytest.mark.parametrize("phases", [("Running", "Pending"), ("Pending", "Pending")])
def test_an_undone_or_stopped_start_suspends_the_job_of_its_pods(way: str, phases: tuple[str, str]) -> None:
    """Deleted pods that end with code 0 would complete their index, and the gang could never start again.

    Others would count as failures, also if they never ran: a Job with a backoffLimit of 0 would have failed.
    """
    owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    pods = []
    for name, phase in zip("ab", phases, strict=True):
        body = msgspec.to_builtins(pod(name, 1, "g", nodeName="n1"))
        body["metadata"]["ownerReferences"] = [owner]
        body["status"]["phase"] = phase
        pods.append(msgspec.convert(body, Pod))
    scene = Scene(*pods)
    scene.api.objects[f"{JOBS}/train"] = {"metadata": {"name": "train", "namespace": "default", "uid": "u"}}
    attempt = attempt_of("default/g", 1, bound(pods[0], "n1"), bound(pods[1], "n1", 1))
    attempt.phase = Phase.UNDOING if way == "undo" else Phase.STOPPING

    async def job_controller(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.05)
        assert ("DELETE", f"{PODS}/a") not in scene.api.done, "left to the Job"
        assert scene.api.objects[f"{JOBS}/train"]["spec"]["suspend"] is True
        for one in pods:
            scene.cache.pod_changed(one.metadata.key, one, None)

    scene.do(lambda one: one.undo(attempt) if way == "undo" else one.stop(attempt, STOP), job_controller)
    assert scene.api.objects[f"{JOBS}/train"]["spec"]["suspend"] is False
    assert ("DELETE", f"{PODS}/b") not in scene.api.done


def test_an_adopted_attempt_that_cannot_be_bound_completely_is_unknown_to_the_core() -> None:
    one = pod("a", 1)
    scene = Scene(one)
    attempt = attempt_of("default/a", 1, bound(one, "n1"))
    attempt.action_id, attempt.phase, attempt.failure = "", Phase.UNDOING, "why"
    scene.do(lambda carrier: carrier.undo(attempt))
    assert scene.said == [AttemptUnknown("j", 1)]
    attempt.phase = Phase.STOPPING
    scene.said.clear()
    scene.do(lambda carrier: carrier.undo(attempt))
    assert scene.said == [], "the stop reports it"


def test_a_start_whose_placement_cannot_be_stored_has_failed() -> None:
    """Without a result, the cycle would wait for the start until its timeout."""
    scene = Scene(pod("g-0", 1, "g"), pod("g-1", 1, "g"), grouped=True)
    scene.api.fails[("PATCH", f"{GROUPS}/g")] = [refused(403, "Forbidden", "podgroups is forbidden")]
    attempt = attempt_of("default/g")
    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 3), *slots("n2", 5))))
    assert scene.said == [ActionFailed("act", "j", "a request: podgroups is forbidden")]
    assert (bindings(scene), attempt.phase) == ([], Phase.UNDOING)
    assert (scene.cache.free_of("n1")[GPU], scene.cache.free_of("n2")[GPU]) == (8, 8)


def test_a_start_that_meets_a_bug_has_failed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> list[Member]:
        raise KeyError("n1")

    monkeypatch.setattr(attempt_lifecycle, "assign", broken)
    scene = Scene(pod("a", 1))
    scene.do(lambda carrier: carrier.start(attempt_of(), start(*slots("n1", 0))))
    assert scene.said == [ActionFailed("act", "j", "'n1'")]
    assert "this is a bug" in caplog.text and "KeyError" in caplog.text


def test_refused_deletions_of_bound_pods_are_repeated_and_block_no_other_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempt_lifecycle, "STARTS_AT_ONCE", 1)
    scene = Scene(pod("g-0", 1, "g"), pod("g-1", 1, "g"), grouped=True)
    add(scene.cache, pod("a", 1))
    scene.api.fails[("POST", f"{PODS}/g-1/binding")] = [refused(409, "Conflict", "bound elsewhere")]
    attempt, other = attempt_of("default/g"), attempt_of("default/a")

    async def later(carrier: AttemptLifecycle) -> None:
        await carrier.start(other, start(*slots("n1", 0)))
        assert scene.said == [], "the first start is still being undone"

    scene.api.fails[("DELETE", f"{PODS}/g-0")] = [refused(403, "Forbidden", "no right to delete")]

    async def allow(_: AttemptLifecycle) -> None:
        while other.phase is not Phase.BOUND:
            await asyncio.sleep(0.005)
        scene.api.fails[("DELETE", f"{PODS}/g-0")] = [None]

    scene.do(lambda carrier: carrier.start(attempt, start(*slots("n1", 3), *slots("n2", 5))), later, allow)
    assert ("DELETE", f"{PODS}/g-0") in scene.api.done and f"{PODS}/g-0" not in scene.api.objects
    assert [type(event) for event in scene.said] == [ActionFailed]
    assert caplog.text.count("no right to delete") == 1, "each error is logged once"


def test_a_suspension_without_a_response_is_repeated() -> None:
    """Otherwise the controller would not know that the Job is suspended, and would not resume it."""
    scene = Scene()
    path = f"{JOBS}/train"
    scene.api.objects[path] = {"metadata": {"name": "train", "namespace": "default"}, "spec": {}}
    scene.api.fails[("PATCH", path)] = [LOST, LOST, None]
    asyncio.run(gang_stop._suspend(scene.api, path))
    assert scene.api.done == [("PATCH", path)] * 3
    assert scene.api.objects[path]["spec"] == {"suspend": True}


def test_a_refused_resumption_is_repeated() -> None:
    scene = Scene()
    path = f"{JOBS}/train"
    scene.api.objects[path] = {"metadata": {"name": "train", "namespace": "default"}, "spec": {"suspend": True}}
    scene.api.fails[("PATCH", path)] = [refused(403), LOST, refused(403), None]
    asyncio.run(gang_stop.resume(scene.api, path))
    assert scene.api.objects[path]["spec"] == {"suspend": False}
    del scene.api.objects[path]
    asyncio.run(gang_stop.resume(scene.api, path))


def test_a_replacement_pod_is_bound_or_leaves_a_hole_again() -> None:
    one = pod("a", 1)
    scene = Scene(one)
    scene.cache.assume(one, "n1")
    member = bound(one, "n1", bound=False)
    scene.do(lambda carrier: carrier.bind_in_place(attempt_of("default/a", 1, member), member))
    assert (member.bound, member.hole, scene.scanned) == (True, False, [1])
    member.bound = False
    scene.api.fails[("POST", f"{PODS}/a/binding")] = [refused(403)]
    scene.do(lambda carrier: carrier.bind_in_place(attempt_of("default/a", 1, member), member))
    assert (member.bound, member.hole, scene.scanned) == (False, True, [1, 1])
    assert scene.cache.free_of("n1")[GPU] == 8


# --- probes ----------------------------------------------------------------------------------------------------------


def probe_start() -> tuple[StartGang, dict[str, Any]]:
    spec = JobSpec("probe-n1-1", ("measure",), 2, kind=JobKind.PROBE, pinned_node="n1", time_limit_seconds=60.0)
    action = StartGang("act", "j", 1, spec, slots("n1", 4, 5))
    return action, Probes("image", "default", "gangwatch").pod(action, GPU)


def test_a_probe_s_pod_is_created_once_and_holds_its_slots() -> None:
    scene = Scene()
    action, body = probe_start()
    attempt = attempt_of("default/j-1")

    async def appear(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.02)
        assert scene.scanned == [], "not before the pod is observed"
        add(scene.cache, msgspec.convert(body | {"metadata": body["metadata"] | {"uid": ""}}, Pod))

    scene.api.fails[("POST", PODS)] = [LOST, None]
    scene.do(lambda carrier: carrier.start_probe(attempt, action, body), appear)
    (member,) = attempt.members
    assert (member.node, member.ranks, member.slots, member.bound) == ("n1", range(2), (4, 5), True)
    assert (attempt.phase, scene.scanned) == (Phase.BOUND, [1])
    assert len(scene.api.objects) == 1


def test_a_refused_probe_has_failed_and_a_stopped_probe_stays_stopped() -> None:
    scene = Scene()
    action, body = probe_start()
    scene.api.fails[("POST", PODS)] = [refused(403, "Forbidden", "no image from there")]
    attempt = attempt_of("default/j-1")
    scene.do(lambda carrier: carrier.start_probe(attempt, action, body))
    assert scene.said == [ActionFailed("act", "j", "a request: no image from there")]
    assert attempt.members == [] and scene.scanned == []
    scene.api.fails.clear()
    attempt.phase = Phase.STOPPING
    scene.do(lambda carrier: carrier.start_probe(attempt, action, body))
    assert (attempt.phase, scene.scanned) == (Phase.STOPPING, [])


def test_a_probe_without_an_attempt_is_deleted() -> None:
    one = pod("p", 1)
    scene = Scene(one)
    scene.do(lambda carrier: carrier.delete_probe(one))
    assert scene.api.done == [("DELETE", f"{PODS}/p")]
    assert scene.api.bodies[0]["preconditions"] == {"uid": one.metadata.uid}


# --- stopping --------------------------------------------------------------------------------------------------------

STOP = StopGang("stop", "j", 1, "SIGTERM", 5.0, StopReason.MIGRATE, "away")


def running_gang(*, owned: bool = False, owner: str = "batch/v1 Job") -> tuple[Scene, Attempt, list[Pod]]:
    """Return a running gang of two ranks. owned: whether an object owns its pods. owner: its version and kind."""
    pods = [pod(f"g-{number}", 1, "g", nodeName=f"n{number + 1}") for number in range(2)]
    for one in pods:
        one.status.phase = "Running"
        if owned:
            body = msgspec.to_builtins(one.metadata)
            version, _, kind = owner.partition(" ")
            reference = {"apiVersion": version, "kind": kind, "name": "train", "uid": "job-1", "controller": True}
            body["ownerReferences"] = [reference]
            one.metadata = msgspec.convert(body, type(one.metadata))
    scene = Scene(*pods, grouped=True)
    attempt = attempt_of("default/g", 1, *(bound(one, one.spec.node_name, rank) for rank, one in enumerate(pods)))
    attempt.reported = attempt.ran = True
    attempt.phase, attempt.why_stopped = Phase.STOPPING, STOP.why.value
    return scene, attempt, pods


def leave(scene: Scene, *pods: Pod, after: float = 0.03) -> Callable[[AttemptLifecycle], Coroutine[Any, Any, None]]:
    async def work(_: AttemptLifecycle) -> None:
        await asyncio.sleep(after)
        assert scene.said == [], "the end is not reported before the pods are gone"
        for one in pods:
            scene.cache.pod_changed(one.metadata.key, one, None)

    return work


def test_a_gang_is_evicted_and_its_end_reported_once_all_pods_are_gone() -> None:
    scene, attempt, pods = running_gang()
    scene.do(lambda carrier: carrier.stop(attempt, STOP), leave(scene, *pods))
    assert sorted(path for _, path in scene.api.done) == [f"{PODS}/g-0/eviction", f"{PODS}/g-1/eviction"]
    (ended,) = scene.said
    assert isinstance(ended, AttemptEnded)
    assert (ended.why, ended.signalled, ended.started) == ("migrate", True, True)


def test_an_eviction_refused_by_a_budget_lets_the_attempt_continue() -> None:
    scene, attempt, _ = running_gang()
    scene.api.objects[f"{BUDGETS}/b"] = {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 1},
    }
    scene.do(lambda carrier: carrier.stop(attempt, STOP))
    (failed,) = scene.said
    assert isinstance(failed, ActionFailed) and failed.action_id == "stop" and "allows 1 evictions" in failed.reason
    assert (attempt.phase, attempt.why_stopped, scene.scanned) == (Phase.BOUND, "", [1])
    assert scene.api.done == []


def test_pods_that_never_ran_are_deleted_without_a_budget_check() -> None:
    scene, attempt, pods = running_gang()
    attempt.reported = attempt.ran = False
    attempt.members[1].bound = False
    scene.do(lambda carrier: carrier.stop(attempt, STOP), leave(scene, pods[0]))
    assert scene.api.done == [("DELETE", f"{PODS}/g-0")]
    (ended,) = scene.said
    assert isinstance(ended, AttemptEnded) and not ended.started


def test_a_suspended_job_is_resumed_without_its_pods_and_its_new_pods_are_awaited() -> None:
    scene, attempt, pods = running_gang(owned=True)
    scene.api.objects[f"{JOBS}/train"] = {"metadata": {"name": "train", "uid": "job-1"}, "spec": {}}
    resumed_before_gone: list[bool] = []

    async def recreate(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.04)
        resumed_before_gone.append(scene.api.objects[f"{JOBS}/train"]["spec"]["suspend"] is False)
        for one in pods:
            scene.cache.pod_changed(one.metadata.key, one, None)
        while scene.api.objects[f"{JOBS}/train"]["spec"]["suspend"]:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert scene.said == [], "its slots are kept until its pods are recreated"
        add(scene.cache, *(pod(f"g-{number}-new", 1, "g") for number in range(2)))

    scene.do(lambda carrier: carrier.stop(attempt, STOP), recreate)
    assert resumed_before_gone == [False]
    assert [type(event) for event in scene.said] == [AttemptEnded]


def test_a_job_of_kubeflow_is_resumed_only_when_its_deleted_pods_are_removed() -> None:
    """Its operator fails the job for ever if a failed pod exists when it is resumed."""
    scene, attempt, pods = running_gang(owned=True, owner="kubeflow.org/v1 PyTorchJob")
    job = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"
    scene.api.objects[job] = {"metadata": {"name": "train", "namespace": "default", "uid": "job-1"}, "spec": {}}
    suspended: list[bool] = []

    def is_suspended() -> bool:
        return bool(scene.api.objects[job]["spec"].get("runPolicy", {}).get("suspend"))

    async def end(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.05)
        assert is_suspended(), scene.said
        over = []
        for one in pods:
            metadata = replace(one.metadata, deletion_timestamp="2026-11-28T15:00:00Z")
            over.append(replace(one, metadata=metadata, status=replace(one.status, phase="Failed")))
            scene.cache.pod_changed(one.metadata.key, one, over[-1])
        await asyncio.sleep(0.05)
        suspended.append(is_suspended())
        for one in over:
            scene.cache.pod_changed(one.metadata.key, one, None)

    scene.do(lambda carrier: carrier.stop(attempt, STOP), end)
    assert suspended == [True]
    assert not is_suspended()
    assert [type(event) for event in scene.said] == [AttemptEnded]


def test_exit_codes_of_pods_that_ended_during_the_stop_are_reported() -> None:
    scene, attempt, pods = running_gang()

    async def end(_: AttemptLifecycle) -> None:
        await asyncio.sleep(0.03)
        for one, phase in zip(pods, ("Succeeded", "Failed"), strict=True):
            over = replace(one, status=replace(one.status, phase=phase))
            scene.cache.pod_changed(one.metadata.key, one, over)

    scene.do(lambda carrier: carrier.stop(attempt, STOP), end)
    (ended,) = scene.said
    assert isinstance(ended, AttemptEnded)
    assert [one.exit_code for one in ended.exits] == [0, 1]


def test_each_job_that_an_earlier_leader_left_suspended_is_resumed_independently() -> None:
    scene = Scene()
    for name in ("a", "b"):
        labels = {gang_stop.SUSPENDED: "true"}
        job = {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": {"suspend": True}}
        scene.api.objects[f"/apis/batch/v1/jobs/{name}"] = scene.api.objects[f"{JOBS}/{name}"] = job
    scene.api.fails[("PATCH", f"{JOBS}/a")] = [refused(403)]
    scene.api.fails[("GET", "/apis/batch/v1/jobs")] = [LOST, None]

    async def allow(_: AttemptLifecycle) -> None:
        while scene.api.objects[f"{JOBS}/b"]["spec"]["suspend"]:
            await asyncio.sleep(0.005)
        assert scene.api.objects[f"{JOBS}/a"]["spec"]["suspend"]
        scene.api.fails.clear()

    scene.do(lambda carrier: carrier.resume_left(), allow)
    assert scene.api.objects[f"{JOBS}/a"]["spec"]["suspend"] is False


def test_a_stopped_start_releases_the_assumed_resources_of_its_pods() -> None:
    pods = [pod("g-0", 1, "g"), pod("g-1", 1, "g")]
    scene = Scene(*pods, grouped=True)
    for one in pods:
        scene.cache.assume(one, "n1")
    attempt = attempt_of("default/g", 1, *(bound(one, "n1", rank, bound=False) for rank, one in enumerate(pods)))
    attempt.phase = Phase.STOPPING
    scene.do(lambda carrier: carrier.stop(attempt, STOP))
    assert scene.cache.free_of("n1")[GPU] == 8
    assert scene.api.done == []
