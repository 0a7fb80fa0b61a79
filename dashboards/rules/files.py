"""Functions that make the rule files for Prometheus and its operator, and the configuration of Alertmanager."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from dashboards.rules.rule import Alert, Group, Recording

HEADER = "# Written by `gangwatch dashboards build`: change dashboards/rules and build again.\n"

INHIBITIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # (source alert, alerts that it inhibits, labels that must be equal), so that one fault pages once.
    ("GangwatchControllerDown", "GangwatchCyclesStopped|GangwatchFeedLost|GangwatchTelemetryAbsent", ("cluster",)),
    ("GangwatchJournalFailing", "GangwatchCyclesStopped|GangwatchGangCannotStart", ("cluster",)),
    ("GangwatchTelemetryAbsent", "GangwatchAgentsLost|GangwatchAgentDown|GangwatchFeedLost", ("cluster",)),
    ("GangwatchAgentsLost", "GangwatchAgentDown|GangwatchFeedLost|GangwatchFrozen|GangwatchGangStalled", ("cluster",)),
    ("GangwatchAgentDown", "GangwatchFeedLost|GangwatchCollectorFailing|GangwatchDeviceAccused", ("cluster", "node")),
    ("GangwatchGpuLost", "GangwatchGpuXid|GangwatchGpuMemoryErrors|GangwatchGpuRowRemap", ("cluster", "node", "gpu")),
    ("GangwatchGpuLost", "GangwatchCollectorFailing", ("cluster", "node")),
    ("GangwatchGpuLost", "GangwatchHang|GangwatchStraggler|GangwatchDeviceAccused", ("cluster", "node")),
    ("GangwatchGpuXid|GangwatchGpuMemoryErrors", "GangwatchDeviceAccused", ("cluster", "node")),
    ("GangwatchNicDown", "GangwatchNicFlapping|GangwatchDeviceAccused|GangwatchStraggler", ("cluster", "node")),
    ("GangwatchHang", "GangwatchGangStalled", ("cluster", "gang")),
    ("GangwatchStraggler", "GangwatchDeviceAccused", ("cluster", "gang", "node")),
    ("GangwatchStraggler", "GangwatchGpuThrottled", ("cluster", "node")),
    ("GangwatchDeviceAccused", "GangwatchGpuThrottled", ("cluster", "node")),
)


# --- Prometheus ------------------------------------------------------------------------------------------------------


def _rule(rule: Recording | Alert) -> dict[str, Any]:
    expression = " ".join(rule.expression.split())
    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": expression}
    document: dict[str, Any] = {"alert": rule.name, "expr": expression, "for": rule.wait}
    if rule.keep:
        document["keep_firing_for"] = rule.keep
    document["labels"] = {"severity": rule.severity, **rule.labels}
    document["annotations"] = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook_url": rule.runbook,
    }
    return document


def groups_document(groups: Iterable[Group]) -> dict[str, Any]:
    """Return the rule groups in the format of Prometheus's `rule_files`."""
    return {"groups": [{"name": group.name, "rules": [_rule(rule) for rule in group.rules]} for group in groups]}


def rules_file(groups: Iterable[Group]) -> str:
    return HEADER + yaml_text(groups_document(groups))


def prometheus_rule(groups: Iterable[Group], name: str = "gangwatch") -> str:
    """Return the rule groups as a PrometheusRule object, for `kubectl apply` or a chart."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": "gangwatch", "role": "alert-rules"}}
    return HEADER + yaml_text(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": groups_document(groups),
        }
    )


# --- Alertmanager ----------------------------------------------------------------------------------------------------


def alertmanager_document(receiver_url: str) -> dict[str, Any]:
    """Return Alertmanager's configuration.

    It sends one notification per fault to a webhook. Critical alerts are sent sooner than others.
    """
    return {
        "route": {
            "receiver": "people",
            "group_by": ["alertname", "cluster", "gang", "node"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {
                    "matchers": ['severity="critical"'],
                    "receiver": "people",
                    "group_wait": "5s",
                    "repeat_interval": "1h",
                },
                {"matchers": ['severity="info"'], "receiver": "people", "repeat_interval": "7d"},
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname=~"{source}"'],
                "target_matchers": [f'alertname=~"{target}"'],
                "equal": list(equal),
            }
            for source, target, equal in INHIBITIONS
        ],
        "receivers": [{"name": "people", "webhook_configs": [{"url": receiver_url, "send_resolved": True}]}],
    }


def alertmanager_file(receiver_url: str) -> str:
    return HEADER + yaml_text(alertmanager_document(receiver_url))


class _Dumper(yaml.SafeDumper):
    """YAML dumper that indents lists below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        super().increase_indent(flow, False)


def yaml_text(document: Any) -> str:
    """Return the document as YAML, without sorting its keys."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return text
