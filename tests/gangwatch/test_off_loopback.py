"""A controller that other machines can reach, with TLS, token and passwords: by curl, the command line and the feed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import pytest

from agent.schema.errors import ConfigError
from exporter.security.security import Security
from exporter.server import ThreadedServer, agent_app
from gangwatch.connection import Trust, connect
from gangwatch.state_folder import ControllerRecord
from gangwatch.supervisor.readiness import readiness
from tests import needs
from tests.exporter.certificates import Authority
from tests.exporter.sample_frames import small_frame, small_layout
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

HOST = "0.0.0.0"
"""All addresses: the reachable ones depend on the machine, the requirements on the server do not."""


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path / "state") as closed:
        yield closed


class Site:
    """Certificates, and a web configuration with one user, whose password is 'secret'."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.certificate, self.key = self.authority.sign("server")
        self.file = folder / "web.yml"
        self.write(f"basic_auth_users: {{reader: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()!r}}}\n")

    def write(self, more: str) -> None:
        self.file.write_text(f"tls_server_config: {{cert_file: {self.certificate}, key_file: {self.key}}}\n{more}")

    def curl(self, url: str, *options: str) -> tuple[int, str]:
        """Return the status and the body of a response."""
        asked = subprocess.run(
            [needs.component("curl", "curl"), "-sS", "--max-time", "30", "-w", "\n%{http_code}", *options, url],
            capture_output=True,
            text=True,
        )
        body, _, status = asked.stdout.rpartition("\n")
        return int(status or 0), body + asked.stderr


@pytest.mark.parametrize(
    ("web", "missing"),
    [
        (None, "there is no web configuration"),
        ("basic_auth_users: {}\n", "has no tls_server_config"),
    ],
)
def test_without_tls_the_controller_refuses_to_listen_off_loopback(
    door: FrontDoor, tmp_path: Path, web: str | None, missing: str
) -> None:
    options = ["--listen", f"{HOST}:0"]
    if web is not None:
        (tmp_path / "web.yml").write_text(web)
        options += ["--web-config", str(tmp_path / "web.yml")]
    refused = door.run("controller", *options, code=1)
    assert missing in refused.stderr and "Traceback" not in refused.stderr


