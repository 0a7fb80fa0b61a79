"""Pages of a real cluster: daemons, training jobs, and a rank that an external process stops repeatedly."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.web.browser import page_of, serious_findings
from tests.web.stage import Stage, stage

pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(300)]

VERDICT_MS = 60_000
NOTICES = """() => {
  window.seenAt = null;
  const check = () => {
    if (window.seenAt === null && document.querySelector("#verdicts .verdict.standing")) window.seenAt = Date.now();
  };
  new MutationObserver(check).observe(document.body, { childList: true, subtree: true });
}"""


@dataclass(frozen=True)
class Scene:
    """Straggler that was detected while a page was open."""

    stage: Stage
    training: str
    waiting: str
    ahead: str
    delay_seconds: float
    """Time from the verdict until the page shows it."""
    loads: int


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Scene]:
    with stage(tmp_path_factory.mktemp("stage")) as cluster:
        training = cluster.train("llama-8b", ranks=4, minutes=10, restartable=True)
        cluster.wait(training)
        cluster.wait(cluster.train("vision", ranks=2, minutes=5))
        waiting = cluster.train("mixtral-8x7b", ranks=6, minutes=10)
        ahead = cluster.train("evaluate", ranks=2, minutes=2)
        cluster.wait(ahead)
        with page_of(browser) as page:
            loads: list[object] = []
            page.on("load", lambda loaded: loads.append(loaded))
            page.goto(f"{cluster.url}/")
            expect(page.locator("#liveness")).to_have_text("live", timeout=30_000)
            expect(page.locator(f"#row-{training} [data-label=Step]")).not_to_have_text("–")  # its steps are received
            time.sleep(12)  # the detector learns the usual step time: thirty steps
            page.evaluate(NOTICES)
            with cluster.disturbed(training, rank=1):
                page.wait_for_selector("#verdicts .verdict.standing", timeout=VERDICT_MS)
                seen_ms = page.evaluate("() => window.seenAt")
                (entry,) = (
                    one for one in cluster.client.get(f"/api/jobs/{training}/story") if one["kind"] == "verdict"
                )
                yield Scene(cluster, training, waiting, ahead, seen_ms / 1e3 - entry["wall_ns"] / 1e9, len(loads))


def test_a_straggler_appears_within_two_seconds_of_its_verdict_without_a_reload(scene: Scene) -> None:
    assert scene.loads == 1
    assert -0.1 < scene.delay_seconds < 2.0


def test_the_overview_draws_the_reservation_and_the_backfilled_job(scene: Scene, browser: Browser) -> None:
    with page_of(browser) as page:
        page.goto(f"{scene.stage.url}/")
        drawn = page.locator("#timetable")
        expect(drawn).to_contain_text(f"6 slots reserved for {scene.waiting}")
        expect(drawn).to_contain_text(f"Backfilled without delaying it: {scene.ahead}.")
        assert drawn.locator("rect.bar.kept").count() >= 3
        assert drawn.locator("rect.bar.ahead").count() == 1
        expect(page.locator(f"#row-{scene.training}")).to_contain_text("rank 1 on node-0: straggler (suspended)")
        expect(page.locator("#waiting")).to_contain_text("needs 6 slots")


def test_a_jobs_page_shows_the_straggler_live(scene: Scene, browser: Browser) -> None:
    with page_of(browser) as page:
        page.goto(f"{scene.stage.url}/jobs/{scene.training}")
        expect(page.locator("#pace-legend li")).to_have_count(5)  # and the whole step
        expect(page.locator("#pace-legend")).to_contain_text("rank 3 · node-1")
        verdict = page.locator("#verdicts .verdict.standing")
        expect(verdict.locator("h3")).to_contain_text(f"Rank 1 of {scene.training} on node-0 is a straggler")
        expect(verdict).to_contain_text("compute seconds a step")
        expect(page.locator("#summary")).to_contain_text("slowest rank 1")
        expect(page.locator("#story")).to_contain_text("made its first step")
        # The map has a row for each rank. Rank 1 has the darkest of the newest cells.
        width, height = page.evaluate(
            "() => { const map = document.getElementById('pace-map'); return [map.width, map.height] }"
        )
        assert height == 4
        assert width >= 10
        expect(page.locator("#summary")).not_to_have_text(page.locator("#summary").inner_text())
        page.locator("#pace-map").focus()
        page.keyboard.press("ArrowDown")
        cell = page.locator("#pace-cell")
        expect(cell).to_have_text(re.compile(r"^rank 1 · node-0, step [\d,]+ \(.*\): [\d.]+ times its peers$"))
        # The rank is stopped on and off, so that in some seconds it is as fast as its peers, and on a busy machine it
        # ends no step in some.
        ratios = []
        for _ in range(10):
            found = re.search(r"([\d.]+) times", cell.inner_text())
            ratios += [float(found[1])] if found is not None else []
            page.keyboard.press("ArrowLeft")
        assert len(ratios) >= 5
        assert max(ratios) > 1.1


def test_pages_in_dark_mode_and_on_a_phone(scene: Scene, browser: Browser) -> None:
    for path in ("/", f"/jobs/{scene.training}"):
        with page_of(browser, scheme="dark", allow_eval=True) as page:
            page.goto(f"{scene.stage.url}{path}")
            expect(page.locator("#liveness")).to_have_text("live", timeout=30_000)
            assert serious_findings(Axe().run(page)) == []
        with page_of(browser, width=400, height=800, allow_eval=True) as page:
            page.goto(f"{scene.stage.url}{path}")
            expect(page.locator("#liveness")).to_have_text("live", timeout=30_000)
            assert page.evaluate("() => document.scrollingElement.scrollWidth") <= 400
            assert serious_findings(Axe().run(page)) == []
