"""Alerts and panels on a real Prometheus and Alertmanager.

Every alert fires exactly where it must, reaches a webhook and resolves. Every panel shows data if the run has any for
it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect

from dashboards.board import expressions_of
from dashboards.loading import load_all
from dashboards.rules import ALERTS, recording
from tests.dashboards import accelerated, hardware
from tests.dashboards.accelerated import SPEED
from tests.dashboards.drawing import Answer, Span, draw
from tests.dashboards.live import Stage, staged
from tests.dashboards.recorded import record
from tests.dashboards.scenarios import LENGTH, ONSET, SCENARIOS, SECONDS, Scenario
from tests.web.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("dashboards-live")]

EVERY = {"hardware": hardware.SCENARIO, **SCENARIOS}
ABSENT = "GangwatchControllerAbsent"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run all scenarios to their end. The Prometheus still accepts queries afterwards."""
    targets, labels = record()
    with hardware.answering(tmp_path_factory.mktemp("hardware")) as (more, theirs):
        folder: Path = tmp_path_factory.mktemp("live")
        with staged(folder, targets | more) as stage:
            silent = {path for path, own in labels.items() if SCENARIOS[own["cluster"]].unscraped and "node" in own}
            stage.place({path: own for path, own in (labels | theirs).items() if path not in silent})
            stage.wait_until(ONSET + LENGTH)
            stage.place(labels | theirs)
            stage.wait_until(SECONDS)
            yield stage


@pytest.fixture(scope="module")
def history(stage: Stage) -> dict[str, dict[str, list[float]]]:
    """Return the simulated seconds in which each alert fired, by cluster and alert."""
    found: dict[str, dict[str, list[float]]] = {}
    result = stage.query(
        "query_range", query='ALERTS{alertstate="firing"}', start=stage.at(0), end=stage.at(SECONDS), step="1s"
    )
    for one in result:
        metric = one["metric"]
        times = [(float(at) - stage.began) * SPEED for at, _ in one["values"]]
        found.setdefault(metric.get("cluster", ""), {}).setdefault(metric["alertname"], []).extend(times)
    return found


@pytest.mark.parametrize("cluster", EVERY)
def test_a_scenario_fires_exactly_its_alerts_and_they_resolve(
    stage: Stage, history: dict[str, dict[str, list[float]]], cluster: str
) -> None:
    scenario: Scenario = EVERY[cluster]
    times = history.get(cluster, {})
    assert set(times) == scenario.fires
    for name, at in times.items():
        assert scenario.unscraped or min(at) >= ONSET - SPEED, name
        assert max(at) < SECONDS - 3 * SPEED, f"{name} still fires at the end"
    received = [one for one in stage.notified if one.labels.get("cluster") == cluster]
    firing = {one.labels["alertname"] for one in received if one.status == "firing"}
    assert firing == scenario.fires - scenario.inhibited
    assert {one.labels["alertname"] for one in received if one.status == "resolved"} >= firing
    for one in received:
        assert one.labels["severity"] in ("critical", "warning", "info")
        for text in one.annotations.values():
            assert "<no value>" not in text and "%!" not in text, text
        if one.labels["alertname"] in scenario.named:
            for name, value in scenario.labels:
                assert one.labels.get(name) == value, (one.labels, name)
        assert one.annotations["runbook_url"].endswith(f"/{one.labels['alertname']}.md")


def test_every_alert_fires_in_some_scenario() -> None:
    alerts = {rule.name for group in ALERTS for rule in group.rules}
    assert set().union(*(one.fires for one in EVERY.values())) | {ABSENT} == alerts


def test_a_page_is_sent_soon_after_the_fault(stage: Stage) -> None:
    """Measure from onset to webhook in simulated seconds: detection, scrape, `for`, and the route's wait."""
    for cluster in ("straggler", "interference", "hang", "sick-device"):
        at = min(one.at for one in stage.notified if one.labels.get("cluster") == cluster and one.status == "firing")
        assert ONSET < at < ONSET + LENGTH + 60.0, f"{cluster}: received {at - ONSET:.0f} s after the onset"


