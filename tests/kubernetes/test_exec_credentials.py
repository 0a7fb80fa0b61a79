"""Credential plugins: their protocol, their errors, and when they run again."""

from __future__ import annotations

import asyncio
import os
import pty
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from agent.schema.errors import ConfigError
from gangwatch.commands.kubernetes import kubernetes
from scheduler_feedback.backends.kubernetes.api_server import exec_credentials as module
from scheduler_feedback.backends.kubernetes.api_server.client import (
    Access,
    Client,
    RefusedError,
    UnreachableError,
)
from scheduler_feedback.backends.kubernetes.api_server.exec_credentials import (
    CredentialError,
    ExecCommand,
    ExecPlugin,
    exec_command,
)
from tests.kubernetes.tls_server import V1, V1BETA1, FakePlugin, TlsServer

_anything = msgspec.json.Decoder()


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture
def server(server_folder: Path) -> TlsServer:
    return TlsServer(server_folder)


@pytest.fixture
def fake(tmp_path: Path) -> FakePlugin:
    return FakePlugin(tmp_path)


class Clock:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def command(path: Path, **fields: Any) -> ExecCommand:
    return ExecCommand("config", V1, str(path), interactive_mode=fields.pop("interactive_mode", "Never"), **fields)


def with_client(server: TlsServer, plugin: ExecPlugin, work: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with (
            server.serving() as port,
            Client(Access(f"https://localhost:{port}", ca=server.ca, plugin=plugin), **options) as client,
        ):
            return await work(client)

    return asyncio.run(run())


def test_a_credential_is_kept_until_the_server_refuses_it(server: TlsServer, fake: FakePlugin) -> None:
    clock = Clock(1000.0)
    plugin = ExecPlugin(command(fake.path, arguments=("get", "token")), monotonic=clock)
    fake.answers(token="one")
    server.valid = {"one"}

    async def work(client: Client) -> None:
        for _ in range(3):
            assert await client.get("/a", _anything) == {"identity": "one"}
        assert len(fake.runs) == 1, "one credential for all requests"
        fake.answers(token="two")
        server.valid = {"two"}
        found = await asyncio.gather(*(client.create(f"/b/{n}", {}) for n in range(20)))
        assert {_anything.decode(body)["identity"] for body in found} == {"two"}
        assert len(fake.runs) == 2, "20 refused requests need one new credential"
        clock.seconds += 60
        fake.answers(token="three")
        server.valid = {"three"}
        async with client.lines("/watch", 5.0) as lines:
            assert [_anything.decode(line) async for line in lines] == [{"identity": "three"}]

    with_client(server, plugin, work)
    assert fake.runs[0] == (
        "get token", "", {"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": False}},
    )  # fmt: skip


def test_an_expired_credential_is_replaced_before_the_request(server: TlsServer, fake: FakePlugin) -> None:
    wall = Clock(time.time())
    plugin = ExecPlugin(command(fake.path), wall=wall)
    ends = datetime.fromtimestamp(wall.seconds + 900, UTC)
    fake.answers(token="one", expirationTimestamp=ends.strftime("%Y-%m-%dT%H:%M:%SZ"))
    server.valid = {"one", "two"}

    async def work(client: Client) -> None:
        wall.seconds += 890
        assert await client.get("/a", _anything) == {"identity": "one"}
        fake.answers(token="two")
        wall.seconds += 11
        assert await client.get("/a", _anything) == {"identity": "two"}

    with_client(server, plugin, work)
    assert [identity for *_, identity in server.received] == ["one", "two"], "no request with the expired token"


def test_a_client_certificate_from_a_plugin_is_used_and_replaced(server: TlsServer, fake: FakePlugin) -> None:
    def answer(name: str) -> None:
        certificate, key = (path.read_text() for path in server.authority.sign(name))
        fake.answers(clientCertificateData=certificate, clientKeyData=key)

    answer("first")
    server.valid = {"first"}

    async def work(client: Client) -> None:
        assert await client.get("/a", _anything) == {"identity": "first"}
        answer("second")
        server.valid = {"second"}
        assert await client.get("/a", _anything) == {"identity": "second"}

    with_client(server, ExecPlugin(command(fake.path)), work)
    fake.answers(clientCertificateData="none", clientKeyData="none")
    with pytest.raises(UnreachableError, match="certificate of the credential plugin"):
        with_client(server, ExecPlugin(command(fake.path)), work)


