"""Roles: actions that each authenticated user may request, and the audit log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.routing import Route

from agent.schema.errors import ConfigError, StoreError
from gangwatch.configuration.config_file import load_defaults
from gangwatch.state_folder import StateFolder
from scheduler_feedback.api.access import audit as audit_module
from scheduler_feedback.api.access.audit import Audit, Line
from scheduler_feedback.api.access.principal import AccessError, Principal, Role
from scheduler_feedback.api.access.tokens import (
    TokenEntry,
    Tokens,
    hash_of,
    is_token,
    make_token,
    read_entries,
    write_entries,
)
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.journal.store import Reader
from tests.gangwatch.front_door import front_door
from tests.security.asking import JOB, PEOPLE, People, people


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with people(tmp_path_factory.mktemp("state")) as made:
        yield made


ALL_USERS = ("", "vic", "ana", "boss", "state")

CHANGES = {
    # Least role by route; 'own': submitters may do it to their own jobs only.
    "/api/jobs": "submitter",
    "/api/jobs/{job}/cancel": "own",
    "/api/nodes/{node}/{command}": "operator",
    "/api/verdicts/{verdict:path}/{ruling}": "operator",
    "/api/freeze": "operator",
    "/api/thaw": "operator",
    "/api/reload": "operator",
    "/login": "nobody",
    "/logout": "nobody",
}


def test_every_route_that_changes_state_is_in_the_table(site: People) -> None:
    routes = [route for route in site.site.controller.api().routes if isinstance(route, Route)]
    assert {route.path for route in routes if "POST" in (route.methods or ())} == set(CHANGES)
    assert {method for route in routes for method in route.methods or ()} <= {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("who", ALL_USERS)
@pytest.mark.parametrize("path", [path for path, role in CHANGES.items() if role != "nobody"])
def test_each_role_has_its_permissions_and_a_refusal_names_the_missing_role(site: People, who: str, path: str) -> None:
    job = site.submit("bob")
    concrete = path.replace("{job}", job).replace("{node}/{command}", "n0/release")
    concrete = concrete.replace("{verdict:path}/{ruling}", "v-1/confirm")
    answer = site.ask(who, "POST", concrete, JOB if path == "/api/jobs" else {})
    least = {"own": "operator"}.get(CHANGES[path], CHANGES[path])
    have = {"": "nobody", "state": "operator"}.get(who, PEOPLE.get(who, ""))
    order = ("nobody", "viewer", "submitter", "operator")
    if order.index(have) >= order.index(least):
        assert answer.status not in (401, 403), answer.content
    elif who == "":
        assert answer.status == 401 and "log in at /login" in answer.error
        assert answer.headers["www-authenticate"] == "Bearer"
    else:
        missing = "submitter" if (CHANGES[path], have) == ("own", "viewer") else least
        assert answer.status == 403 and missing in answer.error and f"you are {who} ({have})" in answer.error


def test_a_job_belongs_to_the_authenticated_user(site: People) -> None:
    job = site.submit("ana", user="bob")
    assert site.ask("boss", "GET", f"/api/jobs/{job}").document["user"] == "ana"
    for body in ({"user": ["bob"]}, {"user": None}, {"kind": "probe"}):
        assert site.ask("ana", "POST", "/api/jobs", JOB | body).status == 400
    raw = json.dumps(JOB)[:-1] + ', "user": "bob", "user": "bob"}'
    twice = site.ask("ana", "POST", "/api/jobs", raw.encode())
    assert site.ask("boss", "GET", f"/api/jobs/{twice.document['job']}").document["user"] == "ana"


def test_an_operator_submits_for_another_user_and_the_story_records_it(site: People) -> None:
    job = site.submit("boss", user="ana")
    assert site.ask("", "GET", f"/api/jobs/{job}").document["user"] == "ana"
    story = site.ask("", "GET", f"/api/jobs/{job}/story").document
    assert "by ana, submitted by boss" in story[0]["text"]
    assert site.ask("boss", "GET", f"/api/jobs/{site.submit('boss')}").document["user"] == "boss"
    events = [event for row in Reader(site.folder / "store.sqlite").journal_all().journal for event in row.events]
    assert [event.by for event in events if isinstance(event, Submitted) and event.job_id == job] == ["boss"]


def test_the_state_folders_token_has_the_operator_role(site: People) -> None:
    job = site.submit("state", user="carl")
    story = site.ask("", "GET", f"/api/jobs/{job}/story").document
    assert story[0]["text"].endswith("by carl")
    assert site.ask("state", "POST", f"/api/jobs/{job}/cancel", {"by": "unknown"}).status == 200
    assert "by unknown" in site.ask("", "GET", f"/api/jobs/{job}/story").document[-1]["text"]


def test_no_user_can_act_under_another_name(site: People) -> None:
    job = site.submit("ana")
    assert site.ask("ana", "POST", f"/api/jobs/{job}/cancel", {"by": "boss"}).status == 200
    assert "by ana" in site.ask("", "GET", f"/api/jobs/{job}/story").document[-1]["text"]
    assert site.ask("boss", "POST", "/api/freeze", {"by": "ana"}).status == 200
    assert site.ask("", "GET", "/api/queue").document["frozen_by"] == "boss"
    assert site.ask("boss", "POST", "/api/thaw", {}).status == 200


def test_a_submitter_cancels_only_its_own_jobs(site: People) -> None:
    own, other, nobodys = site.submit("ana"), site.submit("bob"), site.submit("state")
    array = site.submit("bob", array_size=3)
    for job in (other, nobodys, array, f"{array}.1"):
        refused = site.ask("ana", "POST", f"/api/jobs/{job}/cancel", {"by": "bob"})
        assert refused.status == 403 and "you are ana (submitter)" in refused.error
    assert site.ask("ana", "POST", f"/api/jobs/{own}/cancel").status == 200
    assert site.ask("bob", "POST", f"/api/jobs/{array}/cancel").status == 200
    states = {job["job"]: job["state"] for job in site.ask("", "GET", "/api/jobs").document}
    ended = {"stopping", "cancelled"}  # a job that had started ends a moment later
    assert states[own] in ended and states[other] != "cancelled" and states[nobodys] != "cancelled"
    assert {states[f"{array}.{index}"] for index in range(3)} <= ended


def test_a_job_without_a_user_belongs_to_no_submitter() -> None:
    assert not Principal("", Role.SUBMITTER, "test").owns("")
    assert not Principal("", Role.ANONYMOUS).sees("")


def test_priority_above_zero_requires_an_operator(site: People) -> None:
    refused = site.ask("ana", "POST", "/api/jobs", JOB | {"priority": 1})
    assert refused.status == 403 and "priority above 0 requires the role operator" in refused.error
    site.submit("ana", priority=-5)
    site.submit("boss", priority=1000)


def test_only_owner_and_operators_see_logs_and_command_lines(site: People) -> None:
    job = site.submit("ana", command=["python", "--key=x"], working_directory="/home/ana")
    for who, sees in (("", False), ("vic", False), ("bob", False), ("ana", True), ("boss", True), ("state", True)):
        for document in (
            site.ask(who, "GET", f"/api/jobs/{job}").document,
            next(one for one in site.ask(who, "GET", "/api/jobs").document if one["job"] == job),
            next(one for one in site.ask(who, "GET", "/api/jobs?limit=1000").document if one["job"] == job),
        ):
            assert document["command"] == (["python", "--key=x"] if sees else [])
            assert document["working_directory"] == ("/home/ana" if sees else "")
            assert document.get("hidden", []) == ([] if sees else ["command", "working_directory"])
        status = site.ask(who, "GET", f"/api/jobs/{job}/logs?rank=0").status
        assert status == (404 if sees else 401 if not who else 403), who  # the job has written no output
        status = site.ask(who, "GET", f"/api/jobs/{job}/stacks").status
        assert status == (404 if sees else 401 if not who else 403), who  # it has not hung


def test_a_cached_response_is_not_served_to_a_reader_with_fewer_rights(site: People) -> None:
    """Responses are cached while the state is unchanged, separately for each request and the reader's rights."""
    job = site.submit("ana", command=["python", "--key=x"])
    site.ask("boss", "POST", "/api/freeze", {})
    try:
        for _ in range(3):
            full = site.ask("ana", "GET", f"/api/jobs/{job}")
            assert full.document["command"] == ["python", "--key=x"]
            for who in ("", "bob", "vic"):
                answer = site.ask(who, "GET", f"/api/jobs/{job}", If_None_Match=full.headers.get("etag"))
                assert answer.status == 200 and answer.document["command"] == []
    finally:
        site.ask("boss", "POST", "/api/thaw", {})


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_revoked_rotated_or_expired_token_is_refused_at_once(site: People) -> None:
    token = make_token()
    entry = TokenEntry("dora", "submitter", hash_of(token))
    site.reset_wrong_tokens()

    def whoami() -> int:
        return site.ask("", "GET", "/api/whoami", Authorization=f"Bearer {token}").status

    assert whoami() == 401
    site.write(entry)
    assert whoami() == 200
    site.write(TokenEntry("dora", "submitter", hash_of(make_token())))
    assert whoami() == 401, "rotated"
    site.write(TokenEntry("dora", "submitter", hash_of(token), expires=datetime.now(UTC) - timedelta(seconds=1)))
    assert whoami() == 401, "expired"
    site.write(TokenEntry("dora", "submitter", hash_of(token), expires=datetime.now(UTC) + timedelta(hours=1)))
    assert whoami() == 200
    site.write()
    assert whoami() == 401, "revoked"
    (site.folder / "tokens.toml").unlink()
    assert site.ask("ana", "GET", "/api/whoami").status == 401, "the token file is gone"
    site.write()
    assert site.ask("ana", "GET", "/api/whoami").document["means"] == "token ana-laptop"


