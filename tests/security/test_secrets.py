"""Text set by users appears only where core/disclosure.py allows it. The tests put a unique text in each field."""

from __future__ import annotations

import http.client
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, urlsplit

import pytest

from gangwatch.support.redaction import redacted
from scheduler_feedback.api.access.tokens import TokenEntry, hash_of, make_token, write_entries
from scheduler_feedback.api.requests import NodeReason, Reason, Submission
from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.disclosure import RULES, Audience, for_bundle, hide
from scheduler_feedback.core.events import CancelRequested, Event, NodeCommanded
from scheduler_feedback.core.job import Group, JobSpec
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.security.canaries import Canary, Planter, Sink, job_fields, text_fields

# --- the table --------------------------------------------------------------------------------------------------------


def test_every_field_that_holds_text_has_a_row() -> None:
    fields = text_fields(*get_args(Event), *get_args(Action), Entry)
    assert set(fields) - set(RULES) == set(), "add to core/disclosure.py where this field may appear"
    assert set(RULES) - set(fields) == set(), "this field no longer exists"


def test_the_table_covers_all_submitted_fields() -> None:
    assert {
        field.partition(".")[2] for field in text_fields(Submission) if field.startswith("Submission.")
    } <= job_fields()
    assert {field.partition(".")[2] for field in text_fields(NodeReason)} <= {"by", "reason"}


def test_a_field_without_a_row_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "JobSpec.queue")
    spec = JobSpec("name", ("python", "--token=a"), 2, queue="secret", environment={"A": "b"}, groups=(Group("r", 2),))
    shown = for_bundle(spec)
    assert (shown["name"], shown["queue"], shown["ranks"]) == ("name", "[removed]", 2)
    assert (shown["command"], shown["environment"]) == ("[removed] 2 arguments", {"A": "[removed]"})
    assert shown["groups"] == [{"role": "r", "ranks": 2, "command": [], "same_node": False}]


def test_a_withheld_value_keeps_its_type_and_is_listed() -> None:
    document = {"name": "n", "command": ["a"], "working_directory": "/b", "checkpoint_command": [], "user": "ana"}
    assert hide(document) == document | {
        "command": [],
        "working_directory": "",
        "hidden": ["command", "working_directory"],
    }


# --- a whole gangwatch ------------------------------------------------------------------------------------------------

PATHS = (
    "/api/jobs", "/api/jobs?limit=1000", "/api/overview", "/api/parts", "/api/nodes", "/api/verdicts", "/api/queue",
    "/api/decisions", "/api/whoami", "/", "/jobs", "/nodes", "/login", "/metrics", "/healthz", "/readyz",
    "/static/page.js",
)  # fmt: skip
OF_JOB = ("/api/jobs/{}", "/api/jobs/{}/explain", "/api/jobs/{}/story", "/api/jobs/{}/pace", "/jobs/{}")
OF_NODE = ("/api/nodes/{}/jobs", "/api/nodes/{}/story", "/nodes/{}")
STREAMS = ("/api/events?since=0", "/live/", "/live/jobs", "/live/nodes")
REFUSED = ("/api/journal", "/api/jobs/{}/logs?rank=0")


