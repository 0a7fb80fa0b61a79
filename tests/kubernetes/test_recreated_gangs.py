"""A gang that is deleted and created again under the same name, or whose pods are replaced, around a restart.

The watches' events arrive in any order: pods of the earlier gang may still run, end or be deleted when the new gang's
pods exist, and the controller may have its journal or not.
"""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Phase, adopt
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, JOB, PLACEMENT, RANK, SLOTS, WORLD_SIZE
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.events import AttemptUnknown, CancelRequested, Submitted
from scheduler_feedback.core.job import Job, JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import Policy, State
from tests.kubernetes.makers import group, pod
from tests.kubernetes.test_attempt import add
from tests.kubernetes.test_backend import RecordingBackend, start_of

OLD, NEW = "2026-11-29T01:00:00Z", "2026-11-29T02:00:00Z"
PLACE = (Slot("n1", 0), Slot("n2", 0))


def gang(created: str, **annotations: str) -> tuple[PodGroup, str]:
    """Return a group of two pods, and the job id of its gang."""
    made = group("g", 2, annotations)
    made.metadata.creation_timestamp = created
    return made, f"default.g.{made.metadata.uid[:8]}"


def bound(job_id: str, *, ending: bool = False, phase: str = "Running", prefix: str = "old") -> list[Pod]:
    """Return two pods that were bound for the first attempt of this job. job_id: '' for an earlier version's pods."""
    pods = []
    for number, node in enumerate(("n1", "n2")):
        one = pod(f"{prefix}-{number}", 1, "g", nodeName=node)
        one.metadata.annotations = {ATTEMPT: "1", SLOTS: "0", RANK: str(number), WORLD_SIZE: "2"}
        if job_id:
            one.metadata.annotations[JOB] = job_id
        one.metadata.creation_timestamp, one.status.phase = OLD, phase
        if ending:
            one.metadata.deletion_timestamp = NEW
        pods.append(one)
    return pods


def fresh() -> list[Pod]:
    pods = [pod(f"new-{number}", 1, "g") for number in range(2)]
    for one in pods:
        one.metadata.creation_timestamp = NEW
    return pods


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> RecordingBackend:
    return RecordingBackend(monkeypatch)


@pytest.mark.parametrize("version", ["this", "earlier"])
@pytest.mark.parametrize("order", list(itertools.permutations(("group", "old", "new"))))
def test_a_start_does_not_adopt_the_ending_pods_of_an_earlier_gang(
    backend: RecordingBackend, order: tuple[str, ...], version: str
) -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    for step in order:
        if step == "group":
            backend.cache.group_changed("default/g", None, again)
        else:
            add(
                backend.cache, *(fresh() if step == "new" else bound(earlier if version == "this" else "", ending=True))
            )
        backend.observe(())
    assert backend._submitted == {"default/g": job_id}
    backend.apply(start_of(job_id, *PLACE))
    assert backend.work == [((job_id, 1), "start")]
    assert backend._attempts[job_id, 1].members == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("version", ["this", "earlier"])
def test_pods_of_an_earlier_gang_that_have_ended_are_not_the_new_gang_s_result(
    backend: RecordingBackend, phase: str, version: str
) -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    backend.cache.group_changed("default/g", None, again)
    add(backend.cache, *bound(earlier if version == "this" else "", phase=phase), *fresh())
    backend.observe(())
    backend.apply(start_of(job_id, *PLACE))
    assert backend.work == [((job_id, 1), "start")]
    state, keys = rebuild(backend.cache, backend.nodes(), Policy(), 1)
    assert (state.jobs, keys) == ({}, {}), "it is submitted as a new job"


def test_a_new_leader_does_not_rebuild_a_gang_from_ending_pods_of_an_earlier_one(backend: RecordingBackend) -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    backend.cache.group_changed("default/g", None, again)
    add(backend.cache, *bound(earlier, ending=True), *fresh())
    state, keys = rebuild(backend.cache, backend.nodes(), Policy(), 1)
    assert (state.jobs, keys) == ({}, {})
    assert [event.job_id for event in backend.observe(()) if isinstance(event, Submitted)] == [job_id]


def test_a_new_leader_continues_the_count_of_attempts_of_a_gang_whose_pods_are_being_replaced(
    backend: RecordingBackend,
) -> None:
    """The gang is the same: a move has deleted its pods, and its owner has created new ones."""
    mine, job_id = gang(OLD)
    mine.metadata.annotations = {
        PLACEMENT: json.dumps({"attempt": 1, "pods": {"old-0": ["n1", 0, [0]]}, "job": job_id})
    }
    backend.cache.group_changed("default/g", None, mine)
    add(backend.cache, *bound(job_id, ending=True), *fresh())
    state, _ = rebuild(backend.cache, backend.nodes(), Policy(), 1)
    assert (state.jobs[job_id].state, state.jobs[job_id].attempt) == (JobState.PENDING, 1)


