"""Binding of a pod if the API server's response is lost: the pod counts as bound only if it has the intended node.

The API server is a list of responses, because a real one does not lose them on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.attempts import binding
from scheduler_feedback.backends.kubernetes.attempts.binding import bind_all, bind_one, create_once
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Attempt, Member
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    JOB,
    NETWORK_CLASS,
    RANK,
    SLOTS,
    WORLD_SIZE,
)
from scheduler_feedback.core.job import Slot

LOST = UnreachableError("POST: no answer")
TAKEN = RefusedError("POST", 409, "Conflict", "pod train-0 is already assigned to a node")
GONE = RefusedError("GET", 404, "NotFound", "pods train-0 not found")


class Server:
    """API server that returns the listed responses and raises the listed exceptions, and repeats the last one."""

    def __init__(self, creates: list[Any], gets: list[Any] | None = None) -> None:
        self._creates, self._gets = creates, gets or []
        self.bodies: list[dict[str, Any]] = []
        self.asked: list[str] = []

    async def create(self, path: str, body: dict[str, Any]) -> bytes:
        self.asked.append(path)
        self.bodies.append(body)
        return _answer(self._creates)

    async def get(self, path: str, decoder: Any) -> Any:
        self.asked.append(path)
        return _answer(self._gets)


def _answer(answers: list[Any]) -> Any:
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(binding, "_LONGEST_PAUSE_SECONDS", 0.0)


def member(name: str = "train-0", uid: str = "uid-1", node: str = "n1") -> Member:
    return Member(f"default/{name}", uid, node, range(2), (0, 1))


def attempt(number: int = 3, *members: Member) -> Attempt:
    return Attempt("j-1", number, "gang", (Slot("n1", 0), Slot("n1", 1)), members=list(members))


def pod(uid: str = "uid-1", node: str = "n1", number: str = "3", name: str = "train-0") -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": {ATTEMPT: number}}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": node}}, Pod)


def bound(server: Server, wanted: Callable[[], bool] = lambda: True) -> tuple[str, bool]:
    """Bind the pod. Return (failure, whether it counts as bound)."""
    one = member()
    return asyncio.run(bind_one(server, attempt(3, one), one, wanted)), one.bound  # type: ignore[arg-type]


def test_a_binding_names_pod_node_attempt_and_slots() -> None:
    server = Server([b""])
    assert bound(server) == ("", True)
    (body,) = server.bodies
    assert server.asked == ["/api/v1/namespaces/default/pods/train-0/binding"]
    assert body["metadata"]["uid"] == "uid-1"
    assert body["metadata"]["annotations"] == {
        ATTEMPT: "3",
        JOB: "j-1",
        SLOTS: "0,1",
        RANK: "0",
        WORLD_SIZE: "2",
    }
    assert body["target"]["name"] == "n1"


def test_a_binding_has_the_class_of_the_gangs_traffic() -> None:
    server, one = Server([b""]), member()
    classed = attempt(3, one)
    classed.network_class = "0"
    asyncio.run(bind_one(server, classed, one, lambda: True))  # type: ignore[arg-type]
    assert server.bodies[0]["metadata"]["annotations"][NETWORK_CLASS] == "0"


def test_a_binding_with_a_lost_response_counts() -> None:
    assert bound(Server([LOST, TAKEN], [pod()])) == ("", True)
    assert bound(Server([LOST, TAKEN], [LOST, LOST, pod()])) == ("", True)


@pytest.mark.parametrize(
    "found",
    [
        pod(node="n2"),  # another scheduler has bound it, to another node
        pod(node=""),  # refused for another reason
        pod(number="2"),  # one of our earlier attempts has bound it
        pod(number=""),  # another scheduler has bound it
        pod(uid="uid-9"),  # another pod has the name now
        GONE,
    ],
)
def test_a_pod_not_bound_as_this_attempt_requested_does_not_count_as_bound(found: Pod | Exception) -> None:
    failure, is_bound = bound(Server([LOST, TAKEN], [found]))
    assert not is_bound
    assert "pod train-0" in failure and "already assigned" in failure
    # The same applies to an immediate refusal: an earlier controller may have sent the request.
    assert not bound(Server([TAKEN], [found]))[1]


def test_a_request_is_repeated_until_there_is_a_response() -> None:
    server = Server([LOST, LOST, LOST, b""])
    assert bound(server) == ("", True)
    assert len({str(body) for body in server.bodies}) == 1 and len(server.bodies) == 4


@pytest.mark.parametrize(("found", "counts"), [(pod(), True), (pod(node="n2"), False), (pod(number="2"), False)])
def test_a_cancelled_start_checks_a_binding_without_a_response(found: Pod, counts: bool) -> None:
    wanted = iter([True, False])
    failure, is_bound = bound(Server([LOST], [found]), lambda: next(wanted))
    assert is_bound is counts
    assert failure == ("" if counts else "pod train-0: the binding was cancelled")


def test_a_cancelled_start_sends_no_request() -> None:
    server = Server([b""], [pod()])
    failure, is_bound = bound(server, lambda: False)
    assert (is_bound, server.asked) == (False, []), "no binding was requested, so no pod is read"
    assert "binding was cancelled" in failure


def test_unbound_members_are_bound_and_every_failure_is_returned() -> None:
    first, second, third = member("train-0"), member("train-1", "uid-2"), member("train-2", "uid-3")
    first.bound = True
    server = Server([TAKEN], [pod(node="n9")])
    failures = asyncio.run(bind_all(server, attempt(3, first, second, third), lambda: True))  # type: ignore[arg-type]
    assert [failure.partition(":")[0] for failure in failures] == ["pod train-1", "pod train-2"]
    assert (first.bound, second.bound, third.bound) == (True, False, False)
    assert not any("train-0" in path for path in server.asked)


def test_a_pod_created_without_a_response_is_found_by_its_name() -> None:
    body = {"metadata": {"name": "probe-1"}}
    exists = RefusedError("POST", 409, "AlreadyExists", "pods probe-1 already exists")
    made = asyncio.run(create_once(Server([LOST, exists], [pod(uid="uid-7")]), "/pods", body, lambda: True))  # type: ignore[arg-type]
    assert made == "uid-7"
    with pytest.raises(RefusedError):
        asyncio.run(create_once(Server([LOST, GONE]), "/pods", body, lambda: True))  # type: ignore[arg-type]
