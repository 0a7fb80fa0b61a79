"""Rights that a leader needs, and their review. No API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent.schema.clock import ManualClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Access, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.lease import RIGHTS_SECONDS, Leadership
from scheduler_feedback.backends.kubernetes.api_server.rights import (
    RIGHTS,
    essential_rights,
    in_words,
    missing_rights,
)
from scheduler_feedback.backends.kubernetes.kubernetes_backend import PATHS
from tests.kubernetes.little_api import LittleApi, refused

SCHEDULES = essential_rights(advise=False, upstream_groups=False)
BINDS = ("", "pods/binding", "create")


class Reviewer(LittleApi):
    """API server that reviews rights: all but `denied` are allowed. It answers with `response` if there is one."""

    def __init__(self, *denied: tuple[str, str, str]) -> None:
        super().__init__()
        self.denied, self.response = set(denied), b""

    async def _ask(
        self, method: str, path: str, body: Any = None, kind: str = "", parameters: Mapping[str, str] | None = None
    ) -> bytes:
        self.done.append((method, path))
        self.bodies.append(body)
        for failure in self.fails.get((method, path), ()):
            assert failure is not None
            raise failure
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        allowed = (asked["group"], resource, asked["verb"]) not in self.denied
        return self.response or json.dumps({"kind": body["kind"], "status": {"allowed": allowed}}).encode()


SELF = ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")


def test_a_leader_needs_the_rights_of_every_watch() -> None:
    needed = set(essential_rights(advise=False, upstream_groups=True))
    for path in PATHS.values():
        *prefix, _, resource = path.strip("/").split("/")
        group = prefix[1] if len(prefix) > 1 else ""
        assert {(group, resource, "list"), (group, resource, "watch")} <= needed
    assert set(SCHEDULES) <= set(RIGHTS), "the chart grants them, see tests/kubernetes/test_check.py"
    assert set(essential_rights(advise=True, upstream_groups=False)) < set(SCHEDULES)


def test_missing_rights_are_named_as_kubectl_names_them() -> None:
    groups = ("scheduling.x-k8s.io", "podgroups", "list")
    api = Reviewer(BINDS, groups)
    assert in_words(asyncio.run(missing_rights(api, SCHEDULES))) == [
        "list podgroups.scheduling.x-k8s.io",
        "create pods/binding",
    ]
    assert set(api.done) == {SELF}
    assert asyncio.run(missing_rights(api, [BINDS], user="ada")) == [BINDS]
    assert api.bodies[-1]["spec"]["user"] == "ada" and api.bodies[-1]["kind"] == "SubjectAccessReview"


@pytest.mark.parametrize("response", [b"{", b'{"status": {"allowed": "yes"}}', b"\xff"])
def test_an_unusable_response_is_an_error(response: bytes) -> None:
    api = Reviewer()
    api.response = response
    with pytest.raises(BackendError, match="selfsubjectaccessreviews: cannot decode the response"):
        asyncio.run(missing_rights(api, [BINDS]))


def reviewed(leadership: Leadership, api: Reviewer) -> str:
    async def review() -> None:
        leadership._check_rights(api)
        if leadership._review is not None:
            await leadership._review

    asyncio.run(review())
    return leadership.missing_rights()


def test_rights_are_reviewed_once_a_minute_and_at_once_while_one_is_missing() -> None:
    clock, api = ManualClock(), Reviewer()
    leadership = Leadership(Access("http://none"), "default", "gangwatch", "x", clock=clock, needs=[BINDS])
    assert reviewed(leadership, api) == reviewed(leadership, api) == ""
    assert len(api.done) == 1
    api.denied.add(BINDS)
    clock.advance(RIGHTS_SECONDS)
    assert reviewed(leadership, api) == "its user may not create pods/binding"
    api.fails[SELF] = [refused(500)]
    assert reviewed(leadership, api) == "its user may not create pods/binding", "a failed review changes nothing"
    assert leadership.measures() == [("gangwatch_missing_rights", (), 1.0)]
    del api.fails[SELF]
    api.denied.clear()
    assert reviewed(leadership, api) == ""
    assert leadership.measures() == [("gangwatch_missing_rights", (), 0.0)]


def test_a_server_that_refuses_reviews_does_not_make_a_standby_unready() -> None:
    api = Reviewer()
    api.fails[SELF] = [refused(403)]
    leadership = Leadership(Access("http://none"), "default", "gangwatch", "x", clock=ManualClock(), needs=[BINDS])
    assert reviewed(leadership, api) == ""
    with pytest.raises(RefusedError):
        asyncio.run(missing_rights(api, [BINDS]))
