"""Extras of the package: each command in an environment with the packages of only some extras."""

from __future__ import annotations

import http.server
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gangwatch.cli import COMMANDS
from gangwatch.extras import EXTRAS
from tests import bare_environment, needs
from tests.ports import held_port

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("starlette", "uvicorn", "aiohttp", "h11", "anyio", "cryptography")
Make = Callable[..., Path]

pytestmark = pytest.mark.xdist_group("extras")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that creates an environment with these extras and returns its program `gangwatch`."""
    wheel = bare_environment.unpacked_wheel(tmp_path_factory.mktemp("wheel"))
    made: dict[tuple[str, ...], Path] = {}

    def get(*extras: str) -> Path:
        if extras not in made:
            made[extras] = bare_environment.make(tmp_path_factory.mktemp("environment"), wheel, *extras)
        return made[extras]

    return get


@pytest.fixture
def run(environment: Make, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Return a function that runs `gangwatch` with arguments, in an environment with `extras`."""

    def call(*arguments: str, extras: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        program = environment(*extras)
        return subprocess.run([program, *arguments], env=variables(tmp_path), capture_output=True, text=True)

    yield call
    if (tmp_path / "state" / "run").exists():
        call("down", extras=("controller",))


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of a new user."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "GANGWATCH_STATE": str(folder / "state"), "COLUMNS": "300"}


def extras_of_pyproject() -> dict[str, list[str]]:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, list[str]] = tree["project"]["optional-dependencies"]
    return found


def providers_of(module: str) -> set[str]:
    """Return the installed packages with files of a module."""
    folder = module.replace(".", "/") + "/"
    return {
        canonicalize_name(package.name)
        for package in importlib.metadata.distributions()
        if any(file.as_posix().startswith(folder) for file in package.files or ())
    }


def test_the_table_has_the_extras_of_pyproject_and_their_modules() -> None:
    extras = extras_of_pyproject()
    groups = {name for name, lines in extras.items() if all(line.startswith("gangwatch[") for line in lines)}
    assert groups == {"slurm", "all"}
    assert set(EXTRAS) == set(extras) - groups - {"dev"}
    (everything,) = extras["all"]
    assert set(re.findall(r"[a-z-]+", everything)) - {"gangwatch"} == set(extras) - {"all", "dev"}
    for name, extra in EXTRAS.items():
        declared = {canonicalize_name(Requirement(line).name) for line in extras[name]}
        provided = {package for module in extra.modules for package in providers_of(module)}
        assert provided == declared, name


def test_the_core_has_no_web_framework() -> None:
    core = set(bare_environment.packages_of())
    assert not core & set(FRAMEWORKS)
    assert {"numpy", "click", "nvidia-ml-py", "prometheus-client", "h2", "bcrypt"} <= core
    assert "starlette" not in bare_environment.packages_of("kubernetes", "remote-write")


