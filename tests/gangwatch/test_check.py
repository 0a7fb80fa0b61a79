"""`gangwatch check`: the report is correct, and names what provides each missing item."""

from __future__ import annotations

import json
import os
import socket
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from exporter.plugins.entry_points import GROUP
from gangwatch.cli import cli
from gangwatch.configuration.sections import ExporterSection
from gangwatch.health import machine, plugin_health
from gangwatch.state_folder import StateFolder
from tests.exporter.plugins import bad_collectors


def test_check_describes_this_machine_in_full(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "--json", "--state", str(tmp_path / "state")])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    names = {finding["name"] for finding in found["findings"]}
    assert {"pressure", "schedstat", "children", "cgroup v2", "sealed memory", "nvml", "rdma", "state folder"} <= names
    assert {"pidfd", "promtool", "prometheus", "port 9420"} <= names
    for finding in found["findings"]:
        assert finding["detail"], finding
        assert finding["state"] == "found" or finding["remedy"] or finding["name"] == "nvml", finding
    assert found["processors"] == len(os.sched_getaffinity(0))
    assert not (tmp_path / "state").exists(), "check creates no state folder"


def test_check_prints_a_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "--state", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "sealed memory" in result.stdout
    assert "REMEDY" in result.stdout


def test_plug_ins_and_files_that_are_not_served_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        name: EntryPoint(name, f"{bad_collectors.__name__}:{name}", GROUP)
        for name in ("Good", "Raises", "fails_to_load")
    }
    monkeypatch.setattr("exporter.plugins.plugins.found_plugins", lambda: entries)
    (tmp_path / "good.prom").write_text("site_good 1\n")
    (tmp_path / "bad.prom").write_text("site_bad one\n")
    found = plugin_health.findings(ExporterSection(textfile_folder=str(tmp_path)))
    assert [finding.name for finding in found] == [
        "plug-ins",
        "plugin Raises",
        "plugin fails_to_load",
        f"textfile {tmp_path}/bad.prom",
    ]
    assert found[0].detail == "1 collectors of packages and 1 *.prom files are served, 8 series"
    assert "ZeroDivisionError: no rack" in found[1].detail and "no licence" in found[2].detail
    assert "line 1" in found[3].detail
    assert all(finding.state == "limited" and finding.remedy for finding in found)
    monkeypatch.setattr("exporter.plugins.plugins.found_plugins", dict)
    (alone,) = plugin_health.findings(ExporterSection())
    assert alone.state == "found" and "textfile_folder is not set" in alone.detail


def test_on_an_empty_machine_each_missing_item_names_its_remedy(tmp_path: Path) -> None:
    results = (
        machine.pressure(tmp_path),
        machine.schedstat(tmp_path),
        machine.children_file(tmp_path),
        machine.delay_accounting(tmp_path),
        machine.control_groups(tmp_path, tmp_path / "cgroup"),
        machine.rdma(tmp_path),
    )
    assert [finding.state for finding in results] == ["missing"] * len(results)
    assert all(finding.remedy for finding in results)


def test_schedstat_with_only_zeros_is_reported_missing(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "schedstat").write_text("0 0 0\n")
    assert machine.schedstat(tmp_path).state == "missing"
    (tmp_path / "self" / "schedstat").write_text("12345 67 8\n")
    assert machine.schedstat(tmp_path).state == "found"


def test_cgroups_that_are_not_delegated_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:cpu:/x\n0::/user.slice/mine\n")
    mount = tmp_path / "cgroup"
    own = mount / "user.slice" / "mine"
    own.mkdir(parents=True)
    (mount / "cgroup.controllers").touch()
    assert machine.control_groups(tmp_path, mount).state == "limited"
    (own / "cgroup.procs").touch()
    assert "cgroup.kill" in machine.control_groups(tmp_path, mount).detail
    (own / "cgroup.kill").touch()
    assert machine.control_groups(tmp_path, mount).state == "found"


def test_rdma_devices_are_named(tmp_path: Path) -> None:
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "class" / "infiniband" / name).mkdir(parents=True)
    assert machine.rdma(tmp_path).detail == "2 devices: mlx5_0, mlx5_1"


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        assert machine.port(number, StateFolder(tmp_path)).state == "missing"
    assert machine.port(number, StateFolder(tmp_path)).state == "found"


def test_sockets_of_a_long_state_folder_are_created_elsewhere(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    assert "step sockets in /tmp" in machine.state_folder(StateFolder(long)).detail
