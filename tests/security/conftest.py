"""Fixtures: the control plane of tests/kubernetes, for faults between it and a controller."""

from __future__ import annotations

from tests.kubernetes.conftest import access, cluster, folder, kubelet, plane

__all__ = ["access", "cluster", "folder", "kubelet", "plane"]