def test_a_controller_reachable_from_other_machines(door: FrontDoor, tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "gangwatch.toml").write_text(
        f'[agent]\nlisten = "{HOST}:0"\nweb_config = "{site.file}"\n'
        f'[feed]\nca_file = "{site.authority.certificate}"\nusername = "reader"\n'
        f'password_file = "{tmp_path}/password"\n'
    )
    (tmp_path / "password").write_text("secret\n")
    door.up("--config", str(tmp_path / "gangwatch.toml"), "--listen", f"{HOST}:0", "--web-config", str(site.file))
    record = door.state.controller()
    assert record is not None and record.url.startswith("https://127.0.0.1:")
    token = door.state.token()
    known = ("--cacert", str(site.authority.certificate))
    bearer = ("-H", f"Authorization: Bearer {token}")
    jobs = f"{record.url}/api/jobs"

    assert site.curl(jobs, *known)[0] == 401
    assert site.curl(jobs, *known, "-u", "reader:wrong")[0] == 401
    assert site.curl(jobs, *known, "-H", "Authorization: Bearer wrong")[0] == 401
    assert site.curl(jobs, *known, "-u", "reader:secret") == (200, "[]")
    assert site.curl(jobs, *known, *bearer) == (200, "[]")
    assert site.curl(f"{record.url}/readyz", *known)[0] == 200, "probes need no password"
    assert "gangwatch_" in site.curl(f"{record.url}/metrics", *known, "-u", "reader:secret")[1]
    assert "certificate" in site.curl(jobs, *bearer)[1], "curl refuses the unknown authority"
    assert site.curl(jobs.replace("https", "http"), *bearer)[0] == 0

    # A password for reading does not allow running programs. A page of another origin may do neither.
    submission = ("-H", "Content-Type: application/json", "-d", '{"name": "x", "command": ["true"], "ranks": 1}')
    assert site.curl(jobs, *known, "-u", "reader:secret", *submission)[0] == 401
    assert site.curl(jobs, *known, *bearer, *submission, "-H", "Origin: https://evil.example")[0] == 403
    status, body = site.curl(jobs, *known, *bearer, *submission)
    assert status == 201, body

    # The command line needs only the state folder, and the feed connects to agents over TLS.
    job = door.wait_for(json.loads(body)["job"], "completed")
    assert job["name"] == "x"
    wait_until(
        lambda: [(node["state"], node["present"]) for node in door.json("nodes")] == [("healthy", True)] * 2,
        lambda: f"{door.json('nodes')}\n{door.logs()}",
    )

    # On another machine: no state folder, but a configuration that names the controller, and a copy of the token.
    (tmp_path / "copied-token").write_text(token + "\n")
    port = urlsplit(record.url).port
    (tmp_path / "client.toml").write_text(
        f'[client]\nurl = "https://localhost:{port}"\nca_file = "{site.authority.certificate}"\n'
        f'token_file = "{tmp_path}/copied-token"\n'
    )
    away = {**door.environment, "GANGWATCH_CONFIG": str(tmp_path / "client.toml"), "HOME": str(tmp_path / "elsewhere")}

    def gangwatch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gangwatch", *arguments]
        return subprocess.run(command, env=away, capture_output=True, text=True)

    assert json.loads(gangwatch("jobs", "--json").stdout)[0]["name"] == "x"
    assert gangwatch("freeze").returncode == 0 and gangwatch("thaw").returncode == 0
    (tmp_path / "copied-token").write_text("wrong\n")
    refused = gangwatch("jobs")
    assert refused.returncode == 1 and "token" in refused.stderr and "Traceback" not in refused.stderr


def test_the_token_alone_authenticates(door: FrontDoor, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("")
    door.up("--listen", f"{HOST}:0", "--web-config", str(site.file))
    record = door.state.controller()
    assert record is not None
    known = ("--cacert", str(site.authority.certificate))
    assert site.curl(f"{record.url}/api/jobs", *known)[0] == 401
    assert site.curl(f"{record.url}/metrics", *known)[0] == 401
    bearer = ("-H", f"Authorization: Bearer {door.state.token()}")
    assert site.curl(f"{record.url}/api/jobs", *known, *bearer)[0] == 200
    assert door.json("jobs") == []


def test_a_daemon_that_requires_a_client_certificate_is_reported_up(tmp_path: Path) -> None:
    """The supervisor has no certificate, but detects that the daemon serves. The client presents the one in
    [client]."""
    site = Site(tmp_path)
    site.file.write_text(
        f"tls_server_config:\n  cert_file: {site.certificate}\n  key_file: {site.key}\n"
        f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {site.authority.certificate}\n"
    )
    own, own_key = site.authority.sign("own")
    layout = small_layout()
    made = (layout, small_frame(layout))
    with ThreadedServer(agent_app(lambda: made, lambda _: lambda: None), security=Security(site.file)) as server:
        record = ControllerRecord(1, 1, server.url, str(site.certificate))
        assert readiness(record)[0]
        assert not readiness(ControllerRecord(1, 1, server.url))[0], "its certificate is not trusted"
        assert not readiness(ControllerRecord(1, 1, server.url, str(tmp_path / "absent.pem")))[0]
        for trust in (
            Trust(site.certificate, None, own, own_key),
            Trust(None, site.authority.certificate, own, own_key),
        ):
            connection = connect(server.url, 30.0, trust)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200 and b"gangwatch_" in answer.read()
            connection.close()
    assert not readiness(record)[0], "the server has closed"
    with pytest.raises(ConfigError, match=r"absent\.pem: No such file"):
        connect(server.url, 1.0, Trust(tmp_path / "absent.pem"))