class Planted:
    """gangwatch with a canary in every field of its jobs, and all outputs to search."""

    def __init__(self, door: FrontDoor, planter: Planter, sink: Sink, folder: Path) -> None:
        self.door, self.planter, self.sink = door, planter, sink
        self.tokens = {name: make_token() for name in ("eve", "ana", "boss")}
        roles = {"eve": "submitter", "ana": "submitter", "boss": "operator"}
        entries = [TokenEntry(name, roles[name], hash_of(token)) for name, token in self.tokens.items()]
        door.state.tokens_file.write_bytes(write_entries(entries))
        door.state.tokens_file.chmod(0o600)
        self.output = planter.text("output of a rank", RULES["JobSpec.command"])
        self.jobs: dict[str, str] = {}
        self._submit(folder)

    @property
    def canaries(self) -> list[Canary]:
        return self.planter.planted

    def ask(self, method: str, path: str, reader: str = "", body: Any = None, url: str = "") -> tuple[int, bytes]:
        """Send a request as this reader. Return (status, body); of a stream, its beginning."""
        record = self.door.state.controller()
        assert record is not None
        connection = http.client.HTTPConnection(urlsplit(url or record.url).netloc, timeout=15)
        headers = {"Authorization": f"Bearer {self.tokens[reader]}"} if reader else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if path.startswith(("/live", "/api/events", "/frames")) and response.status == 200:
                return response.status, _begin_of(response, connection)
            return response.status, response.read()
        finally:
            connection.close()

    def _submit(self, folder: Path) -> None:
        own = folder / self.planter.text("JobSpec.working_directory", RULES["JobSpec.working_directory"])
        own.mkdir()
        running = ["sh", "-c", f"echo {self.output}; sleep 60", self._argument("JobSpec.command")]
        plain = {"ranks": 1, "time_limit_seconds": 600, "restartable": True, "checkpoint_signal": "SIGTERM"}
        plain |= {"after": [], "groups": [], "queue": "default", "gpu_types": [], "throughput": {}, "grace_seconds": 1}
        plain |= {"dataset_gib": 1, "mig_profile": ""}

        def submit(what: str, **valid: Any) -> None:
            body = self.planter.fill(Submission, JobSpec, plain | valid)
            body |= {key: value for key, value in (plain | valid).items() if key not in body}
            status, answer = self.ask("POST", "/api/jobs", "ana", body)
            assert status == 201, answer
            self.jobs[what] = json.loads(answer)["job"]

        saves = ["true", self._argument("JobSpec.checkpoint_command")]
        submit("runs", command=running, working_directory=str(own), checkpoint_command=saves)
        group = {"role": self.planter.text("Group.role", RULES["Group.role"]), "ranks": 1}
        group["command"] = [self._argument("Group.command", "/absent/{}")]
        submit("group", groups=[group], working_directory="/", checkpoint_command=[])
        submit("program", working_directory="/", checkpoint_command=[])
        submit("folder", command=running, working_directory=self._argument("JobSpec.working_directory", "/absent/{}"))
        submit("saver", command=running, working_directory="/")
        types = [self.planter.text("JobSpec.gpu_types", RULES["JobSpec.gpu_types"])]
        speeds = {self.planter.text("JobSpec.throughput", RULES["JobSpec.throughput"]): 0.5}
        submit("odd", gpu_types=types, throughput=speeds, command=running, working_directory="/")
        submit("waits", ranks=4, command=running, working_directory="/")
        submit("cancelled", ranks=4, command=running, working_directory="/")
        for what in ("group", "program", "folder", "saver"):
            self.door.wait_for(self.jobs[what], "failed")
        self.door.wait_for(self.jobs["runs"], "running")
        notes = self.planter.fill(Reason, CancelRequested, {"reason": ""})
        assert self.ask("POST", f"/api/jobs/{self.jobs['cancelled']}/cancel", "ana", notes)[0] == 200
        command = self.planter.fill(NodeReason, NodeCommanded, {})
        assert self.ask("POST", "/api/nodes/node-1/maintenance", "boss", command | {"drain": False})[0] == 200
        refused, _ = self.ask(
            "POST", f"/api/jobs/{self.planter.text('path', RULES['JobSpec.name'])}/cancel", "boss", {}
        )
        assert refused == 404

    def _argument(self, field: str, form: str = "{}") -> str:
        return self.planter.text(field, RULES[field], form=form)

    def paths(self) -> Iterator[str]:
        yield from PATHS
        for job in self.jobs.values():
            yield from (path.format(quote(job)) for path in OF_JOB)
        yield from (path.format(node) for path in OF_NODE for node in ("node-0", "node-1"))
        yield from STREAMS
        yield f"/live/jobs/{self.jobs['runs']}"


