"""`gangwatch check` on a node: counters that can be read, counters that cannot, and missing permissions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gangwatch.commands.check import check
from gangwatch.configuration.sections import AgentSection
from gangwatch.health import collector_survey
from tests import needs
from tests.fakes.nvml.build import build as build_nvml
from tests.fakes.nvml.control import FakeNvml
from tests.fakes.sysfs.tree import Tree
from tests.fakes.sysfs.tree import build as build_tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return build_tree(tmp_path / "sys", nics=2, gpus=2)


def section(tree: Tree, **more: object) -> AgentSection:
    root = str(tree.root)
    given = {"nvml_library": "/absent/libnvidia-ml.so.1", "kubelet_socket": "", "kernel_log": str(tree.kernel_log)}
    return AgentSection(sysfs_root=root, proc_root=root, **{**given, **more})  # type: ignore[arg-type]


def by_name(found: tuple[collector_survey.Finding, ...]) -> dict[str, collector_survey.Finding]:
    return {finding.name: finding for finding in found}


def test_readable_counters_are_counted_and_absent_ones_have_a_reason(tree: Tree) -> None:
    found = by_name(collector_survey.survey(section(tree)))
    assert found["counters: host"].state == "found"
    assert found["counters: rdma-ethtool"].detail.startswith("2 x: ")
    assert found["counters: kubelet"].state == "missing"
    assert found["right: kernel log"].state == "found"


def test_gpus_of_the_fake_library_are_read(tree: Tree, tmp_path: Path) -> None:
    needs.component("gcc", "gcc")
    library = build_nvml(tmp_path)
    fake = FakeNvml(library)
    fake.reset("h100")
    found = by_name(collector_survey.survey(section(tree, nvml_library=str(library))))
    assert found["counters: gpu"].state == "found"
    assert found["counters: gpu"].detail.startswith("8 x: ")
    reported, _, missing = found["GPU features"].detail.partition("; not reported by these GPUs, ")
    assert "profiling, ECC" in reported and "NVLink fabric" in reported and missing.endswith(": C2C")
    fake.reset("geforce")
    reported, _, missing = by_name(collector_survey.survey(section(tree, nvml_library=str(library))))[
        "GPU features"
    ].detail.partition("; not reported by these GPUs, ")
    assert "profiling, ECC, row remapping" in missing and "NVLink" in missing and "NVLink" not in reported
    fake.reset()


def test_a_hanging_driver_is_reported_without_waiting(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.component("gcc", "gcc")
    library = build_nvml(tmp_path)
    fake = FakeNvml(library)
    fake.reset("h100")
    fake.set_delay(0.5)
    monkeypatch.setattr(collector_survey, "SURVEY_SECONDS", 1.0)
    found = by_name(collector_survey.survey(section(tree, nvml_library=str(library))))
    assert found["collectors"].state == "limited"
    assert "has not returned within 1 s" in found["collectors"].detail
    fake.reset()


def test_a_missing_permission_is_named_with_its_remedy(tree: Tree) -> None:
    found = by_name(collector_survey.rights(section(tree, kernel_log="/absent/kmsg")))
    assert found["right: kernel log"].state == "missing"
    assert "CAP_SYSLOG" in found["right: kernel log"].remedy
    socket = tree.root / "kubelet.sock"
    socket.touch()
    found = by_name(collector_survey.rights(section(tree, kubelet_socket=str(socket))))
    assert found["right: kubelet"].state == "found"
    if os.getuid():
        socket.chmod(0)
        assert (
            by_name(collector_survey.rights(section(tree, kubelet_socket=str(socket))))["right: kubelet"].state
            == "missing"
        )


def run(tree: Tree, *options: str) -> Result:
    root = str(tree.root)
    configuration = tree.root / "gangwatch.toml"
    configuration.write_text("[agent]\nkubelet_socket = ''\n")
    return CliRunner().invoke(
        check,
        [
            *("--state", root, "--config", str(configuration), "--sysfs-root", root, "--proc-root", root),
            *("--nvml-library", "/absent/lib.so", "--kernel-log", str(tree.kernel_log), *options),
        ],
    )


def test_check_prints_one_document_and_exits_by_the_required_items(tree: Tree) -> None:
    result = run(tree, "--json")
    assert result.exit_code == 0
    names = {finding["name"]: finding["state"] for finding in json.loads(result.stdout)["findings"]}
    assert names["rdma"] == "found" and names["nvml"] == "missing" and names["counters: host"] == "found"
    assert run(tree, "--require", "rdma", "--require", "counters: host").exit_code == 0
    lacking = run(tree, "--require", "nvml")
    assert lacking.exit_code == 1
    assert str(lacking.exception) == "required and not found: nvml (missing)"
    assert run(tree, "--require", "nvm").exit_code == 2
