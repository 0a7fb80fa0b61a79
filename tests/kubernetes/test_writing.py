"""All writes of the controller to the API, kind by kind, against an in-memory API server."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from agent.schema.clock import ManualClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server import lease
from scheduler_feedback.backends.kubernetes.api_server.client import MERGE_PATCH, STRATEGIC_PATCH, UnreachableError
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.lease import LAST_HOLDER, Leadership
from scheduler_feedback.backends.kubernetes.attempts import gang_stop, repetition
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Member
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import PROBE, Probes, is_probe
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.declared_keys import EXPECTED_START
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    PLACEMENT,
    RANK,
    SLOTS,
    Gang,
    gang_of,
    lone,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API
from scheduler_feedback.backends.kubernetes.published import advice, publish, state_config_map, uninstall
from scheduler_feedback.backends.kubernetes.published.advice import RULES, SLICES, Accusation, Advice, accusations_of
from scheduler_feedback.backends.kubernetes.published.back_off import FIRST_SECONDS, BackOff
from scheduler_feedback.backends.kubernetes.published.marks import Marks
from scheduler_feedback.backends.kubernetes.published.publish import GangStatus, Publisher, StateView
from scheduler_feedback.backends.kubernetes.published.state_config_map import StateWriter, kept_of, memory_name, read
from scheduler_feedback.backends.kubernetes.published.uninstall import remove_all
from scheduler_feedback.core import cluster
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job as CoreJob
from scheduler_feedback.core.job import JobKind, JobSpec, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.policies.index.runtime_history import BINS
from tests.kubernetes.little_api import LittleApi, refused
from tests.kubernetes.makers import group, node, pod
from tests.kubernetes.test_attempt import cache_of

SECOND = 1_000_000_000
LOST = UnreachableError("a request: no answer")
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ours/leases"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(gang_stop, name, 0.0)
        monkeypatch.setattr(repetition, name, 0.0)


# --- leadership ------------------------------------------------------------------------------------------------------


def a_lease(holder: str, seconds: int = 10, **annotations: str) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 4, "acquireTime": "then"}
    metadata = {"name": "main", "namespace": "ours", "resourceVersion": "7", "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


def leader(api: LittleApi) -> Leadership:
    return Leadership(api.access, "ours", "main", "me", clock=ManualClock())


def tried(elector: Leadership, api: LittleApi, at_seconds: float) -> bool:
    return asyncio.run(elector._try(api, round(at_seconds * SECOND)))


def written(api: LittleApi) -> dict[str, Any]:
    found = api.objects[f"{LEASES}/main"]
    assert isinstance(found, dict)
    return found


def test_a_free_lease_is_acquired_and_renewed_without_a_transition() -> None:
    api = LittleApi()
    elector = leader(api)
    assert tried(elector, api, 0.0)
    assert api.done == [("POST", LEASES)]
    spec = written(api)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("me", 0, 10)
    assert tried(elector, api, 2.0)
    assert api.done[1:] == [("PUT", f"{LEASES}/main")]
    again = written(api)["spec"]
    assert (again["leaseTransitions"], again["acquireTime"]) == (0, spec["acquireTime"])


def test_a_renewal_is_one_request_unless_somebody_has_changed_the_lease() -> None:
    api = LittleApi({f"{LEASES}/main": a_lease("")})
    elector = leader(api)
    assert tried(elector, api, 0.0)
    assert len(api.asked) == 1
    assert tried(elector, api, 2.0)
    assert len(api.asked) == 1, "a busy server takes seconds for each request"
    written(api)["metadata"]["resourceVersion"] = "8"  # an administrator has added an annotation
    api.fails[("PUT", f"{LEASES}/main")] = [refused(409, "Conflict"), None]
    assert tried(elector, api, 4.0)
    assert len(api.asked) == 2
    api.fails[("PUT", f"{LEASES}/main")] = [LOST]
    with pytest.raises(BackendError):
        tried(elector, api, 6.0)
    api.objects[f"{LEASES}/main"] = a_lease("other")
    assert not tried(elector, api, 6.2), "after an error the lease is read again"


def test_a_lease_that_cannot_be_acquired_is_a_warning_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A controller without a right waits as a healthy standby; only its log shows why."""
    elector = leader(LittleApi())
    with caplog.at_level("INFO"):
        for why in ("no right", "no right", "no response in time"):
            elector._report(why)
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    begin = "lease ours/main cannot be acquired or renewed: "
    assert found == [("WARNING", f"{begin}no right"), ("WARNING", f"{begin}no response in time")]


def test_another_s_lease_expires_on_our_own_clock_from_its_last_observed_change() -> None:
    api = LittleApi({f"{LEASES}/main": a_lease("other", **{LAST_HOLDER: "other"})})
    elector = leader(api)
    assert not tried(elector, api, 100.0)
    assert not tried(elector, api, 109.0)
    written(api)["metadata"]["resourceVersion"] = "8"  # it was renewed
    assert not tried(elector, api, 111.0)
    assert not tried(elector, api, 120.9)
    assert tried(elector, api, 121.0)
    assert (written(api)["spec"]["holderIdentity"], written(api)["spec"]["leaseTransitions"]) == ("me", 5)
    assert written(api)["spec"]["acquireTime"] != "then"
    assert written(api)["metadata"]["annotations"] == {LAST_HOLDER: "me"}
    assert elector.before == "other"


def test_a_longer_lease_is_waited_for_completely_and_a_shorter_one_for_at_least_our_duration() -> None:
    for seconds, waited in ((30, 30.0), (1, 10.0)):
        api = LittleApi({f"{LEASES}/main": a_lease("other", seconds)})
        elector = leader(api)
        assert not tried(elector, api, 0.0)
        assert not tried(elector, api, waited - 0.1)
        assert tried(elector, api, waited)


def test_a_released_lease_is_acquired_at_once_and_a_lost_race_is_no_error() -> None:
    api = LittleApi({f"{LEASES}/main": a_lease("")})
    api.fails[("PUT", f"{LEASES}/main")] = [refused(409, "Conflict"), None]
    elector = leader(api)
    assert not tried(elector, api, 0.0), "another controller was faster"
    assert tried(elector, api, 0.0)
    api.fails[("PUT", f"{LEASES}/main")] = [refused(403, "Forbidden")]
    with pytest.raises(BackendError):
        tried(elector, api, 1.0)


