"""Fixtures of the Kubernetes tests: one control plane for all tests, and an empty cluster for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Api, Cluster, install_crds
from tests.kubernetes.real_site import Site, bare_site

WITH_PLUGINS = ("test_cluster_life.py", "test_mpirun.py")
"""Tests with device plug-ins on the one cluster with real kubelets. Other tests of this cluster run before them: a
kubelet that has had a device plug-in gives no GPUs without it."""

LAST = "test_uninstalling_leaves_nothing"
"""Test that removes the chart from that cluster."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.name == LAST, item.path.name in WITH_PLUGINS))


@pytest.fixture(scope="session")
def bare() -> Iterator[Site]:
    """The one cluster with real kubelets of all tests, without device plug-ins. A start and a removal take a minute."""
    with bare_site() as made:
        yield made


@pytest.fixture(scope="session")
def site(bare: Site) -> Site:
    """The same cluster with device plug-ins and the chart."""
    bare.complete()
    return bare


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("bed")) as started:
        api = Api(started.access())
        install_crds(api)
        api.close()
        yield started


@pytest.fixture
def access(plane: ControlPlane) -> Access:
    return plane.access()


@pytest.fixture
def kubelet(access: Access) -> Iterator[FakeKubelet]:
    with FakeKubelet(access) as fake:
        yield fake


@pytest.fixture
def cluster(access: Access, kubelet: FakeKubelet) -> Iterator[Cluster]:
    """An empty cluster. After the test, all objects are deleted while the fake kubelet still runs to confirm it."""
    api = Api(access)
    made = Cluster(api)
    yield made
    made.clear()
    api.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"
