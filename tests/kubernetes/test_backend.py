"""Kubernetes backends without an API server: their API requests are recorded and not executed."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.api_server.client import (
    Access,
)
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Attempt, Member, Phase
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import PROBE, Probes
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Pod, PodGroup, StoredVolume, Taint
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    NETWORK_CLASS,
    RANK,
    SLOTS,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    NodeSeen,
    RankFailed,
    Submitted,
)
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import State
from tests.kubernetes.little_api import LittleApi
from tests.kubernetes.makers import group, node, pod
from tests.kubernetes.test_attempt import add

GPU = "nvidia.com/gpu"


# --- the backend without a server ------------------------------------------------------------------------------------


class RecordingBackend(KubernetesBackend):
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        super().__init__(Path("/nowhere"), KubernetesSettings(Access("http://nowhere"), **settings))
        self.work: list[tuple[tuple[str, int], str]] = []
        self.busy_with: set[tuple[str, int]] = set()

        def go(key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
            self.work.append((key, work.__qualname__.rpartition(".")[2]))
            work.close()

        monkeypatch.setattr(self._connection, "go", go)
        monkeypatch.setattr(self._connection, "busy", lambda key: key in self.busy_with)
        for name in ("n1", "n2"):
            self.cache.node_changed(name, None, node(name))

    def update(self, *pods: Pod) -> None:
        add(self.cache, *pods)


def start_of(job_id: str, *slots: Slot, attempt: int = 1, kind: JobKind = JobKind.TRAINING) -> StartGang:
    return StartGang(f"a-{attempt}", job_id, attempt, JobSpec("j", ("c",), len(slots), kind=kind), slots)


def test_a_gang_is_submitted_once_and_cancelled_when_it_is_deleted_or_recreated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = RecordingBackend(monkeypatch)
    one = pod("a", 2)
    backend.update(one)
    nodes = [event for event in backend.observe(()) if not isinstance(event, NodeSeen)]
    (submitted,) = nodes
    assert isinstance(submitted, Submitted) and submitted.spec.ranks == 2
    assert backend.observe(()) == []
    again = pod("a", 4)
    backend.cache.pod_changed("default/a", one, again)
    cancelled, renewed = (event for event in backend.observe(()) if not isinstance(event, NodeSeen))
    assert isinstance(cancelled, CancelRequested) and cancelled.job_id == submitted.job_id
    assert isinstance(renewed, Submitted) and renewed.job_id != submitted.job_id
    backend.cache.pod_changed("default/a", again, None)
    (gone,) = backend.observe(())
    assert isinstance(gone, CancelRequested) and gone.job_id == renewed.job_id
    assert backend.gangs() == [] and backend._last_pods == {}


def test_a_gang_stays_one_gang_when_its_volumes_change(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
    backend.cache.group_changed("default/g", None, group("g", 2))
    backend.update(pod("g-0", 1, "g", volumes=volumes), pod("g-1", 1, "g", volumes=volumes))
    assert not [event for event in backend.observe(()) if isinstance(event, Submitted)], "its claim does not exist"
    claim = {"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    backend.cache.volume_changed("pv", None, msgspec.convert({"metadata": {"name": "pv"}}, StoredVolume))
    backend.cache.claim_changed("default/c", None, msgspec.convert(claim, Claim))
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    assert (submitted.spec.name, submitted.spec.ranks) == ("g", 2)


@pytest.mark.parametrize("phases", [("Succeeded", "Succeeded"), ("Succeeded", "Running")])
def test_a_gang_whose_operator_deletes_its_group_after_its_pods_have_ended_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch, phases: tuple[str, str]
) -> None:
    """Kubeflow's training operator does so. Both changes arrive before the gang is scanned again."""
    backend, _, key = running_gang(monkeypatch)
    for number, phase in enumerate(phases):
        one = backend.cache.pods[f"default/g-{number}"]
        backend.cache.pod_changed(one.metadata.key, one, replace(one, status=replace(one.status, phase=phase)))
    backend.cache.group_changed("default/g", backend.cache.groups["default/g"], None)
    events = [event for event in backend.observe([key]) if not isinstance(event, NodeSeen)]
    assert [type(event) for event in events if not isinstance(event, AttemptEnded)] == [CancelRequested]
    ended = [event for event in events[:1] if isinstance(event, AttemptEnded)]
    if phases[1] == "Succeeded":
        assert [[one.exit_code for one in event.exits] for event in ended] == [[0, 0]], "its end comes first, and once"
        assert len(events) == 2
    else:
        assert not ended


