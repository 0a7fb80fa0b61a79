"""API over real sockets: authentication, texts of refusals, and responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.schema.errors import ConfigError
from scheduler_feedback.api import event_streams
from scheduler_feedback.api.access.attempts import Attempts
from scheduler_feedback.api.rank_log_tail import tail_of
from scheduler_feedback.api.reading import listing
from scheduler_feedback.controller import cycle_thread as loop_module
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.state import Policy, Queue, State
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict
from scheduler_feedback.journal.replay import replay
from scheduler_feedback.journal.store import Store
from tests.cluster.memory_backend import World
from tests.controller.site import JOB, Site, serving


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.05)
    with serving(tmp_path, World()) as site:
        yield site


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run one controller for all requests that change nothing."""
    with serving(tmp_path_factory.mktemp("state"), World()) as site:
        yield site


# --- authentication --------------------------------------------------------------------------------------------------

WRITES = [
    "/api/jobs",
    "/api/jobs/j-000001/cancel",
    "/api/nodes/n0/quarantine",
    "/api/verdicts/v/confirm",
    "/api/freeze",
    "/api/thaw",
    "/api/reload",
]


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize("given", [None, "Bearer ", "Bearer wrong", "Basic abc", "token"])
def test_changes_require_a_token(refusing: Site, path: str, given: str | None) -> None:
    refusing.controller.access.attempts = Attempts()  # all tests share an address
    answer = refusing.ask("POST", path, JOB, Authorization=given)
    assert answer.status == 401
    assert "Authorization: Bearer TOKEN" in answer.error
    assert answer.headers["www-authenticate"] == "Bearer"
    assert refusing.get("/api/jobs") == []
    assert refusing.get("/api/queue")["frozen"] is False


def test_only_the_owner_may_read_the_token_file(refusing: Site) -> None:
    path = refusing.controller.folder / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == refusing.token
    assert len(refusing.token) >= 32


def test_job_output_requires_a_token(site: Site) -> None:
    job_id = site.submit()
    for path in (f"/api/jobs/{job_id}/logs?rank=0", f"/api/jobs/{job_id}/stacks", "/api/journal"):
        assert site.ask("GET", path, Authorization=None).status == 401
    assert site.ask("GET", "/api/jobs", Authorization=None).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::2]:{port}", "", "127.0.0.1.evil.example:{port}"]
)
def test_a_foreign_host_is_refused(refusing: Site, host: str) -> None:
    for method, path in (("GET", "/api/jobs"), ("POST", "/api/freeze"), ("GET", "/readyz")):
        answer = refusing.ask(method, path, {}, Host=host.format(port=refusing.port))
        assert answer.status in (400, 403)
        if answer.status == 403:
            assert "not this server's loopback address" in answer.error
    assert refusing.get("/api/queue")["frozen"] is False


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "127.8.8.8:{port}"])
def test_every_loopback_name_is_accepted(refusing: Site, host: str) -> None:
    assert refusing.ask("GET", "/api/jobs", Host=host.format(port=refusing.port)).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused(site: Site, origin: str) -> None:
    answer = site.ask("POST", "/api/freeze", {}, Origin=origin.format(port=site.port))
    assert answer.status == 403
    assert "Origin" in answer.error
    assert site.ask("POST", "/api/freeze", {}, Origin=f"http://127.0.0.1:{site.port}").status == 200


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["name", "user", "queue", "workload"])
@pytest.mark.parametrize(
    ("text", "expected"), [("a\u202eb", "RIGHT-TO-LEFT OVERRIDE"), ("a\nb", "U+000A"), ("\x9b", "U+009B")]
)
def test_a_misleading_name_is_refused_with_a_reason(refusing: Site, field: str, text: str, expected: str) -> None:
    answer = refusing.ask("POST", "/api/jobs", JOB | {field: text})
    assert answer.status == 400
    assert answer.error.startswith(f"{field} contains ") and expected in answer.error
    answer = refusing.ask("POST", "/api/nodes/n0/quarantine", {"reason": text})
    assert answer.status == 400 and expected in answer.error
    assert refusing.get("/api/nodes")[0]["state"] == "healthy"


