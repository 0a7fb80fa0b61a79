"""Gangs that name a queue which does not exist, and gangs that a new leader submits again."""

from __future__ import annotations

import json

import pytest

from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Queue, QueueSpec
from scheduler_feedback.backends.kubernetes.objects.translate import PLACEMENT, QUEUE
from scheduler_feedback.core import state as core
from scheduler_feedback.core.events import Event, Submitted
from scheduler_feedback.core.state import Policy
from tests.kubernetes.makers import group, pod
from tests.kubernetes.test_attempt import add
from tests.kubernetes.test_backend import RecordingBackend


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> RecordingBackend:
    return RecordingBackend(monkeypatch)


def submit(backend: RecordingBackend, queue: str, annotations: dict[str, str] | None = None) -> list[Event]:
    made = group("g", 2, annotations or {})
    made.metadata.labels = {QUEUE: queue} if queue else {}
    backend.cache.group_changed("default/g", None, made)
    add(backend.cache, pod("a", 1, "g"), pod("b", 1, "g"))
    return submitted(backend)


def submitted(backend: RecordingBackend) -> list[Event]:
    return [event for event in backend.observe(()) if isinstance(event, Submitted)]


def create(backend: RecordingBackend, name: str) -> None:
    backend.cache.queue_changed(name, None, Queue(Metadata(name=name), QueueSpec()))


def test_a_gang_of_a_queue_that_does_not_exist_is_refused_until_the_queue_is_created(
    backend: RecordingBackend,
) -> None:
    create(backend, "research")
    backend.effective_policy(Policy())
    assert submit(backend, "reserch") == []
    [refused] = backend.gangs()
    assert refused.spec is None
    assert refused.refused == (
        "queue reserch does not exist (did you mean research?); this cluster has the queue research"
    )
    assert submitted(backend) == []
    create(backend, "reserch")
    backend.cache.dirty_gangs.add("default/g")
    assert submitted(backend) == [], "the cycle does not have the new queue and its limit yet"
    backend.effective_policy(Policy())
    [event] = submitted(backend)
    assert isinstance(event, Submitted)
    assert event.spec.queue == "reserch"
    assert [gang.refused for gang in backend.gangs()] == [""]


@pytest.mark.parametrize("queue", ["research", "default", ""])
def test_a_gang_of_a_known_queue_or_of_none_is_submitted(backend: RecordingBackend, queue: str) -> None:
    create(backend, "research")
    backend.effective_policy(Policy())
    assert len(submit(backend, queue)) == 1


def test_queues_of_the_configuration_count_too(backend: RecordingBackend) -> None:
    backend.effective_policy(Policy(queues=(core.Queue("file"),)))
    assert submit(backend, "fil") == []
    assert "(did you mean file?)" in backend.gangs()[0].refused


def test_without_any_queue_every_name_is_accepted(backend: RecordingBackend) -> None:
    backend.effective_policy(Policy())
    assert len(submit(backend, "anything")) == 1


def test_a_submitted_gang_stays_if_its_queue_is_deleted(backend: RecordingBackend) -> None:
    create(backend, "research")
    create(backend, "other")
    backend.effective_policy(Policy())
    assert len(submit(backend, "research")) == 1
    backend.cache.queue_changed("research", backend.cache.queues["research"], None)
    backend.effective_policy(Policy())
    backend.cache.dirty_gangs.add("default/g")
    assert backend.observe(()) == []
    assert [gang.refused for gang in backend.gangs()] == [""]


def test_a_new_leader_counts_the_attempts_of_a_gang_without_pods_on(backend: RecordingBackend) -> None:
    """Its attempt is only on the group: no state can be rebuilt, and the gang is submitted when its pods exist."""
    [event] = submit(backend, "", {PLACEMENT: json.dumps({"attempt": 3, "pods": {}})})
    assert isinstance(event, Submitted)
    assert event.attempt == 3


def test_the_attempts_of_an_earlier_gang_of_the_same_name_do_not_count(backend: RecordingBackend) -> None:
    placed = {"attempt": 3, "pods": {}, "job": "default.g.earlier"}
    [event] = submit(backend, "", {PLACEMENT: json.dumps(placed)})
    assert isinstance(event, Submitted)
    assert event.attempt == 0