def test_the_state_folders_token_is_replaced_without_a_restart(site: People) -> None:
    file, before = site.folder / "token", site.site.token
    new = file.with_name("token.new")
    new.write_text("A" * 43)
    new.replace(file)
    site.reset_wrong_tokens()
    assert site.ask("", "GET", "/api/whoami", Authorization=f"Bearer {before}").status == 401
    assert site.ask("state", "GET", "/api/whoami").document["role"] == "operator"
    file.unlink()
    assert site.ask("", "GET", "/api/whoami", Authorization="Bearer").status == 401
    assert site.ask("", "GET", "/api/whoami", Authorization="Bearer ").status == 401, "an empty token is invalid"
    file.write_text(before)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[[token]]\nname = 'x'", "not|missing|Object"),
        (b"nonsense", "not TOML"),
        (b"\xff", "not TOML"),
        (b"[[token]]\nname='x'\nrole='root'\nsha256='%b'" % (b"0" * 64), "'root' is not one of viewer"),
        (b"[[token]]\nname='x'\nrole='viewer'\nsha256='abc'", "sha256|regex"),
        (b"[[token]]\nname='x'\nrole='viewer'\nsha256='%b'\nadmin=true" % (b"0" * 64), "admin"),
        (b"[[token]]\nname='\\\\'\nrole='viewer'\nsha256='%b'\nuser=\"a\\u202eb\"" % (b"0" * 64), "direction"),
        (b"[[token]]\nname='x'\nrole='viewer'\nsha256='%b'\n" % (b"0" * 64) * 2, "same name"),
    ],
)
def test_an_invalid_token_file_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as raised:
        read_entries(file)
    assert str(file) in str(raised.value)


