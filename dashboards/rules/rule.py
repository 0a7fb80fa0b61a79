"""Rules: recordings and alerts as data; their files are made in files.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent.schema.errors import DashboardError
from dashboards.expressions import checked

Severity = Literal["critical", "warning", "info"]

RUNBOOKS = "https://github.com/gangwatch/gangwatch/blob/main/docs/runbooks"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule. name: level:metric:operations, where the level is the labels that are left."""

    name: str
    expression: str

    def __post_init__(self) -> None:
        if self.name.count(":") != 2:
            raise DashboardError(f"{self.name}: the name of a recording is level:metric:operations")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. Its labels are those that the expression leaves; summary and description may name them.

    wait: how long the expression must hold, as Prometheus writes durations. keep: how long it fires on after.
    """

    name: str
    severity: Severity
    expression: str
    wait: str
    summary: str
    description: str
    keep: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.startswith("Gangwatch"):
            raise DashboardError(f"{self.name}: alerts of ours begin with Gangwatch")
        checked(self.expression, f"alert {self.name}")

    @property
    def runbook(self) -> str:
        """Where it is written what to do."""
        return f"{RUNBOOKS}/{self.name}.md"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, one after the other."""

    name: str
    rules: tuple[Recording | Alert, ...]
