"""Pages in a real Chromium: by keyboard, on a phone, in dark mode, with axe-core, logged in and logged out.

GANGWATCH_UPDATE_IMAGES=1 rewrites the pictures in docs/images.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FloatRect, Page, Route, expect

from agent.schema.frame import Frame, Layout
from scheduler_feedback.controller import cycle_thread as loop_module
from scheduler_feedback.core.events import NodeSeen
from tests.cluster.memory_backend import World
from tests.controller.site import Site, serving
from tests.web.browser import page_of, serious_findings
from tests.web.findings import step_frames, straggler

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.fixture
def url(site: Site) -> str:
    """Run a controller with four jobs: with a verdict, pending with a reservation, ended, and backfilled."""
    site.grow(NodeSeen("n2", 2, (), "m"))
    ended = site.submit(name="ended")
    site.wait(ended, "running")
    site.world.end(ended, exit_code=1)
    site.wait(ended, "failed")
    running = site.submit(name="train", time_limit_seconds=600, user="ada")
    site.wait(running, "running")
    site.submit(name="head", ranks=6, time_limit_seconds=600)
    ahead = site.submit(name="short", time_limit_seconds=60)
    site.wait(ahead, "running")
    node = site.get(f"/api/jobs/{running}")["ranks"][0]["node"]
    assert node == "n0"
    site.controller.cycle.report([straggler(running)])
    return f"http://127.0.0.1:{site.port}"


PATHS = ("/", "/jobs", "/jobs/j-000002", "/jobs/j-000003", "/jobs/j-000001", "/nodes", "/nodes/n0")


def _live(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#liveness")).to_have_text("live", timeout=30_000)


@pytest.mark.parametrize(("scheme", "paths"), [("light", PATHS), ("dark", ("/", "/jobs/j-000002", "/nodes"))])
def test_axe_reports_nothing_serious_on_any_page(
    url: str, browser: Browser, scheme: str, paths: tuple[str, ...]
) -> None:
    with page_of(browser, scheme=scheme, allow_eval=True) as page:
        for path in paths:
            _live(page, url + path)
            assert serious_findings(Axe().run(page)) == [], path
        page.goto(f"{url}/nodes/n0")
        page.get_by_role("button", name="Release").click()
        assert serious_findings(Axe().run(page)) == [], "with the dialog open"


def test_a_phone_shows_every_page_without_scrolling_sideways(url: str, browser: Browser) -> None:
    with page_of(browser, width=400, height=800) as page:
        for path in PATHS:
            _live(page, url + path)
            assert page.evaluate("() => document.scrollingElement.scrollWidth") <= 400, path


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return a controller's address and the id of a job with a straggler, which has made steps for two minutes."""
    _quick(monkeypatch)
    with serving(tmp_path, _small_world()) as site:
        training = site.submit(name="llama-8b", ranks=8, time_limit_seconds=900, user="ada")
        job = site.wait(training, "running")
        site.submit(name="mixtral-8x7b", ranks=16, time_limit_seconds=900, user="grace")
        ahead = site.submit(name="evaluate", ranks=4, time_limit_seconds=300, user="ada")
        site.wait(ahead, "running")
        _feed(site, step_frames(job, steps=240, slow_rank=3, slow_from=150))
        site.controller.cycle.report([straggler(training, rank=3, node="node-0")])
        over = threading.Event()

        begun_s = time.monotonic()

        def send_frames() -> None:
            for number in count(240):
                end_s = begun_s + 0.55 * (number - 239)
                if over.wait(max(end_s - time.monotonic(), 0)):
                    return
                late = time.monotonic() - end_s
                _feed(site, step_frames(job, 1, slow_rank=3, slow_from=0, first=number, ended_seconds=late))

        thread = threading.Thread(target=send_frames)
        thread.start()
        yield f"http://127.0.0.1:{site.port}", training
        over.set()
        thread.join()


