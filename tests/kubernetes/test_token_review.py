"""Login with Kubernetes tokens: the API server identifies the user, and its RBAC determines gangwatch's role."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.api.access import token_review
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.principal import AccessError, Role
from scheduler_feedback.api.access.token_review import Reviewed, Reviewing, TokenReviews
from scheduler_feedback.api.access.tokens import OWN_TOKENS, Tokens
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, wait_for
from tests.security.asking import JOB, Browser, People, people

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

NAMESPACE = "default"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
AUDIENCE = "gangwatch"


class Accounts:
    """Service accounts with tokens and RBAC rights."""

    def __init__(self, plane: ControlPlane) -> None:
        self.api = Api(plane.access())
        self._made: list[str] = []

    def account(self, name: str, role: str = "") -> str:
        """Create a service account, and return its user's name. role: gangwatch role that a ClusterRole grants it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        if self.api.find(f"{path}/{name}") is None:
            self.api.create(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
            self._made.append(f"{path}/{name}")
        if role:
            self.grant(name, role)
        return f"system:serviceaccount:{NAMESPACE}:{name}"

    def grant(self, name: str, role: str) -> None:
        rule = {"apiGroups": ["gangwatch.io"], "resources": ["roles"], "resourceNames": [role], "verbs": ["use"]}
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{name}-{role}"}}
        self.api.create(f"{RBAC}/clusterroles", kind | {"kind": "ClusterRole", "rules": [rule]})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{name}-{role}"}
        binding = kind | {"kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference}
        self.api.create(f"{RBAC}/clusterrolebindings", binding)
        self._made += [f"{RBAC}/clusterrolebindings/{name}-{role}", f"{RBAC}/clusterroles/{name}-{role}"]
        wait_for("the API server's authorizer has seen the binding", lambda: self._may(name, role))

    def _may(self, name: str, role: str) -> bool:
        what = {"group": "gangwatch.io", "resource": "roles", "name": role, "verb": "use"}
        spec = {"user": f"system:serviceaccount:{NAMESPACE}:{name}", "resourceAttributes": what}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]["allowed"])

    def token(self, name: str, *audiences: str) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"expirationSeconds": 600} | ({"audiences": list(audiences)} if audiences else {})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.api.create(path, request)["status"]["token"])

    def close(self) -> None:
        for path in self._made:
            self.api.delete(path)
        self.api.close()


@pytest.fixture
def accounts(plane: ControlPlane) -> Any:
    made = Accounts(plane)
    yield made
    made.close()


def review(access: Access, *tokens: str, **more: Any) -> list[Reviewed]:
    async def ask() -> list[Reviewed]:
        reviews = TokenReviews(Reviewing(access, **more))
        try:
            return [await reviews.check(token) for token in tokens]
        finally:
            await reviews.close()

    return asyncio.run(ask())


def test_the_api_server_gives_the_user_and_its_rbac_the_role(accounts: Accounts, access: Access) -> None:
    users = {role: accounts.account(f"a-{role or 'nobody'}", role) for role in ("viewer", "submitter", "operator", "")}
    tokens = {role: accounts.token(f"a-{role or 'nobody'}") for role in users}
    found = review(access, *tokens.values())
    roles = (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ANONYMOUS)
    assert found == [Reviewed(user, role) for user, role in zip(users.values(), roles, strict=True)]
    group = f"system:serviceaccounts:{NAMESPACE}"
    by_group = review(access, tokens[""], roles={group: Role.SUBMITTER}, access_review=False)
    assert by_group == [Reviewed(users[""], Role.SUBMITTER)]
    assert review(access, tokens["operator"], access_review=False)[0].role is Role.ANONYMOUS


def test_only_tokens_for_gangwatch_are_accepted(accounts: Accounts, access: Access) -> None:
    """A pod's token for the API server or for another service must be refused."""
    user = accounts.account("b-account", "operator")
    ours, servers, others = (accounts.token("b-account", *one) for one in ((AUDIENCE,), (), ("vault",)))
    found = review(access, ours, servers, others, audiences=(AUDIENCE,))
    assert found == [Reviewed(user, Role.OPERATOR), Reviewed("", Role.ANONYMOUS), Reviewed("", Role.ANONYMOUS)]
    assert review(access, ours, others)[0].user == "", "without audiences the API server's own audience would be meant"
    head, claims, signature = ours.split(".")
    forged = (f"{head}.{claims}.", f"{head}.{claims}.{signature[:-4]}AAAA", "nonsense", "é", "x" * 9000)
    assert {one.user for one in review(access, *forged, audiences=(AUDIENCE,))} == {""}