@pytest.mark.parametrize("holder", ["other", ""])
def test_a_leader_after_whom_another_has_led_has_lost_its_lease(holder: str) -> None:
    """The other may have released it already. Its decisions are not in our state."""
    api = LittleApi({f"{LEASES}/main": a_lease("me")})
    elector = leader(api)
    assert tried(elector, api, 0.0)
    elector._leading.set()
    assert tried(elector, api, 2.0)
    api.objects[f"{LEASES}/main"] = a_lease(holder) | {"metadata": {"name": "main", "resourceVersion": "9999"}}
    assert not tried(elector, api, 8.0)


def test_releasing_clears_only_our_own_lease() -> None:
    api = LittleApi({f"{LEASES}/main": a_lease("me")})
    elector = leader(api)
    asyncio.run(elector._let_go(api))
    assert (written(api)["spec"]["holderIdentity"], written(api)["spec"]["leaseTransitions"]) == ("", 4)
    assert written(api)["metadata"]["annotations"] == {LAST_HOLDER: "me"}
    api = LittleApi({f"{LEASES}/main": a_lease("other")})
    asyncio.run(leader(api)._let_go(api))
    assert api.done == []


def led(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[bool | Exception | None],
    clock: ManualClock,
    waits: list[float] | None = None,
) -> list[bool]:
    """Return whether the controller may act after each attempt to renew its lease.

    Each attempt takes three seconds. answers: result of each attempt, or an exception. waits: gets the seconds between
    attempts.
    """
    lost: list[bool] = []
    elector = Leadership(LittleApi().access, "ours", "main", "me", clock=clock, lost=lambda: lost.append(True))
    acts: list[bool] = []

    async def try_(_client: object, _now_ns: int) -> bool:
        answer = answers.pop(0)
        if not answers:
            elector._ending.set()
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def wait(seconds: float) -> bool:
        if waits is not None:
            waits.append(seconds)
        acts.append(elector.may_act())
        clock.advance(3.0)
        return elector._ending.is_set()

    monkeypatch.setattr(elector, "_try", try_)
    monkeypatch.setattr(elector._ending, "wait", wait)
    monkeypatch.setattr(elector, "_let_go", try_)
    answers.append(True)  # of the release

    asyncio.run(elector._live())
    return [*acts, *(["lost"] if lost else [])]  # type: ignore[list-item]


def test_a_leader_acts_for_seven_seconds_from_the_start_of_its_last_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    acts = led(monkeypatch, [False, True, LOST, LOST, LOST, True], ManualClock(), waits)
    assert acts == [False, True, True, True, "lost"], "nine seconds after the renewal it has ended"
    assert waits == [2.0, 2.0, 0.2, 0.2], "a failed renewal is repeated at once"


def test_a_late_renewal_is_logged_with_the_time_without_a_leader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    slow = [0.0, 8.5]
    elector = Leadership(LittleApi().access, "ours", "main", "me", clock=clock)

    async def try_(_client: object, _now_ns: int) -> bool:
        clock.advance(slow.pop(0))
        if not slow:
            elector._ending.set()
        return True

    async def let_go(_client: object) -> None:
        pass

    monkeypatch.setattr(elector, "_try", try_)
    monkeypatch.setattr(elector, "_let_go", let_go)
    monkeypatch.setattr(elector._ending, "wait", lambda _: elector._ending.is_set())
    asyncio.run(elector._live())
    assert "lease ours/main was renewed late: writes waited for 1.5 s" in caplog.text


def test_a_bug_in_periodic_work_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "_BUG_SECONDS", 0.0)
    calls = 0

    async def once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("a bug")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lease.while_leading(once, lambda: True, 0.0, "a test"))
    assert calls == 2
    assert "a test: this is a bug, please report it" in caplog.text and "KeyError" in caplog.text


def test_a_leader_ends_at_once_if_another_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert led(monkeypatch, [True, False, True], ManualClock()) == [True, "lost"]


def test_one_time_work_is_done_only_by_a_leader_and_repeated_after_a_refusal() -> None:
    leads, calls = [False, True, True, True], 0

    async def once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise refused(403)

    async def run() -> None:
        def may_act() -> bool:
            if not leads:
                raise asyncio.CancelledError
            return leads.pop(0)

        with pytest.raises(asyncio.CancelledError):
            await lease.while_leading(once, may_act, 0.0, "a test")

    asyncio.run(run())
    assert calls == 3


# --- stopping a gang -------------------------------------------------------------------------------------------------


def owned(name: str, kind: str = "Job", owner: str = "train", uid: str = "job-1", **more: Any) -> Pod:
    made = pod(name, 1, **more)
    reference = {"kind": kind, "name": owner, "uid": uid, "controller": True}
    return msgspec.convert(
        msgspec.to_builtins(made) | {"metadata": msgspec.to_builtins(made.metadata) | {"ownerReferences": [reference]}},
        Pod,
    )


def member_of(one: Pod, **fields: Any) -> Member:
    return Member(one.metadata.key, one.metadata.uid, "n1", range(1), (0,), bound=True, **fields)


IGNORES = {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}


def a_job(spec: dict[str, Any] | None = None, uid: str = "job-1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train", "namespace": "default", "uid": uid, **metadata}, "spec": spec or {}}


def a_budget(allowed: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": allowed},
    }


def stopped(api: LittleApi, *pods: Pod, gone: int = 0) -> list[str]:
    """Stop the gang of these pods, of which the first `gone` have already ended."""
    members = [member_of(one, over=number < gone) for number, one in enumerate(pods)]
    return asyncio.run(gang_stop.stop(api, members, pods))


def evictions(*names: str) -> list[tuple[str, str]]:
    return [("POST", f"{PODS}/{name}/eviction") for name in names]


PARENT = [{"kind": "Unknown", "apiVersion": "example.org/v1", "name": "set", "uid": "s", "controller": True}]


