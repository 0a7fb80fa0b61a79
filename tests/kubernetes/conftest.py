"""Fixtures of the Kubernetes tests: one control plane for all tests, and an empty cluster for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Api, Cluster, install_crds


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
