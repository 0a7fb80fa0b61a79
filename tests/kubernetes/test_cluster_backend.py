"""Code that the Kubernetes backends share, without a server: queues, agents, names of gangs, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agent.schema.errors import StoreError
from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
from scheduler_feedback.backends.kubernetes.cluster_backend import START_SECONDS, ClusterBackend
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Queue, QueueSpec
from scheduler_feedback.controller.backend_calls import BackendCalls
from scheduler_feedback.core.events import Event, PolicySet
from scheduler_feedback.core.state import Policy, State

ACCESS = Access("http://nowhere")
POLICY = Policy(probe_command=("probe",), suspect_seconds=7.0)


class Cycle:
    """Cycle that records requests. error: exception with which it answers each request; None accepts all."""

    def __init__(self) -> None:
        self.requested: list[Event] = []
        self.error: Exception | None = None

    def ask(self, question: Callable[[State], Any], /) -> Future[Any]:
        raise AssertionError("not asked")

    def request(self, make: Callable[[State], Event], /) -> Future[Event]:
        answer: Future[Event] = Future()
        self.requested.append(make(State()))
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            answer.set_result(self.requested[-1])
        return answer

    def cycles(self) -> int:
        return 0


def backend_of(folder: Path, **settings: Any) -> KubernetesBackend:
    return KubernetesBackend(folder, KubernetesSettings(ACCESS, **settings))


def add_queue(backend: ClusterBackend, name: str, limit: int) -> None:
    backend.cache.queue_changed(name, None, Queue(Metadata(name), QueueSpec(limit=limit)))


def test_nodes_are_probed_only_with_an_image(tmp_path: Path) -> None:
    image = Probes("image", "default", "gangwatch")
    assert backend_of(tmp_path, probes=image).effective_policy(POLICY).probe_command == ("probe",)
    assert backend_of(tmp_path, probes=Probes("", "default", "gangwatch")).effective_policy(POLICY).probe_command == ()
    assert backend_of(tmp_path).effective_policy(POLICY).probe_command == ()
    advisor = AdvisorBackend(tmp_path, KubernetesSettings(ACCESS, probes=image))
    assert advisor.effective_policy(POLICY).probe_command == (), "an advisor starts no pods"


def test_a_start_has_time_to_pull_images_unless_the_user_sets_another_limit(tmp_path: Path) -> None:
    backend = backend_of(tmp_path)
    assert backend.effective_policy(Policy()).start_timeout_seconds == START_SECONDS
    for seconds in (30.0, 60.0, 900.0):
        assert backend.effective_policy(Policy(start_timeout_seconds=seconds)).start_timeout_seconds == seconds


def test_a_change_of_the_queues_is_sent_once_and_again_after_a_failure(tmp_path: Path) -> None:
    backend, cycle = backend_of(tmp_path), Cycle()
    add_queue(backend, "a", 4)
    policy = backend.effective_policy(POLICY)
    assert [(queue.name, queue.limit) for queue in policy.queues] == [("a", 4)] and policy.suspect_seconds == 7.0
    backend._follow_queues(cycle)
    assert cycle.requested == [], "the first policy has them"
    add_queue(backend, "b", 2)
    cycle.error = StoreError("full")
    backend._follow_queues(cycle)
    cycle.error = None
    backend._follow_queues(cycle)
    backend._follow_queues(cycle)
    assert len(cycle.requested) == 2
    for event in cycle.requested:
        assert isinstance(event, PolicySet)
        assert [queue.name for queue in event.policy.queues] == ["a", "b"]
        assert event.policy.suspect_seconds == 7.0 and event.policy.probe_command == ()


def test_a_folder_that_was_used_last_keeps_its_journal(tmp_path: Path) -> None:
    assert backend_of(tmp_path, rebuilds=False).rebuild_state(POLICY, 1) is None
    rebuilt = backend_of(tmp_path).rebuild_state(POLICY, 1)
    assert rebuilt is not None and rebuilt.policy == POLICY and rebuilt.now_ns == 1


@pytest.mark.parametrize("leads", [True, False])
def test_leadership_is_a_metric(tmp_path: Path, leads: bool) -> None:
    assert list(backend_of(tmp_path, may_act=lambda: leads).measures()) == [("gangwatch_leads", (), float(leads))]


def test_a_leader_without_a_right_is_not_ready(tmp_path: Path) -> None:
    missing = [""]
    calls = BackendCalls(backend_of(tmp_path, missing_rights=lambda: missing[0]))
    assert calls.obstacle() == ""
    missing[0] = "its user may not create pods/binding"
    assert calls.obstacle() == "its user may not create pods/binding"
