"""Dashboard class with the parts that all dashboards have, and its conversion to Grafana's JSON.

Each dashboard has the variables `datasource` and `cluster`, links to the other dashboards, and annotations for alerts.
It is read-only in Grafana: to change a dashboard, change its code or save a copy.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from agent.schema.errors import DashboardError
from dashboards import rules  # noqa: F401 - registers the names of recording rules
from dashboards.expressions import CLUSTER, checked

with warnings.catch_warnings():
    # The SDK deprecates classic dashboards, but side-cars do not accept the second schema yet.
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
    """Builder of a dashboard. `to_json_data` returns Grafana's classic JSON (schema version 36 and newer).

    uid: identifier in the dashboard's URL. Do not change it: links to the dashboard would break.
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
        # Also the clusters whose agents run without a controller.
        clusters = 'label_values({__name__=~"gangwatch_cycles_total|gangwatch_agent_info"}, cluster)'
        self.variable("cluster", "Cluster", clusters)
        self.annotation(
            "Alerts",
            f'ALERTS{{{CLUSTER}, alertname=~"Gangwatch.*", alertstate="firing"}}',
            "red",
            "{{alertname}}",
            "{{severity}} {{gang}} {{node}} {{rank}} {{cause}}",
        )

    # --- variables, annotations and links -----------------------------------------------------------------------------

    def variable(self, name: str, label: str, query: str, many: bool = False, every: bool = False) -> None:
        """Add a variable that users select in the dashboard. Its values come from the query.

        many: whether users can select several values. every: whether all values are selected by default.
        """
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
        """Mark the times at which the expression has a value.

        Users can switch these annotations off in the dashboard.
        """
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
        """Add a link to the dashboard's header. The linked page gets the same variables and time range."""
        self._builder.link(
            build.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url).keep_time(True).include_vars(True)
        )

    # --- panels -------------------------------------------------------------------------------------------------------

    def row(self, title: str, *panels: Panel) -> None:
        """Add a row: a heading, and its panels from left to right."""
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

    # --- output -------------------------------------------------------------------------------------------------------

    def to_json_data(self) -> dict[str, Any]:
        """Return the dashboard in Grafana's format. Raises DashboardError if a part has a value of a wrong type."""
        try:
            document: dict[str, Any] = json.loads(JSONEncoder().encode(self._builder.build()))
        except (TypeError, AttributeError, ValueError) as error:
            raise DashboardError(f"{self.title}: {error}") from error
        return document


class _Built(Builder[model.Panel]):
    """Adapter for panels that are already built. The SDK accepts only builders."""

    def __init__(self, panel: model.Panel) -> None:
        self._panel = panel

    def build(self) -> model.Panel:
        return self._panel


def expressions_of(document: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the expressions of all panels and annotations of a dashboard, as (location, expression) pairs."""
    found = [
        (f"{document['title']}: {panel['title']}", target["expr"])
        for panel in document["panels"]
        for target in panel.get("targets", ())
    ]
    found += [(f"{document['title']}: {one['name']}", one["expr"]) for one in document["annotations"]["list"]]
    return found
