"""Configuration of Grafana, Prometheus and Alertmanager for a machine that runs `gangwatch up`.

::

    DIR/
      dashboards/<folder>/<name>.json
      rules/recording.yml  alerts.yml  prometheus-rule.yml
      grafana/provisioning/datasources/gangwatch.yml  dashboards/gangwatch.yml
      prometheus/prometheus.yml  targets/agents.json  targets/controller.json
      alertmanager/alertmanager.yml

`gangwatch dashboards build` writes the first two folders, `provision` writes all. Unchanged files are not rewritten.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.schema.errors import DashboardError
from dashboards.loading import ENDING, load_all
from dashboards.rules import ALERTS, recording
from dashboards.rules.files import HEADER, alertmanager_file, prometheus_rule, rules_file, yaml_text

Files = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """A target that Prometheus scrapes."""

    address: str
    """Address of the target, 'host:port'."""
    node: str = ""
    """Name of the agent's node; '' if the target is the controller."""
    scheme: str = "http"
    """URL scheme of the target: http or https."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Addresses of a machine's daemons, and of the programs that monitor them (Prometheus, Alertmanager, Grafana)."""

    cluster: str
    """Value of the label `cluster` in all series of the machine."""
    folder: Path
    """Absolute path of the folder in which the files are written."""
    agents: tuple[Target, ...]
    controller: Target | None
    prometheus: str = "http://127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    receiver: str = "http://127.0.0.1:9095/"
    """URL of the webhook that receives alerts."""


# --- files -----------------------------------------------------------------------------------------------------------


def built_files() -> Files:
    """Yield (path, text) of the dashboard and rule files. Raises DashboardError if a query reads an unknown metric."""
    for folder, name, board in load_all():
        yield f"dashboards/{folder}/{name}.json", json.dumps(board.to_json_data(), indent=2, sort_keys=True) + "\n"
    yield "rules/recording.yml", rules_file(recording.GROUPS)
    yield "rules/alerts.yml", rules_file(ALERTS)
    yield "rules/prometheus-rule.yml", prometheus_rule((*recording.GROUPS, *ALERTS))


def own_files(source: Path) -> Files:
    """Yield (path, text) of the dashboards FOLDER/NAME.dashboard.py below `source`, under the names FOLDER/TITLE.json.

    grafana-dashboards-builder uses the same names. Raises DashboardError if there is no dashboard, or one is invalid.
    """
    taken: set[str] = set()
    for folder, name, board in load_all(source):
        path = f"{folder}/{board.title}.json"
        if path in taken:
            raise DashboardError(f"{source}/{folder}/{name}{ENDING}: another dashboard has the title {board.title!r}")
        taken.add(path)
        yield path, json.dumps(board.to_json_data(), indent=2, sort_keys=True) + "\n"
    if not taken:
        raise DashboardError(f"{source}: no FOLDER/NAME{ENDING} in it")


def provisioned_files(machine: Machine) -> Files:
    """Yield (path, text) of all files that monitor a machine: dashboards, rules and configurations."""
    yield from built_files()
    yield "grafana/provisioning/datasources/gangwatch.yml", HEADER + yaml_text(_datasources(machine))
    yield "grafana/provisioning/dashboards/gangwatch.yml", HEADER + yaml_text(_providers(machine))
    yield "prometheus/prometheus.yml", HEADER + yaml_text(_prometheus(machine))
    yield "prometheus/targets/agents.json", _targets(machine, machine.agents)
    controller = () if machine.controller is None else (machine.controller,)
    yield "prometheus/targets/controller.json", _targets(machine, controller)
    yield "alertmanager/alertmanager.yml", alertmanager_file(machine.receiver)


def _datasources(machine: Machine) -> dict[str, Any]:
    source = {
        "name": "gangwatch",
        "uid": "gangwatch",
        "type": "prometheus",
        "access": "proxy",
        "url": machine.prometheus,
        "isDefault": True,
        # The scrape interval, from which Grafana derives $__rate_interval.
        "jsonData": {"timeInterval": "15s", "httpMethod": "POST"},
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers(machine: Machine) -> dict[str, Any]:
    provider = {
        "name": "gangwatch",
        "type": "file",
        "disableDeletion": True,
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": str(machine.folder / "dashboards"), "foldersFromFilesStructure": True},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _prometheus(machine: Machine) -> dict[str, Any]:
    def job(name: str) -> dict[str, Any]:
        # Every series has the label `node`. The target has it too, so that `up` has it.
        return {
            "job_name": f"gangwatch-{name}",
            "honor_labels": True,
            "file_sd_configs": [{"files": [f"targets/{name}{'s' if name == 'agent' else ''}.json"]}],
        }

    return {
        "global": {"scrape_interval": "15s", "scrape_timeout": "10s", "evaluation_interval": "15s"},
        "rule_files": ["../rules/recording.yml", "../rules/alerts.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [machine.alertmanager]}]}]},
        "scrape_configs": [job("agent"), job("controller")],
    }


def _targets(machine: Machine, targets: tuple[Target, ...]) -> str:
    document = []
    for target in targets:
        labels = {"cluster": machine.cluster}
        if target.node:
            labels["node"] = target.node
        if target.scheme != "http":
            labels["__scheme__"] = target.scheme
        document.append({"targets": [target.address], "labels": labels})
    return json.dumps(document, indent=2) + "\n"


# --- writing ---------------------------------------------------------------------------------------------------------


def write(folder: Path, files: Files) -> tuple[list[str], list[str]]:
    """Write the files whose content has changed, each atomically. Return (all paths, paths of the written files).

    All texts are built before the first file is written. Raises DashboardError if a file cannot be written.
    """
    made = list(files)
    written: list[str] = []
    for name, text in made:
        path = folder / name
        try:
            if path.exists() and path.read_text(encoding="utf-8") == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, text)
        except OSError as error:
            raise DashboardError(f"{path}: {error.strerror}") from error
        written.append(name)
    return [name for name, _ in made], written


def _write_atomically(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