REDNESS = """bands => {
    // Redness (red minus green) of the map's cells, by band and column; null where nothing is drawn.
    const map = document.getElementById("pace-map");
    const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
    const of = at => (data[at + 3] ? data[at] - data[at + 1] : null);
    return bands.map(band => Array.from({ length: map.width }, (_, column) => of(4 * (band * map.width + column))));
}"""


def test_a_jobs_page_draws_step_times_and_the_map_of_ranks(scene: tuple[str, str], browser: Browser) -> None:
    url, training = scene
    with page_of(browser) as page:
        _live(page, f"{url}/jobs/{training}")
        expect(page.locator("#pace-legend li")).to_have_count(9)
        expect(page.locator("#pace-legend li").nth(3)).to_contain_text("rank 3 · node-0 5")  # 510 ms or so
        expect(page.locator("#pace-legend li").nth(8)).to_contain_text("whole step 5")
        expect(page.locator("#summary")).to_contain_text("slowest rank 3, 1.")
        width, height = page.evaluate(
            "() => { const map = document.getElementById('pace-map'); return [map.width, map.height] }"
        )
        assert height == 8
        assert width >= 60
        slow, other = page.evaluate(REDNESS, [3, 5])
        drawn = [at for at, red in enumerate(slow) if red is not None and at < width - 10]
        assert max(slow[at] for at in drawn[-20:]) > 80
        assert max(slow[at] for at in drawn[:20]) < 60
        assert max(other[at] for at in drawn) < 60
        expect(page.locator("#pace-names span")).to_have_text([f"rank {rank}" for rank in range(8)])
        expect(page.locator("#pace-times .last")).to_have_text("now")
        assert page.locator("#pace-times span").count() > 3
        expect(page.locator("#pace-heat li")).to_have_count(6)
        page.locator("#pace-map").focus()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        cell = page.locator("#pace-cell")
        expect(cell).to_have_text(re.compile(r"^rank 3 · node-0, step \d+ \(.*\): 1\.[5-9]\d times its peers$"))
        drawn_bytes = page.evaluate("() => document.querySelector('#pace-chart canvas').toDataURL().length")
        assert drawn_bytes > 5000


def _small_world() -> World:
    return World([NodeSeen(f"node-{n}", 4, (), f"m{n}") for n in range(4)])


def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.1)


def _feed(site: Site, frames: list[tuple[Layout, Frame]]) -> None:
    for layout, frame in frames:
        site.controller._detection.offer(layout, frame, time.monotonic_ns())


def test_the_chart_shows_stops_of_a_rank_as_gaps_of_the_same_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    _quick(monkeypatch)
    with serving(tmp_path, _small_world()) as site:
        job = site.wait(site.submit(name="train", ranks=8), "running")
        _feed(site, step_frames(job, 400, slow_rank=3, slow_from=400, stops={150: 40.0, 260: 140.0}))
        with page_of(browser) as page:
            _live(page, f"http://127.0.0.1:{site.port}/jobs/{job['job']}")
            summary = page.locator("#pace-said")
            expect(summary).to_contain_text(re.compile(r"^Longest step: 140 s, ended"))
            found = re.search(r"No step ended for (4[01]) s from .*, (2 min 2[01] s) from", summary.inner_text())
            assert found is not None, summary.inner_text()
            expect(page.locator("#pace-scale")).to_be_visible()
            slow, other = page.evaluate(REDNESS, [3, 5])
            assert sum(red is None for red in slow) >= 178, "columns of seconds in which no step ended"
            # Dark only where the rank ends the two steps.
            assert len([red for red in slow if red is not None and red > 80]) == 2
            assert not [red for red in other if red is not None and red > 80]