def test_a_credential_that_stays_refused_does_not_run_the_plugin_for_each_request(
    server: TlsServer, fake: FakePlugin
) -> None:
    clock = Clock(0.0)
    fake.answers(token="unknown")

    async def work(client: Client) -> None:
        for _ in range(10):
            with pytest.raises(RefusedError) as caught:
                await client.get("/a", _anything)
            assert caught.value.code == 401
        assert len(fake.runs) == 2
        clock.seconds += 6
        with pytest.raises(RefusedError):
            await client.get("/a", _anything)
        assert len(fake.runs) == 3, "the account may be known now"

    with_client(server, ExecPlugin(command(fake.path), monotonic=clock), work)


def test_a_refused_write_is_not_repeated_after_the_lead_is_lost(server: TlsServer, fake: FakePlugin) -> None:
    leads = chain([True, True], repeat(False))
    fake.answers(token="old")

    async def work(client: Client) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.create("/binding", {}), 2)

    with_client(server, ExecPlugin(command(fake.path)), work, may_write=lambda: next(leads))
    assert server.received == [("POST", "/binding", "old")]


def test_no_request_is_sent_while_the_plugin_fails(server: TlsServer, fake: FakePlugin) -> None:
    clock = Clock(0.0)
    server.valid = {"t"}

    async def work(client: Client) -> None:
        with pytest.raises(UnreachableError, match="printed no valid ExecCredential"):
            await client.get("/a", _anything)
        with pytest.raises(UnreachableError, match="printed no valid ExecCredential"):
            async with client.lines("/watch", 5.0):
                pass
        assert server.received == []
        fake.answers(token="t")
        clock.seconds += 6
        assert await client.get("/a", _anything) == {"identity": "t"}

    fake.prints("maintenance")
    with_client(server, ExecPlugin(command(fake.path), monotonic=clock), work)


def test_a_command_ends_with_the_plugins_error_before_it_starts_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], "
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {exec: "
        "{apiVersion: client.authentication.k8s.io/v1beta1, command: /absent/plugin, installHint: Ask the SRE team}}}]}"
    )
    state = str(tmp_path / "state")
    done = CliRunner().invoke(
        kubernetes, ["controller", "--kubeconfig", str(tmp_path / "config"), "--state", state], standalone_mode=False
    )
    assert isinstance(done.exception, CredentialError)
    assert str(done.exception).endswith("credential plugin '/absent/plugin' not found. Ask the SRE team")


GOOD = {"kind": "ExecCredential", "apiVersion": V1}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", "printed no valid ExecCredential"),
        ("Please log in", "printed no valid ExecCredential"),
        ("[" * 100_000, "printed no valid ExecCredential"),
        ({**GOOD}, "without a status"),
        ({**GOOD, "status": {}}, "neither a token nor a client certificate"),
        ({**GOOD, "status": {"token": 7}}, r"Expected `str`, got `int` - at `\$.status.token`"),
        ({**GOOD, "status": {"token": "a\nX-Header: b"}}, "characters that an HTTP header cannot contain"),
        ({**GOOD, "status": {"clientKeyData": "k"}}, "only one of clientCertificateData and clientKeyData"),
        ({**GOOD, "status": {"token": "t", "expirationTimestamp": "soon"}}, "expirationTimestamp"),
        ({**GOOD, "status": {"token": "t", "expirationTimestamp": "2030-01-01T00:00:00"}}, "expirationTimestamp"),
        ({**GOOD, "status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}}, "expired at 2020"),
        ({**GOOD, "apiVersion": V1BETA1, "status": {"token": "t"}}, "requests ExecCredential of .*/v1$"),
        ({**GOOD, "kind": "Pod", "status": {"token": "t"}}, "printed Pod of"),
    ],
)
def test_an_invalid_answer_is_named_without_its_content(fake: FakePlugin, answer: Any, expected: str) -> None:
    fake.prints(answer if isinstance(answer, str) else msgspec.json.encode(answer).decode())
    with pytest.raises(CredentialError, match=expected) as caught:
        ExecPlugin(command(fake.path)).obtain()
    assert str(caught.value).startswith(f"config: credential plugin '{fake.path}' ")
    assert "log in" not in str(caught.value) or "expired" in str(caught.value)


def test_a_plugin_that_fails_is_quoted_and_does_not_run_for_every_request(tmp_path: Path) -> None:
    fake = FakePlugin(tmp_path, after='printf "\\033[31mThe SSO session\\nhas expired\\033[0m" >&2; exit 255')
    clock = Clock(0.0)
    plugin = ExecPlugin(command(fake.path), monotonic=clock)
    for _ in range(5):
        with pytest.raises(CredentialError, match=r"exit status 255: The SSO session has expired$"):
            plugin.obtain()
    assert len(fake.runs) == 1
    clock.seconds += 6
    with pytest.raises(CredentialError):
        plugin.obtain()
    assert len(fake.runs) == 2