def test_pods_without_a_job_or_whose_job_of_another_controller_ignores_disruptions_are_evicted() -> None:
    api = LittleApi({f"{JOBS}/train": a_job(IGNORES, ownerReferences=PARENT)}, (BUDGETS,))
    pods = [owned("a"), pod("b"), owned("c", "StatefulSet", "set", "set-1")]
    assert stopped(api, *pods) == []
    assert api.done == evictions("a", "b", "c")
    assert api.bodies[0]["deleteOptions"] == {"preconditions": {"uid": pods[0].metadata.uid}}


@pytest.mark.parametrize("spec", [{}, IGNORES], ids=["counts failures", "ignores disruptions"])
def test_a_job_is_suspended_instead_of_evicting_its_pods(spec: dict[str, Any]) -> None:
    api = LittleApi({f"{JOBS}/train": a_job(dict(spec))}, (BUDGETS,))
    assert stopped(api, owned("a"), pod("b")) == [f"{JOBS}/train"]
    assert api.done == [("PATCH", f"{JOBS}/train"), *evictions("b")]
    job = api.objects[f"{JOBS}/train"]
    assert job["spec"]["suspend"] is True and job["metadata"]["labels"] == {gang_stop.SUSPENDED: "true"}


def test_a_job_owned_by_another_controller_is_not_suspended() -> None:
    api = LittleApi({f"{JOBS}/train": a_job(ownerReferences=PARENT)}, (BUDGETS,))
    with pytest.raises(
        BackendError, match=r"stopping it would count as a failure of Job train, .*: Job train belongs to Unknown set"
    ):
        stopped(api, owned("a"), owned("b"))
    assert api.done == []


def test_a_refusing_budget_prevents_the_stop_but_ended_pods_need_none() -> None:
    api = LittleApi({f"{JOBS}/train": a_job(), f"{BUDGETS}/b": a_budget(1)}, (BUDGETS,))
    pods = [owned("a"), pod("b")]
    with pytest.raises(BackendError, match="allows 1 evictions now; the gang needs 2"):
        stopped(api, *pods)
    assert api.done == [], "neither suspended nor evicted"
    assert stopped(api, *pods, gone=1) == [f"{JOBS}/train"]


def test_an_eviction_is_repeated_until_it_is_done() -> None:
    api = LittleApi(lists=(BUDGETS,))
    path = f"{PODS}/a/eviction"
    api.fails[("POST", path)] = [LOST, refused(429, "TooManyRequests"), None]
    stopped(api, pod("a"))
    assert api.done == evictions("a", "a", "a")
    for code in (404, 409):  # deleted, or recreated
        api.fails[("POST", path)] = [refused(code)]
        stopped(api, pod("a"))
    api.fails[("POST", path)] = [refused(403)]
    with pytest.raises(BackendError):
        stopped(api, pod("a"))


@pytest.mark.parametrize(
    ("spec", "status", "uid", "ended"),
    [
        ({}, {}, "job-1", ""),
        ({}, {"conditions": [{"type": "Complete", "status": "True"}]}, "job-1", "Complete"),
        ({}, {"conditions": [{"type": "Failed", "status": "True"}]}, "job-1", "Failed"),
        ({}, {"conditions": [{"type": "Failed", "status": "False"}]}, "job-1", ""),
        ({}, {"conditions": [{"type": "Suspended", "status": "True"}]}, "job-1", ""),
        ({}, {}, "job-2", "deleted"),  # another pod of the same name
    ],
)
def test_the_end_of_the_owning_job_is_reported(
    spec: dict[str, Any], status: dict[str, Any], uid: str, ended: str
) -> None:
    api = LittleApi({f"{JOBS}/train": a_job(spec, uid) | {"status": status}})
    assert asyncio.run(gang_stop.owner_has_ended(api, [owned("a"), owned("b")])) == ended
    assert len(api.asked) == 1, "one owner is read once"


def test_the_end_of_an_owner_that_is_not_a_job_is_unknown() -> None:
    api = LittleApi()
    assert asyncio.run(gang_stop.owner_has_ended(api, [pod("a"), owned("b", "StatefulSet")])) == ""
    assert asyncio.run(gang_stop.owner_has_ended(api, [owned("a")])) == "deleted"
    for failure in (LOST, refused(403)):
        api.fails[("GET", f"{JOBS}/train")] = [failure]
        assert asyncio.run(gang_stop.owner_has_ended(api, [owned("a")])) == ""


def test_a_suspended_job_is_resumed_with_retries_and_a_deleted_one_is_ignored() -> None:
    suspended = a_job({"suspend": True}, labels={gang_stop.SUSPENDED: "true", "app": "t"})
    api = LittleApi({f"{JOBS}/train": suspended, f"{JOBS}/other": a_job()}, ("/apis/batch/v1/jobs",))
    api.fails[("PATCH", f"{JOBS}/train")] = [LOST, None]
    asyncio.run(gang_stop.resume(api, f"{JOBS}/train"))
    job = api.objects[f"{JOBS}/train"]
    assert job["spec"]["suspend"] is False and job["metadata"]["labels"] == {"app": "t"}
    asyncio.run(gang_stop.resume(api, f"{JOBS}/gone"))
    api.objects[f"{JOBS}/train"]["spec"]["suspend"] = True
    api.fails[("PATCH", f"{JOBS}/train")] = [refused(403), refused(403), None]
    asyncio.run(gang_stop.resume(api, f"{JOBS}/train"))
    assert api.objects[f"{JOBS}/train"]["spec"]["suspend"] is False


def test_jobs_that_gangwatch_left_suspended_are_found_by_their_label() -> None:
    left = a_job(labels={gang_stop.SUSPENDED: "true"})
    api = LittleApi({"/apis/batch/v1/jobs/one": left, "/apis/batch/v1/jobs/two": a_job()}, ("/apis/batch/v1/jobs",))
    assert asyncio.run(gang_stop.left_suspended(api)) == [f"{JOBS}/train"]
    assert api.asked[0] == ("/apis/batch/v1/jobs", {"labelSelector": f"{OURS}suspended=true"})


# --- advice ----------------------------------------------------------------------------------------------------------