def test_jobs_are_filtered_by_state_user_and_queue(site: Site) -> None:
    first = site.submit(user="ana")
    site.wait(first, "running")
    site.world.end(first)
    site.wait(first, "completed")
    second = site.submit(user="eve", queue="night")

    def found(query: str) -> list[str]:
        return [job["job"] for job in site.get(f"/api/jobs?{query}")]

    assert found("") == found("active=0") == [first, second]
    assert found("active=1") == found("user=eve") == found("queue=night") == [second]
    assert found("state=completed") == found("user=ana") == found("state=failed,completed") == [first]
    assert found("user=ana&queue=night") == found("state=completed&active=1") == []
    wrong = site.ask("GET", "/api/jobs?state=done")
    assert wrong.status == 400 and "completed" in wrong.error


def test_an_absent_node_can_be_removed(site: Site) -> None:
    refused = site.ask("POST", "/api/nodes/n1/remove", {"by": "ada"})
    assert refused.status == 409 and "still reports" in refused.error
    del site.world.nodes[1]
    for _ in range(200):
        if not site.get("/api/nodes")[1]["present"]:
            break
        time.sleep(0.02)
    assert site.get("/api/overview")["slots"]["total"] == 2
    site.post("/api/nodes/n1/remove", {"by": "ada", "reason": "sold"})
    assert [node["node"] for node in site.get("/api/nodes")] == ["n0"]
    assert site.get("/api/nodes/n1/story")[-1]["text"] == "removed by ada: sold"
    assert site.ask("POST", "/api/nodes/n1/remove", {}).status == 404


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "name"),
        ({"nme": "x", "command": ["x"], "ranks": 1, "name": "x"}, "unknown field `nme`"),
        (JOB | {"ranks": "2"}, "ranks: Expected `int`, got `str`"),
        (JOB | {"ranks": 0}, "ranks: Expected `int` >= 1"),
        (JOB | {"ranks": True}, "ranks: Expected `int`, got `bool`"),
        (JOB | {"command": "python train.py"}, "command: Expected `array`, got `str`"),
        (JOB | {"command": []}, "command: Expected `array` of length >= 1"),
        (JOB | {"command": ["python", 7]}, "command[1]: Expected `str`"),
        (JOB | {"environment": {"A": 1}}, "environment[...]: Expected `str`"),
        (JOB | {"time_limit_seconds": -1}, "time_limit_seconds"),
        (JOB | {"kind": "probe"}, "unknown field `kind`"),
        (JOB | {"pinned_node": "n0"}, "unknown field `pinned_node`"),
        (JOB | {"working_directory": "here"}, "working_directory: 'here' is not an absolute path"),
        (JOB | {"name": "a\nb"}, "name"),
        ([], "Expected `object`, got `array`"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"name": "\\ud800"}', "not JSON"),
    ],
)
def test_a_malformed_submission_is_refused_naming_the_field(refusing: Site, body: object, named: str) -> None:
    answer = refusing.ask("POST", "/api/jobs", body)
    assert answer.status == 400
    assert named in answer.error
    assert refusing.get("/api/jobs") == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ranks": 5}, "asks for 5 ranks; this cluster can hold at most 4 (2 nodes x 2 slots)"),
        ({"checkpoint_signal": "SIGKILL"}, "SIGKILL cannot be caught"),
        ({"checkpoint_signal": "SIGNONE"}, "'SIGNONE' is not a signal"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"environment": {"A=B": "c"}}, "is not a valid name for an environment variable"),
    ],
)
def test_an_impossible_job_is_refused_with_a_reason(refusing: Site, more: dict[str, object], words: str) -> None:
    answer = refusing.ask("POST", "/api/jobs", JOB | more)
    assert answer.status == 422
    assert words in answer.error