def test_a_stalled_job_is_not_shown_at_normal_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    _quick(monkeypatch)
    with serving(tmp_path, _small_world()) as site:
        job = site.wait(site.submit(name="train", ranks=8), "running")
        _feed(site, step_frames(job, 200, slow_rank=3, slow_from=200, ended_seconds=59))
        with page_of(browser) as page:
            _live(page, f"http://127.0.0.1:{site.port}/jobs/{job['job']}")
            summary = page.locator("#summary")
            expect(summary).to_contain_text(re.compile(r"No step for\s*(59|6\d|7\d) s"))
            expect(page.locator("#verdicts")).to_contain_text("the job has made no step for")
            expect(page.locator("#pace-said")).to_contain_text(re.compile(r"No step ended for (5\d|6\d|7\d) s from"))
            slow, _ = page.evaluate(REDNESS, [3, 5])
            assert all(red is None for red in slow[-50:]), "the axis continues to the current time"
            before = re.search(r"No step for\s*(\d+) s", summary.inner_text())
            assert before is not None
            expect(summary).not_to_contain_text(before[0].split()[-2] + " s", timeout=10_000)  # the time increases
            site.world.end(job["job"], exit_code=1)
            site.wait(job["job"], "failed")
            expect(summary).to_contain_text("Last step")
            expect(summary).not_to_contain_text("Running for")
            expect(page.locator("#pace-times .last")).to_have_text("end")