def verdict(**changed: Any) -> Verdict:
    usual: dict[str, Any] = {
        "verdict_id": "v-1", "kind": Kind.STRAGGLER, "gang": "g", "attempt": 1, "rank": 0, "node": "n1",
        "cause": Cause.COMPUTE, "confidence": 0.99, "slowdown": 1.5, "step_seconds_before": 0.1,
        "step_seconds_now": 0.15, "first_wall_ns": 0, "last_wall_ns": 1, "level": "gpu", "device": "GPU-1",
    }  # fmt: skip
    return Verdict(**(usual | changed))


def test_a_device_is_named_only_while_its_node_is_out_of_use_for_it() -> None:
    state = State(nodes={"n1": cluster.Node("n1", 8, state=NodeState.QUARANTINE), "n2": cluster.Node("n2", 8)})
    state.verdicts = {
        one.verdict_id: one
        for one in (
            verdict(),
            verdict(verdict_id="healthy", node="n2"),
            verdict(verdict_id="whole node", level="node"),
            verdict(verdict_id="gone", node="n9"),
            verdict(verdict_id="a job's", kind=Kind.WORKLOAD),
        )
    }
    found = {finding.verdict_id: finding.device for finding in accusations_of(state)}
    assert found == {"v-1": "GPU-1", "healthy": "", "whole node": ""}


class PublishedAdvice:
    """Advice about the pods of one gang."""

    def __init__(self, api: LittleApi, *pods: Pod, devices: bool = False) -> None:
        self.api, self.pods = api, list(pods)
        self.advice = Advice(api, lambda gang, node: self.pods, devices=devices)

    def of(self, *findings: Accusation, most: int = 100) -> list[tuple[str, str]]:
        """Publish these accusations with at most `most` writes. Return the (method, path) of each write."""
        before = len(self.api.done)

        async def run() -> None:
            for write in await self.advice.writes(findings, most):
                await write()

        asyncio.run(run())
        return self.api.done[before:]


EVENTS = "/api/v1/namespaces/default/events"
FOUND = Accusation("v-1", "g", "n1", "rank 0 is slow", "GPU-1")


def test_events_of_a_verdict_and_its_end_are_written_once() -> None:
    published_advice = PublishedAdvice(LittleApi(), pod("a"), pod("b"))
    assert published_advice.of(FOUND) == [("POST", EVENTS)] * 2
    body = published_advice.api.bodies[0]
    assert (body["type"], body["reason"]) == ("Warning", "NodeDoubted")
    assert body["message"] == "node n1: rank 0 is slow"
    assert body["involvedObject"]["uid"] == published_advice.pods[0].metadata.uid
    assert published_advice.of(FOUND) == []
    published_advice.pods.pop()
    assert published_advice.of() == [("POST", EVENTS)]
    assert (published_advice.api.bodies[-1]["type"], published_advice.api.bodies[-1]["reason"]) == (
        "Normal",
        "NodeCleared",
    )
    assert published_advice.api.bodies[-1]["message"] == "no longer: node n1: rank 0 is slow"
    names = [body["metadata"]["name"] for body in published_advice.api.bodies]
    assert len(set(names)) == 3
    again = PublishedAdvice(LittleApi(published_advice.api.objects), *published_advice.pods)
    assert again.of(FOUND) == [("POST", EVENTS)], "the next controller would write the same event, which exists"
    assert len(again.api.objects) == len(published_advice.api.objects)


def test_writes_beyond_the_limit_are_made_later() -> None:
    published_advice = PublishedAdvice(LittleApi(), *(pod(f"p-{number}") for number in range(advice.MOST_PODS + 3)))
    assert len(published_advice.of(FOUND, most=5)) == 5
    assert len(published_advice.of(FOUND, most=5)) == advice.MOST_PODS - 5
    assert published_advice.of(FOUND) == []


def a_slice(**devices: str) -> dict[str, Any]:
    listed = [{"name": name, "attributes": {"uuid": {"string": uuid}}} for name, uuid in devices.items()]
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n1"}, "devices": [*listed, {"name": "bare"}]}
    return {"metadata": {"name": "s"}, "spec": spec}


def test_a_rule_keeps_claims_off_an_accused_device_while_it_is_accused() -> None:
    published_advice = PublishedAdvice(
        LittleApi({f"{SLICES}/s": a_slice(gpu0="GPU-0", gpu1="GPU-1")}, (SLICES, RULES)), devices=True
    )
    (written_,) = published_advice.of(FOUND)
    assert written_ == ("POST", RULES)
    spec = published_advice.api.bodies[-1]["spec"]
    assert spec["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu1"}
    assert spec["taint"] == {"key": f"{OURS}quarantine", "effect": "NoSchedule"}
    (rule,) = [path for path in published_advice.api.objects if path.startswith(RULES)]
    assert published_advice.of(FOUND) == []
    assert published_advice.of(Accusation("v-1", "g", "n1", "its node is in use again")) == [("DELETE", rule)]
    assert published_advice.of() == []


def test_rules_of_an_earlier_controller_are_deleted_and_a_device_in_no_slice_has_none() -> None:
    left = {"metadata": {"name": "gangwatch-n1-old", "labels": {advice.MANAGED: "gangwatch"}}}
    published_advice = PublishedAdvice(LittleApi({f"{RULES}/gangwatch-n1-old": left}, (SLICES, RULES)), devices=True)
    assert published_advice.of(FOUND) == [("DELETE", f"{RULES}/gangwatch-n1-old")]
    assert (RULES, {"labelSelector": f"{advice.MANAGED}=gangwatch"}) in published_advice.api.asked
    slices = [path for path, _ in published_advice.api.asked].count(SLICES)
    published_advice.of(FOUND)
    assert [path for path, _ in published_advice.api.asked].count(SLICES) == slices == 1, "not read again at once"


def test_if_the_server_has_no_device_rules_only_events_are_written() -> None:
    published_advice = PublishedAdvice(LittleApi(), pod("a"), devices=True)
    published_advice.api.fails[("GET", RULES)] = [refused(404)]
    assert published_advice.of(FOUND) == [("POST", EVENTS)]
    assert published_advice.of(FOUND) == []
    assert len(published_advice.api.asked) == 1, "not requested again"


# --- state ConfigMap -------------------------------------------------------------------------------------------------

MAPS = "/api/v1/namespaces/ours/configmaps"


