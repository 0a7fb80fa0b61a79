"""Resource requests of a pod, by Kubernetes' rule for init containers and sidecars. No API server.

https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import amount, parse_quantity, requests_of


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, **more}


def cpu_of(containers: list[Any], init: list[Any], overhead: dict[str, str] | None = None) -> int:
    """Return the CPU request of a pod with these containers, in thousandths."""
    spec = {"containers": containers, "initContainers": init, "overhead": overhead}
    return requests_of(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod))["cpu"]


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("containers", "init", "wanted"),
    [
        ([container("2"), container("1")], [], 3000),
        ([container("2")], [container("8"), container("1")], 8000),  # the largest init container, in any order
        ([container("2")], [container("1"), container("8")], 8000),
        ([container("2")], [container("1")], 2000),  # they have ended before the others begin
        ([container("2")], [container("1", **SIDECAR)], 3000),  # a sidecar runs next to the others
        ([container("1")], [container("3", **SIDECAR)], 4000),  # and is counted once
        ([container("2")], [container("1", **SIDECAR), container("4")], 5000),  # with the sidecar before it
        ([container("2")], [container("4"), container("1", **SIDECAR)], 4000),  # the sidecar started later
    ],
)
def test_requests_of_pods_follow_the_rule_of_kubernetes(containers: list[Any], init: list[Any], wanted: int) -> None:
    assert cpu_of(containers, init) == wanted


def test_the_overhead_of_a_runtime_is_added() -> None:
    assert cpu_of([container("2")], [container("8")], {"cpu": "250m"}) == 8250


def test_a_limit_without_a_request_is_a_request() -> None:
    limited = {"name": "m", "resources": {"limits": {"cpu": "3", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [limited]}}, Pod)
    assert requests_of(pod) == {"cpu": 1000, "memory": 2**30, "pods": 1}


@pytest.mark.parametrize(
    ("text", "units"), [("1", 1), ("1500m", 2), ("2Gi", 2 * 2**30), ("1e3", 1000), ("0.1", 1), ("5.", 5), (".5k", 500)]
)
def test_quantities_are_rounded_up_to_whole_units(text: str, units: int) -> None:
    assert amount("memory", text) == units
    assert amount("cpu", "1500m") == 1500


@pytest.mark.parametrize("text", ["", "1.2.3", "1KB", "Gi", "one", "1 Gi", "--1"])
def test_a_malformed_quantity_is_named(text: str) -> None:
    with pytest.raises(BackendError, match="is not a quantity"):
        parse_quantity(text)
