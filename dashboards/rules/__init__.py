"""Recording rules and alerts, from which Prometheus's rule files and the operator's PrometheusRule are written.

rule             the types of rules
recording        recording rules, which dashboards and alerts read
alerts           alerts on jobs, the scheduler, the controller and missing telemetry
alerts_hardware  alerts on devices
files            files for Prometheus and its operator; routes and inhibitions of Alertmanager
"""

from __future__ import annotations

from dashboards.rules import recording
from dashboards.rules.alerts import ALERTS
from dashboards.rules.rule import Alert, Group, Recording

GROUPS: tuple[Group, ...] = (*recording.GROUPS, *ALERTS)

__all__ = ["ALERTS", "GROUPS", "Alert", "Group", "Recording"]