def test_a_gang_that_the_core_already_has_is_not_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    one = pod("a", 2)
    job_id = f"default.a.{one.metadata.uid[:8]}"
    backend.know(job_id, "default/a")
    backend.update(one)
    assert [event for event in backend.observe(()) if not isinstance(event, NodeSeen)] == []


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_a_gang_that_was_deleted_while_no_controller_ran_is_cancelled(
    state: JobState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it stays at the head of the queue for ever: its pods do not exist, and its start fails each time."""
    backend = RecordingBackend(monkeypatch)
    alone, grouped, empty = pod("a", 1), pod("g-0", 1, "g"), group("h", 2)
    backend.cache.group_changed("default/g", None, group("g", 1))
    backend.cache.group_changed("default/h", None, empty)
    backend.update(alone, grouped)
    ids = [backend.cache.gang(f"default/{name}").job_id for name in ("a", "g", "h")]  # type: ignore[union-attr]
    spec = JobSpec("j", ("c",), 1)
    jobs = [Job(job_id, spec, state, 1) for job_id in (*ids, "deleted")]
    jobs += [Job("ended", spec, JobState.COMPLETED, 1), Job("probe", replace(spec, kind=JobKind.PROBE), state, 1)]
    backend.resume(State(jobs={job.job_id: job for job in jobs}))
    cancelled = [event for event in backend.observe(()) if isinstance(event, CancelRequested)]
    assert [event.job_id for event in cancelled] == ["deleted"], "a group without pods exists, too"
    assert not [event for event in backend.observe(()) if isinstance(event, CancelRequested)]


@pytest.mark.parametrize("pods", [0, 1, 2])
def test_a_gang_of_the_journal_is_cancelled_if_it_is_deleted_before_all_of_its_pods_exist(
    pods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that started while the pods of a gang were being deleted did not notice that the group was, too."""
    backend = RecordingBackend(monkeypatch)
    backend.cache.group_changed("default/g", None, group("g", 2))
    backend.update(*(pod(f"g-{number}", 1, "g") for number in range(pods)))
    job_id = backend.cache.gang("default/g").job_id  # type: ignore[union-attr]
    backend.resume(State(jobs={job_id: Job(job_id, JobSpec("g", ("default/g",), 2), JobState.PENDING, 1)}))
    assert [event for event in backend.observe(()) if not isinstance(event, NodeSeen)] == [], "the cycle has it"
    backend.cache.group_changed("default/g", backend.cache.groups["default/g"], None)
    (cancelled,) = [event for event in backend.observe(()) if isinstance(event, CancelRequested)]
    assert cancelled.job_id == job_id


def test_a_start_and_a_stop_are_each_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    backend.update(pod("a", 1))
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    key = (submitted.job_id, 1)
    action = start_of(submitted.job_id, Slot("n1", 0))
    for _ in range(2):
        backend.apply(action)
    assert backend.work == [(key, "start")]
    stop = StopGang("s", *key, "SIGTERM", 1.0, StopReason.CANCEL)
    for _ in range(2):
        backend.apply(stop)
    assert backend.work == [(key, "start"), (key, "stop")]
    backend.apply(StopGang("s", "unknown", 1, "SIGTERM", 1.0, StopReason.CANCEL))
    assert len(backend.work) == 2


def test_unknown_attempts_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    backend.observe(())
    assert backend.observe([("unknown", 1)]) == [AttemptUnknown("unknown", 1)]


def test_an_attempt_of_an_earlier_controller_is_adopted_and_its_binding_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = RecordingBackend(monkeypatch)
    backend.cache.group_changed("default/g", None, group("g", 2, {f"{OURS}placement": json.dumps(
        {"attempt": 3, "pods": {"g-0": ["n1", 0, [0]], "g-1": ["n2", 1, [5]]}}
    )}))  # fmt: skip
    bound, unbound = pod("g-0", 1, "g", nodeName="n1"), pod("g-1", 1, "g")
    bound.metadata.annotations = {ATTEMPT: "3", SLOTS: "0", RANK: "0", NETWORK_CLASS: "5"}
    backend.update(bound, unbound)
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    key = (submitted.job_id, 3)
    backend.observe([key])
    assert backend.work == [(key, "bind")]
    assert backend._attempts[key].network_class == "5", "the other pods get it, too"
    assert backend.cache.free_of("n2")[GPU] == 7, "its resources are assumed"
    assert backend.cache.place_of(unbound.metadata.uid) == Place(submitted.job_id, 3, "n2", range(1, 2))
    backend.apply(start_of(submitted.job_id, Slot("n1", 0), Slot("n2", 5), attempt=3))
    assert len(backend.work) == 1, "the requested start is under way"
    backend.observe(())
    assert backend.cache.place_of(unbound.metadata.uid) is None, "the core no longer has it"


def lost_pod(monkeypatch: pytest.MonkeyPatch) -> tuple[RecordingBackend, Attempt, tuple[str, int]]:
    """Return a backend with a running gang on n1 and n2 whose pod on n2 is deleted, its attempt, and the
    attempt's key."""
    backend, attempt, key = running_gang(monkeypatch)
    backend.cache.pod_changed("default/g-1", backend.cache.pods["default/g-1"], None)
    return backend, attempt, key


def running_gang(monkeypatch: pytest.MonkeyPatch) -> tuple[RecordingBackend, Attempt, tuple[str, int]]:
    """Return a backend with a running gang of two pods on n1 and n2, its attempt, and the attempt's key."""
    backend = RecordingBackend(monkeypatch)
    pods = [pod(f"g-{number}", 1, "g") for number in range(2)]
    backend.cache.group_changed("default/g", None, group("g", 2))
    backend.update(*pods)
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    key = (submitted.job_id, 1)
    backend.apply(start_of(submitted.job_id, Slot("n1", 0), Slot("n2", 0)))
    attempt = backend._attempts[key]
    attempt.members = [
        Member(one.metadata.key, one.metadata.uid, name, range(rank, rank + 1), (0,), bound=True)
        for rank, (one, name) in enumerate(zip(pods, ("n1", "n2"), strict=True))
    ]
    attempt.phase, attempt.reported = Phase.BOUND, True
    backend.cache.unplan(key, ("n1", "n2"))  # as the start does when it binds the pods
    for one, name in zip(pods, ("n1", "n2"), strict=True):
        one.spec.node_name, one.status.phase = name, "Running"
        one.metadata.annotations = {ATTEMPT: "1", SLOTS: "0"}
        backend.cache.pod_changed(one.metadata.key, one, one)
    backend.observe([key])
    return backend, attempt, key


def test_a_replacement_pod_takes_the_place_of_the_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, attempt, key = lost_pod(monkeypatch)
    wrong_size, fresh = pod("g-1-more", 4, "g"), pod("g-1-new", 1, "g")
    backend.update(wrong_size, fresh)
    backend.work.clear()
    backend.observe([key])
    assert backend.work == [((f"{key[0]}/1", 1), "bind_in_place")]
    member = attempt.members[1]
    assert (member.name, member.uid, member.bound) == ("default/g-1-new", fresh.metadata.uid, False)
    assert backend.cache.place_of(fresh.metadata.uid) == Place(*key, "n2", range(1, 2))
    assert backend.cache.free_of("n2")[GPU] == 7


@pytest.mark.parametrize("again", [True, False])
def test_pods_of_another_gang_of_the_same_name_replace_no_lost_pod(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl delete` and `kubectl apply` of a larger gang: its first pods would run without the others."""
    backend, attempt, key = lost_pod(monkeypatch)
    before = backend.cache.groups["default/g"]
    backend.cache.group_changed("default/g", before, None)
    if again:
        backend.cache.group_changed("default/g", None, group("g", 40))
        assert backend.cache.groups["default/g"].metadata.uid != before.metadata.uid
    backend.update(*(pod(f"g-{number}-new", 1, "g") for number in range(39)))
    backend.work.clear()
    events = backend.observe([key])
    assert [event.job_id for event in events if isinstance(event, CancelRequested)] == [key[0]]
    assert backend.work == [] and attempt.members[1].hole


def test_a_gang_fails_if_the_node_of_a_lost_pod_takes_no_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, attempt, key = lost_pod(monkeypatch)
    cordoned = node("n2")
    cordoned.spec.taints = [Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")]
    backend.cache.node_changed("n2", cordoned, cordoned)
    backend.update(pod("g-1-new", 1, "g"))
    backend.work.clear()
    failed = [event for event in backend.observe([key]) if isinstance(event, RankFailed)]
    assert failed == [RankFailed(*key, 1, 1)]
    assert backend.work == [] and "n2 takes no other: taint node.kubernetes.io/unschedulable" in attempt.failure
    assert not [event for event in backend.observe([key]) if isinstance(event, RankFailed)], "reported once"


def test_a_kubelet_s_rejection_undoes_the_whole_start(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    one = pod("a", 1)
    backend.update(one)
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    key = (submitted.job_id, 1)
    backend.apply(start_of(submitted.job_id, Slot("n1", 0)))
    attempt = backend._attempts[key]
    attempt.members = [Member("default/a", one.metadata.uid, "n1", range(1), (0,), bound=True)]
    attempt.phase = Phase.BOUND
    failed = replace(one, status=replace(one.status, phase="Failed", reason="UnexpectedAdmissionError"))
    backend.cache.pod_changed("default/a", one, failed)
    backend.observe([key])
    assert backend.work[-1] == (key, "undo")
    assert attempt.phase is Phase.UNDOING and "UnexpectedAdmissionError" in attempt.failure


def test_a_probe_uses_the_configured_image_and_is_deleted_when_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = start_of("probe-n1-1", Slot("n1", 0), kind=JobKind.PROBE)
    with pytest.raises(BackendError, match="no probe image is configured"):
        RecordingBackend(monkeypatch).apply(probe)
    leads = True
    backend = RecordingBackend(monkeypatch, probes=Probes("image", "default", "gangwatch"), may_act=lambda: leads)
    backend.apply(probe)
    assert backend.work == [(("probe-n1-1", 1), "start_probe")]
    left = pod("probe-n2-7-1", 1, labels={PROBE: "probe-n2-7"})
    backend.update(left)
    leads = False
    backend.observe([("probe-n1-1", 1)])
    assert len(backend.work) == 1, "a controller that does not lead deletes nothing"
    leads = True
    backend.observe([("probe-n1-1", 1)])
    key = (left.metadata.uid, 0)
    assert backend.work[1:] == [(key, "delete_probe")]
    backend.busy_with.add(key)
    backend.observe([("probe-n1-1", 1)])
    assert len(backend.work) == 2


def test_lost_slots_are_reported_with_new_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    one = pod("a", 2)
    backend.update(one)
    (submitted,) = [event for event in backend.observe(()) if isinstance(event, Submitted)]
    key = (submitted.job_id, 1)
    backend.apply(start_of(submitted.job_id, Slot("n1", 6), Slot("n1", 7)))
    attempt = backend._attempts[key]
    attempt.members = [Member("default/a", one.metadata.uid, "n1", range(2), (6, 7), bound=True)]
    attempt.phase, attempt.reported = Phase.BOUND, True
    backend.cache.node_changed("n1", None, node("n1", 4))
    events = backend.observe([key])
    (renumbered,) = [event for event in events if isinstance(event, AttemptRunning)]
    assert [one.slot for one in renumbered.ranks] == [0, 1]


def test_which_objects_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    api = LittleApi()
    assert set(RecordingBackend(monkeypatch)._watching(api)) == {
        "nodes",
        "pods",
        "claims",
        "volumes",
        "podgroups",
        "queues",
        "slices",
        "classes",
        "device_claims",
        "networks",
    }
    watches = RecordingBackend(monkeypatch, upstream_groups=True)._watching(api)
    assert watches["upstream"].path == f"/apis/{API}/podgroups"


# --- the advisor without a server ------------------------------------------------------------------------------------


def test_an_advisor_follows_gangs_of_other_schedulers_and_places_nothing() -> None:
    advisor = AdvisorBackend(Path("/nowhere"), KubernetesSettings(Access("http://nowhere"), settled_seconds=0.0))
    advisor.cache.node_changed("n1", None, node("n1"))
    one = pod("a", 2, schedulerName="another", nodeName="n1")
    one.status.phase = "Running"
    advisor._pod_changed("default/a", None, one)
    assert [seen_.slots for seen_ in advisor.nodes()] == [8], "slots assigned by another scheduler are its own"
    events = advisor.observe(())
    assert [type(event).__name__ for event in events] == ["Hosted"]
    advisor._pod_changed("default/a", one, None)
    (ended,) = advisor.observe([("default.a.pod", 1)])
    assert type(ended).__name__ == "AttemptEnded"
    with pytest.raises(BackendError, match="only advises"):
        advisor.apply(start_of("j", Slot("n1", 0)))
    assert advisor.gangs() == []
    ours = pod("b", 2)
    advisor._pod_changed("default/b", None, ours)
    assert advisor.cache.pods == {}, "the advisor places no pod"


def test_objects_are_identified_by_their_names() -> None:
    one = PodGroup(replace(group("g", 1).metadata, namespace="team"))
    assert one.metadata.key == "team/g"
    assert node("n1").metadata.key == "n1"
    owned = msgspec.convert(
        {"metadata": {"name": "a", "ownerReferences": [{"kind": "A", "name": "x"}, {"kind": "B", "controller": True}]}},
        Pod,
    )
    assert owned.owner is not None and owned.owner.kind == "B"
    for phase, over in (("Running", False), ("Failed", True), ("Succeeded", True)):
        assert replace(owned, status=replace(owned.status, phase=phase)).over is over


def test_nodes_report_unmet_constraints_once_a_gang_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RecordingBackend(monkeypatch)
    backend.observe(())
    backend.update(pod("a", 1, nodeSelector={"kubernetes.io/hostname": "n1"}))
    events = backend.observe(())
    (gang,) = backend.gangs()
    assert gang.constraint is not None
    refuses = {event.node: event.refuses for event in events if isinstance(event, NodeSeen)}
    assert refuses["n2"] == (gang.constraint.name,) and not refuses.get("n1")
    assert isinstance(events[-1], Submitted), "in the same cycle as the gang"


def test_an_ended_connection_raises_backend_error() -> None:
    folder, settings = Path("/nowhere"), KubernetesSettings(Access("http://nowhere"))
    advisor, backend = AdvisorBackend(folder, settings), KubernetesBackend(folder, settings)
    for made in (advisor, backend):
        made._connection._failure = RuntimeError("a bug")
        for asked in (made.nodes, lambda made=made: made.observe(())):
            with pytest.raises(BackendError, match="has ended: a bug"):
                asked()
    with pytest.raises(BackendError):
        backend.apply(start_of("j", Slot("n1", 0)))


def test_an_advisor_finds_the_agents_of_its_cluster() -> None:
    advisor = AdvisorBackend(Path("/nowhere"), KubernetesSettings(Access("http://nowhere")))
    agent = pod("agent", 0, schedulerName="another", nodeName="n1")
    agent.metadata.labels = {"app.kubernetes.io/name": "gangwatch", "app.kubernetes.io/component": "agent"}
    agent.status.pod_ip = "10.0.0.5"
    advisor._pod_changed("default/agent", None, agent)
    assert advisor.cache.agents() == {"n1": "10.0.0.5"}