def test_a_plugin_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    fake = FakePlugin(tmp_path, after=f'sleep 600 & echo $! > "{tmp_path}/child"; wait')
    with pytest.raises(CredentialError, match=r"did not finish in 0\.5 s"):
        ExecPlugin(command(fake.path), run_seconds=0.5).obtain()
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until, "its child still runs"
        time.sleep(0.02)


def test_a_child_that_a_plugin_leaves_running_delays_nothing(tmp_path: Path) -> None:
    fake = FakePlugin(tmp_path, after=f'sleep 600 & echo $! > "{tmp_path}/child"')
    fake.answers(token="t")
    try:
        assert ExecPlugin(command(fake.path), run_seconds=30.0).obtain().token == "t"
        os.kill(int((tmp_path / "child").read_text()), 0)  # for example a browser, or a cache of logins
    finally:
        os.kill(int((tmp_path / "child").read_text()), 9)


def test_endless_output_is_cut(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="printed more than 1048576 bytes"):
        ExecPlugin(command(FakePlugin(tmp_path, after="yes").path)).obtain()


def test_a_missing_plugin_is_reported_with_the_kubeconfigs_hint_and_other_causes_by_name(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=r"'absent-plugin' not found\. Install it with apt$"):
        ExecPlugin(command(Path("absent-plugin"), install_hint="Install it with apt")).obtain()
    with pytest.raises(CredentialError, match="not found: install it, or add its folder to PATH"):
        ExecPlugin(command(Path("absent-plugin"))).obtain()
    (tmp_path / "file").write_text("")
    with pytest.raises(CredentialError, match="cannot be started: Permission denied"):
        ExecPlugin(command(tmp_path / "file")).obtain()


def test_a_plugin_gets_the_terminal_only_in_an_interactive_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakePlugin(tmp_path, after='test -t 0 && echo yes > "$0.terminal" || echo no > "$0.terminal"')
    fake.answers(token="t")
    terminal = tmp_path / "plugin.terminal"
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(module.sys, "stdin", nothing)
        with pytest.raises(CredentialError, match="needs a terminal"):
            ExecPlugin(command(fake.path, interactive_mode="Always")).obtain()
        ExecPlugin(command(fake.path, interactive_mode="IfAvailable")).obtain()
        assert terminal.read_text() == "no\n" and fake.runs[-1][2]["spec"] == {"interactive": False}
    leader, follower = pty.openpty()
    kept = os.dup(0)
    try:
        os.dup2(follower, 0)
        with os.fdopen(0, closefd=False) as stdin:
            monkeypatch.setattr(module.sys, "stdin", stdin)
            ExecPlugin(command(fake.path, interactive_mode="Never")).obtain()
            assert terminal.read_text() == "no\n"
            ExecPlugin(command(fake.path, interactive_mode="Always")).obtain()
            assert terminal.read_text() == "yes\n" and fake.runs[-1][2]["spec"] == {"interactive": True}
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, leader, follower):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("aws", "exec: must be a table, not str"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "aws"}, r"exec\.apiVersion: .*v1alpha1"),
        ({"apiVersion": V1BETA1}, r"exec\.command: missing"),
        ({"apiVersion": V1, "command": "aws"}, r"exec\.interactiveMode: missing; use one of Never, IfAvailable"),
        ({"apiVersion": V1, "command": "aws", "interactiveMode": "Maybe"}, r"exec\.interactiveMode: Maybe"),
        ({"apiVersion": V1BETA1, "command": "aws", "args": "get"}, "args must be a list"),
        ({"apiVersion": V1BETA1, "command": "aws", "env": [{"name": "A"}]}, "env a list of name and value: 'value'"),
        ({"apiVersion": V1BETA1, "command": "aws", "env": "A=b"}, "env a list of name and value"),
    ],
)
def test_an_invalid_exec_section_is_refused_with_its_key(section: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^config: users: .*{expected}"):
        exec_command(Path("config"), section, {})


def test_a_relative_command_is_next_to_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePlugin(tmp_path / "bin")
    fake.answers(V1BETA1, token="t")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    found = exec_command(Path("config"), {"apiVersion": V1BETA1, "command": "./bin/plugin"}, {})
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ExecPlugin(found).obtain().token == "t"


def test_a_credential_is_not_shown() -> None:
    assert "secret" not in repr(module.Credential("secret", "certificate", "secret"))