def test_a_token_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_bytes(write_entries([]))
    for mode in (0o660, 0o606, 0o622):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="chmod go-w"):
            read_entries(file)
    file.chmod(0o644)  # hashes of random bits may be readable
    assert read_entries(file) == ()


def test_an_invalid_change_keeps_the_previous_tokens_and_is_counted(tmp_path: Path) -> None:
    file, token = tmp_path / "tokens.toml", make_token()
    file.write_bytes(write_entries([TokenEntry("ana", "viewer", hash_of(token))]))
    file.chmod(0o600)
    tokens = Tokens(tmp_path / "token", [file])
    assert tokens.find(token) is not None and tokens.failures() == []
    file.write_bytes(b"nonsense" * 100)
    assert tokens.find(token) is not None and "not TOML" in tokens.failures()[0]
    with pytest.raises(ConfigError):
        Tokens(tmp_path / "token", [tmp_path / "absent.toml"])


def test_a_token_has_256_random_bits_and_only_its_hash_is_looked_up(tmp_path: Path) -> None:
    assert is_token(make_token()) and len({make_token() for _ in range(1000)}) == 1000
    file = tmp_path / "tokens.toml"
    file.write_bytes(write_entries([TokenEntry("weak", "operator", hash_of("password1"))]))
    assert Tokens(tmp_path / "token", [file]).find("password1") is None


