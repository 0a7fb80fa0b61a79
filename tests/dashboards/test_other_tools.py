"""Validation of the dashboards by Grafana's own schema, and by grafana-dashboards-builder in its own environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from agent.schema.errors import DashboardError
from dashboards.loading import load_all
from gangwatch.cli import cli
from tests import needs

ROOT = Path(__file__).parents[2]
SCHEMA = Path(__file__).parent / "grafana-13.2.3.schema.json"
"""Generated from @grafana/schema 13.2.3 (Apache-2.0, Grafana Labs) by packaging/grafana-schema.sh."""

BEYOND = {
    # Fields that Grafana reads and its schema lacks: those of the Prometheus data source for annotations and variables.
    "annotations": {"expr", "textFormat", "titleFormat"},
    "templating": {"auto", "auto_count", "auto_min", "definition"},
}


def within_schema(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the fields that the schema lacks."""
    made = dict(document)
    for key, beyond in BEYOND.items():
        made[key] = {"list": [{k: v for k, v in one.items() if k not in beyond} for one in document[key]["list"]]}
    return made


def test_every_dashboard_is_valid_by_grafanas_schema() -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    for _, name, board in load_all():
        errors = [
            f"{name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
            for error in validator.iter_errors(within_schema(board.to_json_data()))
        ]
        assert not errors, "\n".join(errors)


def test_the_schema_reports_an_invalid_dashboard() -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    document = within_schema(next(board for _, _, board in load_all()).to_json_data())
    document["panels"][1]["gridPos"]["w"] = "wide"
    assert not validator.is_valid(document)


def built_by_the_builder(source: Path, target: Path) -> dict[str, Any]:
    """Return the dashboards that grafana-dashboards-builder writes, by path.

    Version 0.3.1 of 2020 finds X.dashboard.py in folders and writes the result of `to_json_data` unchanged.
    """
    program = ROOT / ".cache/grafana-dashboards-builder/bin/grafana-dashboards-builder"
    if not program.exists():
        needs.absent(f"{program} is absent: packaging/grafana-dashboards-builder.sh python3")
    done = subprocess.run(
        [str(program), str(source), str(target)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return {path.relative_to(target).as_posix(): json.loads(path.read_text()) for path in target.rglob("*.json")}


def test_grafana_dashboards_builder_loads_all_of_them(tmp_path: Path) -> None:
    ours = {f"{folder}/{board.title}.json": board.to_json_data() for folder, _, board in load_all()}
    assert len(ours) >= 7
    assert built_by_the_builder(ROOT / "dashboards", tmp_path) == ours


def write_dashboards_of_the_guide(folder: Path) -> list[str]:
    """Write the dashboards of docs/how-to/dashboards.md to the folder. Return their paths."""
    page = (ROOT / "docs" / "how-to" / "dashboards.md").read_text()
    found = re.findall(r"```python\n# my-dashboards/(\S+)\n(.*?)```", page, re.DOTALL)
    for name, text in found:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [name for name, _ in found]


def test_the_dashboards_of_the_guide_are_built_by_the_command_and_by_the_builder(tmp_path: Path) -> None:
    source, target = tmp_path / "my-dashboards", tmp_path / "out"
    names = write_dashboards_of_the_guide(source)
    assert names == ["site/power.dashboard.py", "site/clocks.dashboard.py"]
    command = [sys.executable, "-m", "gangwatch", "dashboards", "build", str(target), "--source", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ours = {path.relative_to(target).as_posix(): json.loads(path.read_text()) for path in target.rglob("*.json")}
    assert set(ours) == {"site/Power.json", "site/Clocks.json"}
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    assert all(validator.is_valid(within_schema(document)) for document in ours.values())
    assert built_by_the_builder(source, tmp_path / "builder") == ours


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dashboard = 1", "the file defines no `dashboard`"),
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("this is no Python", "SyntaxError"),
        (
            'from dashboards.board import Board\ndashboard = Board("u", "T", "")\n'
            'dashboard.variable("node", "Node", "label_values(gangwatch_no_such_metric, node)")',
            "gangwatch_no_such_metric",
        ),
    ],
)
def test_an_invalid_dashboard_of_the_user_is_named_and_nothing_is_written(
    tmp_path: Path, text: str, complaint: str
) -> None:
    names = write_dashboards_of_the_guide(tmp_path / "mine")
    (tmp_path / "mine" / names[1]).write_text(text)
    done = CliRunner().invoke(cli, ["dashboards", "build", str(tmp_path / "out"), "--source", str(tmp_path / "mine")])
    assert isinstance(done.exception, DashboardError) and complaint in str(done.exception)
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(cli, ["dashboards", "build", str(tmp_path / "out"), "--source", str(tmp_path / "empty")])
    assert isinstance(done.exception, DashboardError) and "no FOLDER/NAME.dashboard.py" in str(done.exception)