# --- dashboards -------------------------------------------------------------------------------------------------------

VALUES = {
    "job": {"queue": ".*", "gang": "j-000001"},
    "straggler-forensics": {"gang": "j-000001", "verdict": ".*", "node": "node-00001", "rank": "9"},
    "node-and-gpu": {"node": ".*"},
    "fabric": {"rail": ".*", "node": ".*"},
}

NOT_IN_THE_RUN: tuple[tuple[str, str, str], ...] = (
    # (panel, a word of its query, why it has no data here)
    ("Job: Against yesterday", "offset 1d", "the run is shorter than a day"),
    ("Job: GPU efficiency", "unless", "every GPU of the run has GPM"),
    ("Job: Device memory in use", "memory_used", "the world has no device memory"),
    ("Job: Host memory of a rank", "memory_resident", "the world's ranks have no memory"),
    ("Job: Moves", "migrations", "feedback only observes, so that faults last"),
    ("Straggler forensics: Moves", "migrations", "feedback only observes, so that faults last"),
    ("Job: Starts", "attempts", "no job of the run starts twice"),
    ("Scheduler: Next to start", "seconds_ahead", "nothing is reserved where gangs stop for others"),
    ("Scheduler: First job starts in", "seconds_ahead", "nothing is reserved where gangs stop for others"),
    ("Scheduler: Share of usage", "used_slot_seconds", "the run's order is first come, first served"),
    ("Straggler forensics: Memory errors", "ecc", "the accused has none"),
    ("Straggler forensics: PCIe replays and NVLink errors", "", "the accused has none"),
    ("Straggler forensics: Errors of the accused's NICs", "link_down", "the world's ports do not count it"),
    ("Fabric: Symbol errors", "port_symbol", "the NICs of the run are RoCE; test_infiniband.py has InfiniBand"),
    ("Fabric: Link recoveries and failures", "recoveries", "as above"),
    ("Fabric: Retransmissions", "retransmitted", "the driver of the faked NICs has no such counter"),
    ("Node and GPU: PCIe replays", "pcie_replays", "no device of the run replays"),
    ("Node and GPU: NVLink errors", "", "no link of the run fails"),
    ("Node and GPU: Inactive NVLinks", "nvlink_state", "all are active"),
    ("gangwatch itself: Push failures", "push", "no agent of the run pushes"),
)


def asked(expression: str, cluster: str, values: dict[str, str], seconds: float = SECONDS) -> str:
    """Return a panel's expression for the accelerated clock, with Grafana's variables set for this range."""
    spans = {
        "$__rate_interval": f"{4 * 15}s",
        "$__range_s": f"{seconds:.0f}",
        "$__range": f"{seconds:.0f}s",
        "$__interval": "15s",
    }
    for name, value in spans.items():
        expression = expression.replace(name, value)
    expression = re.sub(r"\[([0-9]+s):([0-9]+s)\]", lambda m: f"[{_fast(m[1])}:{_fast(m[2])}]", expression)
    expression = accelerated.expression(expression)
    for name, value in {"cluster": cluster, **values}.items():
        expression = expression.replace(f"${name}", value)
    return expression


def _fast(duration: str) -> str:
    return accelerated.duration_of(accelerated.seconds_of(duration) / SPEED)


