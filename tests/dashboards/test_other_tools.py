"""Validation by other tools: Grafana's own schema, and grafana-dashboards-builder in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema

from dashboards.loading import load_all
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


def test_grafana_dashboards_builder_loads_all_of_them(tmp_path: Path) -> None:
    """Version 0.3.1 of 2020 finds X.dashboard.py in folders and writes the result of `to_json_data` unchanged."""
    program = ROOT / ".cache/grafana-dashboards-builder/bin/grafana-dashboards-builder"
    if not program.exists():
        needs.absent(f"{program} is absent: packaging/grafana-dashboards-builder.sh python3")
    done = subprocess.run(
        [str(program), str(ROOT / "dashboards"), str(tmp_path / "out")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.json")}
    ours = {f"{folder}/{board.title}.json": board for folder, _, board in load_all()}
    assert set(found) == set(ours)
    for name, board in ours.items():
        assert json.loads(found[name].read_text()) == board.to_json_data()
