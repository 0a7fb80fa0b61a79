"""Classes for recording rules and alerts. files.py writes the rules to files."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.schema.errors import DashboardError
from agent.schema.verdicts.kinds import Severity
from dashboards.expressions import checked

RUNBOOKS = "https://github.com/gangwatch/gangwatch/blob/main/docs/runbooks"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule. name: has the form level:metric:operations, where level names the labels of the result."""

    name: str
    expression: str

    def __post_init__(self) -> None:
        if self.name.count(":") != 2:
            raise DashboardError(f"{self.name}: the name of a recording rule must be level:metric:operations")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. Its summary and its description may contain label values of the series that fires."""

    name: str
    severity: Severity
    expression: str
    wait: str
    """How long the expression must be true before the alert fires, as a Prometheus duration."""
    summary: str
    description: str
    keep: str = ""
    """How long the alert continues to fire after its expression is false, as a Prometheus duration; '' for 0 s."""
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.startswith("Gangwatch"):
            raise DashboardError(f"{self.name}: the name of an alert must begin with Gangwatch")
        checked(self.expression, f"alert {self.name}")

    @property
    def runbook(self) -> str:
        """Return the URL of the alert's runbook."""
        return f"{RUNBOOKS}/{self.name}.md"


@dataclass(frozen=True, slots=True)
class Group:
    """Group of rules that Prometheus evaluates one after the other, in order."""

    name: str
    rules: tuple[Recording | Alert, ...]
