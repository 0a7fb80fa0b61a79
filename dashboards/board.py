"""A dashboard of ours: what all of them have in common, and what it becomes.

Each has the variables `datasource` and `cluster`, links to the others that take the variables and the time along,
annotations for alerts, and no editing: who wants it otherwise changes the code, or saves a copy.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from agent.schema.errors import DashboardError
from dashboards import rules  # noqa: F401 - what they record may be named
from dashboards.expressions import CLUSTER, checked

with warnings.catch_warnings():
    # Of classic dashboards, for which the SDK would rather have the second schema, which side-cars do not take yet.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard as build
    from grafana_foundation_sdk.builders import prometheus
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as model

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "gangwatch"

Panel = Builder[model.Panel]


class Board:
    """A dashboard under construction. `to_json_data` gives Grafana's classic JSON (schema of version 36 and newer).

    uid: stays, so that links to it do. title, description: of the dashboard; its panels' stand with them.
    """

    def __init__(self, uid: str, title: str, description: str, since: str = "now-1h") -> None:
        self.uid, self.title = uid, title
        self._panels = 0
        self._builder = (
            build.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags([TAG])
            .readonly()
            .refresh("30s")
            .time(since, "now")
            .timezone("browser")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .link(
                build.DashboardLink("gangwatch")
                .type(model.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus").regex(""))
        )
        self.variable("cluster", "Cluster", "label_values(gangwatch_cycles_total, cluster)")
        self.annotation(
            "Alerts",
            f'ALERTS{{{CLUSTER}, alertname=~"Gangwatch.*", alertstate="firing"}}',
            "red",
            "{{alertname}}",
            "{{severity}} {{gang}} {{node}} {{rank}} {{cause}}",
        )

    # --- what stands above the panels ---------------------------------------------------------------------------------

    def variable(self, name: str, label: str, query: str, many: bool = False, every: bool = False) -> None:
        """A variable whose values the query gives. many: several at once. every: all of them to begin with."""
        checked(query, f"{self.title}: variable {name}")
        variable = (
            build.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query({"query": query, "refId": "StandardVariableQuery"})
            .definition(query)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.NATURAL_ASC)
            .multi(many)
            .include_all(every)
        )
        if every:
            variable = variable.all_value(".*").current(model.VariableOption(text="All", value="$__all"))
        self._builder.with_variable(variable)

    def annotation(self, name: str, expression: str, colour: str, title: str, text: str, shown: bool = True) -> None:
        """Marks wherever the expression answers; it may be switched off in the dashboard."""
        target = prometheus.Dataquery().expr(checked(expression, f"{self.title}: annotation {name}")).ref_id("Anno")
        query = (
            build.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(shown)
            .icon_color(colour)
            .expr(target.build().expr)
            .title_format(title)
            .text_format(text)
        )
        self._builder.annotation(query)

    def link(self, title: str, url: str) -> None:
        """A link in the dashboard's head; ours take the variables along."""
        self._builder.link(
            build.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url).keep_time(True).include_vars(True)
        )

    # --- panels -------------------------------------------------------------------------------------------------------

    def row(self, title: str, *panels: Panel) -> None:
        """A row: its heading, and the panels below it from left to right."""
        self._builder.with_row(build.Row(title).id(self._next()))
        for panel in panels:
            built = panel.build()
            built.id_val = self._next()
            for target in built.targets or ():
                checked(getattr(target, "expr", ""), f"{self.title}: panel {built.title}")
            self._builder.with_panel(_Built(built))

    def _next(self) -> int:
        self._panels += 1
        return self._panels

    # --- what it becomes ----------------------------------------------------------------------------------------------

    def to_json_data(self) -> dict[str, Any]:
        """The dashboard as Grafana takes it. Raises DashboardError where a part has a value of a wrong type."""
        try:
            document: dict[str, Any] = json.loads(JSONEncoder().encode(self._builder.build()))
        except (TypeError, AttributeError, ValueError) as error:
            raise DashboardError(f"{self.title}: {error}") from error
        return document


class _Built(Builder[model.Panel]):
    """A panel that was built already, for whoever wants a builder."""

    def __init__(self, panel: model.Panel) -> None:
        self._panel = panel

    def build(self) -> model.Panel:
        return self._panel


def expressions_of(document: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """(where, expression) of every panel and annotation of a dashboard."""
    found = [
        (f"{document['title']}: {panel['title']}", target["expr"])
        for panel in document["panels"]
        for target in panel.get("targets", ())
    ]
    found += [(f"{document['title']}: {one['name']}", one["expr"]) for one in document["annotations"]["list"]]
    return found