def test_a_body_must_be_json_and_short(site: Site) -> None:
    assert site.ask("POST", "/api/jobs", JOB, Content_Type="text/plain").status == 415
    assert site.ask("POST", "/api/freeze", {}, Content_Type=None).status == 415
    answer = site.ask("POST", "/api/jobs", JOB | {"environment": {"A": "x" * 1024 * 1024}})
    assert answer.status == 413
    assert "1048576" in answer.error
    assert site.ask("POST", "/api/jobs", JOB | {"environment": {"A": "x" * 900_000}}).status == 201


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("GET", "/nothing", 404),
        ("GET", "/api/jobs/j-000009", 404),
        ("GET", "/api/jobs/j-000009/explain", 404),
        ("GET", "/api/jobs/j-000009/story", 404),
        ("GET", "/api/jobs/j-000009/logs", 404),
        ("GET", "/api/jobs/..%2f..%2ftoken/logs", 404),
        ("GET", "/api/nodes/n9/story", 404),
        ("POST", "/api/jobs/j-000009/cancel", 404),
        ("POST", "/api/nodes/n9/release", 404),
        ("POST", "/api/nodes/n0/explode", 404),
        ("POST", "/api/verdicts/none/confirm", 404),
        ("POST", "/api/verdicts/none/ignore", 404),
        ("DELETE", "/api/jobs", 405),
        ("GET", "/api/freeze", 405),
        ("GET", "/api/jobs?active=yes", 400),
    ],
)
def test_every_error_is_json(refusing: Site, method: str, path: str, status: int) -> None:
    answer = refusing.ask(method, path, {} if method == "POST" else None)
    assert answer.status == status
    assert answer.error
    assert answer.headers["content-type"] == "application/json"


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_from_submission_to_its_story(site: Site) -> None:
    answer = site.ask("POST", "/api/jobs", JOB | {"environment": {"SECRET": "hunter2"}, "user": "ada"})
    assert answer.status == 201
    job_id = answer.document["job"]
    job = site.wait(job_id, "running")
    assert list(job)[:6] == ["job", "name", "state", "attempt", "ranks", "verdicts"]
    assert (job["job"], job["name"], job["attempt"], job["verdicts"]) == (job_id, "train", 1, [])
    assert job["ranks"][1] == {"rank": 1, "node": "n0", "slot": 1, "pid": 101, "start_time": 7, "exit_code": None}
    assert [listed["job"] for listed in site.get("/api/jobs")] == [job_id]
    [n0, n1] = site.get("/api/nodes")
    assert (n0["node"], n0["state"], n0["slots"], n0["free"]) == ("n0", "healthy", 2, 0)
    assert n0["jobs"] == [{"job": job_id, "ranks": 2}]
    assert n1["free"] == 2

    site.world.end(job_id)
    assert site.wait(job_id, "completed")["ranks"][0]["exit_code"] == 0
    assert site.get("/api/jobs?active=1") == []
    assert [listed["job"] for listed in site.get("/api/jobs")] == [job_id]
    assert site.ask("POST", f"/api/jobs/{job_id}/cancel", {}).status == 409
    assert [entry["kind"] for entry in site.get(f"/api/jobs/{job_id}/story")] == [
        "submitted",
        "started",
        "running",
        "ended",
    ]
    for path in (f"/api/jobs/{job_id}", "/api/jobs", f"/api/jobs/{job_id}/story", "/api/queue"):
        assert b"hunter2" not in site.ask("GET", path).content
    journal = site.ask("GET", "/api/journal").content
    assert b"Submitted" in journal
    assert b"hunter2" not in journal


def test_a_waiting_job_is_explained_queued_and_cancelled(site: Site) -> None:
    first = site.submit(ranks=4)
    site.wait(first, "running")
    second = site.submit(ranks=3, name="next")
    [waiting] = site.get("/api/queue")["waiting"]
    assert (waiting["job"], waiting["size"]) == (second, 3)
    assert site.get("/api/queue")["reserved_for"] == second
    explained = site.get(f"/api/jobs/{second}/explain")
    assert explained["state"] == "pending"
    assert explained["why"]
    assert [waited["job_id"] for waited in explained["waits_for"]] == [first]
    assert site.post(f"/api/jobs/{second}/cancel", {"by": "ada"}) == {"job": second}
    assert site.get(f"/api/jobs/{second}")["state"] == "cancelled"
    assert site.get(f"/api/jobs/{second}/story")[-1]["text"] == "cancelled: cancelled while pending by ada"