def test_saved_state_is_written_once_per_change_and_read_back() -> None:
    state = State(now_ns=5 * SECOND)
    state.queue_use, state.queue_use_ns = {"q": 12.3456}, 4 * SECOND
    state.history["kind"] = [0.0] * (BINS - 1) + [2.0]
    api = LittleApi()

    def ask(question: Any) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(question(state))
        return answer

    keeper = StateWriter(api, "ours", memory_name("main"), ask, lambda: True)
    path = f"{MAPS}/main-memory"
    asyncio.run(keeper.once())
    assert api.done == [("PATCH", path), ("POST", MAPS)]
    asyncio.run(keeper.once())
    assert len(api.done) == 2
    state.queue_use["q"] = 13.0
    asyncio.run(keeper.once())
    assert api.done[2:] == [("PATCH", path)]
    text = asyncio.run(read(api, "ours", "main-memory"))
    assert text == kept_of(state)
    again = State(now_ns=3 * SECOND)
    state_config_map.give_back(text, again)
    assert again.queue_use == {"q": 13.0}
    assert again.queue_use_ns == 3 * SECOND, "never later than now"
    assert again.history["kind"][-1] == 2.0
    assert asyncio.run(read(api, "ours", "absent")) == b""


# --- probes ----------------------------------------------------------------------------------------------------------