def test_a_start_after_a_lost_count_does_not_adopt_the_ending_pods_of_its_own_gang(backend: RecordingBackend) -> None:
    """A leader without a state counts from 1 again if the gang was incomplete when it took over."""
    mine, job_id = gang(OLD)
    backend.cache.group_changed("default/g", None, mine)
    add(backend.cache, *bound(job_id, ending=True), *fresh())
    backend.observe(())
    backend.apply(start_of(job_id, *PLACE))
    assert backend.work == [((job_id, 1), "start")]


def test_a_start_is_not_bound_to_the_places_of_an_annotation_from_another_plan(backend: RecordingBackend) -> None:
    """Pods of a StatefulSet have the same names again, so the earlier plan names them."""
    mine, job_id = gang(OLD)
    plan = {"attempt": 1, "pods": {"new-0": ["n2", 0, [0]], "new-1": ["n2", 1, [1]]}, "job": job_id}
    mine.metadata.annotations = {PLACEMENT: json.dumps(plan)}
    backend.cache.group_changed("default/g", None, mine)
    add(backend.cache, *fresh())
    backend.observe(())
    backend.apply(start_of(job_id, *PLACE))
    assert backend.work == [((job_id, 1), "start")]
    backend.observe([(job_id, 1)])
    assert backend._attempts[job_id, 1].placement == PLACE


def test_a_placement_copied_from_an_earlier_group_is_not_used() -> None:
    """`kubectl get podgroup g --output yaml`, deleted and applied again, has the annotation of the earlier gang."""
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    plan = {"attempt": 1, "pods": {"new-0": ["n1", 0, [0]], "new-1": ["n2", 1, [0]]}}
    again.metadata.annotations = {PLACEMENT: json.dumps(plan | {"job": earlier})}
    assert adopt(job_id, 1, "default/g", fresh(), again) is None
    again.metadata.annotations = {PLACEMENT: json.dumps(plan)}
    adopted = adopt(job_id, 1, "default/g", fresh(), again)
    assert adopted is not None and adopted.phase is Phase.BINDING, "an earlier version wrote no job id"


def test_a_deleted_gang_keeps_its_attempt_until_its_pods_are_gone_though_another_has_its_name(
    backend: RecordingBackend,
) -> None:
    """The journal has the earlier gang; its group was deleted and created again while no controller ran."""
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    backend.cache.group_changed("default/g", None, again)
    add(backend.cache, *bound(earlier))
    job = Job(earlier, JobSpec("g", ("default/g",), 2), JobState.RUNNING, 1, attempt=1)
    backend.resume(State(jobs={earlier: job}))
    events = backend.observe([(earlier, 1)])
    assert [event.job_id for event in events if isinstance(event, CancelRequested)] == [earlier]
    assert not [event for event in events if isinstance(event, AttemptUnknown)]
    backend.apply(start_of(job_id, *PLACE))
    assert backend.work == [((job_id, 1), "start")], "its pods are those of the other attempt"
    backend.apply(StopGang("s", earlier, 1, "SIGTERM", 1.0, StopReason.CANCEL))
    assert backend.work[1:] == [((earlier, 1), "stop")]
    backend.observe([(job_id, 1)])
    assert earlier not in backend._keys and backend._keys[job_id] == "default/g"


def test_pods_that_all_still_run_are_the_new_gang_s_if_only_the_group_was_created_again(
    backend: RecordingBackend,
) -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    backend.cache.group_changed("default/g", None, again)
    pods = bound(earlier)
    add(backend.cache, *pods)
    state, keys = rebuild(backend.cache, backend.nodes(), Policy(), 1)
    job = state.jobs[job_id]
    assert (job.state, [record.slot for record in job.ranks]) == (JobState.STARTING, list(PLACE))
    backend.know(job_id, keys[job_id])
    assert not [event for event in backend.observe([(job_id, 1)]) if isinstance(event, AttemptUnknown)]


@pytest.mark.parametrize("left", ["one ends", "one is gone", "another size"])
def test_pods_of_an_earlier_gang_that_is_not_complete_are_no_gang(backend: RecordingBackend, left: str) -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    pods = bound(earlier)
    if left == "one ends":
        pods[1].metadata.deletion_timestamp = NEW
    elif left == "one is gone":
        pods.pop()
    else:
        again.spec = msgspec.structs.replace(again.spec, min_member=1)
    backend.cache.group_changed("default/g", None, again)
    add(backend.cache, *pods, *fresh()[:1])
    state, _ = rebuild(backend.cache, backend.nodes(), Policy(), 1)
    assert job_id not in state.jobs


def test_a_part_of_an_earlier_gang_s_pods_is_not_adopted() -> None:
    (_, earlier), (again, job_id) = gang(OLD), gang(NEW)
    pods = bound(earlier)
    assert adopt(job_id, 1, "default/g", pods, again) is not None
    assert adopt(job_id, 1, "default/g", pods[:1], again) is None


def test_a_pod_beyond_the_least_number_is_no_member_of_its_group_s_attempt() -> None:
    mine, job_id = gang(OLD)
    members, extra = bound(job_id), bound("default.old-0.ffffffff", prefix="extra")[:1]
    adopted = adopt(job_id, 1, "default/g", [*extra, *members[1:]], mine)
    assert adopted is not None and [member.name for member in adopted.members] == ["default/old-1"]
