"""The chart's objects for the Prometheus operator, validated by a real API server with the operator's CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import yaml

from scheduler_feedback.backends.kubernetes.api_server.client import Access, RefusedError
from tests import needs
from tests.deploy.test_chart import VALUES, cache_folder, render
from tests.kubernetes.harness import Api, wait_for

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED = "/apis/monitoring.coreos.com/v1/{}"
PLURALS = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
PODS = ("podMonitor.enabled=true", "serviceMonitor.enabled=false", "prometheusRule.enabled=true")
SERVICES = ("podMonitor.enabled=false", "serviceMonitor.enabled=true", "prometheusRule.enabled=true")


@pytest.fixture(scope="module")
def operated(plane: Any) -> Iterator[Api]:
    """API server with the operator's CRDs, which are removed afterwards because other tests need a cluster without
    them."""
    files = sorted((cache_folder() / "monitoring").glob("*.yaml"))
    if not files:
        needs.absent("the operator's definitions are absent: python packaging/kubernetes/monitoring.py fetches them")
    access: Access = plane.access()
    api = Api(access)
    names = []
    for file in files:
        body = yaml.safe_load(file.read_text())
        names.append(body["metadata"]["name"])
        api.create(DEFINITIONS, body)
    for plural in PLURALS.values():
        wait_for(f"{plural} are served", partial(api.find, SERVED.format(plural)))
    yield api
    for name in names:
        api.delete(f"{DEFINITIONS}/{name}")
        wait_for(f"{name} is gone", lambda name=name: api.find(f"{DEFINITIONS}/{name}") is None)
    api.close()


def taken(api: Api, body: dict[str, Any]) -> None:
    """Create the object in a dry run.

    Raises RefusedError for a field that the schema lacks, or a value that it does not allow.
    """
    path = f"/apis/monitoring.coreos.com/v1/namespaces/default/{PLURALS[body['kind']]}"
    body = deepcopy(body)
    body["metadata"]["namespace"] = "default"
    api.create(f"{path}?dryRun=All&fieldValidation=Strict", body)


def monitoring_objects(*values: str) -> list[dict[str, Any]]:
    return [body for body in render(*values) if body["kind"] in PLURALS]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_the_operator_takes_what_the_chart_asks_of_it(operated: Api, values: list[str]) -> None:
    objects = [*monitoring_objects(*values, *PODS), *monitoring_objects(*values, *SERVICES)]
    assert {body["kind"] for body in objects} == set(PLURALS)
    for body in objects:
        taken(operated, body)


@pytest.mark.parametrize("kind", PLURALS)
def test_the_operator_s_schema_refuses_unknown_fields(operated: Api, kind: str) -> None:
    body = next(one for one in (*monitoring_objects(*PODS), *monitoring_objects(*SERVICES)) if one["kind"] == kind)
    body["spec"]["gangwatch"] = True
    with pytest.raises(RefusedError, match=r"unknown field .*gangwatch"):
        taken(operated, body)
    body = deepcopy(monitoring_objects("podMonitor.enabled=true")[0])
    body["spec"]["podMetricsEndpoints"][0]["interval"] = "soon"
    with pytest.raises(RefusedError, match="interval"):
        taken(operated, body)