def test_pictures_of_the_pages(scene: tuple[str, str], browser: Browser) -> None:
    url, training = scene
    places = {"overview": ("/", "section:has(#latest)"), "job": (f"/jobs/{training}", ".pair")}
    for name, (path, until) in places.items():
        for kind, size, scheme in (
            ("light", (1280, 900), "light"),
            ("dark", (1280, 900), "dark"),
            ("phone", (400, 800), "light"),
        ):
            with page_of(browser, *size, scheme=scheme) as page:
                _live(page, url + path)
                expect(page.locator("#verdicts")).to_contain_text(
                    re.compile(r"Rank 3 of j-\d+ on node-0 is a straggler")
                )
                box = page.locator(until).bounding_box()
                assert box is not None
                clip: FloatRect = {"x": 0, "y": 0, "width": size[0], "height": box["y"]}
                picture = page.screenshot(full_page=True, clip=clip)
                assert len(picture) > 20_000
                if os.environ.get("GANGWATCH_UPDATE_IMAGES"):
                    IMAGES.mkdir(exist_ok=True)
                    (IMAGES / f"{name}-{kind}.png").write_bytes(picture)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return the address of a controller with 500 nodes in 32 racks, and a job of 3,000 ranks, one with a verdict."""
    _quick(monkeypatch)
    nodes = [NodeSeen(f"node-{n:04d}", 8, (), f"m{n}", rack=f"r{n // 16:02d}") for n in range(500)]
    with serving(tmp_path, World(nodes)) as site:
        job = site.wait(site.submit(name="large", ranks=3000, time_limit_seconds=900), "running")
        for number in range(30):
            site.submit(name=f"small {number}", ranks=1 + number % 8, time_limit_seconds=600)
        _feed(site, step_frames(job, 60, slow_rank=1777, slow_from=30, own_seconds=0.9))
        site.controller.cycle.report([straggler(job["job"], rank=1777, node=job["ranks"][1777]["node"])])
        yield f"http://127.0.0.1:{site.port}", job["job"]


def test_a_job_of_3000_ranks_shows_the_accused_and_the_slowest_first(large: tuple[str, str], browser: Browser) -> None:
    url, job = large
    with page_of(browser) as page:
        _live(page, f"{url}/jobs/{job}")
        expect(page.locator("#summary")).to_contain_text("slowest rank 1777")
        rows = page.locator("#ranks tbody tr")
        expect(rows).to_have_count(24)
        expect(rows.first).to_contain_text("1777")
        expect(rows.first).to_have_class("accused")
        cells = page.locator("#ranks td[data-label^='Relative']")
        ratios = [float(text.split()[0]) for text in cells.all_inner_texts()]
        assert ratios[0] > 1.5
        assert ratios[1:16] == sorted(ratios[1:16], reverse=True)
        expect(page.locator("#all-placements")).to_contain_text("Where all 3,000 ranks are")
        expect(page.locator("#all-placements")).not_to_have_attribute("open", "")
        assert page.locator("#all-placements li").count() == 375
        assert page.locator("#pace-names span").count() <= 40
        assert page.evaluate("() => document.scrollingElement.scrollHeight") < 3500
    with page_of(browser, width=400, height=800) as page:
        _live(page, f"{url}/jobs/{job}")
        expect(page.locator("#ranks tbody tr")).to_have_count(24)
        assert page.evaluate("() => document.scrollingElement.scrollHeight") < 6500


def test_500_nodes_are_folded_by_rack(large: tuple[str, str], browser: Browser) -> None:
    url, _ = large
    with page_of(browser) as page:
        _live(page, f"{url}/")
        rows = page.locator("#timetable .timetable > li:not(.axis)")
        expect(rows).to_have_count(32)
        expect(rows.first).to_contain_text("rack r00")
        expect(rows.first).to_contain_text("16 nodes")
        expect(page.locator("#timetable")).to_contain_text("500 nodes, folded by rack")
        box = page.locator("#timetable").bounding_box()
        assert box is not None
        assert box["height"] < 1500


def test_a_phone_shows_every_column_of_every_list(url: str, browser: Browser) -> None:
    hidden = """() => [...document.querySelectorAll(".scroll table")].flatMap(table => {
        const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent);
        return [...table.querySelectorAll("tbody tr")].flatMap(row => [...row.children].flatMap((cell, at) => {
            const box = cell.getBoundingClientRect();
            const label = getComputedStyle(cell, "::before").content;
            const seen = box.width > 0 && box.height > 0 && box.left >= 0 && box.right <= innerWidth + 1;
            return seen && label.includes(names[at]) ? [] : [`${names[at]}: ${label} ${JSON.stringify(box)}`];
        }));
    })"""
    with page_of(browser, width=400, height=800) as page:
        for path in PATHS:
            _live(page, url + path)
            assert page.evaluate(hidden) == [], path


def test_the_pages_work_with_the_keyboard_alone(url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        _tab_to(page, "#row-j-000002 a")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}/jobs/j-000002")
        expect(page.get_by_role("heading", level=1)).to_contain_text("train")
        _tab_to(page, "#verdicts details summary")
        page.keyboard.press("Enter")
        expect(page.locator("#verdicts details").first).to_have_attribute("open", "")
        _tab_to(page, "#verdicts button[data-post$='/reject']")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        expect(page.get_by_role("dialog").get_by_role("link", name="Log in")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.locator("#verdicts button[data-post$='/reject']")).to_be_focused()


def _tab_to(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus. Fail after 60 times."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} can't be reached by keyboard")


def test_updates_keep_the_focus_and_unfolded_sections(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/")
        page.locator("#verdicts summary").click()
        link = page.locator("#row-j-000002 a")
        link.focus()
        later = site.submit(name="later")
        expect(page.locator(f"#row-{later}")).to_be_visible()
        site.post("/api/freeze", {"by": "ada"})
        expect(page.locator("#notice")).to_contain_text("Frozen by ada.")
        expect(link).to_be_focused()
        expect(page.locator("#verdicts details")).to_have_attribute("open", "")


def test_updates_are_announced_to_screen_readers(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/")
        status = page.get_by_role("status")
        expect(status).to_have_attribute("aria-live", "polite")
        site.world.end("j-000004")
        expect(status).to_contain_text("j-000004: completed")


def _log_in(page: Page, url: str, token: str, path: str = "/") -> None:
    """Log in with the form, starting from the page `path` and returning to it."""
    page.goto(f"{url}{path}")
    page.get_by_role("link", name="Log in").first.click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("operator", exact=True)).to_be_visible()


def test_actions_require_a_login(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/jobs/j-000003")
        page.get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog", name="Cancel j-000003?")
        expect(dialog.get_by_role("button", name="Yes")).to_be_disabled()
        assert site.get("/api/jobs/j-000003")["state"] == "pending"
        dialog.get_by_role("link", name="Log in").click()
        page.get_by_label("Token").fill(site.token)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/jobs/j-000003")
        page.get_by_role("button", name="Cancel").click()
        dialog.get_by_label("Reason").fill("a typo")
        dialog.get_by_role("button", name="Yes").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("#head")).to_contain_text("cancelled")
        assert site.token not in page.content()
        kept = page.evaluate("() => JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert kept == '[{},{},""]', "scripts cannot read the cookie"


def test_a_wrong_token_is_refused_with_a_message(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser, refused="401") as page:
        page.goto(f"{url}/login?next=/nodes")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("the token is not known here")
        page.get_by_label("Token").fill(site.token)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/nodes")


def test_a_token_in_the_fragment_is_removed_from_the_address(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        page.goto(f"{url}/nodes/n0#token={site.token}")
        expect(page).to_have_url(re.compile(r"/login\?next=%2Fnodes%2Fn0$"))
        expect(page.get_by_label("Token")).to_have_value(site.token)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/nodes/n0")
        page.get_by_role("button", name="Release").click()
        page.get_by_role("button", name="Yes").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.locator("#head")).to_contain_text("healthy")


def test_a_login_shows_the_command_and_a_logout_hides_it(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/jobs/j-000002")
        expect(page.locator("main")).to_contain_text("shown to its user and to operators")
        _log_in(page, url, site.token, "/jobs/j-000002")
        expect(page.locator("main")).to_contain_text("python train.py")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("link", name="Log in").first).to_be_visible()
        expect(page.locator("main")).not_to_contain_text("python train.py")
        assert page.context.cookies() == []


@pytest.mark.parametrize("button", ["Log out", "Cancel"])
def test_a_click_before_the_script_has_run_is_not_lost(site: Site, url: str, browser: Browser, button: str) -> None:
    """The page's script is a module: the browser shows the buttons, and accepts clicks, before the script has run."""
    with page_of(browser) as page:
        _log_in(page, url, site.token, "/jobs/j-000002")
        held: list[Route] = []
        page.route("**/static/page.js", lambda route: held.append(route), times=1)
        page.goto(f"{url}/jobs/j-000002", wait_until="commit")
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        assert len(held) == 1, "the script has not run"
        held[0].continue_()
        if button == "Cancel":
            expect(page.get_by_role("dialog", name="Cancel j-000002?")).to_be_visible()
        else:
            expect(page.get_by_role("link", name="Log in").first).to_be_visible()
            assert page.context.cookies() == []