def test_a_probe_uses_all_of_the_node_s_devices_and_ends_without_the_controller() -> None:
    spec = JobSpec("probe-n1-1", ("measure", "it"), 2, kind=JobKind.PROBE, pinned_node="n1", time_limit_seconds=90.0)
    action = StartGang("a", "probe-n1-1", 3, spec, (Slot("n1", 4), Slot("n1", 5)))
    probes = Probes("image:1", "ours", "gangwatch")
    body = probes.pod(action, "nvidia.com/gpu")
    assert probes.key_of("probe-n1-1", 3) == "ours/probe-n1-1-3"
    assert (body["metadata"]["name"], body["metadata"]["namespace"]) == ("probe-n1-1-3", "ours")
    assert body["metadata"]["annotations"] == {ATTEMPT: "3", RANK: "0", SLOTS: "4,5"}
    assert (body["spec"]["nodeName"], body["spec"]["activeDeadlineSeconds"]) == ("n1", 90)
    (container,) = body["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert container["command"] == ["measure", "it"]
    made = msgspec.convert(body, Pod)
    assert is_probe(made) and not is_probe(pod("a"))
    assert made.metadata.label(PROBE) == "probe-n1-1"


# --- publishing ------------------------------------------------------------------------------------------------------

GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"


class Clock:
    """Monotonic clock that the test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Published:
    """Publisher for these gangs, whose status in the core is set by the test."""

    def __init__(self, api: LittleApi, cache: InformerCache, *gangs: Gang) -> None:
        self.api, self.gangs = api, list(gangs)
        self.look = StateView({}, {}, 100 * SECOND)
        self.asked: list[list[str]] = []
        self.publisher = Publisher(api, cache, lambda: self.gangs, self._ask, lambda: True)
        self.clock = Clock()
        self.publisher._back_off = BackOff(self.clock)

    def _ask(self, question: Any) -> Future[StateView]:
        self.asked.append([])
        answer: Future[StateView] = Future()
        answer.set_result(self.look)
        return answer

    def once(self, now: float, **standings: GangStatus) -> list[tuple[str, str]]:
        """Return the writes of one run. standings: status of each gang."""
        by_name = {gang.key.partition("/")[2]: gang.job_id for gang in self.gangs}
        published_advice = {by_name[name]: standing for name, standing in standings.items()}
        self.look = StateView({}, published_advice, round(now * SECOND))
        before = len(self.api.done)
        asyncio.run(self.publisher.once())
        return self.api.done[before:]


def with_group(**annotations: str) -> tuple[LittleApi, InformerCache, Gang]:
    cache = cache_of()
    declared = group("g", 1, annotations)
    cache.group_changed("default/g", None, declared)
    gang = gang_of(declared, [pod("g-0", 1, "g")])
    return LittleApi({f"{GROUPS}/g": msgspec.to_builtins(declared)}), cache, gang


WAITS = GangStatus(False, "Slots", "needs 8 slots", 160 * SECOND)


def test_a_groups_status_is_written_with_an_event_for_a_new_reason() -> None:
    api, cache, gang = with_group()
    published = Published(api, cache, gang)
    assert published.once(99) == [], "the core does not have it yet"
    assert published.once(100, g=WAITS) == [("PATCH", f"{GROUPS}/g/status"), ("PATCH", f"{GROUPS}/g"), ("POST", EVENTS)]
    status = api.body_of("PATCH", f"{GROUPS}/g/status")["status"]
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"], status["phase"]) == ("False", "Slots", "Pending")
    assert condition["message"] == "needs 8 slots; expected to start at 1970-01-01T00:02:40Z"
    assert api.objects[f"{GROUPS}/g"]["metadata"]["annotations"] == {EXPECTED_START: "1970-01-01T00:02:40Z"}
    assert published.once(101, g=WAITS) == []
    later = GangStatus(False, "Slots", "needs 8 slots", 180 * SECOND)
    assert ("POST", EVENTS) not in published.once(102, g=later), "the same reason"
    runs = published.once(103, g=GangStatus(True, "Scheduled", "all of it"))
    assert ("POST", EVENTS) in runs
    status = api.body_of("PATCH", f"{GROUPS}/g/status")["status"]
    assert (status["conditions"][0]["status"], status["phase"]) == ("True", "Scheduled")
    published.gangs.clear()
    published.once(104)
    published.gangs.append(gang)
    assert published.once(105, g=GangStatus(True, "Scheduled", "all of it")), "forgotten with the gang"


def test_a_group_waits_since_its_condition_became_false_whatever_the_reason() -> None:
    api, cache, gang = with_group()
    old = {"type": "Scheduled", "status": "False", "reason": "Slots", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    waiting = msgspec.convert(
        {**msgspec.to_builtins(cache.groups["default/g"]), "status": {"conditions": [old]}}, PodGroup
    )
    cache.group_changed("default/g", cache.groups["default/g"], waiting)
    published = Published(api, cache, gang)
    for now, status, since in (
        (100, WAITS, "2026-01-02T03:04:05Z"),
        (101, GangStatus(False, "Quota", "its queue's limit is reached"), "2026-01-02T03:04:05Z"),
        (102, GangStatus(True, "Scheduled", "all of it"), None),
    ):
        published.once(now, g=status)
        (condition,) = api.body_of("PATCH", f"{GROUPS}/g/status")["status"]["conditions"]
        assert (condition["lastTransitionTime"] == "2026-01-02T03:04:05Z") is (since is not None), status


def test_a_single_pods_status_is_written_only_while_it_waits() -> None:
    one = pod("a", 1)
    one.metadata.creation_timestamp = "2026-01-02T03:04:05Z"
    published = Published(LittleApi({f"{PODS}/a": msgspec.to_builtins(one)}), cache_of(), lone(one))
    assert published.once(100, a=WAITS) == [("PATCH", f"{PODS}/a/status")]
    (condition,) = published.api.bodies[-1]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["lastTransitionTime"] == "2026-01-02T03:04:05Z", "it has waited since its creation"
    assert condition["message"].startswith("Slots: needs 8 slots")
    assert published.api.kinds[-1] == STRATEGIC_PATCH
    assert published.once(101, a=GangStatus(True, "Scheduled", "all")) == []
    bound = pod("b", 1, nodeName="n1")
    assert Published(LittleApi(), cache_of(), lone(bound)).once(100, b=WAITS) == []


def test_a_pod_that_needs_its_user_s_attention_has_an_event_and_one_that_waits_has_none() -> None:
    """`kubectl describe pod` does not show the messages of conditions."""
    one = pod("a", 0)
    published = Published(LittleApi({f"{PODS}/a": msgspec.to_builtins(one)}), cache_of(), lone(one))
    assert published.once(100) == [("PATCH", f"{PODS}/a/status"), ("POST", EVENTS)]
    event = published.api.bodies[-1]
    assert (event["type"], event["reason"], event["involvedObject"]["kind"]) == ("Warning", "Refused", "Pod")
    assert event["involvedObject"]["uid"] == one.metadata.uid
    assert published.once(101) == []


def test_a_mistyped_annotation_of_a_gang_has_an_event_once() -> None:
    api, cache, gang = with_group(**{f"{OURS}restartble": "true"})
    published = Published(api, cache, gang)
    published.once(100, g=WAITS)
    event = api.bodies[-1]
    assert (event["type"], event["reason"]) == ("Warning", "NoEffect")
    assert f"did you mean {OURS}restartable?" in event["message"]
    done = published.once(101, g=GangStatus(False, "Quota", "its queue's limit is reached"))
    assert done.count(("POST", EVENTS)) == 1, "the new reason"


def test_a_start_whose_pods_cannot_run_says_what_they_wait_for() -> None:
    api, cache, _ = with_group()
    one = pod("g-0", 1, "g", nodeName="n1")
    waiting = [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
    one.status = msgspec.convert({"phase": "Pending", "containerStatuses": waiting}, type(one.status))
    cache.pod_changed("default/g-0", None, one)
    gang = cache.gang("default/g")
    assert gang is not None
    Published(api, cache, gang).once(100, g=GangStatus(False, "Starting", "attempt 1 is being bound"))
    (condition,) = api.body_of("PATCH", f"{GROUPS}/g/status")["status"]["conditions"]
    assert condition["message"] == "all pods have nodes; 1 of 1 do not run yet: pod g-0: ErrImagePull"


def test_a_refused_gang_has_a_reason_although_the_core_does_not_have_it() -> None:
    api, cache, gang = with_group(**{f"{OURS}restartable": "maybe"})
    assert gang.refused
    published = Published(api, cache, gang)
    published.once(100)
    (condition,) = api.body_of("PATCH", f"{GROUPS}/g/status")["status"]["conditions"]
    assert condition["reason"] == "Refused" and "neither 'true' nor 'false'" in condition["message"]
    assert api.body_of("POST", EVENTS)["type"] == "Warning"


def test_pending_gangs_are_written_before_running_ones_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "WRITES_A_PERIOD", 1)
    pods = [pod("runs", 1), pod("waits", 1)]
    api = LittleApi({f"{PODS}/{one.metadata.name}": msgspec.to_builtins(one) for one in pods})
    published = Published(api, cache_of(), *map(lone, pods))
    statuses = {"runs": GangStatus(True, "Scheduled", "all"), "waits": WAITS}
    assert published.once(100, **statuses) == [("PATCH", f"{PODS}/waits/status")]
    assert published.publisher.writes == 1


def test_reasons_of_new_gangs_do_not_wait_for_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that has started is not queried again and again, and the limit of writes a second includes these."""
    monkeypatch.setattr(publish, "WRITES_A_PERIOD", 2)
    pods = [pod(name, 1) for name in ("runs", "waits", "next", "third")]
    api = LittleApi({f"{PODS}/{one.metadata.name}": msgspec.to_builtins(one) for one in pods})
    published = Published(api, cache_of(), *map(lone, pods[:1]))
    runs, waits, following, third = (lone(one) for one in pods)

    def publish_new(*started: Gang, **statuses: GangStatus) -> list[tuple[str, str]]:
        by_name = {gang.key.partition("/")[2]: gang.job_id for gang in published.gangs}
        found = {by_name[name]: status for name, status in statuses.items()}
        published.look = StateView({}, found, 100 * SECOND, started=frozenset(one.job_id for one in started))
        before = len(api.done)
        asyncio.run(published.publisher.publish_new())
        return api.done[before:]

    published.gangs = [runs, waits]
    assert publish_new(runs, waits=WAITS) == [], "the first pass is over everything"
    assert published.once(99) == []
    assert publish_new(runs, runs=GangStatus(True, "Scheduled", "all")) == [], "running gangs are less urgent"
    asked = len(published.asked)
    assert publish_new(waits=WAITS) == [("PATCH", f"{PODS}/waits/status")]
    assert publish_new(waits=WAITS) == []
    assert len(published.asked) == asked + 1, "neither of them is new any more"
    published.gangs = [runs, waits, following, third]
    assert publish_new(next=WAITS, third=WAITS) == [("PATCH", f"{PODS}/next/status")], "the limit is reached"
    assert published.once(100, waits=WAITS, next=WAITS, third=WAITS) == [("PATCH", f"{PODS}/third/status")]


def test_a_refused_reason_of_a_new_gang_is_tried_again_after_growing_pauses() -> None:
    one = pod("a", 1)
    api = LittleApi({f"{PODS}/a": msgspec.to_builtins(one)})
    api.fails[("PATCH", f"{PODS}/a/status")] = [refused(403)]
    published = Published(api, cache_of())
    assert published.once(99) == []
    published.gangs = [lone(one)]
    published.look = StateView({}, {published.gangs[0].job_id: WAITS}, 100 * SECOND)
    for _ in range(3):
        asyncio.run(published.publisher.publish_new())
    assert (published.publisher.refusals, published.publisher.writes) == (1, 0)
    clock = published.clock
    tried = []
    for seconds in range(40):
        clock.seconds = float(seconds)
        if published.once(101, a=WAITS):
            tried.append(seconds)
    assert tried == [1, 3, 7, 15, 31]
    api.fails.clear()
    clock.seconds = 70.0
    assert published.once(102, a=WAITS) == [("PATCH", f"{PODS}/a/status")]
    api.fails[("PATCH", f"{PODS}/a/status")] = [refused(403)]
    clock.seconds = 200.0
    assert published.once(300, a=GangStatus(False, "Capacity", "too big")) == [("PATCH", f"{PODS}/a/status")]
    clock.seconds = 200.0 + FIRST_SECONDS
    assert published.once(301, a=GangStatus(False, "Capacity", "too big")), "the pauses begin again"


def test_marks_of_a_node_are_tried_again_after_growing_pauses() -> None:
    cache = cache_of("n1")
    api = LittleApi({"/api/v1/nodes/n1": {"metadata": {"name": "n1"}}})
    api.fails[("PATCH", "/api/v1/nodes/n1")] = [refused(403)]
    published = Published(api, cache)
    tried = []
    for seconds in range(10):
        published.clock.seconds = float(seconds)
        published.look = StateView({"n1": Marks(state="quarantine", score="0")}, {}, 100 * SECOND)
        before = len(api.done)
        asyncio.run(published.publisher.once())
        tried += [seconds] * (len(api.done) > before)
    assert tried == [0, 1, 3, 7]


def test_the_reason_of_a_new_gang_is_published_within_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "NEW_SECONDS", 0.001)
    one = pod("waits", 1)
    api = LittleApi({f"{PODS}/waits": msgspec.to_builtins(one)})
    published = Published(api, cache_of())

    async def run() -> None:
        publishing = asyncio.create_task(published.publisher.run())
        await asyncio.sleep(0.05)  # the first pass has found nothing
        published.gangs = [lone(one)]
        published.look = StateView({}, {published.gangs[0].job_id: WAITS}, SECOND)
        began = time.monotonic()
        while not api.done:
            await asyncio.sleep(0.001)
        assert time.monotonic() - began < publish.PERIOD_SECONDS / 2
        publishing.cancel()

    asyncio.run(run())