def _begin_of(stream: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> bytes:
    """Return the data of a stream until it pauses."""
    content = b""
    assert connection.sock is not None
    connection.sock.settimeout(0.3)
    try:
        while piece := stream.read1(1 << 20):
            content += piece
    except TimeoutError:
        pass
    return content


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("canaries")
    with Sink() as sink, front_door(folder) as door:
        (folder / "gangwatch.toml").write_text(
            f'[otlp]\nendpoint = "{sink.url}/v1/metrics"\ntraces_endpoint = "{sink.url}/v1/traces"\n'
            "interval_seconds = 1\n"
        )
        door.up("--config", str(folder / "gangwatch.toml"))
        yield Planted(door, Planter(), sink, folder)


def found(canaries: list[Canary], content: bytes | str) -> list[Canary]:
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    return [canary for canary in canaries if canary.text in text]


@pytest.mark.parametrize("reader", ["", "eve"])
def test_other_users_see_no_command_folder_or_output(planted: Planted, reader: str) -> None:
    seen: set[str] = set()
    for path in planted.paths():
        status, content = planted.ask("GET", path, reader)
        assert status in (200, 404), (path, status, content)
        here = found(planted.canaries, content)
        assert [one for one in here if not one.allowed_in_documents(owner=False)] == [], path
        seen |= {one.field for one in here}
    assert "JobSpec.name" in seen, "the test must find canaries at all"
    for path in REFUSED:
        status, content = planted.ask("GET", path.format(planted.jobs["runs"]), reader)
        assert status == (403 if reader else 401), path
        assert found(planted.canaries, content) == []


@pytest.mark.parametrize("reader", ["ana", "boss"])
def test_owner_and_operators_see_the_command_but_no_environment(planted: Planted, reader: str) -> None:
    seen: set[str] = set()
    for path in planted.paths():
        here = found(planted.canaries, planted.ask("GET", path, reader)[1])
        assert [one for one in here if not one.allowed_in_documents(owner=True)] == [], path
        seen |= {one.field for one in here}
    owners = {
        field for field, rule in RULES.items() if rule.documents is Audience.OWNER and field.startswith("JobSpec.")
    }
    assert seen >= owners, "the test must find canaries at all"
    status, content = planted.ask("GET", f"/api/jobs/{planted.jobs['runs']}/logs?rank=0", reader)
    assert status == 200 and planted.output in json.loads(content)["text"]


def test_the_journal_export_contains_no_environment(planted: Planted) -> None:
    status, content = planted.ask("GET", "/api/journal", "boss")
    assert status == 200
    here = found(planted.canaries, content)
    assert [one for one in here if not one.allowed_in_journal] == []
    assert {"JobSpec.command", "JobSpec.checkpoint_command"} <= {one.field for one in here}


def test_metrics_frames_and_traces_contain_only_names(planted: Planted) -> None:
    agent = planted.door.state.agent("node-0")
    assert agent is not None
    wait_until(
        lambda: b"job " in b"".join(planted.sink.bodies) and b"gangwatch_gang" in b"".join(planted.sink.bodies),
        lambda: f"{len(planted.sink.bodies)} bodies",
    )
    wait_until(lambda: b"gangwatch_gang_info{" in planted.ask("GET", "/metrics")[1], lambda: "no gang in /metrics")
    outputs = {
        "metrics": planted.ask("GET", "/metrics")[1],
        "agent's metrics": planted.ask("GET", "/metrics", url=agent.url)[1],
        "frames": planted.ask("GET", "/frames", url=agent.url)[1],
        "OTLP": b"".join(planted.sink.bodies),
    }
    for name, content in outputs.items():
        assert content, name
        assert [one for one in found(planted.canaries, content) if not one.allowed_in_text] == [], name
    assert {"JobSpec.name"} <= {one.field for one in found(planted.canaries, outputs["metrics"])}


def test_logs_stories_and_explanations_contain_only_names(planted: Planted) -> None:
    door = planted.door
    texts = {path.name: path.read_text(errors="replace") for path in (door.state.path / "log").iterdir()}
    texts["audit"] = door.state.audit_file.read_text()
    for job in planted.jobs.values():
        texts[f"story of {job}"] = door.run("story", job).stdout
    texts["explanation"] = door.run("explain", planted.jobs["waits"]).stdout
    texts["story of a node"] = door.run("story", "node:node-1").stdout
    texts["nodes"] = door.run("nodes").stdout + door.run("queue").stdout + door.run("top", "--once").stdout
    for name, text in texts.items():
        assert text or name.endswith(".err"), name
        assert [one for one in found(planted.canaries, text) if not one.allowed_in_text] == [], name
    assert "NodeCommanded.reason" in {one.field for one in found(planted.canaries, texts["story of a node"])}
    assert (
        "the program of group" in texts[f"story of {planted.jobs['group']}"]
        or "the command of group" in texts[f"story of {planted.jobs['group']}"]
    )


def test_the_support_bundle_contains_only_names(planted: Planted, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    planted.door.run("support-bundle", str(target))
    parts: dict[str, str] = {}
    with tarfile.open(target) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            parts[member.name] = file.read().decode()
    assert any(name.endswith("journal.jsonl") for name in parts)
    seen: set[tuple[str, bool]] = set()
    for name, text in parts.items():
        here = found(planted.canaries, text)
        assert [one for one in here if not one.allowed_in_bundle] == [], name
        seen |= {(one.field, one.key) for one in here}
        for token in (*planted.tokens.values(), planted.door.state.token()):
            assert token not in text, name
    assert seen >= {("JobSpec.name", False), ("JobSpec.environment", True)}


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgres://ana:p@ss-word@db/x", "p@ss-word"),
        ("see https://hooks.example/x?access_token=abc123&b=1", "abc123"),
        ("curl -H 'Authorization: Bearer abcdefgh12345'", "abcdefgh12345"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', "dXNlcjpwYXNz"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----", "MHcCAQEE"),
        ('message="-----BEGIN PRIVATE KEY-----\\nMIIEvQ', "MIIEvQ"),
        ("id eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbmEifQ.c2ln", "eyJzdWIiOiJhbmEifQ"),
        ("run with hf_abcdefghijklmnopqrstuvwx", "hf_abcdefghijklmnopqrstuvwx"),
        ("WANDB_API_KEY=0123456", "0123456"),
        ("python train.py --api-key 'abc def'", "abc"),
        ('["--password", "hunter2"]', "hunter2"),
        ('{"db_password": "two words"}', "two words"),
        pytest.param(f"made {make_token()}", "gwt_", id="a gangwatch token"),
    ],
)
def test_texts_in_the_form_of_a_secret_are_removed(text: str, secret: str) -> None:
    assert secret not in redacted(text)


def test_texts_that_a_bug_report_needs_are_kept() -> None:
    lines = (
        'time=2026-11-23T12:00:00.000Z level=info logger=x message="cycle 7, 12 jobs, node gpu-node-0001 quarantine"',
        'gangwatch_access_refused_total{reason="token"} 3',
        '{"tokens": 5, "node": "ip-10-0-0-12.ec2.internal", "at": "https://host:9420/metrics"}',
        'File "/usr/lib/python3.11/asyncio/base_events.py", line 12, in run_forever',
    )
    for line in lines:
        assert redacted(line) == line
