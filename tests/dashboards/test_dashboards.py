"""Dashboards: valid by Grafana's schema and the rules of dashboard-linter, and with queries of existing metrics only.

GANGWATCH_UPDATE_GOLDEN=1 updates the golden files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from agent.schema.catalog import BY_NAME
from agent.schema.errors import DashboardError
from dashboards.board import Board, expressions_of
from dashboards.expressions import names_of
from dashboards.loading import ENDING, dashboard_files, load_all
from dashboards.panels import Query, number

GOLDEN = Path(__file__).parent / "golden"
BOARDS: dict[str, Board] = {f"{folder}/{name}": board for folder, name, board in load_all()}
DOCUMENTS: dict[str, dict[str, Any]] = {name: board.to_json_data() for name, board in BOARDS.items()}
EVERY = pytest.mark.parametrize("name", DOCUMENTS)


def panels_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def plain(expression: str) -> str:
    """Return the expression with valid values in place of Grafana's variables."""
    values = {"$__rate_interval": "1m", "$__range_s": "3600", "$__range": "1h", "$__interval": "15s"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    return re.sub(r"\$[a-z]+", "x", expression)


def test_all_dashboards_exist() -> None:
    assert {board.title for board in BOARDS.values()} == {
        "Job", "Cluster", "Scheduler", "Node and GPU", "Fabric", "Straggler forensics", "gangwatch itself",
    }  # fmt: skip
    assert len({board.uid for board in BOARDS.values()}) == len(BOARDS)
    assert all(path.name.endswith(ENDING) for _, _, path in dashboard_files())


@EVERY
def test_golden(name: str) -> None:
    text = json.dumps(DOCUMENTS[name], indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"{name.replace('/', '-')}.json"
    if os.environ.get("GANGWATCH_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), "GANGWATCH_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(), "GANGWATCH_UPDATE_GOLDEN=1 updates it"


@EVERY
def test_every_expression_parses_and_type_checks(name: str) -> None:
    for where, expression in expressions_of(DOCUMENTS[name]):
        try:
            parsed = promql_parser.parse(plain(expression))
        except ValueError as error:
            raise AssertionError(f"{where}: {expression}: {error}") from None
        assert not isinstance(parsed, promql_parser.MatrixSelector), f"{where}: a panel cannot show a range"


# --- the rules of grafana/dashboard-linter, by their names there ------------------------------------------------------


@EVERY
def test_template_datasource_rule(name: str) -> None:
    variables = DOCUMENTS[name]["templating"]["list"]
    found = [variable for variable in variables if variable["type"] == "datasource"]
    assert [(one["name"], one["query"], one["label"]) for one in found] == [("datasource", "prometheus", "Data source")]


@EVERY
def test_template_on_time_change_reload_and_label_promql_rules(name: str) -> None:
    for variable in DOCUMENTS[name]["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2, variable["name"]
            query = re.fullmatch(r"label_values\((.+), ([a-z_]+)\)", variable["query"]["query"])
            assert query is not None, variable["name"]
            promql_parser.parse(plain(query[1]))
            assert variable["datasource"]["uid"] == "${datasource}"


@EVERY
def test_panel_datasource_title_description_units_and_no_targets_rules(name: str) -> None:
    titles = []
    for panel in panels_of(DOCUMENTS[name]):
        where = f"{name}: {panel.get('title')}"
        assert panel["datasource"]["uid"] == "${datasource}", where
        assert panel["title"] and len(panel["description"]) > 2 and panel["description"].endswith((".", ")")), where
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert panel["targets"], where
        titles.append(panel["title"])
    assert len(titles) == len(set(titles)), "two panels have the same title"


@EVERY
def test_target_rate_interval_and_counter_rules(name: str) -> None:
    """A counter's rate uses the window that Grafana chooses. A panel never shows a raw counter."""
    for where, expression in expressions_of(DOCUMENTS[name]):
        for metric in names_of(expression):
            kind = BY_NAME[metric].kind if metric in BY_NAME else "gauge"
            counted = re.search(rf"\b(?:rate|increase|irate)\({metric}\b", expression)
            if kind == "counter":
                shown_as_it_stands = where in COUNTERS_AS_THEY_STAND
                assert counted or shown_as_it_stands, f"{where}: {metric}"
        for window in re.findall(r"\brate\([^()]*\[([^\]]+\][^()]*)\)", expression):
            assert window in ("$__rate_interval]", "$__range] @ end()"), f"{where}: rate over {window}"


@EVERY
def test_a_panel_selects_its_series_once_for_the_whole_range(name: str) -> None:
    """`topk` alone selects at every instant, so a panel of the worst five would show dozens of series."""
    for panel in panels_of(DOCUMENTS[name]):
        for target in panel["targets"]:
            chosen = re.findall(r"(?:(\band )|\b)(?:top|bottom)k\(", target["expr"])
            assert target["instant"] or all(chosen), f"{panel['title']}: {target['expr']}"


@EVERY
def test_only_expressions_without_labels_default_to_zero(name: str) -> None:
    """`or vector(0)` has no labels, so the expression before it may have none either."""
    for where, expression in expressions_of(DOCUMENTS[name]):
        if expression.endswith("or vector(0)"):
            assert re.match(r"(?:count|sum|max)\(", expression), f"{where}: {expression}"


COUNTERS_AS_THEY_STAND = {
    "Job: Attempts": "the panel shows the count itself",
    "Job: Collectives entered, difference between ranks": "a difference of two counters of one job",
    "Node and GPU: Remapped memory rows": "rows since the board was made",
    "Scheduler: Replay mismatches": "at the newest start",
    "gangwatch itself: Parts out of service": "a failed detector stays out of service",
    "Fabric: NICs": "how many there are",
    "Scheduler: Job starts since the controller's start": "`increase` does not include the first decision of a kind",
    "Scheduler: Preemptions, moves and other decisions": "as above",
}


@EVERY
def test_target_cluster_rule(name: str) -> None:
    """Our series lack the labels job and instance of the linter's rule. Instead every query must select a cluster."""
    for where, expression in expressions_of(DOCUMENTS[name]):
        selectors = re.findall(r"\{([^{}]*)\}", expression)
        for selector in selectors:
            assert 'cluster=~"$cluster"' in selector, f"{where}: {selector}"
        bare = re.findall(r"\b(?:[a-z]+:)*gangwatch_[a-z0-9_:]+(?![a-z0-9_:{])", re.sub(r'"[^"]*"', '""', expression))
        assert not bare, f"{where}: {bare} selects every cluster"


@EVERY
def test_uneditable_linked_and_annotated(name: str) -> None:
    document = DOCUMENTS[name]
    assert document["editable"] is False
    assert document["tags"] == ["gangwatch"]
    assert any(link["type"] == "dashboards" and link["includeVars"] and link["keepTime"] for link in document["links"])
    assert "Alerts" in [one["name"] for one in document["annotations"]["list"]]
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    uids = {other["uid"] for other in DOCUMENTS.values()}
    for link in document["links"]:
        if link["type"] == "link":
            assert link["url"].removeprefix("/d/") in uids


def test_panels_do_not_overlap() -> None:
    for name, document in DOCUMENTS.items():
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24, (name, panel["title"])
            assert not cells & taken, (name, panel["title"])
            taken |= cells


# --- build failures ---------------------------------------------------------------------------------------------------


def test_a_metric_that_does_not_exist_fails_the_build() -> None:
    board = Board("u", "Title", "d")
    with pytest.raises(DashboardError, match="panel Watts: gangwatch_gpu_watt is neither in the catalogue"):
        board.row("Row", number("Watts", "d", "watt", Query("sum(gangwatch_gpu_watt)")))