def test_a_review_is_cached_for_a_minute_and_a_deleted_account_ends(accounts: Accounts, access: Access) -> None:
    user = accounts.account("c-account", "viewer")
    token = accounts.token("c-account")
    now = 0.0

    async def ask() -> None:
        nonlocal now
        reviews = TokenReviews(Reviewing(access), lambda: now)
        try:
            assert (await reviews.check(token)).user == user
            accounts.api.delete(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/c-account")
            assert (await reviews.check(token)).user == user and reviews.knows(token)
            deadline = time.monotonic() + 30
            while (await reviews.check(token)).user:  # the API server caches its own reviews for ten seconds
                assert time.monotonic() < deadline
                await asyncio.sleep(0.5)
                now += token_review.YES_SECONDS + 1
            assert now > 0 and not reviews.knows(token)
            same = await asyncio.gather(*(reviews.check(f"flood-{index % 5}") for index in range(500)))
            assert {one.user for one in same} == {""}
        finally:
            await reviews.close()

    asyncio.run(ask())


def test_an_account_without_the_right_to_review_tokens_gets_an_error(
    accounts: Accounts, plane: ControlPlane, access: Access
) -> None:
    accounts.account("d-account")
    powerless = plane.access(accounts.token("d-account"))
    with pytest.raises(AccessError, match="refused the token review") as refused:
        review(powerless, "anything")
    assert refused.value.status == 503
    with pytest.raises(AccessError, match="did not answer the token review") as away:
        review(Access("https://127.0.0.1:1", token="x", ca=access.ca), "anything")
    assert away.value.status == 503


@pytest.fixture
def site(tmp_path: Path, access: Access) -> Any:
    folder = tmp_path / "state"
    reviewing = Reviewing(access, (AUDIENCE,))
    authentication = Authentication(Tokens(folder / "token", own_file=folder / OWN_TOKENS), reviewing=reviewing)
    with people(folder, authentication) as made:
        yield made


def test_a_service_account_submits_and_manages_its_own_jobs(site: People, accounts: Accounts) -> None:
    user = accounts.account("e-robot", "submitter")
    bearer = {"Authorization": f"Bearer {accounts.token('e-robot', AUDIENCE)}"}
    made = site.ask("", "POST", "/api/jobs", JOB | {"user": "root"}, **bearer)
    assert made.status == 201
    job = made.document["job"]
    assert site.ask("", "GET", f"/api/jobs/{job}").document["user"] == user
    assert site.ask("", "POST", f"/api/jobs/{site.submit('ana')}/cancel", {}, **bearer).status == 403
    assert site.ask("", "POST", f"/api/jobs/{job}/cancel", {}, **bearer).status == 200
    line = site.audit()[-1]
    assert (line["user"], line["role"], line["means"]) == (user, "submitter", "Kubernetes")
    accounts.account("f-stranger")
    stranger = {"Authorization": f"Bearer {accounts.token('f-stranger', AUDIENCE)}"}
    refused = site.ask("", "GET", "/api/whoami", **stranger)
    assert refused.status == 403 and "resourceName viewer, submitter or operator" in refused.error
    browser = Browser(site.site.port)
    assert browser.log_in(accounts.token("e-robot", AUDIENCE)).status == 303
    assert f"{user} (submitter)" in browser.load("/")


def test_invalid_tokens_are_rate_limited_before_they_reach_the_api_server(
    site: People, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = 0
    ask = TokenReviews._ask

    async def counted(reviews: TokenReviews, token: str) -> Reviewed:
        nonlocal requests
        requests += 1
        return await ask(reviews, token)

    monkeypatch.setattr(TokenReviews, "_ask", counted)
    accounts.account("g-robot", "submitter")
    bearer = {"Authorization": f"Bearer {accounts.token('g-robot', AUDIENCE)}"}
    assert site.ask("", "GET", "/api/whoami", **bearer).status == 200
    statuses = [site.ask("", "GET", "/api/whoami", Authorization=f"Bearer guess-{n}").status for n in range(60)]
    assert requests <= 20 and statuses.count(429) >= 40
    assert site.ask("", "GET", "/api/whoami", **bearer).status == 200, "a user who logged in before is not locked out"
