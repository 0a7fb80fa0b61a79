"""HTTP responses of the pages: content, refusals, and escaping of text that users choose."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse

import pytest

from scheduler_feedback.api.subscribers import MOST_STREAMS_EACH
from scheduler_feedback.api.web import elements, page_responses, pages, timetable, words
from scheduler_feedback.api.web.job_progress import Progress, progress_of
from scheduler_feedback.api.web.markup import Markup, join, tag
from scheduler_feedback.api.web.verdicts import card
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.telemetry.steps.pace import Speed
from tests.controller.site import Site
from tests.web.findings import straggler

EVIL = "<script>alert(1)</script>\"'&"


# --- markup -----------------------------------------------------------------------------------------------------------


def test_texts_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert tag("p", EVIL, title=EVIL) == (
        '<p title="&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;">'
        "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;</p>"
    )
    assert tag("p", tag("b", 1), None, False, [0, tag("i")]) == "<p><b>1</b>0<i></i></p>"
    assert tag("input", name="token", required=True, hidden=False, aria_label="T") == (
        '<input name="token" required aria-label="T">'
    )
    assert isinstance(join(("a", Markup("<b>"))), Markup)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0.0842, "84.2 ms"),
        (1.324, "1.32 s"),
        (42.0, "42 s"),
        (200.0, "3 min 20 s"),
        (3600.0, "1 h"),
        (7500.0, "2 h 5 min"),
        (273_600.0, "3 d 4 h"),
    ],
)
def test_durations_are_rendered_for_people(seconds: float | None, shown: str) -> None:
    assert words.seconds(seconds) == shown


def test_natural_order_compares_numbers_in_names() -> None:
    assert sorted(["n10", "n9", "n2a", "10", "9"], key=timetable.natural) == ["9", "10", "n2a", "n9", "n10"]


# --- responses --------------------------------------------------------------------------------------------------------


def _paths(job_id: str) -> tuple[str, ...]:
    return ("/", "/jobs", f"/jobs/{job_id}", "/nodes", "/nodes/n0")


def test_no_page_contains_user_markup_or_inline_scripts_and_styles(site: Site) -> None:
    job_id = site.submit(name=EVIL, user=EVIL, queue=EVIL, command=[EVIL], time_limit_seconds=60)
    site.wait(job_id, "running")
    waiting = site.submit(name=EVIL, ranks=4)
    site.controller.cycle.report([straggler(job_id, EVIL)])
    site.post("/api/nodes/n1/maintenance", {"by": EVIL, "reason": EVIL})
    for path in (*_paths(job_id), f"/jobs/{waiting}", f"/jobs?words={EVIL.replace(' ', '').replace('<', '%3C')}"):
        answer = site.ask("GET", path, Authorization=None)
        text = answer.content.decode()
        assert answer.status == 200, text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "alert(1)" in text or path == "/nodes/n0"
        for found in re.findall(r"<script[^>]*>[^<]*", text):
            assert re.fullmatch(r'<script src="/static/[A-Za-z.]+"( defer| type="module")?>', found)
        assert not re.search(r"<[a-z]+[^>]* (style|on[a-z]+)=", text)
        assert "<style" not in text


def test_every_page_has_a_content_security_policy(site: Site) -> None:
    job_id = site.submit()
    for path in (*_paths(job_id), "/jobs/j-none", "/static/page.js"):
        headers = site.ask("GET", path, Authorization=None).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_pages_refuse_foreign_hosts_and_origins(site: Site) -> None:
    for path in ("/", "/jobs", "/live/", "/static/page.js"):
        assert site.ask("GET", path, Host=f"rebound.example:{site.port}").status == 403
        assert site.ask("GET", path, Origin="http://elsewhere.example").status == 403
        assert site.ask("POST", path, {}).status == 405


@pytest.mark.parametrize("path", ["/jobs/j-none", "/nodes/n9", "/jobs/..%2f..%2ftoken"])
def test_an_unknown_job_or_node_has_a_404_page(site: Site, path: str) -> None:
    answer = site.ask("GET", path)
    assert answer.status == 404
    assert b"<h1>no " in answer.content or b"Not Found" in answer.content


@pytest.mark.parametrize("path", ["/live/jobs/j-none", "/live/nodes/n9", "/static/none.js", "/static/..%2fpages.py"])
def test_an_unknown_stream_or_file_is_refused(site: Site, path: str) -> None:
    assert site.ask("GET", path).status == 404


@pytest.mark.parametrize("path", ["/jobs?page=0", "/jobs?page=x", "/nodes?page=-1"])
def test_an_invalid_page_number_is_refused(site: Site, path: str) -> None:
    assert site.ask("GET", path).status == 400


def test_an_unchanged_file_is_not_sent_again(site: Site) -> None:
    for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css"), ("icon.svg", "image/svg+xml")):
        answer = site.ask("GET", f"/static/{name}")
        assert answer.headers["content-type"].startswith(kind)
        again = site.ask("GET", f"/static/{name}", If_None_Match=answer.headers["etag"])
        assert (again.status, again.content) == (304, b"")


def test_every_vendored_file_has_a_licence_and_a_checksum() -> None:
    import hashlib

    folder = page_responses._FOLDER / "vendored"
    text = (folder / "README.md").read_text()
    for file in folder.iterdir():
        if file.suffix in (".js", ".css"):
            assert hashlib.sha256(file.read_bytes()).hexdigest() in text, (
                f"{file.name} differs from README.md's checksum"
            )


# --- lists ------------------------------------------------------------------------------------------------------------


def test_lists_are_paged_and_filtered(site: Site) -> None:
    site.grow(*(NodeSeen(f"rack-{n}", 1, (), "m") for n in range(120)))
    wanted = site.submit(name="needle", user="ada")
    for _ in range(51):
        site.submit(name="hay", ranks=120)
    page = site.ask("GET", "/jobs").content.decode()
    assert page.count('<tr id="row-') == 50
    assert "Page 1 of 2" in page
    assert 'href="/jobs?page=2"' in page
    for query in ("words=needle", "words=ADA", "page=2"):
        assert f'id="row-{wanted}"' in site.ask("GET", f"/jobs?{query}").content.decode()
    assert "No matching jobs." in site.ask("GET", "/jobs?state=failed").content.decode()
    site.post("/api/nodes/rack-77/maintenance", {"by": "ada", "reason": "new NIC"})
    nodes = site.ask("GET", "/nodes").content.decode()
    assert nodes.index("rack-77</a>") < nodes.index("rack-3</a>")  # the worst racks are first
    assert nodes.count('class="tile ') == 122
    assert "Page 1 of 3" in nodes
    assert "new NIC" in site.ask("GET", "/nodes/rack-77").content.decode()


def test_pages_of_a_large_cluster_are_bounded(site: Site) -> None:
    site.grow(*(NodeSeen(f"node-{n:05d}", 8, (), f"m{n}") for n in range(3000)))
    jobs = [site.submit(name=f"job {n}", ranks=8, time_limit_seconds=600) for n in range(150)]
    head = site.submit(name="head", ranks=24_004)
    site.wait(jobs[-1], "running")
    for path in ("/", "/jobs", "/nodes", f"/jobs/{head}"):
        began = time.monotonic()
        answer = site.ask("GET", path)
        assert answer.status == 200
        assert len(answer.content) < 200_000, path
        assert time.monotonic() - began < 20
    text = site.ask("GET", "/").content.decode()
    assert "3,002 nodes, folded by state" in text
    assert "of 24,004 usable" in text
    assert text.count('id="row-j-') == 30 + 1


def test_nodes_without_racks_are_folded_by_state_with_all_jobs(site: Site) -> None:
    site.grow(*(NodeSeen(f"node-{n:03d}", 8, (), f"m{n}") for n in range(100)))
    for number in range(60):
        last = site.submit(name=f"small {number}", ranks=2, time_limit_seconds=60 * (number + 1))
    site.wait(last, "running")
    site.post("/api/nodes/node-099/maintenance", {"by": "ada", "reason": "new NIC"})
    drawn = site.get("/api/overview")["timetable"]
    assert drawn["folded"] == "state"
    assert {row["node"]: row["nodes"] for row in drawn["rows"]} == {"healthy": 101, "maintenance": 1}
    healthy = next(row for row in drawn["rows"] if row["node"] == "healthy")
    assert healthy["slots"] == 99 * 8 + 4
    assert len(healthy["bars"]) == timetable.MOST_BARS + 1
    assert sum(bar["jobs"] for bar in healthy["bars"]) == 60
    assert sum(bar["slots"] for bar in healthy["bars"]) == 120
    tops = [bar["first"] + bar["slots"] for bar in healthy["bars"]]
    assert [bar["first"] for bar in healthy["bars"]] == [0, *tops[:-1]], "bars are stacked"
    assert "20 smaller jobs, 40 slots, expected to end from" in site.ask("GET", "/").content.decode()


def test_an_ended_job_shows_no_running_time(site: Site) -> None:
    job_id = site.submit(name="short")
    site.wait(job_id, "running")
    site.world.end(job_id)
    site.wait(job_id, "completed")
    for path in ("/jobs", f"/jobs/{job_id}", "/"):
        text = site.ask("GET", path).content.decode()
        assert 'data-count="for"' not in text, path
    site.wait(site.submit(name="blocker"), "running")
    never = site.submit(name="never", ranks=4)
    site.post(f"/api/jobs/{never}/cancel", {"by": "ada", "reason": ""})
    site.wait(never, "cancelled")
    assert 'data-count="for"' not in site.ask("GET", f"/jobs/{never}").content.decode()


def test_a_job_without_steps_is_not_shown_at_normal_speed(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    overview, job = (site.ask("GET", path).content.decode() for path in ("/", f"/jobs/{job_id}"))
    assert "No verdict is active: 1 job reports no steps." in overview
    assert "No step of this attempt was received yet" in job
    for text in (overview, job):
        assert "normal speed" not in text
        assert "empty good" not in text.partition('id="verdicts"')[2].partition("</section>")[0]


SPEED = Speed(1, 0.1, 0.1, 0.115, 400, 1_000 * 10**9)


@pytest.mark.parametrize(
    ("state", "held_up", "speed", "after", "unknown_after", "progress"),
    [
        ("running", False, SPEED, 1, None, Progress.NORMAL),
        ("running", False, replace(SPEED, seconds=0.152), 1, None, Progress.SLOW),
        ("running", False, SPEED, 1, 30, Progress.SLOW),  # a detector reported slowness without a cause
        ("running", False, SPEED, 1, 300, Progress.NORMAL),
        ("running", False, SPEED, 59, None, Progress.STALLED),
        ("running", True, SPEED, 59, None, Progress.HELD_UP),
        ("running", False, None, 59, None, Progress.UNREPORTED),
        ("running", False, replace(SPEED, attempt=0), 1, None, Progress.UNREPORTED),
        ("running", False, replace(SPEED, usual_seconds=math.nan, slow_seconds=math.inf), 1, None, Progress.LEARNING),
        ("pending", False, SPEED, 59, None, Progress.NOT_RUNNING),
        ("completed", False, SPEED, 1, None, Progress.ENDED),
        ("failed", True, SPEED, 59, None, Progress.ENDED),
    ],
)
def test_progress_of_a_job(
    state: str, held_up: bool, speed: Speed | None, after: int, unknown_after: int | None, progress: Progress
) -> None:
    now_ns = SPEED.end_ns + after * 10**9
    unknown_ns = None if unknown_after is None else now_ns - unknown_after * 10**9
    assert progress_of(state, 1, held_up, speed, now_ns, unknown_ns) is progress


# --- streams ----------------------------------------------------------------------------------------------------------


class Stream:
    """Reader of server-sent events."""

    def __init__(self, site: Site, path: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", site.port, timeout=20)
        self._connection.request("GET", path)
        self.response: HTTPResponse = self._connection.getresponse()
        assert self.response.status == 200

    def next(self, kind: str) -> dict[str, str]:
        """Return the next event of that kind."""
        name = ""
        while line := self.response.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name == kind:
                found = json.loads(value)
                assert isinstance(found, dict)
                return found
        raise AssertionError("the stream ended")

    def part(self, name: str) -> str:
        while (event := self.next("part"))["name"] != name:
            pass
        return event["html"]

    def close(self) -> None:
        self.response.close()
        self._connection.close()


def test_a_stream_sends_every_part_first_and_then_changes(site: Site) -> None:
    stream = Stream(site, "/live/")
    first = {stream.next("part")["name"] for _ in range(9)}
    assert first == {"summary", "notice", "verdicts", "running", "timetable", "waiting", "nodes", "ended", "latest"}
    job_id = site.submit(name="train")
    while job_id not in (html := stream.part("running")):
        pass
    assert "train" in html
    site.wait(job_id, "running")
    site.controller.cycle.report([straggler(job_id)])
    assert f"Rank 0 of {job_id} on" in stream.part("verdicts")
    assert "straggler" in stream.next("news")["text"]
    stream.close()


def test_a_jobs_stream_reports_only_that_job(site: Site) -> None:
    mine, other = site.submit(name="mine"), site.submit(name="other")
    stream = Stream(site, f"/live/jobs/{mine}")
    stream.part("head")  # from here on the stream sends changes
    site.wait(mine, "running")
    site.wait(other, "running")
    site.world.end(other)
    site.world.end(mine)
    while "completed" not in stream.part("head"):
        pass
    assert stream.next("news")["text"].startswith(f"{mine}: completed")
    stream.close()


def test_streams_are_limited_and_end_with_the_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [Stream(site, "/live/") for _ in range(MOST_STREAMS_EACH)]
    answer = site.ask("GET", "/live/", Authorization=None)
    assert answer.status == 429
    assert str(MOST_STREAMS_EACH) in answer.error
    assert answer.headers["retry-after"] == "1"
    site.controller.end_streams()
    assert streams[0].response.read().endswith(b"\n\n")
    for stream in streams:
        stream.close()


def test_an_idle_stream_sends_heartbeats(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(pages, "RENDER_SECONDS", 0.05)
    stream = Stream(site, "/live/nodes/n0")
    assert stream.next("alive") == {}
    stream.close()


def test_every_action_of_the_pages_requires_a_token(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    site.controller.cycle.report([straggler(job_id)])
    site.post("/api/freeze", {"by": "ada"})
    found = set()
    for path in (*_paths(job_id), "/nodes/n1"):
        found |= set(re.findall(r'data-post="([^"]+)"', site.ask("GET", path).content.decode()))
    assert {path.rpartition("/")[2] for path in found} == {
        "freeze",
        "thaw",
        "cancel",
        "confirm",
        "reject",
        "release",
        "quarantine",
        "maintenance",
    }
    for path in found:
        assert site.ask("POST", path, {"by": "the page"}, Authorization=None).status == 401, path


def test_the_overview_has_a_json_document(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    document = site.get("/api/overview")
    assert document["jobs"]["running"] == 1
    assert document["slots"] == {"total": 4, "used": 2, "free": 2, "unavailable": 0}
    assert [job["job"] for job in document["running"]] == [job_id]
    assert document["step_seconds"] == {}
    answer = site.ask("GET", f"/api/jobs/{job_id}/pace")
    assert (answer.status, answer.error) == (404, f"no step of {job_id} was received")


def test_the_navigation_marks_the_current_page() -> None:
    text = elements.page("Jobs", "/jobs", "/live/jobs?page=1", tag("p", "x"))
    assert '<a href="/jobs" aria-current="page">' in text
    assert text.count("aria-current") == 1
    assert '<body data-stream="/live/jobs?page=1">' in text


def test_evidence_names_the_measure_in_plain_words() -> None:
    evidence = {"value": 0.046, "reference": 0.033, "unit": "s", "against": "warm-up", "log_likelihood_ratio": 0.5}
    shown = str(card({
        "job": "j-000001", "kind": "straggler", "node": "", "cause": "unknown", "slowdown": 1.0, "confidence": 0.9,
        "step_seconds_now": 0.0, "device": "", "aggressor": "", "resource": "", "suspects": (), "first_wall_ns": 1,
        "standing": True, "ruling": "", "judged": None, "verdict_id": "v", "frames": (),
        "sentence": "x, confidence 0.9",
        "evidence": [evidence | {"measure": "unrest_of_others"}, evidence | {"measure": "own_part"}],
    }))  # fmt: skip
    assert "own part" in shown and "spread of the other ranks" in shown and "unrest" not in shown
