"""CSV file that selects the exported metrics, in dcgm-exporter's format: parsing, errors, and the agent's output."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from agent.schema.errors import ConfigError
from agent.schema.frame import Column
from exporter.prometheus.exposition import Exposition, Settings
from exporter.prometheus.metrics_file import compatibility_of, read_metrics_file
from tests.exporter.test_agent_process import agent, wait_until
from tests.exporter.test_compatibility import GPU_INFO, UUID, Made

DCGM_FORM = """\
# Format,,
# If a line starts with a '#' it is a comment,,
 # NAME, type, help,,

DCGM_FI_DEV_GPU_TEMP,  gauge, GPU temperature (in C).
,,
DCGM_FI_DEV_POWER_USAGE,\tgauge,"Power draw, in W."
DCGM_FI_DRIVER_VERSION, label, Driver Version
gangwatch_gpu_memory_used_bytes, gauge,
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    return path


def test_a_file_in_the_form_of_dcgm_exporter_is_read(tmp_path: Path) -> None:
    for text in (DCGM_FORM, "\ufeff" + DCGM_FORM.replace("\n", "\r\n")):
        found = read_metrics_file(written(tmp_path, text))
        assert found == {
            "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C).",
            "DCGM_FI_DEV_POWER_USAGE": "Power draw, in W.",
            "gangwatch_gpu_memory_used_bytes": "",
        }
    assert compatibility_of(found) == ["dcgm"] and compatibility_of({"gangwatch_gpu_info": ""}) == []
    assert compatibility_of({"node_infiniband_info": "", "rdma_x": ""}) == ["node_exporter", "rdma_exporter"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ": selects no metric"),
        ("DCGM_FI_DRIVER_VERSION, label, x", ": selects no metric"),
        ("\nDCGM_FI_DEV_GPU_TEMP, gauge", ":2: 2 fields; write NAME, TYPE, HELP"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, in C, or so", ":1: 4 fields; .*commas in quotes"),
        ("DCGM_FI_DEV_GPU_TEMP, gauges, x", ":1: DCGM_FI_DEV_GPU_TEMP: type 'gauges' is not one of counter, gauge"),
        (
            "gangwatch_gpu_power_wats, gauge, x",
            ":1: gangwatch_gpu_power_wats: .*did you mean gangwatch_gpu_power_watts",
        ),
        ("nv_power, gauge, x", ":1: nv_power: unknown metric"),
        ("node_x, gauge, a\nnode_x, gauge, b", ":2: node_x: a second time"),
        ('node_x, gauge, "a', ":1: not CSV"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"metrics.csv{expected}"):
        read_metrics_file(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.csv: No such file"):
        read_metrics_file(tmp_path / "absent.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: not UTF-8"):
        read_metrics_file(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(ConfigError, match="large: larger than 1048576 bytes"):
        read_metrics_file(tmp_path / "large")


def test_only_selected_families_are_published_with_the_files_help(caplog: pytest.LogCaptureFixture) -> None:
    labels = (("gpu", UUID),)
    made = Made(
        {
            GPU_INFO: 1.0,
            Column("gangwatch_gpu_power_watts", labels): 300.0,
            Column("gangwatch_gpu_temperature_celsius", labels): 50.0,
        },
        {Column("gangwatch_gpu_pcie_replays_total", labels): 7},
    )
    selected = {"DCGM_FI_DEV_POWER_USAGE": "Draw \\ in W", "gangwatch_gpu_pcie_replays_total": "", "DCGM_FI_DEV_X": ""}

    def names(**settings: object) -> set[str]:
        exposition = Exposition(Settings(metrics=selected, compatibility=("dcgm",), **settings))  # type: ignore[arg-type]
        with caplog.at_level(logging.INFO):
            text = exposition.body(made.layout, made.frame()).decode()
            exposition.body(made.layout, made.frame())
        assert "# HELP DCGM_FI_DEV_POWER_USAGE Draw \\\\ in W\n" in text or "deny" in settings
        return {
            line.split(" ")[2]
            for line in text.splitlines()
            if line.startswith("# TYPE") and "gangwatch_exporter_" not in line
        }

    assert names() == {"DCGM_FI_DEV_POWER_USAGE", "gangwatch_gpu_pcie_replays_total"}
    assert [record.message for record in caplog.records] == ["metrics file: no series of DCGM_FI_DEV_X"]
    assert names(allow=("gangwatch_gpu_power_*",)) == names() | {"gangwatch_gpu_power_watts"}
    assert names(deny=("DCGM_*",)) == {"gangwatch_gpu_pcie_replays_total"}
    open_metrics = Exposition(Settings(metrics=selected, compatibility=("dcgm",)), open_metrics=True)
    families = {one.name: one for one in parse_open_metrics(open_metrics.body(made.layout, made.frame()).decode())}
    assert families["DCGM_FI_DEV_POWER_USAGE"].documentation == "Draw \\ in W"


OWN = ("gangwatch_exporter_", "gangwatch_http_", "gangwatch_plugin_", "process_", "python_")
"""Beginnings of the names of metrics about the exporter's process, which a metrics file does not select."""


@pytest.mark.slow
def test_an_agent_exports_what_the_file_selects_from_the_collectors_that_run(tmp_path: Path) -> None:
    path = written(tmp_path, DCGM_FORM + "gangwatch_rdma_port_state, gauge,\ngangwatch_host_load1, gauge,\n")
    options = ("--metrics-file", str(path), "--no-collector.rdma", "--collector.nfs")
    with agent(tmp_path, "[agent.collectors]\nnfs = false\npcie = false\n", *options) as one:
        assert one.next_notification().startswith("READY=1")
        wait_until(lambda: "DCGM_FI_DEV_GPU_TEMP" in one.names(), "GPUs")
        chosen = {name for name in one.names() if not name.startswith(OWN)}
        expected = {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "gangwatch_gpu_memory_used_bytes"}
        assert chosen - {"gangwatch_host_load1"} == expected
        log = one.log()
        assert "rdma: disabled by the configuration" in log and "pcie: disabled" in log and "nfs: disabled" not in log

        path.write_text("gangwatch_agent_threads, gauge, Threads.\n")
        one.process.send_signal(1)
        wait_until(lambda: "gangwatch_agent_threads" in one.names(), "the changed file")
        assert "DCGM_FI_DEV_GPU_TEMP" not in one.names()
        path.write_text("gangwatch_agent_thread, gauge, Threads.\n")
        one.process.send_signal(1)
        wait_until(lambda: "did you mean gangwatch_agent_threads" in one.log(), "the complaint")
        assert "gangwatch_agent_threads" in one.names(), "an invalid file is not applied"
