"""Recording rules and alerts: one source for Prometheus's own files and for the operator's PrometheusRule.

rule             what a rule is
recording        level:metric:operations, which dashboards and alerts read
alerts           on jobs, the scheduler, the controller, and telemetry that is absent
alerts_hardware  on devices
files            both as Prometheus and the operator read them; Alertmanager's routes and inhibitions
"""

from __future__ import annotations

from dashboards.rules import recording
from dashboards.rules.alerts import ALERTS
from dashboards.rules.rule import Alert, Group, Recording

GROUPS: tuple[Group, ...] = (*recording.GROUPS, *ALERTS)

__all__ = ["ALERTS", "GROUPS", "Alert", "Group", "Recording"]
