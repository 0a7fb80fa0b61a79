"""Functions that make panels: line charts, single numbers, tables, state timelines and heat maps.

Every panel has a title, a description that explains its values, a unit, and the dashboard's data source. The
functions return builders of the SDK, which the caller can change, for example `number(...).decimals(2)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.board import SOURCE  # first: it suppresses the SDK's deprecation warnings

# isort: split
from grafana_foundation_sdk.builders import common as common_build
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, statushistory, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SECONDS, RATIO, BYTES, BYTES_A_SECOND, WATTS, CELSIUS = "s", "percentunit", "bytes", "Bps", "watt", "celsius"
COUNT, A_SECOND, HERTZ, HOURS = "short", "cps", "hertz", "h"

Steps = tuple[tuple[float | None, str], ...]

GOOD_IS_LOW: Steps = ((None, "green"), (1.1, "yellow"), (1.3, "red"))
"""Thresholds and colours for slowdown factors: yellow from 1.1, red from 1.3, where the default policy moves a gang."""

ZERO_IS_GOOD: Steps = ((None, "green"), (1, "red"))
ONE_IS_GOOD: Steps = ((None, "red"), (1, "green"))
HEALTH: Steps = ((None, "green"), (1, "yellow"), (2, "orange"), (3, "red"))
PLAIN: Steps = ((None, "blue"),)


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query of a panel, and how the panel shows the result."""

    expression: str
    legend: str = ""
    """Text of the legend. A label's name in double braces is replaced by the label's value."""
    instant: bool = False
    """Whether the query returns only the values at the end of the time range."""
    table: bool = False
    """Whether the query returns a table with one row per series."""


def _targets(queries: tuple[Query, ...]) -> list[prometheus.Dataquery]:
    targets = []
    for number, query in enumerate(queries):
        target = (
            prometheus.Dataquery()
            .expr(" ".join(query.expression.split()))
            .legend_format(query.legend or "__auto")
            .ref_id(chr(ord("A") + number))
            .datasource(SOURCE)
        )
        target = target.instant() if query.instant else target.range()
        if query.table:
            target = target.format(PromQueryFormat.TABLE)
        targets.append(target)
    return targets


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=colour) for value, colour in steps])
    )


def series(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    thresholds: Steps = (),
    stacked: bool = False,
    width: int = 12,
    link: tuple[str, str] | None = None,
) -> timeseries.Panel:
    """Return a panel that draws series as lines over time.

    thresholds: values that are drawn as lines. link: (title, URL) of a link that users can open at every series.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(8)
        .min(0)
        .line_width(1)
        .fill_opacity(60 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_build.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common_build.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .targets(list(_targets(queries)))
    )
    if stacked:
        panel = panel.stacking(common_build.StackingConfig().mode(common.StackingMode.NORMAL))
    if thresholds:
        panel = panel.thresholds(_thresholds(thresholds)).thresholds_style(
            common_build.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if link is not None:
        panel = panel.data_links([build.DashboardLink(link[0]).url(link[1])])
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    thresholds: Steps = PLAIN,
    width: int = 4,
    text: bool = False,
) -> stat.Panel:
    """Return a panel that shows one number, coloured by thresholds. text: show the legend in place of the number."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(4)
        .no_value("not available here")
        .thresholds(_thresholds(thresholds))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE if text or query.instant else common.BigValueGraphMode.AREA)
        .reduce_options(common_build.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .text_mode(common.BigValueTextMode.NAME if text else common.BigValueTextMode.VALUE)
        .targets(list(_targets((query,))))
    )


def rows(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    hidden: tuple[str, ...] = (),
    names: dict[str, str] | None = None,
    thresholds: Steps = PLAIN,
    width: int = 12,
) -> table.Panel:
    """Return a panel with a table: one row per series, one column per label.

    hidden: columns that are left out. names: new titles of columns, by label.
    """
    left_out = dict.fromkeys(("Time", "__name__", *hidden), True)
    return (
        table.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(8)
        .no_value("none")
        .filterable(True)
        .thresholds(_thresholds(thresholds))
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": left_out, "indexByName": {}, "renameByName": names or {}},
            )
        )
        .targets(list(_targets(queries)))
    )


def timeline(
    title: str,
    description: str,
    query: Query,
    thresholds: Steps,
    unit: str = COUNT,
    width: int = 24,
    height: int = 8,
) -> statetimeline.Panel:
    """Return a panel of states over time: one bar per series, coloured by thresholds."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .no_value("none")
        .thresholds(_thresholds(thresholds))
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .show_value(common.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.9)
        .targets(list(_targets((query,))))
    )


def grid(
    title: str,
    description: str,
    unit: str,
    query: Query,
    thresholds: Steps,
    width: int = 24,
    height: int = 10,
) -> statushistory.Panel:
    """Return a heat map: one row per series, one cell per instant, coloured by thresholds."""
    return (
        statushistory.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .no_value("none")
        .thresholds(_thresholds(thresholds))
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .show_value(common.VisibilityMode.NEVER)
        .max_data_points(60)
        .row_height(0.95)
        .targets(list(_targets((query,))))
    )