def test_the_login_page_is_accessible(url: str, browser: Browser) -> None:
    """Check it with axe-core on a phone."""
    with page_of(browser, width=400, height=800, allow_eval=True) as page:
        page.goto(f"{url}/login")
        assert serious_findings(Axe().run(page)) == []
        assert page.evaluate("() => document.scrollingElement.scrollWidth") <= 400


def test_a_login_needs_no_script(site: Site, url: str, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/login?next=/jobs/j-000002")
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{url}/jobs/j-000002")
    expect(page.locator("main")).to_contain_text("python train.py")
    context.close()


def test_the_theme_can_be_chosen_and_is_stored(url: str, browser: Browser) -> None:
    with page_of(browser) as page:
        _live(page, f"{url}/")

        def background() -> str:
            return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

        light = background()
        button = page.get_by_role("button", name="Theme: as the system's")
        button.click()
        page.get_by_role("button", name="Theme: light").click()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert background() != light
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        page.get_by_role("button", name="Theme: dark").click()
        assert background() == light


def test_a_page_is_complete_without_a_script(url: str, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/")
    expect(page.locator("#verdicts")).to_contain_text("Rank 0 of j-000002 on n0 is a straggler")
    expect(page.locator("#timetable")).to_contain_text("6 slots reserved for j-000003")
    context.close()


def test_a_page_shows_a_lost_stream_and_reconnects(site: Site, url: str, browser: Browser) -> None:
    with page_of(browser, refused="503") as page:
        _live(page, f"{url}/")
        site.controller.subscribers.close()
        expect(page.locator("#liveness")).to_have_text("reconnecting")
        site.controller.subscribers.closed = False
        expect(page.locator("#liveness")).to_have_text("live", timeout=30_000)