def test_help_of_every_command_works_with_the_core_alone(environment: Make, tmp_path: Path) -> None:
    program = """
import sys
import click
from click.testing import CliRunner
from gangwatch.cli import cli
def every(command, context, words):
    yield words
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from every(below, click.Context(below, parent=context), [*words, name])
for words in every(cli, click.Context(cli), []):
    done = CliRunner().invoke(cli, [*words, "--help"])
    print(words, done.exit_code, done.exception or "")
"""
    python = environment().parent / "python"
    done = subprocess.run([python, "-c", program], env=variables(tmp_path), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > len(COMMANDS) + 20
    assert [line for line in lines if not line.endswith("] 0 ")] == []


NEEDS = [
    ("up", "controller"),
    ("controller", "controller"),
    ("demo", "controller"),
    ("certificates authority --folder F", "controller"),
    ("certificates issue --folder F n", "controller"),
    ("certificates sign --folder F n {file}", "controller"),
    ("certificates renew --folder F", "controller"),
    ("certificates revoke --folder F n", "controller"),
    ("certificates admit --folder F n", "controller"),
    ("certificates list --folder F", "controller"),
    ("kubernetes controller", "controller,kubernetes"),
    ("kubernetes uninstall", "kubernetes"),
    ("kubernetes renew-certificate", "kubernetes"),
    ("kubernetes certificate --node n --folder F --authority A", "kubernetes"),
    ("kubernetes revoke n", "kubernetes"),
    ("kubernetes admit n", "kubernetes"),
    ("check --kubernetes", "kubernetes"),
    ("dashboards build F", "dashboards"),
    ("dashboards provision F", "dashboards"),
    ("detect {parquet}", "traces"),
    ("agent --config {remote_write}", "remote-write"),
]


@pytest.mark.parametrize(("words", "extras"), NEEDS, ids=[words.split(" {")[0] for words, _ in NEEDS])
def test_a_command_without_its_extra_prints_the_install_command(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, words: str, extras: str
) -> None:
    files = {"parquet": "t.parquet", "remote_write": "g.toml", "file": "request.pem"}
    paths = {name: tmp_path / file for name, file in files.items()}
    paths["parquet"].write_bytes(b"PAR1" + bytes(16) + b"PAR1")
    paths["remote_write"].write_text('[remote_write]\nendpoint = "http://127.0.0.1:9/"\n[agent]\nport = 0\n')
    paths["file"].write_text("")
    done = run(*words.format(**paths).split())
    assert done.returncode == 4, done
    assert f"pip install 'gangwatch[{extras}]'" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert not (tmp_path / "F").exists()


WORKS = [
    ("down", 0),
    ("config", 0),
    ("config --json", 0),
    ("check --json", 0),
    ("token list", 0),
    ("token create ana --role viewer", 0),
    ("support-bundle {folder}/bundle.tar.gz", 0),
    ("slurm report", 0),
    ("replay", 1),
    ("backup {folder}/copy", 1),
    ("jobs", 3),
    ("jobs --json", 3),
    ("nodes", 3),
    ("queue", 3),
    ("top --once", 3),
    ("submit -- true", 3),
    ("freeze", 3),
    ("thaw", 3),
    ("node quarantine node-0", 3),
    ("explain j-000001", 3),
    ("story j-000001", 3),
    ("verdict list", 3),
    ("whoami", 3),
    ("reload", 3),
    ("cancel j-000001", 3),
]


@pytest.mark.parametrize(("words", "code"), WORKS, ids=[words for words, _ in WORKS])
def test_a_command_works_with_the_core_alone(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, words: str, code: int
) -> None:
    done = run(*words.format(folder=tmp_path).split())
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr


def test_check_lists_the_missing_extras(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for extras in ((), ("kubernetes",)):
        document = json.loads(run("check", "--json", extras=extras).stdout)
        found = {one["name"].removeprefix("extra "): one for one in document["findings"] if one["name"][:6] == "extra "}
        assert set(found) == set(EXTRAS)
        for name, one in found.items():
            assert one["state"] == ("found" if name in extras else "missing"), one
            assert one["state"] == "found" or one["remedy"] == f"pip install 'gangwatch[{name}]'"
    table = run("check").stdout
    assert re.search(
        r"extra controller +missing +optional: `gangwatch up`.*pip install 'gangwatch\[controller\]'", table
    )
    required = run("check", "--require", "extra controller")
    assert required.returncode == 1 and "extra controller (missing)" in required.stderr


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.received.append((self.path, len(self.rfile.read(length))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        return


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Run an HTTP server. Yield its URL, and the list of requests that it has received."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    server.received = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.received  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def until(reached: Callable[[], Any], what: str) -> Any:
    """Wait until the function's result is true, and return it. what: condition to name in the error."""
    give_up_s = time.monotonic() + 60
    while not (found := reached()):
        assert time.monotonic() < give_up_s, what
        time.sleep(0.2)
    return found


@pytest.mark.parametrize(
    ("extras", "section", "path"),
    [((), "otlp", "/v1/metrics"), (("kubernetes", "remote-write"), "remote_write", "/api/v1/write")],
    ids=["core", "image"],
)
def test_an_agent_serves_metrics_and_pushes(
    environment: Make, tmp_path: Path, extras: tuple[str, ...], section: str, path: str
) -> None:
    with receiver() as (url, received):
        port = held_port()
        (tmp_path / "g.toml").write_text(f'[agent]\nport = {port}\n[{section}]\nendpoint = "{url}{path}"\n')
        command = [environment(*extras), "agent", "--node", "n", "--slots", "1", "--config", tmp_path / "g.toml"]
        with (tmp_path / "log").open("wb") as log:
            agent = subprocess.Popen(command, env=variables(tmp_path), stdout=log, stderr=log)
        try:

            def scraped() -> str:
                assert agent.poll() is None, (tmp_path / "log").read_text()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                        text: str = response.read().decode()
                        return text
                except urllib.error.URLError:
                    return ""

            until(lambda: "gangwatch_host_" in scraped(), "/metrics has host metrics")
            assert "process_resident_memory_bytes" in scraped()
            until(lambda: received, "a push arrives")
            assert received[0][0] == path and received[0][1] > 100
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(30) == 0


def test_a_controller_runs_without_the_other_extras(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """The controller's environment has no HTTP client. The command line without extras can use the controller."""
    assert "aiohttp" not in bare_environment.packages_of("controller")
    started = run("up", "--nodes", "1", "--slots", "1", "--no-gpus", "--port", "0", extras=("controller",))
    assert started.returncode == 0, started.stderr
    try:
        assert "healthy" in run("nodes").stdout
        submitted = run("submit", "--name", "bare", "--", "true")
        assert submitted.returncode == 0, submitted.stderr
        until(lambda: "completed" in run("jobs", "--ended").stdout, "the job completes")
        assert "bare" in run("jobs", "j-000001").stdout
        assert run("top", "--once").returncode == 0
        assert run("freeze").returncode == 0 and "frozen" in run("queue").stdout
        url = json.loads(run("whoami", "--json").stdout)
        assert url["role"] == "operator"
    finally:
        assert run("down", extras=("controller",)).returncode == 0


def test_each_extra_alone_is_enough_for_its_commands(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    needs.package("pyarrow")
    built = run("dashboards", "build", str(tmp_path / "dashboards"), extras=("dashboards",))
    assert built.returncode == 0 and list((tmp_path / "dashboards").rglob("*.json")), built.stderr
    made = run("certificates", "authority", "--folder", str(tmp_path / "ca"), extras=("slurm",))
    assert made.returncode == 0 and (tmp_path / "ca" / "authority.key").exists(), made.stderr
    (tmp_path / "t.parquet").write_bytes(b"not Parquet")
    read = run("detect", str(tmp_path / "t.parquet"), "--format", "bytedance", extras=("traces",))
    assert read.returncode == 1 and "cannot be read as a Parquet file" in read.stderr
    for words in ("kubernetes uninstall", "kubernetes revoke n", "check --kubernetes", "kubernetes renew-certificate"):
        refused = run(*words.split(), extras=("kubernetes",))
        assert refused.returncode == 1 and "not running in a pod" in refused.stderr, refused
    for extra, section in (
        ("oidc", '[oidc]\nissuer = "https://127.0.0.1:9/"\nclient_id = "c"\ndefault_role = "viewer"\n'),
        ("kubernetes", "[token_review]\nenabled = true\n"),
    ):
        (tmp_path / "g.toml").write_text(section)
        command = ("controller", "--port", "0", "--config", str(tmp_path / "g.toml"))
        refused = run(*command, extras=("controller",))
        assert refused.returncode == 4 and f"pip install 'gangwatch[{extra}]'" in refused.stderr, refused


def test_a_module_of_an_extra_that_is_missing_later_names_the_extra(environment: Make, tmp_path: Path) -> None:
    program = """
import sys
from gangwatch import cli
def fails():
    import starlette.responses
cli.COMMANDS["jobs"] = ("broken:command", "")
import types, click
sys.modules["broken"] = types.SimpleNamespace(command=click.command()(fails))
print(cli.run(["jobs"]))
def fails():
    import no_such_module
sys.modules["broken"].command = click.command()(fails)
cli.run(["jobs"])
"""
    python = environment().parent / "python"
    done = subprocess.run([python, "-c", program], env=variables(tmp_path), capture_output=True, text=True)
    assert done.stdout == "4\n" and "the module starlette needs" in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