def test_one_refused_write_is_counted_and_the_others_are_made() -> None:
    pods = [pod("a", 1), pod("b", 1)]
    api = LittleApi({f"{PODS}/{one.metadata.name}": msgspec.to_builtins(one) for one in pods})
    api.fails[("PATCH", f"{PODS}/a/status")] = [refused(403)]
    published = Published(api, cache_of(), *map(lone, pods))
    published.once(100, a=WAITS, b=WAITS)
    assert (published.publisher.refusals, published.publisher.writes) == (1, 1)
    published.clock.seconds = FIRST_SECONDS
    assert published.once(101, a=WAITS, b=WAITS) == [("PATCH", f"{PODS}/a/status")], "it is tried again"


def test_new_gangs_are_queried_first_and_the_others_in_rotation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "MOST_QUERIED", 3)
    gangs = [lone(pod(f"p-{number}", 1)) for number in range(5)]
    published = Published(LittleApi(), cache_of(), *gangs)
    publisher = published.publisher
    publisher._written = {gang.job_id: (WAITS, 0) for gang in gangs[:4]}
    seen = [[gang.key.removeprefix("default/p-") for gang in publisher._next(gangs)] for _ in range(3)]
    assert seen == [["4", "0", "1"], ["4", "2", "3"], ["4", "0"]]
    assert publisher._next(gangs[:3]) == gangs[:3]


def test_marks_are_written_on_nodes_only_when_they_change() -> None:
    cache = cache_of("n1", "n2")
    objects = {f"/api/v1/nodes/{name}": msgspec.to_builtins(one) for name, one in cache.nodes.items()}
    published = Published(LittleApi(objects), cache)
    marks = publish.view_of(
        State(nodes={"n1": cluster.Node("n1", 8, state=NodeState.SUSPECT, reason="slow")}), ()
    ).marks
    published.look = StateView(marks, {}, SECOND)
    asyncio.run(published.publisher.once())
    assert published.api.done == [("PATCH", "/api/v1/nodes/n1"), ("PATCH", "/api/v1/nodes/n1/status")]
    assert published.api.kinds == [MERGE_PATCH, STRATEGIC_PATCH]
    (condition,) = published.api.bodies[1]["status"]["conditions"]
    assert condition["lastTransitionTime"] == condition["lastHeartbeatTime"]


def core_job(state: JobState, **fields: Any) -> CoreJob:
    return CoreJob("j", JobSpec("j", ("c",), 1, time_limit_seconds=5.0), state, 0, **fields)


@pytest.mark.parametrize(
    ("job", "scheduled", "reason"),
    [
        (core_job(JobState.RUNNING, attempt=2), True, "Scheduled"),
        (core_job(JobState.STOPPING, attempt=2), True, "Scheduled"),
        (core_job(JobState.COMPLETED, end_reason="done"), False, "Completed"),
        (core_job(JobState.FAILED, end_reason="rank 3 failed"), False, "Failed"),
        (core_job(JobState.PENDING), False, "Capacity"),
    ],
)
def test_the_status_of_a_job(job: CoreJob, scheduled: bool, reason: str) -> None:
    standing = publish.view_of(State(now_ns=100 * SECOND, jobs={"j": job}), ["j", "unknown"]).statuses
    assert set(standing) == {"j"}
    assert (standing["j"].scheduled, standing["j"].reason) == (scheduled, reason)
    if job.end_reason:
        assert standing["j"].message == job.end_reason


