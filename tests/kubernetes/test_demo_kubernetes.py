"""`make demo-kubernetes` on real kubelets: its report must be correct under any load of the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.real_kubelets import RealCluster
from tests.needs import absent

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(1200), pytest.mark.slow, pytest.mark.serial]


def test_a_trained_gang_leaves_a_pod_with_a_cpu_quota_and_resumes_from_its_volume(tmp_path: Path) -> None:
    if (checked := RealCluster(tmp_path / "none").command("check")).returncode != 0:
        absent(checked.stderr.strip())
    report_file = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.kubernetes_demo", "--report", str(report_file), "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert report_file.exists(), done.stderr
    report = json.loads(report_file.read_text())
    assert report["false_verdicts"] == 0, report
    assert report["training"]["weights_match_uninterrupted"] is True, report
    assert (done.returncode == 0) == report["passed"] == (report["failures"] == [])
    if report["verdict"] is None:
        assert report["abstentions"], "without a verdict the report must list an abstention"
        return
    assert report["verdict"]["correct"] is True
    assert report["migrations"] == 1
    assert report["training"]["steps_repeated"] == 0