def test_written_entries_are_read_back(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    odd = 'a "quoted" \\ name ü'
    entries = (
        TokenEntry(odd, "viewer", "0" * 64, "ü", now, now + timedelta(days=1)),
        TokenEntry("b", "operator", "1" * 64),
    )
    file = tmp_path / "tokens.toml"
    file.write_bytes(write_entries(entries))
    assert read_entries(file) == entries


# --- audit ------------------------------------------------------------------------------------------------------------


def test_the_audit_log_names_user_and_action(site: People) -> None:
    before = len(site.audit())
    job = site.submit("ana", environment={"KEY": "hidden-value"}, command=["python", "--hidden-argument"])
    site.ask("ana", "POST", "/api/nodes/n0/release", {"reason": "because"})
    site.ask("boss", "POST", "/api/nodes/n0/release", {"reason": "because", "by": "claimed"})
    site.ask("", "POST", "/api/freeze", {})
    site.ask("ana", "GET", f"/api/jobs/{job}/logs?rank=0")
    site.ask("ana", "GET", "/api/jobs")
    lines = site.audit()[before:]
    found = [(one["stage"], one["user"], one["role"], one["path"], one.get("status")) for one in lines]
    assert found == [
        ("asked", "ana", "submitter", "/api/jobs", None),
        ("answered", "ana", "submitter", "/api/jobs", 201),
        ("asked", "ana", "submitter", "/api/nodes/n0/release", None),
        ("answered", "ana", "submitter", "/api/nodes/n0/release", 403),
        ("asked", "boss", "operator", "/api/nodes/n0/release", None),
        ("answered", "boss", "operator", "/api/nodes/n0/release", 200),
        ("answered", "", "nobody", "/api/freeze", 401),
        ("answered", "ana", "submitter", f"/api/jobs/{job}/logs", 404),
    ]
    assert lines[0]["id"] == lines[1]["id"] != lines[2]["id"]
    assert lines[1]["about"] == {"user": "ana", "name": "train", "ranks": 2, "queue": "default", "job": job}
    assert lines[1]["means"] == "token ana-laptop" and lines[1]["peer"] == "127.0.0.1"
    assert lines[5]["about"] == {"claimed": "claimed", "reason": "because"}
    assert "operator" in lines[3]["error"]
    text = site.site.controller.audit.path.read_text()
    assert "hidden" not in text and not any(token in text for token in (*site.tokens.values(), site.site.token))
    assert site.site.controller.audit.path.stat().st_mode & 0o777 == 0o600


def test_changes_that_cannot_be_audited_are_refused(site: People, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk changes are refused, except a freeze. Reads continue, and changes resume when there is room."""
    jobs = len(site.ask("", "GET", "/api/jobs").document)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit_module.os, "write", full)
        refused = site.ask("ana", "POST", "/api/jobs", JOB)
        assert refused.status == 507 and "audit log" in refused.error and "free disk space" in refused.error
        assert site.ask("boss", "POST", "/api/freeze", {}).status == 200
        assert site.ask("boss", "POST", "/api/thaw", {}).status == 507
        assert len(site.ask("", "GET", "/api/jobs").document) == jobs
    assert site.site.controller.audit.lost >= 3
    assert site.ask("boss", "POST", "/api/thaw", {}).status == 200
    site.submit("ana")


def _line(audit: Audit, path: str) -> Line:
    return Line(audit.now(), audit.number(), "answered", "ana", "operator", "test", "::1", "POST", path, status=200)


def test_the_audit_log_rotates_without_losing_lines(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit" / "audit.jsonl", file_bytes=2000, files=3)
    for index in range(40):
        audit.write(_line(audit, f"/{index}"))
    files = sorted((tmp_path / "audit").iterdir())
    assert [file.name for file in files] == [f"audit.jsonl{end}" for end in ("", ".1", ".2", ".3")]
    lines = [line for file in (*files[:0:-1], files[0]) for line in file.read_text().splitlines()]
    paths = [json.loads(line)["path"] for line in lines]
    assert paths == [f"/{index}" for index in range(40 - len(paths), 40)] and len(paths) > 20
    assert all(file.stat().st_size <= 2000 for file in files)


def test_an_open_audit_log_needs_no_descriptor_and_reports_failures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.begin()
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("the file was opened again"))
    audit.write(_line(audit, "/1"))
    monkeypatch.undo()
    (tmp_path / "file").touch()
    elsewhere = Audit(tmp_path / "file" / "audit.jsonl")
    elsewhere.begin()
    assert "is not writable, changes are refused: File exists" in caplog.text
    with pytest.raises(StoreError, match="so changes are refused"):
        elsewhere.write(_line(elsewhere, "/2"))
    (tmp_path / "file").unlink()
    elsewhere.write(_line(elsewhere, "/3"))
    audit.close()
    elsewhere.close()


def test_a_moved_audit_log_is_recreated_and_a_torn_line_damages_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write(_line(audit, "/1"))
    path.rename(tmp_path / "moved")
    audit.write(_line(audit, "/2"))
    assert [json.loads(line)["path"] for line in path.read_text().splitlines()] == ["/2"]
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="is not writable"):
        audit.write(_line(audit, "/3"))
    path.unlink()
    audit.write(_line(audit, "/4"))
    assert json.loads(path.read_text())["path"] == "/4"


def test_a_flood_of_refusals_displaces_no_audit_line(tmp_path: Path) -> None:
    now = 0.0
    audit = Audit(tmp_path / "audit.jsonl", clock=lambda: now)
    taken = sum(audit.has_room() for _ in range(100_000))
    assert taken == audit_module.REFUSALS_AT_ONCE
    line = _line(audit, "/")
    audit.write(line)
    assert json.loads(audit.path.read_text())["suppressed"] == 100_000 - taken
    now = 10.0
    assert audit.has_room()


def test_text_in_a_request_path_cannot_break_an_audit_line(site: People) -> None:
    before = len(site.audit())
    site.ask("boss", "POST", "/api/jobs/%22%7D%E2%80%A8%7B%22user%22%3A%22root%22/cancel", {})
    assert site.ask("boss", "POST", f"/api/jobs/{'x' * 5000}/cancel", {}).status == 404
    lines = site.audit()[before:]
    assert len(lines) == 4 and {one["user"] for one in lines} == {"boss"}
    assert all(len(one["path"]) <= 500 for one in lines)


# --- the local socket -------------------------------------------------------------------------------------------------


def test_the_local_socket_trusts_only_the_kernels_credentials(tmp_path: Path) -> None:
    """The same user is an operator. Another user has no role, even with access to the socket or a forged header."""
    import subprocess
    import sys

    with front_door(tmp_path) as door:
        door.up()
        path = door.state.path / "api.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        asked = "GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: uid:0\r\nConnection: close\r\n\r\n"
        program = (
            "import os,socket,sys;os.setuid(int(sys.argv[2]));s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);"
            f"s.sendall({asked.encode()!r});print(s.makefile().read())"
        )
        command = [sys.executable, "-S", "-c", program, str(path)]
        own = subprocess.run([*command, str(os.geteuid())], capture_output=True, text=True, check=True).stdout
        assert '"role":"operator"' in own and "local socket, uid" in own
        record = door.state.controller()
        assert record is not None
        if os.geteuid() == 0:
            for folder in (path, *path.parents):
                if tmp_path in folder.parents or folder == tmp_path:
                    folder.chmod(0o777)
            other = subprocess.run([*command, "65534"], capture_output=True, text=True)
            assert '"role":"operator"' not in other.stdout
        forged = HTTPConnection(urlsplit(record.url).netloc, timeout=10)
        forged.request("GET", "/api/whoami", headers={"X-Forwarded-For": "uid:0", "Forwarded": "for=uid:0"})
        assert json.loads(forged.getresponse().read())["role"] == "nobody"
        forged.close()
        door.state.path.chmod(0o700)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"oidc.issuer": "http://idp.example", "oidc.client_id": "x", "oidc.default_role": "viewer"}, "oidc.issuer"),
        ({"oidc.issuer": "https://idp.example", "oidc.default_role": "viewer"}, "oidc.client_id"),
        ({"oidc.issuer": "https://idp.example", "oidc.client_id": "x"}, "oidc.roles"),
        ({"oidc.client_id": "x"}, "oidc.issuer"),
        (
            {"oidc.issuer": "https://idp.example", "oidc.client_id": "x", "oidc.default_role": "viewer",
             "oidc.algorithms": ["HS256"]},
            "oidc.algorithms",
        ),
        ({"oidc.roles": {"g": "root"}}, "oidc.roles"),
        ({"token_review.enabled": True}, "token_review.kubeconfig"),
        ({"access.token_files": ["/absent/tokens.toml"]}, "/absent/tokens.toml"),
    ],
)  # fmt: skip
def test_a_configuration_that_admits_unintended_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object], complaint: str
) -> None:
    from gangwatch.daemons.controller_access import authentication_of

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    state = StateFolder(tmp_path / "state")
    state.prepare()
    with pytest.raises(ConfigError, match=complaint):
        authentication_of(state, load_defaults(keys))


def test_a_refusal_without_a_login_explains_how_to_log_in() -> None:
    with pytest.raises(AccessError, match="requires the role operator") as raised:
        Principal().require(Role.OPERATOR, "freezing")
    assert "send 'Authorization: Bearer TOKEN'" in str(raised.value) and "log in at /login" in str(raised.value)