# --- uninstalling ----------------------------------------------------------------------------------------------------


def test_all_objects_of_gangwatch_are_deleted_and_objects_of_users_stay() -> None:
    marked = node("n1")
    marked.metadata.labels = {"app": "x", f"{OURS}state": "suspect"}
    theirs = pod("theirs", 1)
    theirs.metadata.annotations = {f"{OURS}time-limit-seconds": "60"}
    placed = pod("placed", 1)
    placed.metadata.annotations = {ATTEMPT: "1", SLOTS: "0", RANK: "0", f"{OURS}time-limit-seconds": "60"}
    probe = pod("probe", 1, labels={PROBE: "p"})
    published_advice = group("published_advice", 1, {PLACEMENT: "{}", f"{OURS}queue": "q"})
    scheduled, others = group("scheduled", 1), group("others", 1)
    scheduled.status.conditions = [Condition("Scheduled", "True")]
    others.status.conditions = [Condition("Theirs", "True")]
    lists = ("/api/v1/nodes", "/api/v1/pods", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups", "/apis/batch/v1/jobs")
    api = LittleApi(lists=lists)
    api.objects = {
        "/api/v1/nodes/n1": msgspec.to_builtins(marked),
        "/api/v1/nodes/n2": msgspec.to_builtins(node("n2")),
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups/published_advice": msgspec.to_builtins(published_advice),
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups/plain": msgspec.to_builtins(group("plain", 1)),
        f"{GROUPS}/published_advice": msgspec.to_builtins(published_advice),
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups/scheduled": msgspec.to_builtins(scheduled),
        f"{GROUPS}/scheduled": msgspec.to_builtins(scheduled),
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups/others": msgspec.to_builtins(others),
        "/apis/batch/v1/jobs/train": a_job({"suspend": True}, labels={gang_stop.SUSPENDED: "true"}),
        "/apis/batch/v1/jobs/other": a_job({"suspend": True}, "job-2"),
        f"{JOBS}/train": a_job({"suspend": True}),
        f"{MAPS}/main-memory": {"metadata": {}},
        f"{MAPS}/main-revoked": {"metadata": {}},
    }
    for one in (theirs, placed, probe):
        for path in ("/api/v1/pods", PODS):
            api.objects[f"{path}/{one.metadata.name}"] = msgspec.to_builtins(one)
    removed = asyncio.run(remove_all(api, "ours", "main"))
    assert removed == {
        "nodes": 1, "pods": 1, "probes": 1, "groups": 2, "suspended Jobs": 1, "leases": 0, "device rules": 0,
        "memories": 1, "revocations": 1,
    }  # fmt: skip
    assert api.objects["/api/v1/nodes/n1"]["metadata"]["labels"] == {"app": "x"}
    assert api.objects[f"{PODS}/placed"]["metadata"]["annotations"] == {f"{OURS}time-limit-seconds": "60"}
    assert f"{PODS}/probe" not in api.objects and f"{PODS}/theirs" in api.objects
    assert api.objects[f"{GROUPS}/published_advice"]["metadata"]["annotations"] == {f"{OURS}queue": "q"}
    assert api.body_of("PATCH", f"{GROUPS}/scheduled/status") == {"status": {"conditions": None, "phase": None}}
    assert api.objects[f"{JOBS}/train"]["spec"]["suspend"] is False
    assert f"{MAPS}/main-memory" not in api.objects
    assert f"{MAPS}/main-revoked" not in api.objects
    assert not [
        path
        for _, path in api.done
        if path.endswith(("/podgroups/others", "/nodes/n2", "/pods/theirs", "/podgroups/plain"))
    ]


def test_only_the_condition_of_gangwatch_is_removed_from_upstream_groups() -> None:
    path = f"/apis/{API}/namespaces/default/podgroups/up"
    body = {"metadata": {"name": "up", "namespace": "default"}, "status": {"conditions": [{"type": "Scheduled"}]}}
    lists = ("/api/v1/nodes", "/api/v1/pods", f"/apis/{API}/podgroups", "/apis/batch/v1/jobs", RULES)
    rule = {"metadata": {"name": "r", "labels": {"app.kubernetes.io/managed-by": "gangwatch"}}}
    api = LittleApi({f"/apis/{API}/podgroups/up": body, path: body, f"{RULES}/r": rule}, lists)
    removed = asyncio.run(remove_all(api, "ours", "main"))
    assert (removed["groups"], removed["device rules"], removed["memories"]) == (1, 1, 0)
    assert api.body_of("PATCH", f"{path}/status") == {
        "status": {"conditions": [{"type": "Scheduled", "$patch": "delete"}]}
    }
    assert f"{RULES}/r" not in api.objects


def test_deleted_objects_are_skipped_and_refusals_raised() -> None:
    placed = pod("placed", 1)
    placed.metadata.annotations = {ATTEMPT: "1"}
    lists = ("/api/v1/nodes", "/api/v1/pods", "/apis/batch/v1/jobs")
    api = LittleApi({"/api/v1/pods/placed": msgspec.to_builtins(placed)}, lists)
    assert asyncio.run(remove_all(api, "ours", "main"))["pods"] == 1
    empty = LittleApi(lists=lists)
    for path in ("/apis/scheduling.x-k8s.io/v1alpha1/podgroups", RULES):
        empty.fails = {("GET", path): [refused(403)]}
        with pytest.raises(BackendError):
            asyncio.run(remove_all(empty, "ours", "main"))
    api.fails[("PATCH", f"{PODS}/placed")] = [refused(403)]
    with pytest.raises(BackendError):
        asyncio.run(uninstall._strip(api, f"{PODS}/placed", ATTEMPT))
    api.fails = {
        ("PATCH", f"{GROUPS}/g"): [refused(404)],
        ("PATCH", f"{GROUPS}/g/status"): [refused(404), refused(403)],
    }
    asyncio.run(uninstall._clear_group(api, group("g", 1)))
    with pytest.raises(BackendError):
        asyncio.run(uninstall._clear_group(api, group("g", 1)))