def test_every_panel_has_data(stage: Stage) -> None:
    silent = []
    for _, name, board in load_all():
        for where, expression in expressions_of(board.to_json_data()):
            answers = stage.query(
                "query_range",
                query=asked(expression, ".*", VALUES.get(name, {})),
                start=stage.at(150.0),
                end=stage.at(SECONDS),
                step="1s",
            )
            expected = any(where == panel and word in expression for panel, word, _ in NOT_IN_THE_RUN)
            if not answers and not expected:
                silent.append(f"{where}: {expression}")
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize(("name", "title"), [("job", "Job"), ("straggler-forensics", "Straggler forensics")])
def test_a_picture_of_a_dashboard_in_a_browser(stage: Stage, name: str, title: str) -> None:
    """GANGWATCH_UPDATE_IMAGES=1 updates docs/images/dashboard-NAME.png."""
    board = next(board for _, other, board in load_all() if other == name).to_json_data()
    span = Span(float(stage.at(ONSET - 120.0)), float(stage.at(ONSET + LENGTH)), SPEED)

    def ask(expression: str, instant: bool) -> Answer:
        query = asked(expression, "straggler", VALUES[name], LENGTH + 90.0)
        if instant:
            return stage.query("query", query=query, time=stage.at(ONSET + LENGTH - 30.0))
        return stage.query("query_range", query=query, start=f"{span.start}", end=f"{span.end}", step="500ms")

    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1272, "height": 800})
        page.set_content(draw(board, ask, span, "cluster straggler, job train-j-000001"))
        assert page.locator("h1").inner_text().startswith(title)
        assert page.locator("section").count() == len(board["panels"])
        assert page.locator("section.timeseries path.line").count() >= 12
        assert page.locator("section.table td", has_text="node-00001").count() >= 1
        if os.environ.get("GANGWATCH_UPDATE_IMAGES") == "1":
            top = FloatRect(x=0, y=0, width=1272, height=1190)
            page.screenshot(path=IMAGES / f"dashboard-{name}.png", full_page=True, clip=top)


def test_every_recording_rule_has_data(stage: Stage) -> None:
    names = [rule.name for group in recording.GROUPS for rule in group.rules]
    found = {
        one["metric"]["__name__"]
        for one in stage.query(
            "query_range",
            query=f'count by (__name__) ({{__name__=~"{"|".join(names)}"}})',
            start=stage.at(150.0),
            end=stage.at(SECONDS),
            step="1s",
        )
    }
    absent = {"gang:gangwatch_gpu_utilization_ratio:mean", "rank:gangwatch_gpu_memory_used_bytes:max"}
    assert found == set(names) - absent, "the world has neither utilisation nor device memory"


def test_the_dashboard_shows_the_straggler_as_the_slow_rank(stage: Stage) -> None:
    board = next(board for _, name, board in load_all() if name == "job")
    expressions = dict(expressions_of(board.to_json_data()))
    during = stage.at(ONSET + LENGTH - 30.0)
    worst = stage.query("query", query=asked(expressions["Job: Worst rank"], "straggler", VALUES["job"]), time=during)
    assert [one["metric"]["rank"] for one in worst] == ["9"]
    assert float(worst[0]["value"][1]) > 1.2
    verdicts = stage.query(
        "query", query=asked(expressions["Job: Active verdicts"], "straggler", VALUES["job"]), time=during
    )
    assert {"rank": "9", "node": "node-00001", "kind": "straggler"}.items() <= verdicts[0]["metric"].items()
    assert float(verdicts[0]["value"][1]) == pytest.approx(32 * (1 - 1 / 1.4), rel=0.35)


def test_step_time_matches_the_simulated_world(stage: Stage) -> None:
    """The clock's speed cancels out in seconds divided by steps, so this checks the rules' arithmetic."""
    (one,) = stage.query(
        "query", query='gang:gangwatch_rank_step_seconds:mean2m{cluster="healthy"}', time=stage.at(600.0)
    )
    assert float(one["value"][1]) == pytest.approx(1.8, abs=0.3)


def test_an_absent_controller_fires_an_alert(stage: Stage) -> None:
    """Run last, because it empties the file of the controllers' targets and restores it."""
    path = stage.folder / "prometheus/targets/controller.json"
    there = path.read_text()

    def received(status: str) -> bool:
        return any(one.labels["alertname"] == ABSENT and one.status == status for one in stage.notified)

    for text, status in (("[]", "firing"), (there, "resolved")):
        path.write_text(text)
        until = time.monotonic() + 120.0
        while not received(status):
            assert time.monotonic() < until, f"no notification with status {status}"
            time.sleep(0.2)
