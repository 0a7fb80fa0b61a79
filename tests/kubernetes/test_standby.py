"""Readiness of a standby: it is ready only if it could lead, as far as its rights and the lease show."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gangwatch.commands.kubernetes_standby import standing_by
from gangwatch.configuration.config_file import load
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.api_server.rights import Right, essential_rights
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, wait_for
from tests.kubernetes.test_chart_installed import PATHS as CHART_PATHS
from tests.kubernetes.test_chart_installed import token_of
from tests.kubernetes.test_check import NAMESPACE, chart

__all__ = ["chart"]

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

SCHEDULES = essential_rights(advise=False, upstream_groups=False)


@contextmanager
def standby(access: Access, needs: Sequence[Right] = SCHEDULES) -> Iterator[tuple[Leadership, str]]:
    """Yield a standby's election and the URL of its endpoints."""
    leadership = Leadership(access, NAMESPACE, "gangwatch", "standby", needs=needs)
    with standing_by(load(None, {"controller.port": 0}), leadership.obstacle) as url:
        assert readyz(url) == (503, "lease gangwatch/gangwatch has not been read yet")
        leadership.start()
        try:
            yield leadership, url
        finally:
            leadership.stop()


def readyz(url: str) -> tuple[int, str]:
    """Return the status and the error of /readyz."""
    try:
        with urlopen(f"{url}/readyz", timeout=30) as response:
            return response.status, str(json.loads(response.read()).get("error", ""))
    except HTTPError as refused:
        with refused:
            return refused.code, str(json.loads(refused.read())["error"])


@contextmanager
def led(access: Access) -> Iterator[None]:
    """Let another controller lead."""
    leader = Leadership(access, NAMESPACE, "gangwatch", "leader")
    leader.start()
    try:
        assert leader.wait(30)
        yield
    finally:
        leader.stop()


def token(api: Api) -> str:
    return wait_for("the account has a token", lambda: token_of(api))


def test_a_standby_without_rights_to_the_lease_is_not_ready_and_alive(
    plane: ControlPlane, cluster: Cluster, chart: Api
) -> None:
    role = f"{CHART_PATHS['Role']}/gangwatch-controller"
    with led(plane.access()), standby(plane.access(token(chart))) as (_, url):
        wait_for("it is ready", lambda: readyz(url)[0] == 200)
        rules = chart.get(role)["rules"]
        chart.patch(role, {"rules": [rule for rule in rules if "leases" not in rule["resources"]]})
        wait_for("it is not", lambda: readyz(url)[0] == 503)
        error = readyz(url)[1]
        assert error.startswith("lease gangwatch/gangwatch cannot be acquired: ")
        assert "gangwatch-controller" in error and 'resource "leases"' in error
        with urlopen(f"{url}/healthz", timeout=30) as response:
            assert response.status == 200
        chart.patch(role, {"rules": rules})
        wait_for("it is ready again", lambda: readyz(url) == (200, ""))


def test_a_standby_without_a_right_that_leading_needs_is_not_ready_and_names_it(
    plane: ControlPlane, cluster: Cluster, chart: Api, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"{CHART_PATHS['ClusterRole']}/gangwatch-controller"

    def without(rules: list[Any], resource: str) -> list[Any]:
        kept = [rule | {"resources": [one for one in rule["resources"] if one != resource]} for rule in rules]
        return [rule for rule in kept if rule["resources"]]

    rules = chart.get(role)["rules"]
    chart.patch(role, {"rules": without(without(rules, "podgroups"), "pods/binding")})
    with led(plane.access()), caplog.at_level(logging.WARNING), standby(plane.access(token(chart))) as (_, url):
        expected = "its user may not list podgroups.scheduling.x-k8s.io, watch podgroups.scheduling.x-k8s.io"
        wait_for("it names both", lambda: readyz(url) == (503, f"{expected}, create pods/binding"))
        assert len([line for line in caplog.messages if "this standby could not lead" in line]) == 1
        chart.patch(role, {"rules": rules})
        wait_for("it is ready again", lambda: readyz(url) == (200, ""))


def test_a_standby_of_an_advisor_needs_no_rights_of_scheduling(
    plane: ControlPlane, cluster: Cluster, chart: Api
) -> None:
    advisor = essential_rights(advise=True, upstream_groups=False)
    role = f"{CHART_PATHS['ClusterRole']}/gangwatch-controller"
    chart.patch(role, {"rules": [rule for rule in chart.get(role)["rules"] if rule["apiGroups"] == [""]]})
    with led(plane.access()), standby(plane.access(token(chart)), advisor) as (_, url):
        wait_for("it is ready", lambda: readyz(url) == (200, ""))


def test_a_standby_is_not_ready_while_the_api_server_is_away(plane: ControlPlane, cluster: Cluster) -> None:
    if cluster.api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.api.create("/api/v1/namespaces", body)
    with led(plane.access()), standby(plane.access()) as (_, url):
        wait_for("it is ready", lambda: readyz(url) == (200, ""))
        plane.kill_server()
        try:
            wait_for("it is not ready", lambda: readyz(url)[0] == 503)
        finally:
            plane.start_server()
        wait_for("it is ready again", lambda: readyz(url)[0] == 200)