def test_a_node_command_appears_in_the_stories_of_node_and_jobs(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    assert site.post("/api/nodes/n0/maintenance", {"by": "ada", "reason": "new NIC"})["node"] == "n0"
    site.post("/api/nodes/n1/quarantine", {"reason": "elsewhere"})
    [n0, n1] = site.get("/api/nodes")
    assert (n0["state"], n1["state"]) == ("maintenance", "quarantine")
    site.post("/api/nodes/n1/release")
    assert site.get("/api/nodes")[1]["state"] == "healthy"
    story = site.get(f"/api/jobs/{job_id}/story")
    assert ("node:n0", "maintenance") in [(entry["subject"], entry["kind"]) for entry in story]
    assert "node:n1" not in [entry["subject"] for entry in story]
    assert any("new NIC" in entry["text"] for entry in site.get("/api/nodes/n0/story"))
    left = site.post("/api/nodes/n0/maintenance", {"drain": True})
    assert (
        [job["job"] for job in left["jobs"]]
        == [job_id]
        == [job["job"] for job in site.get("/api/nodes/n0/jobs")["jobs"]]
    )
    assert site.ask("POST", "/api/nodes/n0/release", {"drain": True}).status == 400
    assert site.ask("GET", "/api/nodes/n9/jobs").status == 404
    site.world.end(job_id)
    site.wait(job_id, "completed")
    site.post("/api/nodes/n0/release")
    assert [entry["kind"] for entry in site.get(f"/api/jobs/{job_id}/story")][-1] == "ended"


def test_a_verdict_is_listed_with_its_evidence_and_judged(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    verdict = Verdict(
        f"{job_id}/1/0/7", Kind.STRAGGLER, job_id, 1, 0, "n0", Cause.SUSPENDED, 0.97, 1.4, 0.2, 0.28, 1, 2,
        (Evidence("run time", 0.1, 0.2, "s", "its peers", 3.0),), (("n0", 12),),
    )  # fmt: skip
    site.controller.cycle.report([verdict])
    deadline = time.monotonic() + 20
    while not site.get("/api/verdicts"):
        assert time.monotonic() < deadline
    [listed] = site.get("/api/verdicts")
    assert (listed["verdict_id"], listed["job"], listed["cause"]) == (verdict.verdict_id, job_id, "suspended")
    assert (listed["standing"], listed["judged"]) == (True, None)
    assert listed["evidence"][0]["measure"] == "run time"
    assert site.get(f"/api/jobs/{job_id}")["verdicts"] == [listed]
    assert site.get("/api/nodes")[0]["state"] == "suspect"
    site.post(f"/api/verdicts/{verdict.verdict_id.replace('/', '%2F')}/reject", {"by": "ada"})
    [rejected] = site.get("/api/verdicts")
    assert (rejected["verdict_id"], rejected["standing"], rejected["judged"]) == (verdict.verdict_id, False, False)
    assert site.get("/api/nodes")[0]["state"] == "healthy"
    assert site.get("/api/decisions") == []
    site.post(f"/api/verdicts/{verdict.verdict_id}/confirm")  # a reviewed verdict stays known


def test_freeze_and_thaw(site: Site) -> None:
    assert site.post("/api/freeze", {"by": "ada"}) == {"frozen": True}
    assert (site.get("/api/queue")["frozen"], site.get("/api/queue")["frozen_by"]) == (True, "ada")
    job_id = site.submit()
    time.sleep(0.2)
    assert site.get(f"/api/jobs/{job_id}")["state"] == "pending"
    assert site.post("/api/thaw") == {"frozen": False}
    site.wait(job_id, "running")


def test_reload_applies_or_refuses_the_configuration(site: Site) -> None:
    site.reloads += [ConfigError("gangwatch.toml: policy.mode: unknown key"), Policy(migration_margin=0.5)]
    answer = site.ask("POST", "/api/reload", {})
    assert answer.status == 422
    assert answer.error == "gangwatch.toml: policy.mode: unknown key"
    assert site.post("/api/reload") == {"reloaded": True}
    assert site.controller.cycle.ask(lambda state: state.policy.migration_margin).result(20) == 0.5


def test_a_job_too_large_for_its_queue_is_refused_with_a_reason(site: Site) -> None:
    site.reloads.append(Policy(queues=(Queue("shut", limit=0), Queue("small", limit=1))))
    site.post("/api/reload")
    for queue, ranks, words in (
        ("shut", 1, "asks for 1 rank; queue shut may hold at most 0 slots: use another queue"),
        ("small", 2, "asks for 2 ranks; queue small may hold at most 1 slot: ask for at most 1 rank, or use another"),
    ):
        answer = site.ask("POST", "/api/jobs", JOB | {"queue": queue, "ranks": ranks})
        assert answer.status == 422
        assert words in answer.error
    assert site.get("/api/jobs") == []


def test_a_job_of_a_queue_that_does_not_exist_is_refused_with_the_queues(site: Site) -> None:
    assert site.ask("POST", "/api/jobs", JOB | {"queue": "nigth"}).status == 201, "no queue is configured"
    site.reloads.append(Policy(queues=(Queue("night"), Queue("day"))))
    site.post("/api/reload")
    answer = site.ask("POST", "/api/jobs", JOB | {"queue": "nigth"})
    assert answer.status == 422
    assert "queue nigth does not exist (did you mean night?); this cluster has the queues day, night" in answer.error
    for queue in ("night", "default"):
        assert site.ask("POST", "/api/jobs", JOB | {"queue": queue}).status == 201


def test_a_full_store_gives_507_and_not_ready(site: Site) -> None:
    database = site.controller.store._connection

    def limit(pages: int) -> None:
        site.controller.cycle.ask(lambda _: database.execute(f"PRAGMA max_page_count={pages}")).result(20)

    limit(database.execute("PRAGMA page_count").fetchone()[0])
    answer = site.ask("POST", "/api/jobs", JOB | {"environment": {"A": "x" * 100_000}})
    assert answer.status == 507
    assert "store.sqlite" in answer.error
    assert "SQLITE_FULL" in answer.error
    ready = site.ask("GET", "/readyz")
    assert ready.status == 503
    assert "store.sqlite" in ready.document["error"]
    assert site.ask("GET", "/healthz").status == 200
    assert site.get("/api/jobs") == []
    assert "journal" in site.post("/api/freeze")["warning"]
    limit(1_000_000)
    deadline = time.monotonic() + 20
    while site.ask("GET", "/readyz").status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert site.ask("POST", "/api/jobs", JOB).status == 201


def test_a_failed_controller_responds_503(site: Site) -> None:
    site.controller.cycle.stop()
    answer = site.ask("POST", "/api/jobs", JOB)
    assert answer.status == 503
    assert "stopping or has failed" in answer.error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_gives_500_with_a_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(listing, "explain", broken)
    job_id = site.submit()
    answer = site.ask("GET", f"/api/jobs/{job_id}/explain")
    assert answer.status == 500
    assert "ZeroDivisionError" in answer.error
    assert "secret" not in answer.error
    assert site.ask("GET", "/api/jobs").status == 200


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_job_that_has_not_started_has_no_stacks(site: Site) -> None:
    site.submit(ranks=4)
    waiting = site.submit(ranks=3)
    answer = site.ask("GET", f"/api/jobs/{waiting}/stacks")
    assert (answer.status, answer.error) == (404, f"{waiting} has not started")


def test_logs_of_a_rank(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    folder = site.controller.folder / "jobs" / job_id / "logs" / "1"
    folder.mkdir(parents=True)
    (folder / "rank-1.log").write_bytes(b"one\ntwo\n\xff three\nfour")
    assert site.get(f"/api/jobs/{job_id}/logs?rank=1&tail=2") == {
        "job": job_id,
        "attempt": 1,
        "rank": 1,
        "text": "\ufffd three\nfour",
    }
    assert site.get(f"/api/jobs/{job_id}/logs?rank=1")["text"].startswith("one\n")
    for query, status in (
        ("rank=0", 404),
        ("rank=2", 404),
        ("rank=-1", 400),
        ("rank=1&tail=x", 400),
        ("attempt=2", 400),
    ):
        assert site.ask("GET", f"/api/jobs/{job_id}/logs?{query}").status == status
    assert site.ask("GET", f"/api/jobs/{job_id}/stacks").status == 404, "it does not hang"
    (folder / "rank-0.log").symlink_to(site.controller.folder / "token")
    assert site.token.encode() not in site.ask("GET", f"/api/jobs/{job_id}/logs?rank=0").content


@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("lines", [0, 1, 3, 999, 1000, 1001])
def test_the_tail_has_the_requested_number_of_lines(tmp_path: Path, lines: int, ending: bytes) -> None:
    content = b"\n".join(b"%d %s" % (n, b"x" * (n % 200)) for n in range(1000)) + ending
    (tmp_path / "log").write_bytes(content)
    wanted = b"".join(content.splitlines(keepends=True)[1000 - min(lines, 1000) :])
    assert tail_of(tmp_path / "log", lines) == wanted.decode()


def test_the_tail_of_a_very_long_line_is_limited(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 5 * 1024 * 1024)
    assert len(tail_of(tmp_path / "log", 10)) == 4 * 1024 * 1024
    (tmp_path / "log").write_bytes(b"")
    assert tail_of(tmp_path / "log", 10) == ""


# --- streams ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(site: Site, path: str, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{site.port}{path}", headers=headers) as response,
    ):
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[dict[str, Any]]:
            event: dict[str, Any] = {}
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    event[name] = value
                elif "data" in event:
                    yield {"id": int(event["id"])} | json.loads(event["data"])
                    event = {}

        yield events()


def test_events_arrive_when_written_and_resume_after_an_entry(site: Site) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20):
            first = await asyncio.to_thread(site.submit)
            async with listening(site, "/api/events?since=0") as events:
                seen = [await anext(events)]
                while seen[-1]["kind"] != "running":
                    seen.append(await anext(events))
                assert first in {event["subject"] for event in seen}
                assert [event["id"] for event in seen] == sorted(event["id"] for event in seen)
            async with listening(site, "/api/events") as events:  # new entries only
                await asyncio.to_thread(site.world.end, first)
                ended = await anext(events)
                assert (ended["subject"], ended["kind"]) == (first, "ended")
            async with listening(site, "/api/events", **{"Last-Event-ID": str(seen[0]["id"])}) as events:
                assert (await anext(events))["id"] == seen[1]["id"]

    asyncio.run(scene())


def test_many_entries_arrive_together(site: Site) -> None:
    async def scene() -> None:
        async with asyncio.timeout(60):
            await asyncio.to_thread(site.controller.cycle.report, [NodeSeen(f"x{n}", 1, (), "m") for n in range(2500)])
            async with listening(site, "/api/events?since=0") as events:
                count = 0
                async for _ in events:
                    count += 1
                    if count >= 2500:
                        return

    asyncio.run(scene())


def test_a_stream_ends_when_the_server_stops(tmp_path: Path) -> None:
    async def scene() -> float:
        with serving(tmp_path, World()) as site:
            async with listening(site, "/api/events") as events:
                began = time.monotonic()
                site.controller.end_streams()
                assert [event async for event in events] == []
                assert site.ask("GET", "/api/events").status == 503
                return time.monotonic() - began

    assert asyncio.run(scene()) < 10


def test_idle_streams_send_heartbeats_and_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(site.controller.subscribers._places, "most_each", 1)

    async def scene() -> None:
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{site.port}/api/events") as response,
        ):
            lines = [await response.content.readline() for _ in range(5)]
            assert b": alive\n" in lines
            assert (await asyncio.to_thread(site.ask, "GET", "/api/events", None, Authorization=None)).status == 429
        while len(site.controller.subscribers):
            await asyncio.sleep(0.01)

    asyncio.run(scene())


def test_the_journal_replays_to_the_same_decisions(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    header, *rows = [json.loads(line) for line in site.ask("GET", "/api/journal").content.splitlines()]
    assert header == {"complete": True, "cycles": len(rows)}
    kinds = [action["type"] for row in rows for action in row["actions"]]
    assert kinds == ["StartGang"]
    store = Store(site.controller.folder / "store.sqlite")
    loaded = store.journal_all()
    store.close()
    _, outcomes = replay(State(), ((row.now_ns, row.events) for row in loaded.journal))
    assert [len(outcome.actions) for outcome in outcomes] == [len(row["actions"]) for row in rows]


def test_a_dependency_on_an_unknown_job_is_refused(site: Site) -> None:
    first = site.submit()
    after = [{"job_id": first, "condition": "ok"}, {"job_id": "j-000099", "condition": "ok"}]
    answer = site.ask("POST", "/api/jobs", JOB | {"after": after})
    assert answer.status == 422
    assert "no job j-000099 to wait for" in answer.error
    assert [job["job"] for job in site.get("/api/jobs")] == [first]
    site.submit(after=after[:1])
    array = site.submit(array_size=2)
    site.submit(after=[{"job_id": array, "condition": "ended"}])
