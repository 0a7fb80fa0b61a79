"""The controller's daemon in this process: one server for all backends, and requests to stop it."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.schema.errors import ConfigError
from gangwatch.configuration.config_file import load, selected_backend
from gangwatch.daemons.controller_daemon import ControllerServer, StopRequest
from gangwatch.state_folder import StateFolder
from scheduler_feedback.backends.registry import BACKENDS, BackendType
from tests.controller import test_composition

THIRD_PARTY = test_composition.__name__


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControllerServer]:
    """Return the server of a controller whose configuration selects another package's backend."""
    line = BackendType(f"{THIRD_PARTY}:LoggingBackend", f"{THIRD_PARTY}:LoggingSection")
    monkeypatch.setitem(BACKENDS, "logging", line)
    file = tmp_path / "gangwatch.toml"
    file.write_text("[controller]\nport = 0\n[logging]\nenabled = true\n")
    state = StateFolder(tmp_path / "state")
    state.prepare()
    with ControllerServer(state, load(file)) as made:
        yield made


@contextmanager
def running(server: ControllerServer, started: Callable[[], object] = lambda: None) -> Iterator[threading.Thread]:
    """Run the controller in a thread; the daemon runs it in its main thread."""
    config = server._config
    name = selected_backend(config)
    controller = server.compose(config.policy, name, config.backend_section(name))
    extra = [("gangwatch_slurm_requests_total", (), 5.0)]
    thread = threading.Thread(target=server.run, args=(controller, [lambda: extra], started))
    thread.start()
    try:
        yield thread
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


def get(folder: Path, path: str) -> str:
    """Return the response's body, using the address and token that the controller has announced."""
    deadline = time.monotonic() + 20
    while not (folder / "controller.json").exists():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
    url = json.loads((folder / "controller.json").read_text())["url"]
    token = (folder / "token").read_text()
    request = urllib.request.Request(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def test_the_selected_backend_is_served_with_its_metrics(server: ControllerServer, tmp_path: Path) -> None:
    started: list[str] = []
    with running(server, lambda: started.append("started")) as thread:
        page = get(tmp_path / "state", "/metrics")
        assert json.loads(get(tmp_path / "state", "/api/overview"))["nodes"]
        assert started == ["started"] and thread.is_alive()
    for name in ("gangwatch_leads", "gangwatch_cycles_total", "gangwatch_slurm_requests_total"):
        assert f"\n{name} " in page, "samples of the backend, the cycle and other sources"
    assert (tmp_path / "state" / "actions.log").read_text().splitlines()[-2:] == ["detach", "stop"]
    assert not (tmp_path / "state" / "controller.json").exists()


@pytest.mark.parametrize("early", [True, False])
def test_a_stop_request_ends_the_server_also_before_it_runs(server: ControllerServer, early: bool) -> None:
    stop = StopRequest()
    if early:
        stop.make()
        stop.pass_to(server)
    else:
        stop.pass_to(server)
    with running(server) as thread:
        if not early:
            stop.make()
        thread.join(20)
        assert stop.made and not thread.is_alive()


def test_a_used_port_is_reported_before_anything_starts(server: ControllerServer, tmp_path: Path) -> None:
    _, port = server._listener.getsockname()[:2]
    file = tmp_path / "other.toml"
    file.write_text(f"[controller]\nport = {port}\n")
    other = StateFolder(tmp_path / "other")
    other.prepare()
    with pytest.raises(ConfigError):
        ControllerServer(other, load(file))
    assert not (tmp_path / "other" / "store.sqlite").exists()
