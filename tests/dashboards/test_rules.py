"""Alert and recording rules: promtool's results, names, runbooks, inhibitions, and both file formats."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.schema.errors import DashboardError
from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import KINDS, Kind
from dashboards.expressions import checked, names_of
from dashboards.provisioning import Machine, Target, provisioned_files, write
from dashboards.rules import ALERTS, GROUPS, Alert, Recording
from dashboards.rules.files import INHIBITIONS, prometheus_rule, rules_file
from tests import needs
from tests.dashboards.rule_cases import CASES

ROOT = Path(__file__).parents[2]
EVERY_ALERT = {rule.name: rule for group in ALERTS for rule in group.rules if isinstance(rule, Alert)}
RECORDINGS = {rule.name: rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording)}


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("provisioned")
    write(folder, provisioned_files(Machine("c", folder, (Target("127.0.0.1:9401", "n0"),), Target("127.0.0.1:9420"))))
    return folder


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = needs.component("promtool", "prometheus")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100)


def test_promtool_accepts_rules_and_configuration(provisioned: Path) -> None:
    for arguments in (
        ("check", "rules", str(provisioned / "rules/recording.yml"), str(provisioned / "rules/alerts.yml")),
        ("check", "config", str(provisioned / "prometheus/prometheus.yml")),
    ):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_amtool_accepts_alertmanagers_configuration(provisioned: Path) -> None:
    program = needs.component("amtool", "prometheus-alertmanager")
    file = str(provisioned / "alertmanager/alertmanager.yml")
    done = subprocess.run([program, "check-config", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_evaluates_every_rule(provisioned: Path) -> None:
    """Each alert must fire after its own `for` and not before (tests/dashboards/rule_cases.py)."""
    document = {
        "rule_files": [str(provisioned / "rules/recording.yml"), str(provisioned / "rules/alerts.yml")],
        "evaluation_interval": "15s",
        "tests": [case.document() for case in CASES],
    }
    file = provisioned / "tests.yml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_case() -> None:
    assert {case.alert for case in CASES if case.alert} == set(EVERY_ALERT)
    assert {name for case in CASES for name in case.recorded} == set(RECORDINGS)


@pytest.mark.parametrize("name", EVERY_ALERT)
def test_an_alert_has_texts_and_a_runbook(name: str) -> None:
    alert = EVERY_ALERT[name]
    page = ROOT / "docs/runbooks" / f"{name}.md"
    assert alert.runbook.endswith(f"docs/runbooks/{name}.md") and page.exists()
    text = page.read_text()
    assert text.startswith(f"# {name}\n")
    for heading in ("## What it means", "## How to confirm it", "## What to do", "## How to silence it"):
        assert heading in text, heading
    assert alert.severity in ("critical", "warning", "info")
    assert alert.summary and alert.description and alert.wait


def test_every_runbook_has_an_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs/runbooks").glob("Gangwatch*.md")}
    assert pages == set(EVERY_ALERT)


OF_KINDS = {alert.name: (kind, row, alert) for kind, row in KINDS.items() for alert in row.alerts}
ON_VERDICTS = {name for name, alert in EVERY_ALERT.items() if re.search(r"gangwatch_verdict", alert.expression)}


def test_every_alert_of_a_verdict_kind_exists() -> None:
    assert set(OF_KINDS) <= set(EVERY_ALERT), "add the texts of the alert to dashboards/rules/alerts.py"
    assert set(OF_KINDS) == ON_VERDICTS, "an alert about verdicts needs a row in agent/schema/verdicts/kinds.py"


@pytest.mark.parametrize("name", sorted(ON_VERDICTS))
def test_an_alert_on_verdicts_follows_the_row_of_its_kind(name: str) -> None:
    kind, row, _ = OF_KINDS[name]
    alert = EVERY_ALERT[name]
    assert re.findall(r'kind=~?"([^"]*)"', alert.expression) == [kind]
    assert alert.severity == row.severity
    assert name in row.runbooks


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.alerts])
def test_exactly_one_alert_covers_each_cause_of_a_kind(kind: Kind) -> None:
    for cause in Cause:
        covering = []
        for of in KINDS[kind].alerts:
            matchers = re.findall(r'cause(!?=)"([^"]*)"', EVERY_ALERT[of.name].expression)
            if all((value == cause) == (sign == "=") for sign, value in matchers):
                covering.append(of.name)
        assert len(covering) == 1, (cause, covering)


def test_recordings_are_named_by_level_metric_and_operation() -> None:
    for name, rule in RECORDINGS.items():
        level, metric, operation = name.split(":")
        assert level in ("gang", "rank", "gpu", "nic", "port", "node", "rail", "rack", "verdict"), name
        assert metric.startswith("gangwatch_") and operation, name
        assert "cluster" in rule.expression, f"{name}: the expression mixes clusters"


def test_a_recording_reads_only_earlier_recordings() -> None:
    known: set[str] = set()
    for rule in RECORDINGS.values():
        assert {name for name in names_of(rule.expression) if ":" in name} <= known, rule.name
        known.add(rule.name)


def test_inhibitions_name_alerts_that_exist_and_labels_that_both_have() -> None:
    for source, target, _ in INHIBITIONS:
        assert set(source.split("|")) | set(target.split("|")) <= set(EVERY_ALERT)


def test_both_file_formats_contain_the_same_groups() -> None:
    plain: dict[str, Any] = yaml.safe_load(rules_file(GROUPS))
    resource: dict[str, Any] = yaml.safe_load(prometheus_rule(GROUPS))
    assert resource["kind"] == "PrometheusRule" and resource["spec"] == plain
    names = [group["name"] for group in plain["groups"]]
    assert len(names) == len(set(names)) and all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_an_unknown_metric_is_rejected() -> None:
    with pytest.raises(DashboardError, match="gangwatch_gpu_powr_watts is neither in the catalogue"):
        checked("sum(gangwatch_gpu_powr_watts)", "panel")
    with pytest.raises(DashboardError, match="gang:gangwatch_nothing:sum"):
        checked("gang:gangwatch_nothing:sum > 1", "panel")
    with pytest.raises(DashboardError, match="begin with Gangwatch"):
        Alert("Straggler", "info", "up == 0", "1m", "s", "d")
